//! State by replay from the log, live reduction in one piece, and what clients compute after any cut are the same.

use std::collections::BTreeMap;
use std::sync::Arc;

use ahp::reducers::apply_action_to_chat;
use ahp_types::actions::StateAction;
use ahp_types::state::{ChatState, SnapshotState, Turn};
use breakbulk_host::log::sqlite::{Options, SqliteLog};
use breakbulk_host::log::{Batch, Log, MemoryLog, Seq};
use breakbulk_host::test_support::state::{State, StateConfig, TurnsPage, View, entry};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::beside::all;
use crate::common::*;

/// Something happens in the chat, or to the host.
#[derive(Debug, Clone)]
enum Op {
    Act(Value),
    /// Names a turn by its place among all that were ever started.
    Resume(usize),
    Truncate(Option<usize>),
    Start,
    /// The last turn that was started ends.
    End(End),
    /// Within the last turn that was started.
    InTurn(Value),
    /// Turns that nobody has seen yet, and one that is there.
    Older(usize),
    /// A side chat is made about a turn, named so too; or it is no more.
    Aside(usize, Option<usize>),
    /// The chat is no more, and begins anew.
    Anew,
    /// A client comes, and follows from here on.
    Join(Option<u64>),
    /// A client loses its link here, and comes back with what it missed at the end.
    Lag(usize),
    Save,
    Restart,
    Trim,
}

#[derive(Debug, Clone, Copy)]
enum End {
    Complete,
    Cancel,
    Fail(bool),
}

fn op() -> impl Strategy<Value = Op> {
    let id = 0..6_usize;
    let flag = any::<bool>();
    prop_oneof![
        12 => Just(Op::Start),
        12 => prop_oneof![Just(End::Complete), Just(End::Cancel), any::<bool>().prop_map(End::Fail)].prop_map(Op::End),
        12 => in_turn().prop_map(Op::InTurn),
        3 => id.clone().prop_map(Op::Resume),
        3 => proptest::option::weighted(0.8, id.clone()).prop_map(Op::Truncate),
        1 => (0..4_usize).prop_map(Op::Older),
        5 => (0..4_usize, proptest::option::weighted(0.9, id.clone())).prop_map(|(side, back)| Op::Aside(side, back)),
        1 => Just(Op::Anew),
        3 => proptest::option::of(0..4_u64).prop_map(Op::Join),
        2 => (0..4_usize).prop_map(Op::Lag),
        2 => Just(Op::Save),
        1 => Just(Op::Restart),
        1 => Just(Op::Trim),
        2 => flag.prop_map(|is_read| Op::Act(json!({"type": "chat/isReadChanged", "isRead": is_read}))),
        2 => id.clone().prop_map(|id| Op::Act(json!({"type": "chat/pendingMessageSet", "kind": "queued", "id": format!("q{id}"),
            "message": message("later")}))),
        1 => id.prop_map(|id| Op::Act(json!({"type": "chat/pendingMessageRemoved", "kind": "queued", "id": format!("q{id}")}))),
        1 => Just(Op::Act(json!({"type": "chat/draftChanged", "draft": message("\"turns\":[] \u{1F980}")}))),
        1 => Just(Op::Act(json!({"type": "session/titleChanged", "title": "elsewhere"}))),
    ]
}

