//! One channel in memory: the state that the official reducers made from its entries.
//!
//! A chat is in memory without its completed turns. Four kinds of actions need those, and each gets just what it needs: the
//! end of a turn adds one, a resumed turn takes the last one back, a truncation needs the number of one, and loading older
//! turns needs the ids of those that exist.

use std::collections::HashSet;
use std::sync::Arc;

use ahp::reducers::ReduceOutcome;
use ahp_types::actions::{ChatTurnsLoadedAction, StateAction};
use ahp_types::common::StringOrMarkdown;
use ahp_types::state::{
    ActiveTurn, ChatState, MessageKind, MessageOrigin, ResponsePart, SnapshotState, SystemNotificationResponsePart,
    Turn, TurnState,
};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tracing::{debug, warn};

use super::catalogue::Catalogue;
use super::entry::ParsedEntry;
use super::kind::{ChannelKind, reduce};
use super::rows::encode;
use super::side_chats::SideChats;
use super::turns::{RowSpan, TurnRows};
use super::{StateError, run_blocking};
use crate::log::{Bytes, DamagedRecord, Entry, Log, Save, Seq};

/// The version of the reducers. A saved state of another version is not used if its entries still exist.
pub(super) const VERSION: &str = "ahp 1.0.0";

/// A channel in memory.
#[derive(Debug)]
pub(super) struct Channel {
    pub(super) uri: Arc<str>,
    /// That of a chat has no completed turns. `None` before the channel begins, and after it is closed.
    pub(super) state: Option<SnapshotState>,
    pub(super) turns: TurnRows,
    /// Used by the root channel only.
    pub(super) catalogue: Catalogue,
    /// The last entry of the channel that the state contains.
    pub(super) seq: Seq,
    /// The state contains everything up to here, even if the follower is behind.
    pub(super) reached: Seq,
    /// Set if the store itself or the channel's first entry is damaged: the state is that before the damage, and stays so.
    pub(super) damaged: Option<DamagedRecord>,
    /// The last damaged entry that was skipped.
    damage_noticed_at: Option<Seq>,
    /// Whether the active turn has a notice of a damaged entry, which may have been the end of the turn.
    is_turn_uncertain: bool,
    /// The last entry that the saved state contains.
    saved: Seq,
    /// Bytes of the state when it was last encoded, and of the actions since then.
    base: usize,
    since: usize,
}

impl Channel {
    /// A channel without entries.
    pub(super) fn new(uri: Arc<str>, turns: TurnRows) -> Self {
        let catalogue = Catalogue::default();
        Self {
            uri,
            state: None,
            turns,
            catalogue,
            seq: 0,
            reached: 0,
            damaged: None,
            damage_noticed_at: None,
            is_turn_uncertain: false,
            saved: 0,
            base: 0,
            since: 0,
        }
    }

    /// Applies an entry, unless the state contains it. Its text is dropped as soon as it is parsed: the reducers copy it.
    pub(super) async fn apply(&mut self, log: &dyn Log, entry: Entry) -> Result<(), StateError> {
        let Entry { seq, kind, body, .. } = entry;
        if seq <= self.seq || self.damaged.is_some() {
            return Ok(());
        }
        let bytes = body.len();
        match run_blocking(bytes, move || ParsedEntry::read(kind, &body)).await? {
            Ok(ParsedEntry::Initial(state)) => self.begin(log, state).await?,
            Ok(ParsedEntry::Closed) => self.close(log).await?,
            Ok(ParsedEntry::SideChat { chat, turn }) => self.side_chat(log, chat, turn).await?,
            Ok(ParsedEntry::Action(action)) => self.act(log, &action).await?,
            Ok(ParsedEntry::Notification(notification)) => self.catalogue.apply(notification),
            Ok(ParsedEntry::NoEffect) => {}
            Err(error) => warn!(seq, %error, "an entry of the log cannot be read and is skipped"),
        }
        self.seq = seq;
        self.since += bytes;
        Ok(())
    }

    /// Skips a damaged entry. In a chat a notice says so: in the active turn, or as a turn of its own. Damaged entries in a row
    /// have one notice.
    pub(super) fn skip_damaged(&mut self, seq: Seq) -> Result<(), StateError> {
        let follows_damage = self.damage_noticed_at == Some(self.seq);
        if let Some(SnapshotState::Chat(chat)) = &mut self.state
            && !follows_damage
        {
            let text = format!(
                "Something is missing here: the host's log is damaged at entry {seq}. What follows may depend on it."
            );
            match &mut chat.active_turn {
                Some(turn) => {
                    let content = StringOrMarkdown::Plain(text);
                    let part = SystemNotificationResponsePart { content, meta: None };
                    turn.response_parts.push(ResponsePart::SystemNotification(part));
                    self.is_turn_uncertain = true;
                }
                None => {
                    let offset = self.turns.next_offset();
                    self.turns.push(encode(offset, &notice(format!("damaged-{seq}"), text))?);
                }
            }
        }
        (self.seq, self.damage_noticed_at) = (seq, Some(seq));
        Ok(())
    }

