//! The model host's program: accepts clients with and without segments.

use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;

use breakbulk::link::WebSocket;
use breakbulk::{Dialect, Driver, Setup};
use breakbulk_proto::Limits;
use breakbulk_proto::ahp::Role;
use turmoil::net::{TcpListener, TcpStream};

use crate::sim::line::{Heard, Line, Real};
use crate::sim::model_host::Answer;
use crate::sim::plan::Plan;
use crate::sim::rng::Rng;
use crate::sim::sabotaged_link::SabotagedLink;
use crate::sim::shared::Shared;
use crate::sim::wire::Wire;

/// Where the host takes segments.
pub(crate) const CAPPED_PORT: u16 = 9001;
/// Where it knows nothing of them.
pub(crate) const PLAIN_PORT: u16 = 9000;
pub(crate) const HOST: &str = "host";

/// Serves clients for ever.
pub(crate) async fn serve(shared: Rc<Shared>) -> turmoil::Result {
    let capped = TcpListener::bind((Ipv4Addr::UNSPECIFIED, CAPPED_PORT)).await?;
    let plain = TcpListener::bind((Ipv4Addr::UNSPECIFIED, PLAIN_PORT)).await?;
    let budget = shared.facts.borrow_mut().budget(&shared.plan);
    loop {
        let (dialect, (io, peer)) = tokio::select! {
            biased;
            accepted = capped.accept() => (Dialect::Ahp, accepted?),
            accepted = plain.accept() => (Dialect::Plain, accepted?),
        };
        let mut setup = Setup::new(dialect, Role::Server, limits(dialect, &shared.plan));
        setup.negotiated = shared.facts.borrow().host.negotiated.clone();
        let machine = setup.machine(budget.account(Some(&peer.ip().to_string())))?;
        let driver = Driver::new(link(io, dialect, &shared), machine);
        tokio::task::spawn_local(attend(driver, Rc::clone(&shared), peer));
    }
}

/// What a machine of this dialect takes.
pub(crate) fn limits(dialect: Dialect, plan: &Plan) -> Limits {
    if dialect == Dialect::Ahp { plan.limits() } else { Limits::default() }
}

fn link(io: TcpStream, dialect: Dialect, shared: &Shared) -> SabotagedLink<WebSocket<Wire>> {
    let wire = shared.facts.borrow_mut().wire(HOST, io, &shared.plan);
    let config = if dialect == Dialect::Ahp { shared.plan.capped() } else { shared.plan.plain() };
    SabotagedLink::new(WebSocket::server(wire, &config), None, Rng::new(0))
}

/// Serves one connection to its end.
async fn attend(driver: Real, shared: Rc<Shared>, peer: SocketAddr) {
    let connection = shared.facts.borrow_mut().sit_down();
    let mut line = Line::far(driver, &shared, peer, connection);
    loop {
        loop {
            let next = shared.facts.borrow_mut().pull(connection, false);
            let Some(answer) = next else { break };
            hand(&mut line, &shared, connection, answer);
        }
        match line.next().await {
            Heard::News => {}
            Heard::Message { text, .. } => {
                let answers = shared.facts.borrow_mut().host_hears(connection, &text);
                // It may be in the log now, and the others read that too.
                shared.ring();
                answers.into_iter().for_each(|answer| hand(&mut line, &shared, connection, answer));
            }
            Heard::Sent(ticket) => shared.facts.borrow_mut().connection(connection).sent(ticket),
            Heard::Failed { ticket, reply } => {
                shared.facts.borrow_mut().host_failed(connection, ticket, reply.as_deref())
            }
            Heard::Closed => return,
        }
    }
}

fn hand(line: &mut Line, shared: &Shared, connection: u64, answer: Answer) {
    let size = answer.out.text.len() as u64;
    let ticket = line.send(answer.out);
    shared.facts.borrow_mut().connection(connection).handed(ticket, size, answer.is_handshake);
}
