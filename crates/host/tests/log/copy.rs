//! A log that is copied to another store is the same there: entries with their seqs, gaps, snapshots, rows, what is trimmed and
//! which session an entry is about.

use breakbulk_host::log::jetstream::{JetStreamConfig, JetStreamLog};
use breakbulk_host::log::sqlite::{Options, SqliteLog};
use breakbulk_host::log::{Batch, Channels, CopyError, Log, NewEntry, ReadError, Save, Seq};

use crate::common::{CHAT, SESSION, body, chat};
use crate::nats::NatsServer;

const ROOT: &str = "ahp-root://";

fn config() -> JetStreamConfig {
    JetStreamConfig::new("alpha".parse().unwrap())
}

/// A log of two runs, with everything that a log can have.
async fn filled(dir: &std::path::Path) -> SqliteLog {
    let log = SqliteLog::open(dir, Options::default()).await.unwrap();
    let about =
        |text: &str, session: &str| NewEntry { about: Some(session.into()), ..NewEntry::new(ROOT, text.to_owned()) };
    let batch = chat().open(ROOT, None).entry(ROOT, "\"own\"").push(about("\"about 1\"", SESSION));
    log.append(batch.open("ahp-chat:/2", Some("ahp-session:/2")).push(about("\"about 2\"", "ahp-session:/2")))
        .await
        .unwrap();
    for n in 0..20 {
        let batch = Batch::new().entry(CHAT, body(n, 50)).entry("ahp-chat:/2", body(n, 20));
        log.append(batch.entry(CHAT, body(n, 300_000 * usize::from(n % 7 == 0)))).await.unwrap();
    }
    let middle = log.bounds().await.unwrap().last;
    log.save(Save::new(CHAT).snapshot(middle, "1", "{}").row(0, "row 0").row(7, body(1, 700_000))).await.unwrap();
    log.trim(CHAT, middle - 20).await.unwrap();
    log.erase("ahp-session:/2").await.unwrap();
    log.close().await;
    let log = SqliteLog::open(dir, Options::default()).await.unwrap();
    log.append(Batch::new().entry(CHAT, "\"second run\"")).await.unwrap();
    log
}

/// All that an export has, but for the version of the store.
fn without_head(export: &[u8]) -> String {
    let text = std::str::from_utf8(export).unwrap();
    let (head, rest) = text.split_once('\n').unwrap();
    assert!(head.contains("\"log\":\"breakbulk\""), "{head}");
    rest.to_owned()
}

/// Positions whose lag says something about gaps.
async fn lags(log: &dyn Log) -> Vec<Option<u64>> {
    let last = log.bounds().await.unwrap().last;
    (0..40).map(|back| last - back).chain([0, 1, last / 2, last + 1, last - (1 << 18)]).map(|at| log.lag(at)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_goes_to_jetstream_and_back_with_all_that_it_has() {
    let (server, here, there) = (NatsServer::start(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let file = filled(here.path()).await;
    let copied = JetStreamLog::copy_from(&file, server.connect().await, config()).await.unwrap();
    let usage = file.usage().await.unwrap();
    assert_eq!(copied.entries, usage.iter().map(|usage| usage.entries).sum::<u64>());
    let stream = JetStreamLog::follow(server.connect().await, config()).await.unwrap();
    let (mut one, mut other) = (Vec::new(), Vec::new());
    assert!(file.export(Channels::All, &mut one).await.unwrap().is_empty());
    assert!(stream.export(Channels::All, &mut other).await.unwrap().is_empty());
    assert_eq!(without_head(&other), without_head(&one));
    assert_eq!(stream.channels(None).await.unwrap(), file.channels(None).await.unwrap());
    assert_eq!(stream.bounds().await.unwrap(), file.bounds().await.unwrap());
    assert_eq!(lags(&stream).await, lags(&file).await);
    assert!(matches!(stream.read(CHAT, 0..Seq::MAX, 1).await, Err(ReadError::Trimmed { .. })));
    assert!(stream.verify().await.unwrap().is_clean());

    let copied_back = SqliteLog::copy_from(&stream, there.path()).await.unwrap();
    assert_eq!(copied_back, copied);
    let back = SqliteLog::open_for_reading(there.path()).await.unwrap();
    let mut again = Vec::new();
    assert!(back.export(Channels::All, &mut again).await.unwrap().is_empty());
    assert_eq!(without_head(&again), without_head(&one));
    assert_eq!(lags(&back).await, lags(&file).await);
    assert!(back.verify().await.unwrap().is_clean());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_goes_on_above_all_seqs_and_erases_what_is_about_a_session() {
    let (server, here, there) = (NatsServer::start(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let file = filled(here.path()).await;
    let last = file.bounds().await.unwrap().last;
    JetStreamLog::copy_from(&file, server.connect().await, config()).await.unwrap();
    SqliteLog::copy_from(&JetStreamLog::follow(server.connect().await, config()).await.unwrap(), there.path())
        .await
        .unwrap();
    let stream = JetStreamLog::open(server.connect().await, config()).await.unwrap();
    let back = SqliteLog::open(there.path(), Options::default()).await.unwrap();
    for log in [&stream as &dyn Log, &back] {
        let seq = log.append(Batch::new().expect(CHAT, last).entry(CHAT, "\"more\"")).await.unwrap()[0];
        assert!(seq > last);
        let erased = log.erase(SESSION).await.unwrap();
        assert!(erased > 1);
        let root = log.read(ROOT, 0..Seq::MAX, 1 << 20).await.unwrap();
        let root: Vec<_> = root.iter().map(|entry| std::str::from_utf8(&entry.body).unwrap()).collect();
        assert_eq!(root, ["\"own\""]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_copied_over_a_log() {
    let (server, here) = (NatsServer::start(), tempfile::tempdir().unwrap());
    let file = filled(here.path()).await;
    let stream = JetStreamLog::open(server.connect().await, config()).await.unwrap();
    let copied = JetStreamLog::copy_from(&file, server.connect().await, config()).await;
    assert!(matches!(copied, Err(CopyError::Exists)), "{copied:?}");
    let copied = SqliteLog::copy_from(&stream, here.path()).await;
    assert!(matches!(copied, Err(CopyError::Exists)), "{copied:?}");
}
