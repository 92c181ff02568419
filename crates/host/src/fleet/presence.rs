//! Which nodes there are: whoever asks gets an answer of each, and nothing is stored.

use std::collections::BTreeMap;
use std::time::Duration;

use async_nats::jetstream;
use bytes::Bytes;
use futures_util::StreamExt;
use serde::{Deserialize, Serialize};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};

use super::lease::{LeaseRecord, NodeInfo};
use super::ownership::LeaseStore;
use super::servers::{ConnectError, Nats};
use crate::log::jetstream::HostName;

/// How long to wait for the answers of nodes.
const WAIT: Duration = Duration::from_millis(700);
/// How long one call to JetStream may take.
const CALL: Duration = Duration::from_secs(5);

/// What a node says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeStatus {
    /// Which one it is.
    #[serde(flatten)]
    pub node: NodeInfo,
    /// The version of its program.
    pub version: String,
    /// The number of its ownership, if it serves the host.
    pub epoch: Option<u64>,
    /// Clients that it serves itself.
    pub clients: u64,
    /// Connections that it carries to the owner.
    pub carried: u64,
}

/// What is known of a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostStatus {
    /// Its name.
    pub host: String,
    /// Its lease, if it was ever served.
    pub lease: Option<LeaseRecord>,
    /// Messages of its log: each has one entry or several, or a decision.
    pub messages: u64,
    /// Bytes of its log, with long bodies, snapshots and rows.
    pub bytes: u64,
    /// The nodes that answered, by their ids.
    pub nodes: Vec<NodeStatus>,
}

/// Answers for a node while this lives.
#[derive(Debug)]
pub struct Presence(JoinHandle<()>);

impl Presence {
    /// Answers with what `describe` says.
    ///
    /// # Errors
    /// There is no connection.
    pub async fn start(
        nats: &Nats,
        host: &HostName,
        describe: impl Fn() -> NodeStatus + Send + 'static,
    ) -> Result<Self, ConnectError> {
        let client = nats.client();
        let mut questions = client
            .subscribe(host.nodes())
            .await
            .map_err(|error| nats.explain(&format!("cannot subscribe: {error}")))?;
        Ok(Self(tokio::spawn(async move {
            while let Some(question) = questions.next().await {
                let (Some(reply), Ok(status)) = (question.reply, serde_json::to_vec(&describe())) else { continue };
                // Whoever asks may be gone.
                drop(client.publish(reply, Bytes::from(status)).await);
            }
        })))
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// All hosts of a fleet.
///
/// # Errors
/// JetStream does not answer, or refuses.
pub async fn status(nats: &Nats, leases: &LeaseStore) -> Result<Vec<HostStatus>, ConnectError> {
    let mut hosts = Vec::new();
    for host in leases.hosts().await? {
        let (_, lease) = leases.read(&host).await?;
        let (mut messages, mut bytes) = (0_u64, 0_u64);
        let context = jetstream::new(nats.client());
        for (stream, has_entries) in [(host.stream(), true), (host.data_stream(), false)] {
            // A host whose log was never opened has none.
            if let Ok(Ok(stream)) = timeout(CALL, context.get_stream(stream)).await {
                let state = &stream.cached_info().state;
                bytes = bytes.saturating_add(state.bytes);
                if has_entries {
                    messages = state.messages;
                }
            }
        }
        let nodes = nodes(nats, &host).await?;
        hosts.push(HostStatus { host: host.to_string(), lease, messages, bytes, nodes });
    }
    Ok(hosts)
}

/// The nodes of a host that answer.
async fn nodes(nats: &Nats, host: &HostName) -> Result<Vec<NodeStatus>, ConnectError> {
    let client = nats.client();
    let failed = |error: &dyn std::fmt::Display| nats.explain(&format!("cannot ask the nodes of {host}: {error}"));
    let inbox = client.new_inbox();
    let mut answers = client.subscribe(inbox.clone()).await.map_err(|error| failed(&error))?;
    client.publish_with_reply(host.nodes(), inbox, Bytes::new()).await.map_err(|error| failed(&error))?;
    let (until, mut nodes) = (Instant::now() + WAIT, BTreeMap::new());
    while let Ok(Some(answer)) = timeout_at(until, answers.next()).await {
        if let Ok(status) = serde_json::from_slice::<NodeStatus>(&answer.payload) {
            nodes.insert(status.node.id.clone(), status);
        }
    }
    Ok(nodes.into_values().collect())
}
