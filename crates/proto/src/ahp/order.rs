//! Which messages must stay in order: by method, and for a response by the method of its request.

use std::collections::HashMap;

use super::handshake::Role;
use crate::queue::{LaneKey, Order};
use crate::recent::hash_of;
use crate::rpc::IdKey;

/// How many requests of interest may wait for their answers. Each costs some 50 bytes.
pub(super) const MAX_REQUESTS: u32 = 4096;
/// The lane of a message without a channel, and of everything from client to server.
const COMMON_LANE: LaneKey = LaneKey(0);

/// Requests that wait for an answer, as far as their method orders it.
#[derive(Debug, Default)]
pub(super) struct Requests(HashMap<IdKey, Order>);

impl Requests {
    /// Notes a request. `false`: too many wait.
    pub(super) fn note(&mut self, id: IdKey, method: &str, channel: Option<&str>) -> bool {
        let Some(order) = of_answer(method, channel) else {
            return true;
        };
        let full = u32::try_from(self.0.len()).is_ok_and(|len| len >= MAX_REQUESTS);
        if full && !self.0.contains_key(&id) {
            return false;
        }
        self.0.insert(id, order);
        true
    }

    /// The order of the answer to `id`; the request no longer waits.
    pub(super) fn answer(&mut self, id: Option<IdKey>) -> Order {
        id.and_then(|id| self.0.remove(&id)).unwrap_or(Order::Free)
    }
}

/// The order of the answer to a request, where its method gives it one.
fn of_answer(method: &str, channel: Option<&str>) -> Option<Order> {
    match method {
        "initialize" | "reconnect" => Some(Order::Barrier),
        "subscribe" | "fetchTurns" | "listSessions" => Some(Order::Ordered(lane(channel))),
        "ping" => Some(Order::Urgent),
        _ => None,
    }
}

/// Whether the answer to a request with this method has an order of its own.
pub(super) fn is_tracked(method: &str) -> bool {
    of_answer(method, None).is_some()
}

/// The order of a request or notification of ours.
pub(super) fn outgoing(role: Role, is_request: bool, method: &str, channel: Option<&str>) -> Order {
    match role {
        _ if method == "ping" => Order::Urgent,
        // First in, first out: a prompt must not pass the write that it depends on.
        Role::Client => Order::Ordered(COMMON_LANE),
        Role::Server if is_request => Order::Free,
        Role::Server => Order::Ordered(lane(channel)),
    }
}

/// The order of a response of ours whose request has `order`.
pub(super) const fn response(role: Role, order: Order) -> Order {
    match (role, order) {
        (Role::Client, Order::Urgent) => Order::Urgent,
        (Role::Client, _) => Order::Ordered(COMMON_LANE),
        (Role::Server, order) => order,
    }
}

/// Whether a request or notification of a server's is ordered.
pub(super) fn is_ordered(method: &str) -> bool {
    method == "action" || method.starts_with("root/")
}

fn lane(channel: Option<&str>) -> LaneKey {
    channel.map_or(COMMON_LANE, |channel| LaneKey(hash_of(channel)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn from_client_to_server_all_is_first_in_first_out_but_ping() {
        for (request, method) in [(true, "resourceWrite"), (false, "dispatchAction"), (true, "initialize")] {
            assert_eq!(outgoing(Role::Client, request, method, Some("c")), Order::Ordered(COMMON_LANE));
        }
        assert_eq!(outgoing(Role::Client, true, "ping", None), Order::Urgent);
        assert_eq!(response(Role::Client, Order::Free), Order::Ordered(COMMON_LANE));
        assert_eq!(response(Role::Client, Order::Urgent), Order::Urgent);
    }

    #[test]
    fn from_server_to_client_notifications_have_the_lane_of_their_channel() {
        let action = |channel| outgoing(Role::Server, false, "action", channel);
        assert_eq!(action(Some("a")), action(Some("a")));
        assert_ne!(action(Some("a")), action(Some("b")));
        assert_eq!(outgoing(Role::Server, true, "resourceRead", Some("a")), Order::Free);
    }

    #[test]
    fn a_response_is_ordered_by_its_request() {
        let mut requests = Requests::default();
        let id = |n: u32| IdKey::of(n.to_string().as_bytes());
        for (n, method) in ["reconnect", "subscribe", "ping", "resourceRead"].into_iter().enumerate() {
            assert!(requests.note(id(n as u32), method, Some("a")));
        }
        let mut answer = |n| response(Role::Server, requests.answer(Some(id(n))));
        assert_eq!(answer(0), Order::Barrier);
        assert_eq!(answer(1), outgoing(Role::Server, false, "action", Some("a")));
        assert_eq!((answer(2), answer(3), answer(0)), (Order::Urgent, Order::Free, Order::Free));
        assert_eq!(requests.answer(None), Order::Free);
    }

    #[test]
    fn requests_that_wait_are_bounded() {
        let mut requests = Requests::default();
        let id = |n: u32| IdKey::of(n.to_string().as_bytes());
        assert!((0..MAX_REQUESTS).all(|n| requests.note(id(n), "ping", None)));
        assert!(!requests.note(id(MAX_REQUESTS), "ping", None));
        assert!(requests.note(id(5), "ping", None) && requests.note(id(MAX_REQUESTS), "other", None));
        requests.answer(Some(id(7)));
        assert!(requests.note(id(MAX_REQUESTS), "ping", None));
    }

    #[test]
    fn actions_and_the_catalogue_are_ordered() {
        assert!(is_ordered("action") && is_ordered("root/sessionAdded") && !is_ordered("ahp/x"));
    }
}