fn in_turn() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(json!({"type": "chat/responsePart", "part": {"kind": "markdown", "id": "p", "content": ""}})),
        Just(json!({"type": "chat/responsePart", "part": {"kind": "reasoning", "id": "r", "content": ""}})),
        "[a-z\"\\\\\u{e9}]{0,12}".prop_map(|text| json!({"type": "chat/delta", "partId": "p", "content": text})),
        "[a-z]{0,12}".prop_map(|text| json!({"type": "chat/reasoning", "partId": "r", "content": text})),
        Just(json!({"type": "chat/toolCallStart", "toolCallId": "t", "toolName": "run", "displayName": "Run"})),
        Just(json!({"type": "chat/toolCallDelta", "toolCallId": "t", "content": "{}"})),
        Just(json!({"type": "chat/toolCallReady", "toolCallId": "t", "invocationMessage": "Runs", "toolInput": "{}"})),
        any::<bool>()
            .prop_map(|approved| json!({"type": "chat/toolCallConfirmed", "toolCallId": "t", "approved": approved})),
        any::<bool>().prop_map(|asks| json!({"type": "chat/toolCallComplete", "toolCallId": "t",
            "requiresResultConfirmation": asks, "result": {"success": true, "pastTenseMessage": "Ran"}})),
        any::<bool>().prop_map(
            |approved| json!({"type": "chat/toolCallResultConfirmed", "toolCallId": "t", "approved": approved})
        ),
        Just(json!({"type": "chat/usage", "usage": {"inputTokens": 3}})),
        Just(json!({"type": "chat/inputRequested", "request": {"id": "i", "message": "Which?"}})),
        Just(json!({"type": "chat/inputCompleted", "requestId": "i", "response": "accept"})),
    ]
}

/// A client: what it computes with the official reducer.
struct Client {
    chat: ChatState,
    /// Everything up to here is in it.
    seq: Seq,
    /// Its link is down.
    is_away: bool,
}

/// The host, what happened, and what ought to be.
struct World {
    log: Arc<dyn Log>,
    state: Arc<State>,
    config: StateConfig,
    truth: ChatState,
    past: Vec<(Seq, StateAction)>,
    clients: Vec<Client>,
    /// Ids of all turns that were ever started, and how many there are of those that were loaded.
    started: Vec<String>,
    older: usize,
    /// What side chats know.
    known: BTreeMap<String, Vec<Turn>>,
}

impl World {
    async fn new(config: StateConfig) -> Self {
        let log: Arc<dyn Log> = Arc::new(MemoryLog::new());
        begin(&*log, CHAT, &chat()).await;
        let SnapshotState::Chat(truth) = chat() else { unreachable!() };
        let state = open(&log, config).await;
        let (past, clients, started) = (Vec::new(), Vec::new(), Vec::new());
        Self { log, state, config, truth: *truth, past, clients, started, older: 0, known: BTreeMap::new() }
    }

    async fn run(&mut self, op: Op) {
        match op {
            Op::Act(action) => self.act(action).await,
            Op::Start => {
                let id = format!("turn {}", self.started.len());
                self.act(started(&id)).await;
                self.started.push(id);
            }
            Op::InTurn(mut action) => {
                action["turnId"] = json!(self.started.last());
                self.act(action).await;
            }
            Op::End(end) => {
                let id = self.started.last().cloned().unwrap_or_default();
                self.act(match end {
                    End::Complete => json!({"type": "chat/turnComplete", "turnId": id, "duration": 1}),
                    End::Cancel => json!({"type": "chat/turnCancelled", "turnId": id, "duration": -1}),
                    End::Fail(resumable) => errored(&id, resumable),
                })
                .await;
            }
            Op::Resume(back) => {
                let id = self.named(back);
                self.act(json!({"type": "chat/turnResume", "turnId": id})).await;
            }
            Op::Truncate(back) => {
                let action = match back {
                    None => json!({"type": "chat/truncated"}),
                    Some(back) => json!({"type": "chat/truncated", "turnId": self.named(back)}),
                };
                self.act(action).await;
            }
            Op::Older(count) => self.load_older(count).await,
            Op::Aside(side, back) => self.aside(format!("side {side}"), back).await,
            Op::Anew => {
                self.log.append(Batch::new().entry(CHAT, entry::closed(CHAT).unwrap())).await.unwrap();
                let seq = begin(&*self.log, CHAT, &chat()).await;
                let SnapshotState::Chat(truth) = chat() else { unreachable!() };
                self.truth = *truth;
                self.past.clear();
                // Whoever follows it comes back to a snapshot.
                self.clients.clear();
                self.state.reached(seq).await.unwrap();
            }
            Op::Join(turns) => {
                let client = self.snapshot(View { turns }).await;
                self.clients.push(client);
            }
            Op::Lag(which) => {
                if let Some(client) = self.clients.get_mut(which) {
                    client.is_away = true;
                }
            }
            Op::Save => self.state.save(CHAT).await.unwrap(),
            Op::Restart => self.state = open(&self.log, self.config).await,
            Op::Trim => {
                let saved = self.log.snapshot(CHAT).await.unwrap().map_or(0, |snapshot| snapshot.seq);
                self.log.trim(CHAT, saved + 1).await.unwrap();
            }
        }
    }

