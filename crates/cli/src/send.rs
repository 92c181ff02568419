//! `breakbulk send`: one request, and its answer.

use std::future::{Future, pending};
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::pin::pin;
use std::time::Duration;

use breakbulk::{Address, AnyMachine, BoxLink, Dialect, Driver, Link, Moved, Route, Transport};
use breakbulk_proto::json::{self, Found, Number, Path};
use breakbulk_proto::{Budget, CloseReason, Event, Input, Message, Progress, Subject, Ticket};
use bytes::Bytes;
use serde::de::IgnoredAny;

use crate::args::RequestArgs;
use crate::bar::Bar;
use crate::failure::{Error, Failure, no_link};
use crate::open;
use crate::runtime;
use crate::settings::{Layers, LinkSettings, Origin, PATH, Settings, in_full, to_peer};
use crate::shutdown::{self, Signal};

/// The validated settings of `send`.
#[derive(Debug)]
pub(crate) struct SendSettings {
    pub(crate) route: Route,
    /// The request, whole; its id is [`ID`].
    pub(crate) request: Bytes,
    /// The handshake before it.
    greeting: Greeting,
    /// How long to wait for the answer.
    pub(crate) timeout: Option<Duration>,
    /// Whether the answer is printed whole.
    pub(crate) raw: bool,
    pub(crate) link: LinkSettings,
}

/// The handshake before the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Greeting {
    /// None.
    Nothing,
    /// That of an AHP client: the answer to `initialize` contains the limits of the peer.
    Ahp,
    /// That of an MCP client, in the three steps that strict servers require.
    Mcp,
}

const NEEDS_TOKEN: &str = "the peer needs its token: use the address that `serve`, `bridge` or `tap` printed, with #token=TOKEN \
                           at its end, or --header 'Authorization: Bearer TOKEN' (or BREAKBULK_HEADER)";

/// The id of the one request.
const ID: u32 = 1;
/// The ticket of the request and of all other messages that we send.
const REQUEST: Ticket = Ticket(0);
const BESIDE: Ticket = Ticket(1);
/// The id of the handshake with an MCP server, which accepts every id only once.
const GREETING_ID: u32 = 0;

impl SendSettings {
    pub(crate) fn prove(args: RequestArgs, mut settings: Settings, mut layers: Layers) -> Result<Self, Error> {
        if args.method.is_empty() {
            return Err(Error::Arguments("--method is empty: allowed is the name of a method".into()));
        }
        layers.put("connect", &in_full(&args.url), Origin::Argument("URL"));
        settings.connect = layers.read("connect")?;
        if let Some(connect) = settings.connect.as_mut().filter(|connect| !args.mcp && is_host(connect)) {
            connect.dialect = connect.dialect.or(settings.dialect).or(Some(Dialect::Ahp));
        }
        let (route, link) = to_peer(settings, &layers)?;
        let params = params(args.params, args.params_file, io::stdin())?;
        let request = request(&args.method, params.as_deref());
        let timeout = args.timeout.map(|timeout| timeout.0);
        let greeting = match route.setup.dialect {
            _ if args.method == "initialize" => Greeting::Nothing,
            _ if args.mcp => Greeting::Mcp,
            Dialect::Ahp => Greeting::Ahp,
            _ => Greeting::Nothing,
        };
        Ok(Self { route, request, greeting, timeout, raw: args.raw, link })
    }
}

/// Whether an address is that of a host, as `serve` prints it.
fn is_host(address: &Address) -> bool {
    matches!(&address.transport, Transport::WebSocket { target, .. } if target.split('?').next() == Some(PATH))
}

/// Sends the request, and prints its answer.
pub(crate) fn run(settings: SendSettings) -> Result<(), Error> {
    runtime::run(async move {
        let cut_short = cut_short(settings.timeout, shutdown::requested().map_err(Error::Runtime)?);
        let answer = ask(&settings, cut_short).await?;
        print(&answer, settings.raw)
    })
}

/// Waits until the timeout or a signal ends the wait for the answer.
async fn cut_short(timeout: Option<Duration>, shutdown: impl Future<Output = Signal>) -> Error {
    let late = async {
        match timeout {
            Some(time) => tokio::time::sleep(time).await,
            None => pending().await,
        }
        Error::NoAnswer(timeout.unwrap_or_default())
    };
    tokio::select! {
        error = late => error,
        signal = shutdown => Error::Interrupted(signal),
    }
}

