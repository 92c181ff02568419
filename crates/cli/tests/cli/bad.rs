//! Bad input: one clear line for what is wrong, nothing of it printed, and status 2.

use super::*;

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
        ("[]".into(), "a message is one JSON object; batches are not accepted [frame-not-object]"),
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
    let want = "breakbulk: line 3 (14 bytes): neither a message nor a frame; ignored [line-unknown]\n\
        breakbulk: line 4 (42 bytes): two different chunks at place 0 [chunk-conflict]\n";
    assert_refused(&join("stdio", input.as_bytes()), want, &format!("{good}\n{good}\n"));
}

#[test]
fn unfinished_input_is_named_with_its_sizes() {
    let want = "breakbulk: line 6: the input ends inside a message, after ";
    for dialect in DIALECTS {
        let message = message(5000);
        let frames = split(dialect, "600", message.as_bytes());
        let cut = lines(&frames)[..6].join("\n");
        let joined = join(dialect, cut.as_bytes());
        assert_eq!((joined.status.code(), text(&joined.stdout)), (Some(2), ""), "{dialect}");
        let stderr = text(&joined.stderr);
        assert!(stderr.starts_with(want) && stderr.ends_with(" bytes [unfinished]\n"), "{stderr}");
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
fn a_line_that_is_neither_message_nor_frame_is_bad_input_and_the_rest_is_joined() {
    let (id, good) = ("0B4D6F2A-1C3E-4A5B-8C7D-9E0F1A2B3C4D", r#"{"jsonrpc":"2.0","method":"m"}"#);
    let cut_message = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","par"#.to_owned();
    let bad_digit = format!("{}:0:1:{good}", id.replace('F', "G"));
    let cut = format!("not a message: the JSON text ends too early at byte {} [line-not-json]", cut_message.len());
    let unknown = || "neither a message nor a frame; ignored [line-unknown]".to_owned();
    for (bad, why) in [
        (cut_message, cut),
        (format!("{id}:0:2"), unknown()),
        (bad_digit, unknown()),
        ("Server started".into(), unknown()),
    ] {
        for (input, number, stdout) in
            [(bad.clone(), 1, String::new()), (format!("{good}\n{bad}\r\n{good}\n"), 2, format!("{good}\n{good}\n"))]
        {
            let size = bad.len();
            let want = format!("breakbulk: line {number} ({size} bytes): {why}\n");
            assert_refused(&join("stdio", input.as_bytes()), &want, &stdout);
        }
    }
}

#[test]
fn json_that_is_no_json_rpc_message_is_not_printed() {
    let good = r#"{"jsonrpc":"2.0","method":"m"}"#;
    for bad in ["{}", r#"{"jsonrpc":"2.0"}"#, r#"{"id":1,"method":"m"}"#] {
        for dialect in ["ahp", "cep22"] {
            let joined = join(dialect, format!("{good}\n{bad}\n{good}\n").as_bytes());
            let size = bad.len();
            let want =
                format!("breakbulk: line 2 ({size} bytes): JSON, but not a JSON-RPC message [message-not-json-rpc]\n");
            assert_refused(&joined, &want, &format!("{good}\n{good}\n"));
        }
    }
}

#[test]
fn a_line_over_the_cap_is_refused() {
    let long = format!(r#"{{"jsonrpc":"2.0","method":"{}"}}"#, "m".repeat(5000));
    let size = long.len();
    let input = format!("{long}\r\n{}\n", r#"{"jsonrpc":"2.0","method":"m"}"#);
    let next = "{\"jsonrpc\":\"2.0\",\"method\":\"m\"}\n";
    for (dialect, want, stdout) in [
        // The link would close before the line is read whole.
        ("ahp", "line 1: a line is over the limit of 1000 bytes [frame-too-large]".into(), ""),
        ("cep22", format!("line 1 ({size} bytes): a line is over the limit of 1000 bytes [frame-too-large]"), next),
        ("stdio", format!("line 1 ({size} bytes): a line is over the limit of 999 bytes [line-too-long]"), next),
    ] {
        let joined = breakbulk(&["join", "--dialect", dialect, "--cap", "1000"], input.as_bytes());
        assert_refused(&joined, &format!("breakbulk: {want}\n"), stdout);
    }
}

#[test]
fn a_stdio_group_with_a_line_over_the_cap_fails_alone_and_once() {
    let good = r#"{"jsonrpc":"2.0","method":"m"}"#;
    let mut input = String::new();
    // More groups than may be open.
    for n in 0..20 {
        let id = format!("0B4D6F2A-1C3E-4A5B-8C7D-9E0F1A2B3C{n:02}");
        input.push_str(&format!("{id}:0:3:{{\n{id}:1:3:\"{}\"\n{id}:2:3:}}\n", "a".repeat(1000)));
    }
    input.push_str(&format!("0B4D6F2A-1C3E-4A5B-8C7D-9E0F1A2B3C99:0:1:{good}\n"));
    let joined = breakbulk(&["join", "--dialect", "stdio", "--cap", "1000"], input.as_bytes());
    let want: String = (0..20)
        .map(|n| {
            let line = 3 * n + 2;
            format!("breakbulk: line {line} (1043 bytes): a line is over the limit of 999 bytes [line-too-long]\n")
        })
        .collect();
    assert_refused(&joined, &want, &format!("{good}\n"));
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
        (&b""[..], "standard input is empty: one JSON-RPC message is expected [message-not-json]"),
        (b"\n{\n \"a\": x}", "line 3: not JSON at byte 8; the message has 10 bytes [message-not-json]"),
        (b"{\"a\":\n\"\xff\"}", "line 2: not UTF-8 at byte 7 of 10 [message-not-utf8]"),
        (two.as_bytes(), "line 3: a second JSON value at byte 31; the message has 61 bytes [message-not-json]"),
        (b"[]", "line 1: 2 bytes of JSON, but not a JSON-RPC message [message-not-json-rpc]"),
        (br#"{"jsonrpc":"2.0"}"#, "line 1: 17 bytes of JSON, but not a JSON-RPC message [message-not-json-rpc]"),
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
    for dialect in ["ahp", "stdio"] {
        let output = breakbulk(&["split", "--dialect", dialect, "--cap", "50"], message(200_000).as_bytes());
        let want = "breakbulk: --cap 50 is too small for this message: allowed as a cap are 512 to 4294967295 bytes \
                    [send-too-many-segments]\n";
        assert_refused(&output, want, "");
    }
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
    let want = "breakbulk: line 1: the input ends inside a message, after 0 bytes of it [unfinished]\n";
    assert_refused(&only_start, want, "");
    let altered = text(&frames).replacen("main", "MAIN", 1);
    let want = format!("breakbulk: line {count} ({last} bytes): digest does not match [digest-mismatch]\n");
    assert_refused(&join("cep22", altered.as_bytes()), &want, "");
}

#[test]
fn a_token_that_no_frame_has_is_named_with_those_that_there_are() {
    let frames = split("cep22", "700", message(2000).as_bytes());
    let count = lines(&frames).len();
    let run = |input: &str| breakbulk(&["join", "--dialect", "cep22", "--token", "other"], input.as_bytes());
    let want = format!("breakbulk: no frame has the token \"other\"; {count} have \"T\" [token-not-found]\n");
    assert_refused(&run(text(&frames)), &want, "");
    let none = "breakbulk: no frame has the token \"other\", and none has any token [token-not-found]\n";
    assert_refused(&run(""), none, "");
    // What belongs to no transfer is printed.
    let whole = r#"{"jsonrpc":"2.0","method":"m"}"#;
    let joined = run(&format!("{}{whole}\n", text(&frames)));
    assert_eq!((joined.status.code(), text(&joined.stderr)), (Some(0), &*want));
    assert_eq!(text(&joined.stdout), format!("{whole}\n"));
}

#[test]
fn bad_arguments_are_named() {
    for (args, want) in [
        (&["split"][..], "--dialect"),
        (&["split", "--dialect", "smtp"], "smtp"),
        (&["split", "--dialect", "ahp", "--cap", "1T"], "powers of 1000"),
        (&["join", "--dialect", "ahp", "--max-message", "1"], "--max-message is invalid"),
        (&["join", "--dialect", "ahp", "--token", "T"], "--token is for --dialect cep22"),
    ] {
        let output = breakbulk(args, b"");
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(2), ""));
        assert!(text(&output.stderr).contains(want), "{}", text(&output.stderr));
    }
}
