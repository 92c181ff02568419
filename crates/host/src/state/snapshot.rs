//! Snapshots and pages of turns, joined from stored rows.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use ahp_types::state::SnapshotState;
use breakbulk_proto::Message;
use bytes::Bytes;
use serde::Deserializer;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::cache::{ChannelCache, ChannelGuard};
use super::rows::{Row, rows};
use super::turns::RowSpan;
use super::{StateError, run_blocking};
use crate::exact;
use crate::log::Seq;

/// How often rows are read without a lock. If the chat is truncated each time, it is locked for the last attempt.
pub(super) const TRIES: usize = 3;

/// What a client wants to see of a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct View {
    /// How many of the last completed turns of a chat, at least one; `None` for all. If older ones are left out, the state has
    /// `turnsNextCursor`.
    ///
    /// Three actions refer to turns that such a client may not have. Before `chat/truncated` it needs the turn that remains,
    /// see `State::fetch_turns`. A `chat/turnsLoaded` from the log is not for it: it fetches older turns
    /// itself. And before `chat/turnResume`, a client without any turn needs a new snapshot.
    pub turns: Option<u64>,
}

impl View {
    /// Everything.
    pub const FULL: Self = Self { turns: None };

    /// At most so many turns.
    #[must_use]
    pub const fn window(turns: u64) -> Self {
        Self { turns: Some(turns) }
    }
}

/// A channel's state as a client gets it.
#[derive(Debug, Clone)]
pub struct ChannelSnapshot {
    /// The state contains everything up to here. Actions with later seqs apply to it.
    pub from_seq: Seq,
    /// The JSON of an [`ahp_types::state::Snapshot`].
    pub body: Message,
}

/// Older turns for one client.
#[derive(Debug, Clone)]
pub struct TurnsPage {
    /// The JSON of the action `chat/turnsLoaded`. It is for the client that asked, and never in the log: others have
    /// windows of their own.
    pub action: Message,
}

pub(super) async fn snapshot(cache: &ChannelCache, channel: &str, view: View) -> Result<ChannelSnapshot, StateError> {
    for _ in 0..TRIES {
        let (guard, parts) = SnapshotParts::take(cache, channel, view).await?;
        if parts.rows.is_empty() {
            return Ok(parts.join(channel, Vec::new()));
        }
        drop(guard);
        let found = rows(&*cache.log, channel, parts.rows.clone(), parts.unsaved.clone()).await;
        if cache.lock(channel).await?.turns.epoch() == parts.epoch {
            return Ok(parts.join(channel, found?));
        }
    }
    // The chat is truncated so often that it is locked now.
    let (_held, parts) = SnapshotParts::take(cache, channel, view).await?;
    let found = rows(&*cache.log, channel, parts.rows.clone(), parts.unsaved.clone()).await?;
    Ok(parts.join(channel, found))
}

pub(super) async fn size_of(cache: &ChannelCache, channel: &str, view: View) -> Result<u64, StateError> {
    let (guard, parts) = SnapshotParts::take(cache, channel, view).await?;
    let turns = match parts.rows.end - parts.rows.start {
        0 => 0,
        count => {
            let first = guard.turns.row(&*cache.log, channel, parts.rows.start).await?;
            parts.span.bytes_from(&first) + count - 1
        }
    };
    let around = parts.join(channel, Vec::new()).body.len();
    Ok(turns + around as u64)
}

pub(super) async fn fetch(
    cache: &ChannelCache,
    channel: &str,
    cursor: Option<&str>,
    max_bytes: usize,
) -> Result<Option<TurnsPage>, StateError> {
    let guard = cache.lock_chat(channel).await?;
    let Some(cursor) = cursor else { return Ok(None) };
    let (all, end) = (guard.turns.range(), read_cursor(cursor).ok_or(StateError::Cursor)?);
    if end < all.start || end > all.end {
        return Err(StateError::Cursor);
    }
    let (mut page, mut bytes) = (Vec::new(), 0);
    for number in (all.start..end).rev().take(usize::try_from(cache.config.turns_per_page).unwrap_or(usize::MAX)) {
        let row = guard.turns.row(&*cache.log, channel, number).await?;
        bytes += row.text.len() + 1;
        if bytes > cache.config.turns_page_bytes.min(max_bytes) && !page.is_empty() {
            break;
        }
        page.push(row);
    }
    page.reverse();
    Ok(TurnsPage::new(&guard, page))
}

