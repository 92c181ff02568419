//! Each rule of the translator as a case.

use agent_client_protocol_schema::v1::{RequestPermissionOutcome, StopReason};
use breakbulk_lifecycle::acp::SessionSignal;
use breakbulk_lifecycle::{Answer, BlockType, Content, Ending, Event, Outcome};
use serde_json::{Value, json};

use super::Host;

fn text(text: &str) -> Value {
    json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}})
}

fn text_of(message: &str, text: &str) -> Value {
    let content = json!({"type": "text", "text": text});
    json!({"sessionUpdate": "agent_message_chunk", "messageId": message, "content": content})
}

fn thought(text: &str) -> Value {
    json!({"sessionUpdate": "agent_thought_chunk", "content": {"type": "text", "text": text}})
}

fn call(id: &str) -> Value {
    json!({"sessionUpdate": "tool_call", "toolCallId": id, "title": "Write a.txt", "kind": "edit", "rawInput": {"path": "a.txt"}})
}

fn update(id: &str, fields: Value) -> Value {
    let mut update = json!({"sessionUpdate": "tool_call_update", "toolCallId": id});
    let fields = fields.as_object().expect("fields").clone();
    update.as_object_mut().expect("an object").extend(fields);
    update
}

fn permission(id: &str) -> Value {
    json!({"sessionId": "s", "toolCall": {"toolCallId": id, "title": "Write a.txt"}, "options": [
        {"optionId": "y", "name": "Yes", "kind": "allow_once"},
        {"optionId": "all", "name": "Yes, all", "kind": "allow_always"},
        {"optionId": "n", "name": "No", "kind": "reject_once"},
    ]})
}

/// One short word for each event.
fn outline(host: &Host) -> Vec<String> {
    let word = |event: &Event| match event {
        Event::TurnStarted { turn } => format!("turn {turn}"),
        Event::MessageStarted { message, .. } => format!("message {message}"),
        Event::BlockStarted { block, kind, .. } => format!("block {block} {:?}", kind.kind()),
        Event::BlockDelta { block, text, .. } => format!("delta {block} {text}"),
        Event::BlockEnded { block, input, .. } => format!("end {block} {}", input.as_deref().unwrap_or("-")),
        Event::MessageEnded { message } => format!("end {message}"),
        Event::ToolAsked { tool, ask } => {
            format!("asked {tool} {:?}", ask.choices.iter().map(|choice| &*choice.id).collect::<Vec<_>>())
        }
        Event::ToolAnswered { tool, answer } => format!("answered {tool} {}", answer.allows()),
        Event::ToolStarted { tool } => format!("started {tool}"),
        Event::ToolOutput { tool, content } => format!("output {tool} {}", content.len()),
        Event::ToolEnded { tool, ending: Ending::Done(result) } => format!("done {tool} {}", result.success),
        Event::ToolEnded { tool, ending: Ending::Cancelled { .. } } => format!("cancelled {tool}"),
        Event::TurnEnded { outcome: Outcome::Failed(failure), .. } => format!("failed {}", failure.kind),
        Event::TurnEnded { outcome, .. } => format!("{outcome:?}"),
        other => format!("{other:?}"),
    };
    host.events.iter().map(word).collect()
}

#[test]
fn a_block_ends_when_the_kind_of_chunk_changes() {
    let mut host = Host::prompted();
    host.updates(&[thought("hm"), thought("m"), text("Hello"), text(" you")]);
    host.end(StopReason::EndTurn);
    host.assert_well_formed();
    assert_eq!(
        outline(&host),
        [
            "turn t1",
            "message t1-m1",
            "block 0 Thinking",
            "delta 0 hm",
            "delta 0 m",
            "end 0 -",
            "block 1 Text",
            "delta 1 Hello",
            "delta 1  you",
            "end 1 -",
            "end t1-m1",
            "Complete",
        ]
    );
}

#[test]
fn a_message_ends_when_the_message_id_changes_and_after_a_call() {
    let mut host = Host::prompted();
    host.updates(&[
        text_of("a", "1"),
        text_of("b", "2"),
        call("c"),
        update("c", json!({"status": "completed"})),
        text("3"),
    ]);
    host.end(StopReason::EndTurn);
    host.assert_well_formed();
    let starts = host.events.iter().filter(|event| matches!(event, Event::MessageStarted { .. })).count();
    assert_eq!(starts, 3, "{:?}", outline(&host));
}

