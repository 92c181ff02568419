//! The host's program: the real host on the world's log. A crash ends it without a word.

use std::net::Ipv4Addr;
use std::sync::Arc;

use breakbulk::link::WebSocket;
use breakbulk_host::agent::Agent;
use breakbulk_host::agent::demo::{Demo, DemoConfig};
use breakbulk_host::endpoint::EndReason;
use breakbulk_host::{Host, HostConfig};
use breakbulk_proto::{Budget, CloseReason};
use turmoil::net::TcpListener;

use crate::sim::agent;
use crate::sim::shared::Shared;

pub(crate) const HOST: &str = "host";
pub(crate) const PORT: u16 = 9000;

/// Serves clients for ever.
pub(crate) async fn serve(shared: Arc<Shared>) -> turmoil::Result {
    let log = shared.store.open(&shared).await?;
    let mut config = HostConfig::new([shared.store.root()]);
    config.endpoint = shared.plan.endpoint(config.endpoint);
    let demo: Arc<dyn Agent> = Arc::new(Demo::new(DemoConfig::default()));
    let host = Host::start(Arc::clone(&log), vec![demo], config, Budget::new(shared.plan.budget())).await?;
    tokio::task::spawn_local(agent::speak(Arc::clone(&shared), log));
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)).await?;
    loop {
        let (io, _) = listener.accept().await?;
        let link = WebSocket::server(shared.wire(HOST, io), &shared.plan.link());
        let (endpoint, shared) = (host.endpoint().clone(), Arc::clone(&shared));
        tokio::spawn(async move {
            let end = endpoint.serve(link, Some("everybody".into())).await;
            note(&shared, &end);
        });
    }
}

/// Nobody here breaks a rule, so nobody may be accused.
fn note(shared: &Shared, end: &EndReason) {
    let facts = &mut *shared.facts();
    facts.tally.one(end.name());
    match end {
        EndReason::Link(CloseReason::Violation(violation)) => {
            facts.ledger.altered(format!("the host accuses an honest client: {violation}"));
        }
        EndReason::Internal
        | EndReason::Version
        | EndReason::Trimmed
        | EndReason::Reset
        | EndReason::Lagging { .. }
        | EndReason::Log(_) => {
            facts.ledger.altered(format!("the host closes for no reason: {end}"));
        }
        _ => {}
    }
}
