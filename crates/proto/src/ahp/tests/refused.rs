//! What cannot be sent: who hears of it, and by which name.

use super::*;

/// An action with something in it that is nested so deep in all.
fn deep(depth: usize) -> String {
    let depth = depth - 2;
    let nested = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    format!(r#"{{"jsonrpc":"2.0","method":"action","params":{{"channel":"a","action":{nested},"serverSeq":1}}}}"#)
}

fn with_depth(config: &mut Config, max_depth: u32) {
    config.limits = limits(|limits| limits.max_depth = max_depth);
    config.agreed = Some(Chunking::from(&config.limits));
}

#[test]
fn what_one_end_sends_the_other_takes_up_to_the_depth_that_both_have() {
    let now = Instant::now();
    for max_depth in [100, 600] {
        let end = |role| connection(role, |config| with_depth(config, max_depth));
        let (mut server, mut client) = (end(Role::Server), end(Role::Client));
        let action = deep(max_depth as usize);
        server.handle(Input::send(Ticket(1), action.clone()), now);
        pass(&mut server, &mut client, now);
        assert_eq!(messages(&mut client), [action]);
        server.handle(Input::send(Ticket(2), deep(max_depth as usize + 1)), now);
        assert!(frames(&mut server, now).is_empty(), "nothing of it goes");
    }
}

#[test]
fn an_action_that_is_nested_too_deep_closes_by_that_name() {
    let now = Instant::now();
    let mut server = connection(Role::Server, |config| with_depth(config, 100));
    server.handle(Input::send(Ticket(1), action("a", 1, 10)), now);
    server.handle(Input::send(Ticket(2), deep(140)), now);
    let too_deep = SendError::TooDeep { depth: 140, limit: 100 };
    let events = events(&mut server);
    let [
        Event::SendFailed { ticket: Ticket(2), error, reply: None },
        Event::SendFailed { ticket: Ticket(1), error: SendError::Disconnected, .. },
        Event::Closed(reason),
    ] = &events[..]
    else {
        panic!("{events:?}")
    };
    assert_eq!(*error, too_deep);
    let unsendable = CloseReason::Unsendable { message: "an action".into(), error: too_deep };
    assert_eq!((reason, reason.code()), (&unsendable, 4422));
    assert_eq!(reason.text(), "an action cannot be sent: message is nested 140 levels deep, the limit is 100");
}

#[test]
fn a_request_and_an_answer_that_are_nested_too_deep_fail_by_that_name() {
    let now = Instant::now();
    let (request, answer) =
        (r#"{"jsonrpc":"2.0","id":1,"method":"m","params":"#, r#"{"jsonrpc":"2.0","id":1,"result":"#);
    let text = |front: &str| format!("{front}{}{}}}", "[".repeat(200), "]".repeat(200));
    let mut client = connection(Role::Client, |config| with_depth(config, 100));
    client.handle(Input::send(Ticket(1), text(request)), now);
    let Some(Event::SendFailed { error: SendError::TooDeep { depth: 201, limit: 100 }, reply: Some(reply), .. }) =
        client.poll_event()
    else {
        panic!("no failure")
    };
    assert!(
        self::text(&reply).contains("-32603") && self::text(&reply).contains("send-too-deep"),
        "{}",
        self::text(&reply)
    );
    client.handle(Input::send(Ticket(2), text(answer)), now);
    let frames = frames(&mut client, now);
    assert_eq!(frames.len(), 1);
    assert!(frames[0].starts_with(br#"{"jsonrpc":"2.0","id":1,"error":{"code":-32603"#));
}

#[test]
fn brackets_in_a_text_are_no_depth() {
    let now = Instant::now();
    let mut server = connection(Role::Server, |config| with_depth(config, 100));
    let text =
        format!(r#"{{"jsonrpc":"2.0","method":"action","params":{{"channel":"a","action":"{}"}}}}"#, "[".repeat(500));
    server.handle(Input::send(Ticket(1), text.clone()), now);
    let mut client = connection(Role::Client, |config| with_depth(config, 100));
    pass(&mut server, &mut client, now);
    assert_eq!(messages(&mut client), [text]);
}

#[test]
fn what_is_too_deep_for_us_is_refused_by_that_name() {
    let now = Instant::now();
    let mut client = connection(Role::Client, |config| with_depth(config, 100));
    client.handle(Input::frame(deep(101)), now);
    let Some(Transmit::Close(reason)) = client.poll_transmit(now) else { panic!("it is taken") };
    assert_eq!((reason.name(), reason.code()), ("too-deep", 4400));
}

#[test]
fn an_action_that_is_no_message_closes_and_is_not_skipped() {
    let now = Instant::now();
    let long = "x".repeat(2000);
    for bad in [
        r#"{"jsonrpc":"1.0","method":"action","params":{"channel":"a","serverSeq":2}}"#.to_owned(),
        r#"{"method":"action","params":{"channel":"a","serverSeq":2}}"#.to_owned(),
        r#"{"jsonrpc":"2.0","method":"action","params":{"channel":"a","serverSeq":2}"#.to_owned(),
        r#"{"jsonrpc":"2.0","method":"action","params":7}"#.to_owned(),
        format!(r#"{{"params":{{"action":"{long}",}},"jsonrpc":"2.0","method":"action"}}"#),
        "action 2".to_owned(),
    ] {
        let (mut server, mut client) = (agreed(Role::Server), agreed(Role::Client));
        for (ticket, text) in [action("a", 1, 10), bad.clone(), action("a", 3, 10)].into_iter().enumerate() {
            server.handle(Input::send(Ticket(ticket as u64), text), now);
            pass(&mut server, &mut client, now);
        }
        assert_eq!(messages(&mut client).len(), 1, "{bad}");
        let closed = CloseReason::unsendable(&"".into(), SendError::NotJsonRpc);
        assert_eq!(closed.code(), 4422);
        let events = events(&mut server);
        let failed = |event: &Event| match event {
            Event::SendFailed { ticket, error, .. } => Some((ticket.0, error.name())),
            _ => None,
        };
        let tickets: Vec<_> = events.iter().filter_map(failed).collect();
        assert_eq!(tickets, [(1, "send-not-json-rpc"), (2, "send-disconnected")], "{bad}");
        assert!(events.iter().any(|event| matches!(event, Event::Closed(reason) if *reason == closed)), "{bad}");
    }
}

#[test]
fn a_request_and_an_answer_that_are_no_messages_fail_alone() {
    let now = Instant::now();
    let mut server = agreed(Role::Server);
    server.handle(Input::send(Ticket(1), r#"{"id":1,"method":"m"}"#), now);
    server.handle(Input::send(Ticket(2), r#"{"jsonrpc":"2.0","id":2,"result":NaN}"#), now);
    let events = events(&mut server);
    let [Event::SendFailed { reply: Some(_), .. }, Event::SendFailed { reply: None, .. }] = &events[..] else {
        panic!("{events:?}")
    };
    let frames = frames(&mut server, now);
    assert!(frames.len() == 1 && frames[0].starts_with(br#"{"jsonrpc":"2.0","id":2,"error":"#), "{frames:?}");
}
