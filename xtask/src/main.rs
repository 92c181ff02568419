//! What a contributor runs: `cargo xtask test`, and what is too slow or too special for it.

mod args;
mod attack;
mod count;
mod crash;
mod fuzz;
mod interop;
mod mutants;
mod page;
mod relayed;
mod run;
mod scale;
mod segments;
mod sim;
mod slow;
mod test;
mod tools;

use std::process::ExitCode;

use args::Args;
use run::Failure;

const HELP: &str = "\
cargo xtask COMMAND

  test                               installs what tests need, then runs them all; what CI runs
  interop [--long] [--all]           runs the tests against other people's clients, servers and agents alone; with the longest messages;
                                     with those that take minutes to build
  segments [--seeds N] [--from S]    runs the tests of the TypeScript package alone, with N seeded networks
  page                               runs the tests of the page alone, in a browser too
  sim --seeds N [--from S]           simulates N seeded networks, from seed S on
  crash --rounds N [--seed S]        kills a host under load N times, and checks the log after each
  attack                             attacks a host with little memory, and prints what that did to it
  relayed [--drops N] [--seed S]     cuts N connections through a Web PubSub relay, 100 by default, and counts losses
  slow                               sends 30 MB over real sockets of 1 MB/s, both ways; takes a minute
  scale [--seed N] [--small]         simulates a fleet of 64 nodes, and writes docs/scale.md and its plots
  fuzz [--seconds N] [--target T]    fuzzes each target (or T) for N seconds, 60 by default
  mutants [--file F] [--shard K/N]   breaks the code in small ways; each break must fail a test
  count                              counts instructions per byte, under valgrind
  help                               prints this
";

fn main() -> ExitCode {
    let mut args = Args::from_env();
    let result = match args.command().as_deref() {
        Some("test") => args.end().and_then(|()| test::run()),
        Some("interop") => interop::run(args),
        Some("segments") => segments::run(args),
        Some("page") => args.end().and_then(|()| page::run()),
        Some("sim") => sim::run(args),
        Some("crash") => crash::run(args),
        Some("attack") => args.end().and_then(|()| attack::run()),
        Some("relayed") => relayed::run(args),
        Some("slow") => args.end().and_then(|()| slow::run()),
        Some("scale") => scale::run(args),
        Some("fuzz") => fuzz::run(args),
        Some("mutants") => mutants::run(args),
        Some("count") => args.end().and_then(|()| count::run()),
        Some("help" | "--help" | "-h") => {
            print!("{HELP}");
            Ok(())
        }
        Some(other) => Err(Failure::Usage(format!("unknown command {other:?}"))),
        None => Err(Failure::Usage("no command".into())),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Usage(text)) => {
            eprint!("xtask: {text}\n\n{HELP}");
            ExitCode::from(2)
        }
        Err(Failure::Failed(text)) => {
            eprintln!("xtask: {text}");
            ExitCode::FAILURE
        }
    }
}
