//! While the log fails, nothing that an agent says is lost or logged twice.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use breakbulk_host::log::sqlite::{Options, SqliteLog};
use breakbulk_host::log::{AppendError, Log, MemoryLog};
use serde_json::{Value, json};

use crate::scripted_agent::{begun, ended, say, says};
use crate::test_host::{CHAT, TestHost, quick, text};

#[tokio::test]
async fn commits_that_fail_before_and_after_lose_and_repeat_nothing() {
    let good = TestHost::new(quick()).await;
    good.prompt(CHAT, "t", "/think").await;
    let want = good.turns(CHAT, 1).await;

    let directory = tempfile::tempdir().unwrap();
    let options = Options::default();
    let fails = [options.faults().fail_before_commit.clone(), options.faults().fail_after_commit.clone()];
    let log = Arc::new(SqliteLog::open(directory.path(), options).await.unwrap());
    let host = TestHost::on(log.clone(), quick()).await;
    let fail = fails.clone();
    let saboteur = tokio::spawn(async move {
        for round in 0..6_usize {
            fail[round % 2].store(true, Relaxed);
            tokio::time::sleep(Duration::from_millis(60)).await;
        }
    });
    host.prompt(CHAT, "t", "/think").await;
    saboteur.await.unwrap();
    fails.iter().for_each(|fail| fail.store(false, Relaxed));
    let got = host.turns(CHAT, 1).await;
    assert_eq!(got[0]["responseParts"], want[0]["responseParts"]);
    assert!(log.metrics().failures.load(Relaxed) > 0, "it did fail");
    host.inner.stop().await;
    log.close().await;
}

#[tokio::test(start_paused = true)]
async fn while_the_log_is_full_the_agent_waits_and_then_all_of_it_is_there() {
    let log = MemoryLog::new();
    let (host, _hand, events, turn) = TestHost::at_work(log.clone()).await;
    log.refuse(Some(AppendError::Full));
    say(&events, [begun(&turn)]).await;
    let speaker = tokio::spawn(async move {
        for n in 0..3_000 {
            say(&events, says(&format!("m{n}"), None, &format!("{n} "))).await;
        }
        say(&events, [ended(&turn)]).await;
    });
    // Longer than the desk tries.
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(!speaker.is_finished(), "nobody takes what it says");
    log.refuse(None);
    let turns = host.turns(CHAT, 1).await;
    let want: String = (0..3_000).map(|n| format!("{n} ")).collect();
    assert!(text(&turns[0]) == want);
    speaker.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_host_whose_log_is_gone_stops_all_the_same() {
    let log = MemoryLog::new();
    let (host, _hand, events, turn) = TestHost::at_work(log.clone()).await;
    log.refuse(Some(AppendError::Fenced));
    // Whoever speaks hears that nobody listens any more.
    say(&events, [begun(&turn)]).await;
    let speak = async {
        for event in (0..).flat_map(|n| says(&format!("m{n}"), None, "hm")) {
            if events.send(event).await.is_err() {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), speak).await.expect("the conversation is over");
    tokio::time::timeout(Duration::from_secs(30), host.inner.stop()).await.expect("it stops");
}

#[tokio::test(start_paused = true)]
async fn what_an_agent_says_while_a_client_cancels_its_turn_is_not_logged_behind_the_cancel() {
    let log = MemoryLog::new();
    let (host, _hand, events, turn) = TestHost::at_work(log.clone()).await;
    say(&events, [begun(&turn)]).await;
    say(&events, says("m1", None, "in time")).await;
    let is_heard = |chat: &Value| text(&chat["activeTurn"]) == "in time";
    host.until(CHAT, is_heard).await;
    // This is on its way to the log when the client cancels.
    log.refuse(Some(AppendError::Unknown));
    say(&events, says("m2", None, "too late")).await;
    tokio::time::sleep(Duration::from_millis(120)).await;
    log.refuse(None);
    host.cancel(CHAT, "t").await;
    let turns = host.turns(CHAT, 1).await;
    assert_eq!((&turns[0]["state"], text(&turns[0]).as_str()), (&json!("cancelled"), "in time"));
    // The next turn is served, so the task has gone on.
    host.prompt(CHAT, "t2", "go on").await;
    host.until(CHAT, |chat| chat["activeTurn"]["id"] == "t2").await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(!host.entries(CHAT).await.iter().any(|entry| entry.to_string().contains("too late")));
}
