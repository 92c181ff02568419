//! Two ends of a pipe and anything that may happen to them.
#![no_main]

use breakbulk_fuzz::{Op, Small, play};
use breakbulk_proto::Meta;
use breakbulk_proto::stdio::{Config, Connection};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|ops: Vec<Op>| {
    let budget = Small::new();
    let end = |seed| Connection::new(Config::new(Small::limits(), [seed; 32]), budget.account());
    play(end(1), end(2), Meta::default(), ops);
});
