//! Makes v2 events from the log of a session.

mod chat;
mod entry_events;
mod snapshot;
mod text;

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use ahp_types::actions::{ChatToolCallConfirmedAction, ChatTurnStartedAction, StateAction};
use ahp_types::common::JsonObject;
use ahp_types::state::{
    ActiveTurn, ChatOrigin, ChatState, Message, MessageAttachment, PendingMessage, PendingMessageKind, ResponsePart,
    SessionInputRequest, SessionLifecycle, SessionState as AhpSession, SessionToolConfirmationRequest, SnapshotState,
    ToolCallConfirmationState, ToolCallPendingConfirmationState, Turn as AhpTurn, UsageInfo,
};
use serde_json::Value;

use self::chat::{Chat, RunningTurn};
use self::entry_events::EntryEvents;
use super::PERMISSION_TIMEOUT_MS;
use super::wire::{
    Attachment, Body, Decision, Event, PermissionOption, QueuedPrompt, SessionState, TokenUsage, TurnOutcome,
};
use crate::Id;
use crate::projection::{Change, Entry, Projection, Snapshot, client_msg_id, ours};

/// How many calls may be around a sub-agent that is shown. 32: a JSON reader that allows 128 levels can read the snapshot.
const MAX_DEPTH: u32 = 32;

/// What a projector has to know.
#[derive(Clone)]
pub struct Config {
    /// The session, as clients name it.
    pub session_id: Id,
    /// The URI of the session's channel.
    pub session: Arc<str>,
    /// The URI of the chat that is shown.
    pub chat: Arc<str>,
    /// The branch of the working directory, if it is known.
    pub branch: Option<String>,
    /// Whether the working directory is a worktree.
    pub worktree: bool,
    /// The session's option that holds the permission mode.
    pub mode_option: String,
    /// Longer results, prompts and inputs in permission requests are cut. 64 KiB.
    pub max_result_bytes: usize,
    /// Longer snapshots go out as a head and deltas, and longer deltas in pieces. 256 KiB.
    pub max_event_bytes: usize,
    /// How long a permission waits for an answer, in milliseconds. 120 s.
    pub permission_timeout_ms: u64,
    /// Where the whole of something is that is cut.
    pub url: Arc<dyn Fn(&LongContent<'_>) -> String + Send + Sync>,
}

/// Something that is too long for an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LongContent<'a> {
    /// The result of a call.
    Result {
        /// The chat's URI.
        chat: &'a str,
        /// The turn.
        turn: &'a str,
        /// The call.
        tool: &'a str,
    },
    /// What a person has said.
    Prompt {
        /// The chat's URI.
        chat: &'a str,
        /// The turn that began with it.
        turn: &'a str,
    },
}

/// Makes v2 events from the log of a session. See the [module](super) for the rules that they keep.
///
/// Holds what is open in the running turn, but none of its text: a snapshot takes that from AHP's state.
#[derive(Debug)]
pub struct Projector {
    config: Config,
    ts: u64,
    main: Chat,
    /// Chats of sub-agents.
    workers: HashMap<Arc<str>, Chat>,
    /// The turns that are over, as far as they are known.
    turns: Vec<Id>,
    /// Whether there are turns before those.
    has_earlier: bool,
    /// The last turn failed and can go on.
    resumable: Option<Id>,
    pending: Vec<PendingPermission>,
    steering: Option<QueuedPrompt>,
    queue: Vec<QueuedPrompt>,
    mode: Option<String>,
    /// What the client was told.
    told: SessionState,
    life: Life,
}

/// How far a snapshot that is told in pieces has come.
#[derive(Debug)]
pub struct SnapshotPieces {
    seq: u64,
    ts: u64,
    /// How many events were told.
    sub: u32,
    /// The mode that the head told.
    mode: Option<String>,
}

/// A permission that waits for an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaitingPermission<'a> {
    /// By which answers name it.
    pub perm_id: &'a Id,
    /// The chat of the call.
    pub chat: &'a str,
    /// The turn of the call.
    pub turn: &'a str,
    /// The call.
    pub tool: &'a str,
    /// When nobody may answer any more, in milliseconds since 1970.
    pub expires_at: u64,
}

/// Where a session is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    /// It is there.
    Open,
    /// Its agent was stopped. It can go on.
    Stopped,
    /// It is no more.
    Closed,
}

/// A permission that waits.
#[derive(Debug)]
struct PendingPermission {
    id: Id,
    chat: String,
    turn: String,
    tool: String,
    asked_at: u64,
}

/// A text that may be cut.
struct Cut {
    text: String,
    /// How long the whole is, if this is cut.
    bytes: Option<u64>,
    url: Option<String>,
}

impl Config {
    /// For a chat of a session, both by URI, with the usual limits. What is cut cannot be fetched.
    pub fn new(session_id: impl Into<Id>, session: impl Into<Arc<str>>, chat: impl Into<Arc<str>>) -> Self {
        Self {
            session_id: session_id.into(),
            session: session.into(),
            chat: chat.into(),
            branch: None,
            worktree: false,
            mode_option: "mode".to_owned(),
            max_result_bytes: 64 << 10,
            max_event_bytes: 256 << 10,
            permission_timeout_ms: PERMISSION_TIMEOUT_MS,
            url: Arc::new(|_| String::new()),
        }
    }

