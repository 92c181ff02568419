//! What lies between two bridges: a TCP relay that reads the headers of WebSocket frames as they pass, and cuts.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

/// When a connection is cut: after so many bytes both ways together, or after so long, whichever is first.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cut {
    pub(crate) bytes: u64,
    pub(crate) time: Duration,
}

/// A relay. Dropping it leaves its connections alone.
pub(crate) struct Relay {
    pub(crate) url: String,
    seen: Arc<Seen>,
}

/// What a relay has seen.
#[derive(Default)]
struct Seen {
    /// The payload of the longest frame, and of the longest message if one came in many frames.
    longest_frame: AtomicU64,
    longest_message: AtomicU64,
    frames: AtomicU64,
    cuts: AtomicU64,
    plan: Mutex<VecDeque<Cut>>,
}

impl Relay {
    /// A relay to a WebSocket URL. The n-th connection is cut as the n-th of `plan` says; those after it never.
    pub(crate) async fn to(url: &str, plan: impl IntoIterator<Item = Cut>) -> Self {
        let target = url.strip_prefix("ws://").unwrap().to_owned();
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let url = format!("ws://{}", listener.local_addr().unwrap());
        let seen = Arc::new(Seen { plan: Mutex::new(plan.into_iter().collect()), ..Seen::default() });
        let shared = Arc::clone(&seen);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (seen, target) = (Arc::clone(&shared), target.clone());
                tokio::spawn(async move {
                    if let Ok(server) = TcpStream::connect(target).await {
                        seen.relay(client, server).await;
                    }
                });
            }
        });
        Self { url, seen }
    }

    /// The longest payload of a frame so far.
    pub(crate) fn longest_frame(&self) -> u64 {
        self.seen.longest_frame.load(Ordering::Relaxed)
    }

    /// The longest payload of a message so far, however many frames it came in.
    pub(crate) fn longest_message(&self) -> u64 {
        self.seen.longest_message.load(Ordering::Relaxed)
    }

    /// How many frames have passed.
    pub(crate) fn frames(&self) -> u64 {
        self.seen.frames.load(Ordering::Relaxed)
    }

    /// How many connections it has cut.
    pub(crate) fn cuts(&self) -> u64 {
        self.seen.cuts.load(Ordering::Relaxed)
    }
}

impl Seen {
    async fn relay(&self, client: TcpStream, server: TcpStream) {
        let cut = self.plan.lock().unwrap().pop_front();
        // What is cut is gone at once, with a reset, and not after a polite goodbye.
        if cut.is_some() {
            [&client, &server].into_iter().for_each(|socket| socket.set_zero_linger().unwrap());
        }
        let left = AtomicU64::new(cut.map_or(u64::MAX, |cut| cut.bytes));
        let spent = Notify::new();
        let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
        let time = async {
            match cut {
                Some(cut) => tokio::time::sleep(cut.time).await,
                None => std::future::pending().await,
            }
        };
        let both = async {
            tokio::join!(
                self.pass(from_client, to_server, &left, &spent),
                self.pass(from_server, to_client, &left, &spent)
            );
        };
        let is_cut = tokio::select! {
            () = both => cut.is_some(),
            () = spent.notified() => true,
            () = time => true,
        };
        if is_cut {
            self.cuts.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Passes bytes one way until their end, or until no more may pass.
    async fn pass(&self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf, left: &AtomicU64, spent: &Notify) {
        let (mut meter, mut buffer) = (Meter::default(), vec![0; 64 << 10]);
        loop {
            let count = match from.read(&mut buffer).await {
                Ok(0) | Err(_) => break,
                Ok(count) => count as u64,
            };
            let before =
                left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| Some(left.saturating_sub(count)));
            let may_pass = count.min(before.unwrap()) as usize;
            meter.feed(&buffer[..may_pass], self);
            if to.write_all(&buffer[..may_pass]).await.is_err() {
                break;
            }
            if may_pass < count as usize {
                return spent.notify_one();
            }
        }
        let _ = to.shutdown().await;
    }

    fn note(&self, frame: u64, message: u64) {
        self.frames.fetch_add(1, Ordering::Relaxed);
        self.longest_frame.fetch_max(frame, Ordering::Relaxed);
        self.longest_message.fetch_max(message, Ordering::Relaxed);
    }
}

/// Reads the frame headers of one direction of a WebSocket.
#[derive(Default)]
struct Meter {
    /// Whether the HTTP before it has passed.
    is_open: bool,
    /// The part of a header that has come.
    head: Vec<u8>,
    /// Bytes of payload that are still to come.
    skip: u64,
    /// The length of the message so far.
    message: u64,
}

impl Meter {
    fn feed(&mut self, mut bytes: &[u8], seen: &Seen) {
        while !bytes.is_empty() {
            let skipped = self.skip.min(bytes.len() as u64);
            self.skip -= skipped;
            bytes = &bytes[skipped as usize..];
            let Some((&byte, rest)) = bytes.split_first() else { return };
            bytes = rest;
            self.head.push(byte);
            if !self.is_open {
                if self.head.ends_with(b"\r\n\r\n") {
                    self.is_open = true;
                    self.head.clear();
                }
            } else if let Some(payload) = payload(&self.head) {
                self.frame(payload, seen);
            }
        }
    }

    /// A header is complete.
    fn frame(&mut self, payload: u64, seen: &Seen) {
        let (is_last, is_control) = (self.head[0] & 0x80 != 0, self.head[0] & 0x08 != 0);
        self.head.clear();
        self.skip = payload;
        if is_control {
            return;
        }
        self.message += payload;
        seen.note(payload, self.message);
        if is_last {
            self.message = 0;
        }
    }
}

/// How long the payload is that a frame's header announces; `None` while the header is not whole.
fn payload(head: &[u8]) -> Option<u64> {
    let second = *head.get(1)?;
    let wide = match second & 0x7f {
        126 => 2,
        127 => 8,
        _ => 0,
    };
    let mask = if second & 0x80 == 0 { 0 } else { 4 };
    if head.len() < 2 + wide + mask {
        return None;
    }
    match wide {
        0 => Some(u64::from(second & 0x7f)),
        _ => Some(head[2..2 + wide].iter().fold(0, |length, &byte| length << 8 | u64::from(byte))),
    }
}

#[test]
fn the_meter_finds_every_frame_however_the_bytes_are_cut() {
    let mut bytes = b"HTTP/1.1 101 Switching Protocols\r\n\r\n".to_vec();
    bytes.extend([0x81, 5, 1, 2, 3, 4, 5]);
    bytes.extend([0x01, 126, 1, 0]);
    bytes.extend([0; 256]);
    bytes.extend([0x89, 0x80, 9, 9, 9, 9]);
    bytes.extend([0x80, 0xff, 0, 0, 0, 0, 0, 1, 0, 0, 7, 7, 7, 7]);
    bytes.extend(vec![0; 65_536]);
    for step in [1, 7, 1000, bytes.len()] {
        let (seen, mut meter) = (Seen::default(), Meter::default());
        bytes.chunks(step).for_each(|bytes| meter.feed(bytes, &seen));
        let counts = [&seen.frames, &seen.longest_frame, &seen.longest_message].map(|c| c.load(Ordering::Relaxed));
        assert_eq!(counts, [3, 65_536, 65_536 + 256]);
    }
}
