//! Settings as people give them: by flag, by environment, by file; and one clear line when one does not hold.
#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod common;

use std::path::Path;
use std::process::Output;

use serde_json::{Value, json};
use tempfile::TempDir;

use common::{breakbulk, text};

const FILE: &str = "\
# beside the host
listen = \"ws://127.0.0.1:9100/?cap=900000\"
connect = \"ws://127.0.0.1:9000/?access_token=hunter2\"
cap = 900_000
max_groups = 4
header = [\"Authorization: Bearer hunter2\", \"X-Trace: on\"]
";

/// A directory with this file in it.
fn with(name: &str, text: &str) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
    dir
}

/// The objects that `config --json` prints.
fn objects(dir: &Path, variables: &[(&str, &str)], args: &[&str]) -> Vec<Value> {
    let output = breakbulk(dir, variables, &[&["config", "--json"], args].concat());
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn object(objects: &[Value], key: &str) -> Value {
    objects.iter().find(|object| object["key"] == key).unwrap().clone()
}

fn assert_refused(output: &Output, want: &str) {
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(2), format!("breakbulk: {want}\n").as_str()));
}

#[test]
fn each_value_says_where_it_comes_from() {
    let dir = with("b.toml", FILE);
    let variables = [("BREAKBULK_CAP", "2M"), ("BREAKBULK_MAX_GROUPS", "6"), ("BREAKBULK_ALLOW_HOST", "a,b")];
    let objects = objects(dir.path(), &variables, &["--config", "b.toml", "--cap", "1M", "-vv", "--keep"]);
    let file = |line: u32| json!({"layer": "file", "name": "b.toml", "line": line});
    let flag = |name: &str| json!({"layer": "flag", "name": name});
    let variable = |name: &str| json!({"layer": "environment", "name": name});
    for (key, value, from) in [
        ("config", json!("b.toml"), flag("--config")),
        ("listen", json!("ws://127.0.0.1:9100/?cap=900000"), file(2)),
        ("cap", json!(1_000_000), flag("--cap")),
        ("max_groups", json!(6), variable("BREAKBULK_MAX_GROUPS")),
        ("allow_host", json!(["a", "b"]), variable("BREAKBULK_ALLOW_HOST")),
        ("header", json!(["Authorization: (set)", "X-Trace: (set)"]), file(6)),
        ("keep", json!(true), flag("--keep")),
        ("log_level", json!("trace"), flag("-vv")),
        ("token", json!(null), json!({"layer": "default"})),
        ("idle_timeout", json!("30s"), json!({"layer": "default"})),
    ] {
        assert_eq!(object(&objects, key), json!({"key": key, "value": value, "from": from}));
    }
}

#[test]
fn the_table_is_aligned_and_names_the_same_places() {
    let dir = with("deep/b.toml", FILE);
    let args = ["config", "--config", "deep/b.toml", "--cap", "1M"];
    let output = breakbulk(dir.path(), &[("BREAKBULK_TOKEN", "hunter2hunter2hunter2")], &args);
    let table = text(&output.stdout);
    let row = |key: &str| table.lines().find(|line| line.split(' ').next() == Some(key)).unwrap();
    let words = |key: &str| row(key).split("  ").filter(|cell| !cell.is_empty()).map(str::trim).collect::<Vec<_>>();
    assert_eq!(words("KEY"), ["KEY", "VALUE", "FROM"]);
    assert_eq!(words("config"), ["config", "deep/b.toml", "flag --config"]);
    assert_eq!(words("cap"), ["cap", "1M", "flag --cap"]);
    assert_eq!(words("max_groups"), ["max_groups", "4", "file b.toml:5"]);
    assert_eq!(words("token"), ["token", "(set)", "BREAKBULK_TOKEN"]);
    assert_eq!(words("tls_cert"), ["tls_cert", "(none)", "default"]);
    let at = row("KEY").find("VALUE");
    assert!(["cap", "header", "log_level"].iter().all(|key| row(key).find(words(key)[1]) == at), "{table}");
    assert!(table.contains("\n                       X-Trace: (set)\n"), "{table}");
    assert!(table.lines().all(|line| line.len() <= 100), "{table}");
}

#[test]
fn it_takes_the_format_of_serve_and_says_where_a_host_listens() {
    let dir = with("b.toml", "");
    let run = |args: &[&str]| breakbulk(dir.path(), &[], args);
    assert_eq!(run(&["config", "--format", "json"]).stdout, run(&["config", "--json"]).stdout);
    let table = run(&["config", "--format", "text"]);
    let listen = text(&table.stdout).lines().find(|line| line.starts_with("listen ")).unwrap().to_owned();
    assert!(listen.contains("(serve: ws://127.0.0.1:4140/ahp)"), "{listen}");
}