/// Connects, and sends the request. In every case the link is closed properly at the end.
async fn ask(settings: &SendSettings, cut_short: impl Future<Output = Error>) -> Result<Message, Error> {
    let mut cut_short = pin!(cut_short);
    let mut conversation = tokio::select! {
        conversation = Conversation::begin(settings) => conversation?,
        error = &mut cut_short => return Err(error),
    };
    let answer = tokio::select! {
        answer = conversation.hold(settings) => answer,
        error = &mut cut_short => Err(error),
    };
    conversation.end().await;
    answer
}

/// Prints the result or the error of the answer.
fn print(message: &Message, raw: bool) -> Result<(), Error> {
    let answer = ResponseParts::read(message);
    let part = if raw { None } else { answer.error.or(answer.result) };
    let mut out = io::stdout().lock();
    let text = part.map_or_else(|| message.to_bytes().to_vec().into(), |found| message.read(found.span));
    out.write_all(&text).and_then(|()| out.write_all(b"\n")).and_then(|()| out.flush()).map_err(Error::Output)?;
    if answer.error.is_some() { Err(Error::Answered) } else { Ok(()) }
}

/// The `initialize` request for a host.
const HELLO: &str = concat!(
    r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"channel":"ahp-root://","#,
    r#""protocolVersions":["1.0.0","0.9.0"],"clientId":"breakbulk-send"}}"#
);

/// The `initialize` request for an MCP server.
const MCP_HELLO: &str = concat!(
    r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"#,
    r#""clientInfo":{"name":"breakbulk-send","version":""#,
    env!("CARGO_PKG_VERSION"),
    r#""}}}"#
);
const MCP_INITIALIZED: &str = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
/// The server knows no such method.
const METHOD_NOT_FOUND: i128 = -32601;

/// The parts of an answer.
struct ResponseParts {
    result: Option<Found>,
    error: Option<Found>,
    /// The id of the request that it answers, if it is an answer to one of ours.
    id: Option<Number>,
    /// The code of the error.
    code: Option<Number>,
}

impl ResponseParts {
    fn read(message: &Message) -> Self {
        static PATHS: [Path; 5] = [&["id"], &["method"], &["result"], &["error"], &["error", "code"]];
        let Ok(paths) = json::find(message.slices(), &PATHS) else {
            return Self { result: None, error: None, id: None, code: None };
        };
        let number = |found: Found| json::number(&message.read(found.span));
        let id = paths.get(0).filter(|_| paths.get(1).is_none()).map(number);
        // Some peers write `"error": null` in a successful response.
        let error = paths.get(3).filter(|error| error.kind != json::ValueKind::Null);
        Self { result: paths.get(2), error, id, code: paths.get(4).map(number) }
    }

    fn is_to(&self, id: u32) -> bool {
        self.id == Some(Number::Int(id.into()))
    }
}

/// The answer to a request of an MCP server: an empty result for a ping, and an error for everything else.
fn owed(message: &Message) -> Option<Message> {
    static PATHS: [Path; 2] = [&["id"], &["method"]];
    let paths = json::find(message.slices(), &PATHS).ok()?;
    let id = paths.get(0).filter(|id| matches!(id.kind, json::ValueKind::String | json::ValueKind::Number))?;
    let id = String::from_utf8(message.read(id.span).into_owned()).ok()?;
    let is_ping = &*message.read(paths.get(1)?.span) == br#""ping""#;
    let answer = if is_ping {
        format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#)
    } else {
        format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":{METHOD_NOT_FOUND},"message":"Method not found"}}}}"#)
    };
    Some(answer.into())
}

/// A request on its way, and its answer.
struct Conversation {
    driver: Driver<BoxLink, AnyMachine>,
    greeting: Greeting,
}

impl Conversation {
    /// Connects.
    async fn begin(settings: &SendSettings) -> Result<Self, Error> {
        let route = &settings.route;
        let link = open::dialer(route, &settings.link)?.dial(&route.address).await;
        let link = link.map_err(|error| no_link(error, NEEDS_TOKEN))?;
        let account = Budget::new(settings.link.budget).account(Some("the peer"));
        let machine = route.setup.machine(account).map_err(Error::Random)?;
        Ok(Self { driver: Driver::new(link, machine), greeting: settings.greeting })
    }

    /// Does the handshake if there is one, and sends the request.
    async fn hold(&mut self, settings: &SendSettings) -> Result<Message, Error> {
        match self.greeting {
            Greeting::Nothing => {}
            Greeting::Ahp => {
                let hello = self.ask(HELLO.into(), ID).await?;
                if ResponseParts::read(&hello).error.is_some() {
                    return Ok(hello);
                }
            }
            Greeting::Mcp => {
                let hello = self.ask(MCP_HELLO.into(), GREETING_ID).await?;
                let ResponseParts { error, code, .. } = ResponseParts::read(&hello);
                if error.is_none() {
                    self.driver.handle(Input::send(BESIDE, MCP_INITIALIZED));
                } else if code != Some(Number::Int(METHOD_NOT_FOUND)) {
                    return Ok(hello);
                }
            }
        }
        self.ask(settings.request.clone().into(), ID).await
    }