    /// How long a text in an event may be in JSON. The rest of the event needs less than 1 KiB, unless ids are long.
    const fn max_text(&self) -> usize {
        let left = self.max_event_bytes.saturating_sub(1 << 10);
        if left < 256 { 256 } else { left }
    }

    fn fits(&self, text: &str) -> bool {
        // No character takes more than six times its length.
        text.len() <= self.max_text() / 6 || text::encoded_len(text) <= self.max_text()
    }

    /// How long a text may be that is cut: in JSON it fits into an event, whatever it holds.
    fn max_cut(&self) -> usize {
        self.max_result_bytes.min(self.max_text() / 6)
    }

    /// The beginning of a text that is no more than explanation.
    fn short(&self, text: &str) -> String {
        text::cut(text, self.max_cut() / 4).to_owned()
    }

    fn cut(&self, text: String, source: &LongContent<'_>) -> Cut {
        let max = self.max_cut();
        if text.len() <= max {
            return Cut { text, bytes: None, url: None };
        }
        let url = Some((self.url)(source)).filter(|url| !url.is_empty());
        Cut { bytes: u64::try_from(text.len()).ok(), text: text::cut(&text, max).to_owned(), url }
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config").field("session", &self.session).field("chat", &self.chat).finish_non_exhaustive()
    }
}

impl Projection for Projector {
    type Event = Event;

    fn apply(&mut self, entry: Entry, out: &mut Vec<Event>) {
        let Entry { seq, at_ms, channel, change } = entry;
        self.ts = self.ts.max(at_ms);
        let mut out = EntryEvents::new(out, seq, self.ts, self.config.session_id.clone());
        match change {
            Change::Action(action) if *channel == *self.config.session => self.session_action(*action, at_ms, &mut out),
            Change::Action(action) => self.chat_action(&channel, *action, &mut out),
            Change::Initial(SnapshotState::Session(state)) if *channel == *self.config.session => {
                self.begin(&state, &mut out);
            }
            Change::Initial(SnapshotState::Chat(state)) => self.begin_chat(&channel, &state, &mut out),
            Change::Initial(_) => {}
            Change::Closed => self.closed(&channel, &mut out),
        }
    }

    fn snapshot(&self, snapshot: &Snapshot<'_>, out: &mut Vec<Event>) {
        let ts = self.ts.max(snapshot.at_ms);
        snapshot::tell(self, snapshot, &mut EntryEvents::new(out, snapshot.seq, ts, self.config.session_id.clone()));
    }
}

