//! `breakbulk log` on a real file.
#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod common;

use std::path::Path;

use ahp_types::ROOT_RESOURCE_URI as ROOT;
use breakbulk_host::log::sqlite::{Options, SqliteLog};
use breakbulk_host::log::{Batch, Log, NewEntry};
use breakbulk_host::test_support::state::{SnapshotState, entry};
use serde_json::{Value, json};
use tempfile::TempDir;

use common::text;

const ONE: &str = "ahp-session:/one";
const TWO: &str = "ahp-session:/two";
const CHAT: &str = "ahp-chat:/1";

/// A log with a root, two sessions and a chat of a hundred entries.
fn made() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let log = SqliteLog::open(dir.path(), options()).await.unwrap();
        let mut batch = Batch::new().open(ROOT, None);
        for session in [ONE, TWO] {
            let time = "2026-01-15T12:34:56.789Z";
            let summary = json!({ "provider": "demo", "title": format!("About\t{session}"), "status": 1, "resource": session,
                                  "createdAt": time, "modifiedAt": time });
            let added = json!({ "method": "root/sessionAdded", "params": { "channel": ROOT, "summary": summary } });
            batch = batch.push(NewEntry::new(ROOT, added.to_string()).about(session));
            batch = batch.open(session, Some(session)).entry(session, json!({ "hello": session }).to_string());
        }
        log.append(batch.open("test:/chat", Some(ONE))).await.unwrap();
        for n in 0..100 {
            let body = json!({ "n": n, "secret": "needle", "text": "x".repeat(200) }).to_string();
            log.append(Batch::new().entry("test:/chat", body)).await.unwrap();
        }
        log.close().await;
    });
    dir
}

/// With seqs that begin with 1.
fn options() -> Options {
    let options = Options::default();
    options.faults().clock.store(1, std::sync::atomic::Ordering::Relaxed);
    options
}

/// Runs `breakbulk log`: its status, what it printed, and what it said.
fn log(dir: &Path, args: &[&str]) -> (Option<i32>, String, String) {
    let data = dir.to_str().unwrap();
    let output = common::breakbulk(dir, &[("BREAKBULK_DATA", data)], &[&["log"], args].concat());
    (output.status.code(), text(&output.stdout).to_owned(), text(&output.stderr).to_owned())
}

/// What it prints where all goes well.
fn printed(dir: &Path, args: &[&str]) -> String {
    let (status, out, error) = log(dir, args);
    assert_eq!((status, error.as_str()), (Some(0), ""), "{args:?}");
    out
}

fn objects(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
}

#[test]
fn channels_are_listed_with_their_session_and_times() {
    let dir = made();
    let table = printed(dir.path(), &["list"]);
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["CHANNEL", "ENTRIES", "BYTES", "FIRST", "LAST", "OLDEST", "NEWEST", "SESSION", "TITLE"]);
    assert_eq!((rows[1][0], rows[1][1], rows[1][7], rows[1][8]), (ROOT, "2", "-", "-"));
    let chat = rows.iter().find(|row| row[0] == "test:/chat").unwrap();
    assert_eq!((chat[1], chat[3], chat[4], chat[7]), ("100", "5", "104", ONE));
    assert_eq!(chat[8..], ["About", ONE]);
    assert!(chat[5].starts_with("20") && chat[5].ends_with('Z') && chat[5] <= chat[6], "{chat:?}");
    let list: Vec<Value> = serde_json::from_str(&printed(dir.path(), &["list", "--json", "--session", ONE])).unwrap();
    let names: Vec<_> = list.iter().map(|channel| channel["channel"].as_str().unwrap()).collect();
    assert_eq!(names, [ONE, "test:/chat"]);
    assert_eq!((&list[1]["entries"], &list[1]["first"]), (&json!(100), &json!(5)));
    assert_eq!(list[0]["title"], json!(format!("About\t{ONE}")));
}

