//! A client that was cut off anywhere and comes back holds what one holds that never left.

use ahp::reducers::{ReduceOutcome, apply_action_to_chat};
use ahp_types::state::SnapshotState;
use breakbulk_host::log::Channels;
use breakbulk_host::test_support::state::entry::projected;
use breakbulk_lifecycle::projection::{Change, Projection};
use breakbulk_lifecycle::v2::wire::{Body, Event, Outgoing};
use breakbulk_lifecycle::v2::{Config, Model, Projector};
use serde_json::json;

use crate::oracle::{Chats, of_ahp, of_model};
use crate::world::{Client, DemoWithMode, TestHost, assert_same};

/// A session in which much happens, and a client that saw everything.
async fn eventful(host: TestHost) -> (TestHost, Client, String) {
    let (mut client, session) = host.opened().await;
    client.turn(&session, "hello", "1").await;
    client.send(&session, "/tools 2", "2").await;
    client.asked(&session).await;
    client.send(&session, "/fail", "3").await;
    client.until(|client| client.state(&session).queue.len() == 1).await;
    for decision in ["once", "deny"] {
        let permission = client.asked(&session).await;
        client.decide(&permission, decision).await;
        client.until(|client| client.state(&session).permissions.iter().all(|open| *open.perm_id != *permission)).await;
    }
    client.until(|client| client.prompts(&session).len() == 3).await;
    client.idle(&session).await;
    client.say(json!({"type": "set_mode", "sessionId": session, "mode": "plan"})).await;
    client.event(|body| matches!(body, Body::ModeChanged { .. })).await;
    client.say(json!({"type": "stop", "sessionId": session})).await;
    client.event(|body| matches!(body, Body::SessionEnd {})).await;
    (host, client, session)
}

#[tokio::test]
async fn a_cut_after_any_event_is_mended_by_a_reattach() {
    cut_after_each_event(TestHost::new(DemoWithMode::quick()).await).await;
}

#[tokio::test]
async fn a_cut_after_any_event_is_mended_by_a_reattach_where_the_log_is_on_the_disk() {
    cut_after_each_event(TestHost::durable(DemoWithMode::quick()).await).await;
}

async fn cut_after_each_event(host: TestHost) {
    let (host, stayed, session) = eventful(host).await;
    let all: Vec<Event> = stayed.events(&session).into_iter().cloned().collect();
    let mut back = host.client().await;
    for cut in 0..=all.len() {
        let mut model = Model::new(session.as_str());
        for event in all.iter().take(cut) {
            model.apply(event);
        }
        let last = model.last_seq();
        back.models.insert(session.clone(), model);
        let begin = back.seen.len();
        back.watch(&session, last).await;
        let wanted = stayed.model(&session).last_seq();
        back.until(|back| back.model(&session).last_seq() >= wanted).await;
        assert_same(back.state(&session), stayed.state(&session));
        let came = back.seen[begin..].iter().filter_map(|outgoing| match outgoing {
            Outgoing::Event(event) => Some(&**event),
            _ => None,
        });
        if let Some(last) = last {
            let missed: Vec<&Event> = all.iter().filter(|event| event.seq > last).collect();
            assert_eq!(came.collect::<Vec<_>>(), missed, "exactly what it missed, after {cut} events");
        }
    }
}

#[tokio::test]
async fn a_cut_after_any_event_is_mended_after_a_restart_of_the_host() {
    cut_after_each_event_and_restart(TestHost::new(DemoWithMode::quick()).await).await;
}

#[tokio::test]
async fn a_cut_after_any_event_is_mended_after_a_restart_of_the_host_whose_log_is_on_the_disk() {
    cut_after_each_event_and_restart(TestHost::durable(DemoWithMode::quick()).await).await;
}

