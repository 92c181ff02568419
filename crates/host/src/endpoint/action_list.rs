//! The actions of a replay as a JSON array: short ones are copied one after the other, long ones share the log's bytes.

use std::fmt::Write;

use bytes::{Bytes, BytesMut};

use crate::log::Seq;

/// From this length on, sharing an action costs less than copying it.
const MIN_SHARED_ITEM: usize = 4 << 10;
/// Short actions are copied into pieces of about this length: few pieces, none so long that growing it moves much.
const PIECE: usize = 64 << 10;

/// An array of actions, in pieces.
#[derive(Debug, Default)]
pub(super) struct ActionList {
    pieces: Vec<Bytes>,
    open: BytesMut,
    count: usize,
}

impl ActionList {
    /// Appends an action: the body of its entry, with its seq.
    pub(super) fn push(&mut self, seq: Seq, body: &Bytes) {
        let before = if self.count == 0 { "[" } else { "," };
        // Writing to memory that grows does not fail.
        let _ = write!(self.open, r#"{before}{{"serverSeq":{seq},"#);
        let rest = body.slice(body.len().min(1)..);
        if rest.len() >= MIN_SHARED_ITEM {
            self.seal();
            self.pieces.push(rest);
        } else {
            self.open.extend_from_slice(&rest);
        }
        if self.open.len() >= PIECE {
            self.seal();
        }
        self.count = self.count.saturating_add(1);
    }

    /// How many actions it has.
    pub(super) const fn len(&self) -> usize {
        self.count
    }

    /// The whole array.
    pub(super) fn finish(mut self) -> Vec<Bytes> {
        self.open.extend_from_slice(if self.count == 0 { b"[]" } else { b"]" });
        self.seal();
        self.pieces
    }

    fn seal(&mut self) {
        if !self.open.is_empty() {
            self.pieces.push(std::mem::take(&mut self.open).freeze());
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may fail by panicking")]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn the_pieces_of_a_list_are_its_envelopes_in_order() {
        for count in [0, 1, 2, 3_000] {
            let mut list = ActionList::default();
            let lens = (0..count).map(|n| if n % 100 == 99 { MIN_SHARED_ITEM } else { n % 70 });
            let bodies: Vec<Bytes> = lens.map(|len| json!({"a": "x".repeat(len)}).to_string().into()).collect();
            for (n, body) in bodies.iter().enumerate() {
                list.push(n as Seq, body);
            }
            assert_eq!(list.len(), count);
            let pieces = list.finish();
            assert!(pieces.iter().all(|piece| piece.len() <= PIECE + MIN_SHARED_ITEM + 64));
            let shared = pieces.iter().filter(|piece| bodies.iter().any(|body| body[1..].as_ptr() == piece.as_ptr()));
            assert_eq!(shared.count(), count / 100, "long ones are the log's own bytes");
            let want: Vec<Value> = bodies
                .iter()
                .enumerate()
                .map(|(n, body)| {
                    let mut value: Value = serde_json::from_slice(body).unwrap();
                    value["serverSeq"] = json!(n);
                    value
                })
                .collect();
            assert_eq!(serde_json::from_slice::<Vec<Value>>(&pieces.concat()).unwrap(), want);
        }
    }
}
