//! The connected clients, and which of them publishes a resource.
//!
//! A client publishes resources under URIs of its own. The protocol gives only an example of such a URI
//! (`virtual://my-client/…`) and no rule. So a URI that is neither a file nor the host's own belongs to a client
//!
//! - if its authority is the id of a connected client, or
//! - if it is, or lies below, the URI of a plugin that the client brought to the session that the request is about.
//!
//! Only clients of the same principal are asked: nobody reads the resources of a stranger.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use ahp_types::state::SessionState;

use crate::endpoint::{ClientHandle, ClientInfo};
use crate::lock::lock;

/// A client, over several connections: its principal and its id.
pub(in crate::host) type ClientKey = (Option<Arc<str>>, Arc<str>);

/// The key of a client.
pub(in crate::host) fn key(client: &ClientInfo) -> ClientKey {
    (client.principal.clone(), client.id.clone())
}

/// All connected clients.
#[derive(Default)]
pub(super) struct ConnectedClients(Mutex<HashMap<ClientKey, ClientConnection>>);

/// A client that can be asked for what it publishes.
#[derive(Debug, Clone)]
pub(super) struct ClientConnection {
    pub(super) connection: u64,
    pub(super) handle: ClientHandle,
}

impl ConnectedClients {
    pub(super) fn add(&self, client: &ClientInfo) {
        let owner = ClientConnection { connection: client.connection, handle: client.handle.clone() };
        lock(&self.0).insert(key(client), owner);
    }

    /// Whether a client with this id is connected, of whatever principal.
    pub(super) fn has(&self, id: &str) -> bool {
        lock(&self.0).keys().any(|(_, here)| **here == *id)
    }

    /// Removes a client whose connection has ended, unless it has reconnected.
    pub(super) fn remove(&self, client: &ClientInfo) {
        let mut connected_clients = lock(&self.0);
        if connected_clients.get(&key(client)).is_some_and(|owner| owner.connection == client.connection) {
            connected_clients.remove(&key(client));
        }
    }

    /// The connected client of this id, if it has the same principal as `client`.
    pub(super) fn of_same_principal(&self, client: &ClientInfo, id: &str) -> Option<ClientConnection> {
        lock(&self.0).get(&(client.principal.clone(), id.into())).cloned()
    }
}

/// Whether a URI can be one of a client: it is not a file, and not one of the host's own.
pub(super) fn may_be_published(uri: &str) -> bool {
    let Some((scheme, _)) = uri.split_once(':') else { return false };
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
    let is_scheme = !scheme.is_empty() && scheme.bytes().all(is_plain);
    let scheme = scheme.to_ascii_lowercase();
    is_scheme && scheme != "file" && !scheme.starts_with("ahp-")
}

/// The part of a URI between `//` and the path.
pub(super) fn authority(uri: &str) -> Option<&str> {
    let rest = uri.split_once("://")?.1;
    rest.split(['/', '?', '#']).next().filter(|authority| !authority.is_empty())
}

/// The id of the client whose plugin has this URI, or contains it.
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
mod tests {
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
