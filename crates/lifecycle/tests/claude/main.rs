//! The translator of the Claude Code program: recordings of it, and each of its habits as a case of its own.

mod blocks;
mod cases;
mod golden;
mod host;
mod lines;
mod permissions;
mod properties;
mod replay;
mod turns;
