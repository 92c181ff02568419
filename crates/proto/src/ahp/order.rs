//! Which messages must stay in order. [`OrderClass::of`] is the only place that decides it, and [`passes_other_channels`] what of a
//! client passes a large message all the same.

use std::collections::HashMap;

use super::handshake::Role;
use super::negotiate::Chunking;
use crate::envelope::Kind;
use crate::mcp_order::is_cancel;
use crate::queue::{Finish, LaneKey, Order};
use crate::recent::hash_of;
use crate::rpc::IdKey;

/// How many requests of interest may wait for their answers. Each costs some 50 bytes.
pub(super) const MAX_REQUESTS: u32 = 4096;
/// The lane of a message without a channel.
const COMMON_LANE: LaneKey = LaneKey(0);
/// The method by which a client changes a channel's state.
pub(super) const DISPATCH: &str = "dispatchAction";

/// How a message is ordered among the messages of its sender. Decided by who sends it, its kind and its method, and for a
/// response by the method of the request:
///
/// | From | Message | Class |
/// |---|---|---|
/// | either | `ping`, and the response to one | `Urgent` |
/// | either | the notifications `$/cancelRequest` and `notifications/cancelled` | `Free`, but after the request that they name |
/// | server | the notifications `action` and `root/…` | `State` |
/// | server | any other notification | `InOrder` |
/// | server | the responses to `subscribe`, `fetchTurns` and `listSessions` | `State` |
/// | server | the responses to `initialize` and `reconnect` | `Barrier` |
/// | server | any other response, and requests | `Free` |
/// | client | the notification `dispatchAction` | `State` |
/// | client | any other notification, and requests | `InOrder` |
/// | client | responses | `Free` |
///
/// There is one exception, which depends on more than the method. Of what a client sends in order, these go like `Free` if they fit
/// one frame and no earlier message for their own channel is still on its way:
///
/// - a `dispatchAction` that answers, cancels, or is typed into a terminal: [`may_pass`] has the list of action types;
/// - `completions`, because somebody is typing, and a suggestion that misses the newest file does no harm.
///
/// Everything else of a client waits for what was sent before it. That holds for reads, too: `resourceRead`, `listSessions` and
/// `fetchTurns` have to show what the writes, the new sessions and the changes of turns before them have done, and those may be
/// for another channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OrderClass {
    /// Waits for nothing.
    Urgent,
    /// Passes others, and is passed.
    Free,
    /// Starts in the order in which it was accepted.
    InOrder,
    /// As `InOrder`; and its receiver's state depends on it. Without it, that state would differ from the sender's.
    State,
    /// As `State`; and nothing that is accepted later starts before it has finished.
    Barrier,
}

impl OrderClass {
    /// The class of a message. For a response, `method` is that of the request that it answers, or empty if that is not known.
    #[must_use]
    pub fn of(from: Role, kind: Kind, method: &str) -> Self {
        match (from, kind, method) {
            (_, _, "ping") => Self::Urgent,
            (_, Kind::Notification, method) if is_cancel(method) => Self::Free,
            (Role::Server, Kind::Notification, "action") => Self::State,
            (Role::Server, Kind::Notification, method) if method.starts_with("root/") => Self::State,
            (Role::Server, Kind::Notification, _) => Self::InOrder,
            (Role::Server, Kind::Response, "initialize" | "reconnect") => Self::Barrier,
            (Role::Server, Kind::Response, "subscribe" | "fetchTurns" | "listSessions") => Self::State,
            (Role::Client, Kind::Notification, DISPATCH) => Self::State,
            (Role::Client, Kind::Notification | Kind::Request, _) => Self::InOrder,
            (Role::Server, Kind::Response | Kind::Request, _) | (Role::Client, Kind::Response, _) => Self::Free,
            (_, Kind::Other, _) => Self::Free,
        }
    }

    /// Whether the receiver's state depends on such a message. It must not be left out. A receiver whose cursor is the
    /// highest seq that it saw must not get it before messages that were started earlier.
    #[must_use]
    pub const fn carries_state(self) -> bool {
        matches!(self, Self::State | Self::Barrier)
    }

    /// The order of a message with this class and channel in the queue. A client's messages finish in the order of
    /// acceptance, in whatever lane they are: see [`finish`].
    pub(super) fn in_lane(self, channel: Option<&str>) -> Order {
        match self {
            Self::Urgent => Order::Urgent,
            Self::Free => Order::Free,
            Self::InOrder | Self::State => Order::Ordered(lane(channel)),
            Self::Barrier => Order::Barrier,
        }
    }
}

