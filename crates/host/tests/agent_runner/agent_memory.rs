//! What an agent knows: exactly the turns that its chat shows.

use ahp_types::state::{ResponsePart, ToolCallState, ToolResultContent, Turn};
use breakbulk_host::agent::History;
use breakbulk_host::log::MemoryLog;
use breakbulk_host::test_support::state::StateError;
use breakbulk_lifecycle::{Event, Id};
use serde_json::json;

use crate::scripted_agent::{AgentCall, AgentControl, begun, ended, say, scripted_agent};
use crate::test_host::{CHAT, SESSION, TestHost, calls, quick, text};

const FORK: &str = "ahp-chat:/fork";
const AGAIN: &str = "ahp-chat:/again";

/// Makes a chat with these turns. The id of each is its prompt.
pub(crate) async fn chat_of(host: &TestHost, chat: &str, prompts: &[&str]) {
    let before = host.see(chat).await["turns"].as_array().unwrap().len();
    for (at, prompt) in prompts.iter().enumerate() {
        host.prompt(chat, prompt, prompt).await;
        host.turns(chat, before + at + 1).await;
    }
}

/// Asks the demo agent what it remembers, in a turn of this id.
pub(crate) async fn recall(host: &TestHost, chat: &str, turn: &str) -> String {
    let before = host.see(chat).await["turns"].as_array().unwrap().len();
    host.prompt(chat, turn, "/recall").await;
    text(host.turns(chat, before + 1).await.last().unwrap())
}

fn knows(turns: &str, last: &str) -> String {
    format!("(demo) Before this I know {turns} of this chat. The last prompt was:\n\n> {last}")
}

async fn fork(host: &TestHost, from: &str, turn: &str, to: &str) {
    let source = json!({"kind": "fork", "chat": from, "turnId": turn});
    host.call("createChat", json!({"channel": SESSION, "chat": to, "source": source})).await.unwrap();
}

pub(crate) async fn truncate(host: &TestHost, chat: &str, turn: &str) {
    host.act(chat, json!({"type": "chat/truncated", "turnId": turn})).await;
}

async fn ids(history: &History) -> Vec<String> {
    let mut ids: Vec<String> = Vec::new();
    loop {
        let page = history.page(ids.len() as u64, 1).await.unwrap();
        if page.is_empty() {
            return ids;
        }
        ids.extend(page.into_iter().map(|turn| turn.id));
    }
}

#[tokio::test]
async fn an_agent_knows_all_turns_of_its_chat_and_after_a_restart_too() {
    let host = TestHost::new(quick()).await;
    assert_eq!(recall(&host, CHAT, "r0").await, "(demo) Before this I know no turns of this chat.");
    chat_of(&host, CHAT, &["one"]).await;
    assert_eq!(recall(&host, CHAT, "r1").await, knows("2 turns", "one"));
    let host = host.crash(quick()).await;
    assert_eq!(recall(&host, CHAT, "r2").await, knows("3 turns", "/recall"));
}

#[tokio::test]
async fn after_a_truncation_an_agent_knows_the_turns_that_are_left_and_after_a_restart_too() {
    let host = TestHost::new(quick()).await;
    chat_of(&host, CHAT, &["one", "two", "three"]).await;
    truncate(&host, CHAT, "two").await;
    host.turns(CHAT, 2).await;
    assert_eq!(recall(&host, CHAT, "r1").await, knows("2 turns", "two"));
    truncate(&host, CHAT, "one").await;
    host.turns(CHAT, 1).await;
    let host = host.crash(quick()).await;
    assert_eq!(recall(&host, CHAT, "r2").await, knows("1 turn", "one"));
    host.act(CHAT, json!({"type": "chat/truncated"})).await;
    host.turns(CHAT, 0).await;
    assert_eq!(recall(&host, CHAT, "r3").await, "(demo) Before this I know no turns of this chat.");
}

#[tokio::test]
async fn a_fork_knows_the_turns_up_to_where_it_was_made_and_after_a_restart_too() {
    let host = TestHost::new(quick()).await;
    chat_of(&host, CHAT, &["one", "two", "three"]).await;
    fork(&host, CHAT, "two", FORK).await;
    // What happens to its source later is nothing to it.
    chat_of(&host, CHAT, &["four"]).await;
    assert_eq!(recall(&host, FORK, "r1").await, knows("2 turns", "two"));
    assert_eq!(recall(&host, CHAT, "r1").await, knows("4 turns", "four"));
    fork(&host, CHAT, "one", AGAIN).await;
    truncate(&host, CHAT, "three").await;
    host.turns(CHAT, 3).await;
    let host = host.crash(quick()).await;
    assert_eq!(recall(&host, FORK, "r2").await, knows("3 turns", "/recall"));
    assert_eq!(recall(&host, AGAIN, "r1").await, knows("1 turn", "one"));
    assert_eq!(recall(&host, CHAT, "r2").await, knows("3 turns", "three"));
}