    /// Sends a request with this id; returns its answer. Other messages of the peer are ignored; an MCP server's requests
    /// are answered.
    async fn ask(&mut self, request: Message, id: u32) -> Result<Message, Error> {
        let size = u64::try_from(request.len()).unwrap_or(u64::MAX);
        self.driver.handle(Input::send(REQUEST, request));
        let (mut bars, before) = (Bars::new(), self.driver.link().status().moved);
        let mut glances = tokio::time::interval(PROGRESS_INTERVAL);
        loop {
            if self.driver.has_ended() {
                let how = "the peer ended its output before it answered";
                return Err(Error::Closed(CloseReason::Peer { code: 1000 }, how.into()));
            }
            let event = tokio::select! {
                event = self.driver.next() => event,
                _ = glances.tick() => {
                    bars.show_link(before, self.driver.link().status().moved);
                    continue;
                }
            };
            match event {
                Some(Event::Message { message, .. }) if ResponseParts::read(&message).is_to(id) => return Ok(message),
                Some(Event::Message { message, .. }) if self.greeting == Greeting::Mcp => {
                    if let Some(answer) = owed(&message) {
                        self.driver.handle(Input::send(BESIDE, answer));
                    }
                }
                Some(
                    Event::SendFailed { reply: Some(message), .. } | Event::ReceiveFailed { reply: Some(message), .. },
                ) => {
                    return Ok(message);
                }
                Some(Event::SendFailed { error, .. }) => return Err(Error::NotSent(error)),
                Some(Event::Progress(progress)) => bars.show(progress),
                Some(Event::Sent { ticket: REQUEST }) => bars.sent(size),
                Some(Event::Closed(reason)) => {
                    let how = self.driver.describe_end(&reason);
                    return Err(Error::Closed(reason, how));
                }
                Some(_) => {}
                None => {
                    let reason = CloseReason::Peer { code: 1006 };
                    let how = reason.to_string();
                    return Err(Error::Closed(reason, how));
                }
            }
        }
    }

    /// Closes the link, so that the peer knows that we have ended.
    async fn end(mut self) {
        self.driver.handle(Input::Close(CloseReason::Normal));
        while !matches!(self.driver.next().await, None | Some(Event::Closed(_))) {}
    }
}

/// How often the progress of a message in a single frame is updated.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// A progress bar for each direction of one request.
struct Bars {
    there: Bar,
    back: Bar,
    /// The bytes of a request that is a single frame: only the link knows how many of them it has sent.
    whole: Option<u64>,
    /// Whether the machine reports the progress of the answer.
    counted: bool,
}

impl Bars {
    fn new() -> Self {
        let [there, back] = Bar::pair(["sent      ", "received  "]);
        Self { there, back, whole: None, counted: false }
    }

    /// Shows the progress that the machine reports.
    fn show(&mut self, Progress { subject, done, total }: Progress) {
        let is_in = matches!(subject, Subject::Incoming(_));
        let bar = if is_in { &self.back } else { &self.there };
        bar.expect(total);
        bar.reach(done);
        self.counted |= is_in;
    }

    /// Shows the progress that the link reports, counted from `before` on.
    fn show_link(&self, before: Moved, now: Moved) {
        if let Some(total) = self.whole {
            self.there.reach(now.outward.saturating_sub(before.outward).min(total));
        }
        if !self.counted {
            self.back.reach(now.inward.saturating_sub(before.inward));
        }
    }

    /// The machine is done with a request of this size.
    fn sent(&mut self, size: u64) {
        if self.there.position() > 0 {
            self.there.fill();
        } else {
            self.there.expect(size);
            self.whole = Some(size);
        }
    }
}

