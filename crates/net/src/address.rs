//! Where a link begins or ends, as typed and as proven: `ws://host:port`, `stdio:`, `exec:COMMAND`, `unix:PATH`.

use std::path::PathBuf;

use crate::dialect::Dialect;
use crate::preset::Preset;

/// One end of a gateway: the way to it, and what is known about the way.
///
/// Our own options stand in the query, and are taken out of what the peer sees: `cap=900000`, `dialect=ahp`,
/// `preset=web-pubsub`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Address {
    /// What the frames travel by.
    pub way: Way,
    /// The wire form, if it was named.
    pub dialect: Option<Dialect>,
    /// The longest frame that the way takes, if it was named.
    pub cap: Option<u64>,
    /// Where the cap comes from, if a preset was named.
    pub preset: Option<&'static Preset>,
}

/// What frames travel by.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Way {
    /// A WebSocket.
    WebSocket {
        /// Whether it is `wss`.
        tls: bool,
        /// A name or an address, without brackets.
        host: String,
        /// The port; 80 or 443 if none was named.
        port: u16,
        /// The path and the query that the peer sees; at least `/`.
        target: String,
    },
    /// A Unix socket, one frame a line.
    Unix(PathBuf),
    /// Our own standard input and output, one frame a line.
    Stdio,
    /// The standard input and output of a child process, one frame a line.
    Exec(Vec<String>),
}
