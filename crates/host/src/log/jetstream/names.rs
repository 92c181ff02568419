//! The names of a host's streams and subjects.
//!
//! A host has two streams. One has the entries, in their order, and what is decided about them; the other has long bodies,
//! snapshots, rows and checkpoints, which have no order. A subject says whose bytes a message has, so that what belongs to a
//! session or to a channel can be removed by its subject:
//!
//! | Subject | What it has |
//! |---|---|
//! | `bb.HOST.c` | decisions: a new owner, a saved snapshot, what was trimmed or erased |
//! | `bb.HOST.e.OWNER.CHANNEL` | entries of a channel; the owner is the session that they are about, or that the channel belongs to, or the channel |
//! | `bb.HOST.d.OWNER.CHANNEL.…` | bytes of that channel |
//! | `bb.HOST.k` | where the newest checkpoint is |
//! | `bb.HOST.n` | no stream: nodes answer there |
//!
//! Names of sessions and channels are in subjects as digests, because they may contain anything.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};
use thiserror::Error;

/// The longest name of a host.
const MAX_NAME: usize = 32;

/// Bytes of a digest in a subject: so many that no two names of a host share one.
const TOKEN_BYTES: usize = 15;

/// The name of a host in a fleet: at most 32 of `a-z`, `0-9`, `-` and `_`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostName(Arc<str>);

/// A name that no host can have.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("a host cannot be called {0:?}: a name has 1 to 32 characters of a-z, 0-9, - and _")]
pub struct HostNameError(String);

impl FromStr for HostName {
    type Err = HostNameError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_valid = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'_');
        if text.is_empty() || text.len() > MAX_NAME || !text.bytes().all(is_valid) {
            return Err(HostNameError(text.to_owned()));
        }
        Ok(Self(text.into()))
    }
}

impl HostName {
    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The stream of entries.
    #[must_use]
    pub fn stream(&self) -> String {
        format!("BREAKBULK_{self}")
    }

    /// The stream of long bodies, snapshots, rows and checkpoints.
    #[must_use]
    pub fn data_stream(&self) -> String {
        format!("BREAKBULK_{self}_DATA")
    }

    /// Where nodes are asked who they are.
    pub(crate) fn nodes(&self) -> String {
        format!("bb.{self}.n")
    }

    pub(super) fn control(&self) -> String {
        format!("bb.{self}.c")
    }

    pub(super) fn entries(&self, owner: &str, channel: &str) -> String {
        format!("bb.{self}.e.{}.{}", token(owner), token(channel))
    }

    pub(super) fn data(&self, owner: &str, channel: &str) -> String {
        format!("bb.{self}.d.{}.{}", token(owner), token(channel))
    }

    pub(super) fn all_entries(&self) -> String {
        format!("bb.{self}.e.>")
    }

    /// Everything in the stream of entries.
    pub(super) fn all(&self) -> String {
        format!("bb.{self}.>")
    }

    pub(super) fn all_data(&self) -> String {
        format!("bb.{self}.d.>")
    }

    pub(super) fn checkpoint(&self) -> String {
        format!("bb.{self}.k")
    }

    pub(super) fn checkpoint_data(&self, epoch: u64, position: u64) -> String {
        format!("bb.{self}.d.checkpoint.checkpoint.{epoch}-{position}")
    }

    pub(super) fn entries_of_channel(&self, channel: &str) -> String {
        format!("bb.{self}.e.*.{}", token(channel))
    }

    pub(super) fn entries_of_owner(&self, owner: &str) -> String {
        format!("bb.{self}.e.{}.>", token(owner))
    }

    pub(super) fn data_of_channel(&self, channel: &str) -> String {
        format!("bb.{self}.d.*.{}.>", token(channel))
    }

    pub(super) fn data_of_owner(&self, owner: &str) -> String {
        format!("bb.{self}.d.{}.>", token(owner))
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A name as a part of a subject.
fn token(name: &str) -> String {
    let digest = Sha256::digest(name.as_bytes());
    URL_SAFE_NO_PAD.encode(digest.get(..TOKEN_BYTES).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_has_a_name_that_fits_a_subject() {
        for good in ["a", "alpha", "team-7_eu", &"x".repeat(32)] {
            assert_eq!(good.parse::<HostName>().map(|name| name.to_string()).as_deref(), Ok(good));
        }
        for bad in ["", "A", "a.b", "a>", "*", "ä", "a b", &"x".repeat(33)] {
            assert!(bad.parse::<HostName>().is_err(), "{bad}");
        }
    }

    #[test]
    fn whatever_a_channel_is_called_its_subject_has_five_parts() {
        let host: HostName = "alpha".parse().expect("a name");
        for uri in ["ahp-chat:/1", "a.b.c", "*", ">", "", "ü ü"] {
            let subject = host.entries("ahp-session:/1", uri);
            assert_eq!(subject.split('.').count(), 5, "{subject}");
            assert!(!subject.contains(['*', '>', ' ']), "{subject}");
        }
    }
}