/// The request's text. `params` stay as they are, byte for byte.
fn request(method: &str, params: Option<&str>) -> Bytes {
    let method = serde_json::Value::from(method);
    let head = format!(r#"{{"jsonrpc":"2.0","id":{ID},"method":{method}"#);
    let (before, params) = params.map_or(("", ""), |params| (r#","params":"#, params));
    [&head, before, params, "}"].concat().into()
}

/// The params, checked to be a JSON object or array.
fn params(inline: Option<String>, file: Option<PathBuf>, input: impl Read) -> Result<Option<String>, Error> {
    let (text, name) = match (inline, file) {
        (Some(text), _) => (text.into_bytes(), "--params".to_owned()),
        (None, Some(path)) if path == std::path::Path::new("-") => {
            (read(input).map_err(Error::Reading)?, "standard input".into())
        }
        (None, Some(path)) => {
            let text = std::fs::read(&path).map_err(|error| Error::File(path.clone(), error))?;
            (text, path.display().to_string())
        }
        (None, None) => return Ok(None),
    };
    let refused =
        |why: String, rule| Error::Input(Failure { line: None, text: format!("params in {name}: {why}"), rule });
    let text = String::from_utf8(text).map_err(|error| {
        refused(format!("not UTF-8 at byte {}", error.utf8_error().valid_up_to()), "params-not-utf8")
    })?;
    serde_json::from_str::<IgnoredAny>(&text).map_err(|error| refused(error.to_string(), "params-not-json"))?;
    if text.trim_start().starts_with(['{', '[']) {
        Ok(Some(text.trim().to_owned()))
    } else {
        Err(refused("neither an object nor an array".into(), "params-not-structured"))
    }
}

fn read(mut input: impl Read) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    input.read_to_end(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1 << 20;

    fn positions(bars: &Bars) -> (u64, u64) {
        (bars.there.position(), bars.back.position())
    }

    #[test]
    fn of_a_message_in_one_frame_the_link_tells_how_far_it_is() {
        let mut bars = Bars::new();
        let (before, at) = (Moved { inward: 100, outward: 200 }, |inward, outward| Moved { inward, outward });
        bars.show_link(before, at(100, 300));
        assert_eq!(positions(&bars), (0, 0));
        bars.sent(9 * MB);
        bars.show_link(before, at(100, 200 + 4 * MB));
        assert_eq!(positions(&bars), (4 * MB, 0));
        // With what frames add, more has gone than the message is long.
        bars.show_link(before, at(100 + 2 * MB, 250 + 9 * MB));
        assert_eq!(positions(&bars), (9 * MB, 2 * MB));
    }

    #[test]
    fn of_a_message_in_many_frames_the_machine_tells_how_far_it_is() {
        let mut bars = Bars::new();
        for (subject, done) in [(Subject::Outgoing(Ticket(0)), 2 * MB), (Subject::Incoming(0), MB)] {
            bars.show(Progress { subject, done, total: 3 * MB });
        }
        bars.show_link(Moved::default(), Moved { inward: 8 * MB, outward: 8 * MB });
        assert_eq!(positions(&bars), (2 * MB, MB));
        bars.sent(3 * MB);
        assert_eq!(positions(&bars), (3 * MB, MB));
    }

    #[test]
    fn a_server_that_asks_a_client_gets_an_answer() {
        let owed =
            |text: &'static str| owed(&text.into()).map(|answer| String::from_utf8(answer.to_bytes().into()).unwrap());
        let pong = r#"{"jsonrpc":"2.0","id":"s 1","result":{}}"#;
        assert_eq!(owed(r#"{"jsonrpc":"2.0","id":"s 1","method":"ping"}"#).as_deref(), Some(pong));
        let refused = r#"{"jsonrpc":"2.0","id":2,"error":{"code":-32601,"message":"Method not found"}}"#;
        assert_eq!(owed(r#"{"jsonrpc":"2.0","id":2,"method":"roots/list"}"#).as_deref(), Some(refused));
        for nothing in [r#"{"jsonrpc":"2.0","method":"ping"}"#, r#"{"jsonrpc":"2.0","id":1,"result":{}}"#, "[]"] {
            assert_eq!(owed(nothing), None);
        }
    }

    #[test]
    fn a_request_keeps_its_params_byte_for_byte() {
        assert_eq!(&request("ping", None)[..], br#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#);
        let params = params(None, Some("-".into()), &b"\n { \"n\" : 1.0e2 }\n"[..]).unwrap();
        let request = request("a\"b", params.as_deref());
        assert_eq!(&request[..], br#"{"jsonrpc":"2.0","id":1,"method":"a\"b","params":{ "n" : 1.0e2 }}"#);
    }

    #[test]
    fn params_that_are_no_params_are_refused() {
        for (text, want) in [
            (&b"{"[..], "params in standard input: EOF while parsing an object at line 1 column 1 [params-not-json]"),
            (b"{} {}", "params in standard input: trailing characters at line 1 column 4 [params-not-json]"),
            (b"{\"a\":\"\xff\"}", "params in standard input: not UTF-8 at byte 6 [params-not-utf8]"),
            (b" 12", "params in standard input: neither an object nor an array [params-not-structured]"),
        ] {
            let error = params(None, Some("-".into()), text).unwrap_err();
            assert_eq!((error.to_string().as_str(), error.status()), (want, 2));
        }
        assert_eq!(params(None, Some("/nowhere/at/all".into()), &b""[..]).unwrap_err().status(), 1);
    }
}
