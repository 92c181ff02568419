//! A connection to an agent: opening a session, prompts, questions, requests for the host, and every way to end.

use agent_client_protocol_schema::v1::{ContentBlock, ImageContent, TextContent};
use breakbulk_lifecycle::acp::{
    Connection, ConnectionSignal, HostRequest, Limits, Offers, Opening, PromptError, RpcError, SessionSignal,
};
use breakbulk_lifecycle::{Answer, Event, ExitReason, Failure, Outcome, Received};
use serde_json::{Value, json};

/// A connection and the agent's side of it.
struct Agent(Connection);

impl Agent {
    fn start(opening: Opening) -> Self {
        Self(Connection::new(opening, Limits::default()))
    }

    /// The next line that the agent gets.
    fn next(&mut self) -> Value {
        let line = self.0.poll_line().expect("a line");
        assert_eq!(line.last(), Some(&b'\n'));
        serde_json::from_slice(&line).expect("JSON")
    }

    fn say(&mut self, line: &Value) -> Received {
        self.0.receive(line.to_string().as_bytes())
    }

    /// Answers the next request, which must be this one; returns its params.
    fn answer(&mut self, method: &str, result: &Value) -> Value {
        let request = self.next();
        assert_eq!(request["method"], method, "{request}");
        self.say(&json!({"jsonrpc": "2.0", "id": request["id"], "result": result}));
        request["params"].clone()
    }

    fn fail(&mut self, method: &str, code: i64) {
        let request = self.next();
        assert_eq!(request["method"], method, "{request}");
        let error = json!({"code": code, "message": "no"});
        self.say(&json!({"jsonrpc": "2.0", "id": request["id"], "error": error}));
    }

    /// An agent with an open session `s`.
    fn opened(capabilities: &Value) -> Self {
        let offers = Offers { files: true, terminals: true };
        let mut agent = Self::start(Opening { cwd: "/w".into(), offers, ..Opening::default() });
        agent.answer("initialize", &json!({"protocolVersion": 1, "agentCapabilities": capabilities}));
        agent.answer("session/new", &json!({"sessionId": "s"}));
        assert!(matches!(agent.0.poll_signal(), Some(ConnectionSignal::Opened(_))));
        agent
    }

    fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.0.poll_event()).collect()
    }
}

fn prompt(text: &str) -> Vec<ContentBlock> {
    vec![ContentBlock::Text(TextContent::new(text))]
}

fn resuming() -> Opening {
    Opening { cwd: "/w".into(), resume: Some("old".into()), ..Opening::default() }
}

#[test]
fn a_session_is_opened_and_a_prompt_has_its_turn() {
    let mut agent = Agent::opened(&json!({}));
    assert_eq!(agent.0.send("t".into(), prompt("hi")), Ok(()));
    assert_eq!(agent.0.send("u".into(), prompt("hi")), Err(PromptError::Busy));
    let update = json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "yo"}});
    agent.say(&json!({"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": "s", "update": update}}));
    let params = agent.answer("session/prompt", &json!({"stopReason": "end_turn"}));
    assert_eq!(params, json!({"sessionId": "s", "prompt": [{"type": "text", "text": "hi"}]}));
    let events = agent.events();
    assert!(matches!(events.first(), Some(Event::TurnStarted { .. })));
    assert!(matches!(events.last(), Some(Event::TurnEnded { outcome: Outcome::Complete, .. })), "{events:?}");
    assert!(!events.iter().any(|event| matches!(event, Event::Resumable { .. })), "it cannot be resumed");
    assert_eq!(agent.0.send("u".into(), prompt("again")), Ok(()));
}

