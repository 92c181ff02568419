//! Agent messages of any size over links that cap them: links, the driver that moves frames, and what stands on both.
//!
//! A [`Link`] carries frames; a [`Machine`](breakbulk_proto::Machine) makes and reads them; a [`Driver`] moves them
//! between the two.

pub mod address;
pub mod dial;
#[cfg(feature = "ahp")]
pub mod ahp;
pub mod dialect;
pub mod driver;
pub mod gateway;
pub mod link;
mod look;
pub mod listen;
pub mod preset;
pub mod tls;
#[cfg(any(feature = "ahp", feature = "rmcp"))]
mod pump;
#[cfg(feature = "rmcp")]
pub mod rmcp;

pub use address::{Address, AddressError, Way};
pub use dial::{DialError, Dialer};
pub use dialect::{AnyMachine, Dialect, Setup};
pub use driver::Driver;
pub use gateway::Gateway;
pub use link::{Arrival, BoxLink, Link, LinkError};
pub use preset::Preset;
pub use listen::{Accepted, Door, ListenConfig, ListenError, Listener, Token};
