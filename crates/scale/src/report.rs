//! What the runs showed, as a table and plots.

use std::fmt::Write;

use crate::plot::{Panel, svg};
use crate::scenario::{FAULT_AT, Fault};
use crate::world::Outcome;

/// One run, with its heading.
pub(crate) struct Run {
    pub(crate) name: &'static str,
    pub(crate) heading: &'static str,
    pub(crate) fault: Fault,
    pub(crate) outcome: Outcome,
}

impl Run {
    /// The plot of the run: latency, queues, and clients without a connection, for each second.
    pub(crate) fn plot(&self) -> String {
        let seconds = &self.outcome.seconds;
        let panels = [
            Panel {
                title: "from a client's action to the client that sees it, 99 % (of what was seen in that second)",
                values: seconds.iter().map(|second| second.latency.quantile(0.99) * 1000.0).collect(),
                label: |value| format!("{value:.0} ms"),
                log_from: Some(10.0),
            },
            Panel {
                title: "actions that wait, in the whole fleet",
                values: seconds.iter().map(|second| second.waiting as f64).collect(),
                label: count,
                log_from: Some(1.0),
            },
            Panel {
                title: "clients without a connection",
                values: seconds.iter().map(|second| second.disconnected as f64).collect(),
                label: count,
                log_from: None,
            },
        ];
        svg(self.heading, FAULT_AT, &panels)
    }

    fn is_calm(&self) -> bool {
        matches!(self.fault, Fault::None | Fault::Burst(_))
    }
}

/// The tables of all runs, as Markdown.
pub(crate) fn tables(runs: &[Run]) -> String {
    let mut out = String::new();
    let mut row = |cells: Vec<String>| {
        let _ = writeln!(out, "| {} |", cells.join(" | "));
    };
    let mut header = vec!["".to_owned()];
    header.extend(runs.iter().map(|run| run.name.to_owned()));
    let columns = header.len();
    row(header);
    row((0..columns).map(|column| if column == 0 { "---".to_owned() } else { "--:".to_owned() }).collect());
    let mut line = |name: &str, value: &dyn Fn(&Run) -> String| {
        let mut cells = vec![name.to_owned()];
        cells.extend(runs.iter().map(value));
        row(cells);
    };
    line("actions sent", &|run| count(run.outcome.sent as f64));
    line("lost, repeated", &|run| {
        let Outcome { sent, committed, waiting, .. } = run.outcome;
        let accounted = committed + waiting;
        format!("{}, {}", sent.saturating_sub(accounted), accounted.saturating_sub(sent))
    });
    line("publishes", &|run| count(run.outcome.publishes as f64));
    line("actions in a publish: mean, most", &|run| {
        let mean = run.outcome.committed as f64 / run.outcome.publishes.max(1) as f64;
        format!("{mean:.1}, {:.0}", run.outcome.group.max() * 1000.0)
    });
    line("latency before: median, 99 %", &|run| {
        pair(&[run.outcome.before.quantile(0.5), run.outcome.before.quantile(0.99)])
    });
    line("latency after: median, 99 %, longest", &|run| {
        pair(&[run.outcome.after.quantile(0.5), run.outcome.after.quantile(0.99), run.outcome.after.max()])
    });
    line("longest queue of a host", &|run| count(run.outcome.longest_queue as f64));
    line("actions that waited, most at once", &|run| count(run.outcome.most_waiting as f64));
    line("hosts that stopped", &|run| none_if(run.is_calm(), count(run.outcome.host_outages.count() as f64)));
    line("until they went on: median, longest", &|run| {
        none_if(
            run.outcome.host_outages.count() == 0,
            pair(&[run.outcome.host_outages.quantile(0.5), run.outcome.host_outages.max()]),
        )
    });
    line("clients that lost their link", &|run| {
        none_if(run.is_calm(), count(run.outcome.client_outages.count() as f64))
    });
    line("until they had all: median, 99 %, longest", &|run| {
        let times = &run.outcome.client_outages;
        none_if(times.count() == 0, pair(&[times.quantile(0.5), times.quantile(0.99), times.max()]))
    });
    line("publishes looked up, of them found", &|run| {
        none_if(run.outcome.unknown == 0, format!("{}, {}", run.outcome.unknown, run.outcome.unknown_found))
    });
    line("snapshot reads that waited on one node, most", &|run| count(run.outcome.most_store_waits as f64));
    line("bytes to replicas", &|run| bytes(run.outcome.bytes_replicated));
    line("bytes from servers to nodes", &|run| bytes(run.outcome.bytes_followed));
    line("bytes to clients, live", &|run| bytes(run.outcome.bytes_live));
    line("bytes to clients that came back", &|run| bytes(run.outcome.bytes_returned));
    line("busiest disk, busiest node", &|run| {
        format!("{:.0} %, {:.0} %", run.outcome.disk_use * 100.0, run.outcome.node_use * 100.0)
    });
    out
}

/// Where a page has the table: between these lines.
const TABLE: [&str; 2] = ["<!-- table -->\n", "<!-- end of table -->\n"];

/// The page with this table in place of the one that it has.
pub(crate) fn replace_table(page: &str, table: &str) -> Option<String> {
    let (before, rest) = page.split_once(TABLE[0])?;
    let (_, after) = rest.split_once(TABLE[1])?;
    Some(format!("{before}{}\n{table}\n{}{after}", TABLE[0], TABLE[1]))
}

fn none_if(none: bool, text: String) -> String {
    if none { "–".to_owned() } else { text }
}

fn pair(times: &[f64]) -> String {
    times.iter().map(|time| duration(*time)).collect::<Vec<_>>().join(", ")
}

fn duration(seconds: f64) -> String {
    if seconds < 1.0 { format!("{:.0} ms", seconds * 1000.0) } else { format!("{seconds:.1} s") }
}

fn count(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{:.1} M", v / 1e6),
        v if v >= 1e4 => format!("{:.0} k", v / 1e3),
        v => format!("{v:.0}"),
    }
}

fn bytes(value: f64) -> String {
    match value {
        v if v >= 1e9 => format!("{:.1} GB", v / 1e9),
        v if v >= 1e6 => format!("{:.0} MB", v / 1e6),
        v => format!("{:.0} KB", v / 1e3),
    }
}
