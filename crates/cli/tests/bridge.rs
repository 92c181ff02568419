//! The program between real processes: pipes and sockets, plain and in segments.
#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Output, Stdio};

/// Answers each line with a result of 300,000 letters, whatever it asks. Its requests all have the id 1.
const SERVER: &str = r#"exec:sh -c 'big=$(head -c 300000 /dev/zero | tr "\\0" x); while read -r line; do echo "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"protocolVersion\":\"1.0.0\",\"length\":${#line},\"text\":\"$big\"}}"; done'"#;

const REQUEST: &str = r#"{"jsonrpc":"2.0","id":1,"method":"m"}"#;

fn breakbulk(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_breakbulk"));
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.env("XDG_CONFIG_HOME", "/nowhere/at/all");
    command
}

/// Runs it with this input.
fn run(args: &[&str], input: &str) -> Output {
    let mut child = breakbulk(args).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn text(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

/// A bridge that listens, until it is dropped.
struct Bridge {
    child: Child,
    url: String,
    errors: BufReader<std::process::ChildStderr>,
}

impl Bridge {
    fn start(listen: &str, connect: &str, more: &[&str]) -> Self {
        let args = [&["bridge", "--listen", listen, "--connect", connect, "--no-auth"], more].concat();
        let mut child = breakbulk(&args).spawn().unwrap();
        let mut errors = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        errors.read_line(&mut line).unwrap();
        let url = line.trim().strip_prefix("breakbulk: listening on ").expect(&line).to_owned();
        Self { child, url, errors }
    }

    /// Asks it to end; gives its status.
    fn stop(mut self) -> Option<i32> {
        self.rest_of_log();
        self.child.wait().unwrap().code()
    }

    /// Asks it to end; gives what it logged until then.
    fn rest_of_log(&mut self) -> String {
        let kill = Command::new("kill").arg(self.child.id().to_string()).status().unwrap();
        assert!(kill.success());
        let mut rest = String::new();
        self.errors.read_to_string(&mut rest).unwrap();
        rest
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[test]
fn chunked_stdio_goes_in_front_of_any_server_and_the_end_of_input_loses_no_answer() {
    let output = run(&["bridge", "--listen", "stdio:?dialect=stdio", "--connect", SERVER], &format!("{REQUEST}\n"));
    assert!(output.status.success(), "{output:?}");
    let frames: Vec<&str> = text(&output).lines().collect();
    assert_eq!(frames.len(), 5);
    assert!(frames.iter().all(|frame| frame.len() < 61_440));
    let joined = run(&["join", "--dialect", "stdio"], text(&output));
    assert!(text(&joined).starts_with(r#"{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"1.0.0","length":37,"#));
    assert_eq!(joined.stdout.len(), 300_084);
}

/// Takes its time to answer, and writes ids last. First it asks something itself, and says in the answer what it heard.
const THOUGHTFUL: &str = r#"exec:sh -c 'read -r line; echo "{\"method\":\"roots/list\",\"jsonrpc\":\"2.0\",\"id\":9}"; read -r heard; sleep 0.3; big=$(head -c 9000 /dev/zero | tr "\\0" x); echo "{\"result\":{\"text\":\"$big\",\"length\":${#line},\"heard\":$heard},\"jsonrpc\":\"2.0\",\"id\":1}"; cat > /dev/null'"#;

#[test]
fn a_request_counts_as_one_wherever_its_id_stands_and_nobody_waits_for_a_client_that_sends_nothing_more() {
    let request = format!(r#"{{"method":"m","params":{{"text":"{}"}},"jsonrpc":"2.0","id":1}}"#, "x".repeat(9000));
    let output = run(&["bridge", "--listen", "stdio:", "--connect", THOUGHTFUL], &format!("{request}\n"));
    assert!(output.status.success(), "{output:?}");
    let lines: Vec<serde_json::Value> = text(&output).lines().map(|line| line.parse().unwrap()).collect();
    let [question, answer] = &lines[..] else { panic!("{lines:?}") };
    assert_eq!((&question["method"], &answer["id"]), (&"roots/list".into(), &1.into()));
    assert_eq!(answer["result"]["length"], request.len());
    assert_eq!(answer["result"]["heard"]["error"]["data"]["reason"], "send-disconnected");
}

#[test]
fn plain_lines_are_restored_for_a_client_that_cannot_chunk() {
    let inner = format!(
        "{} bridge --listen stdio:?dialect=stdio --connect {}",
        env!("CARGO_BIN_EXE_breakbulk"),
        shell_words(SERVER)
    );
    let outer = format!("exec:?dialect=stdio {inner}");
    let output = run(&["bridge", "--listen", "stdio:", "--connect", &outer], &format!("{REQUEST}\n"));
    assert!(output.status.success(), "{output:?}");
    assert_eq!((text(&output).lines().count(), output.stdout.len()), (1, 300_084));
}

#[test]
fn a_request_of_megabytes_goes_through_two_bridges_in_small_frames() {
    let host = Bridge::start("ws://127.0.0.1:0", SERVER, &[]);
    let sidecar = Bridge::start("ws://127.0.0.1:0?cap=65536", &host.url, &[]);
    let params = format!("{{\"text\":\"{}\"}}", "y".repeat(3_000_000));
    let url = format!("{}?cap=65536", sidecar.url);
    let output = run(&["send", &url, "--method", "m", "--params-file", "-"], &params);
    assert!(output.status.success(), "{output:?}");
    assert!(text(&output).starts_with(r#"{"protocolVersion":"1.0.0","length":30000"#), "{:.80}", text(&output));
    assert_eq!((sidecar.stop(), host.stop()), (Some(0), Some(0)));
}

#[test]
fn a_listener_needs_a_token_and_says_so() {
    let mut child = breakbulk(&["bridge", "--listen", "ws://127.0.0.1:0", "--connect", SERVER]).spawn().unwrap();
    let mut errors = BufReader::new(child.stderr.take().unwrap()).lines();
    let printed = errors.next().unwrap().unwrap().replace("breakbulk: listening on ", "");
    let (url, token) = printed.split_once("#token=").expect(&printed);
    let without = run(&["send", url, "--method", "m"], "");
    assert_eq!(without.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&without.stderr).contains("401"), "{without:?}");
    for address in [format!("{url}?token={token}"), printed.clone()] {
        let with = run(&["send", &address, "--method", "m"], "");
        assert!(with.status.success(), "{with:?}");
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_path_in_the_listening_address_is_the_only_one() {
    let bridge = Bridge::start("ws://127.0.0.1:0/agent", SERVER, &[]);
    let place = bridge.url.strip_suffix("/agent").expect(&bridge.url);
    let elsewhere = run(&["send", &format!("{place}/other"), "--method", "m"], "");
    assert!(String::from_utf8_lossy(&elsewhere.stderr).contains("404"), "{elsewhere:?}");
    let there = run(&["send", &bridge.url, "--method", "m"], "");
    assert!(there.status.success(), "{there:?}");
    assert_eq!(bridge.stop(), Some(0));
}

#[test]
fn a_host_is_asked_for_the_subprotocol_that_its_client_was_granted() {
    let host = TcpListener::bind("127.0.0.1:0").unwrap();
    let bridge = Bridge::start("ws://127.0.0.1:0", &format!("ws://{}", host.local_addr().unwrap()), &[]);
    let place = bridge.url.strip_prefix("ws://").unwrap();
    let mut client = TcpStream::connect(place).unwrap();
    let handshake = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
        Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: ahp.v1, other\r\n";
    write!(client, "GET / HTTP/1.1\r\nHost: {place}\r\n{handshake}\r\n").unwrap();
    let lines = BufReader::new(host.accept().unwrap().0).lines();
    let head: Vec<String> = lines.map(Result::unwrap).take_while(|line| !line.is_empty()).collect();
    assert!(head.contains(&"Sec-Websocket-Protocol: ahp.v1".to_owned()), "{head:?}");
}

#[test]
fn a_client_may_be_a_command() {
    let dir = tempfile::tempdir().unwrap();
    let heard = dir.path().join("heard");
    let script = format!(r#"echo "$0"; read -r line; echo "$line" > {}"#, heard.display());
    let listen = format!("exec:sh -c {} {}", shell_words(&script), shell_words(REQUEST));
    let output = run(&["bridge", "--listen", &listen, "--connect", SERVER], "");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(std::fs::read_to_string(heard).unwrap().len(), 300_084);
}

#[test]
fn a_host_that_breaks_a_rule_is_told_from_one_that_is_gone() {
    let segment = r#"{"jsonrpc":"2.0","method":"ahp/messageSegment","params":{}}"#;
    let script = format!("read -r line; echo {}; cat > /dev/null", shell_words(segment));
    let connect = format!("exec:?dialect=ahp&cap=65536 sh -c {}", shell_words(&script));
    let output = run(&["bridge", "--listen", "stdio:", "--connect", &connect], &format!("{REQUEST}\n"));
    assert_eq!(output.status.code(), Some(3), "{output:?}");
}

#[test]
fn a_host_that_is_silent_for_too_long_is_given_up() {
    let host = Bridge::start("ws://127.0.0.1:0", SERVER, &[]);
    let args = ["--ping-interval", "200ms", "--idle-timeout", "1s"];
    let args = [&["bridge", "--listen", "stdio:", "--connect", &host.url], &args[..]].concat();
    let mut child = breakbulk(&args).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    writeln!(input, "{REQUEST}").unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.next().unwrap().unwrap().starts_with(r#"{"jsonrpc":"2.0","id":1,"result":"#));
    assert!(Command::new("kill").args(["-s", "STOP", &host.child.id().to_string()]).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(4));
}

#[test]
fn a_tap_prints_for_people_unless_told_otherwise() {
    let mut child = breakbulk(&["tap", SERVER]).env("BREAKBULK_NO_AUTH", "true").spawn().unwrap();
    let mut errors = BufReader::new(child.stderr.take().unwrap()).lines();
    let url = errors.next().unwrap().unwrap().replace("breakbulk: listening on ", "");
    let sent = run(&["send", &url, "--method", "m"], "");
    assert!(sent.status.success(), "{sent:?}");
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().take(3);
    let words: Vec<Vec<String>> =
        lines.map(|line| line.unwrap().split_whitespace().map(str::to_owned).collect()).collect();
    assert_eq!(words[0], ["TIME", "CLIENT", "MESSAGE", "ID", "SIZE", "SEGMENTS", "TOOK", "LATENCY"]);
    assert_eq!(words[1][1..7], ["1", "→", "m", "1", "37", "B"]);
    assert_eq!(words[2][1..9], ["1", "←", "answer", "to", "m", "1", "300.1", "kB"]);
    for line in &words[1..] {
        assert!(line[0].len() == "12:34:56.789Z".len() && line[0].ends_with('Z'), "{line:?}");
    }
    // In one segment, in some time, and after some time.
    assert_eq!((words[1].len(), words[2].len()), (1 + 6 + 3, 1 + 8 + 5), "{words:?}");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_tap_prints_a_line_for_each_message() {
    let mut child = breakbulk(&["tap", "--listen", "ws://127.0.0.1:0?cap=65536", SERVER, "--json"])
        .env("BREAKBULK_NO_AUTH", "true")
        .spawn()
        .unwrap();
    let mut errors = BufReader::new(child.stderr.take().unwrap()).lines();
    let url = errors.next().unwrap().unwrap().replace("breakbulk: listening on ", "");
    let sent = run(&["send", &format!("{url}?cap=65536"), "--method", "m"], "");
    assert!(sent.status.success(), "{sent:?}");
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().take(4);
    let lines: Vec<serde_json::Value> = lines.map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect();
    let methods: Vec<_> = lines.iter().map(|line| (line["toward"].as_str(), line["method"].as_str())).collect();
    let (there, back) = (Some("host"), Some("client"));
    assert_eq!(methods, [(there, Some("initialize")), (back, None), (there, Some("m")), (back, None)]);
    assert_eq!((lines[3]["segmentsIn"].as_u64(), lines[3]["bytes"].as_u64()), (Some(1), Some(300_083)));
    assert!(lines[3]["segmentsOut"].as_u64() > Some(5), "{}", lines[3]);
    assert_eq!((&lines[0]["clientId"], &lines[2]["client"]), (&"breakbulk-send".into(), &1.into()));
    assert_eq!((&lines[3]["answers"], &lines[3]["id"]), (&"m".into(), &1.into()));
    assert!(lines[3]["latencyMicros"].is_u64() && lines[2]["latencyMicros"].is_null(), "{}", lines[3]);
    assert!(lines[3]["at"].as_str().unwrap().ends_with('Z'), "{}", lines[3]);
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_tap_between_a_client_and_its_server_on_pipes_prints_beside_the_messages() {
    let request = r#"{"jsonrpc":"2.0","id":"x","method":"tools/call"}"#;
    let server = r#"exec:sh -c 'read -r line; echo "{\"jsonrpc\":\"2.0\",\"id\":\"x\",\"result\":{}}"'"#;
    let output = run(&["tap", server, "--listen", "stdio:", "--quiet"], &format!("{request}\n"));
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(text(&output).trim_end(), r#"{"jsonrpc":"2.0","id":"x","result":{}}"#);
    let printed = String::from_utf8(output.stderr).unwrap();
    assert!(printed.contains("→ tools/call") && printed.contains("← answer to tools/call"), "{printed}");

    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tap.log");
    let args = ["tap", server, "--listen", "stdio:", "--quiet", "--json", "--output", file.to_str().unwrap()];
    let output = run(&args, &format!("{request}\n"));
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]));
    let lines = std::fs::read_to_string(file).unwrap();
    let ids: Vec<_> =
        lines.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["id"].clone()).collect();
    assert_eq!(ids, ["x", "x"]);
}

#[test]
fn a_tap_shows_a_message_in_segments_as_one_whose_action_has_a_type() {
    let action = format!(
        r#"{{"jsonrpc":"2.0","method":"action","params":{{"channel":"ahp-chat:/1","action":{{"type":"chat/delta","content":"{}"}}}}}}"#,
        "x".repeat(5_000)
    );
    let mut split = breakbulk(&["split", "--dialect", "ahp", "--cap", "1024"]).spawn().unwrap();
    split.stdin.take().unwrap().write_all(action.as_bytes()).unwrap();
    let frames = String::from_utf8(split.wait_with_output().unwrap().stdout).unwrap();
    let count = frames.lines().count();
    assert!(count > 5, "{count}");
    let args = ["tap", "exec:sh -c 'cat > /dev/null'", "--listen", "stdio:", "--quiet", "--json"];
    let output = run(&args, &frames);
    let printed = String::from_utf8(output.stderr).unwrap();
    let lines: Vec<serde_json::Value> = printed.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    assert_eq!(lines.len(), 1, "{printed}");
    let line = &lines[0];
    assert_eq!(
        (&line["method"], &line["action"], &line["channel"]),
        (&"action".into(), &"chat/delta".into(), &"ahp-chat:/1".into())
    );
    assert_eq!(
        (&line["bytes"], &line["segmentsIn"], &line["segmentsOut"]),
        (&action.len().into(), &count.into(), &count.into())
    );
}

/// An MCP server that answers nothing but `initialize` before it knows that the client is initialized and alive.
const STRICT: &str = r#"exec:sh -c 'while read -r line; do case "$line" in
    *"\"initialize\""*) echo "{\"jsonrpc\":\"2.0\",\"id\":0,\"result\":{\"protocolVersion\":\"2025-06-18\"}}";;
    *notifications/initialized*) ready=yes; echo "{\"jsonrpc\":\"2.0\",\"id\":\"s\",\"method\":\"ping\"}";;
    *"\"s\",\"result\""*) alive=yes; [ -z "$asked" ] || echo "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":\"$ready $alive\"}";;
    *tools/list*) if [ -z "$ready" ]; then echo "{\"jsonrpc\":\"2.0\",\"id\":1,\"error\":{\"code\":-32002,\"message\":\"not initialized\"}}"; fi;
        asked=yes; [ -z "$alive" ] || echo "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":\"$ready $alive\"}";;
    esac; done'"#;

#[test]
fn an_mcp_server_is_greeted_before_it_is_asked() {
    let strict = run(&["send", STRICT, "--method", "tools/list"], "");
    assert_eq!((strict.status.code(), text(&strict).contains("-32002")), (Some(1), true), "{strict:?}");
    let greeted = run(&["send", STRICT, "--mcp", "--method", "tools/list"], "");
    assert_eq!((greeted.status.code(), text(&greeted)), (Some(0), "\"yes yes\"\n"), "{greeted:?}");
}

#[test]
fn a_server_that_knows_no_greeting_is_asked_all_the_same_and_one_that_refuses_it_is_not() {
    let server = |code: &str| {
        format!(
            r#"exec:sh -c 'while read -r line; do case "$line" in
            *"\"initialize\""*) echo "{{\"jsonrpc\":\"2.0\",\"id\":0,\"error\":{{\"code\":{code},\"message\":\"m\"}}}}";;
            *notifications/*) echo "{{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":\"notified\"}}";;
            *tools/list*) echo "{{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":\"listed\"}}";; esac; done'"#
        )
    };
    let unknown = run(&["send", &server("-32601"), "--mcp", "--method", "tools/list"], "");
    assert_eq!((unknown.status.code(), text(&unknown)), (Some(0), "\"listed\"\n"), "{unknown:?}");
    let refused = run(&["send", &server("-32602"), "--mcp", "--method", "tools/list"], "");
    assert_eq!(
        (refused.status.code(), text(&refused)),
        (Some(1), "{\"code\":-32602,\"message\":\"m\"}\n"),
        "{refused:?}"
    );
}

/// A client on pipes, until it is dropped.
struct Client {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Client {
    fn of(bridge: &Bridge) -> Self {
        let mut child = breakbulk(&["bridge", "--listen", "stdio:", "--connect", &bridge.url]).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    fn say(&mut self, line: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    fn hear(&mut self) -> String {
        self.lines.next().unwrap().unwrap()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[test]
fn a_kept_child_gives_no_client_what_is_for_another_and_is_started_anew_when_it_has_exited() {
    // Says when it has a request, answers the first one late, and exits after the second.
    let server = r#"exec:sh -c 'for n in 1 2; do read -r line; echo "{\"jsonrpc\":\"2.0\",\"method\":\"got\"}"; test $n = 2 || sleep 0.5; echo "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":$n}"; done'"#;
    let bridge = Bridge::start("ws://127.0.0.1:0", server, &["--keep"]);
    for n in [1, 2, 1] {
        let mut client = Client::of(&bridge);
        client.say(REQUEST);
        assert_eq!(client.hear(), r#"{"jsonrpc":"2.0","method":"got"}"#);
        // The first client leaves before it is answered.
        if n == 2 {
            assert_eq!(client.hear(), r#"{"jsonrpc":"2.0","id":1,"result":2}"#);
            assert!(client.lines.next().is_none(), "it ends with the child");
        }
    }
    assert_eq!(bridge.stop(), Some(0));
}

#[test]
fn the_status_says_how_it_ended() {
    let gone = run(&["bridge", "--listen", "stdio:", "--connect", "exec:false"], &format!("{REQUEST}\n"));
    assert_eq!(gone.status.code(), Some(4), "{gone:?}");
    let nobody = run(&["bridge", "--listen", "stdio:", "--connect", "ws://127.0.0.1:1"], "");
    assert_eq!(nobody.status.code(), Some(1), "{nobody:?}");
    let remote = run(&["bridge", "--listen", "ws://0.0.0.0:0", "--connect", "exec:true"], "");
    assert!(String::from_utf8_lossy(&remote.stderr).contains("--bind-any"), "{remote:?}");
    assert_eq!(remote.status.code(), Some(2), "{remote:?}");
}

/// Quotes a text for another command line.
fn shell_words(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// An authority whose key nobody has.
const AUTHORITY: &str = "\
-----BEGIN CERTIFICATE-----
MIIBmzCCAUGgAwIBAgIUczHA/zx9VZIgbeyKBocPk+MxdjcwCgYIKoZIzj0EAwIw
IjEgMB4GA1UEAwwXYW4gYXV0aG9yaXR5IG9mIGNsaWVudHMwIBcNMjYxMTE2MTky
MDIwWhgPMjEyNjEwMjMxOTIwMjBaMCIxIDAeBgNVBAMMF2FuIGF1dGhvcml0eSBv
ZiBjbGllbnRzMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEerZHnLUn6jrA1GQP
1LhX/QltWmnTFt26orcPF4oxd4VMlA2vuTqvTqQH/BmKJRMDrV8z4kNheVIRC2RC
crvKTKNTMFEwHQYDVR0OBBYEFIF81f9BnPHbSgo74ckaYkyyKYekMB8GA1UdIwQY
MBaAFIF81f9BnPHbSgo74ckaYkyyKYekMA8GA1UdEwEB/wQFMAMBAf8wCgYIKoZI
zj0EAwIDSAAwRQIhAIh0YX/kPBX8eO6cXCNuoVoTm5gHwrvQGp9bvdNhW2bzAiB4
HcbxXB3uHnytg0cev+z/lPk2rGBTdREdLZi/6F2wFw==
-----END CERTIFICATE-----
";

#[test]
fn who_calls_a_bridge_by_a_foreign_name_is_named_in_the_log_as_it_called_itself() {
    let mut bridge = Bridge::start("ws://127.0.0.1:0", "exec:true", &[]);
    let address = bridge.url.strip_prefix("ws://").unwrap().trim_end_matches('/');
    let mut stream = TcpStream::connect(address).unwrap();
    let request = "GET / HTTP/1.1\r\nHost: evil.example\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n";
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 421 "), "{answer}");
    let log = bridge.rest_of_log();
    let line = log.lines().find(|line| line.contains("a client was refused")).expect(&log);
    assert!(line.contains("reason=\"foreign-host\" shown=\"evil.example\""), "{line}");
}

#[test]
fn a_frame_over_the_cap_of_an_address_is_named_with_that_setting_and_with_what_the_peer_says() {
    let mut capped = Bridge::start("ws://127.0.0.1:0?cap=65536", SERVER, &[]);
    let mut plain = Bridge::start("ws://127.0.0.1:0", &capped.url, &[]);
    let params = format!("{{\"text\":\"{}\"}}", "y".repeat(100_000));
    let output = run(&["send", &capped.url, "--method", "m", "--params-file", "-"], &params);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{errors}");
    let words = r#"closed by the peer with code 1009, which says "max length: 65536""#;
    assert!(errors.contains(&format!("disconnected: {words} [close-peer]")), "{errors}");
    // Whoever has the connection in between says it in its log.
    run(&["send", &plain.url, "--method", "m", "--params-file", "-"], &params);
    let log = plain.rest_of_log();
    assert!(log.contains(&format!("ended: {words}")), "{log}");
    let log = capped.rest_of_log();
    let line = log.lines().find(|line| line.contains("it sent a frame of")).expect(&log);
    assert!(line.contains("and the cap of its address allows 65536 bytes"), "{line}");
}

#[test]
fn what_a_host_refuses_again_and_again_is_logged_a_few_times_and_then_counted() {
    let request = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"m","params":["{}"]}}"#, "x".repeat(1000));
    let args = ["bridge", "--listen", "stdio:", "--connect", "exec:?cap=600 cat"];
    let output = run(&args, &format!("{request}\n").repeat(50));
    assert_eq!(text(&output).matches("-32011").count(), 50);
    let log = String::from_utf8_lossy(&output.stderr);
    let lines = log.matches("a message was not sent").count();
    assert!((1..40).contains(&lines), "{log}");
    let line = log.lines().find(|line| line.contains("there were more messages like those")).expect(&log);
    assert!(line.contains("rule=\"send-no-segments\" left_out="), "{line}");
}

#[test]
fn a_client_without_the_certificate_that_is_asked_for_is_named_in_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let authority = dir.path().join("ca.pem");
    std::fs::write(&authority, AUTHORITY).unwrap();
    let more = ["--tls-self-signed", "--tls-client-ca", authority.to_str().unwrap()];
    let mut bridge = Bridge::start("wss://127.0.0.1:0", "exec:true", &more);
    let output = run(&["send", &bridge.url, "--method", "m", "--insecure"], "");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let log = bridge.rest_of_log();
    let line = log.lines().find(|line| line.contains("a client was refused")).expect(&log);
    assert!(line.contains("peer=127.0.0.1 reason=\"no-certificate\""), "{line}");
}