impl Projector {
    /// For a session that has not begun yet: its first entries are still to come.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let main = Chat::new(Id::from(Arc::clone(&config.chat)), None, 0);
        Self {
            config,
            ts: 0,
            main,
            workers: HashMap::new(),
            turns: Vec::new(),
            has_earlier: false,
            resumable: None,
            pending: Vec::new(),
            steering: None,
            queue: Vec::new(),
            mode: None,
            told: SessionState::Idle,
            life: Life::Open,
        }
    }

    /// For a session that is there already; the next entry to apply is the one after the snapshot.
    ///
    /// While a turn runs, the state does not say which of its blocks and messages have ended. Whoever has the entries since
    /// the turn began does better with [`rewind`](Self::rewind).
    #[must_use]
    pub fn resume(config: Config, snapshot: &Snapshot<'_>) -> Self {
        let mut this = Self::new(config);
        this.ts = snapshot.at_ms;
        this.mode = this.mode_in(snapshot.session.config.as_ref().map(|config| &config.values));
        if let Some(chat) = (snapshot.chat)(&this.config.chat) {
            this.take(chat);
        }
        if is_stopped(snapshot.session.meta.as_ref()) && this.main.turn.is_none() {
            this.life = Life::Stopped;
        }
        this.take_workers(snapshot);
        for request in snapshot.session.input_needed.iter().flatten() {
            if let Some((request, _)) = confirmation(request)
                && this.is_asked(request)
            {
                let asked_at = (snapshot.asked_at)(&request.id).unwrap_or(snapshot.at_ms);
                this.pending.push(PendingPermission::of(request, asked_at));
            }
        }
        this.told = this.state();
        this
    }

    /// For a session that is there already, as it was before the first of these entries: all that were logged between a
    /// [boundary](Self::is_boundary) of the main chat and the snapshot, the boundary included. They are the next ones to
    /// apply.
    ///
    /// So a client that comes back with a `lastSeq` gets exactly what it missed: the boundary is the last one up to
    /// `lastSeq`, all entries are applied, and only events with a higher seq are sent. It also knows better than
    /// [`resume`](Self::resume) what is open now. What it cannot know is how much of a sub-agent was open that went on
    /// after its turn had been cancelled, the texts of prompts that waited before and were taken back since, and the
    /// order of prompts that were changed while they waited: whether it got there is said by [`agrees`](Self::agrees).
    #[must_use]
    pub fn rewind(config: Config, now: &Snapshot<'_>, since: &[Entry]) -> Self {
        let mut this = Self::new(config);
        this.mode = this.mode_in(now.session.config.as_ref().map(|config| &config.values));
        if let Some(chat) = (now.chat)(&this.config.chat) {
            this.take(chat);
        }
        this.main.turn = None;
        this.undo(since);
        this
    }

    /// Whether this projector, which has taken all entries up to the snapshot, knows the queue and the mode as they are. If
    /// one that was [rewound](Self::rewind) does not, its client needs a snapshot.
    #[must_use]
    pub fn agrees(&self, now: &Snapshot<'_>) -> bool {
        let (mut queue, mut mode) = (Vec::new(), None);
        if let Some(chat) = (now.chat)(&self.config.chat) {
            queue.extend(chat.steering_message.iter().chain(chat.queued_messages.iter().flatten()).map(queued));
        }
        if let Some(config) = &now.session.config {
            mode = self.mode_in(Some(&config.values));
        }
        self.waiting() == queue && self.mode == mode
    }

    /// Takes back what these entries did to turns, queue and mode.
    fn undo(&mut self, since: &[Entry]) {
        let mut consumed: Vec<QueuedPrompt> = Vec::new();
        let mut is_set: Vec<&str> = Vec::new();
        for entry in since {
            let Change::Action(action) = &entry.change else { continue };
            let is_new = |id: &str, consumed: &[QueuedPrompt], is_set: &[&str]| {
                !is_set.contains(&id) && !consumed.iter().any(|known| known.id == id)
            };
            match &**action {
                StateAction::SessionConfigChanged(a) if self.mode_in(Some(&a.config)).is_some() => self.mode = None,
                _ if *entry.channel != *self.config.chat => {}
                StateAction::ChatTurnStarted(a) => {
                    self.turns.retain(|known| **known != *a.turn_id);
                    if let Some(id) = a.queued_message_id.as_ref().filter(|id| is_new(id, &consumed, &is_set)) {
                        consumed.push(queued(&PendingMessage { id: id.clone(), message: a.message.clone() }));
                    }
                }
                StateAction::ChatPendingMessageSet(a) => is_set.push(&a.id),
                StateAction::ChatPendingMessageRemoved(a) if is_new(&a.id, &consumed, &is_set) => {
                    consumed.push(QueuedPrompt {
                        id: a.id.clone(),
                        prompt: String::new(),
                        client_msg_id: None,
                        truncated: true,
                    });
                }
                // The turns that were taken back are not known any more.
                StateAction::ChatTruncated(_) => self.has_earlier = true,
                _ => {}
            }
        }
        self.steering.take_if(|prompt| is_set.contains(&prompt.id.as_str()));
        self.queue.retain(|prompt| !is_set.contains(&prompt.id.as_str()));
        self.queue.splice(0..0, consumed);
    }

    /// Whether nothing of a turn is open before this entry of the main chat or after it: a turn begins, or ends.
    #[must_use]
    pub const fn is_boundary(action: &StateAction) -> bool {
        matches!(
            action,
            StateAction::ChatTurnStarted(_)
                | StateAction::ChatTurnComplete(_)
                | StateAction::ChatTurnCancelled(_)
                | StateAction::ChatError(_)
                | StateAction::ChatTruncated(_)
        )
    }

    /// What the session is doing now.
    #[must_use]
    pub fn state(&self) -> SessionState {
        match (&self.main.turn, self.pending.is_empty()) {
            (None, _) => SessionState::Idle,
            (Some(_), true) => SessionState::Running,
            (Some(_), false) => SessionState::RequiresAction,
        }
    }

    /// Whether the session is over, and no event of it will follow unless it begins anew.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        !matches!(self.life, Life::Open)
    }

    /// The permissions that wait for an answer.
    pub fn permissions(&self) -> impl Iterator<Item = WaitingPermission<'_>> {
        self.pending.iter().map(|pending| WaitingPermission {
            perm_id: &pending.id,
            chat: &pending.chat,
            turn: &pending.turn,
            tool: &pending.tool,
            expires_at: pending.asked_at.saturating_add(self.config.permission_timeout_ms),
        })
    }

    /// Begins a snapshot that is told in pieces, for a history that is too long for memory: this head, then
    /// [all turns that are over](Self::snapshot_turns) from the first on, then [the rest](Self::snapshot_rest). The log may
    /// go on meanwhile. All events but the last say `more`, so a client that is cut off in between asks again.
    #[must_use]
    pub fn snapshot_head(&self, session: &AhpSession, seq: u64, at_ms: u64, out: &mut Vec<Event>) -> SnapshotPieces {
        let ts = self.ts.max(at_ms);
        let mut told = EntryEvents::new(out, seq, ts, self.config.session_id.clone());
        snapshot::head(self, session, false, &mut told);
        SnapshotPieces { seq, ts, sub: told.more_follow(), mode: self.mode.clone() }
    }

    /// Tells the next turns that are over. `chat` finds the chats of their sub-agents, by URI and with all turns.
    pub fn snapshot_turns<'a>(
        &self,
        pieces: &mut SnapshotPieces,
        turns: &[AhpTurn],
        chat: &'a dyn Fn(&str) -> Option<&'a ChatState>,
        out: &mut Vec<Event>,
    ) {
        let mut told = EntryEvents::after(pieces.sub, out, pieces.seq, pieces.ts, self.config.session_id.clone());
        snapshot::past(self, turns, chat, &mut told);
        pieces.sub = told.more_follow();
    }

    /// Tells the rest: the turn that runs and what waits. The main chat's state in the snapshot must hold no turn that was
    /// told before. The snapshot must be of the last entry that this projector took, and not older than the head.
    pub fn snapshot_rest(&self, pieces: SnapshotPieces, snapshot: &Snapshot<'_>, out: &mut Vec<Event>) {
        let SnapshotPieces { ts, sub, mode, .. } = pieces;
        let ts = ts.max(self.ts).max(snapshot.at_ms);
        let mut told = EntryEvents::after(sub, out, snapshot.seq, ts, self.config.session_id.clone());
        if let Some(mode) = self.mode.clone().filter(|now| mode.as_ref() != Some(now)) {
            told.push(Body::ModeChanged { mode });
        }
        snapshot::present(self, snapshot, &mut told);
    }

    fn session_action(&mut self, action: StateAction, at_ms: u64, out: &mut EntryEvents<'_>) {
        match action {
            StateAction::SessionInputNeededSet(action) => {
                if let Some((request, call)) = confirmation(&action.request) {
                    let pending = PendingPermission::of(request, at_ms);
                    out.push(self.permission(&pending, call));
                    match self.pending.iter_mut().find(|known| known.id == pending.id) {
                        Some(known) => *known = pending,
                        None => self.pending.push(pending),
                    }
                }
            }
            StateAction::SessionInputNeededRemoved(action) => {
                self.resolve(|pending| *pending.id == *action.id, Decision::Deny, out);
            }
            StateAction::SessionConfigChanged(action) => {
                let mode = self.mode_in(Some(&action.config));
                if let Some(mode) = mode.filter(|mode| self.mode.as_ref() != Some(mode)) {
                    self.mode = Some(mode.clone());
                    out.push(Body::ModeChanged { mode });
                }
            }
            StateAction::SessionChatAdded(action) => {
                // Known already, unless this projector began between the two entries that make a chat.
                let uri = Arc::from(action.summary.resource);
                if let Some(ChatOrigin::Tool { chat, tool_call_id }) = &action.summary.origin
                    && !self.workers.contains_key(&uri)
                {
                    self.add_worker(&uri, chat, tool_call_id, None);
                }
            }
            StateAction::SessionMetaChanged(action) => self.meta_changed(action.meta.as_ref(), out),
            StateAction::SessionReady(_) => out.push(Body::SessionId {}),
            StateAction::SessionCreationFailed(action) => {
                let error = self.config.short(&action.error.message);
                out.push(Body::Error { error, error_type: Some(action.error.error_type) });
                self.end(Life::Closed, out);
            }
            _ => {}
        }
        self.settle(out);
    }

    fn chat_action(&mut self, channel: &str, action: StateAction, out: &mut EntryEvents<'_>) {
        let Self { config, main, workers, .. } = self;
        let is_main = *channel == *config.chat;
        let chat = if is_main { Some(main) } else { workers.get_mut(channel) };
        let Some(chat) = chat else { return };
        match action {
            StateAction::ChatDelta(a) => {
                if let Some(turn) = chat.turn(&a.turn_id) {
                    turn.said(&a.part_id, true, a.content, a.meta.as_ref(), config, out);
                }
            }
            StateAction::ChatReasoning(a) => {
                if let Some(turn) = chat.turn(&a.turn_id) {
                    turn.said(&a.part_id, false, a.content, a.meta.as_ref(), config, out);
                }
            }
            StateAction::ChatResponsePart(a) => chat.part(&a.turn_id, a.part, config, out),
            StateAction::ChatToolCallStart(a) => chat.call(a, config, out),
            StateAction::ChatToolCallDelta(a) => {
                if let Some(turn) = chat.turn(&a.turn_id) {
                    turn.input(&a, config, out);
                }
            }
            StateAction::ChatToolCallReady(a) => {
                if let Some(turn) = chat.turn(&a.turn_id) {
                    turn.ready(&a, config, out);
                }
            }
            StateAction::ChatToolCallConfirmed(a) => self.confirmed(channel, &a, out),
            StateAction::ChatToolCallComplete(a) => {
                if let Some(turn) = chat.turn(&a.turn_id) {
                    turn.complete(channel, &a, config, out);
                }
            }
            StateAction::ChatToolCallResultConfirmed(a) => {
                if let Some(turn) = chat.turn(&a.turn_id) {
                    turn.reviewed(&a, out);
                }
            }
            StateAction::ChatUsage(a) => {
                if let Some(turn) = chat.turn(&a.turn_id) {
                    turn.usage = Some(usage(&a.usage));
                }
            }
            StateAction::ChatTurnStarted(a) => self.turn_started(channel, a, out),
            StateAction::ChatTurnComplete(a) => self.turn_ended(channel, &a.turn_id, &TurnResult::COMPLETE, out),
            StateAction::ChatTurnCancelled(a) => self.turn_ended(channel, &a.turn_id, &TurnResult::CANCELLED, out),
            StateAction::ChatError(a) => {
                let (error, error_type) = (Some(config.short(&a.part.error.message)), Some(a.part.error.error_type));
                let outcome = TurnResult { outcome: TurnOutcome::Error, error, error_type };
                self.turn_ended(channel, &a.turn_id, &outcome, out);
                if is_main && a.part.resumable == Some(true) {
                    self.resumable = self.turns.last().filter(|last| ***last == *a.turn_id).cloned();
                }
            }
            action if is_main => self.main_action(action, out),
            _ => {}
        }
        self.settle(out);
    }

    /// What happens in the main chat beside its turns.
    fn main_action(&mut self, action: StateAction, out: &mut EntryEvents<'_>) {
        match action {
            StateAction::ChatTurnResume(a) => {
                let is_it = self.main.turn.is_none() && self.resumable.as_ref().is_some_and(|id| **id == *a.turn_id);
                if let Some(id) = self.resumable.take_if(|_| is_it) {
                    self.turns.pop();
                    self.main.turn = Some(RunningTurn::new(id));
                }
            }
            StateAction::ChatTruncated(a) => self.truncated(a.turn_id.as_deref(), out),
            StateAction::ChatPendingMessageSet(a) => {
                let prompt = queued(&PendingMessage { id: a.id, message: a.message });
                match (a.kind, self.queue.iter_mut().find(|known| known.id == prompt.id)) {
                    (PendingMessageKind::Steering, _) => self.steering = Some(prompt),
                    (PendingMessageKind::Queued, Some(known)) => *known = prompt,
                    (PendingMessageKind::Queued, None) => self.queue.push(prompt),
                }
                self.queue_changed(Vec::new(), out);
            }
            StateAction::ChatPendingMessageRemoved(a) => {
                let returned = match a.kind {
                    PendingMessageKind::Steering => self.steering.take_if(|known| known.id == a.id),
                    PendingMessageKind::Queued => {
                        let at = self.queue.iter().position(|known| known.id == a.id);
                        at.map(|at| self.queue.remove(at))
                    }
                };
                if let Some(prompt) = returned {
                    self.queue_changed(vec![prompt], out);
                }
            }
            StateAction::ChatQueuedMessagesReordered(a) => {
                // As the reducer has it: what is not named comes last, by id.
                let place = |prompt: &QueuedPrompt| a.order.iter().position(|id| *id == prompt.id);
                self.queue.sort_by(|a, b| match (place(a), place(b)) {
                    (None, None) => a.id.cmp(&b.id),
                    (a, b) => a.unwrap_or(usize::MAX).cmp(&b.unwrap_or(usize::MAX)),
                });
                self.queue_changed(Vec::new(), out);
            }
            _ => {}
        }
    }

    fn turn_started(&mut self, channel: &str, action: ChatTurnStartedAction, out: &mut EntryEvents<'_>) {
        let turn = RunningTurn::new(Id::from(action.turn_id.as_str()));
        if *channel != *self.config.chat {
            if let Some(chat) = self.workers.get_mut(channel) {
                chat.end_turn(&self.config, out);
                chat.turn = Some(turn);
            }
            return;
        }
        if let Some(before) = self.main.turn.as_ref().map(|turn| turn.id.clone()) {
            self.turn_ended(channel, &before, &TurnResult::CANCELLED, out);
        }
        if self.life == Life::Stopped {
            self.reopen(out);
        }
        // A sub-agent that is done is known from the state.
        self.workers.retain(|_, chat| chat.turn.is_some());
        if let Some(id) = &action.queued_message_id {
            let held = self.queue.len();
            self.queue.retain(|prompt| prompt.id != *id);
            let steering = self.steering.take_if(|prompt| prompt.id == *id);
            if steering.is_some() || self.queue.len() != held {
                self.queue_changed(Vec::new(), out);
            }
        }
        out.push(self.user_message(&action.turn_id, &action.message));
        self.main.turn = Some(turn);
        self.resumable = None;
    }

    fn turn_ended(&mut self, channel: &str, turn: &str, outcome: &TurnResult, out: &mut EntryEvents<'_>) {
        let Self { config, main, workers, .. } = self;
        let is_main = *channel == *config.chat;
        let chat = if is_main { Some(main) } else { workers.get_mut(channel) };
        let Some(chat) = chat.filter(|chat| chat.turn.as_ref().is_some_and(|known| *known.id == *turn)) else { return };
        let ended = chat.end_turn(config, out);
        self.resolve(|pending| pending.chat == channel, Decision::Deny, out);
        if let Some(ended) = ended.filter(|_| is_main) {
            self.turns.push(ended.id.clone());
            outcome.tell(ended.id, ended.usage, out);
            self.told = SessionState::Idle;
            out.push(Body::SessionState { state: self.told });
        }
    }

    fn truncated(&mut self, turn: Option<&str>, out: &mut EntryEvents<'_>) {
        let left = match turn {
            None => 0,
            Some(turn) => match self.turns.iter().position(|known| **known == *turn) {
                Some(at) => at.saturating_add(1),
                None if self.has_earlier => 0,
                None => return,
            },
        };
        if let Some(active) = self.main.turn.as_ref().map(|turn| turn.id.clone()) {
            self.turn_ended(&Arc::clone(&self.config.chat), &active, &TurnResult::CANCELLED, out);
        }
        self.turns.truncate(left);
        self.has_earlier &= turn.is_some();
        self.resumable = None;
        out.push(Body::Truncated { turn_id: turn.map(Id::from) });
    }

    fn confirmed(&mut self, channel: &str, action: &ChatToolCallConfirmedAction, out: &mut EntryEvents<'_>) {
        let is_it = |pending: &PendingPermission| {
            pending.chat == channel && pending.turn == action.turn_id && pending.tool == action.tool_call_id
        };
        if ours(action.meta.as_ref(), "timeout").and_then(Value::as_bool) == Some(true) {
            for timed_out in self.pending.extract_if(.., |pending| is_it(pending)) {
                out.push(Body::PermissionTimeout { perm_id: timed_out.id });
            }
        } else {
            let decision = Decision::of(action.approved, action.selected_option_id.as_deref());
            self.resolve(is_it, decision, out);
        }
        let Self { config, main, workers, .. } = self;
        let chat = if *channel == *config.chat { Some(main) } else { workers.get_mut(channel) };
        if let Some(turn) = chat.and_then(|chat| chat.turn(&action.turn_id)) {
            turn.confirmed(action, config, out);
        }
    }

    /// These permissions wait no longer.
    fn resolve(&mut self, is_it: impl Fn(&PendingPermission) -> bool, decision: Decision, out: &mut EntryEvents<'_>) {
        for resolved in self.pending.extract_if(.., |pending| is_it(pending)) {
            out.push(Body::PermissionResolved { perm_id: resolved.id, decision });
        }
    }

    fn queue_changed(&self, mut returned: Vec<QueuedPrompt>, out: &mut EntryEvents<'_>) {
        let mut queue = self.waiting();
        // So much each that all fit together.
        let count = queue.len().saturating_add(returned.len());
        let max = self.config.max_cut().checked_div(count).unwrap_or(0);
        for prompt in queue.iter_mut().chain(&mut returned).filter(|prompt| prompt.prompt.len() > max) {
            prompt.prompt = text::cut(&prompt.prompt, max).to_owned();
            prompt.truncated = true;
        }
        out.push(Body::QueueChanged { queue, returned });
    }

    /// The prompts that wait, in the order in which they will run.
    fn waiting(&self) -> Vec<QueuedPrompt> {
        self.steering.iter().chain(&self.queue).cloned().collect()
    }

    /// The session begins.
    fn begin(&mut self, state: &AhpSession, out: &mut EntryEvents<'_>) {
        let ts = self.ts;
        *self = Self { ts, ..Self::new(self.config.clone()) };
        self.mode = self.mode_in(state.config.as_ref().map(|config| &config.values));
        out.push(self.session_start(state, false));
        if state.lifecycle == SessionLifecycle::Ready {
            out.push(Body::SessionId {});
        }
    }

    fn begin_chat(&mut self, channel: &Arc<str>, state: &ChatState, out: &mut EntryEvents<'_>) {
        if **channel == *self.config.chat {
            self.take(state);
            snapshot::turns(self, state, &|_| None, out);
            self.told = SessionState::Idle;
            self.settle(out);
        } else if let Some(ChatOrigin::Tool { chat, tool_call_id }) = &state.origin {
            self.add_worker(channel, chat, tool_call_id, state.active_turn.as_ref());
        }
    }

    /// Takes over what the main chat's state says.
    fn take(&mut self, state: &ChatState) {
        self.turns = state.turns.iter().map(|turn| Id::from(turn.id.as_str())).collect();
        self.has_earlier = state.turns_next_cursor.is_some();
        self.main.turn = state.active_turn.as_ref().map(RunningTurn::of);
        if let (Some(turn), Some(active)) = (&mut self.main.turn, &state.active_turn) {
            turn.usage = active.usage.as_ref().map(usage);
        }
        self.steering = state.steering_message.as_ref().map(queued);
        self.queue = state.queued_messages.iter().flatten().map(queued).collect();
    }

    /// Takes over the chats of sub-agents that are at work or about to be, those around others first.
    fn take_workers(&mut self, snapshot: &Snapshot<'_>) {
        let mut left: Vec<_> = snapshot.session.chats.iter().map(|chat| Arc::from(chat.resource.as_str())).collect();
        while !left.is_empty() {
            let before = left.len();
            left.retain(|uri: &Arc<str>| {
                let is_at_work = |state: &&ChatState| state.active_turn.is_some() || state.turns.is_empty();
                let Some(state) = (snapshot.chat)(uri).filter(is_at_work) else { return false };
                let Some(ChatOrigin::Tool { chat, tool_call_id }) = &state.origin else { return false };
                !self.add_worker(uri, chat, tool_call_id, state.active_turn.as_ref())
            });
            if left.len() == before {
                break;
            }
        }
    }

    /// A sub-agent works in this chat. Says whether it is shown.
    fn add_worker(&mut self, uri: &Arc<str>, parent: &str, tool: &str, turn: Option<&ActiveTurn>) -> bool {
        let is_main = *parent == *self.config.chat;
        let around = if is_main { Some(self.main.depth) } else { self.workers.get(parent).map(|chat| chat.depth) };
        let Some(depth) = around.filter(|depth| *depth < MAX_DEPTH) else { return false };
        let mut chat = Chat::new(Id::from(Arc::clone(uri)), Some(Id::from(tool)), depth.saturating_add(1));
        chat.turn = turn.map(RunningTurn::of);
        self.workers.insert(Arc::clone(uri), chat);
        true
    }

    fn meta_changed(&mut self, meta: Option<&JsonObject>, out: &mut EntryEvents<'_>) {
        match (self.life, is_stopped(meta)) {
            (Life::Open, true) => self.end(Life::Stopped, out),
            (Life::Stopped, false) => self.reopen(out),
            _ => {}
        }
    }

    /// A session that was stopped goes on.
    fn reopen(&mut self, out: &mut EntryEvents<'_>) {
        self.life = Life::Open;
        out.push(Body::SessionId {});
        if !self.waiting().is_empty() {
            self.queue_changed(Vec::new(), out);
        }
    }

    fn closed(&mut self, channel: &str, out: &mut EntryEvents<'_>) {
        if *channel == *self.config.session || *channel == *self.config.chat {
            self.end(Life::Closed, out);
        } else if let Some(mut chat) = self.workers.remove(channel) {
            chat.end_turn(&self.config, out);
            self.resolve(|pending| pending.chat == channel, Decision::Deny, out);
        }
        self.settle(out);
    }

    /// The session ends, and everything in it.
    fn end(&mut self, life: Life, out: &mut EntryEvents<'_>) {
        let was_open = self.life == Life::Open;
        self.life = life;
        if !was_open {
            return;
        }
        let mut deepest_first: Vec<Chat> = self.workers.drain().map(|(_, chat)| chat).collect();
        deepest_first.sort_by(|a, b| b.depth.cmp(&a.depth).then_with(|| a.uri.cmp(&b.uri)));
        for mut chat in deepest_first {
            chat.end_turn(&self.config, out);
        }
        if let Some(turn) = self.main.turn.as_ref().map(|turn| turn.id.clone()) {
            self.turn_ended(&Arc::clone(&self.config.chat), &turn, &TurnResult::CANCELLED, out);
        }
        self.resolve(|_| true, Decision::Deny, out);
        out.push(Body::SessionEnd {});
    }

    /// Tells what the session is doing, if that is something else now.
    fn settle(&mut self, out: &mut EntryEvents<'_>) {
        let state = self.state();
        if state != self.told {
            self.told = state;
            out.push(Body::SessionState { state });
        }
    }

    fn session_start(&self, state: &AhpSession, snapshot: bool) -> Body {
        let cwd = state.working_directories.iter().flatten().next().map(|uri| path_of(uri));
        Body::SessionStart {
            agent: Some(state.provider.clone()),
            branch: self.config.branch.clone(),
            cwd: cwd.unwrap_or_default(),
            worktree: self.config.worktree,
            title: Some(state.title.clone()).filter(|title| !title.is_empty()),
            mode: self.mode.clone(),
            snapshot,
            has_earlier: snapshot && self.has_earlier,
        }
    }

    fn user_message(&self, turn: &str, message: &Message) -> Body {
        let cut = self.config.cut(message.text.clone(), &LongContent::Prompt { chat: &self.config.chat, turn });
        Body::UserMessage {
            turn_id: Id::from(turn),
            text: cut.text,
            client_msg_id: client_msg_id(message).map(str::to_owned),
            attachments: message.attachments.iter().flatten().filter_map(attachment).collect(),
            truncated: cut.bytes.is_some(),
            bytes: cut.bytes,
            url: cut.url,
        }
    }

    fn permission(&self, pending: &PendingPermission, call: &ToolCallPendingConfirmationState) -> Body {
        let input = text::input(call.tool_input.as_ref()).unwrap_or_default();
        // The rest of the event needs as much at most.
        let max = self.config.max_cut() / 2;
        let truncated = input.len() > max;
        let whole = || text::object(input).unwrap_or_else(|| Value::String(input.to_owned()));
        let tool_input = if truncated { Value::String(text::cut(input, max).to_owned()) } else { whole() };
        let options = call.options.iter().flatten().map(|option| {
            let allows = option.kind == ahp_types::state::ConfirmationOptionKind::Approve;
            PermissionOption {
                id: option.id.clone(),
                label: option.label.clone(),
                decision: Decision::of(allows, Some(&option.id)),
            }
        });
        let said = |text: &str| Some(text::cut(text, max / 4).to_owned()).filter(|text| !text.is_empty());
        Body::PermissionRequest {
            perm_id: pending.id.clone(),
            tool_name: call.tool_name.clone(),
            tool_input,
            title: call.confirmation_title.as_ref().and_then(|title| said(title.as_text())),
            description: said(call.invocation_message.as_text()),
            display_name: said(&call.display_name),
            tier: None,
            tool_id: Id::from(call.tool_call_id.as_str()),
            expires_at: pending.asked_at.saturating_add(self.config.permission_timeout_ms),
            options: options.collect(),
            truncated,
        }
    }

    /// Whether a call that the session asks about waits for an answer in its chat.
    fn is_asked(&self, request: &SessionToolConfirmationRequest) -> bool {
        let is_main = *request.chat == *self.config.chat;
        let chat = if is_main { Some(&self.main) } else { self.workers.get(request.chat.as_str()) };
        let turn = chat.and_then(|chat| chat.turn.as_ref()).filter(|turn| *turn.id == *request.turn_id);
        turn.zip(confirmed_call(request)).is_some_and(|(turn, call)| turn.is_pending(&call.tool_call_id))
    }

    fn mode_in(&self, values: Option<&JsonObject>) -> Option<String> {
        values?.get(&self.config.mode_option)?.as_str().map(str::to_owned)
    }

    fn chat(&self, uri: &str) -> Option<&Chat> {
        if *uri == *self.config.chat { Some(&self.main) } else { self.workers.get(uri) }
    }
}

