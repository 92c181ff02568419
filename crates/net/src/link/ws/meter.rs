//! Follows the frames of a WebSocket by their headers, to know how long the message is that is arriving.

/// Two bytes, the length in up to eight more, and a mask of four.
const MAX_HEADER: usize = 14;
/// A frame with this bit is the last of its message.
const FIN: u8 = 0x80;
/// A frame with this bit in its opcode is a control frame: a ping, a pong or a close.
const CONTROL: u8 = 0x08;
/// A frame with this bit has a mask.
const MASKED: u8 = 0x80;

/// The position in a stream of frames.
#[derive(Debug, Default)]
pub(super) struct Meter {
    header: Header,
    /// How many bytes of the current frame have yet to pass.
    left: u64,
    /// The length of the message, as far as its frames have begun.
    message: u64,
    /// Whether the current frame is the last of its message.
    ends: bool,
}

impl Meter {
    /// Lets bytes pass, and returns how many did. `may` is called before the last byte of each header. If it returns false, that byte and
    /// those after it have to be passed again later.
    pub(super) fn pass(&mut self, bytes: &[u8], mut may: impl FnMut(Growth) -> bool) -> usize {
        let mut rest = bytes;
        while let Some((&first, after)) = rest.split_first() {
            if self.left > 0 {
                let len = usize::try_from(self.left).unwrap_or(usize::MAX).min(rest.len());
                self.left = self.left.saturating_sub(u64::try_from(len).unwrap_or(u64::MAX));
                rest = rest.get(len..).unwrap_or_default();
                self.end_frame();
                continue;
            }
            if let Some(frame) = self.header.push(first) {
                let message = self.message.saturating_add(frame.len);
                if !frame.is_control {
                    if !may(Growth { before: self.message, bytes: message, is_final: frame.is_final }) {
                        self.header.pop();
                        break;
                    }
                    (self.message, self.ends) = (message, frame.is_final);
                }
                self.header = Header::default();
                self.left = frame.len;
                self.end_frame();
            }
            rest = after;
        }
        bytes.len().saturating_sub(rest.len())
    }

    /// The length of the message that is arriving, as far as it is known; 0 if there is none.
    pub(super) const fn message(&self) -> u64 {
        self.message
    }

    /// The message that is arriving, as far as its frames have begun.
    pub(super) const fn begun(&self) -> Growth {
        Growth { before: self.message, bytes: self.message, is_final: self.ends }
    }

    /// How much of the message has passed.
    pub(super) const fn passed(&self) -> u64 {
        self.message.saturating_sub(self.left)
    }

    fn end_frame(&mut self) {
        if self.left == 0 && std::mem::take(&mut self.ends) {
            self.message = 0;
        }
    }
}

/// How much longer a message gets with a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Growth {
    /// Its length before the frame; 0 if the frame is its first.
    pub(super) before: u64,
    /// Its length with the frame.
    pub(super) bytes: u64,
    /// Whether the frame is its last. If not, its final length is not known.
    pub(super) is_final: bool,
}

/// The part of a header that has passed.
#[derive(Debug, Default)]
struct Header {
    bytes: [u8; MAX_HEADER],
    len: usize,
}

/// What a header says.
struct Frame {
    len: u64,
    is_final: bool,
    is_control: bool,
}

impl Header {
    /// Adds a byte. Returns what the header says when that was its last byte.
    fn push(&mut self, byte: u8) -> Option<Frame> {
        *self.bytes.get_mut(self.len)? = byte;
        self.len = self.len.saturating_add(1);
        let [kind, second, long @ ..] = &self.bytes;
        let short = second & !MASKED;
        let width = match short {
            126 => 2,
            127 => 8,
            _ => 0,
        };
        let mask = if second & MASKED == 0 { 0 } else { 4 };
        if self.len < 2 || self.len < 2 + width + mask {
            return None;
        }
        let long = long.iter().take(width).fold(0, |len, byte| len << 8 | u64::from(*byte));
        let len = if width == 0 { short.into() } else { long };
        Some(Frame { len, is_final: kind & FIN != 0, is_control: kind & CONTROL != 0 })
    }

    /// Takes the last byte back.
    fn pop(&mut self) {
        self.len = self.len.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: u8 = 0x01;
    const MORE: u8 = 0x00;
    const PING: u8 = 0x89;

    fn frame(kind: u8, len: usize, is_masked: bool) -> Vec<u8> {
        let mask = if is_masked { MASKED } else { 0 };
        let mut bytes = vec![kind];
        match len {
            0..126 => bytes.push(mask | u8::try_from(len).unwrap()),
            126..65_536 => {
                bytes.push(mask | 126);
                bytes.extend(u16::try_from(len).unwrap().to_be_bytes());
            }
            _ => {
                bytes.push(mask | 127);
                bytes.extend(u64::try_from(len).unwrap().to_be_bytes());
            }
        }
        bytes.extend([0xff; 4].iter().take(if is_masked { 4 } else { 0 }));
        bytes.extend(vec![0xff; len]);
        bytes
    }

    #[test]
    fn each_frame_is_seen_wherever_the_stream_is_cut() {
        for is_masked in [true, false] {
            let frames = [
                frame(FIN | TEXT, 0, is_masked),
                frame(FIN | TEXT, 125, is_masked),
                frame(TEXT, 70_000, is_masked),
                frame(PING, 5, is_masked),
                frame(MORE, 126, is_masked),
                frame(FIN | MORE, 0, is_masked),
                frame(FIN | TEXT, 65_535, is_masked),
            ];
            let bytes = frames.concat();
            for step in [1, 2, 3, 13, 1000, bytes.len()] {
                let (mut meter, mut seen) = (Meter::default(), Vec::new());
                for piece in bytes.chunks(step) {
                    let note = |Growth { before, bytes, is_final }| {
                        seen.push((before, bytes, is_final));
                        true
                    };
                    assert_eq!(meter.pass(piece, note), piece.len());
                }
                let want = [
                    (0, 0, true),
                    (0, 125, true),
                    (0, 70_000, false),
                    (70_000, 70_126, false),
                    (70_126, 70_126, true),
                    (0, 65_535, true),
                ];
                assert_eq!((seen.as_slice(), meter.message()), (&want[..], 0), "{step}");
            }
        }
    }

    #[test]
    fn what_may_not_pass_is_held_back_from_the_last_byte_of_its_header_on() {
        let bytes = [frame(FIN | TEXT, 10, true), frame(FIN | TEXT, 300, true)].concat();
        let mut meter = Meter::default();
        let short_only = |growth: Growth| growth.bytes < 100;
        // Ten bytes behind six of header, then seven of the eight of the next header.
        assert_eq!(meter.pass(&bytes, short_only), 23);
        assert_eq!(meter.pass(&bytes[23..], short_only), 0);
        assert_eq!(meter.message(), 0);
        assert_eq!(meter.pass(&bytes[23..100], |_| true), 77);
        assert_eq!((meter.message(), meter.passed()), (300, 76));
        assert_eq!(meter.pass(&bytes[100..], |_| true), bytes.len() - 100);
        assert_eq!(meter.message(), 0);
    }
}