    /// The state, if the channel has one yet.
    pub(super) fn state(&self) -> Result<&SnapshotState, StateError> {
        self.state.as_ref().ok_or(StateError::NotFound)
    }

    /// About how many bytes this takes in memory.
    pub(super) fn weight(&self) -> usize {
        // Even an empty channel has a name, a lock and a slot in the cache.
        const LEAST: usize = 1 << 10;
        LEAST + self.base + self.since + self.turns.unsaved_row_bytes()
    }

    /// Bytes of the actions that would have to be replayed.
    pub(super) const fn unsaved_bytes(&self) -> usize {
        self.since
    }

    /// Whether the saved state is the present one.
    pub(super) fn is_saved(&self) -> bool {
        self.saved == self.seq || self.damaged.is_some()
    }

    /// What is to be saved now.
    pub(super) fn save(&mut self) -> Result<(Save, Option<u64>), StateError> {
        let state = self.state.as_ref();
        let sessions = matches!(state, Some(SnapshotState::Root(_))).then(|| self.catalogue.all());
        let turns = matches!(state, Some(SnapshotState::Chat(_))).then(|| self.turns.span());
        let side_chats = Some(self.turns.side_chats()).filter(|side_chats| !side_chats.is_empty());
        let body =
            crate::exact::to_vec(&Saved { kind: state.map(ChannelKind::of), state, turns, side_chats, sessions })?;
        (self.base, self.since) = (body.len(), 0);
        Ok(self.turns.save(Save::new(self.uri.clone()).snapshot(self.seq, VERSION, body)))
    }

    /// Notes that it was saved.
    pub(super) fn settle(&mut self, seq: Seq, rows: &[(u64, Bytes)]) {
        self.saved = seq;
        self.turns.settle(rows);
    }

    /// Restores a saved state.
    pub(super) fn restore(&mut self, seq: Seq, body: &[u8]) -> Result<(), StateError> {
        let saved: Saved<&RawValue, SideChats, Vec<_>> = serde_json::from_slice(body)?;
        let state = saved.kind.zip(saved.state).map(|(kind, state)| kind.decode(state.get()));
        self.state = state.transpose()?;
        self.turns = TurnRows::at(saved.turns.unwrap_or_default(), saved.side_chats.unwrap_or_default());
        self.catalogue = Catalogue::new(saved.sessions.unwrap_or_default());
        (self.seq, self.saved, self.base) = (seq, seq, body.len());
        Ok(())
    }

    async fn begin(&mut self, log: &dyn Log, mut state: SnapshotState) -> Result<(), StateError> {
        self.turns.clear(log, &self.uri).await?;
        if let SnapshotState::Chat(chat) = &mut state {
            self.turns.prepend(&std::mem::take(&mut chat.turns))?;
        }
        self.state = Some(state);
        Ok(())
    }

    /// Drops everything except what side chats know.
    async fn close(&mut self, log: &dyn Log) -> Result<(), StateError> {
        self.turns.clear(log, &self.uri).await?;
        self.state = None;
        Ok(())
    }

    /// Records that a side chat knows the turns up to this one as they are now; or, without a turn, that it knows none.
    async fn side_chat(&mut self, log: &dyn Log, side: String, turn: Option<String>) -> Result<(), StateError> {
        self.turns.release(&side);
        let (Some(turn), Some(SnapshotState::Chat(chat))) = (turn, &self.state) else { return Ok(()) };
        if let Some(active) = chat.active_turn.as_ref().filter(|active| active.id == turn) {
            let (turn, weight) = (unfinished_as_turn(active), self.weight());
            let row = run_blocking(weight, move || encode(0, &turn)).await??;
            self.turns.keep(side, self.turns.range().end, Some(row));
        } else if let Some(row) = self.turns.find_last(log, &self.uri, &turn).await? {
            self.turns.keep(side, row.number + 1, None);
        } else {
            warn!("a side chat names a turn that does not exist, and knows no turns");
        }
        Ok(())
    }

