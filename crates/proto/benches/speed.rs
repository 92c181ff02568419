//! How fast, as ratios: against the steps that nobody can leave out, and against plain implementations of the same.
#![expect(clippy::unwrap_used, reason = "a bench may fail by panicking")]

#[path = "common/corpus.rs"]
mod corpus;
#[path = "common/dialects.rs"]
mod dialects;
#[path = "common/dice.rs"]
mod dice;
#[path = "common/pair.rs"]
mod pair;
#[path = "common/plain_ahp.rs"]
mod plain_ahp;
#[path = "common/rounds.rs"]
mod rounds;
#[path = "common/rows.rs"]
mod rows;
#[path = "common/serde_cep22.rs"]
mod serde_cep22;
#[path = "common/steps.rs"]
mod steps;
#[path = "common/table.rs"]
mod table;

use std::hint::black_box;

use breakbulk_proto::{Machine, Message};
use bytes::Bytes;
use pair::Pair;
use rounds::{Made, Rounds, rounds};
use serde::de::IgnoredAny;

fn main() {
    let corpora = [("agent", corpus::agent(corpus::LEN)), ("struct", rows::rows(corpus::LEN))];
    // As in a program that has run for a while: an allocator that has seen nothing large gives pages back after each message.
    black_box(plain_ahp::carry(&corpora[0].1, 900_000));
    table::head("Speed");
    for (name, text) in &corpora {
        for cap in [900_000, 65_536] {
            ahp(name, text, cap);
        }
    }
    cep22(&corpora[0].1);
    stdio(&corpora[0].1);
    linear();
    base64(&corpora[0].1);
    for (name, text) in &corpora {
        json(name, text);
    }
}

/// Both ends of `ahp`, against the sum of the unavoidable steps and against the plain implementation.
fn ahp(name: &str, text: &str, cap: usize) {
    let message = Message::from(Bytes::copy_from_slice(text.as_bytes()));
    let mut pair = dialects::ahp(cap as u64);
    let bytes = text.as_bytes();
    let mut wire = vec![0; bytes.len().div_ceil(3) * 4];
    let mut back = vec![0; bytes.len() + 3];
    steps::encode(bytes, &mut wire);
    let encoded = wire.clone();
    let times = Rounds::race(
        rounds(),
        &mut [&mut || carried(&mut pair, &message), &mut || {
            let sizes = (steps::encode(bytes, &mut wire), steps::decode(&encoded, &mut back));
            made((sizes, steps::check_utf8(bytes), steps::check_json(bytes, usize::MAX)))
        }],
    );
    let ratio = times.median(|[ours, steps]| ours / steps);
    table::row(&format!("ahp, {name}, cap {cap}: time over the unavoidable steps"), ratio, ..=1.3);
    let times = Rounds::race(
        rounds(),
        &mut [&mut || (0..EVEN).map(|_| carried(&mut pair, &message)).last().unwrap(), &mut || {
            made(plain_ahp::carry(text, cap))
        }],
    );
    let speedup = times.speedup(0, 1) * f64::from(EVEN);
    table::row(&format!("ahp, {name}, cap {cap}: times as fast as the plain one"), speedup, 5.0..);
}

/// How often ours runs against one run of the plain one: on a busy machine only things that take about as long are
/// interrupted about as often.
const EVEN: u8 = 6;

/// Both ends of `cep22`, digests included, against serde.
fn cep22(text: &str) {
    let cap = 65_536;
    let message = Message::from(Bytes::copy_from_slice(text.as_bytes()));
    let mut pair = dialects::cep22(cap as u64);
    let times = Rounds::race(
        rounds(),
        &mut [&mut || carried(&mut pair, &message), &mut || made(serde_cep22::carry(text, cap))],
    );
    table::row("cep22, agent, cap 65536: times as fast as serde", times.speedup(0, 1), 1.3..);
}

