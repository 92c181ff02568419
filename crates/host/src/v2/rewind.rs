//! A projector as it was at the last boundary before some entry, and a reader that goes on from there.
//!
//! A boundary is an entry at which a turn of the main chat begins or ends: nothing of a turn is open there, so a projector
//! needs no history. The log is read back only to the boundary, page by page.

use std::ops::Range;
use std::sync::Arc;

use ahp_types::state::{ChatState, SessionState};
use breakbulk_lifecycle::projection::{Entry, Projection, Snapshot};
use breakbulk_lifecycle::v2::Projector;

use super::moment::{Moment, SessionContext, session_state};
use super::reader::{SessionChannels, SessionReader};
use crate::log::{ReadError, Seq};
use crate::state::StateError;
use crate::state::entry::projected;

/// How many seqs are searched for a boundary in the first step. Each further step takes four times as many.
const FIRST_STEP: Seq = 64;
const STEP_FACTOR: Seq = 4;

/// How many bytes are read from the log at once.
const PAGE_BYTES: usize = 256 << 10;

/// The actions that change the queue, the mode, or the list of turns.
const NEEDED: [&str; 6] = [
    "chat/turnStarted",
    "chat/pendingMessageSet",
    "chat/pendingMessageRemoved",
    "chat/queuedMessagesReordered",
    "chat/truncated",
    "session/configChanged",
];

/// A projector and the reader of the entries that it takes next.
pub(super) struct Rewound {
    pub(super) projector: Projector,
    pub(super) reader: SessionReader,
    /// Events of entries after this one are complete. Those of a boundary itself may not be: where it ends a turn, the projector
    /// has not seen that turn.
    pub(super) complete_after: Seq,
}

/// Whether a projector could be rewound.
pub(super) enum Rewind {
    /// It was.
    Done(Box<Rewound>),
    /// The log does not reach back to a boundary.
    Trimmed,
    /// It would not know the queue or the mode: they were changed in ways that cannot be taken back.
    Uncertain,
}

