//! Where connections get snapshots from: the state, or a substitute in tests.

use thiserror::Error;

use super::memory::NoMemory;
use crate::error::MethodError;
use crate::log::{BoxFuture, Seq};
pub use crate::state::{ChannelSnapshot, ReducedSnapshot, ReferenceStats, View};
use crate::state::{State, StateError, by_reference};

/// Makes snapshots of channels.
pub trait SnapshotSource: Send + Sync + 'static {
    /// A snapshot of a channel that contains everything up to `at_least`, or more.
    fn snapshot<'a>(
        &'a self,
        channel: &'a str,
        view: View,
        at_least: Seq,
    ) -> BoxFuture<'a, Result<ChannelSnapshot, SnapshotError>>;

    /// About how long the text of such a snapshot is. The snapshot is not made for this.
    fn size_of<'a>(&'a self, channel: &'a str, view: View) -> BoxFuture<'a, Result<u64, SnapshotError>>;

    /// A snapshot of at most `max_bytes`: large content is by reference, and there may be fewer turns than `view` has. `None`
    /// if the state cannot be reduced to that length.
    fn reduced_snapshot<'a>(
        &'a self,
        channel: &'a str,
        view: View,
        at_least: Seq,
        max_bytes: usize,
    ) -> BoxFuture<'a, Result<Option<ReducedSnapshot>, SnapshotError>> {
        Box::pin(async move {
            let snapshot = self.snapshot(channel, view, at_least).await?;
            let reduced = by_reference::snapshot(channel, &snapshot.body.to_bytes(), max_bytes);
            Ok(reduced.map(|reduced| ReducedSnapshot {
                snapshot: ChannelSnapshot { body: reduced.text, ..snapshot },
                references: reduced.references,
                is_windowed: view != View::FULL,
            }))
        })
    }

    /// Waits until the channels in memory are within their limit.
    fn settled(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }

    /// The seq of the last entry in a channel's state, once the state contains everything up to `at_least`. While it stays the
    /// same, so does the snapshot. `None` if it is unknown.
    fn version<'a>(&'a self, _channel: &'a str, _at_least: Seq) -> BoxFuture<'a, Result<Option<Seq>, SnapshotError>> {
        Box::pin(async { Ok(None) })
    }
}

/// Why there is no snapshot of a channel.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum SnapshotError {
    /// There is no such channel, or not any more.
    #[error("no such channel")]
    NotFound,
    /// The channel exists, but the snapshot failed.
    #[error(transparent)]
    Failed(#[from] MethodError),
    /// There was no memory for the snapshot in time.
    #[error(transparent)]
    NoMemory(#[from] NoMemory),
}

impl From<StateError> for SnapshotError {
    fn from(error: StateError) -> Self {
        match error {
            StateError::NotFound => Self::NotFound,
            error => Self::Failed(error.into()),
        }
    }
}

impl SnapshotSource for State {
    fn snapshot<'a>(
        &'a self,
        channel: &'a str,
        view: View,
        at_least: Seq,
    ) -> BoxFuture<'a, Result<ChannelSnapshot, SnapshotError>> {
        Box::pin(async move { Ok(Self::snapshot(self, channel, view, at_least).await?) })
    }

    fn size_of<'a>(&'a self, channel: &'a str, view: View) -> BoxFuture<'a, Result<u64, SnapshotError>> {
        Box::pin(async move { Ok(Self::size_of(self, channel, view).await?) })
    }

    fn reduced_snapshot<'a>(
        &'a self,
        channel: &'a str,
        view: View,
        at_least: Seq,
        max_bytes: usize,
    ) -> BoxFuture<'a, Result<Option<ReducedSnapshot>, SnapshotError>> {
        Box::pin(async move { Ok(Self::reduced_snapshot(self, channel, view, at_least, max_bytes).await?) })
    }

    fn settled(&self) -> BoxFuture<'_, ()> {
        Box::pin(Self::settled(self))
    }

    fn version<'a>(&'a self, channel: &'a str, at_least: Seq) -> BoxFuture<'a, Result<Option<Seq>, SnapshotError>> {
        Box::pin(async move {
            self.reached_on(channel, at_least).await?;
            match self.read(channel, |_, seq| seq).await {
                Ok(seq) => Ok(Some(seq)),
                Err(StateError::Damaged(_)) => Ok(None),
                Err(error) => Err(error.into()),
            }
        })
    }
}
