//! The wire forms once more, written by the specs and not by the crate: what the vectors judge it by.

use std::collections::BTreeMap;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::case::Dialect;

/// One `ahp/messageSegment` frame.
pub(super) fn segment(group: &str, index: u64, total: u64, bytes: &[u8]) -> Vec<u8> {
    let group = Value::from(group);
    let data = BASE64_STANDARD.encode(bytes);
    format!(
        r#"{{"jsonrpc":"2.0","method":"ahp/messageSegment","params":{{"groupId":{group},"index":{index},"total":{total},"data":"{data}"}}}}"#
    )
    .into_bytes()
}

/// What one frame is part of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Piece {
    /// A message of its own.
    Whole(Vec<u8>),
    /// A segment: its group, its place, how many there are, its bytes.
    Segment { group: String, index: u64, total: u64, bytes: Vec<u8> },
    /// A frame of a transfer that carries no bytes of the message: its kind, and what it declares.
    Control { kind: String, group: String, declares: Option<Declared> },
}

/// What the `start` of a transfer says of its message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Declared {
    digest: String,
    bytes: u64,
    chunks: u64,
}

/// Reads a frame that a machine made.
pub(super) fn piece(dialect: Dialect, frame: &[u8]) -> Piece {
    match dialect {
        Dialect::Ahp => ahp(frame),
        Dialect::Stdio => stdio(frame),
        Dialect::Cep22 => cep22(frame),
        Dialect::Plain | Dialect::Json | Dialect::Scalar => None,
    }
    .unwrap_or_else(|| Piece::Whole(frame.to_vec()))
}

fn ahp(frame: &[u8]) -> Option<Piece> {
    let value: Value = serde_json::from_slice(frame).ok()?;
    if value.get("method")? != "ahp/messageSegment" {
        return None;
    }
    let params = value.get("params")?;
    let number = |key| params.get(key).and_then(Value::as_u64);
    Some(Piece::Segment {
        group: params.get("groupId")?.as_str()?.to_owned(),
        index: number("index")?,
        total: number("total")?,
        bytes: BASE64_STANDARD.decode(params.get("data")?.as_str()?).ok()?,
    })
}

fn stdio(frame: &[u8]) -> Option<Piece> {
    let text = std::str::from_utf8(frame).ok()?;
    let mut fields = text.splitn(4, ':');
    let group = fields.next()?;
    let index = fields.next()?.parse().ok()?;
    let total = fields.next()?.parse().ok()?;
    let is_uuid = group.len() == 36 && group.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit());
    let bytes = fields.next()?.as_bytes().to_vec();
    is_uuid.then(|| Piece::Segment { group: group.to_owned(), index, total, bytes })
}

fn cep22(frame: &[u8]) -> Option<Piece> {
    let value: Value = serde_json::from_slice(frame).ok()?;
    let params = value.get("params").filter(|_| value.get("method").is_some_and(|m| m == "notifications/progress"))?;
    let cvm = params.get("cvm").filter(|cvm| cvm.get("type").is_some_and(|kind| kind == "oversized-transfer"))?;
    let token = params.get("progressToken")?.to_string();
    let progress = params.get("progress")?.as_u64()?;
    Some(match cvm.get("frameType")?.as_str()? {
        "chunk" => {
            let bytes = cvm.get("data")?.as_str()?.as_bytes().to_vec();
            Piece::Segment { group: token, index: progress, total: 0, bytes }
        }
        kind => {
            let number = |key| cvm.get(key).and_then(Value::as_u64);
            let digest = cvm.get("digest").and_then(Value::as_str);
            let declares = digest.zip(number("totalBytes")).zip(number("totalChunks"));
            let declares =
                declares.map(|((digest, bytes), chunks)| Declared { digest: digest.to_owned(), bytes, chunks });
            Piece::Control { kind: kind.to_owned(), group: token, declares }
        }
    })
}