impl TurnsPage {
    /// A page of consecutive turns; `None` without any.
    fn new(guard: &ChannelGuard, turns: Vec<Row>) -> Option<Self> {
        let first = turns.first()?.number;
        let next = if first > guard.turns.range().start { Some(cursor(first)) } else { own_cursor(guard) };
        let before = Bytes::from_static(br#"{"type":"chat/turnsLoaded","turns":["#);
        let after = format!("]{}}}", next_cursor(next.as_deref()));
        let action = [before].into_iter().chain(joined(turns)).chain([after.into()]).collect();
        Some(Self { action })
    }
}

/// The parts of a snapshot: the state's text at one moment, and the rows that belong into it.
pub(super) struct SnapshotParts {
    from_seq: Seq,
    /// The state's JSON, a chat's without turns.
    pub(super) text: Bytes,
    /// The position of the brackets into which a chat's turns belong.
    brackets: Option<usize>,
    pub(super) next: Option<String>,
    pub(super) rows: Range<u64>,
    pub(super) unsaved: BTreeMap<u64, Bytes>,
    span: RowSpan,
    pub(super) epoch: u64,
}

impl SnapshotParts {
    pub(super) async fn take(
        cache: &ChannelCache,
        channel: &str,
        view: View,
    ) -> Result<(ChannelGuard, Self), StateError> {
        let guard = cache.lock(channel).await?;
        // A channel in memory contains everything up to the follower's position, and perhaps more.
        let reached = if guard.damaged.is_some() { 0 } else { cache.position().max(guard.reached) };
        run_blocking(guard.weight(), move || Self::of(guard, view, reached)).await?
    }

    fn of(mut guard: ChannelGuard, view: View, reached: Seq) -> Result<(ChannelGuard, Self), StateError> {
        let from_seq = guard.seq.max(reached);
        let span = guard.turns.span();
        let start = span.window(view.turns);
        let (text, brackets, rows, next);
        if let Some(SnapshotState::Chat(chat)) = &mut guard.state {
            let own = chat.turns_next_cursor.take();
            let encoded = exact::to_vec(&**chat);
            chat.turns_next_cursor = own.clone();
            text = encoded?;
            brackets = Some(find_turns(&text)?);
            rows = start..guard.turns.range().end;
            next = if start > guard.turns.range().start { Some(cursor(start)) } else { own };
        } else {
            text = exact::to_vec(guard.state()?)?;
            (brackets, rows, next) = (None, 0..0, None);
        }
        let (unsaved, epoch) = (guard.turns.unsaved(rows.clone()), guard.turns.epoch());
        Ok((guard, Self { from_seq, text: text.into(), brackets, next, rows, unsaved, span, epoch }))
    }

    /// The same with another text of the state, and beginning with another row.
    pub(super) fn with(self, text: Bytes, begins: u64) -> Result<Self, StateError> {
        let brackets = self.brackets.map(|_| find_turns(&text)).transpose()?;
        let next = if begins > self.rows.start { Some(cursor(begins)) } else { self.next };
        Ok(Self { text, brackets, next, ..self })
    }

    pub(super) fn join(self, channel: &str, rows: Vec<Row>) -> ChannelSnapshot {
        let resource = serde_json::Value::from(channel);
        let before = Bytes::from(format!(r#"{{"resource":{resource},"state":"#));
        let after = Bytes::from(format!(r#","fromSeq":{}}}"#, self.from_seq));
        let body = match self.brackets {
            None => [before, self.text, after].into_iter().collect(),
            Some(at) => {
                let close = Bytes::from(format!("]{}", next_cursor(self.next.as_deref())));
                let (head, rest) = (self.text.slice(..at + 1), self.text.slice(at + 2..));
                [before, head].into_iter().chain(joined(rows)).chain([close, rest, after]).collect()
            }
        };
        ChannelSnapshot { from_seq: self.from_seq, body }
    }
}

/// The texts of rows, with commas between them.
fn joined(rows: Vec<Row>) -> impl Iterator<Item = Bytes> {
    let comma = |at| if at == 0 { Bytes::new() } else { Bytes::from_static(b",") };
    rows.into_iter().enumerate().flat_map(move |(at, row)| [comma(at), row.text])
}

/// The cursor in the chat's own state, for older turns that this host does not have.
fn own_cursor(guard: &ChannelGuard) -> Option<String> {
    match &guard.state {
        Some(SnapshotState::Chat(chat)) => chat.turns_next_cursor.clone(),
        _ => None,
    }
}

fn next_cursor(cursor: Option<&str>) -> String {
    cursor.map_or_else(String::new, |cursor| format!(r#","turnsNextCursor":{}"#, serde_json::Value::from(cursor)))
}

/// The cursor for the turns before this row.
fn cursor(row: u64) -> String {
    format!("before-{row:x}")
}

fn read_cursor(text: &str) -> Option<u64> {
    u64::from_str_radix(text.strip_prefix("before-")?, 16).ok()
}

/// The position of the empty list of turns in a chat's text.
fn find_turns(text: &[u8]) -> Result<usize, StateError> {
    struct Find<'a>(&'a [u8]);
    impl<'a> Visitor<'a> for Find<'a> {
        type Value = Option<usize>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a chat")
        }

        fn visit_map<A: MapAccess<'a>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut at = None;
            while let Some(key) = map.next_key::<std::borrow::Cow<'a, str>>()? {
                if key == "turns" {
                    let value: &'a RawValue = map.next_value()?;
                    at = value.get().as_ptr().addr().checked_sub(self.0.as_ptr().addr());
                } else {
                    map.next_value::<IgnoredAny>()?;
                }
            }
            Ok(at)
        }
    }
    let mut reader = serde_json::Deserializer::from_slice(text);
    reader.deserialize_map(Find(text))?.filter(|at| text.get(*at..at + 2) == Some(b"[]")).ok_or(StateError::Gone)
}
