//! How a log in JetStream is kept.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use super::super::Merge;
use super::names::HostName;

/// Limits of a log in JetStream, and how its streams are made if they are not there.
#[derive(Clone)]
#[non_exhaustive]
pub struct JetStreamConfig {
    /// The host whose log it is.
    pub host: HostName,
    /// Who writes, for people who look at the log: the name of this node.
    pub node: String,
    /// The number of this owner, by which it is known that no later owner has the log: it is refused if the log has had one with
    /// this number or a higher one. `None` takes the log from whoever has it.
    pub epoch: Option<u64>,
    /// On how many servers each message is kept. 1; a fleet has 3.
    pub replicas: usize,
    /// Bytes that the entries may take; -1 for as many as the account has. Appends are refused beyond.
    pub max_bytes: i64,
    /// How deltas of one part become one entry. Without it they do not.
    pub merge: Option<Arc<dyn Merge>>,
    /// The largest batch. 256 MiB: more than the largest message of any peer.
    pub max_batch_bytes: usize,
    /// Bytes of batches that may wait for the stream; further appends wait before the queue. A larger batch waits alone.
    pub max_queued_bytes: usize,
    /// Bytes of the newest entries that readers share in memory.
    pub recent_bytes: usize,
    pub(super) faults: InjectedFaults,
}

/// Faults that tests inject, to prove that they would notice them. Without the feature `test-support`, nobody can set any.
#[derive(Debug, Clone, Default)]
pub struct InjectedFaults {
    /// The reading of the clock when a log is opened, 2^20 a second, without the random part; 0 for the real time.
    pub clock: Arc<AtomicU64>,
    /// The next group is not published, and its writer gets no answer.
    pub lose_publish: Arc<AtomicBool>,
    /// The next group is published, and its writer gets no answer.
    pub lose_answer: Arc<AtomicBool>,
}

#[cfg(feature = "test-support")]
impl JetStreamConfig {
    /// The faults that a test injects. Clones of the config share them.
    #[doc(hidden)]
    #[must_use]
    pub const fn faults(&self) -> &InjectedFaults {
        &self.faults
    }
}

impl JetStreamConfig {
    /// The defaults, for this host.
    #[must_use]
    pub fn new(host: HostName) -> Self {
        Self {
            host,
            node: String::new(),
            epoch: None,
            replicas: 1,
            max_bytes: -1,
            merge: None,
            max_batch_bytes: 256 << 20,
            max_queued_bytes: 64 << 20,
            recent_bytes: 16 << 20,
            faults: InjectedFaults::default(),
        }
    }
}

impl fmt::Debug for JetStreamConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            host,
            node,
            epoch,
            replicas,
            max_bytes,
            merge,
            max_batch_bytes,
            max_queued_bytes,
            recent_bytes,
            faults: _,
        } = self;
        f.debug_struct("JetStreamConfig")
            .field("host", host)
            .field("node", node)
            .field("epoch", epoch)
            .field("replicas", replicas)
            .field("max_bytes", max_bytes)
            .field("merge", &merge.is_some())
            .field("max_batch_bytes", max_batch_bytes)
            .field("max_queued_bytes", max_queued_bytes)
            .field("recent_bytes", recent_bytes)
            .finish_non_exhaustive()
    }
}
