//! Two machines, a link between them, and a list of things that happen.

use std::collections::VecDeque;
use std::time::Duration;

use arbitrary::Arbitrary;
use breakbulk_proto::{
    Capacity, CloseReason, Event, Input, Lane, Machine, Message, Meta, Receipt, Refusal, Tag, Ticket,
};
use bytes::{Bytes, BytesMut};

use crate::watch::{Watch, bounded};

/// Something that happens to one of the two.
#[derive(Arbitrary, Debug)]
pub struct Op {
    /// To the second one.
    second: bool,
    act: Act,
}

/// What happens.
#[derive(Arbitrary, Debug)]
pub enum Act {
    /// A frame that nobody sent.
    Forge(Vec<u8>),
    /// The application sends.
    Send {
        shape: Shape,
        id: u8,
        len: u16,
        free: bool,
    },
    /// So many frames are made and put on the link.
    Transmit(u8),
    /// So many frames arrive from the link.
    Receive(u8),
    /// A byte of the next frame on the link changes.
    Mangle {
        at: u16,
        to: u8,
    },
    /// The link says what became of a frame.
    Ack {
        back: u8,
        result: u8,
    },
    /// So many events are taken.
    Events(u8),
    /// Everything goes back and forth until nothing moves.
    Settle,
    /// Time passes.
    Wait {
        ms: u16,
    },
    /// A timeout that is not due.
    Timeout,
    Pause(bool),
    Cap {
        bytes: u16,
        overhead: u8,
    },
    Close,
}

/// What kind of message is sent.
#[derive(Arbitrary, Debug)]
pub enum Shape {
    Request,
    RequestWithToken,
    Response,
    Notification,
    Action,
    Initialize,
    Initialized,
    Broken,
}

/// Plays the list; checks each machine's promises, and that what arrives was sent unless the link was tampered with.
pub fn play<M: Machine>(first: M, second: M, meta: Meta, ops: Vec<Op>) {
    let mut sides = [Side::new(first, meta.clone()), Side::new(second, meta)];
    let mut tampered = false;
    for Op { second, act } in ops {
        tampered |= matches!(act, Act::Forge(_) | Act::Mangle { .. });
        let [here, there] = &mut sides;
        let (here, there) = if second { (there, here) } else { (here, there) };
        happen(here, there, act, tampered);
    }
    let [first, second] = sides;
    first.watch.finish();
    second.watch.finish();
}

struct Side<M> {
    watch: Watch<M>,
    meta: Meta,
    /// On their way from here to the other side.
    link: VecDeque<(Bytes, Meta)>,
    tags: Vec<Tag>,
    sent: Vec<Message>,
}

impl<M: Machine> Side<M> {
    fn new(machine: M, meta: Meta) -> Self {
        Self { watch: Watch::new(machine), meta, link: VecDeque::new(), tags: Vec::new(), sent: Vec::new() }
    }
}

fn happen<M: Machine>(here: &mut Side<M>, there: &mut Side<M>, act: Act, tampered: bool) {
    match act {
        Act::Forge(bytes) => here.watch.handle(Input::Frame { bytes: bytes.into(), meta: here.meta.clone() }),
        Act::Send { shape, id, len, free } => send(here, &shape, id, len, free),
        Act::Transmit(count) => transmit(here, count.into()),
        Act::Receive(count) => receive(here, there, count.into()),
        Act::Mangle { at, to } => mangle(here, at.into(), to),
        Act::Ack { back, result } => ack(here, back.into(), result),
        Act::Events(count) => events(here, there, count.into(), tampered),
        Act::Settle => settle(here, there, tampered),
        Act::Wait { ms } => here.watch.wait(Duration::from_millis(ms.into())),
        Act::Timeout => here.watch.handle(Input::Timeout),
        Act::Pause(paused) => here.watch.handle(Input::Paused(paused)),
        Act::Cap { bytes, overhead } => {
            let overhead = breakbulk_proto::Overhead::new(move |_| overhead.into());
            here.watch.handle(Input::Capacity(Capacity { cap: bytes.into(), overhead }));
        }
        Act::Close => here.watch.handle(Input::Close(CloseReason::Normal)),
    }
}