    fn named(&self, back: usize) -> String {
        self.started.iter().rev().nth(back).cloned().unwrap_or("nobody".into())
    }

    async fn act(&mut self, action: Value) {
        let seq = act(&*self.log, CHAT, action.clone()).await;
        let action: StateAction = serde_json::from_value(action).unwrap();
        apply_action_to_chat(&mut self.truth, &action);
        self.past.push((seq, action));
        self.state.reached(seq).await.unwrap();
        self.deliver(false).await;
    }

    async fn aside(&mut self, side: String, back: Option<usize>) {
        let turn = back.map(|back| self.named(back));
        let body = entry::side_chat(CHAT, &side, turn.as_deref()).unwrap();
        let seq = self.log.append(Batch::new().entry(CHAT, body)).await.unwrap()[0];
        self.state.reached(seq).await.unwrap();
        let turns = &self.truth.turns;
        let active = self.truth.active_turn.as_ref().filter(|active| Some(&active.id) == turn.as_ref());
        let end = turns.iter().rposition(|there| Some(&there.id) == turn.as_ref()).map_or(0, |at| at + 1);
        let mut known = turns[..if active.is_some() { turns.len() } else { end }].to_vec();
        known.extend(active.map(|active| {
            let mut turn = serde_json::to_value(active).unwrap();
            turn["state"] = json!("cancelled");
            serde_json::from_value(turn).unwrap()
        }));
        self.known.insert(side, known);
    }

    async fn load_older(&mut self, count: usize) {
        let mut turns = Vec::new();
        for n in 0..count {
            let text = json!({"id": format!("older {} {n}", self.older), "message": message("old"), "responseParts": [],
                "state": "complete"});
            turns.push(text);
        }
        turns.extend(self.truth.turns.first().map(|turn| serde_json::to_value(turn).unwrap()));
        self.older += 1;
        self.act(json!({"type": "chat/turnsLoaded", "turns": turns})).await;
    }

    async fn snapshot(&self, view: View) -> Client {
        let snapshot = self.state.snapshot(CHAT, view, 0).await.unwrap();
        assert_eq!(self.state.size_of(CHAT, view).await.unwrap(), snapshot.body.len() as u64);
        Client { chat: serde_json::from_value(json_of(&snapshot)).unwrap(), seq: snapshot.from_seq, is_away: false }
    }

    /// Brings clients what they have not seen, as a connection would.
    async fn deliver(&mut self, also_those_away: bool) {
        for mut client in std::mem::take(&mut self.clients) {
            if !client.is_away || also_those_away {
                self.catch_up(&mut client).await;
            }
            self.clients.push(client);
        }
    }

    async fn catch_up(&self, client: &mut Client) {
        for (seq, action) in &self.past {
            if *seq <= client.seq {
                continue;
            }
            let is_windowed = client.chat.turns_next_cursor.is_some();
            match action {
                // It needs the turn that remains, which may be before its window.
                StateAction::ChatTruncated(truncated) if is_windowed => {
                    if let Some(id) = &truncated.turn_id
                        && !client.chat.turns.iter().any(|turn| turn.id == *id)
                    {
                        *client = self.snapshot(last(2)).await;
                        continue;
                    }
                    apply_action_to_chat(&mut client.chat, action);
                }
                StateAction::ChatTurnResume(_) if is_windowed && client.chat.turns.is_empty() => {
                    *client = self.snapshot(last(2)).await;
                    continue;
                }
                // What is before its window comes when it asks.
                StateAction::ChatTurnsLoaded(_) if is_windowed => {}
                action => drop(apply_action_to_chat(&mut client.chat, action)),
            }
            client.seq = *seq;
        }
    }

