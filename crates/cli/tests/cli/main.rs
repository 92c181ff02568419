//! The program as people run it: frames out, and messages back.
#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod bad;

use std::io::Write;
use std::process::{Command, Output, Stdio};

const DIALECTS: [&str; 3] = ["ahp", "cep22", "stdio"];

/// Runs `breakbulk` with `input` on standard input.
fn breakbulk(args: &[&str], input: &[u8]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_breakbulk"))
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    // A program that refuses its input early does not read it all.
    let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    output
}

fn split(dialect: &str, cap: &str, message: &[u8]) -> Vec<u8> {
    let mut args = vec!["split", "--dialect", dialect, "--cap", cap];
    if dialect == "cep22" {
        args.extend(["--token", "T"]);
    }
    let output = breakbulk(&args, message);
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""));
    output.stdout
}

fn join(dialect: &str, frames: &[u8]) -> Output {
    breakbulk(&["join", "--dialect", dialect], frames)
}

/// Asserts that the input was refused with exactly these lines, and that exactly `stdout` was printed.
fn assert_refused(output: &Output, stderr: &str, stdout: &str) {
    assert_eq!(text(&output.stderr), stderr);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(2), stdout));
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn lines(bytes: &[u8]) -> Vec<&str> {
    text(bytes).lines().collect()
}

/// A response of at least `len` bytes, with characters of all lengths.
fn message(len: usize) -> String {
    let body = "fn main() { println!(\\\"漢字 é 𝄞\\\"); }\\n".repeat(len / 40 + 1);
    format!(r#"{{"jsonrpc":"2.0","id":7,"result":{{"text":"{body}"}}}}"#)
}

#[test]
fn what_was_split_is_joined_in_every_dialect_at_any_cap() {
    for dialect in DIALECTS {
        for cap in ["600", "1k", "4KiB", "61440", "65536", "1M"] {
            for len in [10, 5000, 200_000] {
                let message = message(len);
                let frames = split(dialect, cap, message.as_bytes());
                let most = match cap {
                    "600" => 600,
                    "1k" => 1000,
                    "4KiB" => 4096,
                    "61440" => 61_440,
                    "65536" => 65_536,
                    _ => 1_000_000,
                };
                assert!(lines(&frames).iter().all(|line| line.len() <= most), "{dialect} {cap}");
                assert!(lines(&frames).len() * most >= message.len());
                let joined = join(dialect, &frames);
                assert_eq!((joined.status.code(), text(&joined.stderr)), (Some(0), ""));
                assert!(text(&joined.stdout) == format!("{message}\n"), "{dialect} {cap} {len}");
            }
        }
    }
}

#[test]
fn thirty_megabytes_pass() {
    for dialect in DIALECTS {
        let message = message(30_000_000);
        let frames = split(dialect, "65536", message.as_bytes());
        assert!(lines(&frames).len() > 450);
        let joined = join(dialect, &frames);
        assert_eq!(joined.status.code(), Some(0));
        assert!(joined.stdout.strip_suffix(b"\n") == Some(message.as_bytes()), "{dialect}");
    }
}

#[test]
fn a_stdio_line_with_its_end_is_at_most_61440_bytes() {
    let output = breakbulk(&["split", "--dialect", "stdio"], message(300_000).as_bytes());
    let longest = lines(&output.stdout).iter().map(|line| line.len() + 1).max();
    assert!(longest.is_some_and(|longest| (61_400..=61_440).contains(&longest)), "{longest:?}");
}

#[test]
fn a_pretty_printed_message_keeps_its_bytes_in_ahp_segments_and_is_printed_on_one_line() {
    let value: serde_json::Value = serde_json::from_str(&message(5000)).unwrap();
    let pretty = format!("\n{}\n\n", serde_json::to_string_pretty(&value).unwrap());
    for (dialect, cap) in
        [("ahp", "600"), ("ahp", "1M"), ("cep22", "600"), ("cep22", "1M"), ("stdio", "600"), ("stdio", "61440")]
    {
        let joined = join(dialect, &split(dialect, cap, pretty.as_bytes()));
        assert_eq!(lines(&joined.stdout).len(), 1);
        assert_eq!(serde_json::from_slice::<serde_json::Value>(&joined.stdout).unwrap(), value);
        assert!(!text(&joined.stdout).contains("\": "), "compacted");
    }
    // The first segment's data begins with the message's first bytes, line end and all.
    let frames = split("ahp", "600", pretty.as_bytes());
    assert!(lines(&frames)[0].contains(r#""data":"ewogICJ"#), "{}", lines(&frames)[0]);
}

#[test]
fn handshakes_pass_unchanged() {
    let pad = "x".repeat(3000);
    for message in [
        format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"initialize","params":{{"protocolVersions":["1.0.0"],"clientId":"{pad}","capabilities":{{"chunking":{{"maxIncomingFrameBytes":9000,"maxIncomingMessageBytes":9000}}}}}}}}"#
        ),
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"reconnect","params":{{"clientId":"{pad}"}}}}"#),
        format!(r#"{{"jsonrpc":"2.0","id":1,"result":{{"protocolVersion":"1.0.0","pad":"{pad}"}}}}"#),
    ] {
        for cap in ["700", "1M"] {
            let joined = join("ahp", &split("ahp", cap, message.as_bytes()));
            assert_eq!(text(&joined.stdout), format!("{message}\n"));
        }
    }
}

