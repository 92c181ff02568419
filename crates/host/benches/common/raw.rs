//! A client that only counts bytes: it takes frames apart as far as it must to know where a message ends, and throws all
//! of it away. What is measured with it is the other side.

use std::net::SocketAddr;
use std::ops::Range;

use breakbulk::link::{WebSocketConfig, tune};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Read at once.
const BUFFER: usize = 64 << 10;
/// Enough of a frame to find the numbers of a segment.
const FRONT: usize = 160;
const TEXT: u8 = 1;
const PING: u8 = 9;
const PONG: u8 = 10;

/// One client.
pub(crate) struct Raw {
    stream: TcpStream,
    buffer: Box<[u8]>,
    unread: Range<usize>,
}

impl Raw {
    /// A WebSocket, with the same settings of its socket as any client of ours.
    pub(crate) async fn dial(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        tune(&stream, &WebSocketConfig::default());
        let mut raw = Self { stream, buffer: vec![0; BUFFER].into(), unread: 0..0 };
        let hello = format!(
            "GET / HTTP/1.1\r\nHost: {address}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        );
        raw.stream.write_all(hello.as_bytes()).await.unwrap();
        let mut len = 4;
        while !raw.front(len).await.ends_with(b"\r\n\r\n") {
            len += 1;
            assert!(len < 4096, "no WebSocket");
        }
        raw.skip(len as u64).await;
        raw
    }

    /// Sends a short text, masked with nothing.
    pub(crate) async fn say(&mut self, text: &str) {
        let len = u16::try_from(text.len()).unwrap().to_be_bytes();
        let frame = [&[0x80 | TEXT, 0x80 | 126, len[0], len[1], 0, 0, 0, 0], text.as_bytes()].concat();
        self.stream.write_all(&frame).await.unwrap();
    }

    /// How many bytes the next message has on the wire, whether it comes in one frame or in segments; `None` at the end.
    pub(crate) async fn next(&mut self) -> Option<usize> {
        let mut bytes = 0;
        loop {
            let &[first, short] = self.front(2).await else { return None };
            let wide = match short {
                126 => 2,
                127 => 8,
                _ => 0,
            };
            let long = self.front(2 + wide).await.iter().skip(2).fold(0, |len, byte| len << 8 | u64::from(*byte));
            let len = if wide == 0 { u64::from(short) } else { long };
            self.skip(2 + wide as u64).await;
            if first & 0x0F == PING {
                self.answer_ping(len as u8).await;
                continue;
            }
            let is_last = is_last(self.front(FRONT.min(len as usize)).await);
            self.skip(len).await;
            if first & 0x0F == TEXT {
                bytes += len as usize;
                if is_last {
                    return Some(bytes);
                }
            }
        }
    }

    /// Who does not answer pings is taken for gone, and closed. Masked with nothing.
    async fn answer_ping(&mut self, len: u8) {
        let text = self.front(usize::from(len)).await.to_vec();
        self.skip(u64::from(len)).await;
        let pong = [&[0x80 | PONG, 0x80 | len, 0, 0, 0, 0], &*text].concat();
        self.stream.write_all(&pong).await.unwrap();
    }

    /// The next so many bytes, as far as there are as many.
    async fn front(&mut self, len: usize) -> &[u8] {
        while self.unread.len() < len {
            if self.unread.start + len > BUFFER {
                self.buffer.copy_within(self.unread.clone(), 0);
                self.unread = 0..self.unread.len();
            }
            if self.fill().await == 0 {
                return &[];
            }
        }
        &self.buffer[self.unread.start..self.unread.start + len]
    }

    async fn skip(&mut self, mut len: u64) {
        loop {
            let now = self.unread.len().min(len as usize);
            self.unread.start += now;
            len -= now as u64;
            if len == 0 {
                return;
            }
            self.unread = 0..0;
            if self.fill().await == 0 {
                return;
            }
        }
    }

    async fn fill(&mut self) -> usize {
        let read = self.stream.read(&mut self.buffer[self.unread.end..]).await.unwrap();
        self.unread.end += read;
        read
    }
}

/// Whether a frame that begins so is the last of its message. One that is no segment is.
fn is_last(front: &[u8]) -> bool {
    let front = String::from_utf8_lossy(front);
    let number = |key: &str| front.split_once(key)?.1.split(',').next()?.parse::<u64>().ok();
    match (number(r#""index":"#), number(r#""total":"#)) {
        (Some(index), Some(total)) if front.contains("ahp/messageSegment") => index + 1 == total,
        _ => true,
    }
}
