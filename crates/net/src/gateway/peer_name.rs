//! The name under which a gateway remembers a peer: what the listener knows of it, and what it calls itself.

use std::fmt;

/// Identifies a peer across connections. A name that the peer gives itself is only used together with something that it
/// cannot choose; otherwise one client could disturb another's connections by using its name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct PeerName {
    /// Who it has proven to be.
    principal: Option<String>,
    /// Where it is, as long as nothing better is known.
    place: Option<String>,
    /// The id that it gave.
    client: Option<String>,
}

impl PeerName {
    /// A peer at a place, and who it has proven to be, if it has.
    pub(super) const fn new(place: String, principal: Option<String>) -> Self {
        Self { principal, place: Some(place), client: None }
    }

    /// The peer has said its id. Together with what it has proven that is better than a place, which may change.
    pub(super) fn introduce(&mut self, client: &str) {
        if self.principal.is_some() {
            self.place = None;
        }
        self.client = Some(client.to_owned());
    }

    /// Whether the peer has said its id: else this is the name of all who are at a place.
    pub(super) const fn is_introduced(&self) -> bool {
        self.client.is_some()
    }
}

/// For the log: without what the peer says of itself.
impl fmt::Display for PeerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = [&self.principal, &self.place];
        f.write_str(known.into_iter().flatten().next().map_or("", String::as_str))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(place: &str, principal: Option<&str>, client: Option<&str>) -> PeerName {
        let mut name = PeerName::new(place.to_owned(), principal.map(str::to_owned));
        client.into_iter().for_each(|client| name.introduce(client));
        name
    }

    #[test]
    fn a_client_with_a_token_is_the_same_one_wherever_it_is() {
        let name = |place| named(place, Some("token:1"), Some("me"));
        assert_eq!(name("10.0.0.1"), name("10.0.0.2"));
    }

    #[test]
    fn a_client_that_calls_itself_like_another_is_another() {
        let one = named("10.0.0.1", Some("token:1"), Some("me"));
        assert_ne!(one, named("10.0.0.1", Some("token:2"), Some("me")));
        assert_ne!(one, named("10.0.0.1", None, Some("me")));
        assert_ne!(named("10.0.0.1", None, Some("me")), named("10.0.0.2", None, Some("me")));
    }

    #[test]
    fn without_an_id_a_client_is_known_by_its_place() {
        let name = |place| named(place, Some("token:1"), None);
        assert!(name("10.0.0.1") == name("10.0.0.1") && name("10.0.0.1") != name("10.0.0.2"));
        assert_ne!(name("10.0.0.1"), named("10.0.0.9", Some("token:1"), Some("10.0.0.1")));
    }

    #[test]
    fn the_log_does_not_repeat_what_a_peer_calls_itself() {
        assert_eq!(named("10.0.0.1", Some("token:1"), Some("\u{1b}[2J")).to_string(), "token:1");
        assert_eq!(named("10.0.0.1", None, Some("me")).to_string(), "10.0.0.1");
    }
}
