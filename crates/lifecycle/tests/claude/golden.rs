//! Each recording gives the transcript that is kept beside it. `RENEW_TRANSCRIPTS=1` writes them anew.

use breakbulk_lifecycle::claude::Signal;
use breakbulk_lifecycle::{Answer, BlockKind, Content, Ending, Event, Outcome};

use crate::replay::{Player, recordings};

#[test]
fn each_recording_gives_the_transcript_beside_it() {
    for recording in recordings() {
        let player = Player::play(&recording.steps);
        assert_eq!(player.host.strays(), 0, "{}: the writer had to drop something", recording.name);
        let host = player.host.finish();
        let shown = format!("{}\n", host.transcript.join("\n"));
        if std::env::var_os("RENEW_TRANSCRIPTS").is_some() {
            let path = format!("{}/fixtures/{}.events.txt", env!("CARGO_MANIFEST_DIR"), recording.name);
            std::fs::write(path, &shown).expect("the transcript can be written");
        } else {
            assert_eq!(shown, recording.golden, "{}", recording.name);
        }
    }
}

#[test]
fn every_prefix_of_a_recording_that_an_exit_cuts_is_well_formed_and_ends_each_prompt_once() {
    for recording in recordings() {
        for cut in 0..=recording.steps.len() {
            let (played, rest) = recording.steps.split_at(cut);
            let mut player = Player::play(played);
            // The exit may also cut a line.
            if let Some(crate::replay::Step::Said(line)) = rest.first() {
                player.host.hear_text(&line[..line.len() / 2]);
            }
            let turns: Vec<String> = player.turns().collect();
            let host = player.host.finish();
            for turn in turns {
                assert_eq!(host.times(&turn.as_str().into()), (1, 1), "{turn} of {} cut at {cut}", recording.name);
            }
        }
    }
}

/// One line for an event.
pub(crate) fn shown(event: &Event) -> String {
    match event {
        Event::TurnStarted { turn } => format!("turn {turn} starts"),
        Event::TurnEnded { turn, outcome } => format!("turn {turn} ends: {}", ended(outcome)),
        Event::MessageStarted { message, agent: None } => format!("message {message} starts"),
        Event::MessageStarted { message, agent: Some(agent) } => format!("message {message} of {agent} starts"),
        Event::MessageEnded { message } => format!("message {message} ends"),
        Event::BlockStarted { message, block, kind } => match kind {
            BlockKind::ToolInput(call) => {
                format!("block {message}/{block} starts: call {} of {}", call.tool, call.name)
            }
            kind => format!("block {message}/{block} starts: {:?}", kind.kind()),
        },
        Event::BlockDelta { message, block, kind, text } => format!("block {message}/{block} + {kind:?} {text:?}"),
        Event::BlockEnded { message, block, input: None } => format!("block {message}/{block} ends"),
        Event::BlockEnded { message, block, input: Some(input) } => {
            format!("block {message}/{block} ends: input {input}")
        }
        Event::ToolAsked { tool, ask } => {
            let choices: Vec<&str> = ask.choices.iter().map(|choice| choice.id.as_str()).collect();
            format!("call {tool} asks {:?}: {:?} ({})", ask.title, ask.message, choices.join(", "))
        }
        Event::ToolAnswered { tool, answer } => match answer {
            Answer::Allowed { input, choice } => format!("call {tool} is allowed, input {input:?}, choice {choice:?}"),
            Answer::Denied { reason, choice } => format!("call {tool} is denied, reason {reason:?}, choice {choice:?}"),
            Answer::Withdrawn => format!("call {tool} is asked about no more"),
        },
        Event::ToolStarted { tool } => format!("call {tool} runs"),
        Event::ToolOutput { tool, content } => format!("call {tool} shows {}", pieces(content)),
        Event::ToolEnded { tool, ending: Ending::Cancelled { reason } } => {
            format!("call {tool} is cancelled: {reason:?}")
        }
        Event::ToolEnded { tool, ending: Ending::Done(result) } => match &result.error {
            None => format!("call {tool} ends: {:?}, {}", result.summary, pieces(&result.content)),
            Some(error) => format!("call {tool} fails: {:?}, {error:?}, {}", result.summary, pieces(&result.content)),
        },
        Event::AgentStarted { tool, name, task } => format!("agent {tool} starts: {name:?}, {task:?}"),
        Event::AgentEnded { tool, outcome } => format!("agent {tool} ends: {}", ended(outcome)),
        Event::Usage(usage) => format!(
            "usage: {} in, {} out, {} from cache, {} micro-dollars, {}",
            number(usage.input_tokens),
            number(usage.output_tokens),
            number(usage.cache_read_tokens),
            number(usage.cost_micros),
            usage.model.as_deref().unwrap_or("no model"),
        ),
        Event::Notice { text } => format!("notice {text:?}"),
        Event::Resumable { token } => format!("resumable with {token}"),
        Event::ModeChanged { mode } => format!("mode changed to {mode}"),
    }
}

/// One line for a signal, marked as one.
pub(crate) fn shown_signal(signal: &Signal) -> String {
    let shown = match signal {
        Signal::Permission(permission) => {
            format!(
                "permission {} wanted for {}: {} {}",
                permission.request, permission.tool, permission.name, permission.input
            )
        }
        Signal::Withdrawn { tool, request } => format!("permission {request} for {tool} not wanted any more"),
        Signal::Refused { subtype } => format!("refused {subtype:?}"),
        Signal::Replied { request, control, reply } => format!("{request} {control:?}: {reply:?}"),
        Signal::ModeChanged { mode } => format!("mode {mode}"),
        Signal::Reported(report) => {
            let denied: Vec<&str> = report.denials.iter().map(|denial| denial.tool.as_str()).collect();
            format!("report on {}: {}, error {}, denied {denied:?}", report.turn, report.subtype, report.is_error)
        }
    };
    format!("  ! {shown}")
}

fn ended(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Complete => "complete".to_owned(),
        Outcome::Cancelled => "cancelled".to_owned(),
        Outcome::Failed(failure) => format!("failed, {}: {:?}", failure.kind, failure.message),
    }
}

fn pieces(content: &[Content]) -> String {
    let pieces = content.iter().map(|piece| match piece {
        Content::Text(text) => format!("{text:?}"),
        Content::Data { base64, mime } => format!("{} bytes of base64 ({mime})", base64.len()),
        Content::Link { uri, mime } => format!("{uri} ({mime:?})"),
        Content::Edit { uri, added, removed } => format!("{uri} +{added} -{removed}"),
    });
    format!("[{}]", pieces.collect::<Vec<_>>().join(", "))
}

fn number(number: Option<u64>) -> String {
    number.map_or_else(|| "?".to_owned(), |number| number.to_string())
}
