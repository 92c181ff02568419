//! The host that `breakbulk serve` runs, and clients that nobody here wrote: a whole session, drops, kills.

mod guest;
mod large;
mod memory;
mod multi;
mod place;
mod python;
mod resume;
mod session;
mod way;
