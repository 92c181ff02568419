//! What the agent of a side chat knows: the other chat, as it was when the side chat was made.

use ahp_types::state::{ResponsePart, Turn};
use breakbulk_host::agent::{SideChatContext, Start};
use breakbulk_host::log::MemoryLog;
use serde_json::{Value, json};

use crate::agent_memory::{chat_of, recall, truncate};
use crate::scripted_agent::{begun, ended, say, says, scripted_agent};
use crate::test_host::{CHAT, OTHER, SESSION, TestHost, message, quick, slow, text};

const SIDE: &str = "ahp-chat:/side";

/// Opens a side chat about a turn, with a first prompt if one is given.
async fn open(host: &TestHost, side: &str, turn: &str, selected: Option<&str>, prompt: Option<&str>) {
    let selection = selected.map(|text| json!({"text": text, "responsePartId": "p"}));
    let mut source = json!({"kind": "sideChat", "chat": CHAT, "turnId": turn});
    if let Some(selection) = selection {
        source["selection"] = selection;
    }
    let mut params = json!({"channel": SESSION, "chat": side, "source": source});
    if let Some(prompt) = prompt {
        params["initialMessage"] = message(prompt);
    }
    host.call("createChat", params).await.unwrap();
}

fn knows(turns: &str, last: &str) -> String {
    let of_chat = "(demo) Before this I know no turns of this chat.";
    format!("{of_chat}\n\nOf the chat beside it I know {turns}. The last prompt there was:\n\n> {last}")
}

/// The turns that the agent is given of the other chat.
async fn about(start: Start) -> (Vec<Turn>, SideChatContext) {
    let beside = start.side_chat.unwrap();
    let turns = beside.history.page(0, 1 << 20).await.unwrap();
    let mut all = turns;
    while let Some(next) = beside.history.page(all.len() as u64, 1 << 20).await.unwrap().pop() {
        all.push(next);
    }
    (all, beside)
}

fn words(turn: &Turn) -> String {
    let words = turn.response_parts.iter().filter_map(|part| match part {
        ResponsePart::Markdown(part) => Some(part.content.as_str()),
        _ => None,
    });
    words.collect()
}

#[tokio::test]
async fn a_side_chat_knows_nothing_of_its_own_and_the_other_up_to_its_turn() {
    let host = TestHost::new(quick()).await;
    chat_of(&host, CHAT, &["one", "two", "three"]).await;
    open(&host, SIDE, "two", None, None).await;
    assert_eq!(recall(&host, SIDE, "r").await, knows("2 turns", "two"));
    // No more when it has said something itself.
    let said = recall(&host, SIDE, "r2").await;
    assert!(said.starts_with("(demo) Before this I know 1 turn of this chat. The last prompt was:\n\n> /recall"));
    assert!(said.contains("Of the chat beside it I know 2 turns."));
}

#[tokio::test]
async fn a_side_chat_knows_what_it_was_about_whatever_becomes_of_that_and_after_a_restart_too() {
    let host = TestHost::new(quick()).await;
    chat_of(&host, CHAT, &["one", "two"]).await;
    open(&host, SIDE, "two", None, None).await;
    let again = "ahp-chat:/again";
    open(&host, again, "two", Some("these words"), None).await;
    chat_of(&host, CHAT, &["three"]).await;
    truncate(&host, CHAT, "one").await;
    chat_of(&host, CHAT, &["another two"]).await;
    assert_eq!(recall(&host, SIDE, "r").await, knows("2 turns", "two"));
    let host = host.crash(quick()).await;
    host.call("disposeChat", json!({"channel": CHAT})).await.unwrap();
    let host = host.crash(quick()).await;
    let selected = "\n\nThis was selected:\n\n> these words";
    assert_eq!(recall(&host, again, "r").await, knows("2 turns", "two") + selected);
    // One that is disposed of and made again is another one.
    host.call("disposeChat", json!({"channel": again})).await.unwrap();
    host.call("createChat", json!({"channel": SESSION, "chat": again})).await.unwrap();
    assert_eq!(recall(&host, again, "r").await, "(demo) Before this I know no turns of this chat.");
}

#[tokio::test]
async fn a_side_chat_about_the_turn_that_runs_knows_what_was_said_by_then_and_after_a_restart_too() {
    let (host, mut control, events, turn) = TestHost::at_work(MemoryLog::new()).await;
    say(&events, [begun(&turn)]).await;
    say(&events, says("m1", None, "so far")).await;
    let is_said =
        |text: &'static str| move |chat: &Value| chat["activeTurn"]["responseParts"].to_string().contains(text);
    host.until(CHAT, is_said("so far")).await;
    open(&host, SIDE, "t", Some("far"), None).await;
    say(&events, says("m2", None, "so good")).await;
    say(&events, [ended(&turn)]).await;
    host.turns(CHAT, 1).await;
    let (agent, mut again) = scripted_agent();
    host.prompt(SIDE, "first", "what is that?").await;
    let (turns, beside) = about(control.started().await.0).await;
    let check = |turns: &[Turn], beside: &SideChatContext| {
        assert!(matches!(turns, [only] if only.id == "t" && only.message.text == "go" && words(only) == "so far"));
        assert!(beside.history.is_unfinished());
        let selection = beside.selection.as_ref().unwrap();
        assert_eq!((selection.text.as_str(), selection.response_part_id.as_deref()), ("far", Some("p")));
    };
    check(&turns, &beside);
    let host = host.crash(agent).await;
    host.prompt(SIDE, "second", "and that?").await;
    let (start, _events) = again.started().await;
    assert_eq!(start.history.len(), 1);
    let (turns, beside) = about(start).await;
    check(&turns, &beside);
    // Whoever asks later is told of all of it.
    host.cancel(SIDE, "second").await;
    open(&host, "ahp-chat:/late", "t", None, Some("and now?")).await;
    loop {
        if let crate::scripted_agent::AgentCall::Start(start, _) = again.next_call().await {
            let (turns, beside) = about(start).await;
            assert_eq!((words(&turns[0]).as_str(), beside.history.is_unfinished()), ("so farso good", false));
            return;
        }
    }
}

#[tokio::test]
async fn the_demo_says_what_it_knows_of_a_turn_that_is_not_over() {
    let host = TestHost::new(slow()).await;
    chat_of(&host, CHAT, &["one"]).await;
    host.prompt(CHAT, "t", "/slow").await;
    let is_long = |chat: &Value| {
        chat["activeTurn"]["responseParts"].as_array().is_some_and(|parts| {
            parts.iter().any(|part| part["kind"] == "markdown" && part["content"].as_str().unwrap().len() > 40)
        })
    };
    host.until(CHAT, is_long).await;
    open(&host, SIDE, "t", None, Some("/recall")).await;
    let said = text(host.turns(SIDE, 1).await.last().unwrap());
    host.cancel(CHAT, "t").await;
    let whole = text(host.turns(CHAT, 2).await.last().unwrap());
    let (known, so_far) = said.split_once("\n\nThe answer was not over. So far it was:\n\n> ").unwrap();
    assert_eq!(known, knows("2 turns", "/slow"));
    let so_far = so_far.trim_end_matches(" …").replace("\n> ", "\n");
    assert!(so_far.len() >= 40 && whole.starts_with(&so_far), "{so_far:?} of {whole:?}");
}

#[tokio::test]
async fn a_chat_that_is_no_side_chat_is_about_nothing() {
    let (agent, mut control) = scripted_agent();
    let host = TestHost::new(agent).await;
    host.prompt(OTHER, "t", "go").await;
    assert!(control.started().await.0.side_chat.is_none());
}
