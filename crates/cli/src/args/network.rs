//! Arguments of the commands that open links.

use std::path::PathBuf;

use clap::builder::UnknownArgumentValueParser;
use clap::{Arg, Args as Arguments, ValueHint};

use super::Format;
use crate::settings::{Bridge, Everything, Peer, SettingsArgs, Tap};
use crate::span::Span;

/// Connect clients to a host, each side with its own frame limit and wire form.
///
/// Clients connect to --listen, and the bridge connects each of them to --connect. It joins what one side has split, and
/// splits it again for the other side. Neither side needs to know.
///
/// Every setting can also be in the environment, as BREAKBULK_ and its name in capitals, or in a file. A flag overrides
/// the environment, and the environment overrides the file; `breakbulk config` shows each value and its source.
#[derive(Debug, Arguments)]
#[command(override_usage = "breakbulk bridge --listen ADDRESS --connect ADDRESS [OPTIONS]", after_help = BRIDGE_EXAMPLES)]
pub(crate) struct BridgeArgs {
    #[command(flatten)]
    pub(crate) settings: SettingsArgs<Bridge>,
}

/// Talk to an agent of a host, line by line.
///
/// Begins or continues a session, and shows the agent's answers as they stream. Asks you about tool calls that need
/// permission. Ctrl-C interrupts the agent; a second one, or Ctrl-D, leaves. A dropped connection is restored, and what was
/// missed is shown.
///
/// Without a terminal, each line of standard input is a prompt, and answers are printed to standard output.
#[derive(Debug, Arguments)]
#[command(after_help = CHAT_EXAMPLES)]
pub(crate) struct ChatArgs {
    #[command(flatten)]
    pub(crate) chat: ChatOptions,

    #[command(flatten)]
    pub(crate) settings: SettingsArgs<Peer>,
}

#[derive(Debug, Arguments)]
pub(crate) struct ChatOptions {
    /// The address that `serve` prints. The default is ws://127.0.0.1:4140/ahp, with the token in BREAKBULK_TOKEN.
    #[arg(value_name = "URL", value_hint = ValueHint::Url)]
    pub(crate) url: Option<String>,

    /// Continue this session: its URI, a part of it, or last.
    #[arg(long, value_name = "SESSION", conflicts_with_all = ["new", "agent"])]
    pub(crate) session: Option<String>,

    /// Begin a new session without asking.
    #[arg(long)]
    pub(crate) new: bool,

    /// The agent of a new session. The default is the host's first.
    #[arg(long, value_name = "NAME")]
    pub(crate) agent: Option<String>,

    /// The output: text for people, json for programs (one object a line).
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "text", hide_possible_values = true)]
    pub(crate) format: Format,
}

/// Send one request of any size, and print its result.
///
/// In a terminal, a bar shows the progress of the request and of the answer. If the answer is an error, it is printed, and
/// the exit status is 1.
///
/// With the dialect ahp, and at a WebSocket's path /ahp, it sends `initialize` first, which a host requires. With --mcp it
/// sends `initialize` and `notifications/initialized` first, which an MCP server requires. Otherwise it sends only the
/// request.
#[derive(Debug, Arguments)]
#[command(after_help = SEND_EXAMPLES)]
pub(crate) struct SendArgs {
    #[command(flatten)]
    pub(crate) request: RequestArgs,

    #[command(flatten)]
    pub(crate) settings: SettingsArgs<Peer>,
}

#[derive(Debug, Arguments)]
pub(crate) struct RequestArgs {
    /// The peer: ws://HOST:PORT, wss://HOST:PORT, unix:PATH or exec:COMMAND, with options as for `bridge`.
    #[arg(value_name = "URL", value_hint = ValueHint::Url)]
    pub(crate) url: String,

    /// The method to call.
    #[arg(long, short)]
    pub(crate) method: String,

    /// Its params, as JSON.
    #[arg(long, value_name = "JSON", conflicts_with = "params_file")]
    pub(crate) params: Option<String>,

    /// A file with its params, as JSON. - is standard input.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) params_file: Option<PathBuf>,

    /// How long to wait for the answer. The default is as long as the peer is connected.
    #[arg(long, value_name = "TIME")]
    pub(crate) timeout: Option<Span>,

    /// Print the whole answer as it arrived, not only its result.
    #[arg(long)]
    pub(crate) raw: bool,

    /// Send the handshake of an MCP client first, which strict servers require.
    ///
    /// A server that does not know `initialize` gets the request all the same. Pings of the server are answered; its other
    /// requests are refused (-32601).
    #[arg(long)]
    pub(crate) mcp: bool,
}

/// Print what passes between clients and a host, one line a message.
///
/// It works as a bridge does: clients connect to --listen, and the tap connects each of them to URL. A line has the time
/// (UTC), the number of the client, the direction (→ to the host, ← to the client), the method with the type of its action,
/// the id, the size, the number of segments (received and sent, if they differ), the time from the first segment to the
/// last, and for an answer the time since its request.
///
/// With --listen stdio: it runs between an MCP client and the server that the client starts. Its lines then go to standard
/// error, since standard output carries the messages; --output writes them to a file.
#[derive(Debug, Arguments)]
#[command(after_help = TAP_EXAMPLES)]
pub(crate) struct TapArgs {
    #[command(flatten)]
    pub(crate) tap: TapOptions,