async fn cut_after_each_event_and_restart(host: TestHost) {
    let (host, stayed, session) = eventful(host).await;
    let all: Vec<Event> = stayed.events(&session).into_iter().cloned().collect();
    let host = host.crash(DemoWithMode::quick()).await;
    let mut back = host.client().await;
    for cut in 0..=all.len() {
        let mut model = Model::new(session.as_str());
        for event in all.iter().take(cut) {
            model.apply(event);
        }
        let last = model.last_seq();
        back.models.insert(session.clone(), model);
        back.watch(&session, last).await;
        let wanted = stayed.model(&session).last_seq();
        back.until(|back| back.model(&session).last_seq() >= wanted).await;
        assert_same(back.state(&session), stayed.state(&session));
    }
}

#[tokio::test]
async fn after_each_entry_of_a_log_on_the_disk_the_model_holds_what_the_official_reducers_hold() {
    let (host, stayed, session) = eventful(TestHost::durable(DemoWithMode::quick()).await).await;
    let chat = host.chat_of(&session).await;
    let mut projector = Projector::new(Config::new(session.as_str(), session.as_str(), chat.as_str()));
    let (mut model, mut chats, mut tail) =
        (Model::new(session.as_str()), Chats::new(), host.log.tail(0, Channels::All));
    let mut compared = 0;
    loop {
        let page = tail.ready(1 << 20).await.unwrap();
        if page.is_empty() {
            break;
        }
        for entry in page.iter().filter_map(projected) {
            match (&entry.change, chats.get_mut(&*entry.channel)) {
                (Change::Initial(SnapshotState::Chat(state)), _) => {
                    chats.insert(entry.channel.to_string(), (**state).clone());
                }
                (Change::Action(action), Some(chat)) => {
                    let outcome = apply_action_to_chat(chat, action);
                    assert!(
                        matches!(outcome, ReduceOutcome::Applied | ReduceOutcome::NoOp),
                        "{outcome:?} of {action:?}"
                    );
                }
                _ => {}
            }
            let mut events = Vec::new();
            projector.apply(entry, &mut events);
            events.iter().for_each(|event| assert!(model.apply(event)));
            let ahp = of_ahp(&chats, &chat);
            assert_eq!(of_model(model.state(), &ahp), ahp);
            compared += 1;
        }
    }
    assert!(compared > 50, "{compared}");
    assert_same(model.state(), stayed.state(&session));
}

#[tokio::test]
async fn a_client_that_comes_in_the_middle_of_a_message_sees_the_whole_of_it_once() {
    let host = TestHost::new(DemoWithMode::patient()).await;
    let (mut client, session) = host.opened().await;
    client.turn(&session, "hello", "1").await;
    client.send(&session, "/run true", "2").await;
    let permission = client.asked(&session).await;
    let mut fresh = host.watcher(&session).await;
    assert_same(fresh.state(&session), client.state(&session));
    client.decide(&permission, "once").await;
    client.idle(&session).await;
    let last = client.model(&session).last_seq();
    fresh.until(|fresh| fresh.model(&session).last_seq() >= last).await;
    assert_same(fresh.state(&session), client.state(&session));
}

#[tokio::test]
async fn a_slow_client_gets_everything_in_order() {
    let host = TestHost::new(DemoWithMode::quick()).await;
    let (mut client, session) = host.opened().await;
    let mut slow = host.link_with(1 << 20, 1);
    slow.hello().await;
    slow.watch(&session, None).await;
    slow.until(|slow| slow.model(&session).last_seq().is_some()).await;
    // Far more than a feed holds, and the slow one reads none of it.
    for turn in 0..12 {
        client.turn(&session, "/big 50000", &format!("{turn}")).await;
    }
    let last = client.model(&session).last_seq();
    slow.until(|slow| slow.model(&session).last_seq() >= last).await;
    assert_same(slow.state(&session), client.state(&session));
    let snapshots = slow.events(&session).into_iter().filter(|event| matches!(event.body, Body::SessionStart { .. }));
    assert_eq!(snapshots.count(), 1, "it fell behind, and went on where it was");
}