#[test]
fn a_listening_address_may_be_a_port_alone_and_an_unknown_scheme_names_the_likely_one() {
    let dir = with("b.toml", "");
    for (typed, meant) in [
        ("127.0.0.1:4140", "ws://127.0.0.1:4140/"),
        (":4140", "ws://127.0.0.1:4140/"),
        ("localhost:0/agent?cap=1M", "ws://localhost:0/agent?cap=1000000"),
        ("[::1]:4140", "ws://[::1]:4140/"),
        ("unix:80", "unix:80"),
    ] {
        let objects = objects(dir.path(), &[], &["--listen", typed]);
        assert_eq!(object(&objects, "listen")["value"], meant, "{typed}");
    }
    let allowed = "allowed are ws://HOST:PORT, wss://HOST:PORT, unix:PATH, stdio: and exec:COMMAND";
    for (args, want) in [
        (
            ["--listen", "127.0.0.1"],
            "listen is \"127.0.0.1\" (flag --listen): unknown scheme \"127.0.0.1\"; did you mean ws://127.0.0.1:0 ? ",
        ),
        (
            ["--listen", "http://h:1"],
            "listen is \"http://h:1\" (flag --listen): unknown scheme \"http\"; did you mean ws://h:1 ? ",
        ),
        (
            ["--listen", "wss:127.0.0.1:1"],
            "listen is \"wss:127.0.0.1:1\" (flag --listen): unknown scheme \"wss:\"; did you mean wss://127.0.0.1:1 ? ",
        ),
        (
            ["--connect", "localhost:9000"],
            "connect is \"localhost:9000\" (flag --connect): unknown scheme \"localhost\"; did you mean ws://localhost:9000 ? ",
        ),
        (["--connect", "htp"], "connect is \"htp\" (flag --connect): unknown scheme \"htp\"; "),
        (["--listen", "4140"], "listen is \"4140\" (flag --listen): unknown scheme \"4140\"; did you mean :4140 ? "),
        (
            ["--connect", "npx -y server"],
            "connect is \"npx -y server\" (flag --connect): unknown scheme \"npx\"; did you mean exec:npx -y server ? ",
        ),
    ] {
        let output = breakbulk(dir.path(), &[], &[&["config"], &args[..]].concat());
        assert_refused(&output, &format!("{want}{allowed}"));
    }
    let token = breakbulk(dir.path(), &[], &["config", "--listen", "ws://127.0.0.1:1#token=0123456789abcdef"]);
    assert_refused(
        &token,
        "listen (flag --listen) is invalid: the token of clients is set with token, not in the address",
    );
}

#[test]
fn secrets_are_never_printed() {
    let dir = with("b.toml", FILE);
    let variables = [("BREAKBULK_TOKEN", "hunter2hunter2hunter2"), ("BREAKBULK_CONFIG", "b.toml")];
    for args in [
        &["config"][..],
        &["config", "--json"],
        &["config", "--token", "hunter2 hunter2"],
        &["config", "--header", "hunter2"],
        &["config", "--connect", "http://user:hunter2@host"],
        &["config", "--listen", "wss://127.0.0.1:1/?token=hunter2"],
        &["send", "http://user:hunter2@host", "--method", "m"],
        &["tap", "nowhere?token=hunter2"],
        &["bridge", "-vv", "--no-auth"],
    ] {
        let output = breakbulk(dir.path(), &variables, args);
        let all = [text(&output.stdout), text(&output.stderr)].concat();
        assert!(!all.is_empty() && !all.contains("hunter2"), "{args:?}: {all}");
    }
}

