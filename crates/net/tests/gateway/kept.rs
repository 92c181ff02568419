//! A child process that serves one client after the other: none gets what is for another, and none is left without a child.

use std::future::pending;
use std::sync::Arc;
use std::time::{Duration, Instant};

use breakbulk::gateway::{Endpoint, Gateway, Outcome};
use breakbulk::link::{self, Child, ExecConfig};
use breakbulk::{AnyMachine, Dialect, Setup};
use breakbulk_proto::ahp::Role;
use breakbulk_proto::{Budget, BudgetConfig, Capacity, CloseReason, Input, Limits, Machine, Ticket, Transmit};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::world::{App, INITIALIZE, WELCOME};

/// Longer than anything here takes on a busy machine.
const LONG: Duration = Duration::from_secs(60);

/// Says its number and which request this is as soon as it reads one, and then does as the method says. All ids are 1.
const SCRIPT: &str = r#"
    answer() { echo "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":$1}"; }
    n=0
    while read -r line; do
        n=$((n + 1))
        echo "{\"jsonrpc\":\"2.0\",\"method\":\"got\",\"params\":[$$,$n]}"
        case $line in
            *'"late"'*) sleep 0.3; answer $n ;;
            *'"never"'*) ;;
            *'"exit"'*) exit 3 ;;
            *'"ask"'*) echo '{"jsonrpc":"2.0","id":"q","method":"question"}'; read -r reply; answer $n ;;
            *'"reply"'*) answer "$reply" ;;
            *) answer $n ;;
        esac
    done
"#;

/// A gateway in front of a child.
struct Shop {
    gateway: Arc<Gateway>,
    child: Child,
}

impl Shop {
    fn open() -> Self {
        Self::of(Dialect::Plain, SCRIPT)
    }

    fn of(dialect: Dialect, script: &str) -> Self {
        let downstream = Setup::new(Dialect::Plain, Role::Server, Limits::default());
        let mut upstream = Setup::new(dialect, Role::Client, Limits::default());
        upstream.framing = breakbulk_proto::plain::Framing::Lines;
        let command = ["sh", "-c", script].map(str::to_owned).to_vec();
        let child = Child::spawn(&ExecConfig::new(command, Capacity::of(u64::MAX), 1 << 20)).unwrap();
        Self { gateway: Arc::new(Gateway::new(downstream, upstream, BudgetConfig::default()).unwrap()), child }
    }

    /// The next client, as soon as the child is free.
    async fn client(&self, patience: Duration) -> (App, JoinHandle<Outcome>) {
        let (client, downstream) = link::pair(&Capacity::of(u64::MAX), 4);
        let link = tokio::time::timeout(LONG, self.child.link()).await.unwrap().unwrap();
        let upstream = Endpoint::child(link, "child", patience);
        let (gateway, downstream) = (Arc::clone(&self.gateway), Endpoint::new(downstream, "downstream"));
        let ended =
            tokio::spawn(
                async move { gateway.join(downstream, upstream, Some("someone"), pending(), None).await.unwrap() },
            );
        (App::new(client, Role::Client), ended)
    }
}

/// Sends a request, and waits until the child has it: which child that is, and which of its requests.
async fn ask(client: &mut App, method: &str) -> (u64, u64) {
    client.send(format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}"}}"#));
    let got = hear(client).await;
    assert_eq!(got["method"], "got", "{got}");
    (got["params"][0].as_u64().unwrap(), got["params"][1].as_u64().unwrap())
}

async fn hear(client: &mut App) -> Value {
    let message = tokio::time::timeout(LONG, client.next()).await.unwrap().unwrap();
    serde_json::from_slice(&message.to_bytes()).unwrap()
}

#[tokio::test]
async fn a_late_answer_to_a_client_that_is_gone_does_not_reach_the_next() {
    let shop = Shop::open();
    let (mut first, _) = shop.client(LONG).await;
    let (child, n) = ask(&mut first, "late").await;
    drop(first);
    let (mut second, _) = shop.client(LONG).await;
    assert_eq!((ask(&mut second, "late").await, n), ((child, 2), 1));
    assert_eq!(hear(&mut second).await["result"], 2);
}

#[tokio::test]
async fn a_child_that_does_not_answer_in_time_is_replaced_for_the_next_client() {
    let shop = Shop::open();
    let (mut first, ended) = shop.client(Duration::from_millis(50)).await;
    let (child, _) = ask(&mut first, "never").await;
    drop(first);
    tokio::time::timeout(LONG, ended).await.unwrap().unwrap();
    let (mut second, _) = shop.client(LONG).await;
    let (other, n) = ask(&mut second, "m").await;
    assert!(other != child && n == 1, "{child} and {other}, {n}");
    assert_eq!(hear(&mut second).await["result"], 1);
    assert!(!std::path::Path::new(&format!("/proc/{child}")).exists(), "two of them at once");
}