#[test]
fn many_messages_are_joined_one_a_line_with_blank_lines_between() {
    for dialect in DIALECTS {
        let mut frames = Vec::new();
        let mut want = String::new();
        for n in 0..5000 {
            let request = format!(r#"{{"jsonrpc":"2.0","id":{n},"method":"m"}}"#);
            frames.extend_from_slice(request.as_bytes());
            frames.extend_from_slice(if n % 2 == 0 { b"\n\n" } else { b"\r\n" });
            want.push_str(&request);
            want.push('\n');
        }
        let joined = join(dialect, &frames);
        assert_eq!((joined.status.code(), text(&joined.stderr)), (Some(0), ""), "{dialect}");
        assert_eq!(text(&joined.stdout), want);
    }
}

#[test]
fn the_return_of_a_line_end_does_not_count() {
    let message = message(5000);
    for dialect in DIALECTS {
        let frames = split(dialect, "1000", message.as_bytes());
        let longest = lines(&frames).iter().map(|line| line.len()).max().unwrap();
        // In the stdio dialect a line end counts, as one byte.
        let cap = if dialect == "stdio" { longest + 1 } else { longest };
        let input = text(&frames).replace('\n', "\r\n");
        let joined = breakbulk(&["join", "--dialect", dialect, "--cap", &cap.to_string()], input.as_bytes());
        assert_eq!((joined.status.code(), text(&joined.stderr)), (Some(0), ""), "{dialect}");
        assert!(text(&joined.stdout) == format!("{message}\n"), "{dialect}");
        let under = (cap - 1).to_string();
        let joined = breakbulk(&["join", "--dialect", dialect, "--cap", &under], input.as_bytes());
        assert_eq!(joined.status.code(), Some(2), "{dialect}");
        // A message as long as one may be, on one line.
        let (whole, max) = (split(dialect, "61440", message.as_bytes()), message.len().to_string());
        let input = text(&whole).replace('\n', "\r\n");
        let joined = breakbulk(&["join", "--dialect", dialect, "--max-message", &max], input.as_bytes());
        assert_eq!((joined.status.code(), text(&joined.stderr)), (Some(0), ""), "{dialect}");
        assert!(text(&joined.stdout) == format!("{message}\n"), "{dialect}");
    }
}

#[test]
fn requests_without_number_may_come_inside_a_group() {
    let message = message(1000);
    let frames = split("ahp", "1000", message.as_bytes());
    let mut input: Vec<String> = lines(&frames).iter().map(|line| (*line).to_owned()).collect();
    let pings: Vec<_> = (0..5000).map(|id| format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ping"}}"#)).collect();
    input.splice(1..1, pings.iter().cloned());
    let joined = join("ahp", input.join("\n").as_bytes());
    assert_eq!((joined.status.code(), text(&joined.stderr)), (Some(0), ""));
    assert!(text(&joined.stdout) == format!("{}\n{message}\n", pings.join("\n")));
}

#[test]
fn white_space_around_a_message_does_not_count() {
    let good = r#"{"jsonrpc":"2.0","method":"m"}"#;
    let space = " \n".repeat(50_000);
    let run = |input: String| {
        let args = ["split", "--dialect", "ahp", "--max-message", "600"];
        breakbulk(&args, input.as_bytes())
    };
    for input in [format!("{space}{good}"), format!("{good}{space}"), format!("{space}{good}{space}")] {
        let output = run(input);
        assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""));
        assert_eq!(text(&output.stdout), format!("{good}\n"));
    }
    let (front, back) = good.split_at(1);
    let want = "breakbulk: message of at least 100002 bytes is over the limit of 600 [message-too-large]\n";
    assert_refused(&run(format!("{front}{space}{back}")), want, "");
    let want = "breakbulk: line 50002: not JSON at byte 3; the message has 4 bytes [message-not-json]\n";
    assert_refused(&run(format!("{space}{{\n x")), want, "");
}

