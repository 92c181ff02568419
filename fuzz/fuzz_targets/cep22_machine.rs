//! Two `cep22` connections and anything that may happen to them.
#![no_main]

use breakbulk_fuzz::{Op, Small, play};
use breakbulk_proto::Meta;
use breakbulk_proto::cep22::{Config, Connection};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (bool, bool, Vec<Op>)| {
    let (acks, known_support, ops) = input;
    let budget = Small::new();
    let config = Config { limits: Small::limits(), acks, known_support, ..Config::default() };
    let end = || Connection::new(config.clone(), budget.account());
    let meta = Meta { peer: Some("peer".into()), supports_parts: known_support, ..Meta::default() };
    play(end(), end(), meta, ops);
});
