//! `cargo xtask attack`: attacks on the real program, and a table of what they did to it and to a client beside them.

use crate::run::{Failure, cargo, must};

const TEST: &str = "every_attack_within_its_bounds";

pub(crate) fn run() -> Result<(), Failure> {
    must(cargo("test --release -p breakbulk-cli --test attack -- --exact --ignored --nocapture").arg(TEST))
}
