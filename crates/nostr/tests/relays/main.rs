//! The link over relays that delay, reorder, repeat, drop and refuse: what is sent arrives exactly, or fails with a name in time.
#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod exact;
mod faults;
mod peers;
mod relay;
mod world;