#[tokio::test]
async fn a_fork_of_a_fork_knows_what_both_have_copied_and_after_a_restart_too() {
    let host = TestHost::new(quick()).await;
    chat_of(&host, CHAT, &["one", "two", "three"]).await;
    fork(&host, CHAT, "two", FORK).await;
    chat_of(&host, FORK, &["another three"]).await;
    fork(&host, FORK, "another three", AGAIN).await;
    assert_eq!(recall(&host, AGAIN, "r1").await, knows("3 turns", "another three"));
    let early = "ahp-chat:/early";
    fork(&host, FORK, "one", early).await;
    assert_eq!(recall(&host, early, "r1").await, knows("1 turn", "one"));
    let host = host.crash(quick()).await;
    truncate(&host, AGAIN, "one").await;
    host.turns(AGAIN, 1).await;
    assert_eq!(recall(&host, AGAIN, "r2").await, knows("1 turn", "one"));
    assert_eq!(recall(&host, early, "r2").await, knows("2 turns", "/recall"));
    assert_eq!(recall(&host, FORK, "r1").await, knows("3 turns", "another three"));
}

#[tokio::test]
async fn a_turn_that_the_agent_was_never_told_of_is_known_by_the_next_one() {
    let (agent, mut control) = scripted_agent();
    let host = TestHost::new(agent).await;
    host.prompt(CHAT, "one", "go").await;
    let (start, events) = control.started().await;
    assert!(start.history.is_empty());
    let turn = control.sent().await;
    say(&events, [begun(&turn)]).await;
    host.cancel(CHAT, "one").await;
    assert!(matches!(control.next_call().await, AgentCall::Cancel(_)));
    let is = |status: u32| host.until(SESSION, move |session| session["chats"][0]["status"] == status);
    is(1).await;
    // It still works on the first one while the second comes and goes.
    host.prompt(CHAT, "two", "never mind").await;
    is(8).await;
    host.cancel(CHAT, "two").await;
    is(1).await;
    host.prompt(CHAT, "three", "go on").await;
    is(8).await;
    say(&events, [ended(&turn)]).await;
    let (start, _events) = control.started().await;
    assert_eq!(ids(&start.history).await, ["one", "two"]);
    assert_eq!(control.sent().await.as_str(), "three");
}

#[tokio::test]
async fn an_agent_that_knows_what_the_chat_shows_goes_on_and_is_not_begun_anew() {
    let (agent, mut control) = scripted_agent();
    let host = TestHost::new(agent).await;
    let mut events = None;
    for (count, turn) in [(1, "one"), (2, "two"), (3, "three")] {
        host.prompt(CHAT, turn, "go").await;
        let events = match &events {
            Some(events) => events,
            None => events.insert(control.started().await.1),
        };
        // Not even after a turn that somebody has stopped.
        let turn = control.sent().await;
        say(events, [begun(&turn)]).await;
        if count == 2 {
            host.cancel(CHAT, &turn).await;
            assert!(matches!(control.next_call().await, AgentCall::Cancel(_)));
        }
        say(events, [ended(&turn)]).await;
        host.turns(CHAT, count).await;
    }
}

#[tokio::test]
async fn a_truncation_that_names_no_turn_leaves_the_one_that_runs_alone() {
    let (host, mut control, events, turn) = TestHost::at_work(MemoryLog::new()).await;
    say(&events, [begun(&turn)]).await;
    truncate(&host, CHAT, "none").await;
    // What is shown after it shows that it was heard.
    host.act(CHAT, json!({"type": "chat/isReadChanged", "isRead": true})).await;
    host.until(SESSION, |session| session["chats"][0]["status"].as_u64().unwrap() & 32 != 0).await;
    host.queue(CHAT, "q", "next").await;
    say(&events, [ended(&turn)]).await;
    host.until(CHAT, |chat| chat["turns"].as_array().unwrap().len() == 1).await;
    assert_ne!(control.sent().await.as_str(), "t");
}

/// Runs a turn in which the agent gives a resume token.
async fn with_token(host: &TestHost, control: &mut AgentControl, turn: &str, token: &str) -> (History, Option<String>) {
    host.prompt(CHAT, turn, "go").await;
    let (start, events) = control.started().await;
    let id: Id = control.sent().await;
    say(&events, [begun(&id), Event::Resumable { token: token.to_owned() }, ended(&id)]).await;
    host.until(SESSION, |session| session["_meta"]["breakbulk"]["resume"][CHAT]["turn"] == turn).await;
    host.until(CHAT, |chat| chat["activeTurn"].is_null()).await;
    (start.history, start.token)
}

