//! What can be wrong with an address, one variant a mistake.

use thiserror::Error;

use super::size::SizeError;
use crate::listen::TokenError;
use crate::private::CodeError;

/// Why a text is no address. Each message is one line that names the part that is wrong, and what is allowed; what might
/// be a secret is never repeated.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AddressError {
    /// There is no text at all.
    #[error("no address; allowed are ws://HOST:PORT, wss://HOST:PORT, unix:PATH, stdio: and exec:COMMAND")]
    Empty,
    /// It begins with no scheme that we know.
    #[error(
        "unknown scheme {scheme:?}; {}allowed are ws://HOST:PORT, wss://HOST:PORT, unix:PATH, stdio: and exec:COMMAND",
        likely.as_ref().map(|likely| format!("did you mean {likely} ? ")).unwrap_or_default()
    )]
    UnknownScheme {
        /// What it begins with, shortened.
        scheme: String,
        /// The address that was probably meant, without anything that follows the host.
        likely: Option<String>,
    },
    /// A name or a password stands before the host, where logs and process lists would show it.
    #[error("user name or password before the host {host:?}: send it in a header instead")]
    UserInfo {
        /// What follows it.
        host: String,
    },
    /// The host is none.
    #[error(
        "{0:?} is not a host name or an address; allowed are names, IPv4 addresses, and IPv6 addresses in brackets"
    )]
    Host(String),
    /// The port is none.
    #[error("{0:?} is not a port; allowed are numbers from 0 to 65535")]
    Port(String),
    /// The path or the query has a character that may not stand in one.
    #[error("the character {0:?} is not allowed in a path or a query: write it as %XX")]
    Target(char),
    /// There is a fragment, which no peer would ever see, and it is no token.
    #[error("'#' begins a fragment, which is never sent: allowed is #token=TOKEN; write %23 if you mean the character")]
    Fragment,
    /// What follows `#token=` is no token.
    #[error("#token=: {0}")]
    Token(TokenError),
    /// A Unix socket without a path.
    #[error("unix: needs the path of a socket, such as unix:/run/agent.sock")]
    NoPath,
    /// Something follows `stdio:` that is not `?` and options.
    #[error("stdio: is followed by {0:?}: allowed are only options, such as stdio:?dialect=stdio")]
    AfterStdio(String),
    /// `exec:` without a command.
    #[error("exec: needs a command, such as exec:my-server --flag")]
    NoCommand,
    /// Nothing follows the scheme of a transport of another crate.
    #[error("{scheme}: needs an address, such as {form}")]
    NoTarget {
        /// The scheme.
        scheme: &'static str,
        /// How its addresses look.
        form: &'static str,
    },
    /// The command ends inside quotes.
    #[error("the command of exec: ends inside quotes or after a backslash")]
    OpenQuote,
    /// An option that is not ours.
    #[error(
        "unknown option {name:?} in the address; {}allowed are cap, dialect, preset and private",
        likely.map(|likely| format!("did you mean {likely}? ")).unwrap_or_default()
    )]
    UnknownOption {
        /// Its name.
        name: String,
        /// The option that was probably meant.
        likely: Option<&'static str>,
    },
    /// An option that is there twice.
    #[error("the option {0:?} is given twice")]
    RepeatedOption(&'static str),
    /// `private=` without anything.
    #[error("private= needs a file, or the pairing code that the host prints")]
    PrivateOfNothing,
    /// What follows `private=` is meant as a pairing code, and is none.
    #[error("private=: {0}")]
    Private(CodeError),
    /// A transport on which frames may be lost or overtake each other.
    #[error("private= is not for {0}: addresses, whose frames may overtake each other; it has encryption of its own")]
    PrivateOn(&'static str),
    /// A cap that is no size.
    #[error("cap={text:?}: {error}")]
    Cap {
        /// What was written.
        text: String,
        /// What is wrong with it.
        error: SizeError,
    },
    /// A dialect that we do not speak.
    #[error("unknown dialect {0:?}: allowed are ahp, cep22, stdio and plain")]
    Dialect(String),
    /// A preset that we do not have.
    #[error("unknown preset {0:?}: allowed are {known}", known = super::options::preset_names())]
    Preset(String),
}

impl AddressError {
    /// Refuses an option by its name, and says which one was probably meant.
    #[must_use]
    pub fn unknown_option(name: &str) -> Self {
        Self::UnknownOption { name: name.to_owned(), likely: super::options::likely(name) }
    }
}
