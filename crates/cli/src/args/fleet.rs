//! Arguments of `breakbulk fleet`.

use clap::{Args as Arguments, Subcommand};

use super::Format;
use crate::settings::{FleetWide, SettingsArgs};

/// Inspect a fleet: hosts whose logs are in NATS JetStream, and their nodes.
#[derive(Debug, Arguments)]
#[command(after_help = FLEET_EXAMPLES)]
pub(crate) struct FleetArgs {
    #[command(subcommand)]
    pub(crate) command: FleetCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum FleetCommand {
    Status(StatusArgs),
}

/// Show hosts, their owners and epochs, what their logs take, and the nodes that answer.
#[derive(Debug, Arguments)]
#[command(after_help = STATUS_EXAMPLES)]
pub(crate) struct StatusArgs {
    /// How to print: text for people, json for programs.
    #[arg(long, value_enum, default_value = "text", hide_possible_values = true)]
    pub(crate) format: Format,

    #[command(flatten)]
    pub(crate) settings: SettingsArgs<FleetWide>,
}

const FLEET_EXAMPLES: &str = "\
Examples:
  breakbulk fleet status --log nats://127.0.0.1:4222

Exit status: 0 done, 1 failure, 2 bad arguments or settings.";

const STATUS_EXAMPLES: &str = "\
Examples:
  breakbulk fleet status --log nats://127.0.0.1:4222
  breakbulk fleet status --log nats://127.0.0.1:4222 --format json

Exit status: 0 done, 1 failure, 2 bad arguments or settings.";
