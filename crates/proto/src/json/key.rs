//! An object's key as a visitor sees it: unescaped, and short enough to keep.

/// Longest key that is gathered, in unescaped bytes: no path has a longer one.
const MAX_KEY: usize = 32;

/// A key that is gathered in pieces, because it has escapes or lies across two feeds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Capture {
    text: [u8; MAX_KEY],
    len: usize,
    long: bool,
    /// The first half of a surrogate pair, until the second one comes.
    high: Option<u16>,
}

impl Capture {
    /// Forgets the last key.
    pub(super) fn clear(&mut self) {
        (self.len, self.long, self.high) = (0, false, None);
    }

    /// Whether nothing was added yet.
    #[inline]
    pub(super) const fn is_empty(&self) -> bool {
        self.len == 0 && !self.long && self.high.is_none()
    }

    /// Adds bytes that stand for themselves.
    pub(super) fn extend(&mut self, run: &[u8]) {
        if run.is_empty() {
            return;
        }
        self.long |= self.high.take().is_some();
        let end = self.len.saturating_add(run.len());
        match self.text.get_mut(self.len..end) {
            Some(room) => {
                room.copy_from_slice(run);
                self.len = end;
            }
            None => self.long = true,
        }
    }

    /// Adds the code unit of a `\u` escape.
    pub(super) fn unit(&mut self, unit: u16) {
        let decoded = match self.high.take() {
            None if is_high(unit) => {
                self.high = Some(unit);
                return;
            }
            None => char::from_u32(unit.into()),
            Some(high) => join(high, unit),
        };
        match decoded {
            Some(decoded) => self.extend(decoded.encode_utf8(&mut [0; 4]).as_bytes()),
            None => self.long = true,
        }
    }

    /// What was gathered; `None` if it is too long, or has half of a surrogate pair: it equals nothing.
    pub(super) fn key(&self) -> Option<&[u8]> {
        self.text.get(..self.len).filter(|_| !self.long && self.high.is_none())
    }
}

/// What an escape of one letter stands for.
#[inline(always)]
pub(super) const fn short_escape(letter: u8) -> Option<u8> {
    Some(match letter {
        b'"' | b'\\' | b'/' => letter,
        b'b' => 0x08,
        b'f' => 0x0c,
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        _ => return None,
    })
}

/// Whether `unit` is the first half of a surrogate pair.
pub(super) const fn is_high(unit: u16) -> bool {
    matches!(unit, 0xd800..=0xdbff)
}

/// The character of a surrogate pair, if it is one.
pub(super) fn join(high: u16, low: u16) -> Option<char> {
    char::decode_utf16([high, low]).next()?.ok()
}

/// The value of a hex digit.
pub(super) fn hex(digit: u8) -> Option<u16> {
    char::from(digit).to_digit(16)?.try_into().ok()
}
