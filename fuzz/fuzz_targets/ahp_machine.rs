//! Two `ahp` connections and anything that may happen to them.
#![no_main]

use breakbulk_fuzz::{Op, Small, play};
use breakbulk_proto::Meta;
use breakbulk_proto::ahp::{Chunking, Config, Connection, Delivery, Role};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (bool, bool, Vec<Op>)| {
    let (agreed, start_order, ops) = input;
    let budget = Small::new();
    let limits = Small::limits();
    let end = |role, seed| {
        let mut config = Config::new(role, limits, [seed; 32]);
        config.agreed = agreed.then(|| Chunking::from(&limits));
        config.delivery = if start_order { Delivery::StartOrder } else { Delivery::Settled };
        Connection::new(config, budget.account())
    };
    play(end(Role::Client, 1), end(Role::Server, 2), Meta::default(), ops);
});
