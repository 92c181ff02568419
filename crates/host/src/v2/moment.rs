//! A session and its chats at one moment: states that contain exactly the same entries of the log.

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use ahp_types::state::{ChatState, ResponsePart, SessionState, ToolCallState, ToolResultContent, Turn};
use breakbulk_lifecycle::projection::{Snapshot, worker_chat};
use breakbulk_lifecycle::v2::Config;

use crate::log::{Log, Seq};
use crate::state::{ChatMoment, SnapshotState, State, StateError, session_basics};

/// How often the states are read until they contain the same entries, and how long to wait in between: a second in all.
const ATTEMPTS: u32 = 1_000;
const PAUSE: Duration = Duration::from_millis(1);

/// How many sub-agents may be around another one.
const MAX_DEPTH: u32 = 32;

/// Where the session is that a projection is of.
#[derive(Clone)]
pub(super) struct SessionContext {
    pub(super) log: Arc<dyn Log>,
    pub(super) state: Arc<State>,
    pub(super) config: Config,
}

/// The states at one moment.
pub(super) struct Moment {
    pub(super) session: SessionState,
    /// The main chat without its completed turns, and the chats of the running turn's sub-agents with theirs.
    pub(super) chats: BTreeMap<String, ChatState>,
    /// The last entry of each channel that the states contain.
    pub(super) seqs: BTreeMap<Arc<str>, Seq>,
    /// The rows of the main chat's completed turns.
    pub(super) rows: Range<u64>,
    pub(super) epoch: u64,
}

impl Moment {
    /// Reads the states, again and again until they contain the same entries.
    pub(super) async fn of(context: &SessionContext) -> Result<Self, StateError> {
        for _ in 0..ATTEMPTS {
            let position = context.state.position();
            let moment = Self::read(context).await?;
            if moment.seqs.values().all(|seq| *seq <= position) {
                return Ok(moment);
            }
            tokio::time::sleep(PAUSE).await;
        }
        Err(StateError::Gone)
    }

    async fn read(context: &SessionContext) -> Result<Self, StateError> {
        let SessionContext { state, config, .. } = context;
        let (session, session_seq) = session_state(state, &config.session).await?;
        let ChatMoment { read: chat, seq, rows, epoch } = state.chat_moment(&config.chat, ChatState::clone).await?;
        let mut seqs = BTreeMap::from([(Arc::clone(&config.session), session_seq), (Arc::clone(&config.chat), seq)]);
        let known: HashSet<&str> = session.chats.iter().map(|chat| chat.resource.as_str()).collect();
        let active = chat.active_turn.iter().map(|turn| (turn.id.as_str(), &turn.response_parts));
        let workers = named_workers(&config.chat, active, &known);
        let mut chats = whole_workers(state, workers, &known, &mut seqs).await?;
        chats.insert(config.chat.to_string(), chat);
        Ok(Self { session, chats, seqs, rows, epoch })
    }

    /// The last entry that the states contain.
    pub(super) fn seq(&self) -> Seq {
        self.seqs.values().copied().max().unwrap_or(0)
    }

    /// The same for a projector, as of this entry.
    pub(super) fn snapshot<T>(&self, seq: Seq, at_ms: u64, look: impl FnOnce(&Snapshot<'_>) -> T) -> T {
        let chat = |uri: &str| self.chats.get(uri);
        look(&Snapshot { seq, at_ms, session: &self.session, chat: &chat, asked_at: &|_| None })
    }
}

/// A session's state without what v2 does not show, and its last entry.
pub(super) async fn session_state(state: &State, session: &str) -> Result<(SessionState, Seq), StateError> {
    let read = |state: &SnapshotState, seq| match state {
        SnapshotState::Session(session) => Some((shown_parts(session), seq)),
        _ => None,
    };
    state.read(session, read).await?.ok_or(StateError::NotFound)
}

/// The parts of a session that v2 shows.
fn shown_parts(session: &SessionState) -> SessionState {
    SessionState {
        title: session.title.clone(),
        chats: session.chats.clone(),
        default_chat: session.default_chat.clone(),
        config: session.config.clone(),
        input_needed: session.input_needed.clone(),
        meta: session.meta.clone(),
        ..session_basics(session)
    }
}

/// The chats of all sub-agents of completed turns of the main chat, with their turns.
pub(super) async fn workers_of(
    context: &SessionContext,
    session: &SessionState,
    turns: &[Turn],
) -> Result<BTreeMap<String, ChatState>, StateError> {
    let known: HashSet<&str> = session.chats.iter().map(|chat| chat.resource.as_str()).collect();
    let turns = turns.iter().map(|turn| (turn.id.as_str(), &turn.response_parts));
    let workers = named_workers(&context.config.chat, turns, &known);
    whole_workers(&context.state, workers, &known, &mut BTreeMap::new()).await
}

/// These chats and those of their own sub-agents.
async fn whole_workers(
    state: &State,
    mut next: Vec<String>,
    known: &HashSet<&str>,
    seqs: &mut BTreeMap<Arc<str>, Seq>,
) -> Result<BTreeMap<String, ChatState>, StateError> {
    let mut found = BTreeMap::new();
    for _ in 0..MAX_DEPTH {
        for uri in std::mem::take(&mut next) {
            if found.contains_key(&uri) {
                continue;
            }
            let worker = match state.whole_chat(&uri).await {
                // It was closed or lost: what it said is not shown.
                Err(StateError::NotFound | StateError::NotAChat | StateError::Damaged(_)) => continue,
                worker => worker?,
            };
            let over = worker.read.turns.iter().map(|turn| (turn.id.as_str(), &turn.response_parts));
            let active = worker.read.active_turn.iter().map(|turn| (turn.id.as_str(), &turn.response_parts));
            next.extend(named_workers(&uri, over.chain(active), known));
            seqs.insert(Arc::from(uri.as_str()), worker.seq);
            found.insert(uri, worker.read);
        }
        if next.is_empty() {
            break;
        }
    }
    Ok(found)
}

/// The chats of sub-agents that calls in these turns of a chat name, or that are named after the calls.
fn named_workers<'a>(
    chat: &str,
    turns: impl Iterator<Item = (&'a str, &'a Vec<ResponsePart>)>,
    known: &HashSet<&str>,
) -> Vec<String> {
    let mut found = Vec::new();
    for (turn, parts) in turns {
        for part in parts {
            let ResponsePart::ToolCall(part) = part else { continue };
            let (tool, content) = match &part.tool_call {
                ToolCallState::Running(call) => (&call.tool_call_id, call.content.as_ref()),
                ToolCallState::AuthRequired(call) => (&call.tool_call_id, call.content.as_ref()),
                ToolCallState::PendingResultConfirmation(call) => (&call.tool_call_id, call.content.as_ref()),
                ToolCallState::Completed(call) => (&call.tool_call_id, call.content.as_ref()),
                ToolCallState::Cancelled(call) => (&call.tool_call_id, None),
                _ => continue,
            };
            let named = content.into_iter().flatten().find_map(|content| match content {
                ToolResultContent::Subagent(content) => Some(content.resource.clone()),
                _ => None,
            });
            let derived = || Some(worker_chat(chat, turn, tool)).filter(|uri| known.contains(uri.as_str()));
            found.extend(named.or_else(derived));
        }
    }
    found
}
