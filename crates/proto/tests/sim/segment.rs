//! Segments as seen on the wire by somebody in the middle: read, written, cut anew.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;

/// One `ahp/messageSegment`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) id: String,
    pub(crate) index: u64,
    pub(crate) total: u64,
    pub(crate) data: Vec<u8>,
}

const HEAD: &str = r#"{"jsonrpc":"2.0","method":"ahp/messageSegment","params":{"groupId":""#;

/// The group, index and total of a frame that is a segment, without its data.
pub(crate) fn peek(frame: &[u8]) -> Option<(&str, u64, u64)> {
    let (head, _) = split(frame)?;
    Some(head)
}

type Head<'a> = (&'a str, u64, u64);

fn split(frame: &[u8]) -> Option<(Head<'_>, &str)> {
    let text = std::str::from_utf8(frame).ok()?.strip_prefix(HEAD)?;
    let (id, text) = text.split_once(r#"","index":"#)?;
    let (index, text) = text.split_once(r#","total":"#)?;
    let (total, text) = text.split_once(r#","data":""#)?;
    Some(((id, index.parse().ok()?, total.parse().ok()?), text.strip_suffix(r#""}}"#)?))
}

impl Segment {
    pub(crate) fn read(frame: &[u8]) -> Option<Self> {
        let ((id, index, total), data) = split(frame)?;
        Some(Self { id: id.into(), index, total, data: STANDARD.decode(data).ok()? })
    }

    pub(crate) fn write(&self) -> Bytes {
        let Self { id, index, total, data } = self;
        let data = STANDARD.encode(data);
        Bytes::from(format!(r#"{HEAD}{id}","index":{index},"total":{total},"data":"{data}"}}}}"#))
    }

    /// The same bytes in two segments, `at` of them in the first; `skip` bytes are left out in between, which is
    /// wrong unless it is 0.
    pub(crate) fn halve(&self, at: usize, skip: usize) -> [Self; 2] {
        let part = |index, data: &[u8]| Self { id: self.id.clone(), index, total: self.total * 2, data: data.into() };
        let from = (at + skip).min(self.data.len());
        [part(self.index * 2, &self.data[..at]), part(self.index * 2 + 1, &self.data[from..])]
    }
}
