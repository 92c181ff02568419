//! The host as a program: who is let in, what it says of itself, how it ends and begins again.
#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod prometheus;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use breakbulk_host::log::sqlite::{Options, SqliteLog};
use breakbulk_host::log::{Batch, Log};
use prometheus::Page;
use serde_json::Value;
use tempfile::TempDir;

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

fn breakbulk(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_breakbulk"));
    command.args(args).current_dir(dir).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command
}

fn run(dir: &Path, args: &[&str]) -> Output {
    breakbulk(dir, args).stdin(Stdio::null()).output().unwrap()
}

fn error(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

/// A host on a free port, until it is dropped. Its data is in `data`, its root is the directory around that.
struct Host<'a> {
    dir: &'a Path,
    child: Child,
    url: String,
    token: Option<String>,
}

impl<'a> Host<'a> {
    fn start(dir: &'a Path, more: &[&str]) -> Self {
        let args = [&["serve", "--data", "data", "--listen", "ws://127.0.0.1:0", "--format", "json"], more].concat();
        let mut child = breakbulk(dir, &args).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let ready: Value = serde_json::from_str(&line).expect(&line);
        let token = ready["token"].as_str().map(str::to_owned);
        Self { dir, child, url: ready["ahp"].as_str().unwrap().to_owned(), token }
    }

    /// Host and port.
    fn authority(&self) -> &str {
        self.url.strip_prefix("ws://").unwrap().split('/').next().unwrap()
    }

    /// Sends a request over AHP; the cap makes it introduce itself.
    fn ask(&self, url: &str, method: &str, params: Option<&str>) -> Output {
        let url = format!("{url}{}cap=65536", if url.contains('?') { '&' } else { '?' });
        let mut args = vec!["send", &url, "--method", method];
        args.extend(params.iter().flat_map(|_| ["--params-file", "-"]));
        let mut child = breakbulk(self.dir, &args).spawn().unwrap();
        child.stdin.take().unwrap().write_all(params.unwrap_or_default().as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    }

    /// What it answers to a request by plain HTTP: the status, and all of the answer.
    fn http(&self, target: &str, lines: &str) -> (u16, String) {
        let (mut stream, mut answer) = (self.connect(target, lines), Vec::new());
        // A WebSocket stays open: its head is enough.
        let mut byte = [0];
        while !answer.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap() > 0 {
            answer.push(byte[0]);
        }
        if !answer.starts_with(b"HTTP/1.1 101") {
            stream.read_to_end(&mut answer).unwrap();
        }
        let answer = String::from_utf8(answer).unwrap();
        (answer["HTTP/1.1 ".len()..][..3].parse().unwrap(), answer)
    }

    fn connect(&self, target: &str, lines: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.authority()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let host = if lines.contains("Host:") { String::new() } else { format!("Host: {}\r\n", self.authority()) };
        let close = if lines.contains("Connection:") { "" } else { "Connection: close\r\n" };
        write!(stream, "GET {target} HTTP/1.1\r\n{host}{close}{lines}\r\n").unwrap();
        stream
    }

    /// The status of a WebSocket handshake.
    fn knock(&self, target: &str, lines: &str) -> u16 {
        self.http(target, &format!("{UPGRADE}{lines}")).0
    }

    fn metrics(&self) -> Page {
        let (status, answer) = self.http("/metrics", "");
        assert_eq!(status, 200, "{answer}");
        assert!(answer.contains("content-type: text/plain; version=0.0.4"), "{answer}");
        Page::parse(answer.split_once("\r\n\r\n").unwrap().1)
    }

    fn bearer(&self) -> String {
        format!("Authorization: Bearer {}\r\n", self.token.as_deref().unwrap())
    }

    /// Asks it to end; gives its status.
    fn stop(mut self) -> Option<i32> {
        let kill = Command::new("kill").arg(self.child.id().to_string()).status().unwrap();
        assert!(kill.success());
        self.child.wait().unwrap().code()
    }
}

const UPGRADE: &str = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                       Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

impl Drop for Host<'_> {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn place() -> TempDir {
    tempfile::tempdir().unwrap()
}

