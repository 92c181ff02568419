//! Agents that people use, run by the host that `breakbulk serve` is, without a network: a fake stands for each one's model. An
//! official AHP client and a v2 client talk to them through a cap of 64 KiB.
//!
//! An agent that is not installed is skipped; `cargo xtask interop` and `cargo xtask test` say which those are.

mod claude;
mod echo;
mod eliza;
mod installed;
mod model_server;
mod opencode;
mod scene;
mod v2_client;
