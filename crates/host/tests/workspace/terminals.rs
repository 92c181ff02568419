//! Terminals: created, typed into, claimed, disposed of; and what clients may not do with them.

use std::time::Duration;

use breakbulk_host::log::Batch;
use serde_json::{Value, json};

use super::test_host::{CHAT, Client, ROOT, SESSION, TestHost, soon};

const TERMINAL: &str = "ahp-terminal:/1";

fn of_client(id: &str) -> Value {
    json!({"kind": "client", "clientId": id})
}

fn of_session() -> Value {
    json!({"kind": "session", "session": SESSION, "chat": CHAT})
}

async fn create(client: &mut Client, claim: &Value) -> Result<Value, Value> {
    client.call("createTerminal", json!({"channel": TERMINAL, "claim": claim})).await
}

fn input(text: &str) -> Value {
    json!({"type": "terminal/input", "data": text})
}

#[tokio::test]
async fn what_is_typed_reaches_the_program_and_is_echoed_without_its_text() {
    let host = TestHost::new().await;
    let mut client = host.client("c").await;
    client.subscribe(ROOT).await;
    assert_eq!(create(&mut client, &of_client("c")).await, Ok(Value::Null));
    let listed = client.action("root/terminalsChanged").await;
    assert_eq!(listed["action"]["terminals"][0]["resource"], TERMINAL);
    let state = client.subscribe(TERMINAL).await;
    assert_eq!((&state["lifecycle"]["status"], &state["claim"]), (&json!("running"), &of_client("c")));
    client.dispatch(TERMINAL, 7, input("stty -echo; echo re''ady; read secret\r"));
    let echo = client.action("terminal/input").await;
    assert_eq!(echo["origin"], json!({"clientId": "c", "clientSeq": 7}));
    assert_eq!((&echo["action"]["data"], echo.get("rejectionReason")), (&json!(""), None));
    client.output("ready").await;
    client.dispatch(TERMINAL, 8, input("pass-word\r"));
    client.dispatch(TERMINAL, 9, input("echo ${#secret}-characters\r"));
    client.output("9-characters").await;
    client.dispatch(TERMINAL, 10, input("exit 3\r"));
    assert_eq!(client.action("terminal/exited").await["action"]["exitCode"], 3);
    assert!(!host.logged(TERMINAL).await.contains("pass-word"), "what was typed is not kept");
}

#[tokio::test]
async fn a_size_and_a_title_are_logged_with_their_origin_and_carried_out() {
    let host = TestHost::new().await;
    let mut client = host.client("c").await;
    create(&mut client, &of_client("c")).await.unwrap();
    client.subscribe(TERMINAL).await;
    client.dispatch(TERMINAL, 1, json!({"type": "terminal/resized", "cols": 101, "rows": 33}));
    assert_eq!(client.action("terminal/resized").await["origin"]["clientSeq"], 1);
    client.dispatch(TERMINAL, 2, input("stty size\r"));
    client.output("33 101").await;
    client.dispatch(TERMINAL, 3, json!({"type": "terminal/titleChanged", "title": "mine"}));
    assert_eq!(client.action("terminal/titleChanged").await["origin"]["clientSeq"], 3);
    assert_eq!(client.subscribe(ROOT).await["terminals"][0]["title"], "mine");
    client.dispatch(TERMINAL, 4, json!({"type": "terminal/resized", "cols": 0, "rows": 1}));
    assert!(client.action("terminal/resized").await["rejectionReason"].is_string());
}

