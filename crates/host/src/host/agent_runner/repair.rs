//! Repairs chats: ends turns that nobody works on any more, with an error that says why.

use std::collections::BTreeSet;
use std::sync::Arc;

use ahp_types::actions::{ChatErrorAction, SessionInputNeededRemovedAction, StateAction};
use ahp_types::state::{
    ChatState, ErrorInfo, ErrorResponsePart, SessionInputRequest, SessionState, SessionStatus, SessionSummary,
};
use breakbulk_lifecycle::Failure;
use serde_json::Value;
use tracing::warn;

use super::super::StartError;
use super::super::log_writer::{LogWriter, Transaction, append_error};
use super::entry_class::{EntryClass, classify};
use super::task_writer::{TaskStopped, TaskWriter, if_readable};
use super::{RunnerContext, summaries};
use crate::host::workspace::TEMPORARY_CHANNELS;
use crate::log::{AppendError, Channels, Log, ReadError, Seq};
use crate::state::StateError;

/// How many of the last entries are searched for turns that started just before a crash: far more than are logged between
/// the start of a turn and the catalogue's update.
const RECENT_ENTRIES: u64 = 10_000;

/// How many bytes are read from the log at once.
const PAGE_BYTES: usize = 1 << 20;

/// The host was restarted in the middle of a turn.
pub(super) fn host_restarted() -> Failure {
    Failure::new("hostRestarted", "The host was restarted while the agent worked on this. Send the message again.")
}

/// The host stops in the middle of a turn.
pub(super) fn host_stopped() -> Failure {
    Failure::new("hostStopped", "The host was stopped while the agent worked on this.")
}

/// The task that worked on the turn ended or got stuck.
pub(super) fn task_lost() -> Failure {
    Failure::new("agentLost", "The conversation with the agent broke off.")
}

/// Ends all turns that an earlier run of the host left open.
pub(super) async fn end_interrupted_turns(context: &RunnerContext, last: Seq) -> Result<(), StartError> {
    let log_writer = &context.log_writer;
    let writer = TaskWriter::without_retries(Arc::clone(log_writer));
    for (session, chat) in chats_to_check(log_writer, last).await? {
        end_open_turn(log_writer, &writer, &session, &chat, &host_restarted(), None)
            .await
            .map_err(|TaskStopped| append_error(AppendError::Unknown))?;
    }
    Ok(())
}

/// Ends a chat's open turn and the requests for input in it; but not if it is the turn `except`.
pub(super) async fn end_open_turn(
    log_writer: &LogWriter,
    writer: &TaskWriter,
    session: &Arc<str>,
    chat: &Arc<str>,
    why: &Failure,
    except: Option<&str>,
) -> Result<(), TaskStopped> {
    let make = || async {
        let read = |chat: &ChatState, seq| (chat.active_turn.as_ref().map(|turn| turn.id.clone()), seq);
        let Some((turn, seq)) = if_readable(log_writer.chat(chat, read).await)? else { return Ok(None) };
        let requests = log_writer.session(session, |session, _| requests_of(session, chat)).await;
        let requests = if_readable(requests)?.unwrap_or_default();
        let is_excepted = turn.is_some() && turn.as_deref() == except;
        if is_excepted || (turn.is_none() && requests.is_empty()) {
            return Ok(None);
        }
        let mut transaction = Transaction::new().expect(chat, seq);
        if let Some(turn) = turn {
            // The reducer cancels the open tool calls.
            transaction = transaction.action(Arc::clone(chat), &ended(turn, why));
        }
        let removed = requests.into_iter().map(|id| SessionInputNeededRemovedAction { id });
        let removed = removed.map(StateAction::SessionInputNeededRemoved);
        Ok(Some(removed.fold(transaction, |transaction, action| transaction.action(Arc::clone(session), &action))))
    };
    writer.transact(make).await?;
    summaries::update(log_writer, writer, session, std::slice::from_ref(chat), None).await
}