    #[command(flatten)]
    pub(crate) settings: SettingsArgs<Tap>,
}

#[derive(Debug, Arguments)]
pub(crate) struct TapOptions {
    /// The host: ws://HOST:PORT, wss://HOST:PORT, unix:PATH or exec:COMMAND, with options as for `bridge`.
    #[arg(value_name = "URL", value_hint = ValueHint::Url)]
    pub(crate) url: String,

    /// Where clients connect. Port 0 means any free port; the address is printed.
    #[arg(long, value_name = "ADDRESS", default_value = "ws://127.0.0.1:0")]
    pub(crate) listen: String,

    /// Print objects for programs, one a line.
    #[arg(long)]
    pub(crate) json: bool,

    /// Append to this file instead of printing.
    #[arg(long, short, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) output: Option<PathBuf>,
}

/// Print each setting, its value, and where the value comes from.
///
/// Takes the flags of `bridge` and of `serve`, and shows the settings that these would use. Secrets are shown as (set). If
/// settings contradict each other, a line on standard error says why, and the exit status is 2.
#[derive(Debug, Arguments)]
#[command(after_help = CONFIG_EXAMPLES)]
pub(crate) struct ConfigArgs {
    /// Print objects for programs.
    #[arg(long)]
    pub(crate) json: bool,

    /// The output: text for people, json for programs (the same as --json).
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "text", hide_possible_values = true)]
    pub(crate) format: Format,

    #[command(flatten)]
    pub(crate) settings: SettingsArgs<Everything>,
}

/// `--token` is what a listening end asks for, and `send` has none. Whoever tries it has a token to show.
pub(super) fn no_token() -> Arg {
    let tip = "to send a token, put it into the URL as #token=TOKEN, or into --header 'Authorization: Bearer TOKEN' (or \
               into BREAKBULK_HEADER)";
    let refused = UnknownArgumentValueParser::suggest(tip);
    Arg::new("token").long("token").value_name("TOKEN").hide(true).value_parser(refused)
}

const BRIDGE_EXAMPLES: &str = "\
Examples:
  breakbulk bridge --listen 'ws://127.0.0.1:9100?cap=900000' \\
      --connect ws://127.0.0.1:9000
          beside a host that does not know segments: on port 9100 no frame is
          over 900,000 bytes
  breakbulk bridge --listen ws://127.0.0.1:9200 \\
      --connect 'ws://127.0.0.1:9100?cap=900000' \\
      --header 'Authorization: Bearer TOKEN'
          beside its client, which connects to port 9200; TOKEN is the one that
          the first bridge printed
  breakbulk bridge --listen ws://127.0.0.1:9200 \\
      --connect wss://relay.example/agent --preset web-pubsub
          through a relay with a known frame limit
  breakbulk bridge --listen 'stdio:?dialect=stdio' \\
      --connect 'exec:my-mcp-server --flag'
          chunked stdio in front of any MCP server
  breakbulk bridge --listen stdio: \\
      --connect 'exec:?dialect=stdio chunking-server'
          plain lines again, for a client that cannot chunk

SIGINT and SIGTERM end it when open messages are finished; a second one ends it
at once.

Exit status: 0 done, 1 failure, 2 bad arguments or settings, 3 the peer broke a
rule, 4 disconnected, 130 ended at once.";

const CHAT_EXAMPLES: &str = "\
Examples:
  breakbulk chat 'ws://127.0.0.1:4140/ahp#token=TOKEN'
      at the address that `serve` printed
  breakbulk chat 'ws://127.0.0.1:4140/ahp#token=TOKEN' --session last
      continue where you were
  echo 'Summarise the README' | breakbulk chat --new > summary.txt
      in a script; the token is in BREAKBULK_TOKEN

Exit status: 0 done, 1 failure or a failed turn in a script, 2 bad arguments or
settings.";

const SEND_EXAMPLES: &str = "\
Examples:
  breakbulk send 'ws://127.0.0.1:4140/ahp#token=TOKEN' --method ping
      a request without params, to the address that `serve` printed
  breakbulk send 'ws://127.0.0.1:9100?cap=900000' --method resourceWrite \\
      --params-file write.json
      a large one, in segments
  generate | breakbulk send unix:/run/host.sock --method resourceWrite \\
      --params-file - --raw
      params from a pipe; the whole answer
  breakbulk send exec:my-mcp-server --mcp --method tools/list
      what an MCP server can do

Exit status: 0 done, 1 failure or an error as answer, 2 bad arguments or
settings, 3 the peer broke a rule, 4 disconnected, 130 interrupted.";

const TAP_EXAMPLES: &str = "\
Examples:
  breakbulk tap 'ws://127.0.0.1:4140/ahp#token=TOKEN'
      for people, at the address that `serve` printed; prints one for clients
  breakbulk tap ws://127.0.0.1:9000 --listen :9001 --json
      for programs
  breakbulk tap 'exec:my-mcp-server --flag' --listen stdio: --output mcp.log
      in place of the command that an MCP client starts

Exit status: 0 done, 1 failure, 2 bad arguments or settings, 3 the peer broke a
rule, 4 disconnected.";

const CONFIG_EXAMPLES: &str = "\
Examples:
  breakbulk config
      the settings that hold here
  BREAKBULK_CAP=1M breakbulk config --config bridge.toml --json
      the settings with that file and variable, for programs";
