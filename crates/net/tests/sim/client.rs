//! The model client's program: connects, talks until the connection is gone, waits a while, and does it again.

use std::rc::Rc;
use std::time::Duration;

use breakbulk::Driver;
use breakbulk::link::WebSocket;
use tokio::time::{sleep, timeout};
use turmoil::net::TcpStream;

use crate::sim::gate::OUTER;
use crate::sim::host::{CAPPED_PORT, HOST, PLAIN_PORT};
use crate::sim::line::{Heard, Line};
use crate::sim::plan::Mode;
use crate::sim::rng::Rng;
use crate::sim::sabotaged_link::SabotagedLink;
use crate::sim::shared::Shared;
use crate::sim::wire::Wire;

/// How long a connection may take to come up.
pub(crate) const DIAL_TIME: Duration = Duration::from_secs(2);

/// Lives for ever.
pub(crate) async fn live(shared: Rc<Shared>, at: usize) -> turmoil::Result {
    loop {
        // It may have been started again in the middle of something.
        let pause = shared.facts.borrow_mut().client_down(at);
        sleep(pause).await;
        let place = if shared.plan.modes[at] == Mode::Plain { (OUTER, PLAIN_PORT) } else { (HOST, CAPPED_PORT) };
        if let Ok(Ok(io)) = timeout(DIAL_TIME, TcpStream::connect(place)).await {
            talk(&shared, at, io).await?;
        }
    }
}

async fn talk(shared: &Rc<Shared>, at: usize, io: TcpStream) -> turmoil::Result {
    let (address, peer) = (io.local_addr()?, io.peer_addr()?);
    let link = link(io, shared, at);
    let (setup, account) = shared.facts.borrow().clients[at].setup(&shared.plan);
    let driver = Driver::new(link, setup.machine(account)?);
    let id = shared.facts.borrow_mut().connected(at, address);
    let mut line = Line::near(driver, shared, peer, id);
    let hello = shared.facts.borrow_mut().client_greets(at);
    line.send(hello);
    loop {
        let outs = shared.facts.borrow_mut().client_wants(at);
        for out in outs {
            line.send(out);
        }
        match line.next().await {
            Heard::News | Heard::Sent(_) => {}
            Heard::Message { text, ordinal } => {
                let out = shared.facts.borrow_mut().client_hears(at, &text, ordinal, line.driver.machine_mut());
                if let Some(out) = out {
                    line.send(out);
                }
            }
            Heard::Failed { reply, .. } => {
                if let Some(reply) = reply {
                    shared.facts.borrow_mut().client_failed(at, &reply);
                }
            }
            Heard::Closed => return Ok(()),
        }
    }
}

fn link(io: TcpStream, shared: &Shared, at: usize) -> SabotagedLink<WebSocket<Wire>> {
    let facts = &mut *shared.facts.borrow_mut();
    let client = &mut facts.clients[at];
    let (name, mode, seed) = (client.name.clone(), client.mode, client.rng.next());
    let wire = facts.wire(&name, io, &shared.plan);
    let config = if mode == Mode::Plain { shared.plan.plain() } else { shared.plan.capped() };
    SabotagedLink::new(WebSocket::client(wire, &config), shared.plan.sabotage, Rng::new(seed))
}