#[tokio::test]
async fn only_the_holder_types_and_a_client_claims_for_itself_or_a_session() {
    let host = TestHost::new().await;
    host.session(json!([])).await;
    let (mut holder, mut other) = (host.client("holder").await, host.client("other").await);
    create(&mut holder, &of_client("holder")).await.unwrap();
    other.subscribe(TERMINAL).await;
    other.dispatch(TERMINAL, 1, input("x"));
    assert!(other.action("terminal/input").await["rejectionReason"].is_string());
    other.dispatch(TERMINAL, 2, json!({"type": "terminal/claimed", "claim": of_client("other")}));
    assert!(other.action("terminal/claimed").await["rejectionReason"].is_string());
    holder.subscribe(TERMINAL).await;
    let wrong = [of_client("other"), json!({"kind": "session", "session": "ahp-session:/none", "chat": CHAT})];
    for claim in wrong {
        holder.dispatch(TERMINAL, 3, json!({"type": "terminal/claimed", "claim": claim}));
        assert!(holder.action("terminal/claimed").await["rejectionReason"].is_string(), "{claim}");
    }
    holder.dispatch(TERMINAL, 4, json!({"type": "terminal/claimed", "claim": of_session()}));
    assert_eq!(holder.action("terminal/claimed").await.get("rejectionReason"), None);
    holder.dispatch(TERMINAL, 5, input("x"));
    assert!(holder.action("terminal/input").await["rejectionReason"].is_string(), "it is the session's now");
    other.dispatch("ahp-terminal:/none", 6, input("x"));
    assert!(other.action("terminal/input").await["rejectionReason"].is_string());
    other.dispatch(TERMINAL, 7, json!({"type": "terminal/data", "data": "forged"}));
    // The program has perhaps said something of its own before.
    let forged = loop {
        let data = other.action("terminal/data").await;
        if data["origin"].is_object() {
            break data;
        }
    };
    assert_eq!(forged["origin"]["clientSeq"], 7);
}

#[tokio::test]
async fn each_failure_of_a_terminal_has_its_code() {
    let host = TestHost::new().await;
    host.session(json!([])).await;
    let mut client = host.client("c").await;
    let with = |field: &str, value: Value| {
        let mut params = json!({"channel": TERMINAL, "claim": of_client("c")});
        params[field] = value;
        params
    };
    let session = |session: &str, chat: &str| json!({"kind": "session", "session": session, "chat": chat});
    let cases = [
        (with("claim", of_client("other")), -32009),
        (with("claim", session("ahp-session:/none", CHAT)), -32001),
        (with("claim", session(SESSION, "ahp-chat:/none")), -32008),
        (with("cwd", json!("file:///etc")), -32009),
        (with("cwd", json!(host.uri("nowhere"))), -32008),
        (with("cols", json!(0)), -32602),
        (with("name", json!("n".repeat(257))), -32602),
        (with("name", json!("two\nlines")), -32602),
        (with("channel", json!("ahp-session:/1")), -32602),
        (json!({"channel": TERMINAL}), -32602),
    ];
    for (params, code) in cases {
        assert_eq!(client.fails("createTerminal", params.clone()).await, code, "{params}");
    }
    create(&mut client, &of_session()).await.unwrap();
    assert_eq!(client.fails("createTerminal", with("name", json!("again"))).await, -32010);
    assert_eq!(client.fails("disposeTerminal", json!({"channel": "ahp-terminal:/none"})).await, -32008);
}

#[tokio::test]
async fn a_disposed_terminal_has_exited_is_gone_and_its_name_is_free() {
    let host = TestHost::new().await;
    let (mut client, mut other) = (host.client("c").await, host.client("other").await);
    create(&mut client, &of_client("c")).await.unwrap();
    client.subscribe(TERMINAL).await;
    assert_eq!(other.fails("disposeTerminal", json!({"channel": TERMINAL})).await, -32009);
    client.call("disposeTerminal", json!({"channel": TERMINAL})).await.unwrap();
    client.action("terminal/exited").await;
    assert_eq!(client.subscribe(ROOT).await["terminals"], json!([]));
    assert_eq!(client.fails("subscribe", json!({"channel": TERMINAL})).await, -32008);
    create(&mut client, &of_client("c")).await.unwrap();
    assert_eq!(create(&mut other, &of_client("other")).await.unwrap_err()["code"], -32010);
    assert_eq!(client.subscribe(TERMINAL).await["lifecycle"]["status"], "running");
}

#[tokio::test]
async fn a_program_that_does_not_start_leaves_no_terminal() {
    let host = TestHost::with(|config| config.terminals.command = vec!["/no/such/program".into()]).await;
    let mut client = host.client("c").await;
    assert_eq!(create(&mut client, &of_client("c")).await.unwrap_err()["code"], -32603);
    assert_eq!(client.fails("subscribe", json!({"channel": TERMINAL})).await, -32008);
}

