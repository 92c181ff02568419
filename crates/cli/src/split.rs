//! `breakbulk split`: one message in, frames out.

use std::io::{BufRead, Read as _, Write};
use std::time::Instant;

use breakbulk_proto::{CloseReason, Event, Input, Machine, Message, Transmit, Violation, plain};
use bytes::Bytes;

use crate::bar::Bar;
use crate::failure::{Error, Failure};
use crate::join::print_line;
use crate::plan::Plan;

/// Splits the one message of `input`.
pub(crate) fn run(plan: &Plan, input: impl BufRead, mut output: impl Write, bar: &Bar) -> Result<(), Error> {
    let text = read(plan, input)?;
    let body = Bytes::from_owner(text);
    let message = body.slice_ref(body.trim_ascii());
    check(plan, &body, &message)?;
    bar.expect(message.len() as u64);

    let now = Instant::now();
    let mut machine = plan.machine();
    let message = Message::from(message);
    for input in plan.prelude(&message)? {
        machine.handle(input, now);
    }
    machine.handle(Input::send(0, message), now);
    loop {
        // What failed is in the events before a frame: an answer to the peer is no part of the message.
        let transmit = machine.poll_transmit(now);
        pass_events(machine.as_mut(), bar)?;
        let Some(Transmit::Frame { bytes, .. }) = transmit else { break };
        print_line(&mut output, [&bytes.to_bytes()[..]]).map_err(Error::Output)?;
    }
    output.flush().map_err(Error::Output)
}

fn pass_events(machine: &mut dyn Machine, bar: &Bar) -> Result<(), Error> {
    while let Some(event) = machine.poll_event() {
        match event {
            Event::Progress(progress) => bar.reach(progress.done),
            Event::SendFailed { error, .. } => {
                return Err(Error::Input(Failure { line: None, text: error.to_string(), rule: error.name() }));
            }
            Event::Closed(reason) => {
                return Err(Error::Input(Failure { line: None, text: reason.to_string(), rule: reason.name() }));
            }
            _ => {}
        }
    }
    Ok(())
}

/// All of the input, unless it is more than one message may be.
fn read(plan: &Plan, input: impl BufRead) -> Result<Vec<u8>, Error> {
    let max = plan.max_message_bytes();
    let most = max.saturating_add(SURROUNDING);
    let mut text = Vec::new();
    input.take(most).read_to_end(&mut text).map_err(Error::Reading)?;
    let (size, all) = (text.trim_ascii().len() as u64, text.len() as u64);
    if size > max || all >= most {
        let text = format!("message of at least {size} bytes is over the limit of {max}");
        return Err(Error::Input(Failure { line: None, text, rule: "message-too-large" }));
    }
    Ok(text)
}

/// White space around a message for which there is room beyond its own limit.
const SURROUNDING: u64 = 4096;

/// Whether the message is exactly one JSON-RPC message. A connection without segments checks the same of a frame.
fn check(plan: &Plan, body: &[u8], message: &Bytes) -> Result<(), Error> {
    let mut plain = plain::Connection::new(plain::Config { limits: plan.limits(), one_line: false, front_only: false });
    plain.handle(Input::frame(message.clone()), Instant::now());
    let Some(Event::Closed(reason)) = plain.poll_event() else { return Ok(()) };
    let size = message.len();
    let (offset, text, rule) = match reason {
        CloseReason::Violation(Violation::FrameNotUtf8) => {
            let at = std::str::from_utf8(message).map_or_else(|error| error.valid_up_to(), str::len);
            (at, format!("not UTF-8 at byte {at} of {size}"), "message-not-utf8")
        }
        CloseReason::Violation(Violation::FrameNotJson(error)) => (
            usize::try_from(error.offset).unwrap_or(size),
            format!("{error}; the message has {size} bytes"),
            "message-not-json",
        ),
        CloseReason::Violation(Violation::DuplicateKey(key)) => {
            (0, format!("key {key:?} comes twice in a message of {size} bytes"), "duplicate-key")
        }
        _ => (0, format!("{size} bytes of JSON that are no JSON-RPC message"), "message-not-json-rpc"),
    };
    let before = body.len() - body.trim_ascii_start().len() + offset;
    let breaks = body.iter().take(before).filter(|byte| **byte == b'\n').count() as u64;
    Err(Error::Input(Failure { line: Some((breaks + 1, None)), text, rule }))
}