#[test]
fn entries_of_a_channel_are_shown_from_a_seq_on() {
    let dir = made();
    let lines = printed(dir.path(), &["show", "test:/chat", "--from", "100", "--limit", "3"]);
    assert_eq!(lines.lines().count(), 3);
    let first: Vec<&str> = lines.lines().next().unwrap().split_whitespace().collect();
    assert_eq!((first[0], first[3].starts_with("{\"n\":95,")), ("100", true), "{lines}");
    assert!(lines.lines().all(|line| line.ends_with('…')), "{lines}");
    let all = objects(&printed(dir.path(), &["show", "test:/chat", "--json"]));
    let numbers: Vec<_> = all.iter().map(|entry| entry["body"]["n"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (0..100).collect::<Vec<_>>());
    let (status, out, error) = log(dir.path(), &["show", "test:/other"]);
    assert_eq!((status, out.as_str()), (Some(1), ""));
    assert!(error.ends_with("has no channel \"test:/other\"\n"), "{error}");
}

#[test]
fn a_session_is_exported_whole_and_alone() {
    let dir = made();
    let all = objects(&printed(dir.path(), &["export"]));
    assert_eq!((&all[0]["log"], &all[0]["last"]), (&json!("breakbulk"), &json!(104)));
    assert_eq!(all.iter().filter(|line| line["seq"].is_u64()).count(), 104);
    let one = objects(&printed(dir.path(), &["export", "--session", ONE]));
    let strangers = one.iter().filter(|line| line["channel"] == TWO || line["channel"] == ROOT).count();
    assert_eq!((strangers, one.iter().filter(|line| line["seq"].is_u64()).count()), (0, 101));
    assert_eq!(log(dir.path(), &["export", "--session", "x"]).0, Some(1));
}

#[test]
fn a_good_log_is_verified_and_damage_is_named_with_its_seq() {
    let dir = made();
    let report = printed(dir.path(), &["verify"]);
    assert!(report.starts_with("104 entries, 0 rows, 0 snapshots, "), "{report}");
    assert!(report.ends_with(" bytes, all as they were written\n"), "{report}");
    // Into the file, where a bit can be turned.
    let compacted = printed(dir.path(), &["compact"]);
    let words: Vec<&str> = compacted.split_whitespace().collect();
    assert_eq!((&words[..3], words[4], words[5]), (&["0", "entries", "trimmed;"][..], "kB", "before,"), "{compacted}");
    let path = dir.path().join("log.db");
    let mut bytes = std::fs::read(&path).unwrap();
    let at = bytes.windows(30).position(|window| window.starts_with(b"{\"n\":50,\"secret\":\"needle\"")).unwrap();
    bytes[at + 18] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let (status, out, error) = log(dir.path(), &["verify"]);
    assert_eq!((status, error.as_str()), (Some(1), "breakbulk: one record is damaged\n"), "{out}");
    assert!(out.starts_with("103 entries, ") && out.ends_with("damaged: entry 55\n"), "{out}");
    // Everything else is still there, with a word where something is missing.
    let told = "breakbulk: entry 55 is damaged\nbreakbulk: one record is damaged\n";
    let (status, out, error) = log(dir.path(), &["show", "test:/chat"]);
    assert_eq!((status, out.lines().count(), error.as_str()), (Some(1), 99, told));
    let (status, out, error) = log(dir.path(), &["export"]);
    let told = "breakbulk: entry 55 is damaged, and left out\nbreakbulk: one record is damaged\n";
    assert_eq!((status, error.as_str()), (Some(1), told));
    let lines = objects(&out);
    assert_eq!(lines.iter().filter(|line| line["seq"].is_u64()).count(), 103);
    let at = lines.iter().position(|line| line["damaged"] == "entry 55").unwrap();
    assert_eq!((&lines[at - 1]["seq"], &lines[at + 1]["seq"]), (&json!(54), &json!(56)));
}

#[test]
fn a_channel_whose_first_entry_is_damaged_is_not_trimmed_and_makes_compacting_fail() {
    // New, and after an earlier channel of the same name has ended.
    for was_used_before in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let first = chat_of_ten_turns(dir.path(), was_used_before);
        // Into the file, where a bit can be turned.
        printed(dir.path(), &["compact"]);
        let path = dir.path().join("log.db");
        let whole = std::fs::read(&path).unwrap();
        let mut bytes = whole.clone();
        let at = whole.windows(6).position(|window| window == b"needle").unwrap();
        bytes[at] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
        let (status, out, error) = log(dir.path(), &["compact", "--keep-for", "1ms"]);
        assert_eq!(status, Some(1), "{out}{error}");
        assert!(out.starts_with("0 entries trimmed; "), "{out}");
        let why = format!("no entries of {CHAT} are removed, because it cannot be saved: entry {first} is damaged\n");
        assert!(error.contains(&why), "{error}");
        // The same log without the damage is trimmed.
        for rest in ["log.db-wal", "log.db-shm"] {
            let _ = std::fs::remove_file(dir.path().join(rest));
        }
        std::fs::write(&path, whole).unwrap();
        let all = first + 20;
        let out = printed(dir.path(), &["compact", "--keep-for", "1ms"]);
        assert!(out.starts_with(&format!("{all} entries trimmed; ")), "{out}");
    }
}