#[test]
fn a_bad_value_is_one_line_wherever_it_comes_from() {
    let dir = with("b.toml", "\n\nmax_groups = 0\n");
    let run = |variables: &[(&str, &str)], args: &[&str]| breakbulk(dir.path(), variables, args);
    assert_refused(
        &run(&[], &["config", "--cap", "1T"]),
        "cap is \"1T\" (flag --cap): not a number of bytes; allowed are such as 65536, 64KiB or 1M (k, M, G are powers of 1000, KiB, MiB, GiB of 1024)",
    );
    assert_refused(
        &run(&[("BREAKBULK_TLS_ROOTS", "mozilla")], &["config"]),
        "tls_roots is \"mozilla\" (BREAKBULK_TLS_ROOTS): allowed are native, webpki, both",
    );
    assert_refused(
        &run(&[("BREAKBULK_CONFIG", "b.toml")], &["config"]),
        "max_groups is \"0\" (file b.toml:3): allowed are 1 to 1024",
    );
    assert_refused(
        &run(&[("BREAKBULK_IDLE_TIMEOUT", "30")], &["send", "ws://127.0.0.1:1", "--method", "m"]),
        "idle_timeout is \"30\" (BREAKBULK_IDLE_TIMEOUT): allowed is a whole number and a unit, such as 500ms, 30s, \
         2m, 1h or 7d",
    );
    assert_refused(
        &run(&[], &["bridge", "--connect", "stdio:"]),
        "listen is not set: give --listen, BREAKBULK_LISTEN, or listen in the file",
    );
    assert_refused(
        &run(&[("BREAKBULK_TOKEN", "abc")], &["config"]),
        "token is \"(set)\" (BREAKBULK_TOKEN): a token has 16 to 1,024 characters, not 3",
    );
    assert_refused(
        &run(&[], &["send", "ws://127.0.0.1:1", "--method", "m", "--header", "Host: x"]),
        "header is \"Host: (set)\" (flag --header): header \"Host\" cannot be sent",
    );
    assert_refused(
        &run(&[("BREAKBULK_TOKEN", "abc")], &["config", "--no-auth"]),
        "token (BREAKBULK_TOKEN) and no_auth (flag --no-auth) cannot be used together",
    );
}

#[test]
fn a_bad_file_is_one_line() {
    let dir = with("b.toml", "cap = 1\nmax_mesage = 2\n");
    std::fs::write(dir.path().join("broken.toml"), "cap = 1\ncap = \n").unwrap();
    let run = |file: &str| breakbulk(dir.path(), &[], &["config", "--config", file]);
    assert_refused(&run("b.toml"), "unknown key \"max_mesage\" (file b.toml:2); did you mean max_message?");
    let broken = run("broken.toml");
    let stderr = text(&broken.stderr);
    assert!(stderr.starts_with("breakbulk: broken.toml:2 is not TOML: "), "{stderr}");
    assert_eq!((broken.status.code(), stderr.lines().count()), (Some(2), 1));
    let missing = run("missing.toml");
    let stderr = text(&missing.stderr);
    assert!(stderr.starts_with("breakbulk: cannot read missing.toml (flag --config): "), "{stderr}");
    assert_eq!((missing.status.code(), stderr.lines().count()), (Some(2), 1));
}

#[test]
fn the_file_is_the_named_one_else_the_usual_one_if_it_is_there() {
    let dir = with("breakbulk/config.toml", "max_groups = 1\n");
    std::fs::write(dir.path().join("flag.toml"), "max_groups = 2\n").unwrap();
    std::fs::write(dir.path().join("variable.toml"), "max_groups = 3\n").unwrap();
    let home = ("XDG_CONFIG_HOME", dir.path().to_str().unwrap());
    let variable = ("BREAKBULK_CONFIG", "variable.toml");
    let groups =
        |variables: &[(&str, &str)], args: &[&str]| object(&objects(dir.path(), variables, args), "max_groups");
    assert_eq!(groups(&[home, variable], &["--config", "flag.toml"])["value"], 2);
    assert_eq!(groups(&[home, variable], &[])["value"], 3);
    assert_eq!(groups(&[home], &[])["value"], 1);
    assert_eq!(groups(&[("XDG_CONFIG_HOME", "/nowhere")], &[])["value"], 8);
    assert_eq!(groups(&[], &[])["value"], 8);
}

#[test]
fn a_switch_of_the_file_can_be_undone() {
    let dir = with("b.toml", "no_auth = true\nkeep = true\n");
    let variables = [("BREAKBULK_CONFIG", "b.toml"), ("BREAKBULK_KEEP", "false")];
    let objects = objects(dir.path(), &variables, &["--no-auth=false"]);
    assert_eq!(
        (&object(&objects, "no_auth")["value"], &object(&objects, "keep")["value"]),
        (&json!(false), &json!(false))
    );
}

#[test]
fn a_variable_that_only_looks_like_ours_is_noted_and_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let output = breakbulk(dir.path(), &[("BREAKBULK_PORT", "tcp://10.0.0.1:80")], &["config"]);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(text(&output.stderr), "breakbulk: BREAKBULK_PORT is not a setting; ignored\n");
}

#[test]
fn splitting_and_joining_use_no_settings() {
    let dir = with("b.toml", "colour = 'red'\n");
    let variables = [("BREAKBULK_CONFIG", "b.toml"), ("BREAKBULK_CAP", "1T")];
    let output = breakbulk(dir.path(), &variables, &["join", "--dialect", "ahp"]);
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""));
}