/// Whether the open turn of a chat, if there is one, started before this seq: in an earlier run of the host.
pub(super) async fn is_turn_of_earlier_run(log: &dyn Log, chat: &str, started_after: Seq) -> bool {
    let mut after = started_after;
    loop {
        let Ok(page) = log.read(chat, after.saturating_add(1)..Seq::MAX, PAGE_BYTES).await else { return false };
        if page.iter().any(|entry| classify(entry) == EntryClass::TurnStarted) {
            return false;
        }
        let Some(last) = page.last() else { return true };
        after = last.seq;
    }
}

fn ended(turn_id: String, why: &Failure) -> StateAction {
    let (error_type, message) = (why.kind.clone(), why.message.clone());
    let part = ErrorResponsePart { error: ErrorInfo { error_type, message, stack: None, meta: None }, resumable: None };
    // Nobody knows how long the agent worked on it.
    StateAction::ChatError(ChatErrorAction { turn_id, duration: 0, part, meta: None })
}

/// The ids of the requests for input of a chat.
fn requests_of(session: &SessionState, chat: &str) -> Vec<String> {
    let requests = session.input_needed.iter().flatten();
    requests.filter_map(|request| id_if_of(request, chat)).collect()
}

/// The id of a request if it is of this chat. Every kind of request has both members.
fn id_if_of(request: &SessionInputRequest, chat: &str) -> Option<String> {
    let request = serde_json::to_value(request).ok()?;
    let text = |name: &str| request.get(name).and_then(Value::as_str);
    text("chat").filter(|of| *of == chat).and(text("id")).map(str::to_owned)
}

/// The chats that may have an open turn, each with its session: those that the catalogue shows as busy, and those in which
/// a turn started so late that the catalogue may not show it yet.
async fn chats_to_check(log_writer: &LogWriter, last: Seq) -> Result<BTreeSet<(Arc<str>, Arc<str>)>, StateError> {
    let mut found = BTreeSet::new();
    for summary in log_writer.state().sessions_with(is_busy).await? {
        let session: Arc<str> = summary.resource.into();
        let read = |session: &SessionState, _| {
            session.chats.iter().map(|chat| Arc::from(&*chat.resource)).collect::<Vec<Arc<str>>>()
        };
        let chats = match log_writer.session(&session, read).await {
            Ok(chats) => chats.unwrap_or_default(),
            Err(StateError::Closed) => return Err(StateError::Closed),
            Err(_) => continue,
        };
        found.extend(chats.into_iter().map(|chat| (Arc::clone(&session), chat)));
    }
    let recent = recently_started(&**log_writer.log(), last).await?;
    if !recent.is_empty() {
        let all = log_writer.log().channels(None).await?;
        let of = all.into_iter().filter(|info| recent.contains(&info.channel));
        found.extend(of.filter_map(|info| info.session.map(|session| (session, info.channel))));
    }
    Ok(found)
}

fn is_busy(summary: &SessionSummary) -> bool {
    let chats = summary.chats.iter().flatten().filter_map(|chat| chat.status);
    chats.chain([summary.status]).any(|status| status & SessionStatus::InProgress.bits() != 0)
}

/// The chats in which a turn started among the last entries.
async fn recently_started(log: &dyn Log, last: Seq) -> Result<BTreeSet<Arc<str>>, StateError> {
    let mut tail = log.tail(last.saturating_sub(RECENT_ENTRIES), Channels::Except(TEMPORARY_CHANNELS));
    let mut found = BTreeSet::new();
    loop {
        match tail.ready(PAGE_BYTES).await {
            Ok(page) if page.is_empty() => return Ok(found),
            Ok(page) => {
                let turns = page.into_iter().filter(|entry| classify(entry) == EntryClass::TurnStarted);
                found.extend(turns.map(|entry| entry.channel));
            }
            Err(ReadError::Trimmed { first }) => tail.seek(first.saturating_sub(1)),
            Err(ReadError::Damaged(record)) if let Some(end) = record.end() => tail.seek(end),
            Err(ReadError::Closed) => return Err(StateError::Closed),
            Err(error) => {
                warn!(%error, "the log could not be read to its end: turns that a crash left open may stay open");
                return Ok(found);
            }
        }
    }
}