/// Rewinds to the last boundary at or before this entry.
pub(super) async fn rewind(context: &SessionContext, upto: Seq) -> Result<Rewind, StateError> {
    let SessionContext { log, config, .. } = context;
    let (session, chat) = (Arc::clone(&config.session), Arc::clone(&config.chat));
    let channels = SessionChannels::find(&**log, session, chat).await?;
    let boundary = match last_boundary(context, upto).await? {
        Boundary::At(seq) => seq,
        Boundary::Beginning => {
            let (projector, reader) = (Projector::new(config.clone()), SessionReader::new(log, channels, 0));
            return Ok(Rewind::Done(Box::new(Rewound { projector, reader, complete_after: 0 })));
        }
        Boundary::Trimmed => return Ok(Rewind::Trimmed),
    };
    let (session, session_seq) = session_state(&context.state, &config.session).await?;
    let chat = context.state.chat_moment(&config.chat, without_turns).await?;
    let mut light = chat.read;
    // The projector must know that there are turns which it does not know.
    light.turns_next_cursor = (!chat.rows.is_empty()).then(String::new).or(light.turns_next_cursor);
    let mut needed = needed(context, &config.session, boundary..session_seq.saturating_add(1)).await?;
    needed.extend(self::needed(context, &config.chat, boundary..chat.seq.saturating_add(1)).await?);
    needed.sort_by_key(|entry| entry.seq);
    let with = |look: &dyn Fn(&Snapshot<'_>) -> Projector| look_at(&session, &light, context, look);
    let rewound = with(&|now| Projector::rewind(config.clone(), now, &needed));
    let mut trial = with(&|now| Projector::rewind(config.clone(), now, &needed));
    for entry in &needed {
        trial.apply(entry.clone(), &mut Vec::new());
    }
    if !agrees(&trial, &session, &light, context) {
        return Ok(Rewind::Uncertain);
    }
    let reader = SessionReader::new(log, channels, boundary.saturating_sub(1));
    Ok(Rewind::Done(Box::new(Rewound { projector: rewound, reader, complete_after: boundary })))
}

/// A projector that knows only the present state: it takes the blocks of the running turn for open.
pub(super) async fn resume(context: &SessionContext) -> Result<(Rewound, Moment), StateError> {
    let SessionContext { log, config, .. } = context;
    let moment = Moment::of(context).await?;
    let seq = moment.seq();
    let (session, chat) = (Arc::clone(&config.session), Arc::clone(&config.chat));
    let channels = SessionChannels::find(&**log, session, chat).await?;
    let mut at_ms = 0;
    for (channel, seq) in &moment.seqs {
        let last = log.read(channel, *seq..seq.saturating_add(1), 0).await.unwrap_or_default();
        at_ms = last.first().map_or(at_ms, |entry| at_ms.max(entry.at_ms));
    }
    let projector = moment.snapshot(seq, at_ms, |snapshot| Projector::resume(config.clone(), snapshot));
    let reader = SessionReader::new(log, channels, seq);
    Ok((Rewound { projector, reader, complete_after: seq }, moment))
}

/// Where a turn of the main chat begins or ends.
enum Boundary {
    At(Seq),
    /// There is none, and the log has the session from its beginning.
    Beginning,
    Trimmed,
}

async fn last_boundary(context: &SessionContext, upto: Seq) -> Result<Boundary, StateError> {
    let SessionContext { log, config, .. } = context;
    let all = log.channels(Some(&config.session)).await?;
    let find = |uri: &str| all.iter().find(|info| *info.channel == *uri);
    let (Some(chat), Some(session)) = (find(&config.chat), find(&config.session)) else {
        return Err(StateError::NotFound);
    };
    let (first, session_first) = (chat.first, session.first);
    // From the chat's own last entry: after it there may be a million of others, and a step that passes them would also pass
    // all of the chat's history.
    let (mut end, mut step) = (upto.min(chat.last).saturating_add(1), FIRST_STEP);
    while end > first {
        let begin = end.saturating_sub(step).max(first);
        if let Some(seq) = boundary_in(context, begin..end).await? {
            // What the session did since is needed too.
            return Ok(if seq >= session_first { Boundary::At(seq) } else { Boundary::Trimmed });
        }
        (end, step) = (begin, step.saturating_mul(STEP_FACTOR));
    }
    // Nothing was trimmed if the first entry of each is there.
    for uri in [&config.session, &config.chat] {
        match log.read(uri, 1..upto.saturating_add(1).max(2), 0).await {
            Err(ReadError::Trimmed { .. }) => return Ok(Boundary::Trimmed),
            read => read.map(drop)?,
        }
    }
    Ok(Boundary::Beginning)
}

/// The last boundary in this range.
async fn boundary_in(context: &SessionContext, range: Range<Seq>) -> Result<Option<Seq>, StateError> {
    let (mut found, mut at) = (None, range.start);
    loop {
        let page = context.log.read(&context.config.chat, at..range.end, PAGE_BYTES).await?;
        let Some(last) = page.last() else { return Ok(found) };
        at = last.seq.saturating_add(1);
        let is_boundary = |name: &str| {
            matches!(
                name,
                "chat/turnStarted" | "chat/turnComplete" | "chat/turnCancelled" | "chat/error" | "chat/truncated"
            )
        };
        let last = page.iter().rev().find(|entry| entry.action_type().is_some_and(|name| is_boundary(&name)));
        found = last.map(|entry| entry.seq).or(found);
    }
}

/// The entries of a channel that change what a projector has to take back.
async fn needed(context: &SessionContext, channel: &str, range: Range<Seq>) -> Result<Vec<Entry>, StateError> {
    let (mut found, mut at) = (Vec::new(), range.start);
    while at < range.end {
        let page = context.log.read(channel, at..range.end, PAGE_BYTES).await?;
        let Some(last) = page.last() else { break };
        at = last.seq.saturating_add(1);
        let is_needed = |entry: &&crate::log::Entry| entry.action_type().is_some_and(|name| NEEDED.contains(&&*name));
        found.extend(page.iter().filter(is_needed).filter_map(projected));
    }
    Ok(found)
}

fn look_at<T>(
    session: &SessionState,
    light: &ChatState,
    context: &SessionContext,
    look: &dyn Fn(&Snapshot<'_>) -> T,
) -> T {
    let chat = |uri: &str| (*uri == *context.config.chat).then_some(light);
    look(&Snapshot { seq: 0, at_ms: 0, session, chat: &chat, asked_at: &|_| None })
}

fn agrees(trial: &Projector, session: &SessionState, light: &ChatState, context: &SessionContext) -> bool {
    look_at(session, light, context, &|now| trial.agrees(now))
}

/// A chat without what was said in it.
pub(super) fn without_turns(chat: &ChatState) -> ChatState {
    ChatState {
        resource: chat.resource.clone(),
        title: String::new(),
        status: chat.status,
        activity: None,
        modified_at: chat.modified_at.clone(),
        changes: None,
        origin: chat.origin.clone(),
        movable: None,
        interactivity: chat.interactivity,
        working_directories: None,
        changesets: None,
        background_work: None,
        canvases: None,
        turns: Vec::new(),
        turns_next_cursor: chat.turns_next_cursor.clone(),
        active_turn: None,
        steering_message: chat.steering_message.clone(),
        queued_messages: chat.queued_messages.clone(),
        draft: None,
        meta: None,
    }
}
