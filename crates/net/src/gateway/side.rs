//! One side of a bridge: a machine on a link, and how far its end has come.

use std::task::{Context, Poll};

use breakbulk_proto::{CloseReason, Event, Input, Lane, Message, Meta, Ticket, Violation};

use super::SideOutcome;
use super::ledger::ArrivalMemory;
use super::observed_link::ObservedLink;
use super::pending_requests::ErrorReply;
use crate::dialect::{AnyMachine, Dialect};
use crate::driver::{ABNORMAL, Driver};
use crate::len64;
use crate::link::{BoxLink, HalfClose, Link, NextFrame, ReceiveMemory};
use crate::memory::is_segmented;

/// One side of a bridge.
pub(super) struct Side {
    pub(super) driver: Driver<ObservedLink<BoxLink>, AnyMachine>,
    dialect: Dialect,
    state: SideState,
    closer: Option<Closer>,
}

/// How far the end of a side has come.
#[derive(Debug)]
enum SideState {
    /// Its peer may send more.
    Open,
    /// Its peer sends nothing more, and still reads.
    HalfClosed,
    /// Its link has ended.
    Closed {
        outcome: SideOutcome,
        /// Whether the peer had half-closed before.
        was_half_closed: bool,
    },
}

/// Who closes a side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Closer {
    /// The bridge.
    Bridge,
    /// The peer, or the network.
    Peer,
    /// The peer, because a frame was longer than it takes.
    PeerAtFrameLimit,
}

impl Side {
    /// A side on which nothing has passed.
    pub(super) const fn new(driver: Driver<ObservedLink<BoxLink>, AnyMachine>, dialect: Dialect) -> Self {
        Self { driver, dialect, state: SideState::Open, closer: None }
    }

    /// The next event. `next_frame` says what the next frame is to the messages that are arriving here.
    pub(super) fn poll_event(&mut self, cx: &mut Context<'_>, next_frame: NextFrame) -> Poll<Option<Event>> {
        if is_segmented(self.dialect)
            && let Some(memory) = self.driver.link_mut().receive_memory()
        {
            memory.set_next_frame(next_frame);
        }
        self.driver.poll_next(cx)
    }

    /// Takes over what is reserved for the message that has just arrived here, of so many bytes.
    pub(super) fn take_memory(&mut self, bytes: u64) -> ArrivalMemory {
        if let Some(grant) = self.driver.machine_mut().take_grant() {
            return ArrivalMemory::Message(grant);
        }
        let frame = self.driver.link_mut().receive_memory().and_then(ReceiveMemory::take_last);
        let Some(mut grant) = frame else { return ArrivalMemory::Unreserved };
        grant.complete(bytes);
        if is_segmented(self.dialect) { ArrivalMemory::Frame(grant) } else { ArrivalMemory::Message(grant) }
    }

    /// Gives its machine a message to send.
    pub(super) fn send(&mut self, ticket: Ticket, message: Message, meta: Meta) {
        self.driver.link_mut().note_message(len64(message.len()));
        self.driver.handle(Input::Send { ticket, message, lane: Lane::Auto, meta });
    }

    /// Notes whether the peer has half-closed. Whether that is new.
    pub(super) fn check_half_closed(&mut self) -> bool {
        let is_new = matches!(self.state, SideState::Open) && self.driver.has_ended();
        if is_new {
            self.state = SideState::HalfClosed;
        }
        is_new
    }

    /// Tells it to close, if it does not close already.
    pub(super) fn close(&mut self, reason: CloseReason) {
        self.closer.get_or_insert(Closer::Bridge);
        self.driver.handle(Input::Close(reason));
    }

    /// The peer has closed it, or the network has.
    pub(super) fn note_peer_close(&mut self, is_at_frame_limit: bool) {
        self.closer = Some(if is_at_frame_limit { Closer::PeerAtFrameLimit } else { Closer::Peer });
    }

    /// It has closed; returns how, in words for a person.
    pub(super) fn note_closed(&mut self, reason: CloseReason) -> &str {
        let description = self.driver.describe_end(&reason);
        let was_half_closed = self.has_half_closed();
        let outcome = SideOutcome { reason, description };
        self.state = SideState::Closed { outcome, was_half_closed };
        self.outcome().map_or("", |outcome| &outcome.description)
    }

    /// A description of how this side closed, for the peer on the other side, in whose words it is `who`. The peer's
    /// own close text is included, escaped.
    pub(super) fn end_for_other_side(&self, who: &str) -> String {
        let Some(SideOutcome { reason, description }) = self.outcome() else { return String::new() };
        match (reason, self.driver.close_text()) {
            (CloseReason::Peer { code }, Some("")) => format!("the {who} closed with {code}"),
            // Another gateway, which says in these words what it has seen.
            (CloseReason::Peer { .. }, Some(text)) if is_of_gateway(text, who) => text.to_owned(),
            (CloseReason::Peer { code }, Some(text)) => format!("the {who} closed with {code}: {text:?}"),
            (CloseReason::Peer { code: ABNORMAL } | CloseReason::Idle(_), _) => {
                format!("the {who} is disconnected: {description}")
            }
            (CloseReason::Peer { .. }, None) => format!("the {who} ended: {description}"),
            (reason, _) => format!("the link to the {who} was closed: {reason}"),
        }
    }