#[tokio::test]
async fn a_token_comes_back_while_its_turn_is_the_last_one() {
    let (agent, mut control) = scripted_agent();
    let host = TestHost::new(agent).await;
    assert_eq!(with_token(&host, &mut control, "one", "a").await.1, None);
    let (agent, mut control) = scripted_agent();
    let host = host.crash(agent).await;
    let (history, token) = with_token(&host, &mut control, "two", "b").await;
    assert_eq!((ids(&history).await, token.as_deref()), (vec!["one".to_owned()], Some("a")));
    // A turn in which none was given.
    let (agent, mut control) = scripted_agent();
    let host = host.crash(agent).await;
    host.prompt(CHAT, "three", "go").await;
    let (start, events) = control.started().await;
    assert_eq!(start.token.as_deref(), Some("b"));
    let turn = control.sent().await;
    say(&events, [begun(&turn), ended(&turn)]).await;
    host.turns(CHAT, 3).await;
    let (agent, mut control) = scripted_agent();
    let host = host.crash(agent).await;
    host.prompt(CHAT, "four", "go").await;
    let (start, _events) = control.started().await;
    assert_eq!((start.history.len(), start.token), (3, None));
    // It is of no use to anybody any more.
    host.until(SESSION, |session| session["_meta"]["breakbulk"]["resume"][CHAT].is_null()).await;
}

#[tokio::test]
async fn a_token_goes_with_its_turn_and_is_not_that_of_a_fork() {
    let (agent, mut control) = scripted_agent();
    let host = TestHost::new(agent).await;
    with_token(&host, &mut control, "one", "a").await;
    let (agent, mut control) = scripted_agent();
    let host = host.crash(agent).await;
    with_token(&host, &mut control, "two", "b").await;
    fork(&host, CHAT, "one", FORK).await;
    host.prompt(FORK, "two", "another way").await;
    let (start, _events) = control.started().await;
    assert_eq!((ids(&start.history).await, start.token), (vec!["one".to_owned()], None));
    control.sent().await;
    truncate(&host, CHAT, "one").await;
    // One of the same name is not the one that the token leads to.
    let (history, token) = with_token(&host, &mut control, "two", "c").await;
    assert_eq!((ids(&history).await, token), (vec!["one".to_owned()], None));
}

#[tokio::test]
async fn what_is_large_in_a_history_comes_by_reference_to_whoever_has_little_room() {
    let host = TestHost::new(quick()).await;
    chat_of(&host, CHAT, &["hello"]).await;
    host.prompt(CHAT, "big", "/big 1MB").await;
    let shown = calls(&host.turns(CHAT, 2).await[1])[0]["content"][0]["text"].as_str().unwrap().to_owned();
    let history = host.history(CHAT, "big").await.unwrap();
    assert_eq!(history.len(), 2);
    // All that fits comes at once, and what does not is there when it is asked for.
    let pages = [history.page(0, 64 << 10).await.unwrap(), history.page(1, 64 << 10).await.unwrap()];
    assert_eq!(pages.each_ref().map(|page| page[0].id.as_str()), ["hello", "big"]);
    let by = result(&pages[1][0]);
    let ToolResultContent::Resource(by) = by else { panic!("{by:?}") };
    assert_eq!(history.content(&by.uri).await.unwrap().data, shown);
    let whole = history.page(0, 4 << 20).await.unwrap();
    assert_eq!(whole.len(), 2);
    assert!(matches!(result(&whole[1]), ToolResultContent::Text(block) if block.text == shown));
    // Nobody reads elsewhere with it, and not what is gone.
    assert_eq!(History::default().content(&by.uri).await, Err(StateError::NotFound));
    host.act(CHAT, json!({"type": "chat/truncated", "turnId": "hello"})).await;
    host.turns(CHAT, 1).await;
    assert_eq!(history.page(1, 1).await, Err(StateError::NotFound));
}

/// The result of the only tool call of a turn.
fn result(turn: &Turn) -> ToolResultContent {
    let call = turn.response_parts.iter().find_map(|part| match part {
        ResponsePart::ToolCall(part) => Some(&part.tool_call),
        _ => None,
    });
    let Some(ToolCallState::Completed(call)) = call else { panic!("{call:?}") };
    call.content.as_ref().unwrap()[0].clone()
}
