//! A link in memory: it asserts its cap on every frame, notes each one, and is cut or rewritten by a rule.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::{Notify, mpsc};

/// How many frames are on their way at once: few, so that a sender decides late what goes next.
const IN_FLIGHT: usize = 2;
/// How much of each frame is kept for assertions: a segment's head, or the method of a small message.
const HEAD: usize = 160;

/// Which way a frame goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Toward {
    Client,
    Host,
}

/// What happens to a frame.
pub(crate) enum Verdict {
    Pass,
    /// It passes in this form.
    As(Bytes),
    /// It is lost, and the link with it.
    Cut,
}

/// One end of the link. When the other side is gone, `rx` ends.
pub(crate) struct LinkEnd {
    pub(crate) tx: mpsc::Sender<Bytes>,
    pub(crate) rx: mpsc::Receiver<Bytes>,
}

/// A frame that passed.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    /// On which connection, from 0.
    pub(crate) connection: usize,
    pub(crate) toward: Toward,
    pub(crate) len: usize,
    head: String,
}

impl Seen {
    /// The group of a segment.
    pub(crate) fn group(&self) -> Option<&str> {
        let rest = self.head.split_once(r#""method":"ahp/messageSegment""#)?.1;
        rest.split_once(r#""groupId":""#)?.1.split('"').next()
    }

    /// Whether the beginning of the frame has this text in it.
    pub(crate) fn mentions(&self, text: &str) -> bool {
        self.head.contains(text)
    }
}

/// Decides about a frame; it is told the frame as it will be noted.
type Rule = Box<dyn FnMut(&Seen, &Bytes) -> Verdict + Send>;

/// What connects the two sides, again after each cut.
#[derive(Clone)]
pub(crate) struct Line {
    shared: Arc<Mutex<LinkState>>,
    cut: Arc<Notify>,
}

struct LinkState {
    cap: usize,
    connections: usize,
    seen: Vec<Seen>,
    rule: Rule,
}

impl Line {
    pub(crate) fn new(cap: usize) -> Self {
        let rule: Rule = Box::new(|_, _| Verdict::Pass);
        let shared = LinkState { cap, connections: 0, seen: Vec::new(), rule };
        Self { shared: Arc::new(Mutex::new(shared)), cut: Arc::default() }
    }

    /// Replaces the rule.
    pub(crate) fn set_rule(&self, rule: impl FnMut(&Seen, &Bytes) -> Verdict + Send + 'static) {
        self.lock().rule = Box::new(rule);
    }

    /// Opens a connection: the client's end and the host's.
    pub(crate) fn open(&self) -> (LinkEnd, LinkEnd) {
        let number = self.lock().connections;
        self.lock().connections += 1;
        let (client_tx, from_client) = mpsc::channel(IN_FLIGHT);
        let (host_tx, from_host) = mpsc::channel(IN_FLIGHT);
        let (to_client, client_rx) = mpsc::channel(IN_FLIGHT);
        let (to_host, host_rx) = mpsc::channel(IN_FLIGHT);
        let line = self.clone();
        tokio::spawn(async move {
            // When one direction ends, so does the other.
            tokio::select! {
                () = line.cut.notified() => {}
                () = line.carry(number, Toward::Host, from_client, to_host) => {}
                () = line.carry(number, Toward::Client, from_host, to_client) => {}
            }
        });
        (LinkEnd { tx: client_tx, rx: client_rx }, LinkEnd { tx: host_tx, rx: host_rx })
    }

    /// Cuts the link between two frames.
    pub(crate) fn cut(&self) {
        self.cut.notify_waiters();
    }

    /// How many connections there have been.
    pub(crate) fn connections(&self) -> usize {
        self.lock().connections
    }

    /// The frames that passed, all within the cap.
    pub(crate) fn frames(&self) -> Vec<Seen> {
        let shared = self.lock();
        let over: Vec<_> = shared.seen.iter().filter(|seen| seen.len > shared.cap).collect();
        assert!(over.is_empty(), "frames over the cap of {}: {over:?}", shared.cap);
        shared.seen.clone()
    }

    async fn carry(&self, connection: usize, toward: Toward, mut from: mpsc::Receiver<Bytes>, to: mpsc::Sender<Bytes>) {
        while let Some(frame) = from.recv().await {
            let head = String::from_utf8_lossy(&frame[..frame.len().min(HEAD)]).into_owned();
            let seen = Seen { connection, toward, len: frame.len(), head };
            let frame = match (self.lock().rule)(&seen, &frame) {
                Verdict::Pass => frame,
                Verdict::As(other) => other,
                Verdict::Cut => return,
            };
            self.lock().seen.push(seen);
            if to.send(frame).await.is_err() {
                return;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, LinkState> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