#[test]
fn an_agent_that_can_load_gives_a_token_and_gets_it_back() {
    let mut agent = Agent::opened(&json!({"loadSession": true}));
    agent.0.send("t".into(), prompt("hi")).expect("open");
    assert!(agent.events().contains(&Event::Resumable { token: "s".into() }));

    let mut agent = Agent::start(resuming());
    agent.answer("initialize", &json!({"protocolVersion": 1, "agentCapabilities": {"loadSession": true}}));
    let old = json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "history"}});
    agent.say(&json!({"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": "old", "update": old}}));
    let params = agent.answer("session/load", &Value::Null);
    assert_eq!((&params["sessionId"], &params["cwd"]), (&json!("old"), &json!("/w")));
    let Some(ConnectionSignal::Opened(opened)) = agent.0.poll_signal() else { panic!("not opened") };
    assert!(opened.remembers && opened.can_resume);
    assert_eq!(agent.events(), [], "the history that it tells is known already");
}

#[test]
fn an_agent_that_can_resume_is_not_asked_to_load() {
    let mut agent = Agent::start(resuming());
    let capabilities = json!({"loadSession": true, "sessionCapabilities": {"resume": {}}});
    agent.answer("initialize", &json!({"protocolVersion": 1, "agentCapabilities": capabilities}));
    agent.answer("session/resume", &json!({}));
    assert!(matches!(agent.0.poll_signal(), Some(ConnectionSignal::Opened(opened)) if opened.remembers));
}

#[test]
fn a_session_that_the_agent_has_forgotten_is_replaced_by_a_new_one() {
    let mut agent = Agent::start(resuming());
    agent.answer("initialize", &json!({"protocolVersion": 1, "agentCapabilities": {"loadSession": true}}));
    agent.fail("session/load", -32_602);
    agent.answer("session/new", &json!({"sessionId": "new"}));
    assert!(matches!(agent.0.poll_signal(), Some(ConnectionSignal::Opened(opened)) if !opened.remembers));
}

#[test]
fn an_agent_that_wants_a_login_gets_the_configured_one_once() {
    let opening = Opening { cwd: "/w".into(), auth_method: Some("key".into()), ..Opening::default() };
    let mut agent = Agent::start(opening.clone());
    let methods = json!([{"id": "key", "name": "API key"}]);
    agent.answer("initialize", &json!({"protocolVersion": 1, "authMethods": methods}));
    agent.fail("session/new", -32_000);
    assert_eq!(agent.answer("authenticate", &json!({}))["methodId"], "key");
    agent.fail("session/new", -32_000);
    let Some(ConnectionSignal::NotOpened(failure)) = agent.0.poll_signal() else { panic!("opened") };
    assert_eq!(failure.kind, "authRequired");
    assert!(failure.message.contains("key (API key)"), "{failure:?}");
    assert!(agent.0.poll_line().is_none());
}

#[test]
fn a_cancel_withdraws_open_questions_and_the_turn_ends_as_the_agent_says() {
    let mut agent = Agent::opened(&json!({}));
    agent.0.send("t".into(), prompt("hi")).expect("open");
    let request = agent.next();
    let ask = json!({"sessionId": "s", "toolCall": {"toolCallId": "c", "title": "Run"}, "options": [{"optionId": "y", "name": "Yes", "kind": "allow_once"}]});
    agent.say(&json!({"jsonrpc": "2.0", "id": "q-1", "method": "session/request_permission", "params": ask}));
    agent.0.cancel();
    assert_eq!(agent.next()["method"], "session/cancel");
    assert_eq!(agent.next(), json!({"jsonrpc": "2.0", "id": "q-1", "result": {"outcome": {"outcome": "cancelled"}}}));
    agent.say(&json!({"jsonrpc": "2.0", "id": request["id"], "result": {"stopReason": "cancelled"}}));
    let events = agent.events();
    assert!(matches!(events.last(), Some(Event::TurnEnded { outcome: Outcome::Cancelled, .. })), "{events:?}");
}

#[test]
fn an_answer_reaches_the_agent_under_its_own_id() {
    let mut agent = Agent::opened(&json!({}));
    agent.0.send("t".into(), prompt("hi")).expect("open");
    agent.next();
    let ask = json!({"sessionId": "s", "toolCall": {"toolCallId": "c", "title": "Run"}, "options": [{"optionId": "y", "name": "Yes", "kind": "allow_once"}]});
    agent.say(&json!({"jsonrpc": "2.0", "id": 7, "method": "session/request_permission", "params": ask}));
    assert!(agent.0.answer(&"c".into(), &Answer::yes()));
    assert!(!agent.0.answer(&"c".into(), &Answer::yes()));
    assert_eq!(
        agent.next(),
        json!({"jsonrpc": "2.0", "id": 7, "result": {"outcome": {"outcome": "selected", "optionId": "y"}}})
    );
}

