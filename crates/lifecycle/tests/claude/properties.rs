//! Whatever the program writes, in whatever order, what comes out is well formed, and each prompt gets one turn.

use breakbulk_lifecycle::claude::{CHOICE_ALWAYS, Control};
use breakbulk_lifecycle::{Answer, BlockType, Checker, Id};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::json;

use crate::blocks::words;
use crate::host::Host;
use crate::lines::{
    assistant, block_start, block_stop, call_block, call_start, can_use_tool, failed, init, input_delta, lifecycle,
    message_start, message_stop, of_agent, result, text_block, text_delta, text_start, tool_result,
};
use crate::replay::{Player, Step, recordings};

/// One thing that happens.
#[derive(Debug, Clone)]
enum Happening {
    /// The program writes a line, or the beginning of one.
    Line {
        of: Index,
        cut: Option<Index>,
    },
    /// A part of a recording, in order.
    Run {
        from: Index,
        len: usize,
    },
    Send,
    Interrupt,
    TakeBack,
    Answer {
        tool: Index,
        answer: Answer,
    },
}

fn happening() -> impl Strategy<Value = Happening> {
    let answer = prop_oneof![
        Just(Answer::yes()),
        Just(Answer::no()),
        Just(Answer::Withdrawn),
        Just(Answer::Allowed { input: Some("{\"a\":1}".into()), choice: Some(CHOICE_ALWAYS.into()) }),
    ];
    prop_oneof![
        12 => any::<Index>().prop_map(|of| Happening::Line { of, cut: None }),
        1 => (any::<Index>(), any::<Index>()).prop_map(|(of, cut)| Happening::Line { of, cut: Some(cut) }),
        4 => (any::<Index>(), 0_usize..30).prop_map(|(from, len)| Happening::Run { from, len }),
        2 => Just(Happening::Send),
        1 => Just(Happening::Interrupt),
        1 => Just(Happening::TakeBack),
        4 => (any::<Index>(), answer).prop_map(|(tool, answer)| Happening::Answer { tool, answer }),
    ]
}

