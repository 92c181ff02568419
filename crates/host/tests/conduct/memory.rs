//! What an agent knows: exactly the turns that its chat shows.

use ahp_types::state::{ResponsePart, ToolCallState, ToolResultContent, Turn};
use breakbulk_host::agent::History;
use breakbulk_host::log::MemoryLog;
use breakbulk_host::state::StateError;
use breakbulk_lifecycle::{Event, Id};
use serde_json::json;

use crate::puppet::{Hand, Told, begun, ended, puppet, say};
use crate::world::{CHAT, SESSION, World, calls, quick, text};

const FORK: &str = "ahp-chat:/fork";
const AGAIN: &str = "ahp-chat:/again";

/// A chat with these turns, whose ids are their prompts.
pub(crate) async fn chat_of(world: &World, chat: &str, prompts: &[&str]) {
    let before = world.see(chat).await["turns"].as_array().unwrap().len();
    for (at, prompt) in prompts.iter().enumerate() {
        world.prompt(chat, prompt, prompt).await;
        world.turns(chat, before + at + 1).await;
    }
}

/// Asks the demo what it remembers, in a turn of this name.
pub(crate) async fn recall(world: &World, chat: &str, turn: &str) -> String {
    let before = world.see(chat).await["turns"].as_array().unwrap().len();
    world.prompt(chat, turn, "/recall").await;
    text(world.turns(chat, before + 1).await.last().unwrap())
}

fn knows(turns: &str, last: &str) -> String {
    format!("(demo) Before this I know {turns} of this chat. The last prompt was:\n\n> {last}")
}

async fn fork(world: &World, from: &str, turn: &str, to: &str) {
    let source = json!({"kind": "fork", "chat": from, "turnId": turn});
    world.call("createChat", json!({"channel": SESSION, "chat": to, "source": source})).await.unwrap();
}

pub(crate) async fn truncate(world: &World, chat: &str, turn: &str) {
    world.act(chat, json!({"type": "chat/truncated", "turnId": turn})).await;
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
    let world = World::new(quick()).await;
    assert_eq!(recall(&world, CHAT, "r0").await, "(demo) Before this I know no turns of this chat.");
    chat_of(&world, CHAT, &["one"]).await;
    assert_eq!(recall(&world, CHAT, "r1").await, knows("2 turns", "one"));
    let world = world.crash(quick()).await;
    assert_eq!(recall(&world, CHAT, "r2").await, knows("3 turns", "/recall"));
}

#[tokio::test]
async fn after_a_truncation_an_agent_knows_the_turns_that_are_left_and_after_a_restart_too() {
    let world = World::new(quick()).await;
    chat_of(&world, CHAT, &["one", "two", "three"]).await;
    truncate(&world, CHAT, "two").await;
    world.turns(CHAT, 2).await;
    assert_eq!(recall(&world, CHAT, "r1").await, knows("2 turns", "two"));
    truncate(&world, CHAT, "one").await;
    world.turns(CHAT, 1).await;
    let world = world.crash(quick()).await;
    assert_eq!(recall(&world, CHAT, "r2").await, knows("1 turn", "one"));
    world.act(CHAT, json!({"type": "chat/truncated"})).await;
    world.turns(CHAT, 0).await;
    assert_eq!(recall(&world, CHAT, "r3").await, "(demo) Before this I know no turns of this chat.");
}

#[tokio::test]
async fn a_fork_knows_the_turns_up_to_where_it_was_made_and_after_a_restart_too() {
    let world = World::new(quick()).await;
    chat_of(&world, CHAT, &["one", "two", "three"]).await;
    fork(&world, CHAT, "two", FORK).await;
    // What happens to its source later is nothing to it.
    chat_of(&world, CHAT, &["four"]).await;
    assert_eq!(recall(&world, FORK, "r1").await, knows("2 turns", "two"));
    assert_eq!(recall(&world, CHAT, "r1").await, knows("4 turns", "four"));
    fork(&world, CHAT, "one", AGAIN).await;
    truncate(&world, CHAT, "three").await;
    world.turns(CHAT, 3).await;
    let world = world.crash(quick()).await;
    assert_eq!(recall(&world, FORK, "r2").await, knows("3 turns", "/recall"));
    assert_eq!(recall(&world, AGAIN, "r1").await, knows("1 turn", "one"));
    assert_eq!(recall(&world, CHAT, "r2").await, knows("3 turns", "three"));
}

