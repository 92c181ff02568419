//! One frame of `cep22` inside an open transfer: with a space before it, it must mean the same.
#![no_main]

use breakbulk_fuzz::{Small, assert_same, outcome};
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
    assert_same(&run(plain), &run(spaced));
});
