//! The errors of the program, each as one line for a person, and their exit status.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use breakbulk::DialError;
use breakbulk::gateway::Losses;
use breakbulk_proto::{CloseReason, SendError};

use crate::settings::SettingError;
use crate::shutdown::Signal;
use crate::units;

/// Why the program ends before its work is done.
#[derive(Debug)]
pub(crate) enum Error {
    /// An argument is invalid.
    Arguments(String),
    /// A setting is invalid.
    Setting(SettingError),
    /// The input broke a rule.
    Input(Failure),
    /// The input broke rules that standard error has named already.
    Reported,
    /// The input contains frames of this dialect, and they were passed on as messages.
    OtherDialect(&'static str),
    /// Reading failed.
    Reading(io::Error),
    /// Writing failed.
    Output(io::Error),
    /// Reading a file failed.
    File(PathBuf, io::Error),
    /// Writing to a file or a directory failed.
    Writing(PathBuf, io::Error),
    /// The system gave no random bytes.
    Random(getrandom::Error),
    /// The system gave no threads or no signals.
    Runtime(io::Error),
    /// The connection ended, why, and how in words.
    Closed(CloseReason, String),
    /// There is no link to the peer.
    Dial(DialError),
    /// The peer wants a token, or another one, and how to give it.
    Token(DialError, &'static str),
    /// The host or its log has failed.
    Host(String),
    /// This many records of the log are damaged. Their names were printed.
    Damaged(usize),
    /// Entries of the log are missing, and it was said which.
    MissingEntries,
    /// The file of the log is damaged, and it was said how.
    DamagedFile,
    /// Listening for clients failed.
    Listen(String),
    /// The request could not be sent.
    NotSent(SendError),
    /// The answer did not come in time.
    NoAnswer(Duration),
    /// The answer is an error, and was printed.
    Answered,
    /// A turn of a script failed, and why.
    Turn(String),
    /// This signal came before the answer.
    Interrupted(Signal),
    /// Messages were lost, and the log says which.
    Lost(Losses),
    /// One of several bridges has failed.
    Bridge {
        /// Its name in the settings file.
        name: String,
        /// Why.
        error: Box<Error>,
    },
    /// A bug in this program.
    Bug,
}

impl Error {
    /// The exit status: 2 if the caller caused it, 3 if the peer did, 4 if the link did, and 128 plus the
    /// number of the signal where one cut it short.
    pub(crate) const fn status(&self) -> u8 {
        match self {
            Self::Arguments(_) | Self::Setting(_) | Self::Input(_) | Self::Reported => 2,
            Self::Closed(CloseReason::Violation(_), _) => 3,
            Self::Closed(..) => 4,
            Self::Reading(_) | Self::Output(_) | Self::File(..) | Self::Writing(..) => 1,
            Self::Random(_) | Self::Runtime(_) | Self::Dial(_) | Self::Token(..) | Self::Listen(_) => 1,
            Self::NotSent(_)
            | Self::NoAnswer(_)
            | Self::Answered
            | Self::Turn(_)
            | Self::Host(_)
            | Self::Damaged(_) => 1,
            Self::OtherDialect(_) | Self::MissingEntries | Self::DamagedFile | Self::Lost(_) | Self::Bug => 1,
            Self::Interrupted(signal) => signal.status(),
            Self::Bridge { error, .. } => error.status(),
        }
    }
}

/// There is no link. Where a token is missing, `hint` says how to give it.
pub(crate) fn no_link(error: DialError, hint: &'static str) -> Error {
    match error {
        DialError::Status { status: 401, .. } => Error::Token(error, hint),
        error => Error::Dial(error),
    }
}

impl From<SettingError> for Error {
    fn from(error: SettingError) -> Self {
        Self::Setting(error)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Arguments(text) => f.write_str(text),
            Self::Setting(error) => error.fmt(f),
            Self::Input(failure) => failure.fmt(f),
            Self::Reported => f.write_str("bad input"),
            Self::OtherDialect(dialect) => {
                write!(
                    f,
                    "the input has frames of the dialect {dialect}, which were not joined: use --dialect {dialect}"
                )
            }
            Self::Reading(error) => write!(f, "cannot read standard input: {error}"),
            Self::Output(error) => write!(f, "cannot write standard output: {error}"),
            Self::File(path, error) => write!(f, "cannot read {}: {error}", path.display()),
            Self::Writing(path, error) => write!(f, "cannot write to {}: {error}", path.display()),
            Self::Random(error) => write!(f, "the system gave no random bytes: {error}"),
            Self::Runtime(error) => write!(f, "cannot start: {error}"),
            Self::Closed(reason, how) => write!(f, "disconnected: {how} [{}]", reason.name()),
            Self::Dial(error) => write!(f, "cannot connect: {error}"),
            Self::Token(error, hint) => write!(f, "cannot connect: {error}; {hint}"),
            Self::Listen(why) | Self::Host(why) => f.write_str(why),
            Self::Damaged(1) => f.write_str("one record is damaged"),
            Self::Damaged(count) => write!(f, "{count} records are damaged"),
            Self::MissingEntries => f.write_str("entries are missing"),
            Self::DamagedFile => {
                f.write_str("the file is damaged: restore a backup, or save what is whole with `breakbulk log export`")
            }
            Self::NotSent(error) => write!(f, "not sent: {error} [{}]", error.name()),
            Self::NoAnswer(time) => write!(f, "no answer after {} s", time.as_secs_f32()),
            Self::Answered => f.write_str("the answer is an error"),
            Self::Turn(why) => write!(f, "the turn failed: {why}"),
            Self::Interrupted(signal) => write!(f, "{signal} before the answer came"),
            Self::Lost(Losses { messages, answers, .. }) => {
                let lost = [(*messages, "message", "messages"), (*answers, "answer", "answers")];
                let lost = lost.iter().filter(|(count, ..)| *count > 0);
                let lost: Vec<String> = lost.map(|(count, one, many)| units::count(*count, one, many)).collect();
                let verb = if messages.saturating_add(*answers) == 1 { "was" } else { "were" };
                write!(f, "{} {verb} lost: see the warning above", lost.join(" and "))
            }
            Self::Bridge { name, error } => write!(f, "bridge {name:?}: {error}"),
            Self::Bug => f.write_str("a connection was lost by a bug in this program"),
        }
    }
}

/// Which rule the input broke, and where; with the rule's short name.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// The line, from 1, and its length if that says something.
    pub(crate) line: Option<(u64, Option<u64>)>,
    pub(crate) text: String,
    pub(crate) rule: &'static str,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some((line, Some(size))) => write!(f, "line {line} ({size} bytes): ")?,
            Some((line, None)) => write!(f, "line {line}: ")?,
            None => {}
        }
        write!(f, "{} [{}]", self.text, self.rule)
    }
}