#[tokio::test]
async fn a_child_that_has_exited_is_started_anew_for_the_next_client() {
    let shop = Shop::open();
    let (mut first, ended) = shop.client(LONG).await;
    let (child, _) = ask(&mut first, "exit").await;
    assert_eq!(first.end().await.code(), 1011);
    assert_eq!(ended.await.unwrap().upstream.reason, CloseReason::Peer { code: 1011 });
    let (mut second, _) = shop.client(LONG).await;
    let (other, n) = ask(&mut second, "m").await;
    assert!(other != child && n == 1, "{child} and {other}, {n}");
    assert_eq!(hear(&mut second).await["result"], 1);
}

#[tokio::test]
async fn a_child_that_asks_a_client_that_is_gone_is_answered_with_an_error() {
    let shop = Shop::open();
    let (mut first, _) = shop.client(LONG).await;
    let (child, _) = ask(&mut first, "ask").await;
    assert_eq!(hear(&mut first).await["id"], "q");
    drop(first);
    let (mut second, _) = shop.client(LONG).await;
    assert_eq!(ask(&mut second, "reply").await, (child, 2));
    let reply = &hear(&mut second).await["result"];
    assert_eq!((&reply["id"], &reply["error"]["code"]), (&json!("q"), &json!(-32603)));
}

/// What an AHP host says that takes and sends segments: its welcome, and the lines in which a long notification goes out.
fn host_lines() -> Vec<String> {
    let machine = |role| Setup::new(Dialect::Ahp, role, Limits::default()).machine(Budget::default().account(None));
    let (mut client, mut host, now) = (machine(Role::Client).unwrap(), machine(Role::Server).unwrap(), Instant::now());
    client.handle(Input::send(Ticket(1), INITIALIZE), now);
    lines(&mut client, now).into_iter().for_each(|line| host.handle(Input::frame(line), now));
    host.handle(Input::Capacity(Capacity::of(60_000)), now);
    host.handle(Input::send(Ticket(1), WELCOME), now);
    let text = "x".repeat(150_000);
    host.handle(
        Input::send(Ticket(2), format!(r#"{{"jsonrpc":"2.0","method":"long","params":{{"text":"{text}"}}}}"#)),
        now,
    );
    lines(&mut host, now)
}

fn lines(machine: &mut AnyMachine, now: Instant) -> Vec<String> {
    let line = || match machine.poll_transmit(now)? {
        Transmit::Frame { bytes, .. } => Some(String::from_utf8(bytes.to_bytes().to_vec()).unwrap()),
        Transmit::Close(reason) => panic!("{reason}"),
    };
    std::iter::from_fn(line).collect()
}

#[tokio::test]
async fn a_message_that_a_child_has_begun_is_finished_before_the_next_client_gets_it() {
    let (folder, lines) = (tempfile::tempdir().unwrap(), host_lines());
    let [welcome, begin, rest @ ..] = &lines[..] else { panic!("{} lines", lines.len()) };
    assert!(rest.len() > 1);
    for (name, text) in [("welcome", welcome), ("begin", begin), ("rest", &rest.join("\n"))] {
        std::fs::write(folder.path().join(name), format!("{text}\n")).unwrap();
    }
    let script = r#"
        answer() { echo "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":[$$,$1]}"; }
        cd FOLDER
        read -r line; cat welcome begin; read -r line; answer 1; sleep 0.3; : > goes-on; cat rest
        read -r line; cat welcome; read -r line; answer 2; read -r line
    "#;
    let shop = Shop::of(Dialect::Ahp, &script.replace("FOLDER", folder.path().to_str().unwrap()));
    let mut answers = Vec::new();
    for n in 1..=2 {
        let (mut client, _) = shop.client(LONG).await;
        assert_eq!(folder.path().join("goes-on").exists(), n == 2, "half a message is left to the next client");
        client.send(INITIALIZE);
        assert_eq!(hear(&mut client).await["result"]["protocolVersion"], "1.0.0");
        client.send(r#"{"jsonrpc":"2.0","id":1,"method":"m"}"#);
        answers.push(hear(&mut client).await["result"].clone());
    }
    assert_eq!(answers, [json!([answers[0][0], 1]), json!([answers[0][0], 2])]);
}
