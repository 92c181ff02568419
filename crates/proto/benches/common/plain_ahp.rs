//! The `ahp` wire form as one would write it in an afternoon: owned structs, lists of lists, a tree at the end.

use std::collections::HashMap;

use base64_022::Engine;
use base64_022::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::Value;

#[derive(Serialize, Deserialize)]
struct Frame {
    jsonrpc: String,
    method: String,
    params: Params,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Params {
    group_id: String,
    index: usize,
    total: usize,
    data: String,
}

/// Bytes of a frame that are not data, generously.
const ENVELOPE: usize = 256;

/// Splits, then joins: what both ends do.
pub(crate) fn carry(text: &str, cap: usize) -> Value {
    join(&split(text, cap))
}

fn split(text: &str, cap: usize) -> Vec<String> {
    let size = (cap - ENVELOPE) / 4 * 3;
    let pieces: Vec<&[u8]> = text.as_bytes().chunks(size).collect();
    let frames = pieces.iter().enumerate().map(|(index, piece)| {
        let params =
            Params { group_id: "0f0e0d0c0b0a0908".into(), index, total: pieces.len(), data: STANDARD.encode(piece) };
        let frame = Frame { jsonrpc: "2.0".into(), method: "ahp/messageSegment".into(), params };
        serde_json::to_string(&frame).unwrap()
    });
    frames.collect()
}

fn join(frames: &[String]) -> Value {
    let mut groups: HashMap<String, Vec<Vec<u8>>> = HashMap::new();
    for frame in frames {
        let frame: Frame = serde_json::from_str(frame).unwrap();
        assert!(frame.jsonrpc == "2.0" && frame.method == "ahp/messageSegment", "not a segment");
        let Params { group_id, index, total, data } = frame.params;
        let group = groups.entry(group_id.clone()).or_default();
        assert_eq!(group.len(), index, "out of order");
        group.push(STANDARD.decode(data).unwrap());
        if group.len() == total {
            let whole = groups.remove(&group_id).unwrap().concat();
            let text = String::from_utf8(whole).unwrap();
            return serde_json::from_str(&text).unwrap();
        }
    }
    Value::Null
}
