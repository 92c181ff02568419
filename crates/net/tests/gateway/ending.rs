//! The end of input, and of a side: what is under way arrives, however long that takes, and what is lost is counted.

use std::sync::Arc;
use std::time::Duration;

use breakbulk::gateway::{Gateway, Losses, Outcome};
use breakbulk::link::{self, Exec, ExecConfig, Lines, WebSocket, WebSocketConfig};
use breakbulk::{Dialect, Link, Setup};
use breakbulk_proto::ahp::Role;
use breakbulk_proto::{BudgetConfig, Capacity, CloseReason, Event, Input, Limits};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, DuplexStream, duplex, split};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::world::{App, join_until};

const REQUEST: &str = r#"{"jsonrpc":"2.0","id":1,"method":"m"}"#;
const ANSWER: &str = r#"{"jsonrpc":"2.0","id":1,"result":1}"#;
/// What a client hears in place of an answer.
const ENDED: &str = r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"the host ended before it answered","data":{"reason":"host-ended"}}}"#;
const SAID: &str = r#"{"jsonrpc":"2.0","method":"said"}"#;

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A pipe both ways, of which a link has one end.
fn pipe() -> (DuplexStream, impl Link + 'static) {
    let (ours, theirs) = duplex(1024);
    let (reader, writer) = split(theirs);
    (ours, Lines::new(reader, writer, Capacity::of(u64::MAX), 32 << 20))
}

fn join(downstream: impl Link + 'static, upstream: impl Link + 'static) -> JoinHandle<Outcome> {
    join_for(downstream, upstream, Duration::MAX)
}

/// Joins two links, and stops after a while.
fn join_for(downstream: impl Link + 'static, upstream: impl Link + 'static, time: Duration) -> JoinHandle<Outcome> {
    let plain = |role| Setup::new(Dialect::Plain, role, Limits::default());
    let gateway = Arc::new(Gateway::new(plain(Role::Server), plain(Role::Client), BudgetConfig::default()).unwrap());
    join_until(&gateway, downstream, upstream, sleep(time))
}

/// A client that sends these lines and nothing more, and reads what it gets to its end.
async fn client(pipe: DuplexStream, lines: &[&str]) -> Vec<String> {
    let (reader, mut writer) = split(pipe);
    for line in lines {
        writer.write_all(format!("{line}\n").as_bytes()).await.unwrap();
    }
    writer.shutdown().await.unwrap();
    let (mut lines, mut heard) = (BufReader::new(reader).lines(), Vec::new());
    while let Some(line) = lines.next_line().await.unwrap() {
        heard.push(line);
    }
    heard
}

#[tokio::test(start_paused = true)]
async fn a_host_that_knows_of_the_end_answers_when_it_likes() {
    let ((client_end, downstream), (host, upstream)) = (pipe(), pipe());
    let ended = join(downstream, upstream);
    let host = tokio::spawn(async move {
        let (reader, mut writer) = split(host);
        let mut lines = BufReader::new(reader).lines();
        assert_eq!(lines.next_line().await.unwrap().as_deref(), Some(REQUEST));
        assert_eq!(lines.next_line().await.unwrap(), None, "the end of input is passed on");
        sleep(seconds(3600)).await;
        writer.write_all(format!("{ANSWER}\n").as_bytes()).await.unwrap();
        writer.shutdown().await.unwrap();
    });
    assert_eq!(client(client_end, &[REQUEST]).await, [ANSWER]);
    host.await.unwrap();
    assert_eq!(ended.await.unwrap().losses, Losses::default());
}