    async fn act(&mut self, log: &dyn Log, action: &StateAction) -> Result<(), StateError> {
        use StateAction as A;
        let (weight, is_turn_uncertain) = (self.weight(), self.is_turn_uncertain);
        let (uri, turns) = (&*self.uri, &mut self.turns);
        let Some(state) = &mut self.state else {
            warn!("an action is for a channel that has not begun, and is skipped");
            return Ok(());
        };
        match (&mut *state, action) {
            (SnapshotState::Chat(chat), A::ChatTurnStarted(_)) if is_turn_uncertain => {
                self.is_turn_uncertain = false;
                // The damaged entry was the end of the turn: the turn is kept as it is.
                if let Some(turn) = chat.active_turn.as_ref().map(unfinished_as_turn) {
                    let offset = turns.next_offset();
                    turns.push(run_blocking(weight, move || encode(offset, &turn)).await??);
                }
                run(state, action);
            }
            (SnapshotState::Chat(_), A::ChatTurnComplete(_) | A::ChatTurnCancelled(_) | A::ChatError(_)) => {
                run(state, action);
                if let Some(turn) = chat(state).and_then(|chat| chat.turns.pop()) {
                    let offset = turns.next_offset();
                    turns.push(run_blocking(weight, move || encode(offset, &turn)).await??);
                }
            }
            (SnapshotState::Chat(chat), A::ChatTurnResume(_)) if chat.active_turn.is_none() => {
                let Some(last) = turns.last(log, uri).await? else { return Ok(()) };
                chat.turns.push(last.turn()?);
                run(state, action);
                if take_turns(state).is_empty() {
                    turns.cut(log, uri, last.number, last.start()).await?;
                }
            }
            (SnapshotState::Chat(chat), A::ChatTruncated(truncated)) => match &truncated.turn_id {
                None => {
                    run(state, action);
                    turns.clear(log, uri).await?;
                }
                Some(id) => {
                    let Some(side_chats) = turns.find(log, uri, id).await? else { return Ok(()) };
                    // The reducer only looks at its id.
                    chat.turns.push(placeholder_turn(id));
                    run(state, action);
                    take_turns(state);
                    turns.cut(log, uri, side_chats.number + 1, side_chats.end()).await?;
                }
            },
            (SnapshotState::Chat(_), A::ChatTurnsLoaded(loaded)) => {
                let new = without_known(loaded, turns, log, uri).await?;
                run(state, &A::ChatTurnsLoaded(new));
                turns.prepend(&take_turns(state))?;
            }
            _ => run(state, action),
        }
        Ok(())
    }
}

/// What is in the body of a saved snapshot.
#[derive(Serialize, Deserialize)]
struct Saved<T, K, S> {
    /// None, and no state, when the channel is closed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    kind: Option<ChannelKind>,
    #[serde(default = "Option::default", skip_serializing_if = "Option::is_none")]
    state: Option<T>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    turns: Option<RowSpan>,
    /// Also of a closed channel.
    #[serde(default = "Option::default", skip_serializing_if = "Option::is_none")]
    side_chats: Option<K>,
    #[serde(default = "Option::default", skip_serializing_if = "Option::is_none")]
    sessions: Option<S>,
}

fn run(state: &mut SnapshotState, action: &StateAction) {
    match reduce(state, action) {
        ReduceOutcome::Applied | ReduceOutcome::NoOp => {}
        ReduceOutcome::OutOfScope => debug!("an action of another kind of channel changes nothing"),
        ReduceOutcome::Invalid(error) => warn!(%error, "an action cannot be reduced and changes nothing"),
    }
}

fn chat(state: &mut SnapshotState) -> Option<&mut ChatState> {
    match state {
        SnapshotState::Chat(chat) => Some(chat),
        _ => None,
    }
}

/// Takes the turns out of a chat's state.
fn take_turns(state: &mut SnapshotState) -> Vec<Turn> {
    chat(state).map(|chat| std::mem::take(&mut chat.turns)).unwrap_or_default()
}

/// The loaded turns without those that the chat has: the reducer would skip them.
async fn without_known(
    loaded: &ChatTurnsLoadedAction,
    turns: &TurnRows,
    log: &dyn Log,
    uri: &str,
) -> Result<ChatTurnsLoadedAction, StateError> {
    let mut known: HashSet<&str> = HashSet::new();
    let asked: HashSet<&str> = loaded.turns.iter().map(|turn| turn.id.as_str()).collect();
    let look = |_: &_, id: std::borrow::Cow<'_, str>| {
        known.extend(asked.get(&*id).copied());
        known.len() == asked.len()
    };
    turns.scan(log, uri, look).await?;
    let new = loaded.turns.iter().filter(|turn| !known.contains(turn.id.as_str())).cloned().collect();
    Ok(ChatTurnsLoadedAction { turns: new, turns_next_cursor: loaded.turns_next_cursor.clone() })
}

/// The active turn as a completed one. Its state is `cancelled`, which comes closest.
fn unfinished_as_turn(turn: &ActiveTurn) -> Turn {
    Turn {
        id: turn.id.clone(),
        started_at: Some(turn.started_at.clone()),
        duration: None,
        message: turn.message.clone(),
        response_parts: turn.response_parts.clone(),
        usage: turn.usage.clone(),
        state: TurnState::Cancelled,
    }
}

/// A turn with this id and nothing else.
fn placeholder_turn(id: &str) -> Turn {
    notice(id.to_owned(), String::new())
}

/// A turn that is a notice of the host.
pub(super) fn notice(id: String, text: String) -> Turn {
    let message = ahp_types::state::Message {
        text,
        origin: MessageOrigin { kind: MessageKind::SystemNotification },
        attachments: None,
        model: None,
        agent: None,
        meta: None,
    };
    Turn {
        id,
        started_at: None,
        duration: None,
        message,
        response_parts: Vec::new(),
        usage: None,
        state: TurnState::Complete,
    }
}
