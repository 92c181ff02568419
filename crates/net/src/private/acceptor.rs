//! Accepts peers through another acceptor, and makes their links private.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::task::{AbortHandle, JoinSet};

use super::handshake::accept;
use super::key::HostKey;
use crate::external::{Acceptor, ExternalPeer};
use crate::log_limit::LogLimit;

/// How many peers may be in their handshake. When one more comes, the oldest is dropped, as [`Listener`](crate::Listener) does it.
const MAX_HANDSHAKES: usize = 256;

/// Brings the peers of another acceptor whose handshake has succeeded. A slow handshake does not delay others.
pub struct PrivateAcceptor {
    peers: Box<dyn Acceptor>,
    /// Whether more peers may come.
    is_open: bool,
    key: Arc<HostKey>,
    max_frame_bytes: u64,
    handshakes: JoinSet<Option<ExternalPeer>>,
    /// The same tasks, oldest first.
    by_age: VecDeque<AbortHandle>,
    log: Arc<LogLimit>,
}

impl PrivateAcceptor {
    /// Clients need the pairing code of this key. Frames of at most `max_frame_bytes` are accepted from them.
    #[must_use]
    pub fn new(peers: Box<dyn Acceptor>, key: HostKey, max_frame_bytes: u64) -> Self {
        Self {
            peers,
            is_open: true,
            key: Arc::new(key),
            max_frame_bytes,
            handshakes: JoinSet::new(),
            by_age: VecDeque::new(),
            log: Arc::default(),
        }
    }

    fn begin(&mut self, peer: ExternalPeer) {
        self.by_age.retain(|task| !task.is_finished());
        while self.by_age.len() >= MAX_HANDSHAKES {
            if let Some(oldest) = self.by_age.pop_front() {
                oldest.abort();
            }
        }
        let (key, max, log) = (Arc::clone(&self.key), self.max_frame_bytes, Arc::clone(&self.log));
        let task = async move {
            let ExternalPeer { link, name, principal } = peer;
            match accept(link, &key, max).await {
                Ok(link) => Some(ExternalPeer { link, name, principal }),
                Err(error) => {
                    if let Some(permit) = log.permit(error.name()) {
                        let (reason, left_out) = (error.name(), permit.left_out());
                        tracing::info!(peer = name, reason, left_out, "a client was refused: {error}");
                    }
                    None
                }
            }
        };
        self.by_age.push_back(self.handshakes.spawn(task));
    }
}

impl Acceptor for PrivateAcceptor {
    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<Option<ExternalPeer>> {
        while self.is_open
            && let Poll::Ready(peer) = self.peers.poll_accept(cx)
        {
            match peer {
                Some(peer) => self.begin(peer),
                None => self.is_open = false,
            }
        }
        loop {
            match self.handshakes.poll_join_next(cx) {
                Poll::Ready(Some(Ok(Some(peer)))) => return Poll::Ready(Some(peer)),
                // Refused, or dropped.
                Poll::Ready(Some(_)) => {}
                Poll::Ready(None) if !self.is_open => return Poll::Ready(None),
                Poll::Ready(None) | Poll::Pending => return Poll::Pending,
            }
        }
    }
}
