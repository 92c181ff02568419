//! The frame limits of well-known services and programs, each with its source.

/// A service or a program whose frame limit is known.
#[derive(Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Preset {
    /// Its name on a command line.
    pub name: &'static str,
    /// The longest frame that we send through it: its limit, less what it is known to add.
    ///
    /// If its documentation says KB or MB and does not define them, powers of 1000 are used, because they are smaller.
    pub cap: u64,
    /// What it is, and what happens to a longer frame.
    pub about: &'static str,
    /// Where its documentation says so.
    pub source: &'static str,
}

impl Preset {
    /// All of them: services first, then programs, by name.
    pub const ALL: &[Self] = &[
        Self {
            name: "ably",
            cap: 60_000,
            about: "Ably: 64 KiB a message, name and extras counted; a longer one is refused",
            source: "https://ably.com/docs/platform/pricing/limits",
        },
        Self {
            name: "api-gateway",
            cap: 32_000,
            about: "Amazon API Gateway WebSocket API: 32 KB a frame, 128 KB a message; a longer one closes with 1009",
            source: "https://docs.aws.amazon.com/apigateway/latest/developerguide/apigateway-execution-service-websocket-limits-table.html",
        },
        Self {
            name: "cloudflare",
            cap: 32 << 20,
            about: "Cloudflare Workers and Durable Objects: 32 MiB a received message; a longer one closes with 1009",
            source: "https://developers.cloudflare.com/durable-objects/platform/limits",
        },
        Self {
            name: "native-messaging",
            cap: 1_000_000,
            about: "Chrome native messaging, host to extension: 1 MB a message; a longer one ends the host",
            source: "https://developer.chrome.com/docs/extensions/develop/concepts/native-messaging",
        },
        Self {
            name: "nats",
            cap: 1_000_000,
            about: "NATS with its default max_payload: 1 MiB, headers counted; a longer one closes the connection",
            source: "https://docs.nats.io/running-a-nats-service/configuration",
        },
        Self {
            name: "nostr",
            cap: 48_000,
            about: "Nostr relays: 64 KiB an event on many; the rest is for signature, tags and escaping, as ContextVM leaves it",
            source: "https://github.com/hoytech/strfry/blob/master/strfry.conf",
        },
        Self {
            name: "pubnub",
            cap: 30_000,
            about: "PubNub: 32 KiB a message, channel and encoding counted; a longer one is refused",
            source: "https://www.pubnub.com/docs/general/messages/publish#message-size-limit",
        },
        Self {
            name: "pusher",
            cap: 9_000,
            about: "Pusher Channels: 10 KB of data in an event, escaping counted; a longer one is refused",
            source: "https://docs.bird.com/pusher/channels/channels/limits/what-is-the-message-size-limit-when-publishing-an-event-in-channels",
        },
        Self {
            name: "web-pubsub",
            cap: 900_000,
            about: "Azure Web PubSub: 1 MB a frame, envelope counted; a longer one closes the connection",
            source: "https://learn.microsoft.com/azure/azure-web-pubsub/reference-json-reliable-webpubsub-subprotocol",
        },
        Self {
            name: "acp-typescript-line",
            cap: 32 << 20,
            about: "Agent Client Protocol, TypeScript SDK: 32 MiB a line",
            source: "npm @agentclientprotocol/sdk 2.4",
        },
        Self {
            name: "ahp-ws",
            cap: 16 << 20,
            about: "The official AHP client in Rust: 16 MiB a frame; a longer one ends the client",
            source: "crate ahp-ws 1.0.0",
        },
        Self {
            name: "asyncio-line",
            cap: 64 << 10,
            about: "Python's asyncio streams by default: 64 KiB a line; a longer one raises in readline",
            source: "https://docs.python.org/3/library/asyncio-stream.html",
        },
        Self {
            name: "claude-sdk-line",
            cap: 1 << 20,
            about: "Claude Agent SDK by default: 1 MiB a line; a longer one ends the session",
            source: "PyPI claude-agent-sdk",
        },
        Self {
            name: "mcp-typescript-line",
            cap: 10 << 20,
            about: "Model Context Protocol, TypeScript SDK over pipes: 10 MiB a line",
            source: "npm @modelcontextprotocol/sdk",
        },
        Self {
            name: "python-websockets",
            cap: 1 << 20,
            about: "The websockets library of Python by default: 1 MiB a message; a longer one closes with 1009",
            source: "https://websockets.readthedocs.io/en/stable/reference/asyncio/server.html",
        },
        Self {
            name: "rmcp-line",
            cap: 16 << 20,
            about: "Model Context Protocol, Rust SDK over pipes: 16 MiB a line; a longer one is dropped and never answered",
            source: "crate rmcp 3.8",
        },
        Self {
            name: "swift-agent-kit-line",
            cap: 61_440,
            about: "SwiftAgentKit over pipes: 61,440 bytes a line, longer messages in chunks (dialect=stdio)",
            source: "https://github.com/JamieScanlon/SwiftAgentKit",
        },
    ];

    /// The one of this name.
    #[must_use]
    pub fn find(name: &str) -> Option<&'static Self> {
        Self::ALL.iter().find(|preset| preset.name == name)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_found_and_are_all_different() {
        let names: BTreeSet<_> = Preset::ALL.iter().map(|preset| preset.name).collect();
        assert_eq!(names.len(), Preset::ALL.len());
        for preset in Preset::ALL {
            assert_eq!(Preset::find(preset.name), Some(preset));
            assert!(preset.cap >= 9_000 && !preset.about.is_empty() && !preset.source.is_empty(), "{}", preset.name);
        }
        assert_eq!(Preset::find("carrier-pigeon"), None);
    }

    #[test]
    fn a_name_can_stand_in_a_query_as_it_is() {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        assert!(Preset::ALL.iter().all(|preset| preset.name.bytes().all(plain)));
    }
}