#[tokio::test]
async fn a_fork_of_a_fork_knows_what_both_have_copied_and_after_a_restart_too() {
    let world = World::new(quick()).await;
    chat_of(&world, CHAT, &["one", "two", "three"]).await;
    fork(&world, CHAT, "two", FORK).await;
    chat_of(&world, FORK, &["another three"]).await;
    fork(&world, FORK, "another three", AGAIN).await;
    assert_eq!(recall(&world, AGAIN, "r1").await, knows("3 turns", "another three"));
    let early = "ahp-chat:/early";
    fork(&world, FORK, "one", early).await;
    assert_eq!(recall(&world, early, "r1").await, knows("1 turn", "one"));
    let world = world.crash(quick()).await;
    truncate(&world, AGAIN, "one").await;
    world.turns(AGAIN, 1).await;
    assert_eq!(recall(&world, AGAIN, "r2").await, knows("1 turn", "one"));
    assert_eq!(recall(&world, early, "r2").await, knows("2 turns", "/recall"));
    assert_eq!(recall(&world, FORK, "r1").await, knows("3 turns", "another three"));
}

#[tokio::test]
async fn a_turn_that_the_agent_was_never_told_of_is_known_by_the_next_one() {
    let (agent, mut hand) = puppet();
    let world = World::new(agent).await;
    world.prompt(CHAT, "one", "go").await;
    let (start, events) = hand.started().await;
    assert!(start.history.is_empty());
    let turn = hand.sent().await;
    say(&events, [begun(&turn)]).await;
    world.cancel(CHAT, "one").await;
    assert!(matches!(hand.told().await, Told::Cancel(_)));
    let is = |status: u32| world.until(SESSION, move |session| session["chats"][0]["status"] == status);
    is(1).await;
    // It still works on the first one while the second comes and goes.
    world.prompt(CHAT, "two", "never mind").await;
    is(8).await;
    world.cancel(CHAT, "two").await;
    is(1).await;
    world.prompt(CHAT, "three", "go on").await;
    is(8).await;
    say(&events, [ended(&turn)]).await;
    let (start, _events) = hand.started().await;
    assert_eq!(ids(&start.history).await, ["one", "two"]);
    assert_eq!(hand.sent().await.as_str(), "three");
}

#[tokio::test]
async fn an_agent_that_knows_what_the_chat_shows_goes_on_and_is_not_begun_anew() {
    let (agent, mut hand) = puppet();
    let world = World::new(agent).await;
    let mut events = None;
    for (count, turn) in [(1, "one"), (2, "two"), (3, "three")] {
        world.prompt(CHAT, turn, "go").await;
        let events = match &events {
            Some(events) => events,
            None => events.insert(hand.started().await.1),
        };
        // Not even after a turn that somebody has stopped.
        let turn = hand.sent().await;
        say(events, [begun(&turn)]).await;
        if count == 2 {
            world.cancel(CHAT, &turn).await;
            assert!(matches!(hand.told().await, Told::Cancel(_)));
        }
        say(events, [ended(&turn)]).await;
        world.turns(CHAT, count).await;
    }
}

#[tokio::test]
async fn a_truncation_that_names_no_turn_leaves_the_one_that_runs_alone() {
    let (world, mut hand, events, turn) = World::at_work(MemoryLog::new()).await;
    say(&events, [begun(&turn)]).await;
    truncate(&world, CHAT, "none").await;
    // What is shown after it shows that it was heard.
    world.act(CHAT, json!({"type": "chat/isReadChanged", "isRead": true})).await;
    world.until(SESSION, |session| session["chats"][0]["status"].as_u64().unwrap() & 32 != 0).await;
    world.queue(CHAT, "q", "next").await;
    say(&events, [ended(&turn)]).await;
    world.until(CHAT, |chat| chat["turns"].as_array().unwrap().len() == 1).await;
    assert_ne!(hand.sent().await.as_str(), "t");
}

