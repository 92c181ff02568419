//! Permissions: wanted, given, denied, withdrawn.

use breakbulk_lifecycle::claude::{AnswerError, CHOICE_ALWAYS, CHOICE_STOP, Control, Limits, Signal};
use breakbulk_lifecycle::{Answer, Event, Outcome, Received};
use serde_json::{Value, json};

use crate::blocks::called;
use crate::host::Host;
use crate::lines::{
    assistant, call_block, call_start, can_use_tool, init, input_delta, message_start, result, tool_result,
};

#[test]
fn a_permission_is_asked_and_the_answer_goes_back_with_the_input() {
    let mut host = asked();
    host.claude.answer(&"a".into(), Answer::yes()).expect("it is asked");
    host.drain();
    assert_eq!(last_answer(&host), &json!({ "behavior": "allow", "updatedInput": { "command": "ls" } }));
    assert_eq!(host.written.last().map(|line| &line["response"]["request_id"]), Some(&json!("r1")));
    assert_eq!(host.claude.asked().count(), 0);
    host.hear_all(&[tool_result("a", json!("out"), false), result()]);
    let host = host.finish();
    assert_eq!(host.strays(), 0);
    let calls: Vec<&str> = host.shown().into_iter().filter(|line| line.starts_with("call a ")).collect();
    assert!(calls[0].starts_with("call a asks"));
    assert_eq!(
        calls[1..],
        ["call a is allowed, input None, choice None", "call a runs", r#"call a ends: "Ran Bash", ["out"]"#,]
    );
}

#[test]
fn always_grants_the_rules_but_not_another_mode() {
    let mut host = asked();
    let choice = Some(CHOICE_ALWAYS.to_owned());
    host.claude.answer(&"a".into(), Answer::Allowed { input: None, choice }).expect("it is asked");
    host.drain();
    let granted = last_answer(&host)["updatedPermissions"].as_array().expect("something is granted");
    assert_eq!(granted.iter().map(|rule| &rule["type"]).collect::<Vec<_>>(), ["addRules"]);
}

#[test]
fn a_mode_is_granted_only_by_its_own_choice() {
    let mut host = asked();
    let choice = Some("mode:acceptEdits".to_owned());
    host.claude.answer(&"a".into(), Answer::Allowed { input: None, choice }).expect("it is asked");
    host.drain();
    let granted = json!([{ "type": "setMode", "mode": "acceptEdits", "destination": "session" }]);
    assert_eq!(last_answer(&host)["updatedPermissions"], granted);
}

#[test]
fn always_means_the_mode_if_the_program_suggests_nothing_else() {
    let mut host = called("a");
    let mut line = can_use_tool("r1", "a");
    let mode = json!([{ "type": "setMode", "mode": "acceptEdits", "destination": "session" }]);
    line["request"]["permission_suggestions"] = mode.clone();
    host.hear(&line);
    let choice = Some(CHOICE_ALWAYS.to_owned());
    host.claude.answer(&"a".into(), Answer::Allowed { input: None, choice }).expect("it is asked");
    host.drain();
    assert_eq!(last_answer(&host)["updatedPermissions"], mode);
}

#[test]
fn an_edited_input_goes_back_on_one_line() {
    let mut host = asked();
    let input = Some("{\n  \"command\": \"ls \\n -l\"\n}".to_owned());
    host.claude.answer(&"a".into(), Answer::Allowed { input, choice: None }).expect("it is asked");
    host.drain();
    assert_eq!(last_answer(&host)["updatedInput"], json!({ "command": "ls \n -l" }));
}

#[test]
fn an_edited_input_that_is_no_object_is_refused_and_the_program_still_waits() {
    let mut host = asked();
    for input in ["rm -rf", "[1]", "\"x\"", "{} {}", ""] {
        let answer = Answer::Allowed { input: Some(input.to_owned()), choice: None };
        assert_eq!(host.claude.answer(&"a".into(), answer), Err(AnswerError::NotAnObject));
    }
    assert_eq!(host.claude.asked().count(), 1);
    assert_eq!(host.claude.poll_line(), None);
}

#[test]
fn a_denial_has_its_reason_and_may_stop_the_turn() {
    for (choice, interrupts) in [(None, false), (Some(CHOICE_STOP.to_owned()), true)] {
        let mut host = asked();
        host.claude
            .answer(&"a".into(), Answer::Denied { reason: Some("not here".into()), choice })
            .expect("it is asked");
        host.drain();
        let answer = last_answer(&host);
        assert_eq!((&answer["behavior"], &answer["message"]), (&json!("deny"), &json!("not here")));
        assert_eq!(answer.get("interrupt"), interrupts.then_some(&json!(true)));
        host.hear_all(&[tool_result("a", json!("not here"), true), result()]);
        let host = host.finish();
        assert!(host.shown().contains(&r#"call a is cancelled: Some("not here")"#));
        assert!(!host.shown().contains(&"call a runs"));
    }
}

#[test]
fn a_call_that_was_denied_and_never_heard_of_again_ends_with_the_turn() {
    let mut host = asked();
    host.claude.answer(&"a".into(), Answer::no()).expect("it is asked");
    let mut ended = result();
    ended["permission_denials"] = json!([{ "tool_name": "Bash", "tool_use_id": "a", "tool_input": {} }]);
    host.hear(&ended);
    let host = host.finish();
    assert!(host.shown().contains(&r#"call a is cancelled: Some("Permission was denied.")"#));
    let denied = |signal: &Signal| matches!(signal, Signal::Reported(report) if report.denials.len() == 1);
    assert!(host.signals.iter().any(denied));
}

#[test]
fn a_permission_that_the_program_withdraws_cannot_be_given() {
    let mut host = asked();
    host.claude.request(Control::Interrupt);
    host.hear(&json!({ "type": "control_cancel_request", "request_id": "r1" }));
    assert_eq!(host.claude.answer(&"a".into(), Answer::yes()), Err(AnswerError::NotAsked));
    assert!(host.signals.contains(&Signal::Withdrawn { tool: "a".into(), request: "r1".into() }));
    let host = host.finish();
    assert!(host.shown().contains(&"call a is asked about no more"));
}

#[test]
fn a_permission_that_is_open_when_the_turn_ends_is_denied() {
    let mut host = asked();
    host.hear(&result());
    assert_eq!(last_answer(&host)["behavior"], "deny");
    assert!(host.signals.contains(&Signal::Withdrawn { tool: "a".into(), request: "r1".into() }));
    host.finish();
}

#[test]
fn a_result_ends_the_question_about_its_call() {
    let mut host = asked();
    host.hear(&tool_result("a", json!("stopped"), true));
    assert_eq!(host.claude.asked().count(), 0);
    assert_eq!(host.claude.answer(&"a".into(), Answer::yes()), Err(AnswerError::NotAsked));
    assert!(host.finish().shown().contains(&r#"call a is cancelled: Some("stopped")"#));
}

#[test]
fn a_second_request_about_a_call_replaces_the_first_which_is_denied() {
    let mut host = asked();
    host.hear(&can_use_tool("r2", "a"));
    assert_eq!(host.written.last().map(|line| &line["response"]["request_id"]), Some(&json!("r1")));
    assert_eq!(last_answer(&host)["behavior"], "deny");
    host.claude.answer(&"a".into(), Answer::yes()).expect("it is asked");
    host.drain();
    assert_eq!(host.written.last().map(|line| &line["response"]["request_id"]), Some(&json!("r2")));
    host.finish();
}

#[test]
fn the_same_request_again_is_asked_once() {
    let mut host = asked();
    assert_eq!(host.hear(&can_use_tool("r1", "a")), Received::Ignored);
    let host = host.finish();
    assert_eq!(host.events.iter().filter(|event| matches!(event, Event::ToolAsked { .. })).count(), 1);
}

#[test]
fn a_permission_for_a_call_that_nobody_has_told_of_shows_the_call_first_and_only_once() {
    let mut host = Host::prompted();
    host.hear(&can_use_tool("r1", "a"));
    host.claude.answer(&"a".into(), Answer::yes()).expect("it is asked");
    let told = assistant("m", "a1", json!([call_block("a", "Bash", json!({ "command": "ls" }))]));
    host.hear_all(&[told, tool_result("a", json!("out"), false), result()]);
    assert_eq!(host.strays(), 0);
    let host = host.finish();
    assert_eq!(host.shown().iter().filter(|line| line.contains("call a of Bash")).count(), 1);
    assert!(host.shown().contains(&r#"call a ends: "Ran Bash", ["out"]"#));
}

#[test]
fn a_permission_that_comes_before_the_end_of_the_input_brings_the_input() {
    let mut host = Host::prompted();
    host.hear_all(&[message_start("m"), call_start(0, "a"), input_delta(0, "{\"comm"), can_use_tool("r1", "a")]);
    assert!(host.shown().contains(&r#"block m/0 ends: input {"command":"ls"}"#));
    assert_eq!(host.strays(), 0);
    host.finish();
}

#[test]
fn a_permission_outside_of_a_turn_begins_one() {
    let mut host = Host::new();
    host.hear(&can_use_tool("r1", "a"));
    assert_eq!(host.claude.turn(), Some(&"run-t1".into()));
    assert_eq!(host.claude.asked().count(), 1);
    // The next prompt has a turn of its own all the same.
    host.send("t1", "u1");
    host.hear_all(&[init(), result()]);
    let host = host.finish();
    assert_eq!(host.strays(), 0);
    assert_eq!(host.outcome("run-t1"), Some(&Outcome::Complete));
    assert_eq!(host.outcome("t1"), Some(&Outcome::Complete));
}

#[test]
fn a_request_that_is_not_offered_is_refused_so_that_the_program_does_not_wait() {
    let mut host = Host::new();
    let requests = [
        json!({ "type": "control_request", "request_id": "r1", "request": { "subtype": "hook_callback" } }),
        json!({ "type": "control_request", "request_id": "r2", "request": { "subtype": "can_use_tool" } }),
        json!({ "type": "control_request", "request_id": "r3", "request": 7 }),
        json!({ "type": "control_request", "request_id": "r4" }),
    ];
    host.hear_all(&requests);
    let refused: Vec<(&Value, &Value)> =
        host.written.iter().map(|line| (&line["response"]["subtype"], &line["response"]["request_id"])).collect();
    let error = json!("error");
    let ids = ["r1", "r2", "r3", "r4"].map(|id| json!(id));
    assert_eq!(refused, ids.iter().map(|id| (&error, id)).collect::<Vec<_>>());
    assert!(host.signals.contains(&Signal::Refused { subtype: "hook_callback".into() }));
    assert_eq!(host.claude.counts().ignored_times("control_request/hook_callback"), 1);
}

#[test]
fn more_permissions_than_allowed_at_the_same_time_are_refused() {
    let mut host = Host::with_limits(Limits { max_asks: 1, ..Limits::default() });
    host.hear_all(&[can_use_tool("r1", "a"), can_use_tool("r2", "b")]);
    assert_eq!(host.claude.asked().count(), 1);
    assert_eq!(host.written.last().map(|line| &line["response"]["subtype"]), Some(&json!("error")));
    host.finish();
}

/// A host whose agent has asked about one call.
fn asked() -> Host {
    let mut host = called("a");
    host.hear(&can_use_tool("r1", "a"));
    host
}

fn last_answer(host: &Host) -> &Value {
    host.written.last().map(|line| &line["response"]["response"]).expect("something was answered")
}
