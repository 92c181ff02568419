//! What the program says when something is wrong: what it is, and what to do about it.
#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn run(dir: &Path, args: &[&str], input: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_breakbulk"));
    command.args(args).current_dir(dir).env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // Who refuses its arguments reads nothing.
    drop(child.stdin.take().unwrap().write_all(input.as_bytes()));
    child.wait_with_output().unwrap()
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_host_names_only_the_addresses_that_it_can_listen_on() {
    let dir = tempfile::tempdir().unwrap();
    let allowed = "allowed are ws://HOST:PORT and wss://HOST:PORT\n";
    for (listen, want) in [
        ("4140", "unknown scheme \"4140\"; did you mean :4140 ? "),
        ("foo", "unknown scheme \"foo\"; "),
        ("npx -y server", "unknown scheme \"npx\"; "),
        ("stdio", "unknown scheme \"stdio\"; "),
    ] {
        let output = run(dir.path(), &["serve", "--data", "data", "--listen", listen], "");
        let want = format!("breakbulk: listen is {listen:?} (flag --listen): {want}{allowed}");
        assert_eq!((output.status.code(), errors(&output)), (Some(2), want));
    }
    let output = run(dir.path(), &["serve", "--data", "data", "--listen", ""], "");
    assert!(errors(&output).contains(": no address; "), "{output:?}");
}

#[test]
fn an_option_that_is_none_is_named_with_the_one_that_was_meant() {
    let dir = tempfile::tempdir().unwrap();
    let want =
        "unknown option \"capp\" in the address; did you mean cap? allowed are cap, dialect, preset and private\n";
    for address in ["ws://127.0.0.1:1?capp=1", "unix:/s?capp=1", "stdio:?capp=1", "exec:?capp=1 true"] {
        for args in [
            vec!["bridge", "--listen", ":0", "--connect", address],
            vec!["bridge", "--listen", address, "--connect", "exec:true"],
            vec!["send", address, "--method", "m"],
        ] {
            let output = run(dir.path(), &args, "");
            assert_eq!(output.status.code(), Some(2), "{args:?} {output:?}");
            assert!(errors(&output).ends_with(want), "{args:?} {output:?}");
        }
    }
    // What follows the command is its own.
    let output = run(dir.path(), &["send", "exec:sh -c 'exit 3' ?capp=1", "--method", "m"], "");
    assert!(errors(&output).contains("exited with status 3"), "{output:?}");
}

#[test]
fn a_program_that_is_not_there_is_named_and_a_good_end_is_no_news() {
    let dir = tempfile::tempdir().unwrap();
    let send = |address: &str| errors(&run(dir.path(), &["send", address, "--method", "m"], ""));
    let missing = send("exec:no-such-program --flag");
    assert!(missing.contains("cannot start no-such-program: no-such-program is not in PATH"), "{missing}");
    let missing = send("exec:/no/such/program");
    assert!(missing.contains("cannot start /no/such/program: there is no file /no/such/program"), "{missing}");
    let answer = r#"exec:sh -c 'read -r line; echo "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":1}"'"#;
    assert_eq!(send(answer), "");
}

#[test]
fn split_says_that_its_input_is_empty_and_which_caps_are_allowed() {
    let dir = tempfile::tempdir().unwrap();
    let empty = run(dir.path(), &["split", "--dialect", "ahp"], " \n");
    assert_eq!(empty.status.code(), Some(2), "{empty:?}");
    assert!(errors(&empty).starts_with("breakbulk: standard input is empty"), "{empty:?}");
    let message = format!(r#"{{"jsonrpc":"2.0","method":"m","params":["{}"]}}"#, "x".repeat(5000));
    for dialect in ["ahp", "stdio"] {
        let small = run(dir.path(), &["split", "--dialect", dialect, "--cap", "10"], &message);
        assert_eq!(small.status.code(), Some(2), "{small:?}");
        assert!(errors(&small).contains("allowed as a cap are 512 to 4294967295 bytes"), "{small:?}");
    }
}

#[test]
fn join_says_which_dialect_the_frames_are_of() {
    let dir = tempfile::tempdir().unwrap();
    let params = format!(r#"{{"_meta":{{"progressToken":"t"}},"text":"{}"}}"#, "x".repeat(5000));
    let message = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"m","params":{params}}}"#);
    for (is, taken_for) in [("ahp", "cep22"), ("ahp", "stdio"), ("cep22", "ahp"), ("cep22", "stdio")] {
        let frames = run(dir.path(), &["split", "--dialect", is, "--cap", "1000"], &message);
        assert!(frames.status.success(), "{frames:?}");
        let frames = String::from_utf8(frames.stdout).unwrap();
        let joined = run(dir.path(), &["join", "--dialect", taken_for], &frames);
        let hint = format!("frames of the dialect {is}, which were not joined: use --dialect {is}\n");
        assert_eq!(joined.status.code(), Some(1), "{is} {taken_for} {joined:?}");
        assert!(errors(&joined).ends_with(&hint), "{joined:?}");
        assert!(run(dir.path(), &["join", "--dialect", is], &frames).status.success());
    }
    // Not every notification about progress is a frame.
    let progress = r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1}}"#;
    assert!(run(dir.path(), &["join", "--dialect", "ahp"], progress).status.success());
}

#[test]
fn a_bridge_of_the_file_says_where_its_address_belongs_and_none_is_announced_that_does_not_start() {
    let dir = tempfile::tempdir().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let first = "[[bridge]]\nname = 'one'\nlisten = ':0'\nconnect = 'exec:cat'\n[[bridge]]\nname = 'two'\n";
    for (second, status, want) in [
        ("listen = ':0'".to_owned(), 2, "connect is not set: write connect = \"ADDRESS\" into that [[bridge]]\n"),
        ("connect = 'exec:cat'".to_owned(), 2, "listen is not set: write listen = \"ADDRESS\" into that [[bridge]]\n"),
        (format!("listen = ':{port}'\nconnect = 'exec:cat'"), 1, "cannot listen on 127.0.0.1:"),
    ] {
        std::fs::write(dir.path().join("b.toml"), format!("{first}{second}\n")).unwrap();
        let output = run(dir.path(), &["bridge", "--config", "b.toml"], "");
        let said = errors(&output);
        assert_eq!(output.status.code(), Some(status), "{said}");
        assert!(said.contains(&format!("breakbulk: bridge \"two\": {want}")), "{said}");
        assert!(!said.contains("listening on"), "{said}");
    }
}
