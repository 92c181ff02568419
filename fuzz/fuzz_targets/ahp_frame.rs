//! One frame of `ahp`: written with a space before it, it is recognised in another way, and must mean the same.
#![no_main]

use breakbulk_fuzz::{Small, outcome};
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
    let (ours, theirs) = (run(plain), run(spaced));
    assert_eq!(ours.0.len(), theirs.0.len());
    for (plain, spaced) in ours.0.iter().zip(&theirs.0) {
        assert_eq!(plain.to_bytes().trim_ascii_start(), spaced.to_bytes().trim_ascii_start());
    }
    // Offsets of a fault differ by the space; its name does not.
    let name = |text: &String| text.split(|c: char| c.is_ascii_digit()).next().map(str::to_owned);
    assert_eq!(ours.1.iter().map(name).collect::<Vec<_>>(), theirs.1.iter().map(name).collect::<Vec<_>>());
});