/// Lines of the recordings, and of what they do not show: sub-agents, background tasks, whole messages, failures.
fn pool() -> Vec<String> {
    let mut lines = Vec::new();
    for recording in recordings() {
        let said = recording.steps.iter().filter_map(|step| match step {
            // Of the many lines that differ only in a word, a few will do.
            Step::Said(line) if line.contains("\"tok1") && !line.contains("\"tok1 ") => None,
            Step::Said(line) => Some((*line).to_owned()),
            Step::Written(_) => None,
        });
        lines.extend(said);
    }
    let task = |tool: &str| call_block(tool, "Task", json!({ "subagent_type": "x", "prompt": "y" }));
    let mut launched = tool_result("p", json!("launched"), false);
    launched["tool_use_result"] = json!({ "status": "async_launched", "agentId": "bg1" });
    let ended = json!({ "type": "system", "subtype": "task_notification", "task_id": "bg1", "status": "failed" });
    let made = [
        init(),
        message_start("m"),
        message_start("m2"),
        text_start(0),
        text_delta(0, "a"),
        text_delta(1, "b"),
        block_start(1, json!({ "type": "redacted_thinking", "data": "x" })),
        call_start(2, "a"),
        input_delta(2, "{}"),
        block_stop(0),
        block_stop(1),
        block_stop(2),
        message_stop(),
        assistant("m", "a1", json!([text_block("ab"), task("p")])),
        assistant("m3", "a2", json!([task("q"), text_block("c")])),
        of_agent(assistant("w", "a3", json!([text_block("d"), task("r")])), "p"),
        of_agent(message_start("w2"), "q"),
        of_agent(text_delta(0, "e"), "q"),
        of_agent(block_stop(0), "q"),
        of_agent(message_stop(), "q"),
        of_agent(assistant("w3", "a4", json!([text_block("f")])), "r"),
        of_agent(tool_result("r", json!("x"), true), "p"),
        tool_result("a", json!("x"), false),
        tool_result("p", json!("x"), false),
        tool_result("q", json!("x"), true),
        launched,
        ended,
        json!({ "type": "system", "subtype": "task_started", "task_id": "bg1", "tool_use_id": "q" }),
        json!({ "type": "tool_progress", "tool_use_id": "a" }),
        can_use_tool("r1", "a"),
        can_use_tool("r2", "p"),
        can_use_tool("r3", "unknown"),
        json!({ "type": "control_cancel_request", "request_id": "r1" }),
        json!({ "type": "control_request", "request_id": "r9", "request": { "subtype": "mcp_message" } }),
        lifecycle("u1", "queued"),
        lifecycle("u1", "started"),
        lifecycle("u1", "completed"),
        lifecycle("u2", "cancelled"),
        lifecycle("u3", "started"),
        result(),
        failed("error_during_execution"),
    ];
    lines.extend(made.iter().map(ToString::to_string));
    lines
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_lines_in_any_order_are_well_formed_and_each_prompt_gets_one_turn(happened in vec(happening(), 0..80)) {
        let lines = pool();
        let mut host = Host::new();
        let mut sent: u32 = 0;
        for happening in happened {
            match happening {
                Happening::Line { of, cut } => {
                    let line = of.get(&lines);
                    let end = cut.map_or(line.len(), |cut| cut.index(line.len()));
                    host.claude.receive(&line.as_bytes()[..end]);
                }
                Happening::Run { from, len } => {
                    let from = from.index(lines.len());
                    for line in lines.iter().skip(from).take(len) {
                        host.claude.receive(line.as_bytes());
                    }
                }
                Happening::Send => {
                    sent += 1;
                    host.send(&format!("t{sent}"), &format!("u{sent}"));
                }
                Happening::Interrupt => {
                    host.claude.request(Control::Interrupt);
                }
                Happening::TakeBack => {
                    host.claude.request(Control::CancelPrompt { uuid: format!("u{sent}") });
                }
                Happening::Answer { tool, answer } => {
                    let asked: Vec<Id> = host.claude.asked().cloned().collect();
                    if !asked.is_empty() {
                        host.claude.answer(tool.get(&asked), answer).expect("it is asked");
                    }
                }
            }
            host.drain();
        }
        host.crash();
        let mut checker = Checker::new();
        for (at, event) in host.events.iter().enumerate() {
            let shown = || host.transcript.join("\n");
            checker.check(event).map_err(|rule| TestCaseError::fail(format!("{rule} at {at} of\n{}", shown())))?;
        }
        prop_assert!(checker.is_done());
        prop_assert_eq!(host.claude.asked().count(), 0);
        prop_assert_eq!(host.claude.requests().count(), 0);
        for number in 1..=sent {
            prop_assert_eq!(host.times(&format!("t{number}").into()), (1, 1), "t{}", number);
        }
    }

    #[test]
    fn lines_that_say_nothing_change_nothing_wherever_they_come(at in vec(any::<Index>(), 0..20), which in any::<Index>()) {
        let noise = [r#"{"type":"keep_alive"}"#, "{\"broken", r#"{"type":"novelty","parent_tool_use_id":"x"}"#];
        let mut all = recordings();
        let recording = all.swap_remove(which.index(all.len()));
        let clean = Player::play(&recording.steps).host.finish();
        let mut player = Player::new();
        for (number, step) in recording.steps.iter().enumerate() {
            for (which, _) in at.iter().enumerate().filter(|(_, at)| at.index(recording.steps.len()) == number) {
                player.host.hear_text(noise[which % noise.len()]);
            }
            player.step(step);
        }
        prop_assert_eq!(player.host.finish().events, clean.events);
    }

    #[test]
    fn whole_messages_that_come_twice_say_nothing_twice(twice in any::<Index>(), which in any::<Index>(), streamed in any::<bool>()) {
        let mut all = recordings();
        let recording = all.swap_remove(which.index(all.len()));
        let is_kept = |step: &&Step| streamed || !matches!(step, Step::Said(line) if line.contains(r#""type":"stream_event""#));
        let steps: Vec<&Step> = recording.steps.iter().filter(is_kept).collect();
        let is_whole = |step: &Step| matches!(step, Step::Said(line) if line.starts_with(r#"{"type":"assistant""#));
        let whole: Vec<usize> = (0..steps.len()).filter(|at| is_whole(steps[*at])).collect();
        let twice = *twice.get(&whole);
        let mut once = Player::new();
        let mut again = Player::new();
        for (at, step) in steps.iter().enumerate() {
            once.step(step);
            again.step(step);
            if at == twice {
                again.step(step);
            }
        }
        let (once, again) = (once.host.finish(), again.host.finish());
        for kind in [BlockType::Text, BlockType::Thinking] {
            prop_assert_eq!(words(&once, kind), words(&again, kind));
        }
        prop_assert_eq!(once.events, again.events);
    }
}
