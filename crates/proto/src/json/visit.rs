//! What a visitor sees of a text while it is checked.

/// What sort of value it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ValueKind {
    /// `{…}`
    Object,
    /// `[…]`
    Array,
    /// `"…"`
    String,
    /// Digits.
    Number,
    /// `true`
    True,
    /// `false`
    False,
    /// `null`
    Null,
}

/// Sees the outer values of a text while it is checked. What it saw counts only if the check succeeds.
///
/// The root value is inside of no container, so at depth 0; the members of a root object are at depth 1.
pub trait Visit {
    /// Values at a greater depth are not reported, nor are their keys.
    fn depth(&self) -> usize;

    /// An object's key, unescaped; its value begins next, at the same depth. `None` is one that is longer than any key
    /// that is looked for, or no text.
    fn key(&mut self, depth: usize, key: Option<&[u8]>);

    /// A value begins; `at` is the offset of its first byte.
    fn begin(&mut self, depth: usize, kind: ValueKind, at: u64);

    /// The value that began last at `depth` is complete; `at` is the offset just past it.
    fn end(&mut self, depth: usize, at: u64);
}

/// Sees nothing, at no cost.
impl Visit for () {
    #[inline]
    fn depth(&self) -> usize {
        0
    }

    #[inline]
    fn key(&mut self, _: usize, _: Option<&[u8]>) {}

    #[inline]
    fn begin(&mut self, _: usize, _: ValueKind, _: u64) {}

    #[inline]
    fn end(&mut self, _: usize, _: u64) {}
}
