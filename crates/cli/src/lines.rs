//! Lines of bounded length, counted.

use std::io::{self, BufRead, Read as _};

/// How much of a line that is too long is passed over at once.
const SKIPPED: u64 = 1 << 16;

/// Reads lines, and counts lines and bytes.
#[derive(Debug)]
pub(crate) struct Lines<R> {
    input: R,
    max: u64,
    number: u64,
    read: u64,
    /// Bytes of the line that have been read, without its `\n`, and the last of them.
    line: (u64, Option<u8>),
    /// Whether the line's end has been read.
    is_ended: bool,
}

/// What comes next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NextLine {
    /// A line, without its `\n`. A `\r` before that is left, and does not count.
    Line(Vec<u8>),
    /// The beginning of a line that is too long. The next call returns more of the line, unless the caller skips the
    /// rest.
    TooLong(Vec<u8>),
    /// There is no more.
    End,
}

impl<R: BufRead> Lines<R> {
    /// Takes lines of at most `max` bytes, line ends not counted.
    pub(crate) const fn new(input: R, max: u64) -> Self {
        Self { input, max, number: 0, read: 0, line: (0, None), is_ended: true }
    }

    /// The number of the last line, from 1; 0 before the first.
    pub(crate) const fn number(&self) -> u64 {
        self.number
    }

    /// Bytes read so far.
    pub(crate) const fn read(&self) -> u64 {
        self.read
    }

    /// The length of the last line as far as it was read, its end not counted.
    pub(crate) fn len(&self) -> u64 {
        let (len, last) = self.line;
        len.saturating_sub(u64::from(last == Some(b'\r')))
    }

    pub(crate) fn next(&mut self) -> io::Result<NextLine> {
        self.line = (0, None);
        // One byte more than allowed, and two for the line end.
        let Some(line) = self.part(self.max.saturating_add(3))? else { return Ok(NextLine::End) };
        self.number = self.number.saturating_add(1);
        Ok(if self.len() > self.max { NextLine::TooLong(line) } else { NextLine::Line(line) })
    }

    /// Passes over the rest of a line that is too long.
    pub(crate) fn skip(&mut self) -> io::Result<()> {
        while !self.is_ended && self.part(SKIPPED)?.is_some() {}
        Ok(())
    }

    /// Reads on to the line's end, `most` bytes at most; `None` where the input ends.
    fn part(&mut self, most: u64) -> io::Result<Option<Vec<u8>>> {
        let mut part = Vec::new();
        let got = (&mut self.input).take(most).read_until(b'\n', &mut part)? as u64;
        self.read = self.read.saturating_add(got);
        self.is_ended = part.pop_if(|last| *last == b'\n').is_some();
        let (len, last) = self.line;
        self.line = (len.saturating_add(part.len() as u64), part.last().copied().or(last));
        Ok((got > 0).then_some(part))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_without_their_ends_up_to_the_limit() {
        let mut lines = Lines::new(&b"abc\n\r\n\nabcd\nabcde\nabcd\r\nabcde\r\n"[..], 4);
        let mut next = || lines.next().unwrap();
        assert_eq!(next(), NextLine::Line(b"abc".to_vec()));
        assert_eq!(next(), NextLine::Line(b"\r".to_vec()));
        assert_eq!(next(), NextLine::Line(Vec::new()));
        assert_eq!(next(), NextLine::Line(b"abcd".to_vec()));
        assert_eq!(next(), NextLine::TooLong(b"abcde".to_vec()));
        assert_eq!(next(), NextLine::Line(b"abcd\r".to_vec()));
        assert_eq!(next(), NextLine::TooLong(b"abcde\r".to_vec()));
        assert_eq!((lines.number(), lines.read()), (7, 4 + 2 + 1 + 5 + 6 + 6 + 7));
    }

    #[test]
    fn a_last_line_needs_no_end() {
        let mut lines = Lines::new(&b"a\nb"[..], 4);
        assert_eq!(lines.next().unwrap(), NextLine::Line(b"a".to_vec()));
        assert_eq!(lines.next().unwrap(), NextLine::Line(b"b".to_vec()));
        assert_eq!(lines.next().unwrap(), NextLine::End);
        assert_eq!(lines.number(), 2);
    }

    #[test]
    fn a_line_that_is_too_long_can_be_passed_over_and_its_length_is_known() {
        for len in [5, 6, 7, 8, 9, SKIPPED, SKIPPED + 6, SKIPPED + 7, SKIPPED + 8] {
            for end in ["\n", "\r\n"] {
                let input = format!("{}{end}b\n", "a".repeat(usize::try_from(len).unwrap()));
                let mut lines = Lines::new(input.as_bytes(), 4);
                assert!(matches!(lines.next().unwrap(), NextLine::TooLong(front) if front.len() > 4));
                lines.skip().unwrap();
                assert_eq!(lines.len(), len);
                assert_eq!(lines.next().unwrap(), NextLine::Line(b"b".to_vec()));
                assert_eq!((lines.number(), lines.read()), (2, input.len() as u64));
            }
        }
        let mut lines = Lines::new(&b"abcdefghi"[..], 4);
        assert!(matches!(lines.next().unwrap(), NextLine::TooLong(_)));
        lines.skip().unwrap();
        assert_eq!((lines.len(), lines.next().unwrap()), (9, NextLine::End));
    }
}
