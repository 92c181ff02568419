//! Reads lines of limited length. Of a longer one nothing is kept but how long it was.

use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};

/// How much is read at once.
const READ: usize = 64 << 10;

/// Lines from a pipe.
#[derive(Debug)]
pub(super) struct BoundedLines<R> {
    reader: BufReader<R>,
    max_bytes: usize,
    state: LineState,
}

/// What has been read of the line that is not whole.
#[derive(Debug)]
enum LineState {
    Kept(Vec<u8>),
    Skipped { bytes: u64 },
}

/// Something that was read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ReadLine {
    /// A line, without its line break. The last one may lack its end.
    Line(Vec<u8>),
    /// More of a line that is too long.
    Skipping {
        /// How much more.
        last: u64,
    },
    /// The end of a line that is too long.
    Skipped {
        /// How long it was.
        bytes: u64,
        /// How much of it was not told yet.
        last: u64,
    },
}

impl<R: AsyncRead + Unpin> BoundedLines<R> {
    pub(super) fn new(reader: R, max_bytes: usize) -> Self {
        Self { reader: BufReader::with_capacity(READ, reader), max_bytes, state: LineState::Kept(Vec::new()) }
    }

    /// The next line; none at the end, or if nothing can be read any more. Dropping the future loses nothing.
    pub(super) async fn next(&mut self) -> Option<ReadLine> {
        loop {
            let available = self.reader.fill_buf().await.unwrap_or_default();
            if available.is_empty() {
                return self.rest();
            }
            let (taken, is_end) = match available.iter().position(|byte| *byte == b'\n') {
                Some(at) => (at.saturating_add(1), true),
                None => (available.len(), false),
            };
            let read = available.get(..taken).unwrap_or_default();
            let found = self.state.add(read, is_end, self.max_bytes);
            self.reader.consume(taken);
            if found.is_some() {
                return found;
            }
        }
    }

    fn rest(&mut self) -> Option<ReadLine> {
        match std::mem::replace(&mut self.state, LineState::Kept(Vec::new())) {
            LineState::Kept(line) if line.is_empty() => None,
            LineState::Kept(line) => Some(ReadLine::Line(line)),
            LineState::Skipped { bytes } => Some(ReadLine::Skipped { bytes, last: 0 }),
        }
    }
}

impl LineState {
    fn add(&mut self, read: &[u8], is_end: bool, max_bytes: usize) -> Option<ReadLine> {
        let new = super::count(read.len());
        match self {
            Self::Kept(line) if line.len().saturating_add(read.len()) > max_bytes.saturating_add(1) => {
                let last = super::count(line.len()).saturating_add(new);
                *self = if is_end { Self::Kept(Vec::new()) } else { Self::Skipped { bytes: last } };
                Some(if is_end { ReadLine::Skipped { bytes: last, last } } else { ReadLine::Skipping { last } })
            }
            Self::Kept(line) => {
                line.extend_from_slice(read);
                is_end.then(|| {
                    let mut line = std::mem::take(line);
                    line.pop();
                    ReadLine::Line(line)
                })
            }
            Self::Skipped { bytes } => {
                *bytes = bytes.saturating_add(new);
                let bytes = *bytes;
                if !is_end {
                    return Some(ReadLine::Skipping { last: new });
                }
                *self = Self::Kept(Vec::new());
                Some(ReadLine::Skipped { bytes, last: new })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read(text: &[u8], max_bytes: usize) -> Vec<ReadLine> {
        let mut lines = BoundedLines::new(text, max_bytes);
        let mut all = Vec::new();
        while let Some(line) = lines.next().await {
            all.push(line);
        }
        all
    }

    #[tokio::test]
    async fn lines_come_without_their_breaks_and_the_last_may_lack_one() {
        let line = |text: &str| ReadLine::Line(text.into());
        assert_eq!(read(b"a\n\nbc\nd", 2).await, [line("a"), line(""), line("bc"), line("d")]);
        assert_eq!(read(b"", 2).await, []);
    }

    #[tokio::test]
    async fn a_line_over_the_limit_is_counted_and_the_next_is_read() {
        let text = [&b"abc\n"[..], &[b'x'; 3 * READ], b"\nok\n"].concat();
        let mut found = read(&text, 2).await;
        assert_eq!(found.pop(), Some(ReadLine::Line(b"ok".to_vec())));
        let Some(ReadLine::Skipped { bytes, .. }) = found.pop() else { panic!("{found:?}") };
        assert_eq!(bytes, 3 * super::super::count(READ) + 1);
        assert_eq!(found.first(), Some(&ReadLine::Skipped { bytes: 4, last: 4 }));
        assert!(found.iter().skip(1).all(|line| matches!(line, ReadLine::Skipping { .. })), "{found:?}");
    }
}
