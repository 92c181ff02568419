//! The limits of an endpoint, and its description of itself.

use std::time::Duration;

use ahp_types::commands::{AutomationCapabilities, Implementation};
use ahp_types::state::TelemetryCapabilities;
use breakbulk_proto::Limits;
use serde::Serialize;

use super::memory::MemoryConfig;
use crate::log::Seq;

/// The limits of each connection. The defaults suit a host with many clients.
#[derive(Debug, Clone)]
pub struct EndpointConfig {
    /// The frames and messages that we accept.
    pub limits: Limits,
    /// The longest frame of a client that has a principal and does not segment. None: the longest message.
    pub max_whole_frame_bytes: Option<u64>,
    /// Bytes that may arrive in all before the handshake. 64 KiB.
    pub max_hello_bytes: u64,
    /// How long a client may take for its handshake. 10 s.
    pub hello_time: Duration,
    /// Bytes of unsent messages at which a connection stops reading the log; one message may be longer. 1 MiB.
    pub max_unsent_bytes: usize,
    /// Bytes of unsent messages at which a connection takes no more results of requests. 64 MiB.
    pub max_answer_bytes: usize,
    /// The most actions that are replayed at a reconnect; more are replaced by snapshots. 16,384.
    pub max_replay: usize,
    /// The message limit assumed of a client that names none. 32 MiB.
    pub assumed_message_bytes: u64,
    /// How many turns a snapshot of a chat keeps if the whole snapshot is longer than the client's message limit. 50.
    pub window_turns: u64,
    /// Channels that a client may be subscribed to. 1,024.
    pub max_subscriptions: usize,
    /// Requests of a client that may be under way. 64.
    pub max_calls: usize,
    /// Actions of a client that may wait for those before them. 256.
    pub max_dispatches: usize,
    /// Bytes of requests under way at which a connection reads no more from its link. 64 MiB.
    pub max_request_bytes: usize,
    /// Requests to a client that may be under way; more wait. 32.
    pub max_asks: usize,
    /// How long a client may take to answer a request. 60 s. The time starts again with each part of a long message that
    /// passes in either direction.
    pub ask_time: Duration,
    /// How long a client may read nothing while messages wait for it. 60 s.
    pub stall_time: Duration,
    /// How far behind the log a client may be, in seqs. Beyond that, a snapshot is cheaper for both. 1,000,000.
    pub max_lag: Seq,
    /// The longest delay that a client may ask for, so that deltas are merged. 1 s.
    pub max_latency: Duration,
    /// What all connections together may hold, apart from messages that are arriving.
    pub memory: MemoryConfig,
    /// What the endpoint says of itself in the result of `initialize`.
    pub welcome: Welcome,
}

impl Default for EndpointConfig {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            max_whole_frame_bytes: None,
            max_hello_bytes: 64 << 10,
            hello_time: Duration::from_secs(10),
            max_unsent_bytes: 1 << 20,
            max_answer_bytes: 64 << 20,
            max_replay: 16_384,
            assumed_message_bytes: 32 << 20,
            window_turns: 50,
            max_subscriptions: 1024,
            max_calls: 64,
            max_dispatches: 256,
            max_request_bytes: 64 << 20,
            max_asks: 32,
            ask_time: Duration::from_mins(1),
            stall_time: Duration::from_mins(1),
            max_lag: 1_000_000,
            max_latency: Duration::from_secs(1),
            memory: MemoryConfig::default(),
            welcome: Welcome::default(),
        }
    }
}

/// The fields of `ahp_types::commands::InitializeResult` that describe the host.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Welcome {
    /// What program this is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_info: Option<Implementation>,
    /// The directory in which a client may start to browse files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_directory: Option<String>,
    /// The characters after which a client may ask for completions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_trigger_characters: Option<Vec<String>>,
    /// The prefix that makes a message a terminal command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub terminal_command_prefix: Option<String>,
    /// Channels of telemetry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub telemetry: Option<TelemetryCapabilities>,
    /// Whether there are automations.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub automations: Option<AutomationCapabilities>,
}

impl Default for Welcome {
    fn default() -> Self {
        let name = "breakbulk".to_owned();
        let version = Some(env!("CARGO_PKG_VERSION").to_owned());
        Self {
            server_info: Some(Implementation { name, version, title: None }),
            default_directory: None,
            completion_trigger_characters: None,
            terminal_command_prefix: None,
            telemetry: None,
            automations: None,
        }
    }
}
