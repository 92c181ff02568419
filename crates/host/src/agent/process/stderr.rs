//! The end of what a program writes to its standard error, for who has to find out why it failed.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;

use crate::lock::lock;

/// How much is kept. 64 KiB: a stack trace, and what led to it.
const KEPT: usize = 64 << 10;

/// The last bytes.
#[derive(Debug, Default)]
pub(super) struct StderrTail(VecDeque<u8>);

impl StderrTail {
    fn add(&mut self, bytes: &[u8]) {
        let new = bytes.get(bytes.len().saturating_sub(KEPT)..).unwrap_or_default();
        let over = self.0.len().saturating_add(new.len()).saturating_sub(KEPT);
        self.0.drain(..over.min(self.0.len()));
        self.0.extend(new);
    }

    /// As text that can be shown: invalid bytes become U+FFFD, and control characters but line breaks and tabs are left out.
    pub(super) fn text(&self) -> String {
        let bytes: Vec<u8> = self.0.iter().copied().collect();
        let text = String::from_utf8_lossy(&bytes);
        let shown: String = text.chars().filter(|char| !char.is_control() || matches!(char, '\n' | '\t')).collect();
        shown.trim().to_owned()
    }
}

/// Reads to the end, and keeps the last bytes.
pub(super) async fn keep(mut reader: pipe::Receiver, tail: Arc<Mutex<StderrTail>>) {
    let mut buffer = vec![0; 8 << 10];
    while let Ok(length) = reader.read(&mut buffer).await
        && length > 0
    {
        lock(&tail).add(buffer.get(..length).unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_bytes_are_kept() {
        let mut tail = StderrTail::default();
        tail.add(&[b'a'; KEPT]);
        tail.add(b"\x1b[31mend\xff\n");
        let text = tail.text();
        assert!(text.ends_with("a[31mend\u{fffd}") && tail.0.len() == KEPT, "{}", text.len());
        tail.add(&[b'b'; 2 * KEPT]);
        assert_eq!(tail.text(), "b".repeat(KEPT));
    }
}
