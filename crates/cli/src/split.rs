//! `breakbulk split`: one message in, frames out.

use std::io::{self, BufRead, Read as _, Write};
use std::time::Instant;

use breakbulk_proto::{Event, Input, Machine, Message, SendError, Ticket, Transmit, Violation};
use bytes::Bytes;

use crate::bar::Bar;
use crate::failure::{Error, Failure};
use crate::join::print_line;
use crate::plan::Plan;
use crate::rpc;

/// Splits the one message of `input`.
pub(crate) fn run(plan: &Plan, input: impl BufRead, mut output: impl Write, bar: &Bar) -> Result<(), Error> {
    let (first, message) = read(plan, input)?;
    if message.is_empty() {
        let text = "standard input is empty: one JSON-RPC message is expected".to_owned();
        return Err(Error::Input(Failure { line: None, text, rule: "message-not-json" }));
    }
    check(plan, first, &message)?;
    bar.expect(message.len() as u64);

    let now = Instant::now();
    let mut machine = plan.machine();
    let message = Message::from(message);
    for input in plan.prelude(&message)? {
        machine.handle(input, now);
    }
    machine.handle(Input::send(Ticket(0), message), now);
    loop {
        // Failures are among the events, so these are read before the frame is printed.
        let transmit = machine.poll_transmit(now);
        pass_events(plan, machine.as_mut(), bar)?;
        let Some(Transmit::Frame { bytes, .. }) = transmit else { break };
        print_line(&mut output, [&bytes.to_bytes()[..]]).map_err(Error::Output)?;
    }
    output.flush().map_err(Error::Output)
}

fn pass_events(plan: &Plan, machine: &mut dyn Machine, bar: &Bar) -> Result<(), Error> {
    while let Some(event) = machine.poll_event() {
        match event {
            Event::Progress(progress) => bar.reach(progress.done),
            Event::SendFailed { error: error @ SendError::TooManySegments(_), .. } if plan.is_cap_small() => {
                return Err(Error::Input(Failure { line: None, text: plan.refused_cap(), rule: error.name() }));
            }
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

/// The message, without the white space around it, unless it is too long; and the line on which it begins.
fn read(plan: &Plan, mut input: impl BufRead) -> Result<(u64, Bytes), Error> {
    let max = plan.max_message_bytes();
    let (_, breaks) = skip_white_space(&mut input).map_err(Error::Reading)?;
    let mut text = Vec::new();
    (&mut input).take(max.saturating_add(READ_ON)).read_to_end(&mut text).map_err(Error::Reading)?;
    let mut size = text.trim_ascii_end().len() as u64;
    if size <= max {
        let (more, _) = skip_white_space(&mut input).map_err(Error::Reading)?;
        if !input.fill_buf().map_err(Error::Reading)?.is_empty() {
            // The white space lay inside.
            size = (text.len() as u64).saturating_add(more).saturating_add(1);
        }
    }
    if size > max {
        let text = format!("message of at least {size} bytes is over the limit of {max}");
        return Err(Error::Input(Failure { line: None, text, rule: "message-too-large" }));
    }
    text.truncate(text.trim_ascii_end().len());
    Ok((breaks.saturating_add(1), Bytes::from(text)))
}

/// How many bytes beyond the limit are read, so that the error can say how long the message is.
const READ_ON: u64 = 4096;

/// Passes over white space: how many bytes, and how many line ends among them.
fn skip_white_space(input: &mut impl BufRead) -> io::Result<(u64, u64)> {
    let (mut bytes, mut breaks) = (0, 0);
    loop {
        let ahead = input.fill_buf()?;
        let white = ahead.len() - ahead.trim_ascii_start().len();
        let is_over = ahead.is_empty() || white < ahead.len();
        bytes += white as u64;
        breaks += line_ends(ahead.iter().take(white));
        input.consume(white);
        if is_over {
            return Ok((bytes, breaks));
        }
    }
}

fn line_ends<'a>(text: impl Iterator<Item = &'a u8>) -> u64 {
    text.filter(|byte| **byte == b'\n').count() as u64
}

/// Whether the message, which begins on line `first`, is exactly one JSON-RPC message.
fn check(plan: &Plan, first: u64, message: &Bytes) -> Result<(), Error> {
    let Some(violation) = rpc::flaw(message, plan.limits()) else { return Ok(()) };
    let size = message.len();
    let (offset, text, rule) = match violation {
        Violation::FrameNotUtf8 => {
            let at = std::str::from_utf8(message).map_or_else(|error| error.valid_up_to(), str::len);
            (at, format!("not UTF-8 at byte {at} of {size}"), "message-not-utf8")
        }
        Violation::FrameNotJson(error) => (
            usize::try_from(error.offset).unwrap_or(size),
            format!("{error}; the message has {size} bytes"),
            "message-not-json",
        ),
        Violation::TooDeep(limit) => (0, format!("nested deeper than {limit} levels, in {size} bytes"), "too-deep"),
        Violation::DuplicateKey(key) => {
            (0, format!("key {key:?} comes twice in a message of {size} bytes"), "duplicate-key")
        }
        _ => (0, format!("{size} bytes of JSON, but not a JSON-RPC message"), "message-not-json-rpc"),
    };
    let line = first.saturating_add(line_ends(message.iter().take(offset)));
    Err(Error::Input(Failure { line: Some((line, None)), text, rule }))
}