impl PendingPermission {
    fn of(request: &SessionToolConfirmationRequest, asked_at: u64) -> Self {
        Self {
            id: Id::from(request.id.as_str()),
            chat: request.chat.clone(),
            turn: request.turn_id.clone(),
            tool: confirmed_call(request).map(|call| call.tool_call_id.clone()).unwrap_or_default(),
            asked_at,
        }
    }
}

/// The whole result of the call with this id among the parts of a turn: what an event holds, or the beginning of it. It comes in
/// pieces that follow each other, without a copy of what is long.
#[must_use]
pub fn result_pieces<'a>(parts: &'a [ResponsePart], tool: &str) -> Option<Vec<Cow<'a, str>>> {
    let mut calls = parts.iter().filter_map(|part| match part {
        ResponsePart::ToolCall(part) => Some(&part.tool_call),
        _ => None,
    });
    let call = calls.find(|call| chat::CallView::of(call).is_some_and(|view| view.tool == tool))?;
    snapshot::result_pieces(call).map(|(pieces, _)| pieces)
}

/// How a turn ended.
struct TurnResult {
    outcome: TurnOutcome,
    error: Option<String>,
    error_type: Option<String>,
}

impl TurnResult {
    const COMPLETE: Self = Self { outcome: TurnOutcome::Complete, error: None, error_type: None };
    const CANCELLED: Self = Self { outcome: TurnOutcome::Cancelled, error: None, error_type: None };

