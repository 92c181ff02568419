//! One frame of `cep22` inside an open transfer: with a space before it, it must mean the same.
#![no_main]

use breakbulk_fuzz::{Small, outcome};
use breakbulk_proto::cep22::{Config, Connection};
use bytes::Bytes;
use libfuzzer_sys::fuzz_target;

/// Opens a transfer of the message `{}` in one chunk, which the frame may be.
const START: &[u8] = br#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"t","progress":1,"cvm":{"type":"oversized-transfer","frameType":"start","completionMode":"render","digest":"sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a","totalBytes":2,"totalChunks":1}}}"#;
const END: &[u8] = br#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"t","progress":9,"cvm":{"type":"oversized-transfer","frameType":"end"}}}"#;

fuzz_target!(|data: &[u8]| {
    if data.len() >= 1000 {
        return; // one more byte could reach the limit
    }
    let (plain, spaced) = (Bytes::copy_from_slice(data), Bytes::from([b" ", data].concat()));
    let budget = Small::new();
    let run = |frame: Bytes| {
        let config = Config { limits: Small::limits(), ..Config::default() };
        let connection = Connection::new(config, budget.account());
        outcome(connection, [Bytes::from_static(START), frame, Bytes::from_static(END)])
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