    /// The error for those who wait for a response of the host, which is this side and has closed.
    pub(super) fn error_for_callers(&self) -> ErrorReply {
        let Some(outcome) = self.outcome() else { return ErrorReply::host_ended() };
        let reason = match &outcome.reason {
            CloseReason::Normal | CloseReason::Peer { code: 1000 | 1005 } => return ErrorReply::host_ended(),
            CloseReason::Peer { .. } if self.driver.has_exited() => return ErrorReply::host_ended(),
            CloseReason::Peer { code: ABNORMAL } => "disconnected",
            CloseReason::Peer { .. } => "host-closed",
            CloseReason::GroupExpired { .. } | CloseReason::Idle(_) => "timed-out",
            CloseReason::Violation(
                Violation::FrameTooLarge(_) | Violation::MessageTooLarge(_) | Violation::LineTooLong(_),
            ) => "too-large",
            CloseReason::Unsendable { error, .. } => error.name(),
            reason => reason.name(),
        };
        let close_code = (reason == "host-closed").then(|| outcome.reason.code());
        ErrorReply { close_code, ..ErrorReply::new(reason, self.end_for_other_side("host")) }
    }

    /// Whether its link has ended.
    pub(super) const fn is_closed(&self) -> bool {
        matches!(self.state, SideState::Closed { .. })
    }

    /// Whether neither we nor the peer is closing it.
    pub(super) const fn is_kept_open(&self) -> bool {
        self.closer.is_none()
    }

    /// Whether the peer has closed it because a frame was longer than it takes.
    pub(super) fn is_closed_at_frame_limit(&self) -> bool {
        self.closer == Some(Closer::PeerAtFrameLimit)
    }

    /// Whether the peer has said that it sends nothing more, by another way than a close.
    pub(super) const fn has_half_closed(&self) -> bool {
        match self.state {
            SideState::Open => false,
            SideState::HalfClosed => true,
            SideState::Closed { was_half_closed, .. } => was_half_closed,
        }
    }

    /// Whether the peer may send more: it has neither closed nor half-closed.
    pub(super) const fn is_open(&self) -> bool {
        matches!(self.state, SideState::Open)
    }

    /// How it has closed, if it has.
    pub(super) const fn outcome(&self) -> Option<&SideOutcome> {
        match &self.state {
            SideState::Closed { outcome, .. } => Some(outcome),
            SideState::Open | SideState::HalfClosed => None,
        }
    }

    /// The same, for whoever keeps it.
    pub(super) fn into_outcome(self) -> Option<SideOutcome> {
        match self.state {
            SideState::Closed { outcome, .. } => Some(outcome),
            SideState::Open | SideState::HalfClosed => None,
        }
    }

    /// Whether the peer can half-close. Then its link has no close codes.
    pub(super) fn can_half_close(&self) -> bool {
        self.driver.link().status().half_close == HalfClose::Supported
    }

    /// Whether a part of a frame has arrived.
    pub(super) fn is_amid_frame(&self) -> bool {
        self.driver.link().status().is_amid_frame
    }
}

/// Whether the text of a close is one of [`Side::end_for_other_side`], and safe to show.
fn is_of_gateway(text: &str, who: &str) -> bool {
    let end = text.strip_prefix("the ").and_then(|rest| rest.strip_prefix(who));
    end.is_some_and(|end| end.starts_with(' ')) && !text.contains(char::is_control)
}

#[cfg(test)]
mod tests {
    use breakbulk_proto::ahp::Role;
    use breakbulk_proto::{Budget, Capacity, Limits, Transmit};
    use futures_util::SinkExt;

    use super::*;
    use crate::dialect::Setup;
    use crate::link::{self, InProcessLink};

    /// A side and its peer.
    fn side() -> (Side, InProcessLink) {
        let (downstream, peer) = link::pair(&Capacity::of(1_000_000), 4);
        let machine =
            Setup::new(Dialect::Plain, Role::Server, Limits::default()).machine(Budget::default().account(None));
        let link: BoxLink = Box::new(downstream);
        let driver = Driver::new(ObservedLink::new(link, u64::MAX), machine.expect("random bytes"));
        (Side::new(driver, Dialect::Plain), peer)
    }

    async fn end(side: &mut Side) -> String {
        let Some(Event::Closed(reason)) = side.driver.next().await else { panic!("it does not end") };
        side.note_closed(reason).to_owned()
    }

    #[tokio::test]
    async fn the_other_side_is_told_once_how_this_one_ended_through_any_number_of_gateways() {
        let [once, odd] = ["the host closed with 4123: \"why\"", "the host \u{1b}[2J"];
        for (said, told) in [
            ("why", once),
            (once, once),
            (odd, "the host closed with 4123: \"the host \\u{1b}[2J\""),
            ("", "the host closed with 4123"),
        ] {
            let (mut side, mut peer) = self::side();
            peer.send(Transmit::Close(CloseReason::Program(4123, said.into()))).await.expect("a link");
            end(&mut side).await;
            assert_eq!(side.end_for_other_side("host"), told);
        }
    }

    #[tokio::test]
    async fn the_log_says_who_closed() {
        let (mut side, mut peer) = self::side();
        peer.send(Transmit::Close(CloseReason::Restart)).await.expect("a link");
        assert_eq!(end(&mut side).await, r#"closed by the peer with code 1012, which says "restarting""#);

        let (mut side, mut peer) = self::side();
        peer.send(Transmit::Close(CloseReason::Program(1009, "max length: 1\u{1b}[2J".into()))).await.expect("a link");
        assert_eq!(end(&mut side).await, r#"closed by the peer with code 1009, which says "max length: 1\u{1b}[2J""#);

        let (mut side, _peer) = self::side();
        side.close(CloseReason::Peer { code: 1001 });
        assert_eq!(end(&mut side).await, "closed by us with code 1001, as the other side ended");

        let (mut side, _peer) = self::side();
        side.close(CloseReason::Restart);
        assert_eq!(end(&mut side).await, "closed by us: restarting");
    }
}
