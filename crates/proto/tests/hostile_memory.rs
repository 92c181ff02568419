//! What a hostile peer can make a machine hold: never much more than it is charged for, and nothing after the sweep.
//!
//! Every hostile vector runs here again under an allocator that counts, and so do floods: long sequences of frames,
//! each made when its turn comes. Between any two frames the memory that the machine holds is compared with what it
//! was charged for at most so far: tables that have grown do not shrink.

#[path = "vectors/suite.rs"]
#[expect(dead_code, unused_imports, reason = "what the other test compares outcomes with is not used here")]
mod suite;

use std::alloc::System;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use breakbulk_proto::ahp::{self, Chunking, Delivery, Negotiated, Role};
use breakbulk_proto::{
    Budget, BudgetConfig, Event, Input, Limits, LimitsConfig, Machine, Meta, Ticket, Transmit, cep22, stdio,
};
use bytes::{Bytes, BytesMut};
use cap::Cap;
use suite::{Suite, Watch};

#[global_allocator]
static MEMORY: Cap<System> = Cap::new(System, usize::MAX);

/// What a machine may hold beside what it is charged for, unless its peer fills its tables: the pieces in which base64 is
/// coded, 28 KiB, and its own tables while they are small.
const EMPTY: u64 = 48 << 10;
/// What a frame may leave in a table, as a request that waits for an answer does: 50 bytes, in a table that is half empty.
const ENTRY: u64 = 128;
/// What a group or a transfer takes beside its bytes, which a frame may begin.
const GROUP: u64 = 3072;
/// What a machine may hold beside what it is charged for, whatever its peer does. All of it is bounded by constants:
/// - the pieces in which base64 is coded, 28 KiB, and an empty machine's own tables: about 40 KiB in all;
/// - `ahp`: 4,096 requests that wait for an answer, some 50 bytes each in a table that is at most half empty: 400 KiB;
/// - `cep22`: 5 tables of at most 2,048 entries, the largest of some 350 bytes (a token and an id of 256): 1 MiB;
/// - `stdio`: the names of 4,096 ended groups: 64 KiB;
/// - without segments, on pipes, and in `cep22`: the ids of the requests of two batches whose answers wait: 514 KiB.
const ALLOWANCE: u64 = 1 << 20;
/// What a budget keeps of blocks that messages have let go of: 16 of 1 MiB. Only messages of more than 2 MiB have any.
const POOLED: u64 = 16 << 20;