#[test]
fn a_call_streams_its_output_and_ends_with_its_result() {
    let mut host = Host::prompted();
    let content = json!([{"type": "content", "content": {"type": "text", "text": "ok"}},
        {"type": "diff", "path": "/w/a b.txt", "oldText": "1\n2\n", "newText": "1\n3\n4\n"}]);
    host.updates(&[
        call("c"),
        update("c", json!({"status": "in_progress"})),
        update("c", json!({"content": content})),
        update("c", json!({"status": "completed"})),
        update("c", json!({"status": "failed"})),
    ]);
    host.end(StopReason::EndTurn);
    host.assert_well_formed();
    assert_eq!(
        outline(&host),
        [
            "turn t1",
            "message t1-m1",
            "block 0 ToolInput",
            "end 0 {\"path\":\"a.txt\"}",
            "started c",
            "output c 2",
            "done c true",
            "end t1-m1",
            "Complete",
        ]
    );
    let edit = Content::Edit { uri: "file:///w/a%20b.txt".into(), added: 2, removed: 1 };
    assert!(
        host.events.iter().any(|event| matches!(event,
        Event::ToolEnded { ending: Ending::Done(result), .. } if result.content[1] == edit)),
        "{:?}",
        host.events
    );
}

#[test]
fn a_failed_call_says_what_the_agent_said() {
    let mut host = Host::prompted();
    host.updates(&[call("c"), update("c", json!({"status": "failed", "rawOutput": "no such file"}))]);
    host.end(StopReason::EndTurn);
    assert!(host.events.iter().any(|event| matches!(event, Event::ToolEnded { ending: Ending::Done(result), .. }
        if !result.success && result.error.as_deref() == Some("no such file"))));
}

