//! What holds for the log in JetStream beside the laws that the model has.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use breakbulk_host::log::jetstream::{JetStreamConfig, JetStreamLog};
use breakbulk_host::log::{AppendError, Batch, Channels, Entry, Log, LogHealth, NewEntry, ReadError, Save, Seq};

use crate::common::{CHAT, SESSION, all, body, chat, texts};
use crate::nats::NatsServer;

fn config() -> JetStreamConfig {
    JetStreamConfig::new("alpha".parse().unwrap())
}

async fn open(server: &NatsServer) -> JetStreamLog {
    JetStreamLog::open(server.connect().await, config()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_owner_fences_the_old_one_and_nobody_is_acknowledged_twice() {
    let server = NatsServer::start();
    let old = open(&server).await;
    old.append(chat().entry(CHAT, body(1, 10))).await.unwrap();
    let new = open(&server).await;
    assert_eq!(new.epoch(), old.epoch() + 1);
    assert_eq!(old.append(Batch::new().entry(CHAT, body(2, 10))).await, Err(AppendError::Fenced));
    assert_eq!(*old.health().borrow(), LogHealth::Fenced);
    let seqs = new.append(Batch::new().entry(CHAT, body(3, 10))).await.unwrap();
    let texts = texts(&new).await;
    assert_eq!(texts.len(), 2);
    assert_eq!((texts[1].0, &*texts[1].1), (seqs[0], body(3, 10).as_bytes()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_whose_answer_is_lost_is_in_the_stream_once() {
    let server = NatsServer::start();
    let config = config();
    let log = JetStreamLog::open(server.connect().await, config.clone()).await.unwrap();
    log.append(chat().entry(CHAT, body(0, 10))).await.unwrap();
    for n in 1..20 {
        let fault = if n % 2 == 0 { &config.faults().lose_publish } else { &config.faults().lose_answer };
        fault.store(true, Relaxed);
        let batch = Batch::new().entry(CHAT, body(n, 10)).entry("ahp-root://", "{}").open("ahp-root://", None);
        assert_eq!(log.append(batch).await.unwrap().len(), 2);
    }
    let entries = all(&log, 0, Channels::only([CHAT])).await.unwrap();
    let bodies: Vec<_> = entries.iter().map(|entry| entry.body.clone()).collect();
    assert_eq!(bodies, (0..20).map(|n| body(n, 10)).collect::<Vec<_>>());
    assert!(log.health().borrow().is_good());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_longer_than_a_message_are_read_whole_also_by_a_node_that_never_saw_them() {
    let server = NatsServer::start();
    let log = open(&server).await;
    let lengths = [10, 200_000, 3_000_000, 0, 30_000_000, 131_072, 131_073, 262_144];
    let batch = lengths.iter().fold(chat(), |batch, len| batch.entry(CHAT, body(7, *len)));
    let seqs = log.append(batch).await.unwrap();
    let bodies: Vec<String> = lengths.iter().map(|len| body(7, *len)).collect();
    for log in [log, JetStreamLog::follow(server.connect().await, config()).await.unwrap()] {
        let entries = log.read(CHAT, 0..Seq::MAX, usize::MAX >> 1).await.unwrap();
        assert_eq!(entries.iter().map(|entry| entry.seq).collect::<Vec<_>>(), seqs);
        assert!(entries.iter().zip(&bodies).all(|(entry, body)| *entry.body == *body.as_bytes()));
        assert!(log.verify().await.unwrap().is_clean());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_sees_what_the_owner_appends_trims_and_erases() {
    let server = NatsServer::start();
    let owner = open(&server).await;
    owner.append(chat().entry(CHAT, body(0, 10))).await.unwrap();
    let follower = JetStreamLog::follow(server.connect().await, config()).await.unwrap();
    assert_eq!(follower.append(Batch::new()).await, Err(AppendError::Closed));
    let mut tail = follower.tail(0, Channels::All);
    let mut seen: Vec<Entry> = tail.next(1 << 20).await.unwrap();
    let mut last = 0;
    for n in 1..50 {
        let batch = Batch::new().open("ahp-chat:/2", Some("ahp-session:/2"));
        let batch = batch.entry(CHAT, body(n, 300_000)).entry("ahp-chat:/2", body(n, 10));
        last = owner.append(batch).await.unwrap()[1];
    }
    while seen.last().unwrap().seq < last {
        seen.extend(tokio::time::timeout(Duration::from_secs(20), tail.next(1 << 20)).await.unwrap().unwrap());
    }
    assert_eq!(seen, all(&owner, 0, Channels::All).await.unwrap());
    owner.save(Save::new(CHAT).snapshot(last, "1", "{}").row(0, "row")).await.unwrap();
    owner.trim(CHAT, last).await.unwrap();
    owner.erase("ahp-session:/2").await.unwrap();
    let infos = owner.channels(None).await.unwrap();
    for _ in 0..1_000 {
        if follower.channels(None).await.unwrap() == infos {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(follower.channels(None).await.unwrap(), infos);
    assert_eq!(&*follower.snapshot(CHAT).await.unwrap().unwrap().body, b"{}");
    assert_eq!(follower.rows(CHAT, 0..9, 100).await.unwrap().rows, [(0, "row".into())]);
    for after in [0, last - 1, last] {
        assert_eq!(all(&follower, after, Channels::All).await, all(&owner, after, Channels::All).await, "{after}");
    }
    assert!(matches!(all(&follower, 0, Channels::All).await, Err(ReadError::Trimmed { .. })));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_bytes_of_an_erased_session_are_gone_from_the_files_of_the_server() {
    let server = NatsServer::start();
    let log = open(&server).await;
    log.append(chat().entry(CHAT, "the-short-secret").entry(CHAT, "the-long-secret".repeat(40_000))).await.unwrap();
    log.save(
        Save::new(CHAT).snapshot(log.bounds().await.unwrap().last, "1", "the-saved-secret").row(0, "the-row-secret"),
    )
    .await
    .unwrap();
    log.append(Batch::new().open("ahp-root://", None).entry("ahp-root://", "stays")).await.unwrap();
    assert!(
        ["the-short-secret", "the-long-secret", "the-saved-secret", "the-row-secret"].iter().all(|it| has(&server, it))
    );
    assert_eq!(log.erase(SESSION).await.unwrap(), 2);
    log.close().await;
    for secret in ["the-short-secret", "the-long-secret", "the-saved-secret", "the-row-secret"] {
        assert!(!has(&server, secret), "{secret}");
    }
    assert!(has(&server, "stays"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_that_is_more_messages_than_the_server_takes_at_once_is_refused_by_name() {
    const OTHER: &str = "ahp-chat:/2";
    let server = NatsServer::start();
    let log = open(&server).await;
    log.append(chat().open(OTHER, Some(SESSION))).await.unwrap();
    let batch = |count| (0..count).fold(Batch::new(), |batch, n| batch.entry([CHAT, OTHER][n % 2], "{}"));
    assert_eq!(
        log.append(batch(1_200)).await,
        Err(AppendError::TooManyMessages { messages: 1_200, limit: 900 }),
        "a caller that gets Unknown repeats it for ever"
    );
    assert_eq!(log.append(batch(900)).await.unwrap().len(), 900);
    assert!(log.health().borrow().is_good());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_channel_whose_last_entry_was_erased_is_read_to_its_end() {
    const ROOT: &str = "ahp-root://";
    let server = NatsServer::start();
    let log = open(&server).await;
    let about = NewEntry { about: Some(SESSION.into()), ..NewEntry::new(ROOT, "\"about\"") };
    log.append(chat().open(ROOT, None).entry(ROOT, "\"own\"").push(about)).await.unwrap();
    log.erase(SESSION).await.unwrap();
    let entries = log.read(ROOT, 0..Seq::MAX, 1 << 20).await.unwrap();
    assert_eq!(entries.iter().map(|entry| &*entry.body).collect::<Vec<_>>(), [b"\"own\""]);
}

/// Whether the server's files contain a text.
fn has(server: &NatsServer, text: &str) -> bool {
    let mut dirs = vec![server.store()];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                dirs.push(path);
            } else if std::fs::read(path).is_ok_and(|bytes| bytes.windows(text.len()).any(|it| it == text.as_bytes())) {
                return true;
            }
        }
    }
    false
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_killed_and_comes_back_has_all_that_was_acknowledged() {
    let mut server = NatsServer::start();
    let log = open(&server).await;
    log.append(chat()).await.unwrap();
    let mut acknowledged = Vec::new();
    for round in 0..3 {
        let appends = (0..200).map(|n| {
            let log = log.clone();
            Box::pin(async move { log.append(Batch::new().entry(CHAT, body(round * 1_000 + n, 100))).await })
        });
        let done = tokio::spawn(crate::common::join(appends.collect()));
        tokio::time::sleep(Duration::from_millis(3)).await;
        server.restart();
        for answer in done.await.unwrap() {
            acknowledged.extend(answer.unwrap());
        }
    }
    acknowledged.sort_unstable();
    let seqs: Vec<Seq> = texts(&log).await.into_iter().map(|(seq, _)| seq).collect();
    assert_eq!(seqs, acknowledged);
    let again = open(&server).await;
    assert_eq!(texts(&again).await, texts(&log).await);
}
