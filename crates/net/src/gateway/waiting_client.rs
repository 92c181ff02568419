//! A client whose host is not connected yet. It is read a little, so that its pings are answered and its close is seen.

use std::collections::VecDeque;
use std::future::poll_fn;

use breakbulk_proto::{CloseReason, Input, Limits, plain};

use super::observed_link::ObservedLink;
use super::peer_name::PeerName;
use crate::driver::{ABNORMAL, Driver};
use crate::link::{Arrival, BoxLink, LinkError};

/// The client is read until the frames that wait exceed this. A long frame is not read: it waits for memory, and a
/// waiting client has only its floor.
const MAX_READ_AHEAD_BYTES: usize = 64 << 10;
/// About what a frame takes up beside its bytes.
const FRAME_OVERHEAD: usize = 256;

/// A client that waits for its host.
pub(super) struct WaitingClient {
    pub(super) link: ObservedLink<BoxLink>,
    pub(super) name: PeerName,
}

impl WaitingClient {
    /// Resolves when the client has closed and had sent nothing: what it has sent is for the host. Cancel-safe.
    pub(super) async fn left(&mut self) -> CloseReason {
        CloseReason::Peer { code: poll_fn(|cx| self.link.poll_ahead(cx)).await }
    }

    /// Closes its link: it gets no host.
    pub(super) async fn refuse(self, reason: CloseReason) {
        let config = plain::Config::new(Limits::default());
        let mut driver = Driver::new(self.link, plain::Connection::new(config));
        driver.handle(Input::Close(reason));
        while driver.next().await.is_some() {}
    }
}

/// What was read from a link before there was a host for it.
#[derive(Debug, Default)]
pub(super) struct ReadAhead {
    arrivals: VecDeque<Option<Result<Arrival, LinkError>>>,
    bytes: usize,
    /// Whether nothing follows.
    is_over: bool,
}

impl ReadAhead {
    /// Whether more is to be read.
    pub(super) const fn wants_more(&self) -> bool {
        !self.is_over && self.bytes < MAX_READ_AHEAD_BYTES
    }

    /// Keeps what a link has brought.
    pub(super) fn push(&mut self, arrival: Option<Result<Arrival, LinkError>>) {
        let bytes = match &arrival {
            Some(Ok(Arrival::Frame { bytes, .. })) => bytes.len(),
            Some(Ok(Arrival::Acked { .. })) => 0,
            _ => {
                self.is_over = true;
                0
            }
        };
        self.bytes = self.bytes.saturating_add(bytes).saturating_add(FRAME_OVERHEAD);
        self.arrivals.push_back(arrival);
    }

    /// Takes the oldest arrival.
    pub(super) fn pop(&mut self) -> Option<Option<Result<Arrival, LinkError>>> {
        self.arrivals.pop_front()
    }

    /// Whether there is nothing.
    pub(super) fn is_empty(&self) -> bool {
        self.arrivals.is_empty()
    }

