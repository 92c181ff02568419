//! How long a small message takes while a large one moves.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use breakbulk::Dialect;
use breakbulk_proto::ahp::Role;
use breakbulk_proto::{Lane, Message};
use tokio::time::{MissedTickBehavior, interval};

use crate::corpus;
use crate::race::percentile;
use crate::throttle::throttle;
use crate::wire::Wire;

/// What is moved while small messages pass it.
pub(crate) const BULK: usize = 32_000_000;
/// How long small messages go back and forth before the large one comes: nobody's traffic begins with it.
const BEFORE: Duration = Duration::from_millis(100);

/// How a small message relates to the large one.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Relation {
    /// It must arrive after it, as if that were one contiguous group.
    Behind,
    /// It may pass, since the sender says so.
    Free,
    /// It cancels something, while a file is uploaded.
    Cancel,
    /// It is an action on another channel, to a peer with a settled cursor.
    OtherChannel,
}

/// What was seen, in seconds.
pub(crate) struct Passing {
    /// How long a small message took that was sent while the large one moved, at the 95th percentile.
    pub(crate) wait: f64,
    /// How long the large one took.
    pub(crate) bulk: f64,
}

/// Sends a small message every few milliseconds, and after a while a large one. `rate` is what the way takes a second.
pub(crate) async fn passing(relation: Relation, rate: Option<f64>) -> Passing {
    let mut wire = wire(relation, rate).await;
    let (bulk_message, small_message) = messages(relation);
    let lane = if relation == Relation::Free { Lane::Free } else { Lane::Auto };
    let mut ticks = interval(Duration::from_millis(if rate.is_some() { 20 } else { 1 }));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (start, mut begun) = (Instant::now(), None);
    let (mut sent, mut waits, mut arrived, mut bulk) = (Vec::new(), Vec::new(), 0, None);
    while bulk.is_none() || arrived < sent.len() {
        tokio::select! {
            _ = ticks.tick(), if bulk.is_none() => {
                if begun.is_none() && start.elapsed() >= BEFORE {
                    begun = Some(Instant::now());
                    wire.from.send(bulk_message.clone(), Lane::Auto);
                }
                sent.push(Instant::now());
                wire.from.send(small_message(sent.len()), lane);
            }
            message = wire.to.next() => match message.len() {
                0..1_000 => {
                    let at: Instant = sent[arrived];
                    arrived += 1;
                    if begun.is_some_and(|begun| at >= begun) {
                        waits.push(at.elapsed().as_secs_f64());
                    }
                }
                _ => bulk = begun.map(|begun| begun.elapsed().as_secs_f64()),
            },
        }
    }
    Passing { wait: percentile(waits, 0.95), bulk: bulk.unwrap_or_default() }
}

/// A wire on which something has passed already, so that its pace is known.
async fn wire(relation: Relation, rate: Option<f64>) -> Wire {
    let role = if relation == Relation::OtherChannel { Role::Server } else { Role::Client };
    let by = async |address: SocketAddr| match rate {
        Some(rate) => throttle(address, rate).await,
        None => address,
    };
    let mut wire = Wire::new(Dialect::Ahp, role, 900_000, by).await;
    wire.carry(Message::from(corpus::agent(1 << 20))).await;
    wire
}

/// The large message, and the small ones by number.
fn messages(relation: Relation) -> (Message, fn(usize) -> Message) {
    if relation == Relation::Cancel {
        (upload(), cancel)
    } else {
        (action("bulk", 0, BULK), |n| action("small", n, 100))
    }
}

fn upload() -> Message {
    let text = "pack ".repeat(BULK / 5);
    format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"resourceWrite","params":{{"channel":"ahp-root://","data":"{text}"}}}}"#
    )
    .into()
}

fn cancel(n: usize) -> Message {
    let action = format!(r#"{{"type":"chat/turnCancelled","turnId":"turn {n}"}}"#);
    let params = format!(r#"{{"channel":"ahp-chat:/1","clientSeq":{n},"action":{action}}}"#);
    format!(r#"{{"jsonrpc":"2.0","method":"dispatchAction","params":{params}}}"#).into()
}

fn action(channel: &str, seq: usize, len: usize) -> Message {
    let text = "pack ".repeat(len / 5);
    format!(
        r#"{{"jsonrpc":"2.0","method":"action","params":{{"channel":"{channel}","serverSeq":{seq},"text":"{text}"}}}}"#
    )
    .into()
}