#[cfg(test)]
mod tests {
    use breakbulk_proto::Violation;

    use super::*;

    #[test]
    fn the_status_says_who_is_to_blame() {
        let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
        for (error, status) in [
            (Error::Runtime(refused()), 1),
            (Error::Arguments("x".into()), 2),
            (Error::Setting(SettingError::NotText { variable: "X".into() }), 2),
            (Error::Closed(CloseReason::Violation(Violation::FrameNotUtf8), String::new()), 3),
            (Error::Closed(CloseReason::Peer { code: 1006 }, String::new()), 4),
            (Error::Closed(CloseReason::Restart, String::new()), 4),
            (Error::Interrupted(Signal::Interrupt), 130),
            (Error::Interrupted(Signal::Terminate), 143),
        ] {
            assert_eq!(error.status(), status, "{error}");
        }
    }

    #[test]
    fn a_failure_names_line_sizes_and_rule() {
        let failure = Failure { line: Some((3, Some(40))), text: "index 3 where 2 was due".into(), rule: "index" };
        assert_eq!(failure.to_string(), "line 3 (40 bytes): index 3 where 2 was due [index]");
        assert_eq!(Failure { line: Some((3, None)), text: "x".into(), rule: "y" }.to_string(), "line 3: x [y]");
        assert_eq!(Failure { line: None, text: "x".into(), rule: "y" }.to_string(), "x [y]");
    }
}
