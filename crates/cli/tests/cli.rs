//! The program as people run it: frames out, messages back, and one clear line when the input is bad.
#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

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
fn a_missing_segment_is_named_and_nothing_of_its_message_printed() {
    let first = r#"{"jsonrpc":"2.0","method":"first"}"#;
    let mut frames = format!("{first}\n").into_bytes();
    frames.extend(split("ahp", "600", message(3000).as_bytes()));
    let mut lines = lines(&frames);
    lines.remove(3);
    let size = lines[3].len();
    let joined = join("ahp", lines.join("\n").as_bytes());
    let want = format!("breakbulk: line 4 ({size} bytes): index 3 where 2 was due [index-out-of-order]\n");
    assert_refused(&joined, &want, &format!("{first}\n"));
}

#[test]
fn bad_ahp_input_is_named_with_its_line() {
    let good = r#"{"jsonrpc":"2.0","method":"m"}"#;
    let segment = |params: &str| format!(r#"{{"jsonrpc":"2.0","method":"ahp/messageSegment","params":{params}}}"#);
    for (bad, want) in [
        ("hello".into(), "frame is not JSON: not JSON at byte 0 [frame-not-json]"),
        ("[]".into(), "frame is not a JSON-RPC object [frame-not-object]"),
        (
            segment(r#"{"groupId":"g","index":0,"total":2,"data":"*"}"#),
            "data is not canonical base64 [data-not-base64]",
        ),
        (
            segment(r#"{"groupId":"g","index":2,"total":2,"data":""}"#),
            "index 2 is not below total 2 [index-beyond-total]",
        ),
        (
            segment(r#"{"groupId":"g","index":1,"total":2,"data":""}"#),
            "segment 1 of a group that is not open [group-unknown]",
        ),
    ] {
        let joined = join("ahp", format!("{good}\n{bad}\n{good}\n").as_bytes());
        let want = format!("breakbulk: line 2 ({} bytes): {want}\n", bad.len());
        assert_refused(&joined, &want, &format!("{good}\n"));
    }
}

#[test]
fn a_bad_stdio_group_fails_alone() {
    let id = "0B4D6F2A-1C3E-4A5B-8C7D-9E0F1A2B3C4D";
    let good = r#"{"jsonrpc":"2.0","method":"m"}"#;
    let input = format!("{id}:0:2:{{\n{good}\nServer started\n{id}:0:2:[\n{id}:1:2:}}\n{good}\n");
    let want = "breakbulk: line 3 (14 bytes): neither a message nor a frame; left out\n\
        breakbulk: line 4 (42 bytes): two different chunks at place 0 [chunk-conflict]\n";
    assert_refused(&join("stdio", input.as_bytes()), want, &format!("{good}\n{good}\n"));
}

#[test]
fn unfinished_input_is_named_with_its_sizes() {
    let want = "breakbulk: line 6: the input ends inside a message: ";
    for dialect in DIALECTS {
        let message = message(5000);
        let frames = split(dialect, "600", message.as_bytes());
        let cut = lines(&frames)[..6].join("\n");
        let joined = join(dialect, cut.as_bytes());
        assert_eq!((joined.status.code(), text(&joined.stdout)), (Some(2), ""), "{dialect}");
        let stderr = text(&joined.stderr);
        assert!(stderr.starts_with(want) && stderr.ends_with(" bytes have come [unfinished]\n"), "{stderr}");
        assert_eq!(stderr.lines().count(), 1);
    }
}

#[test]
fn a_line_cut_off_in_the_middle_is_refused() {
    for dialect in DIALECTS {
        let frames = split(dialect, "600", message(3000).as_bytes());
        let joined = join(dialect, &frames[..frames.len() - 5]);
        assert_eq!((joined.status.code(), text(&joined.stdout)), (Some(2), ""), "{dialect}");
        assert!(text(&joined.stderr).contains("-not-json]"), "{}", text(&joined.stderr));
    }
}

#[test]
fn a_line_over_the_cap_is_refused_before_it_is_read_whole() {
    let long = format!(r#"{{"jsonrpc":"2.0","method":"{}"}}"#, "m".repeat(5000));
    for (dialect, want) in [
        ("ahp", "breakbulk: line 1: a line is over the limit of 1000 bytes [frame-too-large]\n"),
        ("cep22", "breakbulk: line 1: a line is over the limit of 1000 bytes [frame-too-large]\n"),
        ("stdio", "breakbulk: line 1: a line is over the limit of 999 bytes [line-too-long]\n"),
    ] {
        let joined = breakbulk(&["join", "--dialect", dialect, "--cap", "1000"], long.as_bytes());
        assert_refused(&joined, want, "");
    }
}

#[test]
fn a_message_over_the_limit_is_refused_on_both_sides() {
    for dialect in DIALECTS {
        let message = message(5000);
        let args = ["--dialect", dialect, "--max-message", "2k"];
        let refused = breakbulk(&[&["split"], &args[..]].concat(), message.as_bytes());
        let size = message.len();
        let want =
            format!("breakbulk: message of at least {size} bytes is over the limit of 2000 [message-too-large]\n");
        assert_refused(&refused, &want, "");
        let frames = split(dialect, "600", message.as_bytes());
        let refused = breakbulk(&[&["join"], &args[..]].concat(), &frames);
        assert_eq!((refused.status.code(), text(&refused.stdout)), (Some(2), ""), "{dialect}");
        let stderr = text(&refused.stderr);
        assert!(stderr.contains("is over the limit of 2000 [message-too-large]"), "{stderr}");
        assert_eq!(stderr.lines().count(), 1);
    }
}

#[test]
fn split_takes_exactly_one_json_rpc_message() {
    let good = r#"{"jsonrpc":"2.0","method":"m"}"#;
    let two = format!("\n{good}\n{good}\n");
    for (input, want) in [
        (&b""[..], "line 1: the JSON text ends too early at byte 0; the message has 0 bytes [message-not-json]"),
        (b"\n{\n \"a\": x}", "line 3: not JSON at byte 8; the message has 10 bytes [message-not-json]"),
        (b"{\"a\":\n\"\xff\"}", "line 2: not UTF-8 at byte 7 of 10 [message-not-utf8]"),
        (two.as_bytes(), "line 3: a second JSON value at byte 31; the message has 61 bytes [message-not-json]"),
        (b"[]", "line 1: 2 bytes of JSON that are no JSON-RPC message [message-not-json-rpc]"),
        (br#"{"jsonrpc":"2.0"}"#, "line 1: 17 bytes of JSON that are no JSON-RPC message [message-not-json-rpc]"),
        (
            br#"{"jsonrpc":"2.0","id":1,"id":2,"method":"m"}"#,
            "line 1: key \"id\" comes twice in a message of 44 bytes [duplicate-key]",
        ),
    ] {
        for dialect in DIALECTS {
            let output = breakbulk(&["split", "--dialect", dialect], input);
            assert_refused(&output, &format!("breakbulk: {want}\n"), "");
        }
    }
}

#[test]
fn a_cap_too_small_for_a_segment_is_refused() {
    let size = message(200_000).len();
    for (dialect, segments) in [("ahp", 65_535), ("stdio", 1_000_000)] {
        let output = breakbulk(&["split", "--dialect", dialect, "--cap", "50"], message(200_000).as_bytes());
        let want = format!(
            "breakbulk: message of {size} bytes would need more than {segments} segments at this frame cap \
             [send-too-many-segments]\n"
        );
        assert_refused(&output, &want, "");
    }
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
fn bad_cep22_input_is_named() {
    let message = message(3000);
    let frames = split("cep22", "700", message.as_bytes());
    let lines = lines(&frames);
    let without = |skip: usize| {
        let kept: Vec<_> = lines.iter().enumerate().filter(|(at, _)| *at != skip).map(|(_, line)| *line).collect();
        join("cep22", kept.join("\n").as_bytes())
    };
    let (count, last) = (lines.len(), lines[lines.len() - 1].len());
    let chunks = count - 2;
    let want = format!(
        "breakbulk: line {} ({last} bytes): {} of {chunks} chunks arrived before the end [chunks-missing]\n",
        count - 1,
        chunks - 1
    );
    assert_refused(&without(3), &want, "");
    let strays = count - 1;
    let want = format!(
        "breakbulk: line 1: the first of {strays} frames that belong to no open transfer [part-of-no-transfer]\n"
    );
    assert_refused(&without(0), &want, "");
    let only_start = join("cep22", lines[0].as_bytes());
    let want = "breakbulk: line 1: the input ends inside a message: 0 bytes of it have come [unfinished]\n";
    assert_refused(&only_start, want, "");
    let altered = text(&frames).replacen("main", "MAIN", 1);
    let want = format!("breakbulk: line {count} ({last} bytes): digest does not match [digest-mismatch]\n");
    assert_refused(&join("cep22", altered.as_bytes()), &want, "");
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
fn bad_arguments_are_named() {
    for (args, want) in [
        (&["split"][..], "--dialect"),
        (&["split", "--dialect", "smtp"], "smtp"),
        (&["split", "--dialect", "ahp", "--cap", "1T"], "powers of 1000"),
        (&["join", "--dialect", "ahp", "--max-message", "1"], "--max-message does not hold"),
        (&["join", "--dialect", "ahp", "--token", "T"], "--token is for --dialect cep22"),
    ] {
        let output = breakbulk(args, b"");
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(2), ""));
        assert!(text(&output.stderr).contains(want), "{}", text(&output.stderr));
    }
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