/// A log with a chat of ten turns; the seq of its first entry.
fn chat_of_ten_turns(dir: &Path, was_used_before: bool) -> u64 {
    let time = "2026-01-01T00:00:00.000Z";
    let initial = |title: &str| {
        let state = json!({"resource": CHAT, "title": title, "status": 1, "modifiedAt": time, "turns": []});
        entry::initial(CHAT, &SnapshotState::Chat(serde_json::from_value(state).unwrap())).unwrap()
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let log = SqliteLog::open(dir, options()).await.unwrap();
        let mut batch = Batch::new().open(CHAT, None);
        if was_used_before {
            batch = batch.entry(CHAT, initial("earlier")).entry(CHAT, entry::closed(CHAT).unwrap());
        }
        let seqs = log.append(batch.entry(CHAT, initial("needle"))).await.unwrap();
        for n in 0..10 {
            let message = json!({"text": "go on", "origin": {"kind": "user"}});
            let begin =
                json!({"type": "chat/turnStarted", "turnId": n.to_string(), "startedAt": time, "message": message});
            let end = json!({"type": "chat/turnComplete", "turnId": n.to_string(), "duration": 5});
            for action in [begin, end] {
                let action = serde_json::from_value(action).unwrap();
                log.append(Batch::new().entry(CHAT, entry::action(CHAT, &action, None).unwrap())).await.unwrap();
            }
        }
        log.close().await;
        *seqs.last().unwrap()
    })
}

#[test]
fn missing_entries_and_a_damaged_file_are_called_so() {
    let dir = made();
    printed(dir.path(), &["compact"]);
    let path = dir.path().join("log.db");
    let backup = std::fs::read(&path).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let log = SqliteLog::open(dir.path(), options()).await.unwrap();
        log.append(Batch::new().entry("test:/chat", "{}")).await.unwrap();
        log.close().await;
    });
    for rest in ["log.db-wal", "log.db-shm"] {
        drop(std::fs::remove_file(dir.path().join(rest)));
    }
    std::fs::write(&path, &backup).unwrap();
    let (status, out, error) = log(dir.path(), &["verify"]);
    assert_eq!((status, error.as_str()), (Some(1), "breakbulk: entries are missing\n"), "{out}");
    assert!(out.contains("\nmissing: seqs up to "), "{out}");
    // A page of the table of entries that is none.
    let mut bytes = backup;
    let at = bytes.windows(8).position(|window| window == b"{\"n\":50,").unwrap() / 4096 * 4096;
    bytes[at..at + 16].fill(0xff);
    std::fs::write(&path, bytes).unwrap();
    let (status, out, error) = log(dir.path(), &["verify"]);
    let want = "breakbulk: the file is damaged: restore a backup, or save what is whole with `breakbulk log export`\n";
    assert_eq!((status, error.as_str()), (Some(1), want), "{out}");
}

#[test]
fn what_is_no_longer_kept_goes_and_what_it_made_stays() {
    let dir = tempfile::tempdir().unwrap();
    let terminal = "ahp-terminal:/1";
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let log = SqliteLog::open(dir.path(), options()).await.unwrap();
        let state = json!({ "title": "sh", "content": [], "lifecycle": { "status": "running" },
                            "claim": { "kind": "client", "clientId": "c" } });
        let state = SnapshotState::Terminal(serde_json::from_value(state).unwrap());
        let begin = entry::initial(terminal, &state).unwrap();
        log.append(Batch::new().open(terminal, None).entry(terminal, begin)).await.unwrap();
        for _ in 0..50 {
            let action = json!({ "type": "terminal/data", "data": "x".repeat(10_000) });
            let body = json!({ "channel": terminal, "action": action }).to_string();
            log.append(Batch::new().entry(terminal, body)).await.unwrap();
        }
        log.close().await;
    });
    let all = printed(dir.path(), &["compact"]);
    assert!(all.starts_with("0 entries trimmed; "), "{all}");
    // Until they are older than that.
    std::thread::sleep(std::time::Duration::from_millis(20));
    let some = printed(dir.path(), &["compact", "--keep-for", "1ms"]);
    assert!(some.starts_with("51 entries trimmed; "), "{some}");
    let sizes: Vec<f64> = some.split_whitespace().filter_map(|word| word.parse().ok()).skip(1).collect();
    assert_eq!(some.matches("kB").count(), 2, "{some}");
    assert!(sizes.len() == 2 && sizes[1] < sizes[0], "{some}");
    let list: Vec<Value> = serde_json::from_str(&printed(dir.path(), &["list", "--json"])).unwrap();
    assert_eq!((&list[0]["entries"], &list[0]["snapshot"]), (&json!(0), &json!(51)));
    let (status, out, error) = log(dir.path(), &["show", terminal]);
    assert_eq!((status, out.as_str(), error.as_str()), (Some(0), "", "breakbulk: entries before 52 were trimmed\n"));
    let snapshot = objects(&printed(dir.path(), &["export"]));
    assert_eq!(snapshot[1]["snapshot"]["seq"], 51, "{snapshot:?}");
}

