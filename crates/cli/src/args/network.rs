//! Arguments of the commands that open links.

use std::path::PathBuf;

use clap::builder::UnknownArgumentValueParser;
use clap::{Arg, Args as Arguments, ValueHint};

use crate::settings::{Bridge, Everything, Peer, SettingsArgs, Tap};
use crate::span::Span;

/// Carry messages between two ends, each in its own wire form.
///
/// Clients come in at --listen and are taken to --connect. Each end has its own cap and wire form: what one end splits,
/// the bridge joins, and splits again for the other. Neither end needs to know.
///
/// Every setting can also stand in the environment, as BREAKBULK_ and its name in capitals, or in a file. A flag goes
/// before the environment, that before the file; `breakbulk config` shows what holds and why.
#[derive(Debug, Arguments)]
#[command(override_usage = "breakbulk bridge --listen ADDRESS --connect ADDRESS [OPTIONS]", after_help = BRIDGE_EXAMPLES)]
pub(crate) struct BridgeArgs {
    #[command(flatten)]
    pub(crate) settings: SettingsArgs<Bridge>,
}

/// Send one request of any size, and print its result.
///
/// A terminal shows how far the request and the answer have come. An answer that is an error is printed too, and the
/// exit status is then 1.
///
/// On a link that speaks ahp it introduces itself with `initialize` first, as a host demands. On every other link
/// nothing is sent but the request: an MCP server answers `initialize` and `ping` so, and many refuse all else before an
/// `initialize`.
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
    /// Where to: ws://HOST:PORT, wss://HOST:PORT, unix:PATH or exec:COMMAND, with options as for `bridge`.
    #[arg(value_name = "URL", value_hint = ValueHint::Url)]
    pub(crate) url: String,

    /// The method to call.
    #[arg(long, short)]
    pub(crate) method: String,

    /// Its params, as JSON.
    #[arg(long, value_name = "JSON", conflicts_with = "params_file")]
    pub(crate) params: Option<String>,

    /// A file with its params, as JSON; - is standard input.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) params_file: Option<PathBuf>,

    /// How long to wait for the answer; without it, as long as the peer is there.
    #[arg(long, value_name = "TIME")]
    pub(crate) timeout: Option<Span>,

    /// Print the whole answer as it came, not its result alone.
    #[arg(long)]
    pub(crate) raw: bool,
}

/// Print what passes between clients and a host, one line a message.
///
/// It stands between them as a bridge does: clients connect to --listen and are taken to URL. A line has the direction,
/// the method, the size, the number of segments (that came, and that left, where they differ) and the time from the first
/// to the last of them.
#[derive(Debug, Arguments)]
#[command(after_help = TAP_EXAMPLES)]
pub(crate) struct TapArgs {
    /// The host: ws://HOST:PORT, wss://HOST:PORT, unix:PATH or exec:COMMAND, with options as for `bridge`.
    #[arg(value_name = "URL", value_hint = ValueHint::Url)]
    pub(crate) url: String,

    /// Where clients connect. Port 0 takes one that is free, and says which.
    #[arg(long, value_name = "ADDRESS", default_value = "ws://127.0.0.1:0")]
    pub(crate) listen: String,

    /// Print objects for programs, one a line.
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) settings: SettingsArgs<Tap>,
}

/// Print each setting, what it is, and where that comes from.
///
/// Takes the flags of `bridge` and of `serve`: with the same flags, environment and file, it shows what they would do.
/// Secrets are shown as (set). If the settings do not hold together, a line on standard error says why, and the exit status is 2.
#[derive(Debug, Arguments)]
#[command(after_help = CONFIG_EXAMPLES)]
pub(crate) struct ConfigArgs {
    /// Print objects for programs.
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) settings: SettingsArgs<Everything>,
}

/// `--token` is what a listening end asks for, and `send` has none. Whoever tries it has a token to show.
pub(super) fn no_token() -> Arg {
    let tip = "a token to show goes into --header 'Authorization: Bearer TOKEN' (or into BREAKBULK_HEADER), or into the \
               URL as ?token=TOKEN";
    let refused = UnknownArgumentValueParser::suggest(tip);
    Arg::new("token").long("token").value_name("TOKEN").hide(true).value_parser(refused)
}

const BRIDGE_EXAMPLES: &str = "\
Examples:
  breakbulk bridge --listen 'ws://127.0.0.1:9100?cap=900000' \\
      --connect ws://127.0.0.1:9000
          beside a host that knows nothing of segments: on port 9100 no frame
          is over 900,000 bytes
  breakbulk bridge --listen ws://127.0.0.1:9200 \\
      --connect 'ws://127.0.0.1:9100?cap=900000' \\
      --header 'Authorization: Bearer TOKEN'
          beside its client, which connects to port 9200; TOKEN is what the
          first bridge printed
  breakbulk bridge --listen ws://127.0.0.1:9200 \\
      --connect wss://relay.example/agent --preset web-pubsub
          through a relay whose cap is known
  breakbulk bridge --listen 'stdio:?dialect=stdio' \\
      --connect 'exec:my-mcp-server --flag'
          chunked stdio in front of any MCP server
  breakbulk bridge --listen stdio: \\
      --connect 'exec:?dialect=stdio chunking-server'
          plain lines again, for a client that cannot chunk

SIGINT and SIGTERM end it once open messages are finished; a second one ends it
at once.

Exit status: 0 done, 1 failure, 2 bad arguments or settings, 3 the peer broke a
rule, 4 disconnected, 130 ended at once.";

const SEND_EXAMPLES: &str = "\
Examples:
  breakbulk send ws://127.0.0.1:9200 --method ping \\
      --header 'Authorization: Bearer TOKEN'
      a request without params, to a bridge that printed TOKEN
  breakbulk send 'ws://127.0.0.1:9100?cap=900000' --method resourceWrite \\
      --params-file write.json
      a large one, in segments
  generate | breakbulk send unix:/run/host.sock --method resourceWrite \\
      --params-file - --raw
      params from a pipe; the whole answer
  breakbulk send exec:my-mcp-server --method initialize --params \\
      '{\"protocolVersion\":\"2025-06-18\",\"capabilities\":{},
        \"clientInfo\":{\"name\":\"me\",\"version\":\"1\"}}'
      what an MCP server says of itself

Exit status: 0 done, 1 failure or an error as answer, 2 bad arguments or
settings, 3 the peer broke a rule, 4 disconnected.";

const TAP_EXAMPLES: &str = "\
Examples:
  breakbulk tap ws://127.0.0.1:9000
      for people; prints where clients connect, and the token they need
  breakbulk tap ws://127.0.0.1:9000 --listen ws://127.0.0.1:9001 --json
      for programs

Exit status: 0 done, 1 failure, 2 bad arguments or settings, 3 the peer broke a
rule, 4 disconnected.";

const CONFIG_EXAMPLES: &str = "\
Examples:
  breakbulk config
      what holds here
  BREAKBULK_CAP=1M breakbulk config --config bridge.toml --json
      what would hold there, for programs";