/// Requests that wait for an answer, as far as their method orders it.
#[derive(Debug)]
pub(super) struct Requests {
    /// The side that answers the requests.
    answered_by: Role,
    waiting: HashMap<IdKey, Order>,
}

impl Requests {
    /// No requests, which this side answers.
    pub(super) fn answered_by(role: Role) -> Self {
        Self { answered_by: role, waiting: HashMap::new() }
    }

    /// Notes a request. `false`: too many wait.
    pub(super) fn note(&mut self, id: IdKey, method: &str, channel: Option<&str>) -> bool {
        let order = OrderClass::of(self.answered_by, Kind::Response, method).in_lane(channel);
        if order == Order::Free {
            return true;
        }
        let full = u32::try_from(self.waiting.len()).is_ok_and(|len| len >= MAX_REQUESTS);
        if full && !self.waiting.contains_key(&id) {
            return false;
        }
        self.waiting.insert(id, order);
        true
    }

    /// The order of the answer to `id`; the request no longer waits.
    pub(super) fn answer(&mut self, id: Option<IdKey>) -> Order {
        id.and_then(|id| self.waiting.remove(&id)).unwrap_or(Order::Free)
    }
}

/// Whether a server's response to a request with this method is ordered, so that the id of the request has to be known.
pub(super) fn is_tracked(method: &str) -> bool {
    OrderClass::of(Role::Server, Kind::Response, method) != OrderClass::Free
}

/// Whether a notification has this method, so that no id follows.
pub(super) fn is_notification(method: &str) -> bool {
    matches!(method, "action" | DISPATCH | "unsubscribe") || method.starts_with("root/")
}

/// Whether a client's message may pass the rest of a long one for another channel, by its method and the type of its action.
pub(super) fn passes_other_channels(method: &str, action: Option<&str>) -> bool {
    match method {
        DISPATCH => action.is_some_and(may_pass),
        method => method == "completions",
    }
}

/// Whether an action of a client's, by its type, may pass the rest of a long message for another channel: it answers a question of
/// the host's, which waits for it; it cancels something, which is to stop; or somebody types it into a terminal and waits for the
/// echo.
///
/// It does not pass what was sent for its own channel before it: a turn is not cancelled before it has begun, and a terminal gets
/// its input in order.
#[must_use]
pub fn may_pass(action: &str) -> bool {
    matches!(
        action,
        "chat/turnCancelled"
            | "chat/toolCallConfirmed"
            | "chat/toolCallResultConfirmed"
            | "chat/toolCallComplete"
            | "chat/inputAnswerChanged"
            | "chat/inputCompleted"
            | "automationRun/cancelRequested"
            | "terminal/input"
            | "terminal/resized"
    )
}

/// In which order our ordered messages finish. From client to server it is first in, first out: a prompt must not pass the
/// write that it depends on.
pub(super) fn finish(role: Role, theirs: Option<Chunking>) -> Finish {
    let has_settled_cursor = theirs.is_some_and(|theirs| theirs.settled_cursor);
    if role == Role::Server && has_settled_cursor { Finish::PerLane } else { Finish::InOrder }
}

