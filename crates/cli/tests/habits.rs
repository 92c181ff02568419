//! What people expect of any program: help that fits, completions, manual pages, lists for people and programs.
#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod common;

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use common::text;

const COMMANDS: [&str; 14] = [
    "serve",
    "chat",
    "log",
    "fleet",
    "bridge",
    "relay",
    "send",
    "tap",
    "split",
    "join",
    "presets",
    "config",
    "completions",
    "man",
];

const LOG_COMMANDS: [&str; 7] = ["list", "show", "verify", "export", "compact", "erase", "copy"];

/// All commands, each by its words.
fn every_command() -> Vec<Vec<&'static str>> {
    let log = LOG_COMMANDS.map(|command| vec!["log", command]);
    COMMANDS.map(|command| vec![command]).into_iter().chain(log).chain([vec!["fleet", "status"]]).collect()
}

/// What the program prints to a person with a terminal of `columns`.
fn printed(columns: &str, args: &[&str]) -> String {
    let output = common::breakbulk(Path::new("."), &[("COLUMNS", columns)], args);
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""), "{args:?}");
    text(&output.stdout).to_owned()
}

#[test]
fn help_fits_the_terminal() {
    for (columns, most) in [("80", 80), ("120", 100)] {
        for command in every_command() {
            for flag in ["-h", "--help"] {
                let help = printed(columns, &[&command[..], &[flag]].concat());
                let long: Vec<&str> = help.lines().filter(|line| line.chars().count() > most).collect();
                assert!(long.is_empty(), "{command:?} {flag} at {columns}: {long:#?}");
            }
        }
    }
}

#[test]
fn help_of_every_command_has_examples_of_it() {
    for command in every_command() {
        let help = printed("80", &[&command[..], &["--help"]].concat());
        assert!(help.contains(&format!("Examples:\n  breakbulk {}", command.join(" "))), "{command:?}: {help}");
    }
    assert_eq!(
        (listed(&[]), listed(&["log"])),
        (COMMANDS.map(str::to_owned).to_vec(), LOG_COMMANDS.map(str::to_owned).to_vec())
    );
}

/// The commands that the help of a command lists.
fn listed(command: &[&str]) -> Vec<String> {
    let help = printed("80", &[command, &["--help"]].concat());
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    // What goes on from the line before stands further in.
    let names = lines.filter_map(|line| line.strip_prefix("  ").filter(|line| !line.starts_with(' ')));
    let names = names.filter_map(|line| line.split(' ').next()).filter(|name| *name != "help");
    names.map(str::to_owned).collect()
}

#[test]
fn help_of_what_opens_links_has_examples_and_exit_statuses() {
    for command in ["bridge", "send", "tap"] {
        let help = printed("80", &[command, "--help"]);
        assert!(help.contains(&format!("Examples:\n  breakbulk {command} ")), "{help}");
        let words: Vec<&str> = help.split_whitespace().collect();
        let words = words.join(" ");
        for status in [
            "Exit status: 0 done, 1 failure",
            "2 bad arguments or settings",
            "3 the peer broke a rule",
            "4 disconnected",
        ] {
            assert!(words.contains(status), "{command}: {status}");
        }
    }
    assert!(printed("80", &["--help"]).contains("Exit status:\n  0    done\n"));
}

#[test]
fn what_lets_clients_in_is_a_flag_of_tap_and_not_of_send() {
    let flags = ["--token", "--no-auth", "--bind-any", "--tls-cert"];
    let (tap, send) = (printed("80", &["tap", "--help"]), printed("80", &["send", "--help"]));
    for flag in flags {
        assert!(tap.contains(&format!("  {flag}")) && !send.contains(&format!("  {flag}")), "{flag}");
    }
}

#[test]
fn who_gives_send_a_token_is_told_where_it_goes() {
    let args = ["send", "ws://127.0.0.1:1", "--method", "m", "--token", "0123456789abcdef"];
    let output = common::breakbulk(Path::new("."), &[], &args);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr.contains("--header 'Authorization: Bearer TOKEN'") && stderr.contains("#token="), "{stderr}");
    assert!(!stderr.contains("0123456789abcdef"), "{stderr}");
}

