//! Messages, blocks, calls and sub-agents.

use breakbulk_lifecycle::claude::Limits;
use breakbulk_lifecycle::{BlockType, Event};
use serde_json::json;

use crate::host::Host;
use crate::lines::{
    assistant, block_start, block_stop, call_block, call_start, can_use_tool, delta, event, init, input_delta,
    message_start, message_stop, of_agent, result, text_block, text_delta, text_start, tool_result,
};
use crate::replay::{Player, Step, plain, recordings};

#[test]
fn a_block_that_was_streamed_is_not_said_again() {
    let mut host = Host::prompted();
    host.hear_all(&[
        message_start("m"),
        text_start(0),
        text_delta(0, "Hel"),
        text_delta(0, "lo"),
        assistant("m", "a1", json!([text_block("Hello")])),
        block_stop(0),
        message_stop(),
        result(),
    ]);
    assert_eq!(words(&host, BlockType::Text), "Hello");
    assert_eq!(host.claude.counts().differing, 0);
    host.finish();
}

#[test]
fn a_block_that_was_never_streamed_is_said_whole_and_once() {
    let mut host = Host::prompted();
    let thinking = json!({ "type": "thinking", "thinking": "hm", "signature": "xx" });
    let told = assistant("m", "a1", json!([thinking, text_block("Hello")]));
    host.hear_all(&[told.clone(), told, assistant("m", "a2", json!([text_block(" there")])), result()]);
    assert_eq!(words(&host, BlockType::Text), "Hello there");
    assert_eq!(words(&host, BlockType::Thinking), "hm");
    let host = host.finish();
    let messages = host.events.iter().filter(|event| matches!(event, Event::MessageStarted { .. }));
    assert_eq!(messages.count(), 1);
}