    fn tell(&self, turn_id: Id, usage: Option<TokenUsage>, out: &mut EntryEvents<'_>) {
        let Self { outcome, error, error_type } = self;
        if let Some(error) = error {
            out.push(Body::Error { error: error.clone(), error_type: error_type.clone() });
        }
        let (error, error_type) = (error.clone(), error_type.clone());
        out.push(Body::TurnEnd { turn_id, outcome: *outcome, error, error_type, usage });
    }
}

/// The call that the session asks a person about.
fn confirmation(
    request: &SessionInputRequest,
) -> Option<(&SessionToolConfirmationRequest, &ToolCallPendingConfirmationState)> {
    match request {
        SessionInputRequest::ToolConfirmation(request) => Some((request, confirmed_call(request)?)),
        _ => None,
    }
}

const fn confirmed_call(request: &SessionToolConfirmationRequest) -> Option<&ToolCallPendingConfirmationState> {
    match &request.tool_call {
        ToolCallConfirmationState::PendingConfirmation(call) => Some(call),
        _ => None,
    }
}

fn queued(message: &PendingMessage) -> QueuedPrompt {
    QueuedPrompt {
        id: message.id.clone(),
        prompt: message.message.text.clone(),
        client_msg_id: client_msg_id(&message.message).map(str::to_owned),
        truncated: false,
    }
}

