//! Segments that a client and a host send each other through a tap that knows nothing of them: put together, so that one
//! message is one line.

use std::borrow::Cow;
use std::collections::HashMap;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

/// The method of a segment.
pub(super) const SEGMENT: &str = "ahp/messageSegment";

/// Unfinished messages that are followed at once, in one direction. Peers of ours begin eight.
const MAX_GROUPS: usize = 32;

/// The unfinished messages of one direction.
#[derive(Debug)]
pub(super) struct Groups {
    open: HashMap<String, OpenGroup>,
    /// Bytes of unfinished messages that may be held. Of a message beyond that, only the size is known.
    left_bytes: u64,
}

#[derive(Debug)]
struct OpenGroup {
    began: Instant,
    segments: u32,
    bytes: u64,
    /// `None` if it was too long to be held, or was not valid base64.
    content: Option<Vec<u8>>,
}

/// A message whose last segment has passed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Whole {
    /// `None` if it was too long to be held.
    pub(super) content: Option<Vec<u8>>,
    pub(super) bytes: u64,
    pub(super) segments: u32,
    pub(super) took: Duration,
}

#[derive(Deserialize)]
struct Frame<'a> {
    #[serde(borrow)]
    params: Segment<'a>,
}

#[derive(Deserialize)]
struct Segment<'a> {
    #[serde(rename = "groupId")]
    group_id: String,
    index: f64,
    total: f64,
    #[serde(borrow)]
    data: Cow<'a, str>,
}

impl Groups {
    pub(super) fn new(max_bytes: u64) -> Self {
        Self { open: HashMap::new(), left_bytes: max_bytes }
    }

    /// Takes a segment. Returns the message if this completes it. An error means that the frame is no segment, and gets
    /// a line of its own.
    pub(super) fn take(&mut self, frame: &[u8], now: Instant) -> Result<Option<Whole>, NoSegment> {
        let Frame { params: Segment { group_id, index, total, data } } =
            serde_json::from_slice(frame).map_err(|_| NoSegment)?;
        if !self.open.contains_key(&group_id) && self.open.len() >= MAX_GROUPS {
            return Err(NoSegment);
        }
        let data = STANDARD.decode(data.as_bytes()).map_err(|_| NoSegment)?;
        let group = self.open.entry(group_id.clone()).or_insert_with(|| OpenGroup {
            began: now,
            segments: 0,
            bytes: 0,
            content: Some(Vec::new()),
        });
        let added = u64::try_from(data.len()).unwrap_or(u64::MAX);
        group.segments = group.segments.saturating_add(1);
        group.bytes = group.bytes.saturating_add(added);
        match &mut group.content {
            Some(content) if added <= self.left_bytes => {
                self.left_bytes = self.left_bytes.saturating_sub(added);
                content.extend_from_slice(&data);
            }
            Some(content) => {
                self.left_bytes = self.left_bytes.saturating_add(u64::try_from(content.len()).unwrap_or(0));
                group.content = None;
            }
            None => {}
        }
        if index + 1.0 < total {
            return Ok(None);
        }
        let Some(OpenGroup { began, segments, bytes, content }) = self.open.remove(&group_id) else { return Ok(None) };
        let held = content.as_ref().map_or(0, Vec::len);
        self.left_bytes = self.left_bytes.saturating_add(u64::try_from(held).unwrap_or(0));
        Ok(Some(Whole { content, bytes, segments, took: now.saturating_duration_since(began) }))
    }
}

/// It is no segment that we can follow.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NoSegment;

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(group: &str, index: u32, total: u32, text: &str) -> Vec<u8> {
        let data = STANDARD.encode(text);
        let params = serde_json::json!({ "groupId": group, "index": index, "total": total, "data": data });
        serde_json::json!({ "jsonrpc": "2.0", "method": SEGMENT, "params": params }).to_string().into_bytes()
    }

    #[test]
    fn messages_that_pass_in_turns_are_told_apart() {
        let (mut groups, now) = (Groups::new(100), Instant::now());
        assert_eq!(groups.take(&segment("a", 0, 2, "{\"a\":"), now), Ok(None));
        assert_eq!(groups.take(&segment("b", 0, 3, "x"), now), Ok(None));
        let whole = groups.take(&segment("a", 1, 2, "1}"), now).unwrap().unwrap();
        assert_eq!((whole.content.as_deref(), whole.bytes, whole.segments), (Some(&b"{\"a\":1}"[..]), 7, 2));
        assert_eq!(groups.take(b"{\"params\":{}}", now), Err(NoSegment));
    }

    #[test]
    fn of_a_message_that_is_too_long_the_size_is_known_and_room_comes_back() {
        let (mut groups, now) = (Groups::new(10), Instant::now());
        for index in 0..2 {
            assert_eq!(groups.take(&segment("a", index, 3, "123456"), now), Ok(None));
        }
        let whole = groups.take(&segment("a", 2, 3, "123456"), now).unwrap().unwrap();
        assert_eq!((whole.content, whole.bytes, whole.segments), (None, 18, 3));
        let next = groups.take(&segment("b", 0, 1, "1234567890"), now).unwrap().unwrap();
        assert_eq!(next.content.map(|content| content.len()), Some(10));
    }
}