#[test]
fn files_that_cannot_be_used_are_named_at_the_start() {
    let dir = with("bad.pem", "nothing of use\n");
    for (args, key) in [
        (&["--tls-ca", "/nonexistent"][..], "tls_ca is \"/nonexistent\" (flag --tls-ca): "),
        (&["--tls-ca", "bad.pem"], "tls_ca is \"bad.pem\" (flag --tls-ca): bad.pem: no certificate in it"),
        (&["--tls-client-ca", "/nonexistent"], "tls_client_ca is "),
        (
            &["--tls-cert", "/nonexistent", "--tls-key", "/nonexistent2"],
            "tls_cert is \"/nonexistent\" (flag --tls-cert): ",
        ),
        (&["--tls-client-cert", "/nonexistent", "--tls-client-key", "/nonexistent2"], "tls_client_cert is "),
    ] {
        let bridge = ["bridge", "--listen", "wss://127.0.0.1:0", "--connect", "wss://127.0.0.1:1"];
        let output = breakbulk(dir.path(), &[], &[&bridge, args].concat());
        let errors = text(&output.stderr);
        assert_eq!((output.status.code(), errors.lines().count()), (Some(2), 1), "{errors}");
        assert!(errors.starts_with(&format!("breakbulk: {key}")), "{errors}");
    }
}

#[test]
fn what_would_be_ignored_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| breakbulk(dir.path(), &[], args);
    assert_refused(
        &run(&["bridge", "--listen", "ws://127.0.0.1:0/a?x=1", "--connect", "exec:true"]),
        "listen is \"ws://127.0.0.1:0/a?x=1\" (flag --listen): unknown option \"x\" in the address; allowed are cap, dialect, \
         preset and private",
    );
    assert_refused(
        &run(&["tap", "stdio:", "--listen", "stdio:"]),
        "listen (flag --listen) and URL (argument) cannot both be stdio:",
    );
}

#[test]
fn what_a_bridge_does_not_start_with_is_told_by_config_in_the_same_words() {
    let dir = with("bad.pem", "nothing of use\n");
    let (listen, connect) = (["--listen", "ws://127.0.0.1:0"], ["--connect", "ws://127.0.0.1:1"]);
    let few = "allowed as a cap are 512 to 4294967295 bytes";
    let too_small = "ws://127.0.0.1:1/?cap=100";
    for (args, want) in [
        ([&listen[..], &connect, &["--cap", "100"]].concat(), format!("cap is \"100\" (flag --cap): {few}")),
        (
            vec!["--listen", "stdio:", "--connect", "exec:true", "--cap", "1"],
            format!("cap is \"1\" (flag --cap): {few}"),
        ),
        (
            [&listen[..], &["--connect", too_small, "--cap", "1M"]].concat(),
            format!("connect is \"{too_small}\" (flag --connect): {few}"),
        ),
        (
            [&["--listen", too_small], &connect[..]].concat(),
            format!("listen is \"{too_small}\" (flag --listen): {few}"),
        ),
        (
            [&listen[..], &connect, &["--tls-ca", "bad.pem"]].concat(),
            "tls_ca is \"bad.pem\" (flag --tls-ca): bad.pem: no certificate in it".to_owned(),
        ),
        (
            [&listen[..], &connect, &["--header", "Host: x"]].concat(),
            "header is \"Host: (set)\" (flag --header): header \"Host\" cannot be sent".to_owned(),
        ),
        (
            [&["--listen", "ws://0.0.0.0:0/"], &connect[..]].concat(),
            "listen is \"ws://0.0.0.0:0/\" (flag --listen): it can be reached from other machines: listen on 127.0.0.1, or \
             add --bind-any"
                .to_owned(),
        ),
    ] {
        for command in ["bridge", "config"] {
            assert_refused(&breakbulk(dir.path(), &[], &[&[command], &args[..]].concat()), &want);
        }
    }
    assert_refused(
        &breakbulk(dir.path(), &[], &["config", "--cap", "9"]),
        &format!("cap is \"9\" (flag --cap): {few}"),
    );
    let alone = ["config", "--listen", too_small];
    assert_refused(&breakbulk(dir.path(), &[], &alone), &format!("listen is \"{too_small}\" (flag --listen): {few}"));
    let send = ["send", too_small, "--method", "m"];
    assert_refused(&breakbulk(dir.path(), &[], &send), &format!("URL is \"{too_small}\" (argument): {few}"));
}
