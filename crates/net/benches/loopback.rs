//! How fast over loopback WebSockets, as ratios: segmented against plain, bridged against direct, ours against what people
//! use today, and how long a small message waits while a large one moves.
#![expect(clippy::unwrap_used, reason = "a bench may fail by panicking")]

#[path = "../../proto/benches/common/corpus.rs"]
mod corpus;
#[path = "../../proto/benches/common/dice.rs"]
mod dice;
#[path = "common/node.rs"]
mod node;
#[path = "common/official.rs"]
mod official;
#[path = "common/passing.rs"]
mod passing;
#[path = "common/race.rs"]
mod race;
#[path = "common/reconnecting.rs"]
mod reconnecting;
#[path = "../../proto/benches/common/table.rs"]
mod table;
#[path = "common/throttle.rs"]
mod throttle;
#[path = "common/wire.rs"]
mod wire;

use breakbulk::Dialect;
use breakbulk_proto::Message;
use breakbulk_proto::ahp::Role;
use node::Node;
use official::Official;
use passing::{BULK, Passing, Relation, passing};
use race::{Took, in_runtimes, median, race, rounds, runtime, timed};
use reconnecting::{Followed, action};
use tokio::runtime::Runtime;
use wire::{Wire, straight};

/// How it is asked for, its title, and what it does.
type Part = (&'static str, &'static str, fn());

/// Rounds over a slow link, each of which takes ten seconds.
const SLOW_ROUNDS: usize = 3;

const PARTS: [Part; 6] = [
    ("plain", "Over loopback WebSockets, beside one plain frame", in_one_frame),
    ("private", "On private links, beside open ones", private),
    ("pair", "Through a bridge pair", bridge),
    ("others", "Beside what people use today", against_others),
    ("small", "A small message while 32 MB move", small),
    ("client", "A client that reconnects", client),
];

fn main() {
    let asked: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    for (name, title, run) in PARTS {
        if asked.is_empty() || asked.iter().any(|asked| asked == name) {
            table::head(title);
            run();
        }
    }
}

fn in_one_frame() {
    against_plain("10 MB", corpus::LEN, 900_000, (1.2, Some(1.4)));
    against_plain("10 MB", corpus::LEN, 65_536, (1.6, None));
    against_plain("32 MB", BULK, 900_000, (1.15, None));
}

/// One message in segments between ends that encrypt every frame, over the same between ends that do not. The cap is one of frames on the
/// link, so that both have frames of one length.
fn private() {
    const CAP: u64 = 900_000;
    let text = corpus::agent(BULK);
    for (threads, ends) in [(1, "one thread for both ends"), (2, "a thread for each end")] {
        let times = in_runtimes(threads, |runtime| {
            let mut private = runtime.block_on(Wire::private(Role::Client, CAP));
            let mut open = runtime.block_on(Wire::new(Dialect::Ahp, Role::Client, CAP, straight));
            race([&mut || carry(runtime, &mut private, &text), &mut || carry(runtime, &mut open, &text)])
        });
        let ratio = median(&times, |[private, open]| private.wall / open.wall);
        let measure = format!("32 MB at {CAP}, private, {ends}: wall time over open links");
        match threads {
            2 => table::row(&measure, ratio, ..=1.5),
            _ => table::row(&measure, ratio, ..),
        }
    }
}

fn small() {
    latency("loopback", None);
    latency("10 MB/s", Some(10e6));
}

/// One message in segments, over the same in one frame. What work there is shows where one thread does all of it: with two,
/// how much they get in each other's way is chance, and takes up to a quarter of the time of either.
fn against_plain(name: &str, len: usize, cap: u64, (wall, cpu): (f64, Option<f64>)) {
    let text = corpus::agent(len);
    let times = |threads| {
        in_runtimes(threads, |runtime| {
            let mut segmented = runtime.block_on(Wire::new(Dialect::Ahp, Role::Client, cap, straight));
            let mut plain = runtime.block_on(Wire::new(Dialect::Plain, Role::Client, 64 << 20, straight));
            race([&mut || carry(runtime, &mut segmented, &text), &mut || carry(runtime, &mut plain, &text)])
        })
    };
    let (alone, both) = (times(1), times(2));
    let ratio = median(&both, |[segmented, plain]| segmented.wall / plain.wall);
    table::row(&format!("{name} at {cap}: wall time over one plain frame"), ratio, ..=wall);
    let ratio = |times: &[[Took; 2]]| median(times, |[segmented, plain]| segmented.cpu / plain.cpu);
    let measure = format!("{name} at {cap}: CPU over one plain frame");
    match cpu {
        Some(most) => table::row(&measure, ratio(&alone), ..=most),
        None => table::row(&measure, ratio(&alone), ..),
    }
    table::row(&format!("{name} at {cap}: the same with a thread for each end"), ratio(&both), ..);
}

/// Through two gateways, over a direct link in segments. Either way the message is checked once, by who puts it together;
/// then with a host that checks it once more.
fn bridge() {
    let text = corpus::agent(corpus::LEN);
    let times = in_runtimes(2, |runtime| {
        let mut bridged = runtime.block_on(Wire::bridged(900_000, false));
        let mut twice = runtime.block_on(Wire::bridged(900_000, true));
        let mut direct = runtime.block_on(Wire::new(Dialect::Ahp, Role::Client, 900_000, straight));
        race([&mut || carry(runtime, &mut bridged, &text), &mut || carry(runtime, &mut twice, &text), &mut || {
            carry(runtime, &mut direct, &text)
        }])
    });
    let ratio = median(&times, |[bridged, _, direct]| bridged.wall / direct.wall);
    table::row("10 MB through a bridge pair: wall time over direct", ratio, ..=1.7);
    let ratio = median(&times, |[bridged, _, direct]| bridged.cpu / direct.cpu);
    table::row("10 MB through a bridge pair: CPU over direct", ratio, ..);
    let ratio = median(&times, |[_, twice, direct]| twice.wall / direct.wall);
    table::row("10 MB through a bridge pair to a host that checks it again: over direct", ratio, ..);
}

