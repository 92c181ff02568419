//! Runs every case in `vectors/`, prints how many ran, and fails when any differs from what it expects.

#[path = "vectors/proof.rs"]
mod proof;
#[path = "vectors/suite.rs"]
mod suite;

use std::collections::BTreeMap;

use suite::{Outcome, Suite};

#[test]
fn every_vector_does_what_it_says() {
    let suite = Suite::load();
    let mut counts = BTreeMap::<&str, usize>::new();
    let mut wrong = Vec::new();
    let (mut gaps, mut hostile) = (Vec::new(), 0);
    for case in suite.cases() {
        *counts.entry(case.subject()).or_default() += 1;
        hostile += usize::from(case.is_hostile());
        match case.run() {
            Outcome::AsExpected => {}
            Outcome::KnownGap(reason) => gaps.push(format!("{}: {reason}", case.title())),
            Outcome::Wrong(how) => wrong.push(format!("{}\n{how}", case.title())),
        }
    }
    let printed: String = counts.iter().map(|(subject, count)| format!("vectors: {subject}: {count}\n")).collect();
    print!("{printed}");
    // `cargo xtask test` compares these counts with those of the TypeScript package.
    std::fs::write(concat!(env!("CARGO_TARGET_TMPDIR"), "/vector-counts.txt"), printed).expect("it can be written");
    for gap in &gaps {
        println!("vectors: KNOWN GAP, NOT PROVEN: {gap}");
    }
    println!("vectors: {} ran, {hostile} hostile, {} known gaps", suite.cases().len(), gaps.len());
    assert!(wrong.is_empty(), "{} of {} are wrong:\n\n{}", wrong.len(), suite.cases().len(), wrong.join("\n\n"));
}