#[test]
fn what_the_host_offers_is_asked_of_it_and_all_else_is_refused() {
    let mut agent = Agent::opened(&json!({}));
    let read = json!({"sessionId": "s", "path": "/w/a"});
    agent.say(&json!({"jsonrpc": "2.0", "id": 1, "method": "fs/read_text_file", "params": read}));
    let Some(ConnectionSignal::Request { request, wanted }) = agent.0.poll_signal() else { panic!("not asked") };
    assert!(matches!(*wanted, HostRequest::ReadFile(_)));
    agent.0.respond(request, Ok(json!({"content": "x"})));
    agent.0.respond(request, Err(RpcError::internal("twice")));
    assert_eq!(agent.next(), json!({"jsonrpc": "2.0", "id": 1, "result": {"content": "x"}}));
    agent.say(&json!({"jsonrpc": "2.0", "id": 2, "method": "fs/read_text_file", "params": {"path": 3}}));
    assert_eq!(agent.next()["error"]["code"], -32_602);
    assert_eq!(agent.say(&json!({"jsonrpc": "2.0", "id": 3, "method": "shoe/tie"})), Received::Ignored);
    assert_eq!(agent.next()["error"]["code"], -32_601);
    assert!(agent.0.poll_line().is_none());
}

#[test]
fn lines_that_are_no_messages_are_skipped() {
    let mut agent = Agent::opened(&json!({}));
    assert_eq!(agent.0.receive(b"  "), Received::Ignored);
    assert_eq!(agent.0.receive(b"Loading..."), Received::Malformed { bytes: 10 });
    assert_eq!(agent.0.receive(b"{}"), Received::Malformed { bytes: 2 });
    assert_eq!(agent.0.receive(b"\xff\xfe"), Received::Malformed { bytes: 2 });
    assert_eq!(agent.say(&json!({"jsonrpc": "2.0", "id": 99, "result": {}})), Received::Ignored);
    let update = json!({"sessionUpdate": "of_the_future"});
    let line = json!({"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": "s", "update": update}});
    assert_eq!(agent.say(&line), Received::Ignored);
    assert_eq!(agent.0.send("t".into(), prompt("hi")), Ok(()));
}

#[test]
fn an_agent_that_dies_ends_its_turn_or_its_opening_by_name() {
    let mut agent = Agent::start(Opening { cwd: "/w".into(), ..Opening::default() });
    agent.0.end(ExitReason::Failed(Failure::new("exited", "status 1")));
    assert!(matches!(agent.0.poll_signal(), Some(ConnectionSignal::NotOpened(failure)) if failure.kind == "exited"));

    let mut agent = Agent::opened(&json!({}));
    agent.0.send("t".into(), prompt("hi")).expect("open");
    agent.0.end(ExitReason::Failed(Failure::new("exited", "status 1")));
    agent.0.end(ExitReason::Failed(Failure::new("again", "again")));
    let events = agent.events();
    let is_ended = |event: &&Event| matches!(event, Event::TurnEnded { outcome: Outcome::Failed(failure), .. } if failure.kind == "exited");
    assert_eq!(events.iter().filter(is_ended).count(), 1, "{events:?}");
    assert_eq!(agent.0.send("u".into(), prompt("hi")), Err(PromptError::NotOpen));
}

#[test]
fn what_the_agent_does_not_take_is_replaced() {
    let mut agent = Agent::opened(&json!({"promptCapabilities": {"image": false}}));
    let image = ContentBlock::Image(ImageContent::new("AAAA", "image/png"));
    agent.0.send("t".into(), vec![image.clone()]).expect("open");
    assert_eq!(agent.next()["params"]["prompt"][0]["type"], "text");

    let mut agent = Agent::opened(&json!({"promptCapabilities": {"image": true}}));
    agent.0.send("t".into(), vec![image]).expect("open");
    assert_eq!(agent.next()["params"]["prompt"][0]["type"], "image");
}

