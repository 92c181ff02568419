//! The `cep22` wire form with serde doing the text: sized frames, a digest at both ends, a check at the end.

use std::borrow::Cow;
use std::fmt::Write;

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

#[derive(Serialize, Deserialize)]
struct Frame<'a> {
    jsonrpc: &'a str,
    method: &'a str,
    #[serde(borrow)]
    params: Params<'a>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Params<'a> {
    progress_token: &'a str,
    progress: u64,
    #[serde(borrow)]
    cvm: Cvm<'a>,
}

#[derive(Serialize, Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct Cvm<'a> {
    r#type: &'a str,
    frame_type: &'a str,
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    data: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    completion_mode: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    total_bytes: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    total_chunks: Option<usize>,
}

/// Bytes of a frame that are not data, generously.
const ENVELOPE: usize = 256;

/// Splits, then joins: what both ends do.
pub(crate) fn carry(text: &str, cap: usize) -> String {
    let pieces = cut(text, cap - ENVELOPE);
    let start = Cvm {
        completion_mode: Some("render"),
        digest: Some(digest(text)),
        total_bytes: Some(text.len()),
        total_chunks: Some(pieces.len()),
        ..cvm("start")
    };
    let chunks = pieces.iter().map(|piece| Cvm { data: Some(Cow::Borrowed(piece)), ..cvm("chunk") });
    let mut transfer = None;
    for (progress, cvm) in [start].into_iter().chain(chunks).chain([cvm("end")]).enumerate() {
        let params = Params { progress_token: "t", progress: progress as u64 + 1, cvm };
        let frame = Frame { jsonrpc: "2.0", method: "notifications/progress", params };
        let wire = serde_json::to_vec(&frame).unwrap();
        assert!(wire.len() <= cap, "over the cap");
        receive(&wire, &mut transfer);
    }
    transfer.unwrap().text
}

struct Transfer {
    digest: String,
    bytes: usize,
    missing: usize,
    text: String,
}

/// A frame is bytes that nobody has looked at yet, as it is for ours.
fn receive(wire: &[u8], transfer: &mut Option<Transfer>) {
    let frame: Frame<'_> = serde_json::from_slice(wire).unwrap();
    let cvm = frame.params.cvm;
    match (cvm.frame_type, transfer) {
        ("start", transfer) => {
            let (digest, bytes) = (cvm.digest.unwrap(), cvm.total_bytes.unwrap());
            *transfer = Some(Transfer { digest, bytes, missing: cvm.total_chunks.unwrap(), text: String::new() });
        }
        ("chunk", Some(transfer)) => {
            transfer.text.push_str(&cvm.data.unwrap());
            transfer.missing -= 1;
        }
        ("end", Some(transfer)) => {
            assert_eq!((transfer.missing, transfer.bytes), (0, transfer.text.len()), "incomplete");
            assert_eq!(transfer.digest, digest(&transfer.text), "altered");
            serde_json::from_str::<IgnoredAny>(&transfer.text).unwrap();
        }
        _ => panic!("no such transfer"),
    }
}

fn cvm(frame_type: &str) -> Cvm<'_> {
    Cvm { r#type: "oversized-transfer", frame_type, ..Cvm::default() }
}

fn digest(text: &str) -> String {
    let mut out = "sha256:".to_owned();
    for byte in Sha256::digest(text) {
        let _ = write!(out, "{byte:02x}");
    }
    out
}

/// Cuts at character boundaries, so that each piece is at most `max` bytes when escaped.
fn cut(text: &str, max: usize) -> Vec<&str> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let mut room = max;
        let fits = rest.bytes().take_while(|byte| {
            let cost = COST[usize::from(*byte)];
            let fits = cost <= room;
            room = room.saturating_sub(cost);
            fits
        });
        let end = rest.floor_char_boundary(fits.count());
        let (piece, later) = rest.split_at(end);
        pieces.push(piece);
        rest = later;
    }
    pieces
}

/// Bytes that a byte takes in a JSON string.
const COST: [usize; 256] = {
    let mut cost = [1; 256];
    let mut byte = 0;
    while byte < 0x20 {
        cost[byte] = if matches!(byte, 8 | 9 | 10 | 12 | 13) { 2 } else { 6 };
        byte += 1;
    }
    cost[b'"' as usize] = 2;
    cost[b'\\' as usize] = 2;
    cost
};
