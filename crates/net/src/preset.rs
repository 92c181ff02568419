//! Caps of well-known ways, each with its source.

/// A way whose cap is known.
#[derive(Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Preset {
    /// Its name on a command line.
    pub name: &'static str,
    /// The longest frame that it takes.
    pub cap: u64,
    /// What it is, and what happens to a longer frame.
    pub about: &'static str,
    /// Where that is written.
    pub source: &'static str,
}