#[test]
fn modes_and_models_are_set_where_the_agent_has_them() {
    let mut agent = Agent::start(Opening { cwd: "/w".into(), ..Opening::default() });
    agent.answer("initialize", &json!({"protocolVersion": 1}));
    let modes = json!({"currentModeId": "ask", "availableModes": [{"id": "ask", "name": "Ask"}, {"id": "code", "name": "Code"}]});
    let model = json!({"id": "model", "name": "Model", "category": "model", "type": "select", "currentValue": "a",
        "options": [{"value": "a", "name": "A"}, {"value": "b", "name": "B"}]});
    agent.answer("session/new", &json!({"sessionId": "s", "modes": modes, "configOptions": [model]}));
    assert!(agent.0.set_mode("code") && agent.0.set_model("b") && !agent.0.set_mode("fly"));
    assert_eq!(agent.answer("session/set_mode", &json!({}))["modeId"], "code");
    assert_eq!(agent.answer("session/set_config_option", &json!({"configOptions": []}))["value"], "b");
}

#[test]
fn models_that_an_agent_lists_are_set_where_it_has_no_option_for_them() {
    let mut agent = Agent::start(Opening { cwd: "/w".into(), ..Opening::default() });
    agent.answer("initialize", &json!({"protocolVersion": 1}));
    let models = json!({"currentModelId": "a", "availableModels": [{"modelId": "a", "name": "A"}, {"modelId": "b", "name": "B"}]});
    agent.answer("session/new", &json!({"sessionId": "s", "models": models}));
    let Some(ConnectionSignal::Opened(opened)) = agent.0.poll_signal() else { panic!("not opened") };
    assert_eq!(opened.models.iter().map(|model| &*model.id).collect::<Vec<_>>(), ["a", "b"]);
    assert!(agent.0.set_model("b") && !agent.0.set_model("c"));
    assert_eq!(agent.answer("session/set_model", &json!({})), json!({"sessionId": "s", "modelId": "b"}));
}

#[test]
fn a_prompt_that_was_cancelled_and_is_answered_with_an_error_is_cancelled() {
    for cancels in [true, false] {
        let mut agent = Agent::opened(&json!({}));
        agent.0.send("t".into(), prompt("hi")).expect("open");
        let request = agent.next();
        if cancels {
            agent.0.cancel();
            assert_eq!(agent.next()["method"], "session/cancel");
        }
        let error = json!({"code": -32_603, "message": "The operation was aborted"});
        agent.say(&json!({"jsonrpc": "2.0", "id": request["id"], "error": error}));
        let is_cancelled = matches!(agent.events().last(), Some(Event::TurnEnded { outcome: Outcome::Cancelled, .. }));
        assert_eq!(is_cancelled, cancels);
        agent.0.send("u".into(), prompt("hi")).expect("it is free");
        agent.fail("session/prompt", -32_603);
        let events = agent.events();
        assert!(matches!(events.last(), Some(Event::TurnEnded { outcome: Outcome::Failed(_), .. })), "{events:?}");
    }
}

#[test]
fn another_version_of_the_protocol_is_refused_by_name() {
    let mut agent = Agent::start(Opening { cwd: "/w".into(), ..Opening::default() });
    agent.answer("initialize", &json!({"protocolVersion": 2}));
    assert!(
        matches!(agent.0.poll_signal(), Some(ConnectionSignal::NotOpened(failure)) if failure.kind == "wrongVersion")
    );
}

#[test]
fn a_program_that_the_host_has_stopped_leaves_a_cancelled_turn() {
    let mut agent = Agent::opened(&json!({}));
    agent.0.send("t".into(), prompt("hi")).expect("open");
    agent.0.end(ExitReason::Stopped);
    let events = agent.events();
    assert!(matches!(events.last(), Some(Event::TurnEnded { outcome: Outcome::Cancelled, .. })), "{events:?}");
}

