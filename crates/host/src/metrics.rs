//! The metrics page of a host, in the text format of Prometheus.

use std::fmt::{self, Display, Write};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::endpoint::{Counters, Direction, Endpoint, Traffic};
use crate::log::{Histogram, Metrics, Seq};
use crate::v2::V2;

/// Numbers of the host that are not counters of its endpoint or its log.
#[derive(Debug, Default)]
pub(crate) struct HostGauges {
    pub(crate) terminals: usize,
    pub(crate) watches: usize,
    /// How much memory the state of channels takes.
    pub(crate) state_bytes: usize,
    /// The seq up to which the state has followed the log.
    pub(crate) position: Seq,
}

/// The whole page.
pub(crate) fn text(endpoint: &Endpoint, v2: &V2, log: &Metrics, gauges: &HostGauges) -> String {
    let mut page = MetricsPage::default();
    let version = [("version", env!("CARGO_PKG_VERSION"))];
    page.family("breakbulk_build_info", "gauge", "Which program this is.").sample(&version, 1);
    connections(&mut page, endpoint);
    page.gauge("breakbulk_v2_clients", "Clients of message protocol v2 that have said hello.", v2.clients());
    page.gauge("breakbulk_v2_watches", "Sessions that they watch, counted once for each client.", v2.watches());
    page.gauge("breakbulk_v2_feeds", "Sessions that at least one of them watches.", v2.feeds());
    page.named("breakbulk_v2_events_total", "What has happened on their connections.", "name", v2.counts());
    traffic(&mut page, endpoint.traffic());
    memory(&mut page, endpoint, gauges);
    writing(&mut page, log);
    reading(&mut page, log);
    page.0
}

fn connections(page: &mut MetricsPage, endpoint: &Endpoint) {
    let traffic = endpoint.traffic();
    page.gauge("breakbulk_connections", "Open connections.", traffic.open.load(Relaxed));
    page.gauge("breakbulk_clients", "Clients that have introduced themselves.", endpoint.clients().len());
    page.counter("breakbulk_connections_total", "Connections that were made.", &traffic.connections);
    page.named("breakbulk_connection_ends_total", "How connections ended.", "reason", &traffic.ends);
    page.named("breakbulk_violations_total", "Rules that clients broke.", "rule", &traffic.violations);
    page.named("breakbulk_events_total", "What else has happened on connections.", "name", endpoint.counts());
}

fn traffic(page: &mut MetricsPage, traffic: &Traffic) {
    let ways = |page: &mut MetricsPage, name, help, count: fn(&Direction) -> &AtomicU64| {
        page.family(name, "counter", help)
            .sample(&[("direction", "in")], count(&traffic.received).load(Relaxed))
            .sample(&[("direction", "out")], count(&traffic.sent).load(Relaxed));
    };
    ways(page, "breakbulk_frames_total", "Frames.", |way| &way.frames);
    ways(page, "breakbulk_frame_bytes_total", "Bytes of frames.", |way| &way.frame_bytes);
    ways(page, "breakbulk_messages_total", "Messages.", |way| &way.messages);
    ways(page, "breakbulk_groups_total", "Messages that took more than one frame.", |way| &way.groups);
    ways(page, "breakbulk_segments_total", "Frames of these.", |way| &way.segments);
    page.gauge("breakbulk_unsent_messages", "Messages that wait to go out.", traffic.unsent.load(Relaxed));
    page.gauge("breakbulk_unsent_bytes", "Bytes of these.", traffic.unsent_bytes.load(Relaxed));
    page.gauge("breakbulk_calls", "Requests of clients that are under way.", traffic.calls.load(Relaxed));
    page.gauge("breakbulk_waiting_actions", "Actions of clients that wait their turn.", traffic.waiting.load(Relaxed));
    let help = "Contents that were sent by reference, to clients that cannot take them.";
    page.counter("breakbulk_references_total", help, &traffic.references);
    page.counter("breakbulk_reference_bytes_total", "Bytes of these.", &traffic.reference_bytes);
    page.histogram("breakbulk_replay_actions", "Actions in a replay.", &traffic.replayed, ONE, 0..21);
    page.histogram("breakbulk_replay_bytes", "Bytes of a replay.", &traffic.replay_bytes, ONE, 8..31);
    let help = "Bytes of an answer to a reconnect that is snapshots.";
    page.histogram("breakbulk_reconnect_snapshot_bytes", help, &traffic.snapshot_bytes, ONE, 8..31);
}