    /// Everybody sees the same.
    async fn compare(&mut self) {
        let truth = serde_json::to_value(&self.truth).unwrap();
        self.deliver(true).await;
        let restarted = open(&self.log, self.config).await;
        assert_eq!(seen(&self.state, &*self.log, CHAT, ALL).await, truth);
        assert_eq!(seen(&restarted, &*self.log, CHAT, ALL).await, truth);
        for (side, known) in &self.known {
            for state in [&self.state, &restarted] {
                assert_eq!(all(&state.history_for_side_chat(CHAT, side).await.unwrap()).await, *known);
            }
        }
        for mut client in std::mem::take(&mut self.clients) {
            let whole = self.truth.turns.len() - client.chat.turns.len();
            assert_eq!(client.chat.turns, self.truth.turns[whole..]);
            assert_eq!(client.chat.turns_next_cursor.is_some(), whole > 0);
            while let Some(cursor) = client.chat.turns_next_cursor.clone() {
                let page = self.state.fetch_turns(CHAT, Some(&cursor), usize::MAX).await.unwrap().unwrap();
                load(&mut client, &page);
            }
            assert_eq!(serde_json::to_value(&client.chat).unwrap(), truth);
        }
    }
}

fn load(client: &mut Client, page: &TurnsPage) {
    let action: StateAction = serde_json::from_slice(&page.action.to_bytes()).unwrap();
    assert!(matches!(action, StateAction::ChatTurnsLoaded(_)));
    apply_action_to_chat(&mut client.chat, &action);
}

fn check(ops: Vec<Op>, config: StateConfig) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let mut world = World::new(config).await;
        for op in ops {
            world.run(op).await;
        }
        world.compare().await;
    });
}

/// A chat that grows and is cut back all the time, in a file, with its states by seq.
async fn grow(log: Arc<dyn Log>) -> BTreeMap<Seq, Value> {
    let SnapshotState::Chat(mut truth) = chat() else { unreachable!() };
    let mut states = BTreeMap::from([(1, serde_json::to_value(&truth).unwrap())]);
    for n in 0..60 {
        let mut actions = turn_actions(&format!("turn {n}"), "text").to_vec();
        if n % 5 == 4 {
            actions.push(json!({"type": "chat/truncated", "turnId": format!("turn {}", n - 4)}));
        }
        for action in actions {
            let seq = act(&*log, CHAT, action.clone()).await;
            apply_action_to_chat(&mut truth, &serde_json::from_value(action).unwrap());
            states.insert(seq, serde_json::to_value(&truth).unwrap());
        }
    }
    states
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_beside_truncations_is_the_state_at_its_seq() {
    let dir = tempfile::tempdir().unwrap();
    let log: Arc<dyn Log> = Arc::new(SqliteLog::open(dir.path(), Options::default()).await.unwrap());
    begin(&*log, CHAT, &chat()).await;
    let state = open(&log, eager()).await;
    let growing = tokio::spawn(grow(log.clone()));
    let mut shots = Vec::new();
    while !growing.is_finished() {
        shots.push(state.snapshot(CHAT, ALL, 0).await.unwrap());
        tokio::task::yield_now().await;
    }
    let states = growing.await.unwrap();
    assert!(!shots.is_empty());
    for snapshot in shots {
        let (_, expected) = states.range(..=snapshot.from_seq).next_back().unwrap();
        assert_eq!(json_of(&snapshot), *expected);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn replay_live_reduction_and_clients_agree_when_channels_stay_in_memory(ops in prop::collection::vec(op(), 0..60)) {
        check(ops, StateConfig { turns_per_page: 2, ..StateConfig::default() });
    }

    #[test]
    fn replay_live_reduction_and_clients_agree_when_channels_are_forgotten_all_the_time(
        ops in prop::collection::vec(op(), 0..60),
    ) {
        check(ops, eager());
    }
}
