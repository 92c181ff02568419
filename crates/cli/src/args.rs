//! Arguments as typed. [`Plan`](crate::plan::Plan) and [`settings`](crate::settings) prove them.

mod fleet;
mod host;
mod network;
mod relay;

use std::path::PathBuf;

use breakbulk::address::Size;
use clap::{Args as Arguments, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum, ValueHint};
use clap_complete::Shell;

pub(crate) use self::fleet::{FleetArgs, FleetCommand, StatusArgs};
pub(crate) use self::host::{
    CompactArgs, CopyArgs, EraseArgs, ExportArgs, Format, ListArgs, LogArgs, LogCommand, ServeArgs, ShowArgs,
};
pub(crate) use self::network::{
    BridgeArgs, ChatArgs, ChatOptions, ConfigArgs, RequestArgs, SendArgs, TapArgs, TapOptions,
};
pub(crate) use self::relay::{RelayArgs, RelayOptions};

/// Carry agent messages of any size over links that limit the size of frames.
///
/// A message that is too large for one frame is split into segments that fit, and joined again on the other side.
#[derive(Debug, Parser)]
#[command(name = "breakbulk", version, arg_required_else_help = true, max_term_width = 100, after_help = TOP_EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Args {
    /// Parses the command line. Ends the program for `--help` and for wrong arguments.
    pub(crate) fn typed() -> Self {
        // For a better error message only: neither help nor completions show it.
        let command = ["send", "chat"].into_iter().fold(Self::command(), |command, name| {
            command.mut_subcommand(name, |command| command.arg(network::no_token()))
        });
        Self::from_arg_matches(&command.get_matches()).unwrap_or_else(|error| error.exit())
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Serve(Box<ServeArgs>),
    Chat(ChatArgs),
    Log(LogArgs),
    Fleet(FleetArgs),
    Bridge(BridgeArgs),
    Relay(RelayArgs),
    Send(SendArgs),
    Tap(TapArgs),
    Split(SplitArgs),
    Join(JoinArgs),
    Presets(PresetsArgs),
    Config(ConfigArgs),
    Completions(CompletionsArgs),
    Man(ManArgs),
}

/// Split one message from standard input into frames, one a line.
///
/// Reads exactly one JSON-RPC message. White space around it is removed. Its bytes are kept when it is split, so `join`
/// prints the same text. White space inside it is removed only where a frame could not be one line: if a message with raw
/// line ends fits one frame, and in the stdio dialect.
#[derive(Debug, Arguments)]
#[command(after_help = SPLIT_EXAMPLES)]
pub(crate) struct SplitArgs {
    #[command(flatten)]
    pub(crate) wire: WireArgs,
}

/// Join frames from standard input, one a line, into messages.
///
/// Prints each message when it is complete, one a line; a message with raw line ends is printed without white space. A
/// message that breaks a rule or lacks a part is not printed: a line on standard error names the rule, the line and the
/// sizes, and the exit status is 2. The same holds for a line that is neither a message nor a frame, such as log output
/// between messages.
///
/// Later messages are still joined, and the exit status is 2 at the end. In the ahp dialect, where a broken rule closes the
/// link, joining stops there.
#[derive(Debug, Arguments)]
#[command(after_help = JOIN_EXAMPLES)]
pub(crate) struct JoinArgs {
    #[command(flatten)]
    pub(crate) wire: WireArgs,
}

/// List services with known frame limits, for --preset and ?preset=.
#[derive(Debug, Arguments)]
#[command(after_help = PRESETS_EXAMPLES)]
pub(crate) struct PresetsArgs {
    /// Print objects for programs.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Print a script that completes commands and flags in a shell.
#[derive(Debug, Arguments)]
#[command(after_help = COMPLETIONS_EXAMPLES)]
pub(crate) struct CompletionsArgs {
    #[arg(value_name = "SHELL")]
    pub(crate) shell: Shell,
}

/// Print the manual page, in the form that `man` reads.
#[derive(Debug, Arguments)]
#[command(after_help = MAN_EXAMPLES)]
pub(crate) struct ManArgs {
    /// Write a page for each command into this directory instead.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) dir: Option<PathBuf>,
}

#[derive(Debug, Arguments)]
pub(crate) struct WireArgs {
    /// The wire form.
    #[arg(long, value_enum)]
    pub(crate) dialect: Dialect,

