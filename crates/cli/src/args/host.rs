//! Arguments of the host, and of the commands for its log.

use clap::{Args as Arguments, Subcommand, ValueEnum};

use crate::settings::{Copying, Serve, SettingsArgs, Stored, Upkeep};

/// Run an agent host with a durable log.
///
/// Clients of the Agent Host Protocol connect to ws://127.0.0.1:4140/ahp, with the token that is printed at start; a browser
/// opens http://127.0.0.1:4140/. Every action is in the log before any client sees it. A client that reconnects gets everything
/// that it missed, also after a crash of the host. The host also serves /v2, /content, /healthz and /metrics.
///
/// Every setting can also be in the environment, as BREAKBULK_ and its name in capitals, or in a file. A flag overrides
/// the environment, and the environment overrides the file; `breakbulk config` shows each value and its source.
#[derive(Debug, Arguments)]
#[command(override_usage = "breakbulk serve [OPTIONS]", after_help = SERVE_EXAMPLES)]
pub(crate) struct ServeArgs {
    /// How to print the address: text for people, json for programs (one line when clients can connect).
    #[arg(long, value_enum, default_value = "text", hide_possible_values = true)]
    pub(crate) format: Format,

    /// Open the page in a browser on this machine.
    #[arg(long)]
    pub(crate) open: bool,

    #[command(flatten)]
    pub(crate) settings: SettingsArgs<Serve>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Lines on standard error.
    Text,
    /// One object on standard output.
    Json,
}

/// Inspect and maintain the log of a host.
///
/// list, show, verify and export also work while the host runs. For compact, erase and copy, the host must be stopped.
#[derive(Debug, Arguments)]
#[command(after_help = LOG_EXAMPLES)]
pub(crate) struct LogArgs {
    #[command(subcommand)]
    pub(crate) command: LogCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum LogCommand {
    List(ListArgs),
    Show(ShowArgs),
    Verify(VerifyArgs),
    Export(ExportArgs),
    Compact(CompactArgs),
    Erase(EraseArgs),
    Copy(CopyArgs),
}

/// List channels: how much of each is in the log, and from when.
#[derive(Debug, Arguments)]
#[command(after_help = LIST_EXAMPLES)]
pub(crate) struct ListArgs {
    /// List only the channels of this session.
    #[arg(long, value_name = "URI")]
    pub(crate) session: Option<String>,

    /// Print objects for programs.
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) settings: SettingsArgs<Stored>,
}

/// Print the entries of a channel, oldest first.
#[derive(Debug, Arguments)]
#[command(after_help = SHOW_EXAMPLES)]
pub(crate) struct ShowArgs {
    /// Its URI, as `list` shows it.
    #[arg(value_name = "CHANNEL")]
    pub(crate) channel: String,

    /// Start at this seq.
    #[arg(long, value_name = "SEQ", default_value_t = 0, hide_default_value = true)]
    pub(crate) from: u64,

    /// Print at most this many entries.
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<u64>,

    /// Print objects for programs, one a line, with whole bodies.
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) settings: SettingsArgs<Stored>,
}

/// Compare every record with its checksum.
///
/// Prints what is damaged. The exit status is 1 then.
#[derive(Debug, Arguments)]
#[command(after_help = VERIFY_EXAMPLES)]
pub(crate) struct VerifyArgs {
    #[command(flatten)]
    pub(crate) settings: SettingsArgs<Stored>,
}

/// Print the log, or one session, as JSON Lines.
///
/// First a description of the log, then each channel with its snapshot and rows, then all entries in order. Entries that
/// are appended meanwhile are left out.
#[derive(Debug, Arguments)]
#[command(after_help = EXPORT_EXAMPLES)]
pub(crate) struct ExportArgs {
    /// Export only the channels of this session.
    #[arg(long, value_name = "URI")]
    pub(crate) session: Option<String>,

    #[command(flatten)]
    pub(crate) settings: SettingsArgs<Stored>,
}

/// Remove old entries, and return free space to the disk. The host must be stopped.
///
/// Entries older than --keep-for, or beyond --keep-bytes, are removed after each channel's present state is saved. It needs
/// hardly any extra space, except for a log of an older version: that is copied once.
#[derive(Debug, Arguments)]
#[command(after_help = COMPACT_EXAMPLES)]
pub(crate) struct CompactArgs {
    #[command(flatten)]
    pub(crate) settings: SettingsArgs<Upkeep>,
}