/// Plays a turn in which the agent gives a token.
async fn with_token(world: &World, hand: &mut Hand, turn: &str, token: &str) -> (History, Option<String>) {
    world.prompt(CHAT, turn, "go").await;
    let (start, events) = hand.started().await;
    let id: Id = hand.sent().await;
    say(&events, [begun(&id), Event::Resumable { token: token.to_owned() }, ended(&id)]).await;
    world.until(SESSION, |session| session["_meta"]["breakbulk"]["resume"][CHAT]["turn"] == turn).await;
    world.until(CHAT, |chat| chat["activeTurn"].is_null()).await;
    (start.history, start.token)
}

#[tokio::test]
async fn a_token_comes_back_while_its_turn_is_the_last_one() {
    let (agent, mut hand) = puppet();
    let world = World::new(agent).await;
    assert_eq!(with_token(&world, &mut hand, "one", "a").await.1, None);
    let (agent, mut hand) = puppet();
    let world = world.crash(agent).await;
    let (history, token) = with_token(&world, &mut hand, "two", "b").await;
    assert_eq!((ids(&history).await, token.as_deref()), (vec!["one".to_owned()], Some("a")));
    // A turn in which none was given.
    let (agent, mut hand) = puppet();
    let world = world.crash(agent).await;
    world.prompt(CHAT, "three", "go").await;
    let (start, events) = hand.started().await;
    assert_eq!(start.token.as_deref(), Some("b"));
    let turn = hand.sent().await;
    say(&events, [begun(&turn), ended(&turn)]).await;
    world.turns(CHAT, 3).await;
    let (agent, mut hand) = puppet();
    let world = world.crash(agent).await;
    world.prompt(CHAT, "four", "go").await;
    let (start, _events) = hand.started().await;
    assert_eq!((start.history.len(), start.token), (3, None));
    // It is of no use to anybody any more.
    world.until(SESSION, |session| session["_meta"]["breakbulk"]["resume"][CHAT].is_null()).await;
}

#[tokio::test]
async fn a_token_goes_with_its_turn_and_is_not_that_of_a_fork() {
    let (agent, mut hand) = puppet();
    let world = World::new(agent).await;
    with_token(&world, &mut hand, "one", "a").await;
    let (agent, mut hand) = puppet();
    let world = world.crash(agent).await;
    with_token(&world, &mut hand, "two", "b").await;
    fork(&world, CHAT, "one", FORK).await;
    world.prompt(FORK, "two", "another way").await;
    let (start, _events) = hand.started().await;
    assert_eq!((ids(&start.history).await, start.token), (vec!["one".to_owned()], None));
    hand.sent().await;
    truncate(&world, CHAT, "one").await;
    // One of the same name is not the one that the token leads to.
    let (history, token) = with_token(&world, &mut hand, "two", "c").await;
    assert_eq!((ids(&history).await, token), (vec!["one".to_owned()], None));
}

#[tokio::test]
async fn what_is_large_in_a_history_comes_by_reference_to_whoever_has_little_room() {
    let world = World::new(quick()).await;
    chat_of(&world, CHAT, &["hello"]).await;
    world.prompt(CHAT, "big", "/big 1MB").await;
    let shown = calls(&world.turns(CHAT, 2).await[1])[0]["content"][0]["text"].as_str().unwrap().to_owned();
    let history = world.history(CHAT, "big").await.unwrap();
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
    world.act(CHAT, json!({"type": "chat/truncated", "turnId": "hello"})).await;
    world.turns(CHAT, 1).await;
    assert_eq!(history.page(1, 1).await, Err(StateError::NotFound));
}

/// What the only call of a turn has produced.
fn result(turn: &Turn) -> ToolResultContent {
    let call = turn.response_parts.iter().find_map(|part| match part {
        ResponsePart::ToolCall(part) => Some(&part.tool_call),
        _ => None,
    });
    let Some(ToolCallState::Completed(call)) = call else { panic!("{call:?}") };
    call.content.as_ref().unwrap()[0].clone()
}