#[tokio::test(start_paused = true)]
async fn a_host_that_has_not_answered_yet_does_not_lose_its_input_at_once() {
    let ((client_end, downstream), (host, upstream)) = (pipe(), pipe());
    join(downstream, upstream);
    let host = tokio::spawn(async move {
        let (reader, mut writer) = split(host);
        let mut lines = BufReader::new(reader).lines();
        assert_eq!(lines.next_line().await.unwrap().as_deref(), Some(REQUEST));
        // Some servers let go of what they are at when their input ends.
        tokio::select! {
            line = lines.next_line() => panic!("{line:?}"),
            () = sleep(seconds(50)) => {}
        }
        writer.write_all(format!("{ANSWER}\n").as_bytes()).await.unwrap();
        assert_eq!(lines.next_line().await.unwrap(), None);
    });
    assert_eq!(client(client_end, &[REQUEST]).await, [ANSWER]);
    host.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_host_that_cannot_be_told_of_the_end_has_a_minute_for_each_answer_and_the_rest_counts_as_lost() {
    let (client_end, downstream) = pipe();
    let (upstream, host) = link::pair(&Capacity::of(u64::MAX), 4);
    let (ended, mut host) = (join(downstream, upstream), App::new(host, Role::Server));
    let requests: Vec<String> = (1..=4).map(|id| REQUEST.replace('1', &id.to_string())).collect();
    let client =
        tokio::spawn(async move { client(client_end, &requests.iter().map(String::as_str).collect::<Vec<_>>()).await });
    for _ in 1..=4 {
        host.next().await.unwrap();
    }
    for id in 1..=2 {
        sleep(seconds(50)).await;
        host.send(ANSWER.replace("\"id\":1", &format!("\"id\":{id}")));
        while !matches!(host.driver.next().await, Some(Event::Sent { .. })) {}
    }
    while !matches!(host.driver.next().await, Some(Event::Closed(_)) | None) {}
    let heard = client.await.unwrap();
    assert_eq!(heard.iter().filter(|line| line.contains("\"timed-out\"")).count(), 2, "{heard:?}");
    assert_eq!(heard.len(), 4);
    let lost = ended.await.unwrap().losses;
    assert_eq!((lost.answers, lost.messages), (2, 0));
}

#[tokio::test(start_paused = true)]
async fn a_slow_reader_gets_what_the_host_has_said_also_when_an_answer_never_comes() {
    let (client, downstream) = pipe();
    let (upstream, host) = link::pair(&Capacity::of(u64::MAX), 4);
    let (ended, mut host) = (join(downstream, upstream), App::new(host, Role::Server));
    let (mut reader, mut writer) = split(client);
    writer.write_all(format!("{REQUEST}\n{}\n", REQUEST.replace('1', "2")).as_bytes()).await.unwrap();
    writer.shutdown().await.unwrap();
    for _ in 0..2 {
        host.next().await.unwrap();
    }
    let answer = format!(r#"{{"jsonrpc":"2.0","id":1,"result":"{}"}}"#, "x".repeat(100_000));
    host.send(answer.clone());
    let reader = async {
        let (mut got, mut buffer) = (0, vec![0; 1000]);
        loop {
            sleep(seconds(2)).await;
            match reader.read(&mut buffer).await.unwrap() {
                0 => return got,
                count => got += count,
            }
        }
    };
    let host = async { while !matches!(host.driver.next().await, Some(Event::Closed(_)) | None) {} };
    let (ended, (), got) = tokio::join!(ended, host, reader);
    assert!(got > answer.len(), "and an error for the other request: {got}");
    assert_eq!(ended.unwrap().losses.answers, 1);
}

#[tokio::test(start_paused = true)]
async fn a_host_that_owes_nothing_may_go_on_after_the_end_until_it_is_silent() {
    let ((client_end, downstream), (mut host, upstream)) = (pipe(), pipe());
    let ended = join(downstream, upstream);
    let host = tokio::spawn(async move {
        for _ in 0..10 {
            sleep(seconds(4)).await;
            host.write_all(format!("{SAID}\n").as_bytes()).await.unwrap();
        }
        // It ignores the end of its input, and is ended.
        let mut rest = String::new();
        host.read_to_string(&mut rest).await.unwrap();
        sleep(seconds(3600)).await;
    });
    assert_eq!(client(client_end, &[SAID]).await, [SAID; 10]);
    assert_eq!(ended.await.unwrap().losses, Losses::default());
    host.abort();
}

/// A client that reads a KiB at a time, so often, and stops after so many; how many bytes it got.
async fn sip(pipe: &mut DuplexStream, pause: Duration, most: usize) -> usize {
    let (mut bytes, mut got) = (vec![0; 1024], 0);
    while got < most {
        sleep(pause).await;
        match pipe.read(&mut bytes).await.unwrap() {
            0 => break,
            read => got += read,
        }
    }
    got
}

/// A host that says something long and leaves, in front of a client that reads so much, until the gateway stops.
async fn long_farewell(most: usize, stop: Duration) -> (usize, Outcome) {
    let (mut client, downstream) = pipe();
    let (upstream, host) = link::pair(&Capacity::of(u64::MAX), 4);
    let (ended, mut host) = (join_for(downstream, upstream, stop), App::new(host, Role::Server));
    host.send(format!(r#"{{"jsonrpc":"2.0","method":"m","params":["{}"]}}"#, "x".repeat(1_000_000)));
    while !matches!(host.driver.next().await, Some(Event::Sent { .. })) {}
    host.driver.handle(Input::Close(CloseReason::Normal));
    let (got, _) = tokio::join!(sip(&mut client, Duration::from_millis(100), most), host.end());
    let ended = ended.await.unwrap();
    (got, ended)
}

#[tokio::test(start_paused = true)]
async fn a_slow_reader_gets_all_that_a_host_said_before_it_left() {
    let (got, ended) = long_farewell(usize::MAX, Duration::MAX).await;
    assert!(got > 1_000_000, "{got}");
    assert_eq!(ended.losses, Losses::default());
}

#[tokio::test(start_paused = true)]
async fn what_a_reader_leaves_is_counted_as_lost() {
    let (_, ended) = long_farewell(100_000, Duration::MAX).await;
    assert_eq!((ended.losses.messages, ended.losses.answers), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_program_that_stops_does_not_wait_for_a_slow_reader() {
    let (got, ended) = long_farewell(usize::MAX, seconds(10)).await;
    assert!(got < 500_000, "{got}");
    assert_eq!((ended.losses.messages, ended.losses.answers), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_program_that_stops_is_gone_a_second_after_the_time_for_it() {
    let (_client, downstream) = pipe();
    let (upstream, host) = link::pair(&Capacity::of(u64::MAX), 4);
    let (ended, mut host) = (join_for(downstream, upstream, seconds(10)), App::new(host, Role::Server));
    host.send(format!(r#"{{"jsonrpc":"2.0","method":"m","params":["{}"]}}"#, "x".repeat(1_000_000)));
    let began = Instant::now();
    let (ended, _) = tokio::join!(ended, host.end());
    assert!((15..=16).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
    assert_eq!(ended.unwrap().losses.messages, 1);
}

#[tokio::test(start_paused = true)]
async fn nor_does_it_wait_longer_for_a_reader_that_went_on_just_before() {
    let (mut client, downstream) = pipe();
    let (upstream, host) = link::pair(&Capacity::of(u64::MAX), 4);
    let (ended, mut host) = (join_for(downstream, upstream, seconds(10)), App::new(host, Role::Server));
    let large = format!(r#"{{"jsonrpc":"2.0","method":"m","params":["{}"]}}"#, "x".repeat(1_000_000));
    (0..2).for_each(|_| host.send(large.clone()));
    let began = Instant::now();
    let reader = async {
        sleep(Duration::from_millis(14_900)).await;
        client.read_exact(&mut vec![0; large.len() + 1]).await.unwrap();
    };
    let (ended, _, ()) = tokio::join!(ended, host.end(), reader);
    assert!((15..=16).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
    assert_eq!(ended.unwrap().losses.messages, 1);
}

#[tokio::test(start_paused = true)]
async fn a_host_that_leaves_without_an_answer_leaves_a_loss_and_an_error_in_its_place() {
    let ((client_end, downstream), (host, upstream)) = (pipe(), pipe());
    let ended = join(downstream, upstream);
    let host = tokio::spawn(async move {
        let mut host = BufReader::new(host);
        host.read_line(&mut String::new()).await.unwrap();
        host.shutdown().await.unwrap();
        sleep(seconds(1)).await;
    });
    assert_eq!(client(client_end, &[REQUEST]).await, [ENDED]);
    assert_eq!(ended.await.unwrap().losses.answers, 1);
    host.await.unwrap();
}

/// A client on a WebSocket asks twice through a gateway; what it is answered, and how its link ends.
async fn ask_twice(upstream: impl Link + 'static) -> (Vec<String>, CloseReason, Option<String>) {
    let (ours, theirs) = duplex(64 << 10);
    join(WebSocket::server(theirs, &WebSocketConfig::default()), upstream);
    let mut client = App::new(WebSocket::client(ours, &WebSocketConfig::default()), Role::Client);
    client.send(REQUEST);
    client.send(REQUEST.replace('1', "2"));
    let mut answers = Vec::new();
    loop {
        match client.next().await {
            Ok(answer) => answers.push(String::from_utf8(answer.to_bytes().into()).unwrap()),
            Err(reason) => return (answers, reason, client.driver.close_text().map(str::to_owned)),
        }
    }
}

#[tokio::test]
async fn what_a_child_owes_that_exits_is_answered_with_errors_and_the_close_says_so() {
    let (first, second) = (ENDED.to_owned(), ENDED.replace("\"id\":1", "\"id\":2"));
    let one = r#"{"jsonrpc":"2.0","id":1,"result":1}"#;
    for (script, answers, code, text) in [
        (
            "read -r a; read -r b",
            vec![first.clone(), second.clone()],
            1014,
            "the host ended with 2 requests unanswered",
        ),
        (
            "read -r a; read -r b; echo $0",
            vec![one.to_owned(), second.clone()],
            1014,
            "the host ended with 1 request unanswered",
        ),
        // This code says it by itself.
        ("read -r a; read -r b; exit 3", vec![first, second], 1011, "the host ended: sh exited with status 3"),
    ] {
        let command = ["sh", "-c", script, one].map(str::to_owned).to_vec();
        let upstream = Exec::spawn(&ExecConfig::new(command, Capacity::of(u64::MAX), 32 << 20)).unwrap();
        let (mut heard, reason, words) = ask_twice(upstream).await;
        heard.sort();
        let mut answers = answers;
        answers.sort();
        assert_eq!((heard, reason.code(), words.as_deref()), (answers, code, Some(text)), "{script}");
    }
}

#[tokio::test]
async fn so_is_what_a_host_owes_that_closes_as_if_all_were_well() {
    let (ours, theirs) = duplex(64 << 10);
    let host = tokio::spawn(async move {
        let mut host = App::new(WebSocket::server(ours, &WebSocketConfig::default()), Role::Server);
        host.next().await.unwrap();
        host.next().await.unwrap();
        host.driver.handle(Input::Close(CloseReason::Normal));
        host.end().await
    });
    let (heard, reason, _) = ask_twice(WebSocket::client(theirs, &WebSocketConfig::default())).await;
    assert_eq!((heard.len(), reason.code()), (2, 1014));
    host.await.unwrap();
}
