//! What each script of the demo agent does, as a client sees it.

use std::fs;
use std::os::unix::fs::symlink;

use ahp_types::actions::StateAction;
use ahp_types::state::{ResponsePart, SessionStatus, ToolCallCancellationReason, ToolCallState, TurnState};
use ahp_types::state::{ToolInput, ToolResultContent};
use breakbulk_host::agent::demo::Demo;
use breakbulk_host::agent::{Agent, AgentError};
use breakbulk_lifecycle::Event;
use tempfile::tempdir;

use crate::test_agent::{Reply, Stage, calls, start, text};

/// One prompt for every script.
const PROMPTS: [&str; 10] = [
    "hello",
    "/think",
    "/slow hello",
    "/fail",
    "/big 100KB",
    "/big much",
    "/tools 2",
    "/run echo hi",
    "/edit notes/a.txt one two",
    "",
];

#[tokio::test]
async fn every_script_is_well_formed_applied_and_the_same_when_played_again() {
    for reply in [Reply::Allow, Reply::Deny] {
        for prompt in PROMPTS {
            let directory = tempdir().unwrap();
            let mut played = Vec::new();
            for _ in 0..2 {
                let _ = fs::remove_dir_all(directory.path().join("notes"));
                let mut stage = Stage::new(directory.path()).await;
                stage.play(prompt, &reply).await;
                assert_eq!(stage.stream.strays(), 0, "{prompt}");
                assert!(stage.screen.chat().active_turn.is_none(), "{prompt}");
                played.push((stage.events, stage.screen.actions));
            }
            assert_eq!(played[0], played[1], "{prompt}");
        }
    }
}

#[tokio::test]
async fn an_answer_is_thinking_then_text_and_says_that_it_is_a_demo() {
    let directory = tempdir().unwrap();
    let mut stage = Stage::new(directory.path()).await;
    stage.play("hello\nthere", &Reply::Nothing).await;
    let turn = stage.screen.last_turn();
    assert_eq!(turn.state, TurnState::Complete);
    let [ResponsePart::Reasoning(thinking), ResponsePart::Markdown(said)] = turn.response_parts.as_slice() else {
        panic!("{:?}", turn.response_parts);
    };
    assert!(thinking.content.contains("demo") && said.content.contains("**demo** agent"));
    assert!(said.content.contains("> hello\n> there") && said.content.contains("/tools 3"));
    assert_eq!(turn.usage.as_ref().unwrap().model.as_deref(), Some("demo"));
    assert!(turn.duration.unwrap() > 0);
}

#[tokio::test]
async fn slow_takes_longer_by_the_clock() {
    let directory = tempdir().unwrap();
    let mut durations = Vec::new();
    for prompt in ["/think", "/slow /think"] {
        let mut stage = Stage::new(directory.path()).await;
        stage.play(prompt, &Reply::Nothing).await;
        durations.push(stage.screen.last_turn().duration.unwrap());
    }
    assert!(durations[1] > 10 * durations[0], "{durations:?}");
}

