//! The two sides of a bridge, and a value for each of them.

use std::ops::{Index, IndexMut};

/// A side of a bridge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SideId {
    /// The side of the client.
    Near,
    /// The side of the host.
    Far,
}

impl SideId {
    /// Both sides.
    pub(crate) const BOTH: [Self; 2] = [Self::Near, Self::Far];

    /// The other side.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::Near => Self::Far,
            Self::Far => Self::Near,
        }
    }

    /// The word for it in logs and documents.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Near => "near",
            Self::Far => "far",
        }
    }

    /// Its place in an array that has the client's side first.
    pub(crate) const fn index(self) -> usize {
        match self {
            Self::Near => 0,
            Self::Far => 1,
        }
    }
}

/// A value for each side.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Pair<T> {
    pub(super) near: T,
    pub(super) far: T,
}

impl<T> Pair<T> {
    /// What `of` makes of each value.
    pub(super) fn map<U>(self, mut of: impl FnMut(T) -> U) -> Pair<U> {
        Pair { near: of(self.near), far: of(self.far) }
    }

    /// Both values.
    pub(super) fn as_ref(&self) -> Pair<&T> {
        Pair { near: &self.near, far: &self.far }
    }

    /// Both values, the client's first.
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        [&self.near, &self.far].into_iter()
    }

    /// Both values, to be changed.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        [&mut self.near, &mut self.far].into_iter()
    }
}

impl<T> Index<SideId> for Pair<T> {
    type Output = T;

    fn index(&self, side: SideId) -> &T {
        match side {
            SideId::Near => &self.near,
            SideId::Far => &self.far,
        }
    }
}

impl<T> IndexMut<SideId> for Pair<T> {
    fn index_mut(&mut self, side: SideId) -> &mut T {
        match side {
            SideId::Near => &mut self.near,
            SideId::Far => &mut self.far,
        }
    }
}
