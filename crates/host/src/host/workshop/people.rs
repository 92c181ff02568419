//! Who is here, to be asked for what they publish.
//!
//! A client publishes resources under URIs of its own, and the protocol does not say how such a URI is told from others
//! but by example: `virtual://my-client/…`. So a URI that is neither a file nor the host's own is a client's
//!
//! - if its authority is the id of a client that is here, or
//! - if it is, or lies below, the URI of a plugin that the client brought to the session that the request is about.
//!
//! Ids count among the clients of one principal only: nobody is asked in the name of a stranger.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use ahp_types::state::SessionState;

use crate::endpoint::{ClientHandle, ClientInfo};
use crate::lock::lock;

/// A client among those of its principal.
pub(super) type Key = (Option<Arc<str>>, Arc<str>);

/// The name by which a client is known over several connections.
pub(super) fn key(client: &ClientInfo) -> Key {
    (client.principal.clone(), client.id.clone())
}

/// Who is here.
#[derive(Default)]
pub(super) struct People(Mutex<HashMap<Key, Person>>);

/// A client that can be asked.
#[derive(Debug, Clone)]
pub(super) struct Person {
    pub(super) connection: u64,
    pub(super) handle: ClientHandle,
}

impl People {
    pub(super) fn came(&self, client: &ClientInfo) {
        let person = Person { connection: client.connection, handle: client.handle.clone() };
        lock(&self.0).insert(key(client), person);
    }

    /// Whether a client with this id is here, whoever let it in.
    pub(super) fn has(&self, id: &str) -> bool {
        lock(&self.0).keys().any(|(_, here)| **here == *id)
    }

    /// Unless it has come back on another connection.
    pub(super) fn gone(&self, client: &ClientInfo) {
        let mut people = lock(&self.0);
        if people.get(&key(client)).is_some_and(|person| person.connection == client.connection) {
            people.remove(&key(client));
        }
    }

    /// A client of this one's principal.
    pub(super) fn beside(&self, client: &ClientInfo, id: &str) -> Option<Person> {
        lock(&self.0).get(&(client.principal.clone(), id.into())).cloned()
    }
}

/// Whether a URI can be a client's: it is no file, and none of the host's own.
pub(super) fn may_be_published(uri: &str) -> bool {
    let Some((scheme, _)) = uri.split_once(':') else { return false };
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
    let is_scheme = !scheme.is_empty() && scheme.bytes().all(is_plain);
    let scheme = scheme.to_ascii_lowercase();
    is_scheme && scheme != "file" && !scheme.starts_with("ahp-")
}

/// What stands between `//` and the path.
pub(super) fn authority(uri: &str) -> Option<&str> {
    let rest = uri.split_once("://")?.1;
    rest.split(['/', '?', '#']).next().filter(|authority| !authority.is_empty())
}

/// The client whose plugin this is, or is in.
pub(super) fn contributor<'a>(session: &'a SessionState, uri: &str) -> Option<&'a str> {
    let is_in = |plugin: &str| {
        let rest = uri.strip_prefix(plugin.trim_end_matches('/'));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '?', '#']))
    };
    let mut clients = session.active_clients.iter();
    let found = clients.find(|client| client.customizations.iter().flatten().any(|plugin| is_in(&plugin.uri)));
    found.map(|client| client.client_id.as_str())
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn files_and_what_the_host_has_itself_are_no_clients() {
        for uri in ["file:///a", "FILE:/a", "ahp-session:/1/changes/uncommitted/blob/1", "a", "", ":", "a b://c"] {
            assert!(!may_be_published(uri), "{uri}");
        }
        assert!(may_be_published("virtual://me/a") && may_be_published("x-y:1"));
    }

    #[test]
    fn an_authority_ends_where_the_path_begins() {
        assert_eq!(authority("virtual://me/a//b"), Some("me"));
        assert_eq!(authority("virtual://me?x"), Some("me"));
        assert_eq!(authority("virtual:///a"), None);
        assert_eq!(authority("virtual:me"), None);
    }
}