    /// The longest frame. Default when splitting: 65536 for ahp, 48000 for cep22, 61440 for stdio; when joining: no limit.
    ///
    /// In the stdio dialect the line end counts, and no frame is ever longer than 61440. In the cep22 dialect, what a relay
    /// adds around a frame does not count: choose a smaller cap than the relay's.
    #[arg(long, value_name = "SIZE")]
    pub(crate) cap: Option<Size>,

    /// For cep22: the progress token of the transfer.
    ///
    /// A response needs the token of the request that it answers; a request has its own. When joining, frames with other
    /// tokens are ignored; if no frame has this token, the error names the tokens that were found.
    #[arg(long)]
    pub(crate) token: Option<String>,

    /// The longest message. k, M, G are powers of 1000; KiB, MiB, GiB of 1024.
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    pub(crate) max_message: Size,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Dialect {
    /// Agent Host Protocol: `ahp/messageSegment` notifications.
    Ahp,
    /// ContextVM's CEP-22: oversized transfers in `notifications/progress`.
    Cep22,
    /// Chunked stdio, as in SwiftAgentKit: `UUID:index:total:data`.
    Stdio,
}

const TOP_EXAMPLES: &str = "\
Examples:
  breakbulk serve
  breakbulk chat 'ws://127.0.0.1:4140/ahp#token=TOKEN'
  breakbulk split --dialect ahp --cap 65536 < message.json > frames
  breakbulk join --dialect ahp < frames
  breakbulk split --dialect stdio < message.json |
      breakbulk join --dialect stdio
  breakbulk bridge --listen 'ws://127.0.0.1:9100?cap=900000' \\
      --connect ws://127.0.0.1:9000

Exit status:
  0    done
  1    failure: reading, writing, starting or connecting
  2    bad arguments, settings or input
  3    the peer broke a rule
  4    disconnected
  130  ended at once, by a second signal";

const PRESETS_EXAMPLES: &str = "\
Examples:
  breakbulk presets
      for people, with the source of each limit
  breakbulk presets --json | jq '.[] | select(.cap < 100000).name'
      for programs";

const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  breakbulk completions bash > ~/.local/share/bash-completion/completions/breakbulk
  breakbulk completions zsh > \"${fpath[1]}/_breakbulk\"
  breakbulk completions fish > ~/.config/fish/completions/breakbulk.fish";

const MAN_EXAMPLES: &str = "\
Examples:
  breakbulk man | man -l -
  breakbulk man --dir ~/.local/share/man/man1";

const SPLIT_EXAMPLES: &str = "\
Examples:
  breakbulk split --dialect ahp --cap 1M < message.json
      frames for a relay with a limit of a million bytes
  breakbulk split --dialect cep22 --cap 48k --token req-123 < response.json
      a transfer for the request that had this progress token
  breakbulk split --dialect stdio < message.json
      lines for a pipe
  breakbulk split --dialect ahp --cap 4KiB --max-message 100M < message.json | wc -l
      how many frames a message takes";

const JOIN_EXAMPLES: &str = "\
Examples:
  breakbulk join --dialect ahp < frames
      the messages in a file of frames
  breakbulk join --dialect ahp --cap 1M --max-message 32MiB < frames
      the same, as strictly as a receiver with these limits
  breakbulk join --dialect cep22 --token req-123 < frames
      one transfer out of many
  agent-server | breakbulk join --dialect stdio
      messages as they come; other lines are reported on standard error

Exit status:
  0  every line was a message or part of one, and all were printed
  1  failure: reading or writing; or frames of another dialect were not joined
  2  bad arguments or input; with --token, no frame has it and nothing was printed";
