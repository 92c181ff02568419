//! Who sits in the middle of a link: peers that spell things otherwise, noise, and the saboteurs that act on the wire.

use bytes::Bytes;

use crate::sim::plan::Sabotage;
use crate::sim::rng::Rng;
use crate::sim::segment::{self, Segment};

/// From client to server.
pub(crate) const UP: usize = 0;
/// From server to client.
pub(crate) const DOWN: usize = 1;

/// What the middle does to frames.
#[derive(Debug, Default)]
pub(crate) struct Middle {
    /// The client seems to keep no settled cursor.
    pub(crate) hides_settled: bool,
    /// Neither side seems to repeat its limits at a reconnect.
    pub(crate) hides_reconnect: bool,
    /// Segments are cut in two, unevenly, as another sender might.
    pub(crate) recuts: bool,
    /// One frame in so many has a flipped bit.
    pub(crate) flips: Option<u64>,
    pub(crate) sabotage: Option<Sabotage>,
    /// A start that waits to be overtaken.
    pub(crate) waiting: Option<Bytes>,
    /// The group that is being dropped.
    pub(crate) dropping: Option<String>,
    /// Whether the saboteur has acted on this link.
    pub(crate) acted: bool,
}

impl Middle {
    /// What becomes of a frame on its way.
    pub(crate) fn pass(&mut self, direction: usize, frame: Bytes, rng: &mut Rng) -> Vec<Bytes> {
        let frame = self.rewrite(direction, frame);
        let frames = self.cut(direction, frame, rng);
        let mut out = Vec::with_capacity(frames.len());
        for frame in frames {
            self.sabotage(direction, frame, rng, &mut out);
        }
        if let Some(one_in) = self.flips {
            out.iter_mut().filter(|frame| !frame.is_empty()).for_each(|frame| flip(frame, one_in, rng));
        }
        out
    }

    fn rewrite(&self, direction: usize, frame: Bytes) -> Bytes {
        const SETTLED: &str = r#","settledCursor":true"#;
        const CAPABILITY: &str = r#""capabilities":{"chunking":{"#;
        if !(self.hides_settled || self.hides_reconnect) || segment::peek(&frame).is_some() {
            return frame;
        }
        let Ok(text) = std::str::from_utf8(&frame) else { return frame };
        if self.hides_reconnect
            && (text.contains(r#""method":"reconnect""#) || text.contains(r#""result":{"type":"#))
            && let Some(at) = text.find(CAPABILITY)
            && let Some(end) = text[at..].find("}},")
        {
            return Bytes::from([&text[..at], &text[at + end + 3..]].concat());
        }
        if self.hides_settled && direction == UP && text.contains(SETTLED) {
            return Bytes::from(text.replace(SETTLED, ""));
        }
        frame
    }

    fn cut(&mut self, direction: usize, frame: Bytes, rng: &mut Rng) -> Vec<Bytes> {
        let wrong = self.sabotage == Some(Sabotage::WrongCut) && !self.acted && direction == DOWN && rng.chance(10);
        if !self.recuts && !wrong {
            return vec![frame];
        }
        let Some(segment) = Segment::read(&frame) else { return vec![frame] };
        // The first is the largest, so that the rest seems larger than it is.
        let at = segment.data.len() * if segment.index == 0 { 3 } else { 1 } / 4;
        if !wrong {
            return segment.halve(at, 0).iter().map(Segment::write).collect();
        }
        self.acted = true;
        if self.recuts {
            return segment.halve(at, 1).iter().map(Segment::write).collect();
        }
        let moved = Segment { data: segment.data[..segment.data.len().saturating_sub(1)].into(), ..segment };
        vec![moved.write()]
    }

    fn sabotage(&mut self, direction: usize, frame: Bytes, rng: &mut Rng, out: &mut Vec<Bytes>) {
        if direction == UP {
            return out.push(frame);
        }
        match self.sabotage {
            Some(Sabotage::StartOutOfOrder) => self.swap_starts(frame, rng, out),
            Some(Sabotage::DroppedAction) => self.drop_action(frame, rng, out),
            _ => out.push(frame),
        }
    }

    /// The start of one action comes after the start of the next.
    fn swap_starts(&mut self, frame: Bytes, rng: &mut Rng, out: &mut Vec<Bytes>) {
        if let Some(waiting) = self.waiting.take() {
            out.extend([frame, waiting]);
        } else if !self.acted && is_action_start(&frame) && rng.chance(30) {
            self.acted = true;
            self.waiting = Some(frame);
        } else {
            out.push(frame);
        }
    }

    /// One action, whole or in segments, never arrives.
    fn drop_action(&mut self, frame: Bytes, rng: &mut Rng, out: &mut Vec<Bytes>) {
        let group = segment::peek(&frame).map(|(id, _, _)| id.to_owned());
        if group.is_some() && group == self.dropping {
            return;
        }
        if !self.acted && is_action_start(&frame) && rng.chance(20) {
            self.acted = true;
            self.dropping = group;
        } else {
            out.push(frame);
        }
    }
}

/// Whether an action begins with this frame.
fn is_action_start(frame: &[u8]) -> bool {
    const ACTION: &[u8] = br#"{"jsonrpc":"2.0","method":"action""#;
    if frame.starts_with(ACTION) {
        return true;
    }
    segment::peek(frame).is_some_and(|(_, index, _)| index == 0)
        && Segment::read(frame).is_some_and(|segment| segment.data.starts_with(ACTION))
}

fn flip(frame: &mut Bytes, one_in: u64, rng: &mut Rng) {
    if rng.below(one_in) == 0 {
        let mut bytes = frame.to_vec();
        let at = rng.below(bytes.len() as u64) as usize;
        bytes[at] ^= 1 << rng.below(8);
        *frame = Bytes::from(bytes);
    }
}
