//! The health and metrics pages of a bridge: whether its host can be reached, and what has passed.

use std::fmt::{Display, Write};
use std::sync::Arc;

use breakbulk::Gateway;
use breakbulk::gateway::Stats;
use breakbulk::listen::BoxBody;
use http::{HeaderMap, Method, Response};

use crate::pages::{Health, Subject};

/// The pages of a bridge.
pub(crate) struct BridgePages(pub(crate) Arc<Gateway>);

impl Subject for BridgePages {
    async fn content(&self, _: &Method, _: &str, _: &HeaderMap) -> Option<Response<BoxBody>> {
        None
    }

    fn file(&self, _: &str, _: &HeaderMap) -> Option<Response<BoxBody>> {
        None
    }

    async fn health(&self) -> Health {
        let is_good = !self.0.stats().is_host_down;
        let word = if is_good { "ok" } else { "failed" };
        Health { is_good, text: serde_json::json!({ "status": word, "checks": { "host": word } }).to_string() }
    }

    fn metrics(&self) -> String {
        let Stats { clients, accepted, refused, unreachable, to_clients, to_host, is_host_down, .. } = self.0.stats();
        let mut page = Page(String::new());
        let version = format!("{{version=\"{}\"}}", env!("CARGO_PKG_VERSION"));
        page.family("breakbulk_build_info", "gauge", "Which program this is.", [(version, 1)]);
        page.one("breakbulk_connections", "gauge", "Clients that are connected.", clients);
        page.one("breakbulk_connections_total", "counter", "Clients that were let in.", accepted);
        let help = "Clients that were closed with 1013, because of max_connections.";
        page.one("breakbulk_connections_refused_total", "counter", help, refused);
        let help = "Clients whose host could not be reached.";
        page.one("breakbulk_host_unreachable_total", "counter", help, unreachable);
        let help = "Whether the host was reached when a client last needed it.";
        page.one("breakbulk_host_up", "gauge", help, u8::from(!is_host_down));
        let both = |clients, host| [("{to=\"clients\"}".to_owned(), clients), ("{to=\"host\"}".to_owned(), host)];
        let messages = both(to_clients.messages, to_host.messages);
        page.family("breakbulk_bridge_messages_total", "counter", "Messages that have passed.", messages);
        let bytes = both(to_clients.bytes, to_host.bytes);
        page.family("breakbulk_bridge_message_bytes_total", "counter", "Bytes of these.", bytes);
        let events = self.0.counts().into_iter().map(|(name, count)| (format!("{{name=\"{name}\"}}"), count));
        page.family("breakbulk_events_total", "counter", "What else has happened, by name.", events);
        page.one("breakbulk_budget_held_bytes", "gauge", "Bytes of messages that are held.", self.0.held());
        page.0
    }
}

/// Families, each once, with their samples below them.
struct Page(String);

impl Page {
    fn one(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.family(name, kind, help, [(String::new(), value)]);
    }

    fn family<V: Display>(
        &mut self,
        name: &str,
        kind: &str,
        help: &str,
        samples: impl IntoIterator<Item = (String, V)>,
    ) {
        // Writing to memory does not fail.
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (labels, value) in samples {
            let _ = writeln!(self.0, "{name}{labels} {value}");
        }
    }
}