/// Both ends of `stdio`, against the sum of the unavoidable steps.
fn stdio(text: &str) {
    let message = Message::from(Bytes::copy_from_slice(text.as_bytes()));
    let mut pair = dialects::stdio();
    let (bytes, mut there, mut back) = (text.as_bytes(), vec![0; text.len()], vec![0; text.len()]);
    let times = Rounds::race(
        rounds(),
        &mut [&mut || carried(&mut pair, &message), &mut || {
            let copies = (steps::copy(bytes, &mut there), steps::copy(bytes, &mut back));
            made((copies, steps::check_utf8(bytes), steps::check_json(bytes, usize::MAX)))
        }],
    );
    let ratio = times.median(|[ours, steps]| ours / steps);
    table::row("stdio, agent: time over the unavoidable steps", ratio, ..=1.5);
}

/// Whether a segment costs the same in a message of few and of many.
fn linear() {
    let cap = 512; // the smallest that may be advertised, so that 60,000 segments are still a message of some MB
    let mut pair = dialects::ahp(cap);
    let probe = Message::from(corpus::agent(1 << 20));
    let len = probe.len();
    let (_, frames) = pair.carry(probe);
    let of = |segments: usize| Message::from(corpus::agent(len * segments / frames));
    let (few, many) = (of(1_000), of(59_500));
    let (few_frames, many_frames) = (pair.carry(few.clone()).1, pair.carry(many.clone()).1);
    let mut other = dialects::ahp(cap);
    // As many segments in all either way, so that both take about as long.
    let times = Rounds::race(
        rounds(),
        &mut [&mut || (0..60).map(|_| carried(&mut pair, &few)).last().unwrap(), &mut || carried(&mut other, &many)],
    );
    let (few_frames, many_frames) = (60.0 * few_frames as f64, many_frames as f64);
    table::row("ahp: ns per segment, of 1,000", times.median(|times| times[0] / few_frames * 1e9), ..);
    table::row("ahp: ns per segment, of 60,000", times.median(|times| times[1] / many_frames * 1e9), ..);
    let growth = times.median(|times| (times[1] / many_frames) / (times[0] / few_frames));
    table::row("ahp: a segment of 60,000 over a segment of 1,000", growth, ..=1.5);
}

/// The engine that we use, against the one that most programs have, at the size of one segment.
fn base64(text: &str) {
    use base64_022::Engine;
    use base64_022::engine::general_purpose::STANDARD;
    let bytes = &text.as_bytes()[..675_000];
    let encoded = STANDARD.encode(bytes);
    let (mut wire, mut back) = (vec![0; encoded.len()], vec![0; bytes.len() + 3]);
    let (mut wire_2, mut back_2) = (wire.clone(), back.clone());
    let times = Rounds::race(
        rounds() * 10,
        &mut [
            &mut || made(steps::encode(bytes, &mut wire)),
            &mut || made(STANDARD.encode_slice(bytes, &mut wire_2).unwrap()),
            &mut || made(steps::decode(encoded.as_bytes(), &mut back)),
            &mut || made(STANDARD.decode_slice(&encoded, &mut back_2).unwrap()),
        ],
    );
    table::row("base64 encode, 675 KB: times as fast as base64 0.22", times.speedup(0, 1), 4.0..);
    table::row("base64 decode, 675 KB: times as fast as base64 0.22", times.speedup(2, 3), 4.0..);
}

/// Our check, whole and in pieces, against serde_json's, which needs the whole.
fn json(name: &str, text: &str) {
    let bytes = text.as_bytes();
    let times = Rounds::race(
        rounds(),
        &mut [
            &mut || made(steps::check_json(bytes, usize::MAX)),
            &mut || made(steps::check_json(bytes, 49_152)),
            &mut || {
                serde_json::from_slice::<IgnoredAny>(black_box(bytes)).unwrap();
                made(())
            },
        ],
    );
    table::row(&format!("json check, {name}, whole: speed over serde_json's"), times.speedup(0, 2), 0.6..);
    table::row(&format!("json check, {name}, pieces: speed over serde_json's"), times.speedup(1, 2), 0.6..);
}

fn carried<M: Machine>(pair: &mut Pair<M>, message: &Message) -> Made {
    let (arrived, _) = pair.carry(message.clone());
    assert_eq!(arrived.len(), message.len(), "all of it arrives");
    made(arrived)
}

fn made(thing: impl std::any::Any) -> Made {
    Box::new(thing)
}
