//! Arguments of `breakbulk relay`.

use std::path::PathBuf;

use breakbulk::address::Size;
use clap::{Args as Arguments, ValueHint};

use super::Format;
use crate::settings::{Relay, SettingsArgs};
use crate::span::Span;

/// Run a relay that speaks the protocol of Azure Web PubSub.
///
/// It prints a connection string, which `serve --via webpubsub:…`, `bridge --connect webpubsub:…` and the SDKs of the service take.
/// Hosts and clients connect to it from behind any firewall. It keeps nothing on the disk. It also serves /healthz and /metrics.
///
/// Every setting can also be in the environment, as BREAKBULK_ and its name in capitals, or in a file. A flag overrides
/// the environment, and the environment overrides the file.
#[derive(Debug, Arguments)]
#[command(override_usage = "breakbulk relay [OPTIONS]", after_help = RELAY_EXAMPLES)]
pub(crate) struct RelayArgs {
    #[command(flatten)]
    pub(crate) relay: RelayOptions,

    #[command(flatten)]
    pub(crate) settings: SettingsArgs<Relay>,
}

#[derive(Debug, Arguments)]
pub(crate) struct RelayOptions {
    /// How to print the connection string: text for people, json for programs (one line when clients can connect).
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "text", hide_possible_values = true)]
    pub(crate) format: Format,

    /// Read the access key from this file. The default is BREAKBULK_ACCESS_KEY; without it, a key is made at each start.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) key_file: Option<PathBuf>,

    /// The close code for a client that sends a frame over the cap.
    #[arg(long, value_name = "CODE", default_value_t = 1009, value_parser = clap::value_parser!(u16).range(1000..5000))]
    pub(crate) close_code: u16,

    /// How many bytes of messages may wait for one client. With more, it is disconnected and forgotten.
    #[arg(long, value_name = "SIZE", default_value = "16M")]
    pub(crate) queue: Size,

    /// How many messages may wait for one client.
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub(crate) queue_messages: u32,

    /// How long a client is kept that has lost its connection.
    #[arg(long, value_name = "TIME", default_value = "30s")]
    pub(crate) keep_clients: Span,
}

const RELAY_EXAMPLES: &str = "\
Examples:
  breakbulk relay
      on port 8080 of this machine, with a key that is made and printed
  breakbulk relay --listen ws://127.0.0.1:0 --format json
      on a free port, for a script
  breakbulk relay --listen wss://0.0.0.0:443 --bind-any \\
      --tls-cert cert.pem --tls-key key.pem --key-file relay.key
      for other machines

SIGINT and SIGTERM end it; a second one ends it at once.

Exit status: 0 done, 1 failure, 2 bad arguments or settings, 130 ended at once.";