fn attachment(attachment: &MessageAttachment) -> Option<Attachment> {
    let (label, media_type) = match attachment {
        MessageAttachment::EmbeddedResource(a) => (&a.label, Some(a.content_type.clone())),
        MessageAttachment::Simple(a) => (&a.label, None),
        MessageAttachment::Resource(a) => (&a.label, None),
        MessageAttachment::Annotations(a) => (&a.label, None),
        MessageAttachment::Chat(a) => (&a.label, None),
        MessageAttachment::Unknown(_) => return None,
    };
    Some(Attachment { label: label.clone(), media_type })
}

fn usage(usage: &UsageInfo) -> TokenUsage {
    TokenUsage {
        input_tokens: usage.input_tokens,
        output_tokens: usage.output_tokens,
        cache_read_tokens: usage.cache_read_tokens,
        model: usage.model.clone(),
    }
}

fn is_stopped(meta: Option<&JsonObject>) -> bool {
    ours(meta, "ended").and_then(Value::as_bool) == Some(true)
}

/// A working directory as a path.
fn path_of(uri: &str) -> String {
    match uri.strip_prefix("file://") {
        Some(path) => percent_encoding::percent_decode_str(path).decode_utf8_lossy().into_owned(),
        None => uri.to_owned(),
    }
}