/// One message in our segments, over the same in the plain frames of others. Ours is checked as it lands; theirs is not
/// looked at before it is parsed.
fn against_others() {
    let (runtime, text) = (&runtime(2), corpus::agent(corpus::LEN));
    let mut ours = runtime.block_on(Wire::new(Dialect::Ahp, Role::Client, 900_000, straight));
    let mut beside = |name: &str, theirs: &mut dyn FnMut() -> Took| {
        let times = race([&mut || carry(runtime, &mut ours, &text), theirs]);
        let ratio = median(&times, |[ours, theirs]| ours.wall / theirs.wall);
        table::row(&format!("10 MB at 900000: wall time over {name}"), ratio, ..);
    };
    for (name, parses) in [("ahp-ws", false), ("ahp-ws, with its parse", true)] {
        let mut official = runtime.block_on(Official::new(parses));
        beside(name, &mut || {
            let text = text.clone();
            timed(|| runtime.block_on(official.carry(text)))
        });
    }
    let Some(mut node) = Node::start(&text) else {
        return println!(
            "| 10 MB at 900000: wall time over Node's ws | skipped: run `cargo xtask interop` first | | |"
        );
    };
    beside("Node's ws", &mut || timed(|| node.carry(false)));
    beside("Node's ws, with JSON.parse", &mut || timed(|| node.carry(true)));
}

/// A long action from the socket to the application: through a `Client`, over the bare machine on a driver. Both machines check
/// the message once as it arrives; whatever reads it once more shows here.
fn client() {
    const CAP: u64 = 900_000;
    const LEN: usize = 30_000_000;
    let times = in_runtimes(2, |runtime| {
        let mut followed = runtime.block_on(Followed::new(CAP));
        let mut bare = runtime.block_on(Wire::new(Dialect::Ahp, Role::Server, CAP, straight));
        let (mut seq, mut other_seq) = (1, 1);
        race([
            &mut || {
                seq += 1;
                let action = action(seq, LEN);
                timed(|| runtime.block_on(followed.carry(action)))
            },
            &mut || {
                other_seq += 1;
                let action = action(other_seq, LEN);
                timed(|| runtime.block_on(bare.carry(action)))
            },
        ])
    });
    let ratio = median(&times, |[client, machine]| client.wall / machine.wall);
    table::row("30 MB action, socket to application: over the machine alone", ratio, ..=1.15);
    let ratio = median(&times, |[client, machine]| client.cpu / machine.cpu);
    table::row("30 MB action, socket to application: CPU over the machine alone", ratio, ..);
}

/// What it takes to carry a message that the sender holds alone, as a program does that has just made it.
fn carry(runtime: &Runtime, wire: &mut Wire, text: &str) -> Took {
    let message = Message::from(text.to_owned());
    timed(|| runtime.block_on(wire.carry(message)))
}

/// How long a small message takes while a large one moves the same way: behind it, free of it, as a cancel among what a
/// client sends, and as an action of the host's on another channel.
fn latency(name: &str, rate: Option<f64>) {
    let runtime = runtime(2);
    let relations = [Relation::Behind, Relation::Free, Relation::Cancel, Relation::OtherChannel];
    let round = |_| relations.map(|relation| runtime.block_on(passing(relation, rate)));
    let rounds: Vec<[Passing; 4]> = (0..if rate.is_some() { SLOW_ROUNDS } else { rounds() }).map(round).collect();
    let figure = |figure: fn(&[Passing; 4]) -> f64| median(&rounds, figure);
    let up = |measure| format!("{name}, client to server: {measure}");
    table::row(&up("ms behind it, p95"), figure(|[behind, ..]| behind.wait * 1e3), ..);
    table::row(&up("ms for a message marked free, p95"), figure(|[_, free, ..]| free.wait * 1e3), ..);
    let cancel = figure(|[_, _, cancel, _]| cancel.wait * 1e3);
    match rate {
        Some(_) => table::row(&up("ms for a cancel, p95"), cancel, ..=30.0),
        None => table::row(&up("ms for a cancel, p95"), cancel, ..),
    }
    let better = figure(|[behind, free, ..]| behind.wait / free.wait);
    table::row(&up("times better, marked free"), better, 40.0..);
    let better = figure(|[behind, _, cancel, _]| behind.wait / cancel.wait);
    table::row(&up("times better, cancel"), better, 40.0..);
    let slower = figure(|[behind, free, ..]| free.bulk / behind.bulk);
    table::row(&up("time of the 32 MB over the contiguous one"), slower, ..=1.1);
    let other = figure(|[.., other]| other.wait * 1e3);
    table::row(&format!("{name}, server to client: ms for an action on another channel, p95"), other, ..);
    let better = figure(|[behind, .., other]| behind.wait / other.wait);
    table::row(&format!("{name}, server to client: times better, action on another channel"), better, 40.0..);
}