#[test]
fn a_recording_without_partial_messages_gives_the_same_words_and_calls() {
    for recording in recordings().into_iter().filter(|recording| recording.name != "interrupt-2.0.30") {
        let whole = Player::play(&recording.steps).host.finish();
        let is_partial = |step: &Step| matches!(step, Step::Said(line) if line.contains(r#""type":"stream_event""#));
        let mut player = Player::new();
        for step in recording.steps.iter().filter(|step| !is_partial(step)) {
            player.step(step);
        }
        let told = player.host.finish();
        for kind in [BlockType::Text, BlockType::Thinking] {
            assert_eq!(words(&told, kind), words(&whole, kind), "{}", recording.name);
        }
        assert_eq!(inputs(&told), inputs(&whole), "{}", recording.name);
        assert_eq!(names(&told), names(&whole), "{}", recording.name);
    }
}

#[test]
fn a_recording_without_whole_messages_gives_the_same_events() {
    for recording in plain() {
        let whole = Player::play(&recording.steps).host.finish();
        let is_whole = |step: &Step| matches!(step, Step::Said(line) if line.starts_with(r#"{"type":"assistant""#));
        let mut player = Player::new();
        for step in recording.steps.iter().filter(|step| !is_whole(step)) {
            player.step(step);
        }
        assert_eq!(player.host.finish().events, whole.events, "{}", recording.name);
    }
}

#[test]
fn what_a_lost_delta_would_have_said_is_added_when_the_block_is_told_whole() {
    let mut host = Host::prompted();
    let told = assistant("m", "a1", json!([text_block("Hello")]));
    host.hear_all(&[message_start("m"), text_start(0), text_delta(0, "Hel"), told, block_stop(0), result()]);
    assert_eq!(words(&host.finish(), BlockType::Text), "Hello");
}

#[test]
fn a_block_that_is_told_otherwise_than_it_was_streamed_stays_as_it_was_streamed_and_is_counted() {
    for (streamed, told) in [("lo", "Hällo"), ("Jel", "Hello"), ("Hello there", "Hello")] {
        let mut host = Host::prompted();
        let whole = assistant("m", "a1", json!([text_block(told)]));
        host.hear_all(&[message_start("m"), text_start(0), text_delta(0, streamed), whole, block_stop(0), result()]);
        assert_eq!(host.claude.counts().differing, 1, "{told}");
        assert_eq!(words(&host.finish(), BlockType::Text), streamed);
    }
}

#[test]
fn several_blocks_of_one_kind_are_each_recognized() {
    let mut host = Host::prompted();
    host.hear(&message_start("m"));
    for (index, text) in ["one ", "two ", "three"].into_iter().enumerate() {
        let index = u64::try_from(index).expect("it is small");
        let told = assistant("m", text, json!([text_block(text)]));
        host.hear_all(&[text_start(index), text_delta(index, text), told, block_stop(index)]);
    }
    host.hear_all(&[message_stop(), result()]);
    assert_eq!(host.claude.counts().differing, 0);
    assert_eq!(words(&host.finish(), BlockType::Text), "one two three");
}

#[test]
fn the_input_of_a_call_comes_only_when_it_is_whole() {
    let mut host = Host::prompted();
    host.hear_all(&[message_start("m"), call_start(0, "a"), input_delta(0, "{\"x\":"), input_delta(0, "1}")]);
    assert!(!host.events.iter().any(|event| matches!(event, Event::BlockDelta { .. } | Event::BlockEnded { .. })));
    host.hear(&block_stop(0));
    assert_eq!(inputs(&host), ["{\"x\":1}"]);
    host.finish();
}

#[test]
fn a_call_without_input_has_an_empty_object() {
    let mut host = Host::prompted();
    host.hear_all(&[message_start("m"), call_start(0, "a"), input_delta(0, ""), block_stop(0)]);
    assert_eq!(inputs(&host.finish()), ["{}"]);
}

#[test]
fn an_input_that_was_cut_is_not_given_as_if_it_were_whole() {
    let mut host = Host::prompted();
    host.hear_all(&[message_start("m"), call_start(0, "a"), input_delta(0, "{\"x\":"), block_stop(0), result()]);
    assert_eq!(inputs(&host.finish()), [""]);
}

#[test]
fn an_input_over_the_limit_is_not_held_but_taken_from_the_whole_message() {
    let mut host = Host::with_limits(Limits { max_input_bytes: 4, ..Limits::default() });
    host.hear_all(&[
        message_start("m"),
        call_start(0, "a"),
        input_delta(0, "{\"x\""),
        input_delta(0, ":1}"),
        assistant("m", "a1", json!([call_block("a", "Bash", json!({ "x": 1 }))])),
        block_stop(0),
    ]);
    assert_eq!(host.claude.counts().inputs_cut, 1);
    assert_eq!(inputs(&host.finish()), ["{\"x\":1}"]);
}

#[test]
fn an_input_that_was_told_whole_is_kept_when_its_block_never_stops() {
    for next in [message_start("n"), result()] {
        let mut host = Host::prompted();
        let told = assistant("m", "a1", json!([call_block("a", "Bash", json!({ "x": 1 }))]));
        host.hear_all(&[message_start("m"), call_start(0, "a"), input_delta(0, "{\"x\""), told, next]);
        assert_eq!(inputs(&host.finish()), ["{\"x\":1}"]);
    }
}

#[test]
fn messages_blocks_and_calls_over_the_limit_are_left_out_and_counted() {
    let mut host = Host::with_limits(Limits { max_parts: 5, ..Limits::default() });
    let blocks = json!([text_block("1"), text_block("2"), text_block("3"), text_block("4")]);
    host.hear_all(&[assistant("m", "a1", blocks), assistant("n", "a2", json!([text_block("5")]))]);
    host.hear_all(&[message_start("o"), text_delta(0, "6"), can_use_tool("r1", "a"), result()]);
    assert!(host.claude.counts().parts_cut > 0);
    assert_eq!(words(&host, BlockType::Text), "123");
    assert_eq!(host.written.last().map(|line| &line["response"]["response"]["behavior"]), Some(&json!("deny")));
    assert_eq!(host.finish().strays(), 0);
}

#[test]
fn a_message_of_very_many_blocks_takes_no_more_time_than_it_has_bytes() {
    let mut host = Host::prompted();
    let blocks: Vec<_> = (0..300_000).map(|_| json!({ "type": "text", "text": "" })).collect();
    host.hear_all(&[assistant("m", "a1", json!(blocks)), result()]);
    assert_eq!(host.claude.counts().parts_cut, 300_000 - 1_024);
    host.finish();
}

#[test]
fn signatures_are_ignored_and_counted() {
    let mut host = Host::prompted();
    let signature = delta(0, json!({ "type": "signature_delta", "signature": "c2ln" }));
    let start = block_start(0, json!({ "type": "thinking", "thinking": "" }));
    host.hear_all(&[message_start("m"), start, signature, block_stop(0), message_stop(), result()]);
    assert_eq!(host.claude.counts().ignored_times("delta/signature_delta"), 1);
    assert!(!host.finish().events.iter().any(|event| matches!(event, Event::BlockDelta { .. })));
}

#[test]
fn redacted_thinking_is_a_block_without_words() {
    for streamed in [true, false] {
        let mut host = Host::prompted();
        let redacted = json!({ "type": "redacted_thinking", "data": "b3BhcXVl" });
        if streamed {
            host.hear_all(&[message_start("m"), block_start(0, redacted.clone())]);
        }
        host.hear(&assistant("m", "a1", json!([redacted])));
        if streamed {
            host.hear_all(&[block_stop(0), message_stop()]);
        }
        host.hear(&result());
        let host = host.finish();
        let shown = host.shown();
        assert_eq!(shown.iter().filter(|line| line.contains("Redacted")).count(), 1, "{shown:#?}");
        assert!(!shown.iter().any(|line| line.contains("b3BhcXVl")));
    }
}

#[test]
fn half_of_a_surrogate_pair_does_not_cost_the_line() {
    let mut host = Host::prompted();
    host.hear(&message_start("m"));
    host.hear_text(
        r#"{"type":"stream_event","event":{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"a\ud83d b"}}}"#,
    );
    let said = words(&host, BlockType::Text);
    assert!(said.starts_with('a') && said.ends_with(" b") && said.contains('\u{fffd}'), "{said:?}");
    assert_eq!(host.finish().claude.counts().malformed, 0);
}

#[test]
fn a_result_may_come_before_its_message_stops() {
    let mut host = Host::prompted();
    host.hear_all(&[
        message_start("m"),
        call_start(0, "a"),
        input_delta(0, "{}"),
        block_stop(0),
        tool_result("a", json!("out"), false),
        text_start(1),
        text_delta(1, "more"),
        block_stop(1),
        message_stop(),
        result(),
    ]);
    let host = host.finish();
    assert_eq!(host.strays(), 0);
    assert_eq!(words(&host, BlockType::Text), "more");
    let at = |begin: &str| host.shown().iter().position(|line| line.starts_with(begin));
    assert!(at("call a ends") < at("message m ends"));
}

#[test]
fn a_result_has_text_images_and_whatever_else_as_it_came() {
    let mut host = called("a");
    let content = json!([
        { "type": "text", "text": "seen" },
        { "type": "image", "source": { "type": "base64", "media_type": "image/png", "data": "AAAA" } },
        { "type": "image", "source": { "type": "url", "url": "https://example.org/x.png" } },
        { "type": "novelty", "deep": [1] },
    ]);
    host.hear(&tool_result("a", content, false));
    let host = host.finish();
    let shown = host.shown();
    let ended = shown.iter().find(|line| line.starts_with("call a ends")).expect("it ended");
    for piece in ["\"seen\"", "4 bytes of base64 (image/png)", "https://example.org/x.png", r#"\"novelty\""#] {
        assert!(ended.contains(piece), "{piece} in {ended}");
    }
}

#[test]
fn a_result_that_is_an_error_fails_its_call() {
    let mut host = called("a");
    host.hear(&tool_result("a", json!("no such file"), true));
    assert!(host.finish().shown().contains(&r#"call a fails: "Bash failed", "no such file", []"#));
}

#[test]
fn a_call_that_the_program_says_never_ran_is_cancelled() {
    let mut host = called("a");
    let mut line = tool_result("a", json!("not now"), true);
    line["tool_result_meta"] = json!([{ "id": "a", "non_execution_kind": "permission-rule" }]);
    host.hear(&line);
    let host = host.finish();
    assert!(host.shown().contains(&r#"call a is cancelled: Some("not now")"#));
    assert!(!host.shown().contains(&"call a runs"));
}

#[test]
fn a_file_that_was_written_is_an_edit_with_its_lines() {
    let mut host = called("a");
    let mut line = tool_result("a", json!("ok"), false);
    line["tool_use_result"] = json!({
        "filePath": "/tmp/a b.txt", "structuredPatch": [{ "lines": [" same", "+new", "+newer", "-old"] }],
    });
    host.hear(&line);
    assert!(host.finish().shown().contains(&r#"call a ends: "Ran Bash", ["ok", file:///tmp/a%20b.txt +2 -1]"#));
}

#[test]
fn tools_that_run_where_the_model_does_are_calls_too() {
    let mut host = Host::prompted();
    let call = json!({ "type": "server_tool_use", "id": "s", "name": "web_search", "input": {} });
    let found = json!({ "type": "web_search_tool_result", "tool_use_id": "s", "content": [{ "type": "text", "text": "found" }] });
    host.hear_all(&[
        message_start("m"),
        block_start(0, call),
        input_delta(0, "{\"query\":\"x\"}"),
        block_stop(0),
        block_start(1, found),
        block_stop(1),
        message_stop(),
        result(),
    ]);
    assert!(host.finish().shown().contains(&r#"call s ends: "Ran web_search", ["found"]"#));
}

#[test]
fn progress_of_a_call_says_that_it_runs_once() {
    let mut host = called("a");
    let begun = json!({ "type": "system", "subtype": "task_started", "task_id": "b1", "tool_use_id": "a" });
    host.hear(&begun);
    assert!(host.shown().contains(&"call a runs"));
    let progress =
        json!({ "type": "tool_progress", "tool_use_id": "a", "tool_name": "Bash", "elapsed_time_seconds": 3 });
    host.hear_all(&[progress.clone(), progress, tool_result("a", json!("out"), false), result()]);
    let host = host.finish();
    assert_eq!(host.strays(), 0);
    assert_eq!(host.shown().iter().filter(|line| **line == "call a runs").count(), 1);
}

#[test]
fn a_sub_agent_works_inside_the_call_that_began_it() {
    let mut host = Host::prompted();
    let task = json!({ "subagent_type": "explorer", "prompt": "Look around", "description": "look" });
    let mut prompt = json!({ "type": "user", "message": { "role": "user", "content": "Look around" } });
    prompt["parent_tool_use_id"] = json!("p");
    host.hear_all(&[
        init(),
        message_start("m"),
        block_start(0, json!({ "type": "tool_use", "id": "p", "name": "Task", "input": {} })),
        input_delta(0, &task.to_string()),
        block_stop(0),
        message_stop(),
        prompt,
        of_agent(assistant("w1", "a1", json!([text_block("Looking")])), "p"),
        of_agent(assistant("w1", "a2", json!([call_block("c", "Read", json!({ "file": "x" }))])), "p"),
        of_agent(tool_result("c", json!("contents"), false), "p"),
        of_agent(assistant("w2", "a3", json!([text_block("Seen")])), "p"),
        tool_result("p", json!("It is small."), false),
        assistant("n", "a4", json!([text_block("Done")])),
        result(),
    ]);
    assert_eq!(host.strays(), 0);
    let host = host.finish();
    let wanted = [
        "call p runs",
        r#"agent p starts: "explorer", "Look around""#,
        "message w1 of p starts",
        "block w1/0 starts: Text",
        r#"block w1/0 + Text "Looking""#,
        "block w1/0 ends",
        "block w1/1 starts: call c of Read",
        r#"block w1/1 ends: input {"file":"x"}"#,
        "call c runs",
        r#"call c ends: "Ran Read", ["contents"]"#,
        "message w1 ends",
        "message w2 of p starts",
        "block w2/0 starts: Text",
        r#"block w2/0 + Text "Seen""#,
        "block w2/0 ends",
        "message w2 ends",
        "agent p ends: complete",
        r#"call p ends: "Ran Task", ["It is small."]"#,
    ];
    let shown = host.shown();
    let at = shown.iter().position(|line| *line == wanted[0]).expect("the call runs");
    assert_eq!(&shown[at..at + wanted.len()], wanted);
}

#[test]
fn a_sub_agent_that_streams_is_heard_beside_the_agent() {
    let mut host = Host::prompted();
    let call = |tool: &str| call_block(tool, "Task", json!({ "subagent_type": "x", "prompt": tool }));
    host.hear_all(&[assistant("m", "a1", json!([call("p")])), assistant("m", "a2", json!([call("q")]))]);
    for line in [text_start(0), text_delta(0, "one"), text_delta(0, " two"), block_stop(0), message_stop()] {
        for agent in ["p", "q"] {
            if line == text_start(0) {
                host.hear(&of_agent(message_start(agent), agent));
            }
            host.hear(&of_agent(line.clone(), agent));
        }
    }
    host.hear_all(&[tool_result("q", json!("q"), false), tool_result("p", json!("p"), true), result()]);
    assert_eq!(host.strays(), 0);
    let host = host.finish();
    assert_eq!(words(&host, BlockType::Text), "oneone two two");
    assert!(host.shown().contains(&"agent q ends: complete"));
    assert!(host.shown().contains(&r#"agent p ends: failed, agentFailed: "p""#));
}

#[test]
fn a_sub_agent_in_the_background_keeps_its_call_open_until_its_task_ends() {
    let mut host = Host::prompted();
    host.hear_all(&[launch("p"), launched("p")]);
    assert!(!host.shown().iter().any(|line| line.starts_with("call p ends")));
    host.hear(&of_agent(assistant("w", "a2", json!([text_block("still here")])), "p"));
    let ended = json!({
        "type": "system", "subtype": "task_notification", "task_id": "bg1", "status": "completed", "summary": "All fine",
    });
    host.hear_all(&[ended, result()]);
    assert_eq!(host.strays(), 0);
    let host = host.finish();
    assert_eq!(words(&host, BlockType::Text), "still here");
    assert!(host.shown().contains(&"agent p ends: complete"));
    assert!(host.shown().contains(&r#"call p ends: "Ran Task", ["All fine"]"#));
}

#[test]
fn a_sub_agent_that_outlives_its_turn_is_heard_no_more() {
    let mut host = Host::prompted();
    let late = |uuid: &str| of_agent(assistant("w", uuid, json!([text_block("late")])), "p");
    host.hear_all(&[launch("p"), launched("p"), result(), late("a2")]);
    host.send("t2", "u2");
    host.hear_all(&[init(), late("a3"), result()]);
    assert_eq!(host.claude.counts().late, 2);
    let host = host.finish();
    assert_eq!(words(&host, BlockType::Text), "");
    assert!(host.shown().contains(&r#"call p ends: "Left Task running in the background", ["launched"]"#));
    assert_eq!(host.events.iter().filter(|event| matches!(event, Event::TurnStarted { .. })).count(), 2);
}

#[test]
fn the_next_message_ends_one_that_never_stopped() {
    let mut host = Host::prompted();
    let retry = json!({
        "type": "system", "subtype": "api_retry", "attempt": 2, "max_retries": 10, "error_status": 529, "error": "overloaded",
    });
    host.hear_all(&[
        message_start("m"),
        text_start(0),
        text_delta(0, "Hal"),
        retry,
        message_start("n"),
        text_start(0),
        text_delta(0, "Hello"),
        block_stop(0),
        message_stop(),
        result(),
    ]);
    let host = host.finish();
    let shown = host.shown();
    assert!(shown.contains(&r#"notice "The model could not be reached (HTTP 529). Attempt 2 of 10 follows.""#));
    let at = |wanted: &str| shown.iter().position(|line| *line == wanted);
    assert!(at("message m ends") < at("message n starts"));
    assert_eq!(words(&host, BlockType::Text), "HalHello");
}

#[test]
fn unknown_blocks_and_stream_events_are_ignored_and_counted() {
    let mut host = Host::prompted();
    host.hear_all(&[
        message_start("m"),
        block_start(0, json!({ "type": "hologram" })),
        event(json!({ "type": "ping" })),
        block_stop(0),
        message_stop(),
        result(),
    ]);
    assert_eq!(host.claude.counts().ignored_times("block/hologram"), 1);
    assert_eq!(host.claude.counts().ignored_times("stream_event/ping"), 1);
    assert_eq!(host.finish().strays(), 0);
}

/// A host whose agent has made one call.
pub(crate) fn called(tool: &str) -> Host {
    let mut host = Host::prompted();
    host.hear(&assistant("m", "a1", json!([call_block(tool, "Bash", json!({ "command": "ls" }))])));
    host
}

fn launch(tool: &str) -> serde_json::Value {
    assistant("m", "a1", json!([call_block(tool, "Task", json!({ "subagent_type": "x", "prompt": "work" }))]))
}

fn launched(tool: &str) -> serde_json::Value {
    let mut line = tool_result(tool, json!("launched"), false);
    line["tool_use_result"] = json!({ "isAsync": true, "status": "async_launched", "agentId": "bg1" });
    line
}

/// All words of a kind.
pub(crate) fn words(host: &Host, wanted: BlockType) -> String {
    let said = host.events.iter().filter_map(|event| match event {
        Event::BlockDelta { kind, text, .. } if *kind == wanted => Some(text.as_str()),
        _ => None,
    });
    said.collect()
}

fn inputs(host: &Host) -> Vec<&str> {
    let ended = host.events.iter().filter_map(|event| match event {
        Event::BlockEnded { input, .. } => input.as_deref(),
        _ => None,
    });
    ended.collect()
}

/// The names of all blocks, with their messages.
fn names(host: &Host) -> Vec<(&str, &str)> {
    let begun = host.events.iter().filter_map(|event| match event {
        Event::BlockStarted { message, block, .. } => Some((message.as_str(), block.as_str())),
        _ => None,
    });
    begun.collect()
}
