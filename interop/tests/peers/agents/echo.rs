//! The echo agent of the Python SDK of ACP: a prompt of 60 MB comes back, each way on one line of the agent's pipes.

use std::time::Duration;

use ahp::BoxedTransport;
use ahp_types::state::SnapshotState;
use breakbulk::Dialer;
use breakbulk::ahp::{Negotiated, Segmented};
use breakbulk_proto::{Budget, BudgetConfig, Limits, LimitsConfig};
use serde_json::json;

use super::installed::{echo, skip};
use super::scene::{agent_of, gone, kill};
use super::v2_client::{V2Client, outline};
use crate::peer::python_path;
use crate::program::file;
use crate::relay::Relay;
use crate::serve::guest::{Guest, chat_of, session_of, words};
use crate::serve::place::{Place, path};
use crate::serve::way::{CAP, Way};
use crate::text::text;

const SESSION: &str = "ahp-session:/echo";
const MB: usize = 1_000_000;

/// How long it may take on a busy machine, with programs that were built without optimization.
const PATIENCE: Duration = Duration::from_secs(280);

/// What a host needs that passes 60 MB at once: each of these is half of that, or little more, by default.
const LIMITS: [&str; 12] = [
    "--max-message",
    "192MiB",
    "--agent-max-line",
    "192MiB",
    "--agent-max-input",
    "192MiB",
    "--max-queued",
    "384MiB",
    "--memory",
    "2GiB",
    "--memory-per-token",
    "1GiB",
];

#[tokio::test(flavor = "multi_thread")]
async fn sixty_megabytes_come_back_from_an_agent_through_64_kib() {
    let Some(script) = echo() else { return skip("the echo agent of the Python SDK") };
    let (launcher, folder) = (file("python/roomy_echo_agent.py"), script.parent().unwrap().to_str().unwrap());
    let agent = format!("echo=acp:{} -B {launcher} {folder}", python_path());
    let more: Vec<&str> = LIMITS.into_iter().chain(["--agent", &agent]).collect();
    let place = Way::Capped.place(&more);
    let relay = Way::Capped.relay(&place, []).await;
    let guest = Guest::arrive(roomy(&relay).await, "one").await;
    guest.ask("createSession", json!({"channel": SESSION, "provider": "echo"})).await;
    guest.follow(SESSION).await;
    let chat = |state: &SnapshotState| session_of(state)["defaultChat"].as_str().map(str::to_owned);
    let chat = guest.memory.until(SESSION, chat).await;
    guest.follow(&chat).await;
    let v2 = V2Client::watch(&relay.url, SESSION).await;
    // More characters than asked for bytes.
    let prompt = text(66 * MB);
    assert!(prompt.len() >= 60 * MB);
    guest.prompt(&chat, "long", &prompt).await;
    let is_whole = |state: &SnapshotState| {
        let turn = chat_of(state).turns.iter().find(|turn| turn.id == "long")?;
        let turn = serde_json::to_value(turn).unwrap();
        Some((turn["state"].clone(), words(&turn) == prompt))
    };
    let is_whole = guest.memory.until_within(PATIENCE, &chat, is_whole).await;
    assert_eq!(is_whole, (json!("complete"), true));
    println!("{} bytes came back to the AHP client", prompt.len());
    let is_same = |state: &breakbulk_lifecycle::v2::MessageState| {
        (!state.running).then(|| outline(state).last().is_some_and(|turn| turn.1 == prompt))
    };
    assert!(v2.seen.until_within(PATIENCE, is_same).await);
    // It has no memory of its own: another one is told the history, and says it.
    let agent = agent_of(place.pid(), launcher.as_str()).expect("an agent runs");
    kill(agent);
    gone(agent).await;
    let turn = guest.turn(&chat, "after", "after the kill").await;
    assert_eq!(turn["state"], "complete", "{:.400}", turn.to_string());
    assert!(words(&turn).ends_with("after the kill"), "{:.400}", turn.to_string());
    guest.memory.assert_in_order();
    Way::Capped.assert_kept(&relay);
    assert_eq!(Place::log(&place).matches("is too long and is skipped").count(), 0);
}

/// A connection that takes and sends messages of more than 60 MB.
async fn roomy(relay: &Relay) -> BoxedTransport {
    let budget = BudgetConfig { process_bytes: 2 << 30, principal_bytes: 1 << 30, ..BudgetConfig::default() };
    let limits = LimitsConfig {
        max_message_bytes: 192 << 20,
        max_queued_bytes: 384 << 20,
        max_held_bytes: 384 << 20,
        ..LimitsConfig::default()
    };
    let limits = Limits::prove(limits, &budget).unwrap();
    let link = Dialer::default().dial(&format!("{}{}&cap={CAP}", relay.url, path()).parse().unwrap()).await.unwrap();
    let account = Budget::new(budget).account(Some("host"));
    BoxedTransport::new(Segmented::charged_to(account, link, limits, Negotiated::default()))
}
