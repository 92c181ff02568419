//! `cargo xtask slow`: long messages over a real link that is slow.

use crate::run::{Failure, cargo, must};

pub(crate) fn run() -> Result<(), Failure> {
    must(&mut cargo("test -p breakbulk --test slow_link -- --ignored --nocapture"))
}
