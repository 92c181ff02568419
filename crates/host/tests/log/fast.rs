//! What makes the log fast keeps its laws.

use breakbulk_host::log::{Batch, Log};

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
