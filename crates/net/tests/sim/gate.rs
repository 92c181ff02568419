//! Two gateways between clients and a host that know nothing of segments: plain, capped, plain.

use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;

use breakbulk::gateway::{Endpoint, Gateway};
use breakbulk::link::WebSocket;
use breakbulk::{Dialect, Setup};
use breakbulk_proto::CloseReason;
use breakbulk_proto::ahp::{Delivery, Role};
use tokio::time::timeout;
use turmoil::net::{TcpListener, TcpStream};

use crate::sim::client::DIAL_TIME;
use crate::sim::host::{CAPPED_PORT, HOST, PLAIN_PORT, limits};
use crate::sim::plan::{Plan, Sabotage};
use crate::sim::shared::Shared;

/// The gateway beside the clients.
pub(crate) const OUTER: &str = "outer";
/// The gateway beside the host.
pub(crate) const INNER: &str = "inner";

/// The code for "the host cannot be reached".
const BAD_GATEWAY: u16 = 1014;

/// Which of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Outer,
    Inner,
}

impl Place {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Outer => OUTER,
            Self::Inner => INNER,
        }
    }

    /// What is spoken towards clients, and towards the host.
    const fn dialects(self) -> [Dialect; 2] {
        match self {
            Self::Outer => [Dialect::Plain, Dialect::Ahp],
            Self::Inner => [Dialect::Ahp, Dialect::Plain],
        }
    }

    const fn leads_to(self) -> (&'static str, u16) {
        match self {
            Self::Outer => (INNER, CAPPED_PORT),
            Self::Inner => (HOST, PLAIN_PORT),
        }
    }
}

/// A gateway's program: each connection that comes in gets one of its own that leads on.
pub(crate) async fn stand(shared: Rc<Shared>, place: Place) -> turmoil::Result {
    let port = if place == Place::Outer { PLAIN_PORT } else { CAPPED_PORT };
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await?;
    let [downstream, upstream] = place.dialects();
    let downstream = setup(downstream, Role::Server, &shared.plan);
    let upstream = setup(upstream, Role::Client, &shared.plan);
    let gateway = Rc::new(Gateway::new(downstream, upstream, shared.plan.gateway_budget()).expect("memory enough"));
    shared.facts.borrow_mut().gateways.push(Rc::clone(&gateway));
    loop {
        let (io, from) = listener.accept().await?;
        let (shared, gateway) = (Rc::clone(&shared), Rc::clone(&gateway));
        tokio::task::spawn_local(async move { join(&shared, &gateway, place, io, from).await });
    }
}

fn setup(dialect: Dialect, role: Role, plan: &Plan) -> Setup {
    let mut setup = Setup::new(dialect, role, limits(dialect, plan));
    if dialect == Dialect::Plain {
        setup.limits = plan.gateway_limits();
    }
    if plan.sabotage == Some(Sabotage::ReleasedEarly) {
        setup.delivery = Delivery::Settled;
    }
    setup
}

async fn join(shared: &Shared, gateway: &Gateway, place: Place, io: TcpStream, from: SocketAddr) {
    let [downstream, upstream] = place.dialects();
    let config = |dialect| if dialect == Dialect::Ahp { shared.plan.capped() } else { shared.plan.plain() };
    let wire = |io| shared.facts.borrow_mut().wire(place.name(), io, &shared.plan);
    let downstream = Endpoint::new(WebSocket::server(wire(io), &config(downstream)), from.ip().to_string());
    let Ok(Ok(onward)) = timeout(DIAL_TIME, TcpStream::connect(place.leads_to())).await else {
        gateway.refuse(downstream, CloseReason::Peer { code: BAD_GATEWAY }).await;
        return;
    };
    let Ok(own) = onward.local_addr() else { return };
    shared.facts.borrow_mut().led_on(from, own);
    let upstream = Endpoint::new(WebSocket::client(wire(onward), &config(upstream)), place.leads_to().0);
    let ended = gateway.join(downstream, upstream, Some("everyone"), std::future::pending(), None).await;
    let mut facts = shared.facts.borrow_mut();
    for reason in ended.iter().flat_map(|ended| [&ended.downstream.reason, &ended.upstream.reason]) {
        facts.books.tally.one("gateway sides ended");
        if let CloseReason::Violation(violation) = reason {
            facts.books.ledger.altered(format!("a gateway accuses an honest peer: {violation}"));
        }
    }
    // Everything here is of a size that the other side takes, however often its link breaks.
    for name in gateway.counts().keys().filter(|name| !matches!(**name, "send-disconnected" | "send-too-slow")) {
        facts.books.ledger.lost(format!("{} refused a message: {name}", place.name()));
    }
}