/// The messages that frames carry, in the order in which each is complete.
pub(super) fn messages(dialect: Dialect, frames: &[bytes::Bytes]) -> Result<Vec<Vec<u8>>, String> {
    let mut open = BTreeMap::<String, Open>::new();
    let mut done = Vec::new();
    for frame in frames {
        match piece(dialect, frame) {
            Piece::Whole(bytes) => done.push(bytes),
            Piece::Segment { group, index, total, bytes } => {
                let message = open.entry(group.clone()).or_default();
                // The places of chunks in `cep22` begin after `start`, and after `accept` where one is awaited.
                if dialect != Dialect::Cep22 && index != message.segments {
                    return Err(format!("segment {index} where {} was due", message.segments));
                }
                message.segments += 1;
                message.text.extend_from_slice(&bytes);
                if dialect != Dialect::Cep22 && message.segments == total {
                    done.extend(open.remove(&group).map(|message| message.text));
                }
            }
            Piece::Control { kind, group, declares } => match kind.as_str() {
                "start" => open.entry(group).or_default().declared = declares,
                "end" => done.push(open.remove(&group).ok_or("an end without a start")?.declared()?),
                _ => {}
            },
        }
    }
    if open.is_empty() { Ok(done) } else { Err(format!("{} messages are unfinished", open.len())) }
}

/// A message of which some segments were seen.
#[derive(Default)]
struct Open {
    segments: u64,
    text: Vec<u8>,
    declared: Option<Declared>,
}

impl Open {
    /// The text, if it is what its `start` said.
    fn declared(self) -> Result<Vec<u8>, String> {
        let digest = format!("sha256:{}", sha256(&self.text));
        let is = Declared { digest, bytes: self.text.len() as u64, chunks: self.segments };
        if self.declared.as_ref() == Some(&is) {
            return Ok(self.text);
        }
        Err(format!("start declares {:?}, and the message is {is:?}", self.declared))
    }
}

/// Names each frame by the message that it carries: `2` for the second one sent, `2.0/3` for its first segment of
/// three (in `cep22` `2@5` for its chunk at place 5), the kind of a control frame, and `?` for a frame that carries
/// none of them as it was sent.
pub(super) fn trace(dialect: Dialect, sent: &[Vec<u8>], frames: &[bytes::Bytes]) -> Vec<String> {
    let pieces = apart(frames.iter().map(|frame| piece(dialect, frame)));
    let whole = |wanted: &str| {
        let of_group = pieces.iter().filter_map(|piece| match piece {
            Piece::Segment { group, bytes, .. } if group == wanted => Some(bytes.as_slice()),
            _ => None,
        });
        of_group.collect::<Vec<_>>().concat()
    };
    let named = |bytes: &[u8]| {
        let is = |text: &Vec<u8>| text == bytes;
        // A group of which only a part was taken is told by that part.
        let has = |text: &Vec<u8>| !bytes.is_empty() && text.windows(bytes.len()).any(|window| window == bytes);
        let place = sent.iter().position(is).or_else(|| sent.iter().position(has));
        place.map_or_else(|| "?".to_owned(), |place| (place + 1).to_string())
    };
    let name = |piece: &Piece| match piece {
        Piece::Whole(bytes) => named(bytes),
        Piece::Control { kind, .. } => kind.clone(),
        Piece::Segment { group, index, total, .. } => {
            let n = named(&whole(group));
            if dialect == Dialect::Cep22 { format!("{n}@{index}") } else { format!("{n}.{index}/{total}") }
        }
    };
    pieces.iter().map(name).collect()
}

/// Tells transfers apart that have the same token, one after the other.
fn apart(pieces: impl Iterator<Item = Piece>) -> Vec<Piece> {
    let mut starts = 0;
    let mut names = BTreeMap::<String, String>::new();
    let named = |piece| match piece {
        Piece::Control { ref kind, ref group, .. } if kind == "start" => {
            starts += 1;
            names.insert(group.clone(), format!("{group} {starts}"));
            piece
        }
        Piece::Segment { group, index, total, bytes } => {
            let group = names.get(&group).cloned().unwrap_or(group);
            Piece::Segment { group, index, total, bytes }
        }
        other => other,
    };
    pieces.map(named).collect()
}

/// SHA-256 in lower-case hex.
pub(super) fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