fn memory(page: &mut MetricsPage, endpoint: &Endpoint, gauges: &HostGauges) {
    let budget = endpoint.budget();
    let help = "Bytes that messages hold which arrive, and requests until they are done.";
    page.gauge("breakbulk_budget_held_bytes", help, budget.held());
    let help = "Bytes that answers, snapshots and actions hold until they are written.";
    page.gauge("breakbulk_outgoing_bytes", help, endpoint.outgoing_bytes());
    page.gauge(
        "breakbulk_budget_used_bytes",
        "Bytes that are reserved beyond what each connection has.",
        budget.used(),
    );
    page.gauge("breakbulk_state_bytes", "What channels in memory take.", gauges.state_bytes);
    page.gauge("breakbulk_state_seq", "Up to which seq the state has followed the log.", gauges.position);
    page.gauge("breakbulk_terminals", "Terminals.", gauges.terminals);
    page.gauge("breakbulk_watches", "Watches of files.", gauges.watches);
}

fn writing(page: &mut MetricsPage, log: &Metrics) {
    page.counter("breakbulk_log_batches_total", "Batches that were acknowledged.", &log.batches);
    page.counter("breakbulk_log_entries_total", "Entries that were written.", &log.entries);
    page.counter("breakbulk_log_bytes_total", "Bytes of their bodies.", &log.bytes);
    page.counter("breakbulk_log_merged_total", "Deltas that became part of the one before.", &log.merged);
    page.counter("breakbulk_log_repeated_total", "Batches that came again.", &log.repeated);
    page.counter(
        "breakbulk_log_conflicts_total",
        "Batches that were refused because another append came first.",
        &log.conflicts,
    );
    page.counter("breakbulk_log_failures_total", "Times that the store failed or was full.", &log.failures);
    page.counter("breakbulk_log_recoveries_total", "Times that it was opened again and found good.", &log.recoveries);
    page.counter("breakbulk_log_checkpoints_total", "Checkpoints of the write-ahead log.", &log.checkpoints);
    page.counter("breakbulk_log_removed_total", "Entries that were trimmed or erased.", &log.removed);
    page.gauge(
        "breakbulk_log_queued_bytes",
        "Bytes of batches that wait for the disk.",
        log.queued_bytes.load(Relaxed),
    );
    let help = "From an append to its answer.";
    page.histogram("breakbulk_log_append_seconds", help, &log.append_us, MICRO, 5..27);
    page.histogram("breakbulk_log_commit_seconds", "One commit with its sync.", &log.commit_us, MICRO, 5..27);
    page.histogram("breakbulk_log_commit_batches", "Batches in one commit.", &log.commit_batches, ONE, 0..15);
    let help = "Syncs of the disk for which a batch of at most 64 KiB waited, with its own.";
    page.histogram("breakbulk_log_small_append_syncs", help, &log.small_append_syncs, ONE, 1..9);
    page.histogram("breakbulk_log_checkpoint_seconds", "One checkpoint.", &log.checkpoint_us, MICRO, 5..27);
}

fn reading(page: &mut MetricsPage, log: &Metrics) {
    page.family("breakbulk_log_pages_total", "counter", "Pages that readers took.")
        .sample(&[("from", "memory")], log.pages_shared.load(Relaxed))
        .sample(&[("from", "file")], log.pages_read.load(Relaxed));
    let help = "Records that were found damaged.";
    page.gauge("breakbulk_log_damaged_records", help, log.damaged.load(Relaxed));
    page.gauge("breakbulk_log_recent_bytes", "Bytes of entries that readers share.", log.recent_bytes.load(Relaxed));
    page.gauge("breakbulk_log_store_bytes", "Bytes of the log's file.", log.store_bytes.load(Relaxed));
}