/// Erase a session with all its channels, a terminal or a watch. The host must be stopped.
#[derive(Debug, Arguments)]
#[command(after_help = ERASE_EXAMPLES)]
pub(crate) struct EraseArgs {
    /// The URI of a session, or of a channel that belongs to none, as `list` shows it. Of ahp-root:// only old entries
    /// are erased.
    #[arg(value_name = "URI")]
    pub(crate) name: String,

    /// Confirm: what is erased cannot be restored.
    #[arg(long)]
    pub(crate) yes: bool,

    #[command(flatten)]
    pub(crate) settings: SettingsArgs<Stored>,
}

/// Copy the log of a host from a directory to NATS JetStream, or back. The host must be stopped.
///
/// Everything keeps its seq, so clients resume at the copy. The source stays as it is: do not start a host on it again.
#[derive(Debug, Arguments)]
#[command(after_help = COPY_EXAMPLES)]
pub(crate) struct CopyArgs {
    /// Where the log is: a directory, or nats://HOST:PORT[,HOST:PORT…].
    #[arg(long, value_name = "PLACE")]
    pub(crate) from: String,

    /// Where it goes, in the same forms. There must be none.
    #[arg(long, value_name = "PLACE")]
    pub(crate) to: String,

    #[command(flatten)]
    pub(crate) settings: SettingsArgs<Copying>,
}

const SERVE_EXAMPLES: &str = "\
Examples:
  breakbulk serve
          a host for this directory, with the demo and the agents found in PATH
  breakbulk serve --root ~/src/one --root ~/src/two --keep-for 30d
          for two directories; actions older than 30 days are removed
  breakbulk serve --agent claude
          with the Claude Code program that is in PATH
  breakbulk serve --agent demo --agent work=claude:'/opt/claude/bin/claude'
          two agents side by side; clients choose by name
  breakbulk serve --agent acp:'opencode acp'
          with any program that speaks the Agent Client Protocol
  breakbulk serve --listen 'ws://127.0.0.1:4140?cap=900000'
          behind a relay that caps frames
  breakbulk serve --open
          opens the page of the host in a browser
  breakbulk serve --listen ws://127.0.0.1:0 --format json
          on a free port, for a script
  curl http://127.0.0.1:4140/healthz

SIGINT and SIGTERM end it when clients are told and the log is closed; a second
one ends it at once.

Exit status: 0 done, 1 failure, 2 bad arguments or settings, 130 ended at once.";

const LIST_EXAMPLES: &str = "\
Examples:
  breakbulk log list
      every channel, for people
  breakbulk log list --session ahp-session:/1 --json
      the channels of one session, for programs";

const SHOW_EXAMPLES: &str = "\
Examples:
  breakbulk log show ahp-root:// --limit 20
      the oldest entries of a channel
  breakbulk log show ahp-session:/1 --from 100 --json
      whole bodies, starting at a seq";

const VERIFY_EXAMPLES: &str = "\
Examples:
  breakbulk log verify
  breakbulk log verify --data /var/lib/breakbulk

Exit status: 0 no damage, 1 failure or damage, 2 bad arguments or settings.";

const EXPORT_EXAMPLES: &str = "\
Examples:
  breakbulk log export > log.jsonl
      everything
  breakbulk log export --session ahp-session:/1 > session.jsonl
      one session";

const COMPACT_EXAMPLES: &str = "\
Examples:
  breakbulk log compact
      returns free space to the disk
  breakbulk log compact --keep-for 30d
      removes entries older than 30 days";

const ERASE_EXAMPLES: &str = "\
Examples:
  breakbulk log erase ahp-session:/1 --yes
  breakbulk log erase ahp-terminal:/1 --yes";

const COPY_EXAMPLES: &str = "\
Examples:
  breakbulk log copy --from /var/lib/breakbulk --to nats://127.0.0.1:4222 --host main
  breakbulk log copy --from nats://127.0.0.1:4222 --host main --to /var/lib/breakbulk";

const LOG_EXAMPLES: &str = "\
Examples:
  breakbulk log list
  breakbulk log show ahp-root:// --from 100 --limit 20
  breakbulk log export --session ahp-session:/1 > session.jsonl
  breakbulk log verify --data /var/lib/breakbulk
  breakbulk log compact --keep-for 30d
  breakbulk log erase ahp-session:/1 --yes
  breakbulk log copy --from /var/lib/breakbulk --to nats://127.0.0.1:4222

Exit status: 0 done, 1 failure or damage, 2 bad arguments or settings.";