fn send<M: Machine>(side: &mut Side<M>, shape: &Shape, id: u8, len: u16, free: bool) {
    let fill = "x\\n".repeat(usize::from(len) / 3);
    let text = match shape {
        Shape::Request => format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"m","params":{{"t":"{fill}"}}}}"#),
        Shape::RequestWithToken => format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"m","params":{{"_meta":{{"progressToken":"{id}"}},"t":"{fill}"}}}}"#
        ),
        Shape::Response => format!(r#"{{"jsonrpc":"2.0","id":{id},"result":"{fill}"}}"#),
        Shape::Notification => format!(r#"{{"jsonrpc":"2.0","method":"n","params":{{"t":"{fill}"}}}}"#),
        Shape::Action => {
            format!(
                r#"{{"jsonrpc":"2.0","method":"action","params":{{"channel":"c{id}","serverSeq":1,"t":"{fill}"}}}}"#
            )
        }
        Shape::Initialize => INITIALIZE.replace("LEN", &len.to_string()),
        Shape::Initialized => INITIALIZED.replace("LEN", &len.to_string()),
        Shape::Broken => format!(r#"{{"jsonrpc":"2.0","id":{id},"#),
    };
    let message = Message::from(text);
    side.sent.push(message.clone());
    let lane = if free { Lane::Free } else { Lane::Auto };
    side.watch.handle(Input::Send { ticket: Ticket(side.sent.len() as u64), message, lane, meta: side.meta.clone() });
}

const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersions":["1.0.0"],"capabilities":{"chunking":{"maxIncomingFrameBytes":LEN,"maxIncomingMessageBytes":60000}}}}"#;
const INITIALIZED: &str = r#"{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"1.0.0","serverSeq":0,"capabilities":{"chunking":{"maxIncomingFrameBytes":LEN,"maxIncomingMessageBytes":60000}}}}"#;

fn transmit<M: Machine>(side: &mut Side<M>, count: usize) {
    for _ in 0..count {
        let Some((tag, bytes, meta)) = side.watch.transmit() else { return };
        side.tags.push(tag);
        side.link.push_back((bytes, meta));
    }
}

fn receive<M: Machine>(here: &mut Side<M>, there: &mut Side<M>, count: usize) {
    for _ in 0..count {
        if !here.watch.wants_frames() {
            return;
        }
        let Some((bytes, meta)) = there.link.pop_front() else { return };
        let meta = Meta { supports_parts: here.meta.supports_parts, peer: here.meta.peer.clone(), ..meta };
        here.watch.handle(Input::Frame { bytes, meta });
    }
}

fn mangle<M: Machine>(side: &mut Side<M>, at: usize, to: u8) {
    let Some((bytes, _)) = side.link.front_mut() else { return };
    let mut changed = BytesMut::from(&bytes[..]);
    let len = changed.len().max(1);
    if let Some(byte) = changed.get_mut(at % len) {
        *byte = to;
    }
    *bytes = changed.freeze();
}

fn ack<M: Machine>(side: &mut Side<M>, back: usize, result: u8) {
    let Some(tag) = side.tags.iter().rev().nth(back).copied() else { return };
    let result = match result % 4 {
        0 => Err(Refusal::TooLarge),
        1 => Err(Refusal::TooFast),
        2 => Err(Refusal::Other),
        _ => Ok(Receipt { id: Some("receipt".into()) }),
    };
    side.watch.handle(Input::Acked { tag, result });
}

fn settle<M: Machine>(here: &mut Side<M>, there: &mut Side<M>, tampered: bool) {
    bounded(|| {
        transmit(here, usize::MAX);
        transmit(there, usize::MAX);
        let moves = here.link.len() + there.link.len();
        receive(here, there, usize::MAX);
        receive(there, here, usize::MAX);
        events(here, there, usize::MAX, tampered);
        events(there, here, usize::MAX, tampered);
        here.link.len() + there.link.len() < moves
    });
}

fn events<M: Machine>(here: &mut Side<M>, there: &Side<M>, count: usize, tampered: bool) {
    let mut left = count;
    bounded(|| {
        let Some(event) = (left > 0).then(|| here.watch.event()).flatten() else { return false };
        left -= 1;
        if let Event::Message { message, .. } = event
            && !tampered
        {
            // A handshake goes through changed: each side adds what it can take, and removes what was added. And a
            // response that cannot be sent is answered with an error; nobody here sends one.
            let text = message.to_bytes();
            let has = |word: &[u8]| text.windows(word.len()).any(|found| found == word);
            let made = has(b"protocolV") || has(br#""error":{"code":-32"#);
            assert!(made || there.sent.contains(&message), "what arrived was not sent: {message:?}");
        }
        true
    });
}