#[test]
fn all_that_is_listed_can_be_erased() {
    let dir = made();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let passing = ["ahp-terminal:/1", "ahp-resource-watch:/1", "test:/of-none"];
    runtime.block_on(async {
        let log = SqliteLog::open(dir.path(), Options::default()).await.unwrap();
        for channel in passing {
            let body = json!({ "secret": "whisper" }).to_string();
            log.append(Batch::new().open(channel, None).entry(channel, body)).await.unwrap();
        }
        log.close().await;
    });
    let (status, _, error) = log(dir.path(), &["erase", "test:/chat", "--yes"]);
    assert_eq!(
        (status, error.contains("test:/chat belongs to ahp-session:/one: erase that")),
        (Some(1), true),
        "{error}"
    );
    for channel in passing {
        let gone = printed(dir.path(), &["erase", channel, "--yes"]);
        assert_eq!(gone, format!("{channel} is gone, with 1 entry\n"));
        assert!(!printed(dir.path(), &["list"]).contains(channel));
    }
    for session in [ONE, TWO] {
        printed(dir.path(), &["erase", session, "--yes"]);
    }
    assert!(printed(dir.path(), &["erase", ROOT, "--yes"]).starts_with("the past of ahp-root:// is gone"));
    for name in ["log.db", "log.db-wal"] {
        let bytes = std::fs::read(dir.path().join(name)).unwrap();
        for trace in [&b"whisper"[..], b"needle", ONE.as_bytes(), b"ahp-terminal"] {
            assert!(!bytes.windows(trace.len()).any(|window| window == trace), "{name}");
        }
    }
    let (status, _, error) = log(dir.path(), &["erase", "ahp-terminal:/1", "--yes"]);
    assert_eq!((status, error.contains("no session or channel \"ahp-terminal:/1\"")), (Some(1), true), "{error}");
    assert!(printed(dir.path(), &["verify"]).contains("all as they were written"));
}

#[test]
fn an_erased_session_is_nowhere_and_others_stay() {
    let dir = made();
    let (status, _, error) = log(dir.path(), &["erase", ONE]);
    assert_eq!((status, error.contains("--yes")), (Some(2), true), "{error}");
    let gone = printed(dir.path(), &["erase", ONE, "--yes"]);
    assert!(gone.starts_with("ahp-session:/one is gone, with 10"), "{gone}");
    let table = printed(dir.path(), &["list"]);
    assert!(!table.contains(ONE) && !table.contains("test:/chat") && table.contains(TWO), "{table}");
    for name in ["log.db", "log.db-wal"] {
        let bytes = std::fs::read(dir.path().join(name)).unwrap();
        for trace in [&b"needle"[..], ONE.as_bytes()] {
            assert!(!bytes.windows(trace.len()).any(|window| window == trace), "{name}");
        }
    }
    assert_eq!(log(dir.path(), &["erase", ONE, "--yes"]).0, Some(1), "it is gone already");
    assert!(printed(dir.path(), &["verify"]).contains("all as they were written"));
}

#[test]
fn nothing_is_made_where_there_is_no_log() {
    let dir = tempfile::tempdir().unwrap();
    for args in [&["list"][..], &["verify"], &["export"], &["show", "x"], &["compact"], &["erase", "x", "--yes"]] {
        let (status, out, error) = log(dir.path(), args);
        assert_eq!((status, out.as_str()), (Some(1), ""), "{args:?}");
        let want = format!("{} has no log; is --data the directory of the host?\n", dir.path().display());
        assert!(error.ends_with(&want), "{error}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}
