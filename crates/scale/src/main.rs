//! Simulates a fleet of hosts on NATS JetStream at a size that no test machine has, and writes what it showed.
//!
//! `cargo xtask scale` runs it. The costs of each step are in `costs.rs`, what goes wrong in `scenario.rs`, the model in `world.rs`.

mod costs;
mod lanes;
mod plot;
mod report;
mod rng;
mod scenario;
mod stats;
mod world;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use costs::Costs;
use report::Run;
use scenario::{Fault, Size};
use world::World;

const HELP: &str = "\
Simulates 1,000,000 sessions on 512 hosts over 64 nodes, and what happens to them when something fails.

  --seed N       another course of the same events
  --write DOCS   writes the table into DOCS/scale.md and a plot of each run into DOCS/images
  --small        one host, three nodes, three servers, 30 clients
  --help         prints this
";

struct Arguments {
    seed: u64,
    docs: Option<PathBuf>,
    small: bool,
}

fn main() -> ExitCode {
    let arguments = match parse(std::env::args().skip(1)) {
        Ok(Some(arguments)) => arguments,
        Ok(None) => {
            print!("{HELP}");
            return ExitCode::SUCCESS;
        }
        Err(text) => {
            eprint!("{text}\n\n{HELP}");
            return ExitCode::from(2);
        }
    };
    let size = if arguments.small { Size::small() } else { Size::large() };
    let runs = runs(&size, arguments.seed);
    let table = report::tables(&runs);
    print!("{table}");
    match arguments.docs.map_or(Ok(()), |docs| write(&docs, &runs, &table)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            eprintln!("{text}");
            ExitCode::FAILURE
        }
    }
}

fn write(docs: &Path, runs: &[Run], table: &str) -> Result<(), String> {
    let page = docs.join("scale.md");
    let named = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
    let text = std::fs::read_to_string(&page).map_err(|error| named(&page, error))?;
    let text =
        report::replace_table(&text, table).ok_or_else(|| format!("{} has no place for the table", page.display()))?;
    std::fs::write(&page, text).map_err(|error| named(&page, error))?;
    for run in runs {
        let file = docs.join("images").join(format!("scale-{}.svg", run.name));
        std::fs::write(&file, run.plot()).map_err(|error| named(&file, error))?;
    }
    Ok(())
}

fn runs(size: &Size, seed: u64) -> Vec<Run> {
    Fault::all(size.clients)
        .into_iter()
        .map(|(name, heading, fault)| {
            eprintln!("{heading} …");
            Run { name, heading, fault, outcome: World::run(size, &Costs::default(), fault, seed) }
        })
        .collect()
}

fn parse(mut words: impl Iterator<Item = String>) -> Result<Option<Arguments>, String> {
    let mut arguments = Arguments { seed: 1, docs: None, small: false };
    while let Some(word) = words.next() {
        match word.as_str() {
            "--seed" => {
                let value = words.next().ok_or("--seed needs a number")?;
                arguments.seed = value.parse().map_err(|_| format!("--seed cannot be {value:?}"))?;
            }
            "--write" => arguments.docs = Some(words.next().ok_or("--write needs a directory")?.into()),
            "--small" => arguments.small = true,
            "--help" | "-h" => return Ok(None),
            other => return Err(format!("unexpected argument {other:?}")),
        }
    }
    Ok(Some(arguments))
}

#[cfg(test)]
mod tests {
    use super::*;
    use scenario::FAULT_AT;
    use world::Outcome;

    fn run(fault: Fault) -> Outcome {
        World::run(&Size::small(), &Costs::default(), fault, 7)
    }

    fn is_accounted_for(outcome: &Outcome) -> bool {
        outcome.sent == outcome.committed + outcome.waiting && outcome.sent > 1000
    }

    #[test]
    fn every_action_is_committed_once_or_waits_whatever_fails() {
        for (name, _, fault) in Fault::all(30) {
            assert!(is_accounted_for(&run(fault)), "{name}");
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_run() {
        let [first, second] = [run(Fault::ServerAndNodeLost), run(Fault::ServerAndNodeLost)];
        assert_eq!((first.sent, first.publishes), (second.sent, second.publishes));
        assert_eq!(first.after.quantile(0.99), second.after.quantile(0.99));
    }

    #[test]
    fn a_host_goes_on_when_its_lease_has_ended_and_another_node_took_over() {
        let outcome = run(Fault::NodeLost);
        let costs = Costs::default();
        assert_eq!(outcome.host_outages.count(), 1);
        assert!(outcome.host_outages.max() >= costs.lease * 2.0 / 3.0);
        assert!(outcome.host_outages.max() <= costs.lease + costs.lease_check + 2.0 * costs.take_over);
        assert_eq!(outcome.seconds.last().map(|second| second.disconnected), Some(0));
    }

    #[test]
    fn a_host_without_a_majority_of_its_replicas_takes_nothing() {
        let size = Size { racks: 1, ..Size::small() };
        let outcome = World::run(&size, &Costs::default(), Fault::RackLost, 7);
        assert_eq!(outcome.host_outages.count(), 0, "it never went on");
        assert!(outcome.committed < outcome.sent, "what was sent after the fault waits");
        let before = outcome.sent as f64 * FAULT_AT / size.seconds as f64;
        assert!((outcome.committed as f64 / before - 1.0).abs() < 0.1);
    }

    #[test]
    fn a_slow_object_store_delays_those_who_read_from_it_and_nobody_else() {
        let fast = run(Fault::ClientsReturn(30));
        let slow = run(Fault::SlowObjectStore { clients: 30, read_ms: 2000 });
        assert!(slow.client_outages.max() > 2.0 && fast.client_outages.max() < 2.0);
        assert!(slow.after.quantile(0.99) < 1.1 * fast.after.quantile(0.99));
    }
}
