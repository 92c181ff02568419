//! The official client drives a whole session: an answer that streams, tools, a terminal, changes, a fork.

use ahp_types::state::SnapshotState;
use breakbulk::ahp::Negotiated;
use serde_json::{Value, json};

use super::guest::{Guest, ROOT, calls, session_of, words};
use super::place::Place;
use super::way::Way;
use crate::soon;
use crate::world::{read, write};

const SESSION: &str = "ahp-session:/interop";

#[tokio::test(flavor = "multi_thread")]
async fn the_official_client_drives_a_session_without_a_cap() {
    drive(Way::Plain).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_official_client_drives_a_session_through_64_kib() {
    drive(Way::Capped).await;
}

async fn drive(way: Way) {
    let place = way.place(&[]);
    let relay = way.relay(&place, []).await;
    let connect = async || way.transport(&relay.url, &Negotiated::default()).await.unwrap();
    let guest = Guest::arrive(connect().await, "one").await;
    let fresh = Guest::arrive(connect().await, "another").await;
    soon(guest.client.ping()).await.unwrap();
    assert_eq!(guest.ask("listSessions", json!({"channel": ROOT})).await["items"], json!([]));
    let chat = guest.begin(SESSION).await;
    let listed = guest.ask("listSessions", json!({"channel": ROOT})).await;
    assert_eq!(listed["items"][0]["resource"], SESSION);
    answers_stream(&guest, &chat).await;
    tools_are_allowed_and_denied(&guest, &chat).await;
    customizations_are_found(&guest).await;
    a_terminal_echoes(&guest).await;
    changes_are_seen(&guest, &chat, &place).await;
    a_chat_is_forked(&guest, &fresh, &chat).await;
    for channel in [SESSION, &chat, TERMINAL] {
        guest.memory.assert_as_fresh(&fresh, channel).await;
    }
    guest.memory.assert_in_order();
    way.assert_kept(&relay);
}

async fn answers_stream(guest: &Guest, chat: &str) {
    let turn = guest.turn(chat, "t1", "What is a break bulk cargo?").await;
    assert_eq!(turn["state"], "complete", "{turn}");
    assert!(words(&turn).contains("What is a break bulk cargo?"), "{turn}");
    let heard = guest.memory.heard(chat);
    let count = |kind: &str| heard.iter().filter(|heard| heard.1 == kind).count();
    let counts = (count("chat/turnStarted"), count("chat/delta"), count("chat/turnComplete"));
    println!("a prompt: {} deltas", counts.1);
    assert!(counts.0 == 1 && counts.1 > 3 && counts.2 == 1, "{counts:?}");
}

async fn tools_are_allowed_and_denied(guest: &Guest, chat: &str) {
    for (turn, is_allowed) in [("t2", true), ("t3", false)] {
        guest.prompt(chat, turn, "/run echo one two").await;
        guest.answer(SESSION, chat, is_allowed).await;
        let turn = guest.memory.turn(chat, turn).await;
        let call = calls(&turn)[0];
        println!("a call: {}", call["status"]);
        if is_allowed {
            assert_eq!((&call["status"], &call["success"]), (&json!("completed"), &json!(true)), "{call}");
            assert_eq!(call["content"][0]["text"], "one two\n", "{call}");
        } else {
            assert_eq!((&call["status"], &call["reason"]), (&json!("cancelled"), &json!("denied")), "{call}");
            assert!(words(&turn).contains("It was not done"), "{turn}");
        }
    }
}

async fn customizations_are_found(guest: &Guest) {
    let found = |state: &SnapshotState| {
        let found = session_of(state)["customizations"].to_string();
        found.contains("AGENTS.md").then_some(())
    };
    guest.memory.until(SESSION, found).await;
}

const TERMINAL: &str = "ahp-terminal:/interop";

async fn a_terminal_echoes(guest: &Guest) {
    let claim = json!({"kind": "client", "clientId": "one"});
    guest.ask("createTerminal", json!({"channel": TERMINAL, "claim": claim, "cols": 80, "rows": 24})).await;
    guest.follow(TERMINAL).await;
    guest.act(TERMINAL, json!({"type": "terminal/input", "data": "echo ca''rgo-$((6*7))\r"})).await;
    let output = |state: &SnapshotState| {
        let text = serde_json::to_value(state).unwrap()["content"].to_string();
        text.contains("cargo-42").then_some(())
    };
    guest.memory.until(TERMINAL, output).await;
}

/// One file by the client, before it looks; another by the agent, while it looks.
async fn changes_are_seen(guest: &Guest, chat: &str, place: &Place) {
    let uri = place.uri("new.txt");
    soon(guest.client.resource_write(write(&uri, "new\nlines\n"))).await.unwrap();
    assert_eq!(soon(guest.client.resource_read(read(&uri))).await.unwrap().data, "new\nlines\n");
    let find = |state: &SnapshotState| session_of(state)["changesets"][0]["uriTemplate"].as_str().map(str::to_owned);
    let changes = guest.memory.until(SESSION, find).await;
    guest.follow(&changes).await;
    assert_eq!(changed(guest, &changes, "new.txt").await["edit"]["after"]["uri"], uri);
    guest.prompt(chat, "t4", "/edit edited.txt one more line").await;
    guest.answer(SESSION, chat, true).await;
    let file = changed(guest, &changes, "edited.txt").await;
    println!("changes: {}", file["edit"]["diff"]);
    assert!(std::fs::read_to_string(place.file("edited.txt")).unwrap().contains("one more line"));
    guest.memory.turn(chat, "t4").await;
}

/// A file in a changeset, once it is there.
async fn changed(guest: &Guest, changes: &str, name: &str) -> Value {
    let find = |state: &SnapshotState| {
        let state = session_of(state);
        state["files"].as_array()?.iter().find(|file| file["edit"].to_string().contains(name)).cloned()
    };
    guest.memory.until(changes, find).await
}

async fn a_chat_is_forked(guest: &Guest, fresh: &Guest, chat: &str) {
    let fork = "ahp-chat:/fork";
    let source = json!({"kind": "fork", "chat": chat, "turnId": "t2"});
    guest.ask("createChat", json!({"channel": SESSION, "chat": fork, "source": source})).await;
    guest.follow(fork).await;
    let ids = |state: &Value| state["turns"].as_array().unwrap().iter().map(|t| t["id"].clone()).collect::<Vec<_>>();
    assert_eq!(ids(&guest.memory.state(fork)), ["t1", "t2"]);
    let turn = guest.turn(fork, "f1", "And in the fork?").await;
    assert!(words(&turn).contains("And in the fork?"), "{turn}");
    assert_eq!(ids(&guest.memory.state(chat)), ["t1", "t2", "t3", "t4"], "the source is as it was");
    guest.memory.assert_as_fresh(fresh, fork).await;
}