#[tokio::test]
async fn the_terminals_of_an_earlier_run_are_erased_and_their_names_are_free() {
    let mut host = TestHost::new().await;
    for _ in 0..2 {
        {
            let mut client = host.client("c").await;
            create(&mut client, &of_client("c")).await.unwrap();
            client.subscribe(TERMINAL).await;
            client.dispatch(TERMINAL, 1, input("echo the se''cret\r"));
            client.output("the secret").await;
        }
        host.restart().await;
        assert_eq!(host.channels("ahp-terminal:").await, [""; 0]);
        assert!(!host.logged(TERMINAL).await.contains("the secret"));
        let mut client = host.client("c").await;
        assert_eq!(client.fails("subscribe", json!({"channel": TERMINAL})).await, -32008);
        assert_eq!(client.fails("disposeTerminal", json!({"channel": TERMINAL})).await, -32008);
        assert_eq!(client.subscribe(ROOT).await["terminals"], json!([]));
    }
}

#[tokio::test]
async fn a_terminal_whose_client_does_not_come_back_is_free_for_others() {
    let grace = Duration::from_millis(300);
    let host = TestHost::with(|config| config.reconnect_grace = grace).await;
    let (mut holder, mut other) = (host.client("holder").await, host.client("other").await);
    create(&mut holder, &of_client("holder")).await.unwrap();
    other.subscribe(TERMINAL).await;
    // Whoever comes back in time keeps it.
    holder.leave().await;
    let holder = host.client("holder").await;
    assert!(other.stays_silent("terminal/claimed", 3 * grace).await);
    other.dispatch(TERMINAL, 1, json!({"type": "terminal/claimed", "claim": of_client("other")}));
    assert!(other.action("terminal/claimed").await["rejectionReason"].is_string());

    holder.leave().await;
    let released = other.action("terminal/claimed").await;
    assert_eq!((&released["action"]["claim"], released.get("origin")), (&of_client(""), None));
    assert_eq!(other.subscribe(ROOT).await["terminals"][0]["claim"], of_client(""));
    other.dispatch(TERMINAL, 2, input("x"));
    let refused = other.action("terminal/input").await;
    assert_eq!(refused["rejectionReason"], "nobody holds the terminal: dispatch terminal/claimed first");
    other.dispatch(TERMINAL, 3, json!({"type": "terminal/claimed", "claim": of_client("other")}));
    assert_eq!(other.action("terminal/claimed").await.get("rejectionReason"), None);
    other.dispatch(TERMINAL, 4, input("echo mi''ne\r"));
    other.output("mine").await;
    // It is held again: whoever held it first asks in vain.
    let mut holder = host.client("holder").await;
    holder.subscribe(TERMINAL).await;
    holder.dispatch(TERMINAL, 1, json!({"type": "terminal/claimed", "claim": of_client("holder")}));
    assert!(holder.action("terminal/claimed").await["rejectionReason"].is_string());
}

