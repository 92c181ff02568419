//! Lines of `stdio`: each is a message, a frame or a log line, and a line that is JSON-RPC is always a message.
#![no_main]

use breakbulk_fuzz::{Small, outcome};
use breakbulk_proto::stdio::{Config, Connection};
use bytes::Bytes;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let budget = Small::new();
    let connection = Connection::new(Config::new(Small::limits(), [7; 32]), budget.account());
    let lines = data.split(|byte| *byte == b'\n').map(Bytes::copy_from_slice);
    let (messages, rest) = outcome(connection, lines);
    assert!(!rest.iter().any(|event| event.starts_with("Close")), "a line closed the pipe: {rest:?}");
    for message in messages {
        let tree = serde_json::from_slice::<serde_json::Value>(&message.to_bytes());
        // serde_json refuses half surrogates and numbers beyond its range, which are JSON all the same.
        assert!(tree.map_or(true, |tree| tree.is_object()), "not an object");
    }
});
