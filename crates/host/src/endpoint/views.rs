//! What a connection asks of the state: a channel as it is, whole or in part.

use thiserror::Error;

use crate::error::MethodError;
use crate::log::{Answer, Seq};
pub use crate::state::{Moved, Shot, Tight, View};
use crate::state::{State, StateError, slim};

/// Shows channels as they are.
pub trait Views: Send + Sync + 'static {
    /// A channel's state after everything up to `at_least`, or later.
    fn snapshot<'a>(&'a self, channel: &'a str, view: View, at_least: Seq) -> Answer<'a, Result<Shot, ViewError>>;

    /// How long the text of such a snapshot would be, about; it is not made for this.
    fn size_of<'a>(&'a self, channel: &'a str, view: View) -> Answer<'a, Result<u64, ViewError>>;

    /// A channel's state in at most `room` bytes: what is large is by reference, and there may be fewer turns than `view` has.
    /// `None` if there is no such text.
    fn tight<'a>(
        &'a self,
        channel: &'a str,
        view: View,
        at_least: Seq,
        room: usize,
    ) -> Answer<'a, Result<Option<Tight>, ViewError>> {
        Box::pin(async move {
            let shot = self.snapshot(channel, view, at_least).await?;
            let slim = slim::snapshot(channel, &shot.body.to_bytes(), room);
            Ok(slim.map(|slim| Tight {
                shot: Shot { body: slim.text, ..shot },
                moved: slim.moved,
                is_windowed: view != View::FULL,
            }))
        })
    }

    /// The seq up to which the state has followed the log.
    fn reached(&self) -> Seq;
}

/// Why a channel cannot be shown.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum ViewError {
    /// There is no such channel, or not any more.
    #[error("no such channel")]
    NotFound,
    /// It is there, and cannot be shown.
    #[error(transparent)]
    Failed(#[from] MethodError),
}

impl From<StateError> for ViewError {
    fn from(error: StateError) -> Self {
        match error {
            StateError::NotFound => Self::NotFound,
            error => Self::Failed(error.into()),
        }
    }
}

impl Views for State {
    fn snapshot<'a>(&'a self, channel: &'a str, view: View, at_least: Seq) -> Answer<'a, Result<Shot, ViewError>> {
        Box::pin(async move { Ok(Self::snapshot(self, channel, view, at_least).await?) })
    }

    fn size_of<'a>(&'a self, channel: &'a str, view: View) -> Answer<'a, Result<u64, ViewError>> {
        Box::pin(async move { Ok(Self::size_of(self, channel, view).await?) })
    }

    fn tight<'a>(
        &'a self,
        channel: &'a str,
        view: View,
        at_least: Seq,
        room: usize,
    ) -> Answer<'a, Result<Option<Tight>, ViewError>> {
        Box::pin(async move { Ok(Self::tight(self, channel, view, at_least, room).await?) })
    }

    fn reached(&self) -> Seq {
        self.position()
    }
}
