//! Which commands were done, by the ids that clients gave to them: so that each is done once, across reconnects and restarts.
//!
//! A command and the record that it is done are appended together. The records of a session are a channel of its own, which
//! clients cannot subscribe to, and are erased with the session. The last [`MAX_KNOWN`] of each session count.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use breakbulk_lifecycle::v2::wire::AckOutcome;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::sync::Mutex as AsyncMutex;

use crate::host::Transaction;
use crate::lock::lock;
use crate::log::{Log, ReadError, Seq};

/// How many commands of a session are known. A client repeats a command within minutes, not after a thousand others.
const MAX_KNOWN: usize = 1_024;

/// How many sessions' records are in memory: about 100 KiB each at most.
const MAX_SESSIONS: usize = 64;

/// How many bytes of records are read at once.
const PAGE_BYTES: usize = 256 << 10;

/// Larger than every seq, and representable as a signed number.
const END: Seq = 1 << 62;

/// The commands that were done.
pub(super) struct DoneCommands {
    log: Arc<dyn Log>,
    /// The least recently used first.
    sessions: Mutex<VecDeque<(Arc<str>, SharedCommands)>>,
}

type SharedCommands = Arc<AsyncMutex<SessionCommands>>;

/// The commands of one session.
#[derive(Default)]
struct SessionCommands {
    /// Everything up to here was read.
    read: Seq,
    /// The command that has made the session. It is never forgotten: it may come again at each start of a client.
    opened: Option<(Fingerprint, Done)>,
    done: HashMap<Fingerprint, Done>,
    order: VecDeque<Fingerprint>,
}

/// The beginning of a SHA-256.
type Fingerprint = [u8; 16];

/// What a command has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Done {
    payload: Fingerprint,
    pub(super) outcome: AckOutcome,
}

/// A command that is done once.
#[derive(Debug, Clone)]
pub(super) struct OnceCommand {
    session: Arc<str>,
    id: String,
    payload: Fingerprint,
    makes_session: bool,
}

/// Whether a command was done before.
pub(super) enum Before {
    /// It was not. The channel of records ends with this seq.
    NotDone(Seq),
    /// It was, with this outcome.
    Done(AckOutcome),
    /// Another command with the same id was.
    Other,
}

/// A record as the log has it.
#[derive(Serialize, Deserialize)]
struct CommandRecord {
    channel: String,
    done: DoneRecord,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct DoneRecord {
    client_msg_id: String,
    payload: String,
    outcome: AckOutcome,
    /// Whether the command has made the session.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    makes_session: bool,
}

impl OnceCommand {
    /// A command of a session with the id that the client gave to it, and everything that it says.
    pub(super) fn new(session: &str, id: &str, payload: &impl Serialize) -> Self {
        let payload = serde_json::to_vec(payload).unwrap_or_default();
        Self { session: session.into(), id: id.to_owned(), payload: fingerprint(&payload), makes_session: false }
    }

    /// The command that makes a session. Its id is its own, also if a later command of the session has the same.
    pub(super) fn that_makes(session: &str, id: &str, payload: &impl Serialize) -> Self {
        Self { makes_session: true, ..Self::new(session, id, payload) }
    }

    /// The channel of the session's records. Its scheme is one that clients cannot use.
    fn channel(&self) -> String {
        channel_of(&self.session)
    }

    /// Adds the record that the command is done, unless another one was added since `seq`.
    pub(super) fn record(&self, transaction: Transaction, seq: Seq, outcome: AckOutcome) -> Transaction {
        let channel = self.channel();
        let done = DoneRecord {
            client_msg_id: self.id.clone(),
            payload: hex(self.payload),
            outcome,
            makes_session: self.makes_session,
        };
        let body = serde_json::to_vec(&CommandRecord { channel: channel.clone(), done }).unwrap_or_default();
        transaction.expect(&channel, seq).record(&channel, &self.session, Bytes::from(body))
    }
}

impl DoneCommands {
    pub(super) fn new(log: Arc<dyn Log>) -> Self {
        Self { log, sessions: Mutex::default() }
    }

    /// Whether a command was done before.
    pub(super) async fn find(&self, command: &OnceCommand) -> Result<Before, ReadError> {
        let known = self.of(&command.session);
        let mut known = known.lock().await;
        known.read_on(&*self.log, &command.channel()).await?;
        let id = fingerprint(command.id.as_bytes());
        let done = match command.makes_session {
            true => known.opened.as_ref().filter(|(opened, _)| *opened == id).map(|(_, done)| done),
            false => known.done.get(&id),
        };
        Ok(match done {
            None => Before::NotDone(known.read),
            Some(done) if done.payload == command.payload => Before::Done(done.outcome),
            Some(_) => Before::Other,
        })
    }

    fn of(&self, session: &Arc<str>) -> SharedCommands {
        let mut sessions = lock(&self.sessions);
        let at = sessions.iter().position(|(known, _)| known == session);
        let entry = at.and_then(|at| sessions.remove(at)).unwrap_or_else(|| (Arc::clone(session), Arc::default()));
        let known = Arc::clone(&entry.1);
        sessions.push_back(entry);
        if sessions.len() > MAX_SESSIONS {
            sessions.pop_front();
        }
        known
    }
}

impl SessionCommands {
    /// Reads the records that were added since.
    async fn read_on(&mut self, log: &dyn Log, channel: &str) -> Result<(), ReadError> {
        loop {
            let page = match log.read(channel, self.read.saturating_add(1)..END, PAGE_BYTES).await {
                Err(ReadError::Trimmed { first }) if first.saturating_sub(1) > self.read => {
                    self.read = first.saturating_sub(1);
                    continue;
                }
                page => page?,
            };
            let Some(last) = page.last() else { return Ok(()) };
            self.read = last.seq;
            for entry in &page {
                // Records of a session that was closed and begins anew are none.
                let Ok(CommandRecord { done, .. }) = serde_json::from_slice(&entry.body) else { continue };
                let Some(payload) = unhex(&done.payload) else { continue };
                let id = fingerprint(done.client_msg_id.as_bytes());
                let known = Done { payload, outcome: done.outcome };
                if done.makes_session {
                    // What is known from before was of a session with the same name that was disposed of.
                    (self.done, self.order) = Default::default();
                    self.opened = Some((id, known));
                } else if self.done.insert(id, known).is_none() {
                    self.order.push_back(id);
                }
            }
            while self.order.len() > MAX_KNOWN {
                let oldest = self.order.pop_front();
                oldest.and_then(|oldest| self.done.remove(&oldest));
            }
        }
    }
}

/// The channel of a session's records.
fn channel_of(session: &str) -> String {
    format!("ahp-v2:{session}")
}

/// The first half of the SHA-256 of a text.
pub(super) fn fingerprint(text: &[u8]) -> Fingerprint {
    let (mut half, digest) = ([0; 16], Sha256::digest(text));
    half.iter_mut().zip(digest).for_each(|(to, from)| *to = from);
    half
}

/// Bytes as lower-case hexadecimal digits.
pub(super) fn hex(bytes: Fingerprint) -> String {
    format!("{:032x}", u128::from_be_bytes(bytes))
}

fn unhex(text: &str) -> Option<Fingerprint> {
    u128::from_str_radix(text, 16).ok().map(u128::to_be_bytes)
}
