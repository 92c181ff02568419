//! Turns: whose they are, how they begin and end, and what they cost.

use breakbulk_lifecycle::claude::{
    CHOICE_STOP, Control, ControlError, NOT_STARTED, Part, Priority, Prompt, Reply, Signal,
};
use breakbulk_lifecycle::{Answer, BlockType, Event, ExitReason, Failure, Outcome};
use serde_json::{Value, json};

use crate::blocks::words;
use crate::host::Host;
use crate::lines::{
    assistant, can_use_tool, failed, init, lifecycle, message_start, message_stop, result, text_block, text_delta,
    text_start,
};

#[test]
fn a_turn_begins_with_its_first_line_and_ends_with_its_result() {
    let mut host = Host::prompted();
    assert_eq!(host.claude.turn(), None);
    assert_eq!(host.claude.waiting().map(|turn| &**turn).collect::<Vec<_>>(), ["t1"]);
    host.hear(&init());
    assert_eq!(host.claude.turn(), Some(&"t1".into()));
    assert_eq!(host.claude.waiting().count(), 0);
    host.hear(&result());
    assert_eq!(host.claude.turn(), None);
    assert_eq!(host.finish().outcome("t1"), Some(&Outcome::Complete));
}

#[test]
fn the_token_to_resume_with_comes_once_in_each_turn() {
    let mut host = Host::prompted();
    host.hear_all(&[init(), init(), result()]);
    host.send("t2", "u2");
    host.hear_all(&[message_start("m"), init(), result()]);
    let host = host.finish();
    assert_eq!(host.events.iter().filter(|event| matches!(event, Event::Resumable { .. })).count(), 2);
}

#[test]
fn what_the_program_tells_about_itself_is_kept() {
    let mut host = Host::prompted();
    host.hear(&init());
    let info = host.claude.info();
    assert_eq!(info.session.as_deref(), Some("s1"));
    assert_eq!(info.model.as_deref(), Some("m-1"));
    assert_eq!(info.permission_mode.as_deref(), Some("default"));
    assert_eq!(info.version.as_deref(), Some("9.9"));
    assert_eq!(
        (&*info.tools, &*info.slash_commands, &*info.agents),
        (&["Bash".to_owned()][..], &["cost".to_owned()][..], &["explorer".to_owned()][..],)
    );
    let status = json!({ "type": "system", "subtype": "status", "permissionMode": "plan" });
    host.hear(&status);
    assert!(host.signals.contains(&Signal::ModeChanged { mode: "plan".into() }));
}

#[test]
fn an_init_without_a_prompt_begins_no_turn() {
    let mut host = Host::new();
    host.hear(&init());
    assert!(host.finish().events.is_empty());
}

#[test]
fn a_turn_that_nobody_prompted_has_a_name_of_its_own() {
    let mut host = Host::new();
    host.hear_all(&[init(), message_start("m"), text_start(0), text_delta(0, "by the way"), message_stop(), result()]);
    let host = host.finish();
    assert!(host.shown().contains(&"turn run-t1 starts"));
    assert_eq!(host.outcome("run-t1"), Some(&Outcome::Complete));
    let is_unprompted = |signal: &Signal| matches!(signal, Signal::Reported(report) if report.is_unprompted);
    assert!(host.signals.iter().any(is_unprompted));
}

#[test]
fn a_turn_that_begins_while_a_prompt_is_still_queued_is_not_that_prompts() {
    let mut host = Host::prompted();
    host.hear_all(&[lifecycle("u1", "queued"), message_start("m"), message_stop(), result()]);
    assert_eq!(host.outcome("run-t1"), Some(&Outcome::Complete));
    host.hear_all(&[lifecycle("u1", "started"), init(), message_start("n"), message_stop(), result()]);
    assert_eq!(host.finish().outcome("t1"), Some(&Outcome::Complete));
}

#[test]
fn prompts_begin_in_the_order_in_which_the_program_takes_them() {
    let mut host = Host::new();
    for (turn, uuid) in [("t1", "u1"), ("t2", "u2")] {
        host.send(turn, uuid);
        host.hear(&lifecycle(uuid, "queued"));
    }
    host.hear_all(&[lifecycle("u2", "started"), init(), result(), lifecycle("u1", "started"), init(), result()]);
    let host = host.finish();
    let begun: Vec<&str> = host.shown().into_iter().filter(|line| line.ends_with("starts")).collect();
    assert_eq!(begun, ["turn t2 starts", "turn t1 starts"]);
}

#[test]
fn a_program_that_says_nothing_about_its_queue_takes_prompts_in_order_and_urgent_ones_first() {
    let mut host = Host::prompted();
    let content = vec![Part::Text("stop that".into())];
    let priority = Some(Priority::Now);
    host.claude.send(Prompt { turn: "t2".into(), uuid: "u2".into(), priority, content });
    host.hear_all(&[init(), result(), init(), result()]);
    let host = host.finish();
    let begun: Vec<&str> = host.shown().into_iter().filter(|line| line.ends_with("starts")).collect();
    assert_eq!(begun, ["turn t2 starts", "turn t1 starts"]);
}

