//! What can go wrong, as one line for a person.

use std::fmt;
use std::io;

/// Why the program ends before its work is done.
#[derive(Debug)]
pub(crate) enum Error {
    /// An argument does not hold.
    Arguments(String),
    /// The input broke a rule.
    Input(Failure),
    /// The input broke rules that standard error has named already.
    Reported,
    /// Reading failed.
    Reading(io::Error),
    /// Writing failed.
    Output(io::Error),
    /// The system gave no random bytes.
    Random(getrandom::Error),
}

impl Error {
    /// The exit status: 2 where the caller is to blame, as for bad arguments.
    pub(crate) const fn status(&self) -> u8 {
        match self {
            Self::Arguments(_) | Self::Input(_) | Self::Reported => 2,
            Self::Reading(_) | Self::Output(_) | Self::Random(_) => 1,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Arguments(text) => f.write_str(text),
            Self::Input(failure) => failure.fmt(f),
            Self::Reported => f.write_str("bad input"),
            Self::Reading(error) => write!(f, "cannot read standard input: {error}"),
            Self::Output(error) => write!(f, "cannot write standard output: {error}"),
            Self::Random(error) => write!(f, "no random bytes: {error}"),
        }
    }
}

/// A rule that the input broke: where, what, and the rule's short name.
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
    use super::*;

    #[test]
    fn a_failure_names_line_sizes_and_rule() {
        let failure = Failure { line: Some((3, Some(40))), text: "index 3 where 2 was due".into(), rule: "index" };
        assert_eq!(failure.to_string(), "line 3 (40 bytes): index 3 where 2 was due [index]");
        assert_eq!(Failure { line: Some((3, None)), text: "x".into(), rule: "y" }.to_string(), "line 3: x [y]");
        assert_eq!(Failure { line: None, text: "x".into(), rule: "y" }.to_string(), "x [y]");
    }
}