#[test]
fn an_answer_is_the_option_of_the_agent_that_means_it() {
    for (answer, option) in [
        (Answer::yes(), Some("y")),
        (Answer::Allowed { input: None, choice: Some("always:all".into()) }, Some("all")),
        (Answer::no(), Some("n")),
        (Answer::Denied { reason: None, choice: Some("y".into()) }, Some("n")),
        (Answer::Withdrawn, None),
    ] {
        let mut host = Host::prompted();
        host.update(&call("c"));
        assert!(host.ask(&permission("c")));
        let outcome = host.acp.answer(&"c".into(), &answer);
        let chosen = match outcome {
            Some(RequestPermissionOutcome::Selected(selected)) => Some(selected.option_id.0.to_string()),
            Some(RequestPermissionOutcome::Cancelled) => None,
            other => panic!("{other:?}"),
        };
        assert_eq!(chosen.as_deref(), option, "{answer:?}");
        assert_eq!(host.acp.answer(&"c".into(), &answer), None, "it is answered once");
        host.drain();
        host.end(StopReason::EndTurn);
        host.assert_well_formed();
        assert!(outline(&host).contains(&r#"asked c ["y", "always:all", "n"]"#.to_owned()));
    }
}

#[test]
fn a_permission_for_a_call_that_was_never_announced_announces_it() {
    let mut host = Host::prompted();
    assert!(host.ask(&permission("new")));
    host.end(StopReason::Cancelled);
    host.assert_well_formed();
    assert!(outline(&host).iter().any(|word| word.starts_with("asked new")));
    assert_eq!(outline(&host).last().map(String::as_str), Some("Cancelled"));
}

#[test]
fn a_plan_is_a_call_whose_output_is_the_plan() {
    let mut host = Host::prompted();
    let plan = |status: &str| json!({"sessionUpdate": "plan", "entries": [{"content": "Read", "priority": "high", "status": status}]});
    host.updates(&[plan("pending"), text("..."), plan("completed")]);
    host.end(StopReason::EndTurn);
    host.assert_well_formed();
    let last = host.events.iter().rev().find_map(|event| match event {
        Event::ToolEnded { ending: Ending::Done(result), .. } => Some(result.content.clone()),
        _ => None,
    });
    assert_eq!(last, Some(vec![Content::Text("- [x] Read".into())]));
}

#[test]
fn what_comes_without_a_prompt_is_dropped_and_counted() {
    let mut host = Host::new();
    host.updates(&[text("old"), call("c")]);
    assert!(!host.ask(&permission("c")));
    assert_eq!((host.raw.len(), host.acp.strays()), (0, 3));
    let commands = json!({"sessionUpdate": "available_commands_update", "availableCommands": [{"name": "plan", "description": "Plans."}]});
    host.updates(&[commands, json!({"sessionUpdate": "current_mode_update", "currentModeId": "code"})]);
    assert!(matches!(&host.signals[..], [SessionSignal::Commands(commands), SessionSignal::ModeChanged { mode }]
        if commands.len() == 1 && mode == "code"));
}

#[test]
fn every_stop_reason_has_its_outcome() {
    for (reason, outcome) in [
        (StopReason::EndTurn, "Complete"),
        (StopReason::Cancelled, "Cancelled"),
        (StopReason::MaxTokens, "failed maxTokens"),
        (StopReason::MaxTurnRequests, "failed maxTurnRequests"),
        (StopReason::Refusal, "failed refused"),
    ] {
        let mut host = Host::prompted();
        host.update(&text("x"));
        host.end(reason);
        host.assert_well_formed();
        assert_eq!(outline(&host).last().map(String::as_str), Some(outcome));
    }
}

#[test]
fn a_prompt_while_one_is_open_ends_that_one() {
    let mut host = Host::prompted();
    host.updates(&[text("x"), call("c")]);
    host.acp.begin("t2".into());
    host.update(&text("y"));
    host.crash();
    host.assert_well_formed();
    let outline = outline(&host);
    assert!(
        outline.contains(&"Cancelled".to_owned()) && outline.contains(&"failed agentEnded".to_owned()),
        "{outline:?}"
    );
}

#[test]
fn cost_is_that_of_the_turn() {
    let mut host = Host::prompted();
    let usage = |amount: f64| json!({"sessionUpdate": "usage_update", "used": 1, "size": 2, "cost": {"amount": amount, "currency": "USD"}});
    host.update(&usage(0.5));
    host.end(StopReason::EndTurn);
    host.acp.begin("t2".into());
    host.update(&usage(0.75));
    host.end(StopReason::EndTurn);
    let costs: Vec<_> = host
        .events
        .iter()
        .filter_map(|event| match event {
            Event::Usage(usage) => usage.cost_micros,
            _ => None,
        })
        .collect();
    assert_eq!(costs, [500_000, 250_000]);
}

#[test]
fn thinking_is_no_text() {
    let mut host = Host::prompted();
    host.updates(&[thought("a"), text("b")]);
    host.end(StopReason::EndTurn);
    let kinds: Vec<_> = host
        .events
        .iter()
        .filter_map(|event| match event {
            Event::BlockDelta { kind, text, .. } => Some((*kind, text.as_str())),
            _ => None,
        })
        .collect();
    assert_eq!(kinds, [(BlockType::Thinking, "a"), (BlockType::Text, "b")]);
}

#[test]
fn what_a_call_is_announced_with_is_its_input_only_if_no_more_comes() {
    let input_of = |updates: &[Value]| {
        let mut host = Host::prompted();
        host.updates(updates);
        host.end(StopReason::EndTurn);
        host.assert_well_formed();
        host.events.iter().find_map(|event| match event {
            Event::BlockEnded { input: Some(input), .. } => Some(input.clone()),
            _ => None,
        })
    };
    let announced = json!({"sessionUpdate": "tool_call", "toolCallId": "c", "title": "bash", "kind": "execute",
        "status": "pending", "rawInput": {"cwd": "/w"}});
    let whole = json!({"rawInput": {"command": "ls", "cwd": "/w"}, "status": "in_progress"});
    let more = [announced.clone(), update("c", whole)];
    assert_eq!(input_of(&more).as_deref(), Some(r#"{"command":"ls","cwd":"/w"}"#));
    assert_eq!(input_of(&[announced]).as_deref(), Some(r#"{"cwd":"/w"}"#));
}

#[test]
fn a_call_that_runs_already_may_be_asked_about() {
    let mut host = Host::prompted();
    host.updates(&[call("c"), update("c", json!({"status": "in_progress"}))]);
    assert!(host.ask(&permission("c")));
    host.acp.answer(&"c".into(), &Answer::yes());
    host.updates(&[update("c", json!({"status": "completed", "rawOutput": "ok"}))]);
    host.end(StopReason::EndTurn);
    host.assert_well_formed();
    let outline = outline(&host);
    let at = |word: &str| outline.iter().position(|line| line.starts_with(word));
    assert!(at("started c") < at("asked c") && at("answered c true") < at("done c true"), "{outline:?}");
}

#[test]
fn content_of_every_kind_becomes_content_of_the_grammar() {
    let mut host = Host::prompted();
    let block = |block: Value| json!({"type": "content", "content": block});
    let content = json!([
        block(json!({"type": "text", "text": "t"})),
        block(json!({"type": "image", "data": "AAAA", "mimeType": "image/png"})),
        block(json!({"type": "resource_link", "name": "n", "uri": "file:///w/a", "mimeType": "text/plain"})),
        block(json!({"type": "resource", "resource": {"uri": "file:///w/b", "text": "inside"}})),
        json!({"type": "terminal", "terminalId": "ahp-terminal:/1"}),
        json!({"type": "diff", "path": "/w/c", "newText": "1\n2\n"}),
    ]);
    host.updates(&[call("c"), update("c", json!({"status": "completed", "content": content}))]);
    let done = host.events.iter().find_map(|event| match event {
        Event::ToolEnded { ending: Ending::Done(result), .. } => Some(result.content.clone()),
        _ => None,
    });
    let wanted = vec![
        Content::Text("t".into()),
        Content::Data { base64: "AAAA".into(), mime: "image/png".into() },
        Content::Link { uri: "file:///w/a".into(), mime: Some("text/plain".into()) },
        Content::Text("inside".into()),
        Content::Link { uri: "ahp-terminal:/1".into(), mime: None },
        Content::Edit { uri: "file:///w/c".into(), added: 2, removed: 0 },
    ];
    assert_eq!(done, Some(wanted));
}

#[test]
fn a_call_that_says_it_runs_while_somebody_is_asked_still_waits_for_the_answer() {
    for allows in [true, false] {
        let mut host = Host::prompted();
        host.update(&call("c"));
        assert!(host.ask(&permission("c")));
        host.updates(&[update("c", json!({"status": "in_progress"})), update("c", json!({"status": "in_progress"}))]);
        let has = |host: &Host, word: &str| outline(host).iter().any(|line| line.starts_with(word));
        assert!(!has(&host, "answered c") && !has(&host, "started c"), "{:?}", outline(&host));
        let answer = if allows { Answer::yes() } else { Answer::no() };
        assert!(host.acp.answer(&"c".into(), &answer).is_some());
        host.drain();
        assert_eq!(has(&host, "started c"), allows, "{:?}", outline(&host));
        host.update(&update("c", json!({"status": if allows { "completed" } else { "failed" }})));
        host.end(StopReason::EndTurn);
        host.assert_well_formed();
        assert!(has(&host, if allows { "done c true" } else { "cancelled c" }), "{:?}", outline(&host));
    }
}

#[test]
fn a_call_that_fails_while_somebody_is_asked_has_not_run() {
    let mut host = Host::prompted();
    host.update(&call("c"));
    assert!(host.ask(&permission("c")));
    host.update(&update("c", json!({"status": "failed"})));
    host.end(StopReason::EndTurn);
    host.assert_well_formed();
    let outline = outline(&host);
    assert!(outline.contains(&"cancelled c".to_owned()), "{outline:?}");
    assert!(!outline.iter().any(|line| line.starts_with("started c")), "{outline:?}");
}

#[test]
fn what_an_agent_shows_of_a_call_without_an_input_is_seen_by_whoever_is_asked() {
    let input_of = |updates: &[Value], content: Value| {
        let mut host = Host::prompted();
        host.updates(updates);
        let mut request = permission("c");
        request["toolCall"]["content"] = content;
        assert!(host.ask(&request));
        host.acp.answer(&"c".into(), &Answer::yes());
        host.updates(&[update("c", json!({"status": "completed", "content": []}))]);
        host.end(StopReason::EndTurn);
        host.assert_well_formed();
        let inputs = host.events.iter().filter_map(|event| match event {
            Event::BlockEnded { input: Some(input), .. } => Some(input.clone()),
            _ => None,
        });
        inputs.collect::<Vec<_>>()
    };
    let diff = json!({"type": "diff", "path": "/w/a.txt", "oldText": "old", "newText": "new"});
    let about = json!({"type": "content", "content": {"type": "text", "text": "in /w"}});
    let shown = r#"{"text":"in /w","edits":[{"path":"/w/a.txt","oldText":"old","newText":"new"}]}"#;
    assert_eq!(input_of(&[], json!([diff, about])), [shown]);
    let mut announced = call("c");
    announced["rawInput"] = json!({});
    announced["status"] = json!("pending");
    assert_eq!(input_of(&[announced], json!([diff, about])), [shown], "it is announced with nothing");
    assert_eq!(input_of(&[call("c")], json!([diff, about])), [r#"{"path":"a.txt"}"#], "it has an input");
    assert_eq!(input_of(&[], json!([])), ["{}"]);
}

#[test]
fn a_chunk_without_text_begins_no_block_but_ends_the_message_before() {
    let mut host = Host::prompted();
    host.updates(&[text_of("m1", ""), text_of("m1", "a"), call("c"), update("c", json!({"status": "completed"}))]);
    host.updates(&[text_of("m2", ""), call("d"), update("d", json!({"status": "completed"}))]);
    host.end(StopReason::EndTurn);
    host.assert_well_formed();
    let outline = outline(&host);
    let begun = |word: &str| outline.iter().filter(|line| line.starts_with(word)).cloned().collect::<Vec<_>>();
    assert_eq!(begun("message"), ["message t1-m1", "message t1-m2"], "{outline:?}");
    assert_eq!(begun("block"), ["block 0 Text", "block 1 ToolInput", "block 0 ToolInput"], "{outline:?}");
}

#[test]
fn what_still_comes_of_a_cancelled_turn_is_not_said_in_the_next_one() {
    let mut host = Host::prompted();
    host.updates(&[text_of("m1", "old "), call("c"), text_of("m2", "old ")]);
    host.end(StopReason::Cancelled);
    host.acp.begin("t2".into());
    host.updates(&[text_of("m2", "late "), update("c", json!({"status": "completed", "rawOutput": "late"}))]);
    host.updates(&[text_of("m3", "new"), update("d", json!({"title": "New", "status": "completed"}))]);
    // A name may be used again for a call of its own.
    host.updates(&[call("c"), update("c", json!({"status": "completed"}))]);
    host.end(StopReason::EndTurn);
    host.assert_well_formed();
    let outline = outline(&host);
    let second = outline.iter().position(|line| line == "turn t2").expect("it began");
    let said = |word: &str| outline[second..].iter().filter(|line| line.starts_with(word)).count();
    assert_eq!(
        (said("delta 0 late"), said("delta 0 new"), said("done c"), said("done d")),
        (0, 1, 1, 1),
        "{outline:?}"
    );
    assert_eq!(host.acp.strays(), 2);
    // After a turn that was not cancelled, nothing is late.
    host.acp.begin("t3".into());
    host.update(&text_of("m3", "more"));
    assert_eq!(host.acp.strays(), 2);
}

#[test]
fn the_result_of_a_call_is_its_output_and_not_what_was_shown_before_it_ran() {
    let result_of = |updates: &[Value]| {
        let mut host = Host::prompted();
        host.updates(updates);
        host.end(StopReason::EndTurn);
        host.assert_well_formed();
        let ended = host.events.iter().find_map(|event| match event {
            Event::ToolEnded { ending: Ending::Done(result), .. } => Some(result.content.clone()),
            _ => None,
        });
        ended.expect("it ended")
    };
    let text = |text: &str| json!({"type": "content", "content": {"type": "text", "text": text}});
    let shown = update(
        "c",
        json!({"status": "pending", "content": [text("Writes a.txt"), {"type": "diff", "path": "/w/a", "newText": "1\n"}]}),
    );
    let output = json!({"formatted_output": "done\n", "exit_code": 0});
    let edit = Content::Edit { uri: "file:///w/a".into(), added: 1, removed: 0 };
    let ended = update("c", json!({"status": "completed", "rawOutput": output}));
    assert_eq!(result_of(&[shown.clone(), ended]), [edit.clone(), Content::Text("done\n".into())]);
    let ended = update("c", json!({"status": "completed"}));
    assert_eq!(result_of(&[shown.clone(), ended]), [Content::Text("Writes a.txt".into()), edit]);
    let ended = update("c", json!({"status": "completed", "rawOutput": output, "content": [text("well")]}));
    assert_eq!(result_of(&[shown, ended]), [Content::Text("well".into())]);
}