#[test]
fn a_prompt_that_was_answered_within_another_turn_gets_a_turn_that_says_so() {
    let mut host = Host::prompted();
    host.hear_all(&[lifecycle("u1", "started"), init()]);
    host.send("t2", "u2");
    host.hear_all(&[lifecycle("u2", "queued"), lifecycle("u2", "started"), lifecycle("u2", "completed")]);
    assert_eq!(host.outcome("t2"), None);
    host.hear(&result());
    assert_eq!(host.strays(), 0);
    let host = host.finish();
    assert_eq!(host.outcome("t2"), Some(&Outcome::Complete));
    assert!(host.shown().contains(&r#"notice "The agent has answered this prompt within the turn before it.""#));
}

#[test]
fn a_turn_whose_result_was_lost_ends_when_the_program_is_done_with_its_prompt() {
    for is_lost in [true, false] {
        let mut host = Host::prompted();
        host.hear_all(&[lifecycle("u1", "started"), init()]);
        if is_lost {
            host.claude.skip_line();
        }
        host.hear(&lifecycle("u1", "completed"));
        assert_eq!(host.outcome("t1"), is_lost.then_some(&Outcome::Complete));
        host.hear(&result());
        assert_eq!(host.finish().outcome("t1"), Some(&Outcome::Complete));
    }
}

#[test]
fn a_prompt_that_was_taken_back_gets_a_cancelled_turn() {
    for by_lifecycle in [true, false] {
        let mut host = Host::prompted();
        let request = host.claude.request(Control::CancelPrompt { uuid: "u1".into() });
        host.drain();
        let sent = json!({ "subtype": "cancel_async_message", "message_uuid": "u1" });
        assert_eq!(host.written.last().map(|line| &line["request"]), Some(&sent));
        if by_lifecycle {
            host.hear(&lifecycle("u1", "cancelled"));
        }
        host.hear(&replied(request.as_str(), json!({ "cancelled": true })));
        let host = host.finish();
        assert_eq!(host.times(&"t1".into()), (1, 1));
        assert_eq!(host.outcome("t1"), Some(&Outcome::Cancelled));
    }
}

#[test]
fn an_interrupted_turn_is_cancelled_and_a_queued_one_runs_after_it() {
    let mut host = Host::prompted();
    host.hear_all(&[init(), message_start("m"), text_start(0), text_delta(0, "Hel")]);
    host.send("t2", "u2");
    let request = host.claude.request(Control::Interrupt);
    host.drain();
    assert_eq!(host.claude.requests().count(), 1);
    host.hear(&replied(request.as_str(), json!({ "still_queued": ["u2"] })));
    assert_eq!(host.claude.requests().count(), 0);
    host.hear_all(&[
        assistant("m", "a1", json!([text_block("Hel")])),
        failed("error_during_execution"),
        init(),
        assistant("n", "a2", json!([text_block("lo")])),
        result(),
    ]);
    let reply = Ok(Reply::Interrupted { still_queued: vec!["u2".into()] });
    assert!(host.signals.contains(&Signal::Replied { request, control: Control::Interrupt, reply }));
    let host = host.finish();
    assert_eq!(words(&host, BlockType::Text), "Hello");
    assert_eq!(host.outcome("t1"), Some(&Outcome::Cancelled));
    assert_eq!(host.outcome("t2"), Some(&Outcome::Complete));
}

#[test]
fn an_interrupt_before_the_first_line_cancels_the_turn_that_is_about_to_begin() {
    let mut host = Host::prompted();
    host.claude.request(Control::Interrupt);
    host.hear_all(&[init(), failed("error_during_execution")]);
    assert_eq!(host.finish().outcome("t1"), Some(&Outcome::Cancelled));
}

#[test]
fn a_turn_that_the_program_itself_aborted_is_cancelled() {
    let mut host = Host::prompted();
    let mut ended = failed("error_during_execution");
    ended["terminal_reason"] = json!("aborted_streaming");
    host.hear_all(&[init(), ended]);
    assert_eq!(host.finish().outcome("t1"), Some(&Outcome::Cancelled));
}

#[test]
fn a_turn_that_completes_although_it_was_interrupted_is_complete() {
    let mut host = Host::prompted();
    host.hear(&init());
    host.claude.request(Control::Interrupt);
    host.hear(&result());
    assert_eq!(host.finish().outcome("t1"), Some(&Outcome::Complete));
}

#[test]
fn a_turn_that_failed_says_why() {
    let mut host = Host::prompted();
    host.hear_all(&[init(), failed("error_max_turns")]);
    let failure = Failure::new("error_max_turns", "it broke");
    assert_eq!(host.finish().outcome("t1"), Some(&Outcome::Failed(failure)));
}

#[test]
fn a_denial_that_stops_the_turn_cancels_it() {
    let mut host = Host::prompted();
    host.hear(&can_use_tool("r1", "a"));
    let choice = Some(CHOICE_STOP.to_owned());
    host.claude.answer(&"a".into(), Answer::Denied { reason: None, choice }).expect("it is asked");
    host.hear(&failed("error_during_execution"));
    assert_eq!(host.finish().outcome("t1"), Some(&Outcome::Cancelled));
}

#[test]
fn an_api_error_is_told_as_a_message_and_fails_the_turn_by_its_name() {
    let mut host = Host::prompted();
    let mut told = assistant("e", "a1", json!([text_block("API Error: 429")]));
    told["error"] = json!("rate_limit");
    let mut ended = result();
    ended["is_error"] = json!(true);
    ended["result"] = json!("API Error: 429");
    host.hear_all(&[init(), told, ended]);
    let host = host.finish();
    assert_eq!(words(&host, BlockType::Text), "API Error: 429");
    assert_eq!(host.outcome("t1"), Some(&Outcome::Failed(Failure::new("rate_limit", "API Error: 429"))));
}

#[test]
fn a_result_before_any_other_line_ends_the_turn_of_its_prompt() {
    let mut host = Host::prompted();
    host.hear(&failed("error_during_execution"));
    let host = host.finish();
    assert!(matches!(host.outcome("t1"), Some(Outcome::Failed(_))));
}

#[test]
fn a_conversation_that_cannot_be_resumed_fails_as_one_that_never_started_and_gives_no_token() {
    let mut host = Host::prompted();
    let mut ended = failed("error_during_execution");
    ended["num_turns"] = json!(0);
    ended["errors"] = json!(["No conversation found with session ID: s0"]);
    host.hear(&ended);
    let host = host.finish();
    let failure = Failure::new(NOT_STARTED, "No conversation found with session ID: s0");
    assert_eq!(host.outcome("t1"), Some(&Outcome::Failed(failure)));
    assert!(!host.events.iter().any(|event| matches!(event, Event::Resumable { .. })));
}

#[test]
fn a_result_whose_text_nobody_has_said_says_it() {
    let mut host = Host::prompted();
    let mut ended = result();
    ended["result"] = json!("Total cost: $0.10");
    host.hear_all(&[init(), ended]);
    assert_eq!(words(&host.finish(), BlockType::Text), "Total cost: $0.10");
}

#[test]
fn a_turn_costs_what_the_program_has_spent_since_the_turn_before() {
    let mut host = Host::prompted();
    host.hear_all(&[init(), result()]);
    host.send("t2", "u2");
    let mut second = result();
    second["total_cost_usd"] = json!(0.75);
    host.hear_all(&[init(), second]);
    let host = host.finish();
    let costs: Vec<u64> = host
        .events
        .iter()
        .filter_map(|event| match event {
            Event::Usage(usage) => usage.cost_micros,
            _ => None,
        })
        .collect();
    assert_eq!(costs, [250_000, 500_000]);
}

#[test]
fn what_a_resumed_conversation_has_cost_before_is_not_counted_again() {
    let mut host = Host::prompted();
    let mut ended = result();
    ended["model_usage_since_last_result"] = json!({ "m-1": { "costUSD": 0.05 }, "m-2": { "costUSD": 0.01 } });
    host.hear_all(&[init(), ended]);
    assert!(host.finish().shown().iter().any(|line| line.contains(" 60000 micro-dollars")));
}

#[test]
fn what_an_interrupted_turn_has_cost_is_not_forgotten() {
    let mut host = Host::prompted();
    let mut ended = failed("error_during_execution");
    ended["usage"] = json!({ "input_tokens": 0, "output_tokens": 0 });
    host.hear_all(&[init(), message_start("m"), message_stop(), ended]);
    let host = host.finish();
    let last = host.events.iter().rev().find_map(|event| match event {
        Event::Usage(usage) => Some(usage.clone()),
        _ => None,
    });
    let last = last.expect("the usage is told");
    assert_eq!((last.input_tokens, last.output_tokens, last.cache_read_tokens), (Some(10), Some(1), Some(3)));
}

#[test]
fn amounts_that_are_no_money_do_no_harm() {
    for cost in [json!(-1), json!(1e300), json!("free"), json!(null)] {
        let mut host = Host::prompted();
        let mut ended = result();
        ended["total_cost_usd"] = cost;
        host.hear_all(&[init(), ended]);
        assert_eq!(host.finish().outcome("t1"), Some(&Outcome::Complete));
    }
}

#[test]
fn an_exit_ends_the_open_turn_and_each_prompt_that_waits_and_leaves_no_request_open() {
    let mut host = Host::prompted();
    host.hear_all(&[init(), message_start("m"), text_start(0), text_delta(0, "Hel")]);
    host.send("t2", "u2");
    let request = host.claude.request(Control::SetModel(None));
    let failure = Failure::new("agentEnded", "gone");
    host.crash();
    host.check();
    for turn in ["t1", "t2"] {
        assert_eq!(host.outcome(turn), Some(&Outcome::Failed(failure.clone())));
    }
    let control = Control::SetModel(None);
    assert!(host.signals.contains(&Signal::Replied { request, control, reply: Err(ControlError::Ended) }));
    // And nothing that comes later has any effect, but that nobody is left waiting.
    let before = host.events.len();
    host.hear_all(&[init(), message_start("n"), result()]);
    host.crash();
    assert_eq!(host.events.len(), before);
    host.send("t3", "u3");
    host.check();
    assert!(matches!(host.outcome("t3"), Some(Outcome::Failed(_))));
    assert_eq!(host.claude.poll_line(), None);
}

#[test]
fn a_program_that_the_host_stopped_cancels_its_turn() {
    let mut host = Host::prompted();
    host.hear(&init());
    host.claude.end(ExitReason::Stopped);
    host.drain();
    host.check();
    assert_eq!(host.outcome("t1"), Some(&Outcome::Cancelled));
}

#[test]
fn a_prompt_with_images_is_written_as_blocks() {
    let mut host = Host::new();
    let image = Part::Image { base64: "AAAA".into(), mime: "image/png".into() };
    let content = vec![Part::Text("what is\nthis?".into()), image];
    let priority = Some(Priority::Later);
    host.claude.send(Prompt { turn: "t1".into(), uuid: "u1".into(), priority, content });
    host.drain();
    let expected = json!({
        "type": "user",
        "message": { "role": "user", "content": [
            { "type": "text", "text": "what is\nthis?" },
            { "type": "image", "source": { "type": "base64", "media_type": "image/png", "data": "AAAA" } },
        ] },
        "parent_tool_use_id": null, "uuid": "u1", "priority": "later",
    });
    assert_eq!(host.written, [expected]);
}

#[test]
fn each_request_is_matched_to_its_own_answer() {
    let mut host = Host::new();
    let mode = host.claude.request(Control::SetPermissionMode("plan".into()));
    let model = host.claude.request(Control::SetModel(Some("m-2".into())));
    let initialize = host.claude.request(Control::Initialize);
    host.drain();
    let asked: Vec<&Value> = host.written.iter().map(|line| &line["request"]).collect();
    assert_eq!(
        asked,
        [
            &json!({ "subtype": "set_permission_mode", "mode": "plan" }),
            &json!({ "subtype": "set_model", "model": "m-2" }),
            &json!({ "subtype": "initialize" }),
        ]
    );
    let models = json!([{ "value": "m-2", "displayName": "Two", "description": "the second" }]);
    let commands = json!([{ "name": "cost", "description": "What it cost", "argumentHint": "" }]);
    host.hear(&replied(initialize.as_str(), json!({ "models": models, "commands": commands })));
    let own_choice = host.claude.request(Control::SetModel(None));
    host.hear(&replied(own_choice.as_str(), json!({ "model": "m-3" })));
    assert_eq!(host.claude.info().model.as_deref(), Some("m-3"));
    let error = json!({ "subtype": "error", "request_id": model.as_str(), "error": "no such model" });
    host.hear(&json!({ "type": "control_response", "response": error }));
    host.hear(&replied(mode.as_str(), json!({ "mode": "plan" })));
    host.hear(&replied("nobody", json!({})));
    let replies: Vec<_> = host
        .signals
        .iter()
        .filter_map(|signal| match signal {
            Signal::Replied { request, reply, .. } => Some((request, reply.clone())),
            _ => None,
        })
        .collect();
    let refused = ControlError::Refused("no such model".into());
    assert_eq!(
        replies,
        [
            (&initialize, Ok(Reply::Done)),
            (&own_choice, Ok(Reply::Done)),
            (&model, Err(refused)),
            (&mode, Ok(Reply::Done))
        ]
    );
    let info = host.claude.info();
    assert_eq!(info.permission_mode.as_deref(), Some("plan"));
    assert_eq!(info.model.as_deref(), Some("m-3"));
    assert_eq!(info.models.first().map(|model| model.value.as_str()), Some("m-2"));
    assert_eq!(info.commands.first().map(|command| command.name.as_str()), Some("cost"));
    assert_eq!(host.claude.counts().ignored_times("control_response"), 1);
}

fn replied(request: &str, response: Value) -> Value {
    json!({
        "type": "control_response",
        "response": { "subtype": "success", "request_id": request, "response": response },
    })
}
