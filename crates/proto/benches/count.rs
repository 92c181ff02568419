//! One step of one dialect, for `cargo xtask count` to count its instructions: `count DIALECT CAP STAGE`.
//!
//! Each stage does all that the one before it does, so that a difference is one stage's cost.
#![expect(clippy::unwrap_used, reason = "a bench may fail by panicking")]

#[path = "common/corpus.rs"]
mod corpus;
#[path = "common/dialects.rs"]
mod dialects;
#[path = "common/dice.rs"]
mod dice;
#[path = "common/pair.rs"]
mod pair;

use breakbulk_proto::{Machine, Message};
use pair::Pair;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [dialect, cap, stage] = args.iter().map(String::as_str).collect::<Vec<_>>()[..] else {
        panic!("run it through `cargo xtask count`");
    };
    let cap = cap.parse().unwrap();
    match dialect {
        "ahp" => run(dialects::ahp(cap), stage),
        "cep22" => run(dialects::cep22(cap), stage),
        "stdio" => run(dialects::stdio(), stage),
        other => panic!("no dialect {other:?}"),
    }
}

fn run<M: Machine>(mut pair: Pair<M>, stage: &str) {
    let message = Message::from(corpus::agent(corpus::LEN));
    println!("{}", message.len());
    if stage == "build" {
        return;
    }
    let len = message.len();
    pair.send(message);
    let mut frames = Vec::new();
    while let Some(frame) = pair.transmit() {
        frames.push(frame);
    }
    if stage == "split" {
        return;
    }
    let arrived = frames.into_iter().fold(None, |arrived, frame| pair.deliver(frame).or(arrived));
    assert_eq!(arrived.map(|message| message.len()), Some(len), "the message arrives");
}
