//! One frame of `ahp`: written with a space before it, it is recognised in another way, and must mean the same.
#![no_main]

use breakbulk_fuzz::{Small, assert_same, outcome};
use breakbulk_proto::ahp::{Chunking, Config, Connection, Role};
use bytes::Bytes;
use libfuzzer_sys::fuzz_target;

/// Opens a group in which the frame may be the second of three.
const FIRST: &[u8] = br#"{"jsonrpc":"2.0","method":"ahp/messageSegment","params":{"groupId":"g","index":0,"total":3,"data":"eyJqc29u"}}"#;

fuzz_target!(|data: &[u8]| {
    if data.len() >= 1000 {
        return; // one more byte could reach the limit
    }
    let (plain, spaced) = (Bytes::copy_from_slice(data), Bytes::from([b" ", data].concat()));
    let budget = Small::new();
    let run = |frame: Bytes| {
        let limits = Small::limits();
        let mut config = Config::new(Role::Client, limits, [7; 32]);
        config.agreed = Some(Chunking::from(&limits));
        let connection = Connection::new(config, budget.account());
        outcome(connection, [Bytes::from_static(FIRST), frame])
    };
    assert_same(&run(plain), &run(spaced));
});
