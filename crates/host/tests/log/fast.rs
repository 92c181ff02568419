//! What makes the log fast keeps its laws.

use std::sync::atomic::Ordering::Relaxed;

use breakbulk_host::log::sqlite::{Options, SqliteLog};
use breakbulk_host::log::{Batch, Bytes, Log};

use crate::common::{CHAT, body, chat, join, open, small, texts};

#[tokio::test]
async fn a_commit_never_lengthens_the_write_ahead_log_not_even_in_a_new_log() {
    let dir = tempfile::tempdir().unwrap();
    let len = || std::fs::metadata(dir.path().join("log.db-wal")).unwrap().len();
    // A sync of a file that grows waits for its new length, too.
    for _ in 0..2 {
        let log = open(&dir).await;
        assert_eq!(len(), small().wal_bytes);
        for n in 0..200 {
            log.append(chat().entry(CHAT, body(n, 300))).await.unwrap();
            assert_eq!(len(), small().wal_bytes);
        }
        log.close().await;
    }
}

#[tokio::test]
async fn many_batches_in_one_transaction_are_each_known_when_they_come_again() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(&dir).await;
    log.append(chat()).await.unwrap();
    // Enough for statements of many rows and some over, once with bodies too large to share one.
    let batches: Vec<Batch> =
        (0..150).map(|n| Batch::new().entry(CHAT, body(n, if n < 60 { 20_000 } else { 20 }))).collect();
    let appends: Vec<_> = batches.iter().cloned().map(|batch| log.append(batch)).collect();
    let mut seqs = Vec::new();
    for append in join(appends).await {
        seqs.push(append.unwrap());
    }
    assert_eq!(seqs.concat(), (1..=150).collect::<Vec<_>>());
    let bodies: Vec<_> = batches.iter().map(|batch| batch.entries[0].body.clone()).collect();
    for (batch, seqs) in batches.iter().zip(&seqs) {
        assert_eq!(log.append(batch.clone()).await.as_ref(), Ok(seqs));
    }
    // And by whoever opens it next, who has only the file to look into.
    log.close().await;
    let log = open(&dir).await;
    for (batch, seqs) in batches.iter().zip(&seqs) {
        assert_eq!(log.append(batch.clone()).await.as_ref(), Ok(seqs));
    }
    assert_eq!(texts(&log).await.into_iter().map(|(_, body)| body).collect::<Vec<_>>(), bodies);
    assert!(log.verify().await.unwrap().is_clean());
}

/// With eight sources that have forty batches each waiting, and with forty batches of 30 MB that are written in pieces, a small batch waits for
/// the transaction under way, for a checkpoint (two syncs), and for its own transaction, however much waits.
#[tokio::test]
async fn a_small_batch_beside_bulk_waits_for_fewer_than_eight_syncs() {
    for (sources, each, len) in [(8, 40, 100_000), (1, 40, 30_000_000)] {
        let dir = tempfile::tempdir().unwrap();
        let log = SqliteLog::open(dir.path(), Options::default()).await.unwrap();
        log.append(chat()).await.unwrap();
        let bulk = Bytes::from(body(0, len));
        let tasks: Vec<_> = (0..sources * each)
            .map(|n| {
                let (log, bulk, source) = (log.clone(), bulk.clone(), n % sources);
                tokio::spawn(async move {
                    let (source, channel) = (format!("bulk-{source}"), format!("ahp-terminal:/{source}"));
                    loop {
                        let batch = Batch::new().from_source(&*source).open(&*channel, None);
                        log.append(batch.entry(&*channel, bulk.clone())).await.unwrap();
                    }
                })
            })
            .collect();
        for n in 0..100 {
            let batch = Batch::new().from_source("person").entry(CHAT, body(n, 300));
            log.append(batch).await.unwrap();
        }
        tasks.iter().for_each(tokio::task::JoinHandle::abort);
        let written = log.metrics().syncs.load(Relaxed);
        let (counts, all) = (log.metrics().small_append_syncs.counts(), log.metrics().small_append_syncs.count());
        assert!(all >= 100 && written >= 100, "{all} batches, {written} syncs");
        // The bucket n has what is below 2^n, so this is: none waited for eight.
        assert_eq!(counts[4..].iter().sum::<u64>(), 0, "{sources} x {each} of {len}: {counts:?}");
    }
}
