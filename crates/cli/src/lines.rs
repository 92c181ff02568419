//! Lines of bounded length, counted.

use std::io::{self, BufRead, Read as _};

/// Reads lines and knows where it is.
#[derive(Debug)]
pub(crate) struct Lines<R> {
    input: R,
    max: u64,
    number: u64,
    read: u64,
}

/// What comes next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// A line, without its line end.
    Line(Vec<u8>),
    /// A line that is too long; the rest of it is not read.
    TooLong,
    /// There is no more.
    End,
}

impl<R: BufRead> Lines<R> {
    /// Takes lines of at most `max` bytes, line ends not counted.
    pub(crate) const fn new(input: R, max: u64) -> Self {
        Self { input, max, number: 0, read: 0 }
    }

    /// The number of the last line, from 1; 0 before the first.
    pub(crate) const fn number(&self) -> u64 {
        self.number
    }

    /// Bytes read so far.
    pub(crate) const fn read(&self) -> u64 {
        self.read
    }

    pub(crate) fn next(&mut self) -> io::Result<Next> {
        let mut line = Vec::new();
        // One byte more than allowed, and one for the line end.
        let room = self.max.saturating_add(2);
        let got = (&mut self.input).take(room).read_until(b'\n', &mut line)? as u64;
        if got == 0 {
            return Ok(Next::End);
        }
        self.number = self.number.saturating_add(1);
        self.read = self.read.saturating_add(got);
        if line.last() == Some(&b'\n') {
            line.pop();
        }
        Ok(if line.len() as u64 > self.max { Next::TooLong } else { Next::Line(line) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_without_their_ends_up_to_the_limit() {
        let mut lines = Lines::new(&b"abc\n\r\n\nabcd\nabcde\n"[..], 4);
        let mut next = || lines.next().unwrap();
        assert_eq!(next(), Next::Line(b"abc".to_vec()));
        assert_eq!(next(), Next::Line(b"\r".to_vec()));
        assert_eq!(next(), Next::Line(Vec::new()));
        assert_eq!(next(), Next::Line(b"abcd".to_vec()));
        assert_eq!(next(), Next::TooLong);
        assert_eq!((lines.number(), lines.read()), (5, 4 + 2 + 1 + 5 + 6));
    }

    #[test]
    fn a_last_line_needs_no_end() {
        let mut lines = Lines::new(&b"a\nb"[..], 4);
        assert_eq!(lines.next().unwrap(), Next::Line(b"a".to_vec()));
        assert_eq!(lines.next().unwrap(), Next::Line(b"b".to_vec()));
        assert_eq!(lines.next().unwrap(), Next::End);
        assert_eq!(lines.number(), 2);
    }
}