    /// If the peer has closed before it sent anything: the code.
    pub(super) fn close_code(&self) -> Option<u16> {
        match self.arrivals.front()? {
            Some(Ok(Arrival::Closed { code, .. } | Arrival::Exited { code, .. })) => Some(*code),
            Some(Err(LinkError::Io(_) | LinkError::Silent(_))) | None => Some(ABNORMAL),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use breakbulk_proto::BudgetConfig;
    use breakbulk_proto::ahp::Role;
    use futures_util::{FutureExt, StreamExt};
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::time::timeout;

    use super::*;
    use crate::dialect::{Dialect, Setup};
    use crate::gateway::{Endpoint, Gateway};
    use crate::link::{Intake, WebSocket, WebSocketConfig};

    const MOMENT: Duration = Duration::from_secs(1);
    const TEXT: u8 = 0x81;
    const CLOSE: u8 = 0x88;
    const PING: u8 = 0x89;
    const PONG: u8 = 0x8A;

    /// A waiting client, the peer's end of its connection, and the gateway.
    fn client() -> (WaitingClient, DuplexStream, Gateway) {
        let plain = |role| Setup::new(Dialect::Plain, role, Limits::default());
        let budget = BudgetConfig { process_bytes: 80 << 20, principal_bytes: 80 << 20, floor_bytes: 64 << 10 };
        let gateway = Gateway::new(plain(Role::Server), plain(Role::Client), budget).expect("memory enough");
        let (peer, ours) = duplex(4 << 20);
        let link = WebSocket::server(ours, &WebSocketConfig { keepalive: None, ..WebSocketConfig::default() });
        (gateway.admit(Endpoint::new(link, "a client")), peer, gateway)
    }

    /// A client's frame, masked with zeros.
    async fn send(peer: &mut DuplexStream, kind: u8, payload: &[u8]) {
        let len = u64::try_from(payload.len()).expect("a length");
        let head = match u8::try_from(len) {
            Ok(len @ 0..126) => vec![kind, 0x80 | len],
            _ => [&[kind, 0x80 | 127][..], &len.to_be_bytes()].concat(),
        };
        peer.write_all(&[&head, &[0; 4][..], payload].concat()).await.expect("a link");
    }

    async fn waits(waiting: &mut WaitingClient) -> bool {
        timeout(MOMENT, waiting.left()).await.is_err()
    }

    /// The lengths of the frames that a link brings, and whether a close follows.
    fn lens(link: &mut ObservedLink<BoxLink>) -> (Vec<usize>, bool) {
        let mut lens = Vec::new();
        while let Some(Some(Ok(arrival))) = link.next().now_or_never() {
            match arrival {
                Arrival::Frame { bytes, .. } => lens.push(bytes.len()),
                _ => return (lens, true),
            }
        }
        (lens, false)
    }

    #[tokio::test(start_paused = true)]
    async fn pings_are_answered_and_what_was_sent_is_kept_in_its_order() {
        let (mut waiting, mut peer, _gateway) = client();
        for len in [10, 20] {
            send(&mut peer, TEXT, &vec![b'x'; len]).await;
            send(&mut peer, PING, b"x").await;
        }
        assert!(waits(&mut waiting).await);
        let mut pongs = [0; 6];
        peer.read_exact(&mut pongs).await.expect("pongs");
        assert_eq!(pongs, [PONG, 1, b'x', PONG, 1, b'x']);
        send(&mut peer, TEXT, &[b'x'; 30]).await;
        assert_eq!(lens(&mut waiting.link), (vec![10, 20, 30], false));
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_leaves_without_a_word_is_gone() {
        let (mut waiting, mut peer, _gateway) = client();
        send(&mut peer, CLOSE, &1001_u16.to_be_bytes()).await;
        assert_eq!(timeout(MOMENT, waiting.left()).await, Ok(CloseReason::Peer { code: 1001 }));
        waiting.refuse(CloseReason::Normal).await;
        let (mut waiting, peer, _gateway) = client();
        drop(peer);
        assert_eq!(timeout(MOMENT, waiting.left()).await, Ok(CloseReason::Peer { code: 1006 }));
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_client_has_said_before_it_left_is_for_the_host() {
        let (mut waiting, mut peer, _gateway) = client();
        send(&mut peer, TEXT, &[b'x'; 10]).await;
        send(&mut peer, CLOSE, &1000_u16.to_be_bytes()).await;
        assert!(waits(&mut waiting).await);
        assert_eq!(lens(&mut waiting.link), (vec![10], true));
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_frame_is_not_read_and_takes_up_nothing_until_the_host_is_there() {
        let (mut waiting, mut peer, gateway) = client();
        for len in [10, 500_000, 20] {
            send(&mut peer, TEXT, &vec![b'x'; len]).await;
        }
        assert!(waits(&mut waiting).await);
        assert_eq!(gateway.held(), 0);
        waiting.link.set_intake(Intake { max_frame_bytes: 1 << 20, account: None });
        assert_eq!(lens(&mut waiting.link), (vec![10, 500_000, 20], false));
    }

    #[tokio::test(start_paused = true)]
    async fn of_many_short_frames_a_few_are_read_ahead_and_all_arrive() {
        let (mut waiting, mut peer, _gateway) = client();
        for _ in 0..10_000 {
            send(&mut peer, TEXT, b"x").await;
        }
        assert!(waits(&mut waiting).await);
        let ahead = waiting.link.ahead().arrivals.len();
        assert!((200..300).contains(&ahead), "{ahead}");
        assert_eq!(lens(&mut waiting.link), (vec![1; 10_000], false));
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_breaks_a_rule_is_told_so_when_its_host_is_there() {
        let (mut waiting, mut peer, gateway) = client();
        let limit = gateway.setups.downstream.max_frame_bytes();
        peer.write_all(&[&[TEXT, 0x80 | 127][..], &(limit + 1).to_be_bytes(), &[0; 4]].concat()).await.expect("a link");
        assert!(waits(&mut waiting).await);
        let arrival = waiting.link.next().await;
        assert!(matches!(arrival, Some(Err(LinkError::FrameTooLarge(_)))), "{arrival:?}");
    }
}
