//! Commands of the demo agent that run too long, write too much, or leave processes behind.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use ahp_types::state::{ToolCallState, ToolResultContent};
use breakbulk_host::agent::demo::DemoConfig;
use breakbulk_lifecycle::Event;
use tempfile::tempdir;

use crate::test_agent::{Reply, Stage, calls};

/// A command that leaves a process behind, and writes its id to a file.
const LEAVES_ONE_BEHIND: &str = "sh -c 'sleep 600 & echo $! > number.part; mv number.part number";

#[tokio::test]
async fn a_command_that_takes_too_long_is_ended_with_all_that_it_started() {
    let directory = tempdir().unwrap();
    let config = DemoConfig { command_time: Duration::from_secs(5), ..DemoConfig::default() };
    let mut stage = Stage::with(directory.path(), config).await;
    stage.play(&format!("/run {LEAVES_ONE_BEHIND}; wait'"), &Reply::Allow).await;
    let [ToolCallState::Completed(call)] = calls(&stage.screen.last_turn().response_parts)[..] else { panic!() };
    assert!(!call.success && call.error.as_ref().unwrap().to_string().contains("too long"), "{call:?}");
    is_gone(directory.path());
}

#[tokio::test]
async fn what_a_command_leaves_behind_ends_with_it() {
    let directory = tempdir().unwrap();
    let mut stage = Stage::new(directory.path()).await;
    stage.play(&format!("/run {LEAVES_ONE_BEHIND}; echo done'"), &Reply::Allow).await;
    let [ToolCallState::Completed(call)] = calls(&stage.screen.last_turn().response_parts)[..] else { panic!() };
    assert!(call.success, "{call:?}");
    assert!(matches!(&call.content.as_ref().unwrap()[..], [ToolResultContent::Text(text)] if text.text == "done\n"));
    is_gone(directory.path());
}

#[tokio::test]
async fn a_cancel_ends_the_command_that_runs() {
    let directory = tempdir().unwrap();
    let mut stage = Stage::new(directory.path()).await;
    stage.send(&format!("/run {LEAVES_ONE_BEHIND}; wait'")).await;
    while !stage.events.iter().any(|event| matches!(event, Event::ToolStarted { .. })) {
        assert!(stage.next(&Reply::Allow).await);
    }
    until(|| directory.path().join("number").exists()).await;
    stage.cancel().await;
    while stage.next(&Reply::Nothing).await {}
    is_gone(directory.path());
}

#[tokio::test]
async fn a_command_that_writes_too_much_is_ended_and_its_output_is_cut() {
    let directory = tempdir().unwrap();
    let config = DemoConfig { command_bytes: 100_000, ..DemoConfig::default() };
    let mut stage = Stage::with(directory.path(), config).await;
    stage.play("/run yes", &Reply::Allow).await;
    let [ToolCallState::Completed(call)] = calls(&stage.screen.last_turn().response_parts)[..] else { panic!() };
    assert!(!call.success && call.error.as_ref().unwrap().to_string().contains("too much"));
    let [ToolResultContent::Text(result)] = &call.content.as_ref().unwrap()[..] else { panic!() };
    assert_eq!(result.text.len(), 100_000);
}

#[tokio::test]
async fn a_command_fails_with_its_status_and_one_that_is_none_is_named() {
    let directory = tempdir().unwrap();
    let mut stage = Stage::new(directory.path()).await;
    for (prompt, error) in [
        ("/run sh -c 'exit 3'", "status 3"),
        ("/run sh -c 'kill -9 $$'", "signal 9"),
        ("/run there-is-no-such-program", "No such file"),
    ] {
        stage.play(prompt, &Reply::Allow).await;
        let [ToolCallState::Completed(call)] = calls(&stage.screen.last_turn().response_parts)[..] else { panic!() };
        assert!(!call.success && call.error.as_ref().unwrap().to_string().contains(error), "{call:?}");
    }
}

#[tokio::test]
async fn a_command_runs_in_the_working_directory_without_shell_input_or_secrets() {
    let directory = tempdir().unwrap();
    let real = directory.path().canonicalize().unwrap();
    let mut stage = Stage::new(directory.path()).await;
    let mut output = async |prompt: &str| {
        stage.play(prompt, &Reply::Allow).await;
        let [ToolCallState::Completed(call)] = calls(&stage.screen.last_turn().response_parts)[..] else { panic!() };
        let [ToolResultContent::Text(result)] = &call.content.as_ref().unwrap()[..] else { panic!() };
        result.text.clone()
    };
    assert_eq!(output("/run pwd").await, format!("{}\n", real.display()));
    assert_eq!(output("/run echo $HOME ; echo").await, "$HOME ; echo\n");
    assert_eq!(output("/run cat").await, "");
    let environment = output("/run env").await;
    assert!(!environment.contains("CARGO"), "{environment}");
}

/// Waits until the process that was left behind has ended.
fn is_gone(directory: &Path) {
    let number = fs::read_to_string(directory.join("number")).unwrap();
    let stat = format!("/proc/{}/stat", number.trim());
    let begin = Instant::now();
    // A zombie is gone, too, as soon as somebody looks after it.
    while fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z ")) {
        assert!(begin.elapsed() < Duration::from_secs(20), "it lives");
        std::thread::sleep(Duration::from_millis(5));
    }
}

async fn until(is_true: impl Fn() -> bool) {
    let begin = Instant::now();
    while !is_true() {
        assert!(begin.elapsed() < Duration::from_secs(20));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
