//! What a visitor sees of a text while it is checked.

/// What sort of value it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
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
    fn depth(&self) -> u32;

    /// An object's key, unescaped; its value begins next, at the same depth. `None` is one that is longer than any key
    /// that is looked for, or no text.
    fn key(&mut self, depth: u32, key: Option<&[u8]>);

    /// A value begins; `at` is the offset of its first byte.
    fn begin(&mut self, depth: u32, kind: Kind, at: u64);

    /// The value that began last at `depth` is complete; `at` is the offset just past it.
    fn end(&mut self, depth: u32, at: u64);
}

/// Sees nothing, at no cost.
impl Visit for () {
    #[inline]
    fn depth(&self) -> u32 {
        0
    }

    #[inline]
    fn key(&mut self, _: u32, _: Option<&[u8]>) {}

    #[inline]
    fn begin(&mut self, _: u32, _: Kind, _: u64) {}

    #[inline]
    fn end(&mut self, _: u32, _: u64) {}
}
