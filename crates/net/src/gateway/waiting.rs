//! A client whose host is not there yet. It is read a little, so that its pings are answered and its end is seen.

use std::time::Duration;

use breakbulk_proto::{Account, CloseReason, Event, Grant, Input, Schedule};
use tokio::time::sleep;

use super::name::Name;
use super::side::Side;
use crate::driver::now;
use crate::link::Link;

/// So many bytes of messages are read ahead, and the message with which they become more.
const AHEAD: usize = 64 << 10;
/// So much else that has happened is kept.
const MOST: usize = 1024;
/// The time in which a message should go on. One that waits for longer goes first when others need its room.
const MESSAGE_TIME: Duration = Duration::from_secs(30);
/// How often it is looked whether a message has to go.
const LOOK: Duration = Duration::from_millis(100);

/// A client that waits.
pub(super) struct Waiting {
    pub(super) side: Side,
    pub(super) name: Name,
    /// What has come, and the room that it takes up, if there was any.
    pub(super) ahead: Vec<(Event, Option<Grant>)>,
    bytes: usize,
    /// For messages that have come.
    account: Account,
}

impl Waiting {
    pub(super) const fn new(side: Side, name: Name, account: Account) -> Self {
        Self { side, name, ahead: Vec::new(), bytes: 0, account }
    }

    /// Waits until the client has gone, or has to go because others need its room more. Cancel-safe.
    pub(super) async fn gone(&mut self) -> CloseReason {
        loop {
            let reads = self.bytes < AHEAD && self.ahead.len() < MOST;
            tokio::select! {
                event = self.side.driver.next(), if reads => match event {
                    Some(Event::Closed(reason)) => return reason,
                    Some(event) => self.keep(event),
                    None => return CloseReason::Normal,
                },
                () = sleep(LOOK), if self.bytes > 0 => {
                    if self.ahead.iter().filter_map(|(_, room)| room.as_ref()).any(Grant::evicted) {
                        return CloseReason::Evicted;
                    }
                }
            }
        }
    }

    fn keep(&mut self, event: Event) {
        let mut room = None;
        if let Event::Message { message, .. } = &event {
            self.side.driver.link_mut().release_room();
            let (bytes, schedule) = (message.len(), Schedule { started: now(), timeout: MESSAGE_TIME });
            room = self.account.reserve(u64::try_from(bytes).unwrap_or(u64::MAX), schedule).ok();
            self.bytes = self.bytes.saturating_add(bytes);
        }
        self.ahead.push((event, room));
    }

    /// Closes its link, if it is not closed: the host does not come.
    pub(super) async fn turn_away(mut self, reason: CloseReason) {
        self.side.driver.handle(Input::Close(reason));
        while !matches!(self.side.driver.next().await, Some(Event::Closed(_)) | None) {}
    }
}

#[cfg(test)]
mod tests {
    use breakbulk_proto::ahp::Role;
    use breakbulk_proto::{Budget, BudgetConfig, Limits};
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::time::timeout;

    use super::*;
    use crate::dialect::{Dialect, Setup};
    use crate::gateway::{End, Gateway};
    use crate::link::{WebSocket, WebSocketConfig};

    const MOMENT: Duration = Duration::from_secs(1);
    const TEXT: u8 = 0x81;
    const CLOSE: u8 = 0x88;
    const PING: u8 = 0x89;
    const PONG: u8 = 0x8A;

    /// A client on a WebSocket that waits, in a gateway that holds a megabyte; and its end of it.
    fn client() -> (Waiting, DuplexStream, Gateway) {
        let plain = |role| Setup::new(Dialect::Plain, role, Limits::default());
        let budget = BudgetConfig { process_bytes: 1 << 20, principal_bytes: 1 << 20, floor_bytes: 0 };
        let gateway = Gateway::new(plain(Role::Server), plain(Role::Client), Budget::new(budget));
        let (peer, ours) = duplex(4 << 20);
        let link = WebSocket::server(ours, &WebSocketConfig { keepalive: None, ..WebSocketConfig::default() });
        (gateway.enter(End::new(link, "near"), Some("me")).expect("random bytes"), peer, gateway)
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

    fn message(len: usize) -> Vec<u8> {
        format!(r#"{{"jsonrpc":"2.0","method":"{}"}}"#, "m".repeat(len)).into_bytes()
    }

    #[tokio::test(start_paused = true)]
    async fn pings_are_answered_and_what_was_sent_is_kept_in_its_order() {
        let (mut waiting, mut peer, gateway) = client();
        for len in [10, 20] {
            send(&mut peer, TEXT, &message(len)).await;
            send(&mut peer, PING, b"x").await;
        }
        assert!(timeout(MOMENT, waiting.gone()).await.is_err());
        let mut pongs = [0; 6];
        peer.read_exact(&mut pongs).await.expect("pongs");
        assert_eq!(pongs, [PONG, 1, b'x', PONG, 1, b'x']);
        let lens = waiting.ahead.iter().map(|(event, _)| match event {
            Event::Message { message, .. } => message.len(),
            other => panic!("{other:?}"),
        });
        let lens: Vec<_> = lens.collect();
        assert_eq!(lens, [message(10).len(), message(20).len()]);
        assert_eq!(gateway.held(), u64::try_from(lens.iter().sum::<usize>()).expect("a length"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_leaves_is_gone() {
        let (mut waiting, mut peer, _gateway) = client();
        send(&mut peer, TEXT, &message(10)).await;
        send(&mut peer, CLOSE, &1001_u16.to_be_bytes()).await;
        assert_eq!(timeout(MOMENT, waiting.gone()).await, Ok(CloseReason::Peer { code: 1001 }));
        waiting.turn_away(CloseReason::Normal).await;
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_is_read_ahead_than_a_little_and_one_message() {
        let (mut waiting, mut peer, gateway) = client();
        for len in [10, 500_000, 10] {
            send(&mut peer, TEXT, &message(len)).await;
        }
        assert!(timeout(MOMENT, waiting.gone()).await.is_err());
        assert_eq!(waiting.ahead.len(), 2);
        assert!((500_000..501_000).contains(&gateway.held()), "{}", gateway.held());
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_waits_for_long_goes_when_others_need_its_room() {
        let (mut waiting, mut peer, gateway) = client();
        send(&mut peer, TEXT, &message(700_000)).await;
        assert!(timeout(MESSAGE_TIME, waiting.gone()).await.is_err());
        let schedule = Schedule { started: now(), timeout: MOMENT };
        assert!(gateway.arriving[0].account(Some("other")).reserve(500_000, schedule).is_err());
        assert_eq!(timeout(MOMENT, waiting.gone()).await, Ok(CloseReason::Evicted));
    }
}
