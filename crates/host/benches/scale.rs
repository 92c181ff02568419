//! How a host does with much: many clients, a long log, a long chat. As ratios where there is something to compare with.
//!
//! `cargo bench -p breakbulk-host --all-features --bench scale -- idle` measures one of them. All together take about two minutes.
#![expect(clippy::unwrap_used, reason = "a bench may fail by panicking")]

#[path = "common/chat.rs"]
mod chat;
#[path = "common/child.rs"]
mod child;
#[path = "common/client.rs"]
mod client;
#[path = "../../proto/benches/common/corpus.rs"]
#[expect(dead_code, reason = "shared with benches that use the rest")]
mod corpus;
#[path = "../../proto/benches/common/dice.rs"]
mod dice;
#[path = "common/fanout.rs"]
mod fanout;
#[path = "common/host.rs"]
mod host;
#[path = "common/idle.rs"]
mod idle;
#[path = "../../net/benches/common/race.rs"]
#[expect(dead_code, reason = "shared with benches that use the rest")]
mod race;
#[path = "common/raw.rs"]
mod raw;
#[path = "common/replay.rs"]
mod replay;
#[path = "../../proto/benches/common/table.rs"]
mod table;
#[path = "common/window.rs"]
mod window;

use tokio::runtime::Runtime;

/// How it is asked for, its title, and what it does.
type Part = (&'static str, &'static str, fn(&Runtime));

const PARTS: [Part; 5] = [
    ("fanout", "One action to many", fanout::run),
    ("replay", "A client that comes back", replay::speed),
    ("memory", "A client that comes back to a long log", replay::memory),
    ("window", "A window on a long chat", window::run),
    ("idle", "Nothing happens", idle::run),
];

fn main() {
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