impl Agent {
    /// The modes that the agent has chosen, as the host hears of them.
    fn modes(&mut self) -> Vec<String> {
        let signals = std::iter::from_fn(|| self.0.poll_signal());
        let mode = |signal| match signal {
            ConnectionSignal::Session(SessionSignal::ModeChanged { mode }) => Some(mode),
            _ => None,
        };
        signals.filter_map(mode).collect()
    }

    fn update(&mut self, update: &Value) {
        self.say(
            &json!({"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": "s", "update": update}}),
        );
    }
}

/// The mode, as an option of the session.
fn mode_option(current: &str) -> Value {
    json!([{"id": "mode", "name": "Mode", "category": "mode", "type": "select", "currentValue": current,
        "options": [{"value": "build", "name": "Build"}, {"value": "plan", "name": "Plan"}]}])
}

#[test]
fn a_mode_is_news_only_if_nobody_here_has_asked_for_it() {
    let mut agent = Agent::start(Opening { cwd: "/w".into(), ..Opening::default() });
    agent.answer("initialize", &json!({"protocolVersion": 1}));
    let modes = json!({"currentModeId": "ask", "availableModes": [{"id": "ask", "name": "Ask"}, {"id": "code", "name": "Code"}]});
    agent.answer("session/new", &json!({"sessionId": "s", "modes": modes}));
    agent.modes();
    agent.update(&json!({"sessionUpdate": "current_mode_update", "currentModeId": "ask"}));
    assert_eq!(agent.modes(), [""; 0], "it was in this mode before");
    agent.update(&json!({"sessionUpdate": "current_mode_update", "currentModeId": "code"}));
    assert_eq!(agent.modes(), ["code"]);
    agent.0.set_mode("ask");
    agent.update(&json!({"sessionUpdate": "current_mode_update", "currentModeId": "ask"}));
    agent.answer("session/set_mode", &json!({}));
    assert_eq!(agent.modes(), [""; 0], "it does what it was asked for");
    agent.0.set_mode("code");
    agent.fail("session/set_mode", -32_602);
    assert_eq!(agent.modes(), ["ask"], "it did not change, so the mode that was wished for does not hold");
}

#[test]
fn a_mode_that_is_an_option_of_the_session_is_followed_too() {
    let mut agent = Agent::start(Opening { cwd: "/w".into(), ..Opening::default() });
    agent.answer("initialize", &json!({"protocolVersion": 1}));
    agent.answer("session/new", &json!({"sessionId": "s", "configOptions": mode_option("build")}));
    agent.modes();
    agent.update(&json!({"sessionUpdate": "config_option_update", "configOptions": mode_option("plan")}));
    assert_eq!(agent.modes(), ["plan"]);
    assert!(agent.0.set_mode("build"));
    let params = agent.answer("session/set_config_option", &json!({"configOptions": mode_option("build")}));
    assert_eq!((&params["configId"], &params["value"]), (&json!("mode"), &json!("build")));
    assert_eq!(agent.modes(), [""; 0]);
    agent.update(&json!({"sessionUpdate": "config_option_update", "configOptions": mode_option("plan")}));
    assert_eq!(agent.modes(), ["plan"]);
}

#[test]
fn tokens_come_with_the_end_of_the_turn_and_keep_its_cost() {
    let mut agent = Agent::opened(&json!({}));
    agent.0.send("t".into(), prompt("hi")).expect("open");
    agent.update(
        &json!({"sessionUpdate": "usage_update", "used": 1, "size": 2, "cost": {"amount": 0.5, "currency": "USD"}}),
    );
    let usage = json!({"inputTokens": 7, "outputTokens": 3, "totalTokens": 10, "cachedReadTokens": 2});
    agent.answer("session/prompt", &json!({"stopReason": "end_turn", "usage": usage}));
    let events = agent.events();
    let last = events.iter().rev().find_map(|event| match event {
        Event::Usage(usage) => {
            Some((usage.input_tokens, usage.output_tokens, usage.cache_read_tokens, usage.cost_micros))
        }
        _ => None,
    });
    assert_eq!(last, Some((Some(7), Some(3), Some(2), Some(500_000))), "{events:?}");
}
