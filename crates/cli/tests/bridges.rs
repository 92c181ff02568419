//! A bridge among others and among many clients: how many come in, what it says of itself, several in one process.
#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod prometheus;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::time::{Duration, Instant};

use prometheus::Page;
use serde_json::{Value, json};

/// Answers each line with its own process id.
const SERVER: &str =
    r#"exec:sh -c 'while read -r line; do echo "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"pid\":$$}}"; done'"#;
/// Nobody is there.
const NOBODY: &str = "unix:/nowhere/at/all";

fn breakbulk(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_breakbulk"));
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command
}

fn run(args: &[&str]) -> Output {
    breakbulk(args).stdin(Stdio::null()).output().unwrap()
}

/// The program, until it is dropped.
struct Running {
    child: Child,
    errors: BufReader<ChildStderr>,
    /// Where it listens, one for each line that says so.
    urls: Vec<String>,
}

impl Running {
    fn start(args: &[&str], listeners: usize) -> Self {
        let mut child = breakbulk(args).spawn().unwrap();
        let mut errors = BufReader::new(child.stderr.take().unwrap());
        let mut urls = Vec::new();
        while urls.len() < listeners {
            let mut line = String::new();
            assert!(errors.read_line(&mut line).unwrap() > 0, "it has ended: {urls:?}");
            urls.extend(line.trim().split_once("listening on ").map(|(_, url)| url.to_owned()));
        }
        Self { child, errors, urls }
    }

    fn signal(&self) {
        assert!(Command::new("kill").arg(self.child.id().to_string()).status().unwrap().success());
    }