#[test]
fn a_hostile_peer_cannot_make_a_machine_hold_more_than_it_is_charged_for() {
    let mut wrong = Vec::new();
    let suite = Suite::load();
    let mut count = 0;
    for case in suite.cases().iter().filter(|case| case.is_hostile()) {
        let mut scale = Scale::new(EMPTY);
        case.watch(&mut scale);
        count += 1;
        wrong.extend(scale.worst.map(|how| format!("{}: {how}", case.title())));
    }
    println!("hostile memory: {count} vectors ran");
    let floods = floods();
    for Flooding { name, known_gap, run } in &floods {
        let before = MEMORY.allocated();
        let result = run();
        let left = MEMORY.allocated().saturating_sub(before + result.as_ref().map_or(0, String::capacity));
        let result = result.or_else(|| (left > 0).then(|| format!("{left} bytes are held by nobody")));
        match (result, known_gap) {
            (None, None) => println!("hostile memory: {name}: ok"),
            (Some(how), Some(why)) => println!("hostile memory: KNOWN GAP, NOT PROVEN: {name}: {how}: {why}"),
            (Some(how), None) => wrong.push(format!("{name}: {how}")),
            (None, Some(why)) => wrong.push(format!("{name} passes, though it is a known gap: {why}")),
        }
    }
    println!("hostile memory: {} floods ran", floods.len());
    assert!(count > 300, "only {count} hostile vectors");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Weighs what is held against what is charged.
struct Scale {
    allowance: u64,
    before: usize,
    /// The most that was charged so far.
    charged: u64,
    /// Frames and bytes that came in so far. No more than twice the bytes are held, whatever was declared and charged for.
    frames: u64,
    fed: u64,
    worst: Option<String>,
}

impl Scale {
    const fn new(allowance: u64) -> Self {
        Self { allowance, before: 0, charged: 0, frames: 0, fed: 0, worst: None }
    }

    const fn feed(&mut self, bytes: usize) {
        self.frames += 1;
        self.fed += bytes as u64;
    }

    fn weigh(&mut self, budget: &Budget) {
        let held = MEMORY.allocated().saturating_sub(self.before) as u64;
        self.charged = self.charged.max(budget.held());
        let allowed = (self.charged + self.charged / 4).min(2 * self.fed + GROUP * self.frames) + self.allowance;
        if held > allowed && self.worst.is_none() {
            let Self { charged, fed, .. } = self;
            self.worst = Some(format!("{held} bytes are held where at most {charged} were charged and {fed} came"));
        }
    }
}

impl Watch for Scale {
    fn begin(&mut self, _: BudgetConfig) {
        self.before = MEMORY.allocated();
    }

    fn fed(&mut self, bytes: usize) {
        self.feed(bytes);
        self.allowance = (self.allowance + ENTRY).min(ALLOWANCE);
    }

    fn settled(&mut self, budget: &Budget) {
        self.weigh(budget);
    }

    fn end(&mut self, budget: &Budget) {
        if (budget.held(), budget.used()) != (0, 0) {
            self.worst = Some(format!("{} bytes are charged to a machine that is gone", budget.held()));
        }
    }

    fn keeps(&self) -> bool {
        false
    }
}

/// A flood; `run` says how it went wrong, if it did.
struct Flooding {
    name: &'static str,
    /// Why it goes wrong today. Such a flood is printed, and must go on failing until this is removed.
    known_gap: Option<&'static str>,
    run: fn() -> Option<String>,
}

fn floods() -> Vec<Flooding> {
    let flood = |name, run| Flooding { name, known_gap: None, run };
    vec![
        flood("one-byte segments up to total 65,535", one_byte_segments),
        flood("empty segments of many groups", || many_groups("", 2)),
        flood("many groups that declare little", || many_groups(" ", 65_535)),
        flood("many groups that declare the largest message", || many_groups(&" ".repeat(600), 65_535)),
        flood("groups that are never finished, swept again and again", unfinished_groups),
        flood("a group that grows past what its first segment declared", || growing_group(3000)),
        flood("a group of large segments up to the largest message", || growing_group(3 << 20)),
        flood("small actions held in start order", || held_back(10, exact)),
        flood("larger actions held in start order", || held_back(20_000, exact)),
        flood("small actions held in start order, each cut from a read buffer of 64 KiB", || {
            held_back(10, cut_from_a_buffer)
        }),
        flood("messages that pass an unfinished group", passing),
        flood("requests that are never answered", unanswered_requests),
        flood("handshakes with long client ids", client_ids),
        flood("transfers that declare 2^64 bytes", || declared_transfers("18446744073709551615")),
        flood("transfers that declare the largest message", || declared_transfers("33554432")),
        flood("transfers that declare one byte", || declared_transfers("1")),
        flood("chunks far out of order", scattered_chunks),
        flood("requests with long tokens and ids", remembered_requests),
        flood("lines with huge totals", huge_totals),
        flood("lines in falling order, one byte each", falling_lines),
        flood("lines of uneven lengths", uneven_lines),
        flood("bad lines with ever new names", bad_lines),
        flood("batches of requests with long ids, whose answers are not taken", || {
            unread_batches(Flood::stdio, r#"{"jsonrpc":"2.0","id":ID,"method":"m"}"#)
        }),
        flood("batches of answers with long ids, whose errors are not taken", || {
            unread_batches(Flood::stdio, r#"{"jsonrpc":"2.0","id":ID,"result":1}"#)
        }),
        flood("batches of requests with long ids in events, whose answers are not taken", || {
            unread_batches(
                || Flood::cep22(|limits| limits.max_frame_bytes = 1 << 20),
                r#"{"jsonrpc":"2.0","id":ID,"method":"m"}"#,
            )
        }),
    ]
}

fn one_byte_segments() -> Option<String> {
    // The text itself is ours, in a string that has grown to it.
    let mut flood = Flood::ahp(EMPTY + 2 * 65_535, Delivery::Settled, |limits| {
        (limits.max_frame_bytes, limits.max_message_bytes) = (70_000, 70_000);
    });
    let text = format!(r#"{{"jsonrpc":"2.0","method":"{}"}}"#, "m".repeat(65_506));
    for (index, byte) in text.bytes().enumerate() {
        for group in ["a", "b", "c"] {
            flood.frame(segment(group, index, 65_535, &[byte]));
        }
    }
    assert_eq!((text.len(), flood.messages), (65_535, 3));
    flood.end()
}

fn many_groups(first: &str, total: usize) -> Option<String> {
    let mut flood = Flood::ahp(EMPTY, Delivery::Settled, |limits| {
        limits.max_groups = 1024;
        (limits.max_frame_bytes, limits.max_message_bytes) = (60_000, 60_000);
    });
    for n in 0..1024 {
        flood.frame(segment(&format!("{n:0>128}"), 0, total, first.as_bytes()));
    }
    assert!(!flood.closed, "there is room for all that is advertised");
    flood.end()
}

fn unfinished_groups() -> Option<String> {
    let mut flood = Flood::ahp(EMPTY, Delivery::Settled, |limits| {
        limits.max_groups = 64;
        (limits.max_frame_bytes, limits.max_message_bytes) = (60_000, 60_000);
    });
    for round in 0..20 {
        for n in 0..64 {
            flood.frame(segment(&format!("{round} {n}"), 0, 9, &[b' '; 3000]));
            flood.frame(segment(&format!("{round} {n}"), 1, 9, &[b' '; 3000]));
        }
        flood.sweep();
        assert!(!flood.closed && flood.budget.held() == 0 && flood.budget.used() == 0, "the sweep leaves something");
    }
    assert_eq!(flood.expired, 20 * 64);
    flood.end()
}

fn growing_group(len: usize) -> Option<String> {
    let mut flood = Flood::ahp(EMPTY + POOLED, Delivery::Settled, |_| {});
    flood.frame(segment("g", 0, 65_535, b" "));
    let spaces = vec![b' '; len];
    for index in 1..65_535 {
        if !flood.frame(segment("g", index, 65_535, &spaces)) {
            break;
        }
    }
    assert!(flood.closed, "32 MiB are the limit");
    flood.end()
}

fn held_back(len: usize, frame: fn(&str) -> Bytes) -> Option<String> {
    let mut flood = Flood::ahp(EMPTY, Delivery::StartOrder, |_| {});
    flood.frame(segment("g", 0, 2, b" "));
    let body = "x".repeat(len);
    let action = |seq| {
        let text = format!(r#"{{"jsonrpc":"2.0","method":"action","params":{{"serverSeq":{seq},"x":"{body}"}}}}"#);
        frame(&text)
    };
    let held = (0..).take_while(|seq| flood.frame(action(*seq)) && flood.scale.worst.is_none()).count();
    assert!(flood.messages == 0 && held > 10, "after {held}");
    drop(body);
    flood.end()
}

/// A frame in an allocation of its own, of exactly its length.
fn exact(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

/// A frame as links hand them out that read into a large buffer.
fn cut_from_a_buffer(text: &str) -> Bytes {
    let mut buffer = BytesMut::with_capacity(64 << 10);
    buffer.extend_from_slice(text.as_bytes());
    buffer.freeze()
}

fn passing() -> Option<String> {
    let mut flood = Flood::ahp(EMPTY, Delivery::Settled, |_| {});
    flood.frame(segment("g", 0, 2, b" "));
    for seq in 0..100_000 {
        flood.frame(format!(r#"{{"jsonrpc":"2.0","method":"action","params":{{"serverSeq":{seq}}}}}"#));
    }
    assert_eq!(flood.messages, 100_000);
    flood.end()
}

fn unanswered_requests() -> Option<String> {
    let mut flood = Flood::ahp(ALLOWANCE, Delivery::Settled, |_| {});
    for n in 0..10_000 {
        let id = "i".repeat(n % 3000);
        flood.frame(format!(r#"{{"jsonrpc":"2.0","id":"{n}{id}","method":"ping","params":{{"channel":"{id}"}}}}"#));
    }
    assert!(flood.closed, "4,096 are the limit");
    flood.end()
}

/// Many connections of one endpoint, which remembers what each client takes.
fn client_ids() -> Option<String> {
    let negotiated = Negotiated::default();
    let mut scale = Scale::new(ALLOWANCE);
    scale.begin(BudgetConfig::default());
    for n in 0..40 {
        let mut config = ahp::Config::new(Role::Server, Limits::default(), [7; 32]);
        config.negotiated = negotiated.clone();
        let mut flood = Flood::new(ALLOWANCE, |budget| Box::new(ahp::Connection::new(config, account(budget))));
        let id = n.to_string() + &"x".repeat(1_000_000);
        flood.frame(format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"initialize","params":{{"clientId":"{id}","protocolVersions":["1.0.0"],"capabilities":{{"chunking":{{"maxIncomingFrameBytes":900000,"maxIncomingMessageBytes":900000}}}}}}}}"#
        ));
        drop(id);
        flood.input(Input::send(Ticket(1), r#"{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"1.0.0"}}"#));
        let budget = flood.budget.clone();
        if let Some(how) = flood.end() {
            return Some(how);
        }
        scale.weigh(&budget);
    }
    scale.worst
}

fn declared_transfers(bytes: &str) -> Option<String> {
    let mut flood = Flood::cep22(|_| {});
    let digest = "0".repeat(64);
    for n in 0..20_000 {
        let (peer, token) = (format!("{:0>64}", n / 50), format!("{n:t>250}"));
        let cvm = format!(
            r#""frameType":"start","completionMode":"render","digest":"sha256:{digest}","totalBytes":{bytes},"totalChunks":9"#
        );
        flood.from(&peer, n, part(&token, 1, &cvm));
    }
    flood.end()
}

fn scattered_chunks() -> Option<String> {
    let mut flood = Flood::cep22(|_| {});
    let digest = "0".repeat(64);
    let body = "x".repeat(3000);
    for n in 0..500 {
        let (peer, token) = (format!("{:0>64}", n / 50), format!("{n:t>250}"));
        let cvm = format!(
            r#""frameType":"start","completionMode":"render","digest":"sha256:{digest}","totalBytes":150000,"totalChunks":5000"#
        );
        flood.from(&peer, n, part(&token, 1, &cvm));
        for at in 0..45 {
            let cvm = format!(r#""frameType":"chunk","data":"{}""#, if at % 2 == 0 { &body } else { "y" });
            flood.from(&peer, n, part(&token, 9000 - 7 * at, &cvm));
        }
    }
    flood.end()
}

fn remembered_requests() -> Option<String> {
    let mut flood = Flood::cep22(|_| {});
    for n in 0..20_000 {
        let (peer, token) = (format!("{n:0>64}"), format!("{n:t>256}"));
        let id = format!("{n:i>900}");
        let request = format!(
            r#"{{"jsonrpc":"2.0","id":"{id}","method":"m","params":{{"_meta":{{"progressToken":"{token}"}}}}}}"#
        );
        flood.from(&peer, n, request);
    }
    assert_eq!(flood.messages, 20_000);
    flood.end()
}

fn huge_totals() -> Option<String> {
    let mut flood = Flood::stdio();
    for n in 0..5000_u32 {
        flood.frame(line(n, 999_999, 1_000_000, "x"));
        flood.frame(line(n, 5, 1_000_000, &"x".repeat(1000)));
    }
    flood.end()
}

fn falling_lines() -> Option<String> {
    let mut flood = Flood::stdio();
    for index in (1..200_000).rev() {
        flood.frame(line(1, index, 200_000, "x"));
        flood.frame(line(2, index, 200_000, ""));
    }
    flood.end()
}

fn uneven_lines() -> Option<String> {
    let mut flood = Flood::stdio();
    for index in 0..100_000 {
        flood.frame(line(1, index, 1_000_000, if index % 2 == 0 { " " } else { "  " }));
        flood.frame(line(2, index, 1_000_000, if index == 0 { "                " } else { "" }));
    }
    flood.end()
}

fn bad_lines() -> Option<String> {
    let mut flood = Flood::stdio();
    for n in 0..50_000 {
        flood.frame(line(n, 9, 3, "x"));
        flood.frame(format!("a line for the log, {n}"));
    }
    flood.end()
}

/// A machine under a flood, driven as it should be: everything that comes out is taken, and nothing goes in that the
/// machine does not want.
struct Flood {
    machine: Box<dyn Machine>,
    budget: Budget,
    scale: Scale,
    now: Instant,
    closed: bool,
    messages: u64,
    expired: u64,
}

/// Two batches; of what the machine then has to say nothing is taken.
fn unread_batches(flood: fn() -> Flood, message: &str) -> Option<String> {
    let message = message.replace("ID", &format!("\"{:i>254}\"", 1));
    let batch = format!("[{}]", vec![message; 1024].join(","));
    let mut flood = flood();
    for n in 0..2 {
        let meta = Meta { id: Some(n.to_string().into()), ..Meta::default() };
        flood.scale.feed(batch.len());
        flood.machine.handle(Input::Frame { bytes: exact(&batch), meta }, flood.now);
        flood.scale.weigh(&flood.budget);
    }
    flood.end()
}

impl Flood {
    fn new(allowance: u64, build: impl FnOnce(&Budget) -> Box<dyn Machine>) -> Self {
        let mut scale = Scale::new(allowance);
        scale.begin(CONFIG);
        let budget = Budget::new(CONFIG);
        let machine = build(&budget);
        Self { machine, budget, scale, now: Instant::now(), closed: false, messages: 0, expired: 0 }
    }

    /// A client that takes segments.
    fn ahp(allowance: u64, delivery: Delivery, change: impl FnOnce(&mut LimitsConfig)) -> Self {
        let limits = limits(change);
        let mut config = ahp::Config::new(Role::Client, limits, [7; 32]);
        config.delivery = delivery;
        config.agreed = Some(Chunking::from(&limits));
        Self::new(allowance, |budget| Box::new(ahp::Connection::new(config, account(budget))))
    }

    fn cep22(change: impl FnOnce(&mut LimitsConfig)) -> Self {
        let config = cep22::Config { limits: limits(change), ..cep22::Config::default() };
        Self::new(ALLOWANCE, |budget| Box::new(cep22::Connection::new(config, account(budget))))
    }

    fn stdio() -> Self {
        let config = stdio::Config::new(limits(|limits| limits.max_message_bytes = 7 << 20), [7; 32]);
        Self::new(ALLOWANCE, |budget| Box::new(stdio::Connection::new(config, account(budget))))
    }

    /// A frame arrives, if it may. Says whether more may.
    fn frame(&mut self, bytes: impl Into<Bytes>) -> bool {
        if self.machine.wants_frames() && !self.closed {
            self.input(Input::frame(bytes));
        }
        self.machine.wants_frames() && !self.closed
    }

    /// A frame arrives from a peer.
    fn from(&mut self, peer: &str, n: u64, bytes: String) {
        let meta = Meta { peer: Some(peer.into()), id: Some(format!("{n:0>64}").into()), ..Meta::default() };
        self.input(Input::Frame { bytes: bytes.into(), meta });
    }

    fn input(&mut self, input: Input) {
        if let Input::Frame { bytes, .. } = &input {
            self.scale.feed(bytes.len());
        }
        self.machine.handle(input, self.now);
        while let Some(transmit) = self.machine.poll_transmit(self.now) {
            self.closed |= matches!(transmit, Transmit::Close(_));
        }
        while let Some(event) = self.machine.poll_event() {
            match event {
                Event::Message { .. } => self.messages += 1,
                Event::Expired { .. } => self.expired += 1,
                _ => {}
            }
        }
        self.scale.weigh(&self.budget);
        let most = CONFIG.floor_bytes + CONFIG.principal_bytes;
        assert!(self.budget.held() <= most, "more is charged than there is: {}", self.budget.held());
    }

    /// Time passes until nothing is due any more.
    fn sweep(&mut self) {
        while let Some(due) = self.machine.poll_timeout() {
            self.now = due.max(self.now);
            self.input(Input::Timeout);
        }
    }

    /// How it went wrong, if it did. After the sweep nothing is charged.
    fn end(mut self) -> Option<String> {
        self.sweep();
        if (self.budget.held(), self.budget.used()) != (0, 0) {
            return Some(format!("{} bytes are charged after the sweep", self.budget.held()));
        }
        self.scale.worst
    }
}

/// Small enough that floods reach its end.
const CONFIG: BudgetConfig = BudgetConfig { process_bytes: 96 << 20, principal_bytes: 64 << 20, floor_bytes: 64 << 10 };

fn limits(change: impl FnOnce(&mut LimitsConfig)) -> Limits {
    let mut config = LimitsConfig { grace: Duration::ZERO, ..LimitsConfig::default() };
    change(&mut config);
    Limits::prove(config, &CONFIG).expect("these limits hold together")
}

fn account(budget: &Budget) -> breakbulk_proto::Account {
    budget.account(Some("mallory"))
}

fn segment(group: &str, index: usize, total: usize, bytes: &[u8]) -> String {
    let data = BASE64_STANDARD.encode(bytes);
    format!(
        r#"{{"jsonrpc":"2.0","method":"ahp/messageSegment","params":{{"groupId":"{group}","index":{index},"total":{total},"data":"{data}"}}}}"#
    )
}

fn part(token: &str, progress: u64, cvm: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":"{token}","progress":{progress},"cvm":{{"type":"oversized-transfer",{cvm}}}}}}}"#
    )
}

fn line(group: u32, index: u64, total: u64, data: &str) -> String {
    format!("{group:08X}-0000-4000-8000-000000000000:{index}:{total}:{data}")
}