#[test]
fn params_come_from_one_place() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("bad.json"), "[1,").unwrap();
    let send = |args: &[&str]| {
        let args = [&["send", "ws://127.0.0.1:1", "--method", "m"], args].concat();
        let output = common::breakbulk(dir.path(), &[], &args);
        (output.status.code(), text(&output.stderr).to_owned())
    };
    let bad = "breakbulk: params in bad.json: EOF while parsing a value at line 1 column 3 [params-not-json]\n";
    assert_eq!(send(&["--params-file", "bad.json"]), (Some(2), bad.to_owned()));
    let bad = "breakbulk: params in --params: neither an object nor an array [params-not-structured]\n";
    assert_eq!(send(&["--params", "7"]), (Some(2), bad.to_owned()));
    let (status, stderr) = send(&["--params-file", "none.json"]);
    assert!(status == Some(1) && stderr.starts_with("breakbulk: cannot read none.json: "), "{stderr}");
    assert_eq!(send(&["--params", "{}", "--params-file", "bad.json"]).0, Some(2));
}

#[test]
fn a_method_has_a_name() {
    let output = common::breakbulk(Path::new("."), &[], &["send", "ws://127.0.0.1:1", "--method", ""]);
    let want = "breakbulk: --method is empty: allowed is the name of a method\n";
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(2), want));
}

#[test]
fn every_shell_gets_completions_for_every_command_and_flag() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = printed("80", &["completions", shell]);
        for word in COMMANDS.iter().chain(&["tls-self-signed", "max-message", "params-file"]) {
            assert!(script.contains(word), "{shell}: {word}");
        }
        // Two of them complete no values.
        assert!(script.contains("webpki") || ["elvish", "powershell"].contains(&shell), "{shell} offers values");
    }
    let script = printed("80", &["completions", "bash"]);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("breakbulk.bash");
    std::fs::write(&path, script).unwrap();
    // Where there is no bash, nobody reads its completions.
    if let Ok(status) = Command::new("bash").arg("-n").arg(&path).status() {
        assert!(status.success());
    }
}

#[test]
fn every_command_has_a_page_in_the_manual() {
    let main = printed("80", &["man"]);
    assert!(main.contains(".TH breakbulk 1") && main.contains("Exit status:"), "{main}");
    let dir = tempfile::tempdir().unwrap();
    let pages = dir.path().join("share/man1");
    assert_eq!(printed("80", &["man", "--dir", pages.to_str().unwrap()]), "");
    for command in COMMANDS {
        let page = std::fs::read_to_string(pages.join(format!("breakbulk-{command}.1"))).unwrap();
        assert!(page.contains(&format!(".TH breakbulk-{command} 1")), "{page}");
    }
    assert_eq!(std::fs::read_to_string(pages.join("breakbulk.1")).unwrap(), main);
}

#[test]
fn pages_that_cannot_be_written_are_a_failure() {
    let output = common::breakbulk(Path::new("."), &[], &["man", "--dir", "/dev/null/pages"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).starts_with("breakbulk: cannot write to /dev/null/pages: "));
}

#[test]
fn presets_are_listed_for_people_and_programs() {
    let list: Vec<Value> = serde_json::from_str(&printed("80", &["presets", "--json"])).unwrap();
    let table = printed("80", &["presets"]);
    assert!(table.starts_with("NAME"), "{table}");
    assert!(list.iter().any(|preset| preset["name"] == "web-pubsub"));
    let words: Vec<&str> = table.split_whitespace().collect();
    let words = words.join(" ");
    for preset in &list {
        let text = |field: &str| preset[field].as_str().unwrap();
        assert!(preset["cap"].as_u64().is_some_and(|cap| cap >= 512), "{preset}");
        assert!(table.lines().any(|line| line.split(' ').next() == Some(text("name"))), "{table}");
        assert!(words.contains(&format!("{} {}", text("about"), text("source"))), "{table}");
    }
    let long = |line: &&str| line.len() > 80 && !line.trim().starts_with("https://");
    assert_eq!(table.lines().find(long), None);
}