#[test]
fn it_says_where_it_is_and_the_token_admits() {
    let dir = place();
    let host = Host::start(dir.path(), &[]);
    let bare = host.url.split('?').next().unwrap().to_owned();
    assert!(bare.starts_with("ws://127.0.0.1:") && bare.ends_with("/ahp"), "{bare}");
    assert_eq!(host.url, format!("{bare}?token={}", host.token.as_deref().unwrap()));
    let answer = host.ask(&host.url, "ping", None);
    assert!(answer.status.success(), "{answer:?}");
    for url in [bare.clone(), format!("{bare}?token={TOKEN}")] {
        let refused = host.ask(&url, "ping", None);
        assert_eq!(refused.status.code(), Some(1), "{refused:?}");
        assert!(error(&refused).contains("401"), "{refused:?}");
    }
    let root = host.ask(&host.url, "subscribe", Some(r#"{"channel":"ahp-root://"}"#));
    let root: Value = serde_json::from_slice(&root.stdout).unwrap();
    assert_eq!(root["snapshot"]["resource"], "ahp-root://", "{root}");
}

#[test]
fn strangers_pages_and_names_stay_outside_and_there_is_one_path() {
    let dir = place();
    let host = Host::start(dir.path(), &["--allow-origin", "https://chat.example"]);
    let bearer = host.bearer();
    assert_eq!(host.knock("/ahp", &bearer), 101);
    assert_eq!(host.knock("/ahp", ""), 401);
    assert_eq!(host.knock("/ahp", "Authorization: Bearer x\r\n"), 401);
    assert_eq!(host.knock("/ahp", &format!("Origin: https://evil.example\r\n{bearer}")), 403);
    assert_eq!(host.knock("/ahp", &format!("Origin: https://chat.example\r\n{bearer}")), 101);
    assert_eq!(host.knock("/ahp", &format!("Host: evil.example\r\n{bearer}")), 421);
    for target in ["/", "/ahp/", "/healthz", "/x"] {
        assert_eq!(host.knock(target, &bearer), 404, "{target}");
    }
    for (target, status) in [
        ("/", 200),
        ("/ahp", 426),
        ("/v2", 426),
        ("/content/file/x", 401),
        ("/x", 404),
        ("/healthz", 200),
        ("/metrics", 200),
    ] {
        assert_eq!(host.http(target, "").0, status, "{target}");
        assert_eq!(host.http(target, "Host: evil.example\r\n").0, 421, "{target}");
        assert_eq!(host.http(target, "Origin: https://evil.example\r\n").0, 403, "{target}");
    }
}

#[test]
fn health_is_told_to_anyone_and_says_no_more_than_names() {
    let dir = place();
    let host = Host::start(dir.path(), &[]);
    let (status, answer) = host.http("/healthz", "");
    assert_eq!(status, 200, "{answer}");
    let told: Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
    let want = serde_json::json!({ "status": "ok", "checks": { "log": "ok", "agent:demo": "ok" } });
    assert_eq!(told, want);
}

#[test]
fn metrics_are_well_formed_and_count_what_passes() {
    let dir = place();
    let host = Host::start(dir.path(), &["--max-frame-bytes", "64KiB"]);
    let before = host.metrics();
    assert_eq!(before.value("breakbulk_connections_total", &[]), Some(0.0));
    let params = format!("{{\"text\":\"{}\"}}", "y".repeat(300_000));
    let answer = host.ask(&host.url, "ping", Some(&params));
    assert!(answer.status.success(), "{answer:?}");
    // A segment before anybody was told that we take any, in a frame whose mask changes nothing.
    let mut outlaw = host.connect(&format!("/ahp?token={}", host.token.as_deref().unwrap()), UPGRADE);
    let segment = br#"{"jsonrpc":"2.0","method":"ahp/messageSegment","params":{}}"#;
    outlaw.write_all(&[&[0x81, 0x80 | segment.len() as u8, 0, 0, 0, 0], &segment[..]].concat()).unwrap();
    outlaw.read_to_end(&mut Vec::new()).unwrap();
    let after = host.metrics();
    let (inward, total) = (&[("direction", "in")][..], |name: &str| after.value(name, &[]));
    assert_eq!(after.value("breakbulk_groups_total", inward), Some(1.0));
    assert!(after.value("breakbulk_segments_total", inward) > Some(5.0));
    assert!(after.value("breakbulk_frame_bytes_total", inward) > Some(400_000.0));
    assert!(after.value("breakbulk_messages_total", &[("direction", "out")]) >= Some(2.0));
    assert!(after.value("breakbulk_connection_ends_total", &[("reason", "close-peer")]) >= Some(1.0));
    assert_eq!(total("breakbulk_connections_total"), Some(2.0));
    let broken = &after.0["breakbulk_violations_total"].samples;
    assert!(broken.len() == 1 && broken[0].2 == 1.0, "{broken:?}");
    assert_eq!(total("breakbulk_unsent_bytes"), Some(0.0));
    for name in ["breakbulk_state_bytes", "breakbulk_log_store_bytes", "breakbulk_log_commit_seconds"] {
        assert!(after.0.contains_key(name), "{name}");
    }
}

#[test]
fn who_has_not_said_who_they_are_cannot_even_begin_a_long_frame() {
    let dir = place();
    let host = Host::start(dir.path(), &[]);
    let mut stranger = host.connect(&format!("/ahp?token={}", host.token.as_deref().unwrap()), UPGRADE);
    // The header of a frame of 70,000 bytes, and not one of them.
    stranger.write_all(&[&[0x81, 0xff][..], &70_000_u64.to_be_bytes(), &[0; 4]].concat()).unwrap();
    let mut told = Vec::new();
    stranger.read_to_end(&mut told).unwrap();
    let close = told.windows(4).rev().find(|four| four[0] == 0x88).unwrap();
    assert_eq!(u16::from_be_bytes([close[2], close[3]]), 1009);
}

#[test]
fn without_a_token_messages_may_be_long_too() {
    let dir = place();
    let host = Host::start(dir.path(), &["--no-auth"]);
    let params = format!("{{\"text\":\"{}\"}}", "y".repeat(3_000_000));
    let answer = host.ask(&host.url, "ping", Some(&params));
    assert!(answer.status.success(), "{}", error(&answer));
}

#[test]
fn it_ends_when_asked_and_begins_again_with_its_log() {
    let dir = place();
    let host = Host::start(dir.path(), &[]);
    let waiting = host.connect(&format!("/ahp?token={}", host.token.as_deref().unwrap()), UPGRADE);
    assert_eq!(host.stop(), Some(0), "a client that is there does not hold it up");
    drop(waiting);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let last = runtime.block_on(async {
        let log = SqliteLog::open(dir.path().join("data"), Options::default()).await.unwrap();
        let batch = Batch::new().open("test:/1", None).entry("test:/1", r#"{"n":1}"#).entry("test:/1", r#"{"n":2}"#);
        let seqs = log.append(batch).await.unwrap();
        log.close().await;
        *seqs.last().unwrap()
    });
    let again = Host::start(dir.path(), &[]);
    assert!(again.metrics().value("breakbulk_state_seq", &[]).unwrap() >= last as f64);
    let shown = run(dir.path(), &["log", "show", "test:/1", "--data", "data"]);
    assert!(String::from_utf8_lossy(&shown.stdout).contains(r#"{"n":2}"#), "{shown:?}");
    assert_eq!(again.stop(), Some(0));
}

#[test]
fn it_begins_again_at_once_after_it_was_killed() {
    let dir = place();
    for _ in 0..3 {
        let mut host = Host::start(dir.path(), &[]);
        host.child.kill().unwrap();
        // Nobody waits until it is gone.
        std::mem::forget(host);
    }
    let host = Host::start(dir.path(), &[]);
    assert!(host.ask(&host.url, "ping", None).status.success());
    assert_eq!(host.stop(), Some(0));
}

#[test]
fn data_has_one_host_at_a_time() {
    let dir = place();
    let _host = Host::start(dir.path(), &[]);
    for args in [&["serve", "--listen", "ws://127.0.0.1:0"][..], &["log", "compact"], &["log", "erase", "x", "--yes"]] {
        let second = run(dir.path(), &[args, &["--data", "data"]].concat());
        assert_eq!(second.status.code(), Some(1), "{second:?}");
        let want = "breakbulk: data is in use by another host: stop it first, or name another directory\n";
        assert_eq!(error(&second), want);
    }
}

#[test]
fn one_connection_too_many_is_told_to_come_later() {
    let dir = place();
    let host = Host::start(dir.path(), &["--max-connections", "1", "--token", TOKEN]);
    let mut first = host.connect(&format!("/ahp?token={TOKEN}"), UPGRADE);
    first.read_exact(&mut [0; 12]).unwrap();
    let second = host.ask(&host.url, "ping", None);
    assert_eq!(second.status.code(), Some(4), "{second:?}");
    assert!(error(&second).contains("1013"), "{second:?}");
    drop(first);
    let served = (0..50).any(|_| {
        std::thread::sleep(Duration::from_millis(100));
        host.ask(&host.url, "ping", None).status.success()
    });
    assert!(served, "there is room again");
}

#[test]
fn people_are_shown_a_token_that_was_made_and_not_their_own() {
    let dir = place();
    let first_lines = |more: &[&str]| {
        let args = [&["serve", "--data", "data", "--listen", "ws://127.0.0.1:0", "-q"], more].concat();
        let mut child = breakbulk(dir.path(), &args).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let two = (lines.next().unwrap().unwrap(), lines.next().unwrap().unwrap());
        child.kill().unwrap();
        child.wait().unwrap();
        two
    };
    let (page, made) = first_lines(&[]);
    assert!(page.starts_with("breakbulk: page at http://127.0.0.1:") && page.contains("/#token="), "{page}");
    assert!(made.starts_with("breakbulk: listening on ws://127.0.0.1:"), "{made}");
    assert!(made.contains("/ahp#token="), "{made}");
    let (page, own) = first_lines(&["--token", TOKEN]);
    assert!(own.trim_end().ends_with("/ahp") && !own.contains(TOKEN), "{own}");
    assert!(page.trim_end().ends_with('/') && !page.contains(TOKEN), "{page}");
}

#[test]
fn the_address_that_is_printed_works_as_it_is_in_send_and_tap() {
    let dir = place();
    let printed = |child: &mut Child| {
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
        lines.find_map(|line| line.strip_prefix("breakbulk: listening on ").map(str::to_owned)).unwrap()
    };
    let args = ["serve", "--data", "data", "--listen", ":0", "-q"];
    let mut host = breakbulk(dir.path(), &args).spawn().unwrap();
    let address = printed(&mut host);
    let mut tap = breakbulk(dir.path(), &["tap", &address, "-q"]).spawn().unwrap();
    let tapped = printed(&mut tap);
    assert!(
        address.starts_with("ws://127.0.0.1:") && tapped.contains("#token=") && tapped != address,
        "{address} {tapped}"
    );
    let list = ["--method", "listSessions", "--params", r#"{"channel":"ahp-root://"}"#];
    let direct = run(dir.path(), &[&["send", &*address], &list[..]].concat());
    assert!(direct.status.success(), "{direct:?}");
    // What a tap prints has no path: it is taken to where the tap was told.
    let through = run(dir.path(), &[&["send", &*tapped, "--dialect", "ahp"], &list[..]].concat());
    assert!(through.status.success(), "{through:?}");
    for mut child in [tap, host] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

#[test]
fn of_terminals_that_were_disposed_of_the_next_start_says_nothing() {
    let (dir, root) = (place(), place());
    let root = ["--root", root.path().to_str().unwrap()];
    let host = Host::start(dir.path(), &root);
    let terminal = r#"{"channel":"ahp-terminal:/1","claim":{"kind":"client","clientId":"breakbulk-send"}}"#;
    for method in ["createTerminal", "disposeTerminal"] {
        let answer = host.ask(&host.url, method, Some(terminal));
        assert!(answer.status.success(), "{answer:?}");
    }
    assert_eq!(host.stop(), Some(0));
    let args = ["serve", "--data", "data", "--listen", "ws://127.0.0.1:0", "--log-level", "warn"];
    let mut child = breakbulk(dir.path(), &[&args[..], &root].concat()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    let (page, line) = (lines.next().unwrap(), lines.next().unwrap());
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(page.starts_with("breakbulk: page at "), "{page}");
    assert!(line.starts_with("breakbulk: listening on "), "{line}");
}

#[test]
fn a_host_without_a_lock_says_so() {
    let dir = place();
    let host = Host::start(dir.path(), &["--no-auth"]);
    assert_eq!((host.token.as_deref(), host.url.contains('?')), (None, false));
    assert!(host.ask(&host.url, "ping", None).status.success());
}

#[test]
fn what_does_not_hold_is_one_line_and_status_2() {
    let dir = place();
    for (args, want) in [
        (&["--max-calls", "0"][..], "max_calls is \"0\" (flag --max-calls): allowed is a whole number of 1 or more"),
        (
            &["--max-hello", "64Q"],
            "max_hello is \"64Q\" (flag --max-hello): not a number of bytes; allowed are such as",
        ),
        (&["--keep-for", "soon"], "keep_for is \"soon\" (flag --keep-for): allowed is a whole number and a unit"),
        (
            &["--agent", "other"],
            "agent is \"other\" (flag --agent): allowed are demo, claude, claude:COMMAND, acp:COMMAND",
        ),
        (&["--agent", "acp:"], "agent is \"acp:\" (flag --agent): acp needs a command, such as acp:'opencode acp'"),
        (&["--root", "nowhere"], "root is \"nowhere\" (flag --root): nowhere: "),
        (
            &["--listen", "unix:s"],
            "listen is \"unix:s\" (flag --listen): allowed are ws://HOST:PORT and wss://HOST:PORT",
        ),
        (&["--max-frame-bytes", "10"], "max_frame is \"10\" (flag --max-frame): allowed are 512 to 4294967295 bytes"),
        (
            &["--listen", "ws://127.0.0.1:0?dialect=stdio"],
            "listen is \"ws://127.0.0.1:0/?dialect=stdio\" (flag --listen): allowed is the dialect ahp, or none",
        ),
        (&["--token", "short"], "token is \"(set)\" (flag --token): a token has 16 to 1,024 characters, not 5"),
        (&["--no-auth", "--token", TOKEN], "token (flag --token) and no_auth (flag --no-auth) cannot be used together"),
    ] {
        let mut command = breakbulk(dir.path(), &[&["serve", "--data", "data"], args].concat());
        let output = command.env("BREAKBULK_LISTEN", "ws://127.0.0.1:0").stdin(Stdio::null()).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let text = error(&output).strip_prefix("breakbulk: ").unwrap();
        assert!(text.starts_with(want) && text.lines().count() == 1, "{text}");
    }
    let remote = run(dir.path(), &["serve", "--data", "data", "--listen", "ws://0.0.0.0:0"]);
    assert_eq!(remote.status.code(), Some(2));
    assert!(error(&remote).contains("can be reached from other machines"), "{}", error(&remote));
    let homeless = run(dir.path(), &["serve"]);
    let want = "breakbulk: data is not set: give --data, BREAKBULK_DATA, or data in the file\n";
    assert_eq!((homeless.status.code(), error(&homeless)), (Some(2), want));
}

#[cfg(target_os = "linux")]
#[test]
fn a_service_manager_hears_when_clients_can_come_and_when_the_end_begins() {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};

    let dir = place();
    let path = dir.path().join("notify");
    let name = format!("breakbulk-test-{}", std::process::id());
    let abstract_socket = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    let sockets = [
        (path.to_str().unwrap().to_owned(), UnixDatagram::bind(&path).unwrap()),
        (format!("@{name}"), abstract_socket),
    ];
    for (named, socket) in sockets {
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let hear = || {
            let mut buffer = [0; 64];
            let length = socket.recv(&mut buffer).unwrap();
            String::from_utf8(buffer[..length].to_vec()).unwrap()
        };
        let args = ["serve", "--data", "data", "--listen", "ws://127.0.0.1:0"];
        let mut child =
            breakbulk(dir.path(), &args).stderr(Stdio::null()).env("NOTIFY_SOCKET", &named).spawn().unwrap();
        assert_eq!(hear(), "READY=1", "{named}");
        assert!(Command::new("kill").arg(child.id().to_string()).status().unwrap().success());
        assert_eq!(hear(), "STOPPING=1", "{named}");
        assert_eq!(child.wait().unwrap().code(), Some(0));
    }
}
