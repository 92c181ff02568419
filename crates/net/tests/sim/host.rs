//! The model host's program: takes clients with and without segments, and gives each connection a desk.

use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;

use breakbulk::link::WebSocket;
use breakbulk::{Dialect, Driver, Setup};
use breakbulk_proto::Limits;
use breakbulk_proto::ahp::Role;
use turmoil::net::{TcpListener, TcpStream};

use crate::sim::desk::Answer;
use crate::sim::line::{Heard, Line, Real};
use crate::sim::meddler::Meddler;
use crate::sim::plan::Plan;
use crate::sim::rng::Rng;
use crate::sim::scene::Scene;
use crate::sim::wire::Wire;

/// Where the host takes segments.
pub(crate) const CAPPED_PORT: u16 = 9001;
/// Where it knows nothing of them.
pub(crate) const PLAIN_PORT: u16 = 9000;
pub(crate) const HOST: &str = "host";

/// Serves clients for ever.
pub(crate) async fn serve(scene: Rc<Scene>) -> turmoil::Result {
    let capped = TcpListener::bind((Ipv4Addr::UNSPECIFIED, CAPPED_PORT)).await?;
    let plain = TcpListener::bind((Ipv4Addr::UNSPECIFIED, PLAIN_PORT)).await?;
    let budget = scene.facts.borrow_mut().budget(&scene.plan);
    loop {
        let (dialect, (io, peer)) = tokio::select! {
            biased;
            accepted = capped.accept() => (Dialect::Ahp, accepted?),
            accepted = plain.accept() => (Dialect::Plain, accepted?),
        };
        let mut setup = Setup::new(dialect, Role::Server, limits(dialect, &scene.plan));
        setup.negotiated = scene.facts.borrow().host.negotiated.clone();
        let machine = setup.machine(budget.account(Some(&peer.ip().to_string())))?;
        let driver = Driver::new(link(io, dialect, &scene), machine);
        tokio::task::spawn_local(attend(driver, Rc::clone(&scene), peer));
    }
}

/// What a machine of this dialect takes.
pub(crate) fn limits(dialect: Dialect, plan: &Plan) -> Limits {
    if dialect == Dialect::Ahp { plan.limits() } else { Limits::default() }
}

fn link(io: TcpStream, dialect: Dialect, scene: &Scene) -> Meddler<WebSocket<Wire>> {
    let wire = scene.facts.borrow_mut().wire(HOST, io, &scene.plan);
    let config = if dialect == Dialect::Ahp { scene.plan.capped() } else { scene.plan.plain() };
    Meddler::new(WebSocket::server(wire, &config), None, Rng::new(0))
}

/// Serves one connection to its end.
async fn attend(driver: Real, scene: Rc<Scene>, peer: SocketAddr) {
    let desk = scene.facts.borrow_mut().sit_down();
    let mut line = Line::far(driver, &scene, peer, desk);
    loop {
        loop {
            let next = scene.facts.borrow_mut().pull(desk, false);
            let Some(answer) = next else { break };
            hand(&mut line, &scene, desk, answer);
        }
        match line.next().await {
            Heard::News => {}
            Heard::Message { text, .. } => {
                let answers = scene.facts.borrow_mut().host_hears(desk, &text);
                // It may be in the log now, and the others read that too.
                scene.ring();
                answers.into_iter().for_each(|answer| hand(&mut line, &scene, desk, answer));
            }
            Heard::Sent(ticket) => scene.facts.borrow_mut().desk(desk).sent(ticket),
            Heard::Failed { ticket, reply } => scene.facts.borrow_mut().host_failed(desk, ticket, reply.as_deref()),
            Heard::Closed => return,
        }
    }
}

fn hand(line: &mut Line, scene: &Scene, desk: u64, answer: Answer) {
    let size = answer.out.text.len() as u64;
    let ticket = line.send(answer.out);
    scene.facts.borrow_mut().desk(desk).handed(ticket, size, answer.is_handshake);
}
