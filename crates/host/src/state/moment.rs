//! A chat at one moment, for projections: its state, and which rows hold its completed turns.

use std::ops::Range;

use ahp_types::state::{ChatState, Message, ResponsePart, SnapshotState, Turn};

use super::rows::{Row, page, rows};
use super::{State, StateError, run_blocking};
use crate::log::Seq;
use crate::long_work::BLOCKING_BYTES;

/// What was read of a chat, and where the chat was then.
#[derive(Debug)]
pub(crate) struct ChatMoment<T> {
    /// What was read of its state, which has no completed turns.
    pub(crate) read: T,
    /// The last entry of the chat that the state contains.
    pub(crate) seq: Seq,
    /// The rows of the completed turns.
    pub(crate) rows: Range<u64>,
    /// Changes when rows may have been removed.
    pub(crate) epoch: u64,
}

impl State {
    /// Reads a chat, and which rows hold its completed turns.
    pub(crate) async fn chat_moment<T>(
        &self,
        chat: &str,
        read: impl FnOnce(&ChatState) -> T,
    ) -> Result<ChatMoment<T>, StateError> {
        let guard = self.cache.lock_chat(chat).await?;
        if let Some(record) = &guard.damaged {
            return Err(StateError::Damaged(record.clone()));
        }
        let SnapshotState::Chat(state) = guard.state()? else { return Err(StateError::NotAChat) };
        let (rows, epoch) = (guard.turns.range(), guard.turns.epoch());
        Ok(ChatMoment { read: read(state), seq: guard.seq, rows, epoch })
    }

    /// About how many bytes a chat takes in memory, without its completed turns.
    pub(crate) async fn chat_weight(&self, chat: &str) -> Result<usize, StateError> {
        Ok(self.cache.lock_chat(chat).await?.weight())
    }

    /// The first of these completed turns, whole: as many as fit `max_bytes` of JSON, and at least one. `None` if rows may
    /// have been removed since the moment of this epoch.
    pub(crate) async fn turns_page(
        &self,
        chat: &str,
        wanted: Range<u64>,
        epoch: u64,
        max_bytes: usize,
    ) -> Result<Option<Vec<Turn>>, StateError> {
        let guard = self.cache.lock_chat(chat).await?;
        if guard.turns.epoch() != epoch {
            return Ok(None);
        }
        let unsaved = guard.turns.unsaved(wanted.clone());
        drop(guard);
        let mut found = match page(&*self.cache.log, chat, wanted, &unsaved, max_bytes).await {
            Err(StateError::Gone) => return Ok(None),
            found => found?,
        };
        let mut bytes = 0_usize;
        let fits = found.iter().take_while(|row| {
            bytes = bytes.saturating_add(row.text.len());
            bytes <= max_bytes
        });
        let count = fits.count().max(1);
        found.truncate(count);
        let is_same = self.cache.lock_chat(chat).await?.turns.epoch() == epoch;
        if is_same { parsed(found).await.map(Some) } else { Ok(None) }
    }

    /// Reads a turn of a chat, whether it is over or runs; `None` if there is no such turn.
    pub(crate) async fn read_turn<T: Send + 'static>(
        &self,
        chat: &str,
        turn: &str,
        read: impl FnOnce(&Message, &[ResponsePart]) -> T + Send + 'static,
    ) -> Result<Option<T>, StateError> {
        self.cache.catch_up().await?;
        let guard = self.cache.lock_chat(chat).await?;
        let SnapshotState::Chat(state) = guard.state()? else { return Err(StateError::NotAChat) };
        if let Some(active) = state.active_turn.as_ref().filter(|active| active.id == turn) {
            return Ok(Some(read(&active.message, &active.response_parts)));
        }
        let Some(row) = guard.turns.find_last(&*self.cache.log, chat, turn).await? else { return Ok(None) };
        drop(guard);
        let look = move || row.turn().map(|turn| read(&turn.message, &turn.response_parts));
        Ok(Some(run_blocking(BLOCKING_BYTES, look).await??))
    }

    /// A chat with all of its completed turns.
    pub(crate) async fn whole_chat(&self, chat: &str) -> Result<ChatMoment<ChatState>, StateError> {
        let guard = self.cache.lock_chat(chat).await?;
        let SnapshotState::Chat(state) = guard.state()? else { return Err(StateError::NotAChat) };
        let (mut state, seq, range) = (ChatState::clone(state), guard.seq, guard.turns.range());
        let (epoch, unsaved) = (guard.turns.epoch(), guard.turns.unsaved(range.clone()));
        // It stays locked, so that no row is removed.
        let found = rows(&*self.cache.log, chat, range.clone(), unsaved).await?;
        drop(guard);
        state.turns = parsed(found).await?;
        Ok(ChatMoment { read: state, seq, rows: range, epoch })
    }
}

async fn parsed(rows: Vec<Row>) -> Result<Vec<Turn>, StateError> {
    let bytes = rows.iter().map(|row| row.text.len()).sum();
    let turns: serde_json::Result<_> = run_blocking(bytes, move || rows.iter().map(Row::turn).collect()).await?;
    Ok(turns?)
}