#[test]
fn a_cep22_transfer_goes_under_the_token_of_its_request() {
    let pad = "x".repeat(5000);
    let response = format!(r#"{{"jsonrpc":"2.0","id":"a","result":"{pad}"}}"#);
    let own =
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"m","params":{{"_meta":{{"progressToken":7}},"pad":"{pad}"}}}}"#);
    let bare = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"m","params":{{"pad":"{pad}"}}}}"#);
    let run = |message: &str, token: &[&str]| {
        breakbulk(&[&["split", "--dialect", "cep22", "--cap", "1k"], token].concat(), message.as_bytes())
    };
    for (message, token, want) in
        [(&response, &["--token", "q"][..], "\"q\""), (&own, &["--token", "7"], "\"7\""), (&own, &[], "\"7\"")]
    {
        let output = run(message, token);
        assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""));
        let under = format!(r#""progressToken":{want}"#);
        assert!(lines(&output.stdout).iter().all(|line| line.contains(&under)), "{}", lines(&output.stdout)[0]);
        assert_eq!(text(&join("cep22", &output.stdout).stdout), format!("{message}\n"));
    }
    for message in [&response, &bare] {
        let want = format!(
            "breakbulk: message of {} bytes needs params._meta.progressToken on its request to be sent in parts \
             [send-no-token]\n",
            message.len()
        );
        assert_refused(&run(message, &[]), &want, "");
    }
    let want = "breakbulk: --token is not the request's own params._meta.progressToken\n";
    assert_refused(&run(&own, &["--token", "8"]), want, "");
}

#[test]
fn one_transfer_is_taken_out_of_many() {
    let mut input = String::new();
    for token in ["a", "b"] {
        let message = message(2000).replace("\"id\":7", &format!("\"id\":\"{token}\""));
        let args = ["split", "--dialect", "cep22", "--cap", "700", "--token", token];
        input.push_str(text(&breakbulk(&args, message.as_bytes()).stdout));
    }
    let both = join("cep22", input.as_bytes());
    assert_eq!((both.status.code(), lines(&both.stdout).len()), (Some(0), 2));
    let one = breakbulk(&["join", "--dialect", "cep22", "--token", "b"], input.as_bytes());
    assert_eq!((one.status.code(), text(&one.stderr)), (Some(0), ""));
    assert_eq!(lines(&one.stdout).len(), 1);
    assert!(text(&one.stdout).starts_with(r#"{"jsonrpc":"2.0","id":"b""#));
}

#[test]
fn help_has_examples_and_version_a_number() {
    for args in [&["--help"][..], &["split", "--help"], &["join", "--help"]] {
        let output = breakbulk(args, b"");
        assert_eq!(output.status.code(), Some(0));
        let help = text(&output.stdout);
        assert!(help.contains("Examples:\n  ") && help.contains("--dialect ahp"), "{help}");
    }
    let help = breakbulk(&["join", "--help"], b"");
    let words: Vec<_> = text(&help.stdout).split_whitespace().collect();
    assert!(words.join(" ").contains("a message with raw line ends is printed without white space"));
    assert!(words.join(" ").contains("Exit status: 0 every line was a message or part of one"));
    let version = breakbulk(&["--version"], b"");
    assert_eq!(text(&version.stdout), concat!("breakbulk ", env!("CARGO_PKG_VERSION"), "\n"));
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_breakbulk"))
        .args(["split", "--dialect", "stdio", "--cap", "200"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    child.stdin.take().unwrap().write_all(message(1_000_000).as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""));
}

#[test]
fn a_message_is_printed_before_the_input_ends() {
    use std::io::{BufRead, BufReader};

    let mut child = Command::new(env!("CARGO_BIN_EXE_breakbulk"))
        .args(["join", "--dialect", "stdio"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let request = r#"{"jsonrpc":"2.0","id":1,"method":"m"}"#;
    for _ in 0..3 {
        writeln!(stdin, "{request}").unwrap();
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        assert_eq!(line.trim_end(), request);
    }
    drop(stdin);
    assert!(child.wait().unwrap().success());
}
