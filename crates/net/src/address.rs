//! Where a link begins or ends, as typed and as proven: `ws://host:port`, `stdio:`, `exec:COMMAND`, `unix:PATH`, `webpubsub:…`.

mod error;
mod mask;
mod options;
mod size;
mod transport;

use std::fmt;
use std::str::FromStr;

use crate::dialect::{Dialect, Feedback};
use crate::listen::Token;
use crate::preset::Preset;
use crate::private::PrivateOption;

pub use self::error::AddressError;
pub use self::size::{Size, SizeError};
pub use self::transport::Transport;

use self::options::Options;

/// Where a peer is: the transport that leads to it, and what is known about that transport.
///
/// Our own options stand in the query, and are taken out of what the peer sees: `cap=900000`, `dialect=ahp`,
/// `preset=web-pubsub`, `private=host.key`. Those of a command stand before it, since it may have question marks of its own.
///
/// A WebSocket's token may follow as `#token=TOKEN`. A fragment is never part of a request, so the token is in no query
/// and no server's log of requests; it is shown to the peer as `Authorization: Bearer TOKEN`.
///
/// ```
/// use breakbulk::{Address, Dialect};
///
/// let relay: Address = "wss://relay.example/agent?room=7&preset=web-pubsub".parse()?;
/// assert_eq!((relay.cap, relay.effective_dialect()), (Some(900_000), Dialect::Ahp));
/// assert_eq!(relay.to_string(), "wss://relay.example/agent?room=7&preset=web-pubsub");
///
/// let server: Address = "exec:?dialect=stdio&cap=64KiB my-server --flag 'two words'".parse()?;
/// assert_eq!((server.cap, server.effective_dialect()), (Some(65_536), Dialect::Stdio));
/// # Ok::<(), breakbulk::AddressError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Address {
    /// What carries the frames.
    pub transport: Transport,
    /// The wire form, if it was named.
    pub dialect: Option<Dialect>,
    /// the longest frame that the transport takes, if it was named or a preset was.
    pub cap: Option<u64>,
    /// Where the cap comes from, if a preset was named.
    pub preset: Option<&'static Preset>,
    /// The token for a WebSocket server, if it was named.
    pub token: Option<Token>,
    /// How the link is encrypted from end to end, if it is.
    pub private: Option<PrivateOption>,
}

impl Address {
    /// The wire form that was named, or else the one that the transport suggests: segments where a WebSocket has a cap, none
    /// anywhere else.
    #[must_use]
    pub const fn effective_dialect(&self) -> Dialect {
        match (self.dialect, &self.transport) {
            (Some(dialect), _) => dialect,
            (None, Transport::WebSocket { .. }) if self.cap.is_some() => Dialect::Ahp,
            (None, Transport::External { scheme, .. }) => scheme.dialect,
            (None, _) => Dialect::Plain,
        }
    }

    /// The cap that was named, or else the one of the transport's scheme, if it has one.
    #[must_use]
    pub const fn effective_cap(&self) -> Option<u64> {
        match (self.cap, &self.transport) {
            (None, Transport::External { scheme, .. }) => scheme.cap,
            (cap, _) => cap,
        }
    }

    /// The options as they were typed: a cap that is the preset's own is not repeated.
    fn options(&self) -> Options {
        let implied = self.preset.map(|preset| preset.cap);
        Options {
            dialect: self.dialect,
            cap: self.cap.filter(|cap| Some(*cap) != implied),
            preset: self.preset,
            private: self.private.clone(),
        }
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let (transport, options, token) = transport::parse(text)?;
        let Options { dialect, cap, preset, private } = options;
        let cap = cap.or(preset.map(|preset| preset.cap));
        match &transport {
            Transport::External { scheme, .. } if private.is_some() && scheme.feedback == Feedback::Full => {
                Err(AddressError::PrivateOn(scheme.name))
            }
            _ => Ok(Self { transport, dialect, cap, preset, token, private }),
        }
    }
}

/// Parses back to the same address, unless there are secrets in it: those are shown as `…`.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.transport.write(&self.options(), f)?;
        if self.token.is_some() { write!(f, "#token={}", mask::MASK) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests;
