//! A chat at one moment, for projections: its state, and which rows hold its completed turns.

use std::ops::Range;

use ahp_types::state::{ChatState, Message, ResponsePart, SnapshotState, Turn};
use bytes::Bytes;

use super::rows::{Row, page, rows};
use super::{State, StateError, run_blocking};
use crate::log::{ROW_HEADER, Seq};

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

/// Where a completed turn is in its chat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TurnRow {
    number: u64,
    /// While the chat has this epoch, the row is that of the turn.
    epoch: u64,
}

/// How much of a row is read to see which turn it is: its id comes first.
const HEAD: usize = 4 << 10;

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

    /// Reads the running turn of a chat; `None` if it is another one, or none.
    pub(crate) async fn read_active_turn<T>(
        &self,
        chat: &str,
        turn: &str,
        read: impl FnOnce(&Message, &[ResponsePart]) -> T,
    ) -> Result<Option<T>, StateError> {
        let guard = self.cache.lock_chat(chat).await?;
        let SnapshotState::Chat(state) = guard.state()? else { return Err(StateError::NotAChat) };
        let active = state.active_turn.as_ref().filter(|active| active.id == turn);
        Ok(active.map(|active| read(&active.message, &active.response_parts)))
    }

    /// Where the JSON of a completed turn is. Of long turns only the beginning is read for that.
    pub(crate) async fn find_row(&self, chat: &str, turn: &str) -> Result<Option<TurnRow>, StateError> {
        self.cache.catch_up().await?;
        let guard = self.cache.lock_chat(chat).await?;
        let (range, epoch) = (guard.turns.range(), guard.turns.epoch());
        let unsaved = guard.turns.unsaved(range.clone());
        drop(guard);
        for number in range.rev() {
            let head = match unsaved.get(&number) {
                Some(row) => Some(row.slice(ROW_HEADER.min(row.len())..)),
                None => self.cache.log.row_bytes(chat, number, ROW_HEADER..ROW_HEADER.saturating_add(HEAD)).await?,
            };
            if head.is_some_and(|head| begins_turn(&head, turn)) {
                return Ok(Some(TurnRow { number, epoch }));
            }
        }
        Ok(None)
    }

    /// Some bytes of the JSON of a completed turn; none after its end. `None` if rows may have been removed since it was found.
    pub(crate) async fn row_bytes(
        &self,
        chat: &str,
        row: TurnRow,
        range: Range<usize>,
    ) -> Result<Option<Bytes>, StateError> {
        let TurnRow { number, epoch } = row;
        let guard = self.cache.lock_chat(chat).await?;
        if guard.turns.epoch() != epoch {
            return Ok(None);
        }
        let place = ROW_HEADER.saturating_add(range.start)..ROW_HEADER.saturating_add(range.end);
        let unsaved = guard.turns.unsaved(number..number.saturating_add(1)).remove(&number);
        drop(guard);
        let bytes = match unsaved {
            Some(row) => Some(row.slice(place.start.min(row.len())..place.end.min(row.len()))),
            None => self.cache.log.row_bytes(chat, number, place).await?,
        };
        let is_same = self.cache.lock_chat(chat).await?.turns.epoch() == epoch;
        Ok(bytes.filter(|_| is_same))
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

/// Whether the JSON of a turn begins so, and has this id. The host writes the id first.
fn begins_turn(head: &[u8], turn: &str) -> bool {
    let rest = head.strip_prefix(br#"{"id":"#);
    let id = rest.and_then(|rest| serde_json::Deserializer::from_slice(rest).into_iter::<String>().next()?.ok());
    id.is_some_and(|id| id == turn)
}

async fn parsed(rows: Vec<Row>) -> Result<Vec<Turn>, StateError> {
    let bytes = rows.iter().map(|row| row.text.len()).sum();
    let turns: serde_json::Result<_> = run_blocking(bytes, move || rows.iter().map(Row::turn).collect()).await?;
    Ok(turns?)
}
