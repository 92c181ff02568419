//! How a host does with agents and clients of message protocol v2, from an agent's line to what a client holds.
//!
//! `cargo bench -p breakbulk-host --all-features --bench agents -- latency` measures one part. All together take about two minutes.
#![expect(clippy::unwrap_used, reason = "a bench may fail by panicking")]

#[path = "common/attached.rs"]
mod attached;
#[path = "common/child.rs"]
mod child;
#[path = "common/v2_host.rs"]
mod host;
#[path = "common/latency.rs"]
mod latency;
#[path = "../../net/benches/common/race.rs"]
#[expect(dead_code, reason = "shared with benches that use the rest")]
mod race;
#[path = "../../lifecycle/benches/common/rates.rs"]
mod rates;
#[path = "common/reattach.rs"]
mod reattach;
#[path = "common/scripted_agent.rs"]
mod scripted_agent;
#[path = "../../proto/benches/common/table.rs"]
mod table;
#[path = "common/v2_client.rs"]
mod v2_client;

use tokio::runtime::Runtime;

/// How it is asked for, its title, and what it does.
type Part = (&'static str, &'static str, fn(&Runtime));

const PARTS: [Part; 4] = [
    ("latency", "From an agent's line to a client's event", latency::run),
    ("rates", "Events on one core", rates),
    ("attached", "Clients that watch sessions in which nothing happens", attached::run),
    ("reattach", "A client that comes back to a long session", reattach::run),
];

fn main() {
    if scripted_agent::is_agent() {
        return scripted_agent::play();
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    if child::is_host(&runtime) {
        return;
    }
    let asked: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    for (name, title, run) in PARTS {
        if asked.is_empty() || asked.iter().any(|asked| asked == name) {
            table::head(title);
            run(&runtime);
        }
    }
}

/// The two that have a target are the translators and the model: an event passes through each of them alone on its core.
fn rates(_: &Runtime) {
    for (name, rate) in rates::translators() {
        table::row(&format!("{name}: million events a second"), rate / 1e6, 1.0..);
    }
    for (name, rate) in rates::v2() {
        let measure = format!("{name}: million events a second");
        match name {
            "v2 model" => table::row(&measure, rate / 1e6, 1.0..),
            _ => table::row(&measure, rate / 1e6, ..),
        }
    }
}
