//! The two sides of a bridge, and a value for each of them.

use std::ops::{Index, IndexMut};

/// A side of a bridge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SideId {
    /// The side of the client.
    Downstream,
    /// The side of the host.
    Upstream,
}

impl SideId {
    /// Both sides.
    pub(crate) const BOTH: [Self; 2] = [Self::Downstream, Self::Upstream];

    /// The other side.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::Downstream => Self::Upstream,
            Self::Upstream => Self::Downstream,
        }
    }

    /// The word for it in logs and documents.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Downstream => "downstream",
            Self::Upstream => "upstream",
        }
    }

    /// Its index in an array whose first element is the client's side.
    pub(crate) const fn index(self) -> usize {
        match self {
            Self::Downstream => 0,
            Self::Upstream => 1,
        }
    }
}

/// A value for each side.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Pair<T> {
    pub(super) downstream: T,
    pub(super) upstream: T,
}

impl<T> Pair<T> {
    /// Applies `of` to both values.
    pub(super) fn map<U>(self, mut of: impl FnMut(T) -> U) -> Pair<U> {
        Pair { downstream: of(self.downstream), upstream: of(self.upstream) }
    }

    /// Both values.
    pub(super) fn as_ref(&self) -> Pair<&T> {
        Pair { downstream: &self.downstream, upstream: &self.upstream }
    }

    /// Both values, the client's first.
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        [&self.downstream, &self.upstream].into_iter()
    }

    /// Both values, to be changed.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        [&mut self.downstream, &mut self.upstream].into_iter()
    }
}

impl<T> Index<SideId> for Pair<T> {
    type Output = T;

    fn index(&self, side: SideId) -> &T {
        match side {
            SideId::Downstream => &self.downstream,
            SideId::Upstream => &self.upstream,
        }
    }
}

impl<T> IndexMut<SideId> for Pair<T> {
    fn index_mut(&mut self, side: SideId) -> &mut T {
        match side {
            SideId::Downstream => &mut self.downstream,
            SideId::Upstream => &mut self.upstream,
        }
    }
}
