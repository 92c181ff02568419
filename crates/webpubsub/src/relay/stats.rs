//! What a relay counts, and its metrics.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use super::hub::Hubs;

/// Counts since the start.
#[derive(Debug, Default)]
pub(super) struct Counters {
    messages_in: AtomicU64,
    bytes_in: AtomicU64,
    messages_out: AtomicU64,
    bytes_out: AtomicU64,
    largest_frame: AtomicU64,
    recoveries: AtomicU64,
    /// Refused handshakes and requests, by reason.
    refused: Mutex<BTreeMap<&'static str, u64>>,
    /// Closed clients, by reason.
    closed: Mutex<BTreeMap<&'static str, u64>>,
}

/// What has passed through a relay, and what there is now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RelayStats {
    /// Clients, with those that have lost their WebSocket and are kept.
    pub clients: u64,
    /// Clients that have a WebSocket.
    pub connected: u64,
    /// Groups that somebody is in.
    pub groups: u64,
    /// Bytes of messages that wait for acknowledgements.
    pub queued_bytes: u64,
    /// Frames that came from clients.
    pub frames_in: u64,
    /// Their bytes.
    pub bytes_in: u64,
    /// Frames that were sent to clients.
    pub frames_out: u64,
    /// Their bytes.
    pub bytes_out: u64,
    /// The longest frame that ever came.
    pub largest_frame: u64,
    /// How often a client came back.
    pub recoveries: u64,
    /// Refused handshakes and requests, by reason.
    pub refused: BTreeMap<&'static str, u64>,
    /// Closed clients, by reason.
    pub closed: BTreeMap<&'static str, u64>,
}

impl Counters {
    pub(super) fn receive(&self, bytes: u64) {
        self.messages_in.fetch_add(1, Ordering::Relaxed);
        self.bytes_in.fetch_add(bytes, Ordering::Relaxed);
        self.largest_frame.fetch_max(bytes, Ordering::Relaxed);
    }

    pub(super) fn send(&self, bytes: u64) {
        self.messages_out.fetch_add(1, Ordering::Relaxed);
        self.bytes_out.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn recover(&self) {
        self.recoveries.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn refuse(&self, reason: &'static str) {
        count(&self.refused, reason);
    }

    pub(super) fn close(&self, reason: &'static str) {
        count(&self.closed, reason);
    }

    pub(super) fn stats(&self, hubs: &Hubs) -> RelayStats {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let clients = hubs.all_clients();
        RelayStats {
            clients: size(clients.len()),
            connected: size(clients.iter().filter(|client| client.is_connected()).count()),
            groups: hubs.count_groups(),
            queued_bytes: hubs.queued_bytes(),
            frames_in: load(&self.messages_in),
            bytes_in: load(&self.bytes_in),
            frames_out: load(&self.messages_out),
            bytes_out: load(&self.bytes_out),
            largest_frame: load(&self.largest_frame),
            recoveries: load(&self.recoveries),
            refused: self.refused.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            closed: self.closed.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }
}

impl RelayStats {
    /// As text, in the format of Prometheus.
    #[must_use]
    pub fn to_prometheus(&self) -> String {
        let mut text = String::new();
        for (name, kind, help, value) in [
            ("clients", "gauge", "Clients, with those that have lost their WebSocket.", self.clients),
            ("connected", "gauge", "Clients that have a WebSocket.", self.connected),
            ("groups", "gauge", "Groups that somebody is in.", self.groups),
            ("queued_bytes", "gauge", "Bytes of messages that wait for acknowledgements.", self.queued_bytes),
            ("received_frames_total", "counter", "Frames from clients.", self.frames_in),
            ("received_bytes_total", "counter", "Bytes of frames from clients.", self.bytes_in),
            ("sent_frames_total", "counter", "Frames to clients.", self.frames_out),
            ("sent_bytes_total", "counter", "Bytes of frames to clients.", self.bytes_out),
            ("largest_frame_bytes", "gauge", "The longest frame that ever came from a client.", self.largest_frame),
            ("recoveries_total", "counter", "How often a client came back.", self.recoveries),
        ] {
            let name = format!("breakbulk_relay_{name}");
            let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}\n");
        }
        for (name, help, counts) in [
            ("refused_total", "Refused handshakes and requests.", &self.refused),
            ("closed_total", "Closed clients.", &self.closed),
        ] {
            let name = format!("breakbulk_relay_{name}");
            let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} counter\n");
            for (reason, value) in counts {
                let _ = writeln!(text, "{name}{{reason=\"{reason}\"}} {value}");
            }
        }
        text
    }
}

fn count(counts: &Mutex<BTreeMap<&'static str, u64>>, reason: &'static str) {
    let mut counts = counts.lock().unwrap_or_else(PoisonError::into_inner);
    let count = counts.entry(reason).or_default();
    *count = count.saturating_add(1);
}

fn size(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}