/// The units that values of histograms are divided by.
const ONE: f64 = 1.0;
const MICRO: f64 = 1_000_000.0;

/// A page: each family once, with its samples below it.
#[derive(Debug, Default)]
struct MetricsPage(String);

impl MetricsPage {
    fn family<'a>(&'a mut self, name: &'a str, kind: &str, help: &str) -> Family<'a> {
        self.line(format_args!("# HELP {name} {help}"));
        self.line(format_args!("# TYPE {name} {kind}"));
        Family { page: self, name }
    }

    fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.family(name, "gauge", help).sample(&[], value);
    }

    fn counter(&mut self, name: &str, help: &str, value: &AtomicU64) {
        self.family(name, "counter", help).sample(&[], value.load(Relaxed));
    }

    /// Adds a counter with one sample for each name that occurred.
    fn named(&mut self, name: &str, help: &str, label: &str, counts: &Counters) {
        let mut family = self.family(name, "counter", help);
        for (value, count) in counts.all() {
            family = family.sample(&[(label, value)], count);
        }
    }

    /// Adds a histogram with the buckets of these magnitudes. Smaller values are in the first of them, larger ones only in
    /// `+Inf`.
    fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram, unit: f64, shown: std::ops::Range<u32>) {
        self.family(name, "histogram", help);
        let counts = histogram.counts();
        let mut below = 0_u64;
        for (magnitude, count) in (0_u32..).zip(counts) {
            below = below.saturating_add(count);
            if shown.contains(&magnitude) {
                // The largest integer in the bucket.
                let most = f64::from(1_u32.checked_shl(magnitude).unwrap_or(u32::MAX).saturating_sub(1)) / unit;
                self.line(format_args!("{name}_bucket{{le=\"{most}\"}} {below}"));
            }
        }
        self.line(format_args!("{name}_bucket{{le=\"+Inf\"}} {below}"));
        self.line(format_args!("{name}_sum {}", histogram.sum() as f64 / unit));
        self.line(format_args!("{name}_count {below}"));
    }

    fn line(&mut self, line: fmt::Arguments<'_>) {
        // Writing to memory does not fail.
        let _ = writeln!(self.0, "{line}");
    }
}

/// A family that is being written.
struct Family<'a> {
    page: &'a mut MetricsPage,
    name: &'a str,
}

impl Family<'_> {
    fn sample(self, labels: &[(&str, &str)], value: impl Display) -> Self {
        let pairs: Vec<String> = labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
        let labels = if pairs.is_empty() { String::new() } else { format!("{{{}}}", pairs.join(",")) };
        self.page.line(format_args!("{}{labels} {value}", self.name));
        self
    }
}

/// Escapes the value of a label.
fn escaped(value: &str) -> String {
    value.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped() {
        let mut page = MetricsPage::default();
        page.family("x_total", "counter", "X.").sample(&[("a", "b\"c\\d\ne"), ("f", "g")], 1);
        assert_eq!(page.0, "# HELP x_total X.\n# TYPE x_total counter\nx_total{a=\"b\\\"c\\\\d\\ne\",f=\"g\"} 1\n");
    }

    #[test]
    fn buckets_are_cumulative_and_the_last_has_all() {
        let (mut page, histogram) = (MetricsPage::default(), Histogram::default());
        [1, 2, 3, 900, 5_000_000].into_iter().for_each(|value| histogram.observe(value));
        page.histogram("x", "X.", &histogram, MICRO, 1..4);
        let lines: Vec<&str> = page.0.lines().skip(2).collect();
        assert_eq!(
            lines,
            [
                "x_bucket{le=\"0.000001\"} 1",
                "x_bucket{le=\"0.000003\"} 3",
                "x_bucket{le=\"0.000007\"} 3",
                "x_bucket{le=\"+Inf\"} 5",
                "x_sum 5.000906",
                "x_count 5",
            ]
        );
    }
}