/// Waits until a channel is erased from the log.
async fn until_erased(host: &TestHost, channel: &str) {
    soon(async {
        while host.log.channels(None).await.unwrap().iter().any(|info| *info.channel == *channel) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_program_that_nobody_follows_is_slowed_until_somebody_does() {
    let host = TestHost::with(|config| {
        config.terminals.command = ["/bin/sh", "-c", "yes nobody reads this"].map(Into::into).to_vec();
        // One byte in a second: after the first piece there is no other before somebody follows it.
        (config.terminals.unwatched_rate, config.terminals.max_pending_bytes) = (1, 4 << 10);
    })
    .await;
    let mut client = host.client("c").await;
    create(&mut client, &of_client("c")).await.unwrap();
    let logged = async || host.logged(TERMINAL).await.matches("nobody reads this").count() * 19;
    soon(async {
        while logged().await == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(logged().await <= 32 << 10, "{} bytes went to the log", logged().await);
    client.subscribe(TERMINAL).await;
    let mut read = 0;
    while read < 500_000 {
        read += client.action("terminal/data").await["action"]["data"].as_str().unwrap().len();
    }
}

#[tokio::test]
async fn neither_state_nor_log_keeps_more_of_a_terminal_than_it_may() {
    const MOST: usize = 64 << 10;
    let host = TestHost::with(|config| {
        let script = "seq 100000 999999 | head -c 4000000; read line";
        config.terminals.command = ["/bin/sh", "-c", script].map(Into::into).to_vec();
        (config.terminals.max_scrollback_bytes, config.terminals.kept_scrollback_bytes) = (MOST, MOST / 4);
        (config.terminals.unwatched_rate, config.terminals.max_pending_bytes) = (1 << 30, 16 << 10);
    })
    .await;
    let mut client = host.client("c").await;
    create(&mut client, &of_client("c")).await.unwrap();
    let state = soon(async {
        loop {
            let state = client.subscribe(TERMINAL).await;
            client.unsubscribe(TERMINAL).await;
            // The program's last line: 4,000,000 bytes are 571,428 lines of seven, and a bit.
            if state["content"].to_string().contains("671427") {
                return state;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    let content: String =
        state["content"].as_array().unwrap().iter().map(|part| part["value"].as_str().unwrap()).collect();
    assert!(content.starts_with("[… ") && content.contains(" bytes of earlier output are gone]"), "{content:.100}");
    assert!(content.len() <= MOST + (16 << 10) + 100, "{}", content.len());
    let info = host.log.channels(Some("none")).await.unwrap();
    assert_eq!(info, []);
    let entries = host.log.channels(None).await.unwrap();
    let first = entries.iter().find(|info| *info.channel == *TERMINAL).unwrap().first;
    let kept = host.log.read(TERMINAL, first..1 << 60, 1 << 30).await.unwrap();
    let bytes: usize = kept.iter().map(|entry| entry.body.len()).sum();
    // What is trimmed is two steps behind, and a step is four times as long while somebody follows, as the client here does
    // now and then.
    assert!(first > 1 && bytes <= 9 * MOST, "{bytes} bytes from {first} on are in the log");
}

#[tokio::test]
async fn what_is_typed_into_a_silent_program_does_not_stay_in_the_log_either() {
    let host = TestHost::with(|config| {
        let script = "stty raw -echo; echo up; exec cat > /dev/null";
        config.terminals.command = ["/bin/sh", "-c", script].map(Into::into).to_vec();
        (config.terminals.max_scrollback_bytes, config.terminals.kept_scrollback_bytes) = (64 << 10, 16 << 10);
    })
    .await;
    let mut client = host.client("c").await;
    create(&mut client, &of_client("c")).await.unwrap();
    client.subscribe(TERMINAL).await;
    client.unsubscribe(TERMINAL).await;
    let entries = async || {
        let infos = host.log.channels(None).await.unwrap();
        let info = infos.into_iter().find(|info| *info.channel == *TERMINAL).unwrap();
        (info.first, host.log.read(TERMINAL, info.first..1 << 60, 1 << 30).await.unwrap().len())
    };
    for seq in 0..2000 {
        let params = json!({"channel": TERMINAL, "clientSeq": seq, "action": input("x")});
        client.call("dispatchAction", params).await.unwrap();
    }
    soon(async {
        while entries().await.0 < 1000 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    assert!(entries().await.1 < 1000, "{:?}", entries().await);
}

#[tokio::test]
async fn a_disposed_terminal_is_nowhere_in_the_log() {
    let host = TestHost::new().await;
    let mut client = host.client("c").await;
    create(&mut client, &of_client("c")).await.unwrap();
    client.subscribe(TERMINAL).await;
    client.dispatch(TERMINAL, 1, input("echo the se''cret\r"));
    client.output("the secret").await;
    client.call("disposeTerminal", json!({"channel": TERMINAL})).await.unwrap();
    client.action("terminal/exited").await;
    until_erased(&host, TERMINAL).await;
    // The next of this name is another one, and stays.
    create(&mut client, &of_client("c")).await.unwrap();
    client.call("disposeTerminal", json!({"channel": TERMINAL})).await.unwrap();
    create(&mut client, &of_client("c")).await.unwrap();
    assert_eq!(client.subscribe(TERMINAL).await["lifecycle"]["status"], "running");
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(client.subscribe(TERMINAL).await["lifecycle"]["status"], "running");
    assert!(!host.logged(TERMINAL).await.contains("the secret"));
}

#[tokio::test]
async fn a_host_that_ended_before_a_terminal_was_erased_erases_it_when_it_begins() {
    let mut host = TestHost::new().await;
    {
        let mut client = host.client("c").await;
        create(&mut client, &of_client("c")).await.unwrap();
        client.subscribe(TERMINAL).await;
        client.dispatch(TERMINAL, 1, input("echo the se''cret\r"));
        client.output("the secret").await;
    }
    host.inner.stop().await;
    // As far as it came.
    let closed = json!({"channel": TERMINAL, "closed": true}).to_string();
    host.log.append(Batch::new().entry(TERMINAL, closed)).await.unwrap();
    host.restart().await;
    until_erased(&host, TERMINAL).await;
}
