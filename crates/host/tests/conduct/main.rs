//! Agents behind chats: what clients put into the log reaches them, and what they say is put there too.

mod failing;
mod lists;
mod puppet;
mod restart;
mod tools;
mod turns;
mod workers;
mod world;
