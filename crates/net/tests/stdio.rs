//! Standard input and output as a link, in a process of their own: this program is both sides.
#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod talk;

use std::io::Write;
use std::time::{Duration, Instant};

use breakbulk::link::{self, Exec, ExecConfig};
use breakbulk::{Arrival, Dialect};
use breakbulk_proto::{Capacity, CloseReason, Transmit};
use futures_util::{SinkExt, StreamExt};
use tokio::io::AsyncReadExt;

use talk::{LONG, MAX_FRAME, assert_arrived, exchange, frame, next_text, rest, send};

const ROLE: &str = "BREAKBULK_TEST_ROLE";

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    // The variable is inherited by the children only, through `env`.
    match std::env::var(ROLE).as_deref() {
        Ok("echo") => runtime.block_on(echo(usize::MAX)),
        Ok("leave") => runtime.block_on(echo(1)),
        Ok("twice") => runtime.block_on(twice()),
        _ => {
            runtime.block_on(thirty_megabytes_pass_both_ways());
            runtime.block_on(what_was_written_last_is_out_at_the_end());
            runtime.block_on(a_program_ends_although_its_input_does_not());
            runtime.block_on(they_are_taken_once());
            runtime.block_on(an_output_that_somebody_made_non_blocking_is_waited_for());
            println!("stdio: 5 passed");
        }
    }
}

/// Answers so many frames with themselves, and ends in the usual way.
async fn echo(count: usize) {
    let mut link = link::stdio(Capacity::of(u64::MAX), MAX_FRAME).unwrap();
    for _ in 0..count {
        match link.next().await.unwrap().unwrap() {
            Arrival::Frame { bytes, .. } => link.send(frame(bytes)).await.unwrap(),
            _ => break,
        }
    }
    link.send(Transmit::Close(CloseReason::Normal)).await.unwrap();
}

/// Says what happens when somebody takes both a second time.
async fn twice() {
    let mut link = link::stdio(Capacity::of(100), 100).unwrap();
    let second = link::stdio(Capacity::of(100), 100).unwrap_err();
    link.send(frame(second.to_string())).await.unwrap();
    link.close().await.unwrap();
}

fn child(role: &str) -> Exec {
    let this = std::env::current_exe().unwrap();
    let command = vec!["env".to_owned(), format!("{ROLE}={role}"), this.to_str().unwrap().to_owned()];
    let mut config = ExecConfig::new(command, Capacity::of(u64::MAX), MAX_FRAME);
    config.grace = Duration::from_secs(10);
    Exec::spawn(&config).unwrap()
}

async fn thirty_megabytes_pass_both_ways() {
    let lens = [10, 1_000_000, 30_000_000, 0, 70_000];
    for dialect in [Dialect::Plain, Dialect::Stdio] {
        let arrived = tokio::time::timeout(LONG, exchange(child("echo"), dialect, &lens)).await.unwrap();
        assert_arrived(&arrived, &lens);
    }
}

async fn what_was_written_last_is_out_at_the_end() {
    let mut link = child("leave");
    let text = "x".repeat(1_000_000);
    link.send(frame(text.clone())).await.unwrap();
    let (frames, code, _) = rest(&mut link).await;
    assert!((frames, code) == (vec![text], 1000));
}

async fn a_program_ends_although_its_input_does_not() {
    let mut link = child("leave");
    send(&mut link, "hello").await;
    assert_eq!(next_text(&mut link).await, "hello");
    let begin = Instant::now();
    let (frames, code, text) = rest(&mut link).await;
    assert_eq!((frames.len(), code, &text[..]), (0, 1000, "env exited with status 0"));
    assert!(begin.elapsed() < LONG / 2, "it took {:?}", begin.elapsed());
}

async fn they_are_taken_once() {
    let (frames, code, _) = rest(&mut child("twice")).await;
    assert_eq!((&frames[..], code), (&["standard input and output are in use already".to_owned()][..], 1000));
}

async fn an_output_that_somebody_made_non_blocking_is_waited_for() {
    let (sender, mut receiver) = tokio::net::unix::pipe::pipe().unwrap();
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.env(ROLE, "echo").stdin(std::process::Stdio::piped()).stdout(sender.into_nonblocking_fd().unwrap());
    let mut child = command.spawn().unwrap();
    drop(command);
    let mut stdin = child.stdin.take().unwrap();
    let line = format!("{}\n", "x".repeat(1_000_000));
    let text = line.clone();
    // All is written before any of it is read, but for what the pipes and the child hold.
    let write = std::thread::spawn(move || stdin.write_all(text.as_bytes()).unwrap());
    tokio::time::sleep(Duration::from_millis(300)).await;
    let mut echoed = String::new();
    tokio::time::timeout(LONG, receiver.read_to_string(&mut echoed)).await.unwrap().unwrap();
    write.join().unwrap();
    assert!(echoed == line && child.wait().unwrap().success());
}
