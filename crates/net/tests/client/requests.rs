//! Requests in both directions: each has one outcome, and none is sent twice.

use std::time::Duration;

use breakbulk::client::{DispatchError, Event, RequestError, State};
use breakbulk_proto::{Message, SendError};
use serde_json::json;
use tokio::time::Instant;

use super::CHAT;
use super::line::{Line, live, pick, state};

#[tokio::test(start_paused = true)]
async fn a_request_in_flight_is_rejected_and_not_sent_again() {
    let line = Line::default();
    line.host.set(|knobs| knobs.silence("echo"));
    let (client, _events) = line.client(&[]);
    live(&client).await;
    let asked = client.request("echo", r#"{"n":1}"#);
    let cut = async {
        line.host.hears("echo").await;
        line.host.cut();
    };
    let (outcome, ()) = tokio::join!(asked, cut);
    assert_eq!(outcome, Err(RequestError::Disconnected));
    state(&client, |state| *state != State::Live).await;
    live(&client).await;
    line.host.set(|knobs| knobs.silent.clear());
    let result = client.request("echo", r#"{"n":2}"#).await.unwrap();
    assert_eq!(result, Message::from(r#"{"n":2}"#));
    assert_eq!(line.host.counts()["echo"], 2);
}

#[tokio::test(start_paused = true)]
async fn a_request_without_a_connection_waits_for_one_or_for_its_time() {
    let line = Line::default();
    line.host.set(|knobs| knobs.silence("initialize"));
    let (client, _events) = line.client_with(&[], |config| config.connect_timeout = Duration::from_secs(40));
    let began = Instant::now();
    assert_eq!(client.request("echo", "{}").await, Err(RequestError::Timeout));
    assert_eq!(began.elapsed().as_secs(), 30);
    line.host.set(|knobs| knobs.silent.clear());
    assert_eq!(client.request("echo", "[2]").await, Ok(Message::from("[2]")));
    assert_eq!(line.host.counts()["echo"], 1, "who gave up gets nothing sent");
}

#[tokio::test(start_paused = true)]
async fn an_error_of_the_host_is_told_and_nonsense_is_not_sent() {
    let line = Line::default();
    let (client, _events) = line.client(&[]);
    let Err(RequestError::Remote { code: -32601, message, data: None }) = client.request("unheard", "{}").await else {
        panic!()
    };
    assert_eq!(message, "no");
    assert_eq!(client.request("echo", "{").await, Err(RequestError::NotJson));
    assert_eq!(client.dispatch(CHAT, "{} {}").await, Err(DispatchError::NotJson));
    let large = format!("\"{}\"", "x".repeat(40 << 20));
    let Err(RequestError::Unsendable(SendError::TooLarge(over))) = client.request("echo", large).await else {
        panic!()
    };
    assert_eq!(over.limit, 32 << 20);
    assert_eq!(client.request("echo", "1").await, Ok(Message::from("1")), "the connection lives");
    assert_eq!(line.dials(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_application_that_wants_no_events_can_still_ask() {
    let line = Line::default();
    let (client, events) = line.client_with(&[CHAT], |config| config.max_events = 1);
    drop(events);
    live(&client).await;
    (0..100).for_each(|_| line.host.publish(CHAT, "x"));
    assert_eq!(client.request("echo", "7").await, Ok(Message::from("7")));
}

#[tokio::test(start_paused = true)]
async fn the_host_can_ask_and_each_request_gets_one_answer() {
    let line = Line::default();
    let (client, mut events) = line.client(&[]);
    live(&client).await;
    for id in ["1", "2", "3"] {
        line.host.send(&json!({ "jsonrpc": "2.0", "id": id, "method": "resourceRead", "params": { "uri": id } }));
    }
    let mut answers = Vec::new();
    while answers.len() < 3 {
        answers.push(
            pick(&mut events, |event| match event {
                Event::Request { method, responder, .. } if method == "resourceRead" => Some(responder),
                _ => None,
            })
            .await,
        );
    }
    drop(answers.pop());
    answers.pop().unwrap().reject(-32008, "no such file");
    answers.pop().unwrap().respond(format!("\"{}\"", "x".repeat(1_000_000))).await.unwrap();
    line.host.until(|state| state.answers.len() == 3).await;
    let answers = line.host.lock().answers.clone();
    let of = |id: &str| answers.iter().find(|answer| answer["id"] == id).unwrap();
    assert_eq!(of("3")["error"]["code"], -32601);
    assert_eq!(of("2")["error"]["code"], -32008);
    assert_eq!(of("1")["result"].as_str().unwrap().len(), 1_000_000);
}

#[tokio::test(start_paused = true)]
async fn an_answer_to_an_earlier_connection_goes_nowhere() {
    let line = Line::default();
    let (client, mut events) = line.client(&[]);
    live(&client).await;
    line.host.send(&json!({ "jsonrpc": "2.0", "id": 1, "method": "resourceRead", "params": {} }));
    let answer =
        pick(&mut events, |event| if let Event::Request { responder, .. } = event { Some(responder) } else { None });
    let answer = answer.await;
    line.host.cut();
    state(&client, |state| *state != State::Live).await;
    live(&client).await;
    answer.respond("{}").await.unwrap();
    client.request("echo", "{}").await.unwrap();
    assert!(line.host.lock().answers.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_request_of_30_mb_and_its_answer_pass_a_slow_link_though_they_take_minutes() {
    let line = Line { rate: Some(100_000), ..Line::default() };
    let (client, _events) = line.client(&[]);
    live(&client).await;
    let (began, text) = (Instant::now(), format!("[\"{}\"]", "x".repeat(30_000_000)));
    let answer = client.request("echo", text.clone()).await.unwrap();
    assert!(answer == Message::from(text) && line.dials() == 1);
    assert!(began.elapsed().as_secs() > 600, "{:?}", began.elapsed());
    // What is never answered is given up as ever.
    line.host.set(|knobs| knobs.silence("echo"));
    let began = Instant::now();
    assert_eq!(client.request("echo", "{}").await, Err(RequestError::Timeout));
    assert_eq!(began.elapsed().as_secs(), 30);
}