fn lane(channel: Option<&str>) -> LaneKey {
    channel.map_or(COMMON_LANE, |channel| LaneKey(hash_of(channel)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_has_the_class_of_the_table() {
        use {Kind::*, OrderClass as Is, Role::*};
        for (from, kind, method, class) in [
            (Client, Request, "ping", Is::Urgent),
            (Server, Response, "ping", Is::Urgent),
            (Client, Response, "ping", Is::Urgent),
            (Server, Notification, "action", Is::State),
            (Server, Notification, "root/sessionAdded", Is::State),
            (Server, Notification, "terminal/data", Is::InOrder),
            (Server, Response, "subscribe", Is::State),
            (Server, Response, "fetchTurns", Is::State),
            (Server, Response, "listSessions", Is::State),
            (Server, Response, "initialize", Is::Barrier),
            (Server, Response, "reconnect", Is::Barrier),
            (Server, Response, "resourceRead", Is::Free),
            (Server, Response, "", Is::Free),
            (Server, Request, "resourceRead", Is::Free),
            (Server, Request, "action", Is::Free),
            (Client, Notification, "dispatchAction", Is::State),
            (Client, Request, "dispatchAction", Is::InOrder),
            (Client, Notification, "unsubscribe", Is::InOrder),
            (Client, Notification, "$/cancelRequest", Is::Free),
            (Server, Notification, "notifications/cancelled", Is::Free),
            (Client, Request, "initialize", Is::InOrder),
            (Client, Request, "resourceWrite", Is::InOrder),
            (Client, Response, "subscribe", Is::Free),
            (Client, Other, "", Is::Free),
            (Server, Other, "", Is::Free),
        ] {
            assert_eq!(OrderClass::of(from, kind, method), class, "{from:?} {kind:?} {method}");
        }
    }

    #[test]
    fn state_and_barriers_carry_state_and_nothing_else_does() {
        use OrderClass::*;
        assert!(State.carries_state() && Barrier.carries_state());
        assert!(!Urgent.carries_state() && !Free.carries_state() && !InOrder.carries_state());
    }

    #[test]
    fn from_client_to_server_what_changes_things_is_first_in_first_out() {
        let theirs = Chunking::from(&crate::limits::Limits::default());
        assert!(theirs.settled_cursor);
        assert_eq!(finish(Role::Client, Some(theirs)), Finish::InOrder);
        assert_eq!(finish(Role::Server, Some(theirs)), Finish::PerLane);
        assert_eq!(finish(Role::Server, None), Finish::InOrder);
    }

    #[test]
    fn what_answers_cancels_or_is_typed_may_pass_and_what_begins_or_changes_may_not() {
        let actions = ["chat/turnCancelled", "chat/toolCallConfirmed", "chat/inputCompleted", "terminal/input"];
        for action in actions.into_iter().chain(["terminal/resized"]) {
            assert!(passes_other_channels(DISPATCH, Some(action)), "{action}");
            assert!(!passes_other_channels("resourceWrite", Some(action)), "{action}");
        }
        for action in
            ["chat/turnStarted", "chat/toolCallContentChanged", "terminal/claimed", "session/configChanged", ""]
        {
            assert!(!passes_other_channels(DISPATCH, Some(action)), "{action}");
        }
        assert!(passes_other_channels("completions", None));
        for read in ["resourceRead", "listSessions", "fetchTurns"] {
            assert!(!passes_other_channels(read, None), "{read}");
        }
    }

    #[test]
    fn messages_in_order_have_the_lane_of_their_channel() {
        for class in [OrderClass::InOrder, OrderClass::State] {
            let order = |channel| class.in_lane(channel);
            assert_eq!(order(Some("a")), Order::Ordered(lane(Some("a"))));
            assert_ne!(order(Some("a")), order(Some("b")));
            assert_eq!(order(None), Order::Ordered(COMMON_LANE));
        }
        assert_eq!(OrderClass::Barrier.in_lane(Some("a")), Order::Barrier);
        assert_eq!(OrderClass::Urgent.in_lane(Some("a")), Order::Urgent);
        assert_eq!(OrderClass::Free.in_lane(Some("a")), Order::Free);
    }

    #[test]
    fn a_servers_response_is_ordered_by_its_request() {
        let mut requests = Requests::answered_by(Role::Server);
        let id = |n: u32| IdKey::of(n.to_string().as_bytes());
        for (n, method) in ["reconnect", "subscribe", "ping", "resourceRead"].into_iter().enumerate() {
            assert!(requests.note(id(n as u32), method, Some("a")));
        }
        let mut answer = |n| requests.answer(Some(id(n)));
        assert_eq!(answer(0), Order::Barrier);
        assert_eq!(answer(1), OrderClass::State.in_lane(Some("a")));
        assert_eq!((answer(2), answer(3), answer(0)), (Order::Urgent, Order::Free, Order::Free));
        assert_eq!(requests.answer(None), Order::Free);
    }

    #[test]
    fn a_clients_response_waits_for_nothing() {
        let mut requests = Requests::answered_by(Role::Client);
        let id = |n: u32| IdKey::of(n.to_string().as_bytes());
        assert!(requests.note(id(1), "ping", None) && requests.note(id(2), "subscribe", Some("a")));
        assert_eq!((requests.answer(Some(id(1))), requests.answer(Some(id(2)))), (Order::Urgent, Order::Free));
    }

    #[test]
    fn requests_that_wait_are_bounded() {
        let mut requests = Requests::answered_by(Role::Server);
        let id = |n: u32| IdKey::of(n.to_string().as_bytes());
        assert!((0..MAX_REQUESTS).all(|n| requests.note(id(n), "ping", None)));
        assert!(!requests.note(id(MAX_REQUESTS), "ping", None));
        assert!(requests.note(id(5), "ping", None) && requests.note(id(MAX_REQUESTS), "other", None));
        requests.answer(Some(id(7)));
        assert!(requests.note(id(MAX_REQUESTS), "ping", None));
    }
}
