//! Lines that are broken, unknown or hostile, and the command line.

use breakbulk_lifecycle::Received;
use breakbulk_lifecycle::claude::{InvalidArgument, Launch};
use serde_json::json;

use crate::host::Host;
use crate::lines::{assistant, can_use_tool, init, result, text_block, tool_result};

#[test]
fn a_line_that_cannot_be_read_is_skipped_and_its_length_is_told() {
    let mut host = Host::prompted();
    host.hear(&init());
    let broken = [
        "{",
        "nonsense",
        "[]",
        "null",
        "7",
        "{}",
        r#"{"type":7}"#,
        r#"{"type":"assistant"}"#,
        r#"{"type":"stream_event","event":{"type":"content_block_delta","index":-1}}"#,
        r#"{"type":"control_request","request":{"subtype":"can_use_tool"}}"#,
        r#"{"type":"system"}"#,
    ];
    for line in broken {
        assert_eq!(host.hear_text(line), Received::Malformed { bytes: line.len() }, "{line}");
    }
    assert_eq!(host.claude.receive(b"{\"type\":\"\xff\"}"), Received::Malformed { bytes: 12 });
    assert_eq!(host.claude.counts().malformed, 12);
    host.claude.skip_line();
    assert_eq!(host.claude.counts().oversized, 1);
    host.hear(&result());
    assert_eq!(host.finish().strays(), 0);
}

#[test]
fn empty_lines_and_line_breaks_are_nothing() {
    let mut host = Host::prompted();
    assert_eq!(host.hear_text(""), Received::Ignored);
    assert_eq!(host.hear_text("\r\n"), Received::Ignored);
    assert_eq!(host.hear_text(&format!("{}\r\n", init())), Received::Taken);
    assert_eq!(host.claude.counts().lines, 1);
}

#[test]
fn unknown_types_are_ignored_and_counted_by_name() {
    let mut host = Host::prompted();
    for line in [
        json!({ "type": "keep_alive" }),
        json!({ "type": "keep_alive" }),
        json!({ "type": "system", "subtype": "thinking_tokens" }),
        json!({ "type": "from the future\n", "event": 7, "message": [], "subtype": {}, "uuid": 1 }),
        json!({ "type": "x".repeat(1_000) }),
    ] {
        assert_eq!(host.hear(&line), Received::Ignored);
    }
    let counted: Vec<(String, u64)> =
        host.claude.counts().ignored().map(|(name, times)| (name.to_owned(), times)).collect();
    let wanted = [("keep_alive", 2), ("other", 2), ("system/thinking_tokens", 1)];
    assert_eq!(counted, wanted.map(|(name, times)| (name.to_owned(), times)));
    assert!(host.events.is_empty());
}

#[test]
fn names_that_are_counted_are_bounded() {
    let mut host = Host::new();
    for number in 0..1_000 {
        host.hear(&json!({ "type": format!("new_{number}") }));
    }
    let counted: Vec<u64> = host.claude.counts().ignored().map(|(_, times)| times).collect();
    assert!(counted.len() <= 129);
    assert_eq!(counted.iter().sum::<u64>(), 1_000);
}

#[test]
fn nesting_of_any_depth_is_taken_without_recursion() {
    let depth = 1_000_000;
    let deep = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    let wrapped = |line: serde_json::Value| line.to_string().replace("\"DEEP\"", &deep);
    let mut host = Host::prompted();
    for line in [
        init(),
        assistant("m", "a1", json!([{ "type": "tool_use", "id": "a", "name": "Bash", "input": "DEEP" }, "DEEP"])),
        json!({ "type": "future", "payload": "DEEP" }),
        json!({ "type": "future", "subtype": "DEEP" }),
        can_use_tool("r1", "a"),
        tool_result("a", json!(["DEEP", { "type": "x", "source": "DEEP" }]), false),
        json!({ "type": "control_request", "request_id": "r2", "request": "DEEP" }),
        json!({ "type": "control_response", "response": "DEEP" }),
        json!({ "type": "user", "message": { "content": "DEEP" }, "tool_use_result": "DEEP" }),
    ] {
        host.hear_text(&wrapped(line));
    }
    let mut ended = result();
    ended["usage"] = json!("DEEP");
    ended["permission_denials"] = json!(["DEEP"]);
    host.hear_text(&wrapped(ended));
    assert!(host.finish().outcome("t1").is_some());
}

#[test]
fn a_long_line_is_taken_whole() {
    let mut host = Host::prompted();
    let text = "x".repeat(8 << 20);
    host.hear_all(&[assistant("m", "a1", json!([text_block(&text)])), result()]);
    let host = host.finish();
    assert_eq!(crate::blocks::words(&host, breakbulk_lifecycle::BlockType::Text), text);
}

#[test]
fn fields_of_another_form_do_not_cost_the_line() {
    let mut host = Host::prompted();
    let mut ended = result();
    for field in ["usage", "total_cost_usd", "permission_denials", "errors", "session_id", "user_message_uuids"] {
        ended[field] = json!({ "new": ["form"] });
    }
    assert_eq!(host.hear(&ended), Received::Taken);
    assert!(host.finish().outcome("t1").is_some());
}

#[test]
fn a_replayed_prompt_says_nothing() {
    let mut host = Host::prompted();
    let replayed = json!({ "type": "user", "isReplay": true, "message": { "role": "user", "content": "do it" } });
    assert_eq!(host.hear(&replayed), Received::Ignored);
    assert!(host.events.is_empty());
}

#[test]
fn the_program_is_started_to_speak_in_both_directions() {
    let plain = Launch::default().arguments().expect("nothing is chosen");
    assert_eq!(
        plain.join(" "),
        "-p --input-format stream-json --output-format stream-json --verbose --include-partial-messages \
         --permission-prompt-tool stdio"
    );
    let launch = Launch { resume: Some("s1".into()), model: Some("m-1".into()), permission_mode: Some("plan".into()) };
    let chosen = launch.arguments().expect("they are plain");
    assert_eq!(chosen[plain.len()..].join(" "), "--resume s1 --model m-1 --permission-mode plan");
}

#[test]
fn a_value_that_could_be_an_option_does_not_start_the_program() {
    for value in ["", "--dangerously-skip-permissions", "-c", "a\nb", "a\0b"] {
        let launch = Launch { model: Some(value.into()), ..Launch::default() };
        assert_eq!(launch.arguments(), Err(InvalidArgument { option: "--model" }));
    }
}