#[tokio::test]
async fn a_command_waits_for_an_answer_and_its_output_is_the_result() {
    let directory = tempdir().unwrap();
    let mut stage = Stage::new(directory.path()).await;
    stage.send("/run sh -c 'echo out; echo err >&2; touch made'").await;
    while !stage.events.iter().any(|event| matches!(event, Event::ToolAsked { .. })) {
        assert!(stage.next(&Reply::Nothing).await);
    }
    let active = stage.screen.chat().active_turn.as_ref().unwrap();
    assert!(matches!(calls(&active.response_parts)[..], [ToolCallState::PendingConfirmation(_)]));
    assert_eq!(stage.screen.chat().status & 31, SessionStatus::InputNeeded.bits());
    assert_eq!(stage.screen.asked().len(), 1);
    assert!(!directory.path().join("made").exists());

    let (chat, turn, tool) = stage.screen.asked().remove(0);
    stage.client(&chat, crate::test_agent::confirmed(&turn, &tool, &Reply::Allow).unwrap()).await;
    while stage.next(&Reply::Nothing).await {}
    let turn = stage.screen.last_turn();
    let [ToolCallState::Completed(call)] = calls(&turn.response_parts)[..] else { panic!("{turn:?}") };
    assert!(call.success);
    assert!(
        matches!(&call.content.as_ref().unwrap()[..], [ToolResultContent::Text(text)] if text.text == "out\nerr\n")
    );
    assert!(matches!(&call.tool_input, Some(ToolInput::Inline(input)) if input.contains(r#""argv":["sh","-c""#)));
    assert!(directory.path().join("made").exists());
    assert!(stage.screen.asked().is_empty());
}

#[tokio::test]
async fn what_is_denied_is_not_done() {
    let directory = tempdir().unwrap();
    for prompt in ["/run touch made", "/edit made text"] {
        let mut stage = Stage::new(directory.path()).await;
        stage.play(prompt, &Reply::Deny).await;
        let turn = stage.screen.last_turn();
        assert_eq!(turn.state, TurnState::Complete);
        let [ToolCallState::Cancelled(call)] = calls(&turn.response_parts)[..] else { panic!("{turn:?}") };
        assert_eq!(call.reason, ToolCallCancellationReason::Denied);
        assert!(text(&turn.response_parts).contains("not "), "{turn:?}");
        assert!(!directory.path().join("made").exists());
    }
}

#[tokio::test]
async fn an_edited_input_is_what_runs() {
    let directory = tempdir().unwrap();
    let mut stage = Stage::new(directory.path()).await;
    stage.play("/run touch first", &Reply::Edit(r#"{"argv":["touch","second"]}"#.to_owned())).await;
    assert!(!directory.path().join("first").exists() && directory.path().join("second").exists());
    stage.play("/run touch first", &Reply::Edit("nonsense".to_owned())).await;
    assert!(!directory.path().join("first").exists());
    let [ToolCallState::Completed(call)] = calls(&stage.screen.last_turn().response_parts)[..] else { panic!() };
    assert!(!call.success);
}

#[tokio::test]
async fn an_allowed_edit_writes_the_file_and_counts_its_lines() {
    let directory = tempdir().unwrap();
    let mut stage = Stage::new(directory.path()).await;
    fs::write(directory.path().join("a"), "same\nold\n").unwrap();
    stage.play("/edit a same\nnew\nmore", &Reply::Allow).await;
    assert_eq!(fs::read_to_string(directory.path().join("a")).unwrap(), "same\nnew\nmore\n");
    let [ToolCallState::Completed(call)] = calls(&stage.screen.last_turn().response_parts)[..] else { panic!() };
    let written = "same\nnew\nmore\n".len();
    assert!(format!("{call:?}").contains(&format!("wants to write {written} bytes to a ")), "{call:?}");
    let [ToolResultContent::FileEdit(edit)] = &call.content.as_ref().unwrap()[..] else { panic!("{call:?}") };
    let diff = edit.diff.as_ref().unwrap();
    assert_eq!((diff.added, diff.removed), (Some(2), Some(1)));
    assert!(edit.after.as_ref().unwrap().uri.starts_with("file:///"));
    stage.play("/edit b/c/d deep", &Reply::Allow).await;
    assert_eq!(fs::read_to_string(directory.path().join("b/c/d")).unwrap(), "deep\n");
    let left: Vec<_> = fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "{left:?}");
}

#[tokio::test]
async fn no_edit_leaves_the_working_directory() {
    let (directory, outside) = (tempdir().unwrap(), tempdir().unwrap());
    let work = directory.path().join("work");
    fs::create_dir(&work).unwrap();
    symlink(outside.path(), work.join("shortcut")).unwrap();
    fs::write(outside.path().join("target"), "safe").unwrap();
    symlink(outside.path().join("target"), work.join("link")).unwrap();
    let absolute = format!("/edit {}/x text", outside.path().display());
    for prompt in [
        "/edit ../x text",
        "/edit shortcut/x text",
        "/edit link text",
        "/edit a/../../x text",
        "/edit . text",
        &absolute,
    ] {
        let mut stage = Stage::new(&work).await;
        stage.play(prompt, &Reply::Allow).await;
        let [ToolCallState::Completed(call)] = calls(&stage.screen.last_turn().response_parts)[..] else { panic!() };
        assert!(!call.success, "{prompt}");
    }
    assert_eq!(fs::read_to_string(outside.path().join("target")).unwrap(), "safe");
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
    assert!(!directory.path().join("x").exists());
}

#[tokio::test]
async fn a_big_result_has_exactly_the_size_asked_for() {
    let directory = tempdir().unwrap();
    let mut stage = Stage::new(directory.path()).await;
    stage.play("/big 5MB", &Reply::Nothing).await;
    let [ToolCallState::Completed(call)] = calls(&stage.screen.last_turn().response_parts)[..] else { panic!() };
    let [ToolResultContent::Text(result)] = &call.content.as_ref().unwrap()[..] else { panic!() };
    assert_eq!(result.text.len(), 5_000_000);
}

#[tokio::test]
async fn a_failure_keeps_what_was_said_and_ends_the_turn_with_an_error() {
    let directory = tempdir().unwrap();
    let mut stage = Stage::new(directory.path()).await;
    stage.play("/fail", &Reply::Nothing).await;
    let turn = stage.screen.last_turn();
    assert_eq!(turn.state, TurnState::Error);
    assert!(text(&turn.response_parts).ends_with("in the middle of a wo"));
    let Some(ResponsePart::Error(error)) = turn.response_parts.last() else { panic!("{turn:?}") };
    assert!(error.error.message.contains("demo"));
    stage.play("hello", &Reply::Nothing).await;
    assert_eq!(stage.screen.last_turn().state, TurnState::Complete);
}

#[tokio::test]
async fn several_calls_may_be_answered_in_any_order() {
    let directory = tempdir().unwrap();
    let mut stage = Stage::new(directory.path()).await;
    stage.send("/tools 3").await;
    while stage.screen.asked().len() < 3 {
        assert!(stage.next(&Reply::Nothing).await);
    }
    let replies = [Reply::Allow, Reply::Deny, Reply::Allow];
    for ((chat, turn, tool), reply) in stage.screen.asked().into_iter().rev().zip(&replies) {
        stage.client(&chat, crate::test_agent::confirmed(&turn, &tool, reply).unwrap()).await;
    }
    while stage.next(&Reply::Nothing).await {}
    let turn = stage.screen.last_turn();
    let calls = calls(&turn.response_parts);
    assert!(matches!(
        calls[..],
        [ToolCallState::Completed(_), ToolCallState::Cancelled(_), ToolCallState::Completed(_)]
    ));
    assert!(text(&turn.response_parts).contains("2 of 3"));
}

#[tokio::test]
async fn a_prompt_of_twenty_megabytes_is_answered_in_a_few_words() {
    let directory = tempdir().unwrap();
    let mut stage = Stage::new(directory.path()).await;
    let prompt = "pasted ".repeat(20_000_000 / 7);
    stage.play(&prompt, &Reply::Nothing).await;
    let turn = stage.screen.last_turn();
    assert_eq!(turn.message.text, prompt);
    assert!(text(&turn.response_parts).contains(&format!("{} bytes", prompt.len())));
    let said: usize = stage.events.iter().map(Event::weight).sum();
    assert!(said < 200_000, "{said}");
}

#[tokio::test]
async fn every_block_and_message_has_its_end_marked_in_the_log() {
    let directory = tempdir().unwrap();
    let mut stage = Stage::new(directory.path()).await;
    stage.play("/tools 2", &Reply::Allow).await;
    let marked = |wanted: &str| {
        let metas = stage.screen.actions.iter().filter_map(|action| match action {
            StateAction::ChatDelta(action) => action.meta.as_ref(),
            StateAction::ChatReasoning(action) => action.meta.as_ref(),
            StateAction::ChatToolCallDelta(action) => action.meta.as_ref(),
            _ => None,
        });
        metas.filter(|meta| meta["breakbulk"]["ended"] == wanted).count()
    };
    let said = |wanted: fn(&Event) -> bool| stage.events.iter().filter(|event| wanted(event)).count();
    assert_eq!(marked("block"), said(|event| matches!(event, Event::BlockEnded { .. })));
    assert_eq!(marked("message"), said(|event| matches!(event, Event::MessageEnded { .. })));
}

#[tokio::test]
async fn the_root_state_says_that_it_is_a_demo_and_a_missing_directory_is_named() {
    let demo = Demo::default();
    let info = demo.info();
    assert_eq!((demo.name(), info.provider.as_str(), info.display_name.as_str()), ("demo", "demo", "Demo"));
    assert!(info.description.contains("demo") && info.models[0].name.contains("Demo"));
    assert_eq!(demo.check().await, Ok(()));
    let directory = tempdir().unwrap();
    let missing = start(&directory.path().join("missing"));
    assert!(matches!(demo.start(missing).await.err(), Some(AgentError::Directory { .. })));
}
