//! Terminals: made, typed into, given away, disposed of; and who may not.

use serde_json::{Value, json};

use super::world::{CHAT, Client, ROOT, SESSION, World};

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
    let world = World::new().await;
    let mut client = world.client("c").await;
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
    assert!(!world.logged(TERMINAL).await.contains("pass-word"), "what was typed is not kept");
}

#[tokio::test]
async fn a_size_and_a_title_are_logged_with_their_origin_and_carried_out() {
    let world = World::new().await;
    let mut client = world.client("c").await;
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
    let world = World::new().await;
    world.session(json!([])).await;
    let (mut holder, mut other) = (world.client("holder").await, world.client("other").await);
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
    other.dispatch(TERMINAL, 7, json!({"type": "terminal/data", "data": "forged"}));
    // The program has perhaps said something of its own before.
    let forged = loop {
        let data = other.action("terminal/data").await;
        if data["origin"].is_object() {
            break data;
        }
    };
    assert_eq!(forged["origin"]["clientSeq"], 7, "the one before is passed over");
}

#[tokio::test]
async fn each_failure_of_a_terminal_has_its_code() {
    let world = World::new().await;
    world.session(json!([])).await;
    let mut client = world.client("c").await;
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
        (with("cwd", json!(world.uri("nowhere"))), -32008),
        (with("cols", json!(0)), -32602),
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
    let world = World::new().await;
    let (mut client, mut other) = (world.client("c").await, world.client("other").await);
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
    let world = World::with(|config| config.terminals.command = vec!["/no/such/program".into()]).await;
    let mut client = world.client("c").await;
    assert_eq!(create(&mut client, &of_client("c")).await.unwrap_err()["code"], -32603);
    assert_eq!(client.fails("subscribe", json!({"channel": TERMINAL})).await, -32008);
}

#[tokio::test]
async fn the_terminals_of_an_earlier_life_have_exited() {
    let mut world = World::new().await;
    {
        let mut client = world.client("c").await;
        create(&mut client, &of_client("c")).await.unwrap();
    }
    for _ in 0..2 {
        world.restart().await;
        let mut client = world.client("c").await;
        assert_eq!(client.subscribe(TERMINAL).await["lifecycle"]["status"], "exited");
        assert_eq!(client.subscribe(ROOT).await["terminals"], json!([]));
    }
    assert_eq!(world.logged(TERMINAL).await.matches("terminal/exited").count(), 1);
}