    /// Asks it to end; its status, and what it logged until then.
    fn stop(mut self) -> (Option<i32>, String) {
        self.signal();
        let mut rest = String::new();
        self.errors.read_to_string(&mut rest).unwrap();
        (self.child.wait().unwrap().code(), rest)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Status and body of a page.
fn get(url: &str, path: &str) -> (u16, String) {
    let authority = url.strip_prefix("ws://").unwrap().split(['/', '#']).next().unwrap();
    let mut stream = TcpStream::connect(authority).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {authority}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head["HTTP/1.1 ".len()..][..3].parse().unwrap(), body.to_owned())
}

/// A client that stays.
struct Client(Child);

impl Client {
    fn of(url: &str) -> Self {
        let mut child = breakbulk(&["bridge", "-q", "--listen", "stdio:", "--connect", url]).spawn().unwrap();
        let request = "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"m\"}\n";
        child.stdin.as_mut().unwrap().write_all(request.as_bytes()).unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert!(line.contains("pid"), "{line}");
        Self(child)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

#[test]
fn one_client_too_many_is_told_so_by_name_and_counted_and_the_log_is_not_filled() {
    let args = ["bridge", "--no-auth", "--listen", ":0", "--connect", SERVER, "--max-connections", "2"];
    let bridge = Running::start(&args, 1);
    let url = &bridge.urls[0];
    let clients = [Client::of(url), Client::of(url)];
    for _ in 0..5 {
        let refused = run(&["send", url, "--method", "m"]);
        let text = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(4), "{refused:?}");
        assert!(text.contains("1013"), "{text}");
    }
    let (status, body) = get(url, "/metrics");
    assert_eq!(status, 200, "{body}");
    let page = Page::parse(&body);
    assert_eq!(page.value("breakbulk_connections", &[]), Some(2.0));
    assert_eq!(page.value("breakbulk_connections_total", &[]), Some(2.0));
    assert_eq!(page.value("breakbulk_connections_refused_total", &[]), Some(5.0));
    assert_eq!(page.value("breakbulk_events_total", &[("name", "too-many-clients")]), Some(5.0));
    assert_eq!(page.value("breakbulk_bridge_messages_total", &[("to", "host")]), Some(2.0));
    assert!(page.value("breakbulk_bridge_message_bytes_total", &[("to", "clients")]) > Some(50.0), "{body}");
    // There is room again when one has left.
    let [first, _second] = clients;
    drop(first);
    let begun = Instant::now();
    while !run(&["send", url, "--method", "m"]).status.success() {
        assert!(begun.elapsed() < Duration::from_secs(60), "nobody is let in any more");
    }
    let (_, log) = bridge.stop();
    let warnings = log.lines().filter(|line| line.contains("too many clients")).count();
    assert!((1..=3).contains(&warnings) && log.contains("max_connections"), "{log}");
    // Those that came soon after others are told, too.
    let refused = log.split("refused=").skip(1).filter_map(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    assert!(refused.sum::<u64>() >= 5, "{log}");
}

#[test]
fn a_bridge_says_how_it_is_to_anyone_and_what_it_does_to_who_may_know() {
    let bridge = Running::start(&["bridge", "--listen", ":0/agent", "--connect", NOBODY], 1);
    let url = &bridge.urls[0];
    assert_eq!(get(url, "/healthz"), (200, "{\"status\":\"ok\",\"checks\":{\"host\":\"ok\"}}\n".to_owned()));
    // We are on the same machine. Others need the token; that rule is tested where pages are.
    assert_eq!(get(url, "/metrics").0, 200);
    assert_eq!((get(url, "/agent").0, get(url, "/").0), (426, 404));
    assert_eq!(run(&["send", url, "--method", "m"]).status.code(), Some(4));
    // What was seen a moment ago is told again.
    let begun = Instant::now();
    let ill = (503, "{\"status\":\"failed\",\"checks\":{\"host\":\"failed\"}}\n".to_owned());
    while get(url, "/healthz") != ill {
        assert!(begun.elapsed() < Duration::from_secs(60), "it does not notice");
    }
    let page = Page::parse(&get(url, "/metrics").1);
    assert_eq!(page.value("breakbulk_host_up", &[]), Some(0.0));
    assert_eq!(page.value("breakbulk_host_unreachable_total", &[]), Some(1.0));
}

fn config(dir: &Path, text: &str) -> String {
    let path = dir.join("bridges.toml");
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn several_bridges_are_one_process_and_each_has_its_own_settings() {
    let dir = tempfile::tempdir().unwrap();
    let text = format!(
        "no_auth = true\nconnect = '''{SERVER}'''\n\n[[bridge]]\nname = 'one'\nlisten = ':0'\n\n\
         [[bridge]]\nlisten = ':0'\nmax_connections = 1\n"
    );
    let file = config(dir.path(), &text);
    let bridges = Running::start(&["bridge", "--config", &file], 2);
    assert_ne!(bridges.urls[0], bridges.urls[1]);
    for url in &bridges.urls {
        let sent = run(&["send", url, "--method", "m"]);
        assert!(sent.status.success(), "{sent:?}");
    }
    let (_stays, _stays_too) = (Client::of(&bridges.urls[0]), Client::of(&bridges.urls[1]));
    assert!(run(&["send", &bridges.urls[0], "--method", "m"]).status.success());
    assert_eq!(run(&["send", &bridges.urls[1], "--method", "m"]).status.code(), Some(4));
    let (status, log) = bridges.stop();
    assert_eq!(status, Some(0), "{log}");
    assert!(log.contains("one") && log.contains("bridge"), "{log}");
}

#[test]
fn a_bridge_that_cannot_begin_names_itself() {
    let dir = tempfile::tempdir().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    for (second, status, want) in [
        (format!("listen = ':{port}'\nconnect = 'exec:cat'"), 1, "bridge \"two\": cannot listen on 127.0.0.1:"),
        ("listen = ':0'".to_owned(), 2, "bridge \"two\": connect is not set"),
        ("listen = ':0'\nconnect = 'exec:cat'\ncap = 1".to_owned(), 2, "bridge \"two\": cap is \"1\" (file "),
    ] {
        let text = format!("[[bridge]]\nlisten = ':0'\nconnect = 'exec:cat'\n[[bridge]]\nname = 'two'\n{second}\n");
        let output = run(&["bridge", "-q", "--config", &config(dir.path(), &text)]);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(status), "{errors}");
        assert!(errors.lines().last().unwrap().starts_with(&format!("breakbulk: {want}")), "{errors}");
    }
    let both =
        "[[bridge]]\nlisten = 'stdio:'\nconnect = 'exec:cat'\n[[bridge]]\nlisten = 'exec:cat'\nconnect = 'stdio:'\n";
    let output = run(&["bridge", "--config", &config(dir.path(), both)]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let one = config(dir.path(), "[[bridge]]\nlisten = ':0'\nconnect = 'exec:cat'\n");
    let output = run(&["bridge", "--config", &one, "--listen", ":1"]);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(errors.starts_with("breakbulk: bridge \"1\": listen (flag --listen) would hold for each"), "{errors}");
}

#[test]
fn config_shows_each_bridge_with_what_is_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let text = "cap = '1M'\n[[bridge]]\nname = 'mcp'\nlisten = ':7'\nconnect = 'exec:cat'\n";
    let file = config(dir.path(), text);
    let table = String::from_utf8(run(&["config", "--config", &file]).stdout).unwrap();
    let (_, bridge) = table.split_once("\n\n[[bridge]]").expect(&table);
    let rows: Vec<Vec<&str>> = bridge.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["mcp"]);
    assert_eq!(
        (rows[1][0], rows[1][1], rows[2][0], rows.len()),
        ("listen", "ws://127.0.0.1:7/", "connect", 3),
        "{table}"
    );
    let objects: Vec<Value> = serde_json::from_slice(&run(&["config", "--config", &file, "--json"]).stdout).unwrap();
    let own: Vec<_> = objects.iter().filter(|object| object["bridge"] == "mcp").collect();
    assert_eq!((own.len(), &own[1]["value"]), (2, &json!("exec:cat")));
    assert!(objects.iter().any(|object| object["key"] == "cap" && object["bridge"].is_null()));
}
