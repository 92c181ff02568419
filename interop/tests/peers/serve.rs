//! The host that `breakbulk serve` runs, and clients that nobody here wrote: a whole session, drops, kills.

pub(crate) mod guest;
mod large;
mod memory;
mod multi;
pub(crate) mod place;
mod python;
mod resume;
mod session;
pub(crate) mod way;
