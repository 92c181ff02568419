//! `cargo xtask mutants`: breaks the kernel in small ways, one at a time; each break must make a test fail.
//!
//! A break that no test can see, because it changes nothing, is listed with its reason in [`LIST`].

use std::collections::BTreeMap;
use std::fs;

use crate::args::Args;
use crate::run::{Failure, cargo, line, output, root, status};
use crate::tools;

/// One excused break a line: `file: description # reason`. Blank lines and lines that begin with `#` are notes.
const LIST: &str = "crates/proto/mutants-equivalent.txt";

/// Where a small mistake costs the most: what counts bytes, orders them, and reads what a stranger wrote.
const FILES: [&str; 9] =
    ["budget.rs", "pace.rs", "queue.rs", "buffer.rs", "limits.rs", "json.rs", "json/*.rs", "ahp.rs", "ahp/*.rs"];

/// Where the tests are that see most of it.
const NEAR: &str = "budget pace queue buffer limits json ahp message rpc outbox";

/// How many breaks are tried at once: each is one slow build and some quick tests.
const JOBS: &str = "2";
/// How many cases a property test tries: a break that only one in a hundred sees is not the property's to find.
const CASES: &str = "64";

/// `cargo mutants` ran to its end, but some breaks were missed, or timed out, which counts as caught.
const FINISHED: [i32; 3] = [0, 2, 3];

/// How often each break occurs, by file and description. Without line numbers, which every edit moves.
type Bag = BTreeMap<String, usize>;

pub(crate) fn run(mut args: Args) -> Result<(), Failure> {
    let file: Option<String> = args.value("--file")?;
    let shard: Option<String> = args.value("--shard")?;
    args.end()?;
    let files = match &file {
        Some(file) => vec![format!("crates/proto/src/{}", file.trim_start_matches("crates/proto/src/"))],
        None => FILES.iter().map(|file| format!("crates/proto/src/{file}")).collect(),
    };
    tools::subcommand("mutants")?;
    let listed = listed()?;
    let existing = bag(&output(mutants(&files).arg("--list"))?);
    if existing.is_empty() {
        return Err(Failure::Usage(format!("nothing to break in {}", files.join(", "))));
    }
    let missed = missed(&files, shard.as_deref())?;
    let covered = |name: &str| file.is_none() || files.iter().any(|file| name.starts_with(&format!("{file}: ")));
    let unexcused = beyond(&missed, &listed);
    let stale = beyond(&listed, &existing).into_iter().filter(|name| covered(name)).collect::<Vec<_>>();
    unexcused.iter().for_each(|name| println!("missed, and not in {LIST}: {name}"));
    stale.iter().for_each(|name| println!("in {LIST}, but no longer there: {name}"));
    if shard.is_none() {
        let caught = beyond(&listed, &missed).into_iter().filter(|name| covered(name) && !stale.contains(name));
        caught.for_each(|name| println!("note: in {LIST}, but caught: {name}"));
    }
    println!(
        "{} missed in all, {} not excused, {} stale",
        missed.values().sum::<usize>(),
        unexcused.len(),
        stale.len()
    );
    if unexcused.is_empty() && stale.is_empty() { Ok(()) } else { Err(Failure::Failed("mutants failed".into())) }
}

/// Tests every break; returns those that no test noticed.
///
/// The tests beside the code find most breaks in seconds, so the vectors are run only for what those miss.
fn missed(files: &[String], shard: Option<&str>) -> Result<Bag, Failure> {
    let out = root().join("target/mutants");
    fs::create_dir_all(&out).map_err(|error| Failure::Failed(format!("cannot write {}: {error}", out.display())))?;
    let pass = |options: &str, targets: &str, tests: &str| {
        let mut command = mutants(files);
        command
            .arg("--output")
            .arg(&out)
            .args(["--profile", "mutants", "--jobs", JOBS])
            .args(options.split_whitespace());
        // For the builds too: most of the time would go into tests that are not run.
        for target in targets.split_whitespace() {
            command.args(["--cargo-arg", target]);
        }
        command.env("PROPTEST_CASES", CASES);
        if let Some(shard) = shard {
            command.args(["--shard", shard]);
        }
        command.args(["--", "--"]).args(tests.split_whitespace());
        let code = status(&mut command)?.code();
        if code.is_some_and(|code| FINISHED.contains(&code)) {
            return Ok(());
        }
        Err(Failure::Failed(format!("`{}` did not finish", line(&command))))
    };
    pass("", "--lib", NEAR)?;
    pass("--iterate --baseline skip --timeout 45", "--lib --test vectors", &format!("{NEAR} every_vector"))?;
    let path = out.join("mutants.out/missed.txt");
    let text = fs::read_to_string(&path);
    text.map(|text| bag(&text)).map_err(|error| Failure::Failed(format!("cannot read {}: {error}", path.display())))
}

fn mutants(files: &[String]) -> std::process::Command {
    let mut command = cargo("mutants --package breakbulk-proto --colors never");
    files.iter().for_each(|file| {
        command.args(["--file", file]);
    });
    command
}

fn listed() -> Result<Bag, Failure> {
    match fs::read_to_string(root().join(LIST)) {
        Ok(text) => parse_list(&text),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Bag::new()),
        Err(error) => Err(Failure::Failed(format!("cannot read {LIST}: {error}"))),
    }
}

fn parse_list(text: &str) -> Result<Bag, Failure> {
    let mut bag = Bag::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let Some((name, _reason)) = line.split_once(" # ") else {
            return Err(Failure::Failed(format!("{LIST}: no reason given: {line}")));
        };
        *bag.entry(name.trim().into()).or_default() += 1;
    }
    Ok(bag)
}

/// What `cargo mutants` prints, one break a line: `file:line:column: description`.
fn bag(text: &str) -> Bag {
    let mut bag = Bag::new();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        *bag.entry(without_place(line)).or_default() += 1;
    }
    bag
}

fn without_place(line: &str) -> String {
    let (place, description) = line.split_once(": ").unwrap_or((line, ""));
    let file = place.split(':').next().unwrap_or(place);
    format!("{file}: {description}")
}

/// The entries of `these` that are not in `those`. An entry that occurs more often in `these` is returned once for each
/// extra occurrence.
fn beyond(these: &Bag, those: &Bag) -> Vec<String> {
    let more = these.iter().flat_map(|(name, count)| {
        let more = count.saturating_sub(those.get(name).copied().unwrap_or(0));
        std::iter::repeat_n(name.clone(), more)
    });
    more.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listed_break_excuses_one_missed_break_wherever_it_moved() {
        let missed = bag("a.rs:3:4: replace + with - in f\na.rs:9:4: replace + with - in f\n");
        let once = parse_list("# note\n\na.rs: replace + with - in f # the sum is zero\n").ok().unwrap_or_default();
        let twice = Bag::from([("a.rs: replace + with - in f".into(), 2)]);
        assert_eq!(beyond(&missed, &once), ["a.rs: replace + with - in f"]);
        assert!(beyond(&missed, &twice).is_empty());
        assert_eq!(beyond(&twice, &once), ["a.rs: replace + with - in f"]);
    }

    #[test]
    fn a_listed_break_needs_a_reason() {
        assert!(parse_list("a.rs: replace f with ()").is_err());
        assert!(parse_list("a.rs: replace f with () # ").is_err());
    }

    #[test]
    fn colons_in_a_description_stay() {
        assert_eq!(without_place("a.rs:3:4: replace A::f -> u8 with 0"), "a.rs: replace A::f -> u8 with 0");
    }
}
