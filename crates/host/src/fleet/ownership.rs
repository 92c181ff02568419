//! Keeps a lease in a KV bucket: does what the [`Lease`] asks for, and tells who owns the host.

use std::time::{Duration, Instant};

use async_nats::Client;
use async_nats::jetstream::context::{GetStreamError, GetStreamErrorKind};
use async_nats::jetstream::kv::{self, UpdateErrorKind};
use async_nats::jetstream::stream::LastRawMessageErrorKind;
use async_nats::jetstream::{self, stream};
use futures_util::TryStreamExt;
use thiserror::Error;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{timeout, timeout_at};
use tracing::{debug, info, warn};

use super::lease::{Lease, LeaseRecord, LeaseStep, NodeInfo, Standing, WriteOutcome};
use super::servers::{ConnectError, Nats};
use crate::log::jetstream::{HostName, JetStreamConfig, JetStreamError, JetStreamLog};

/// The bucket that has the leases of all hosts.
const BUCKET: &str = "breakbulk-hosts";
/// The time in which others take a lease that was given back. They look more often.
const OTHERS_FIRST: Duration = Duration::from_millis(600);
/// How long one call may take while nothing depends on it.
const CALL: Duration = Duration::from_secs(5);

/// Where leases are stored.
#[derive(Debug, Clone)]
pub struct LeaseStore {
    bucket: kv::Store,
    nats: Nats,
}

impl LeaseStore {
    /// The bucket, if there is one.
    ///
    /// # Errors
    /// JetStream does not answer, or refuses.
    pub async fn find(nats: &Nats) -> Result<Option<Self>, ConnectError> {
        let context = jetstream::new(nats.client());
        match timeout(CALL, context.get_key_value(BUCKET)).await {
            Ok(Ok(bucket)) => Ok(Some(Self { bucket, nats: nats.clone() })),
            Ok(Err(error)) if is_missing(&error) => Ok(None),
            Ok(Err(error)) => Err(nats.explain(&format!("cannot open the bucket {BUCKET}: {error}"))),
            Err(_) => Err(nats.explain(&format!("no answer about the bucket {BUCKET}"))),
        }
    }

    /// Opens the bucket, or makes it with so many replicas.
    ///
    /// # Errors
    /// JetStream does not answer, or refuses.
    pub async fn open(nats: &Nats, replicas: usize) -> Result<Self, ConnectError> {
        if let Some(store) = Self::find(nats).await? {
            return Ok(store);
        }
        let context = jetstream::new(nats.client());
        let config = kv::Config {
            bucket: BUCKET.to_owned(),
            description: "which node serves each host".to_owned(),
            history: 1,
            num_replicas: replicas,
            storage: stream::StorageType::File,
            ..kv::Config::default()
        };
        match timeout(CALL, context.create_key_value(config)).await {
            Ok(Ok(bucket)) => Ok(Self { bucket, nats: nats.clone() }),
            Ok(Err(error)) => Err(nats.explain(&format!("cannot make the bucket {BUCKET}: {error}"))),
            Err(_) => Err(nats.explain(&format!("no answer about the bucket {BUCKET}"))),
        }
    }

    /// The lease of a host, with its revision. Revision 0 is none.
    ///
    /// # Errors
    /// The store does not answer, or the record cannot be understood.
    pub async fn read(&self, host: &HostName) -> Result<(u64, Option<LeaseRecord>), ConnectError> {
        // The leader is asked: a replica that is behind could show an old lease for as long as it stays behind.
        let subject = format!("$KV.{BUCKET}.{host}");
        let message = match self.bucket.stream.get_last_raw_message_by_subject(&subject).await {
            Ok(message) => message,
            Err(error) if matches!(error.kind(), LastRawMessageErrorKind::NoMessageFound) => return Ok((0, None)),
            Err(error) => return Err(self.nats.explain(&error.to_string())),
        };
        if message.headers.get("KV-Operation").is_some() {
            return Ok((message.sequence, None));
        }
        match serde_json::from_slice(&message.payload) {
            Ok(record) => Ok((message.sequence, Some(record))),
            Err(error) => Err(self.nats.explain(&format!("the lease of {host} cannot be understood: {error}"))),
        }
    }

    /// The hosts that have a lease, or had one.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn hosts(&self) -> Result<Vec<HostName>, ConnectError> {
        let failed = |error: &dyn std::fmt::Display| self.nats.explain(&format!("cannot list the hosts: {error}"));
        let keys = timeout(CALL, self.bucket.keys()).await.map_err(|error| failed(&error))?;
        let keys: Vec<String> =
            keys.map_err(|error| failed(&error))?.try_collect().await.map_err(|error| failed(&error))?;
        let mut hosts: Vec<HostName> = keys.iter().filter_map(|key| key.parse().ok()).collect();
        hosts.sort();
        Ok(hosts)
    }

    async fn write(&self, host: &HostName, record: &LeaseRecord, revision: u64) -> WriteOutcome {
        let Ok(text) = serde_json::to_vec(record) else { return WriteOutcome::Unknown };
        match self.bucket.update(host.as_str(), text.into(), revision).await {
            Ok(revision) => WriteOutcome::Written(revision),
            Err(error) if error.kind() == UpdateErrorKind::WrongLastRevision => WriteOutcome::Conflict,
            Err(error) => {
                debug!("the lease of {host} was not written: {error}");
                WriteOutcome::Unknown
            }
        }
    }
}

/// This node's part in who owns a host. It takes the host over when nobody has it. When this is dropped, it stops without giving the
/// lease back.
#[derive(Debug)]
pub struct Ownership {
    standing: watch::Receiver<Standing>,
    valid_until: watch::Receiver<Option<Instant>>,
    commands: mpsc::Sender<Command>,
    task: JoinHandle<()>,
}

/// Why an owner cannot open its log.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OpenLogError {
    /// This node does not own the host any more.
    #[error("another node owns the host now")]
    NotOwner,
    /// The log does not open.
    #[error(transparent)]
    Log(#[from] JetStreamError),
}

#[derive(Debug)]
enum Command {
    /// Gives the lease back. With `is_last`, it is not taken again.
    Release { is_last: bool, done: oneshot::Sender<()> },
    /// Raises the epoch above this one. Answers whether this node still owns.
    Raise { above: u64, done: oneshot::Sender<bool> },
}

impl Ownership {
    /// Begins to watch the lease of a host, and takes it when it can.
    #[must_use]
    pub fn start(store: LeaseStore, host: HostName, me: NodeInfo, lease: Duration) -> Self {
        let (say, standing) = watch::channel(Standing::Nobody);
        let (renewed, valid_until) = watch::channel(None);
        let (commands, asked) = mpsc::channel(8);
        let machine = Lease::new(me, lease, Instant::now());
        let runner = Runner { store, host, lease: machine, time: lease, say, renewed, is_reachable: true };
        Self { standing, valid_until, commands, task: tokio::spawn(runner.run(asked)) }
    }

    /// Who owns the host, as it changes.
    #[must_use]
    pub fn standing(&self) -> watch::Receiver<Standing> {
        self.standing.clone()
    }

    /// Until when this node owns the host without another renewal; `None` while it does not own. A process that was stopped and wakes
    /// up believes for a moment that it owns: whoever looks at the clock too knows better.
    #[must_use]
    pub fn valid_until(&self) -> watch::Receiver<Option<Instant>> {
        self.valid_until.clone()
    }

    /// Gives the lease back, so that another node takes it at once, and stops. Without an answer of the store, it ends after the lease.
    pub async fn hand_over(&self) {
        self.release(true).await;
    }

    /// Gives the lease back, and takes it again if nobody else does.
    pub async fn step_back(&self) {
        self.release(false).await;
    }

    async fn release(&self, is_last: bool) {
        let (done, told) = oneshot::channel();
        if self.commands.send(Command::Release { is_last, done }).await.is_ok() {
            // Without an answer, the task has ended.
            drop(told.await);
        }
    }

    /// Opens the log of the host, which fences a former owner.
    ///
    /// # Errors
    /// This node does not own the host (any more), or JetStream does not answer.
    pub async fn open_log(&self, client: Client, config: &JetStreamConfig) -> Result<JetStreamLog, OpenLogError> {
        loop {
            let Standing::Owner { epoch } = *self.standing.borrow() else { return Err(OpenLogError::NotOwner) };
            let mut config = config.clone();
            config.epoch = Some(epoch);
            match JetStreamLog::open(client.clone(), config).await {
                // The bucket is younger than the log, or another node has taken over.
                Err(JetStreamError::LaterOwner { epoch }) if self.raise(epoch).await => {}
                Err(JetStreamError::LaterOwner { .. }) => return Err(OpenLogError::NotOwner),
                opened => return Ok(opened?),
            }
        }
    }

    /// Raises the epoch above this one, which the log has. False if this node does not own any more.
    async fn raise(&self, above: u64) -> bool {
        let (done, told) = oneshot::channel();
        self.commands.send(Command::Raise { above, done }).await.is_ok() && told.await.unwrap_or(false)
    }
}

impl Drop for Ownership {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Runner {
    store: LeaseStore,
    host: HostName,
    lease: Lease,
    time: Duration,
    say: watch::Sender<Standing>,
    renewed: watch::Sender<Option<Instant>>,
    is_reachable: bool,
}

impl Runner {
    async fn run(mut self, mut asked: mpsc::Receiver<Command>) {
        loop {
            let step = self.lease.next(Instant::now());
            self.publish();
            match step {
                LeaseStep::Read => self.read().await,
                LeaseStep::Write { record, revision } => drop(self.write(&record, revision).await),
                LeaseStep::Wait(until) => tokio::select! {
                    () = tokio::time::sleep_until(until.into()) => {}
                    command = asked.recv() => match command {
                        None => return,
                        Some(command) => if self.obey(command).await { return },
                    },
                },
            }
        }
    }

    /// Does what was asked for. True if that was the last thing to do.
    async fn obey(&mut self, command: Command) -> bool {
        match command {
            Command::Release { is_last, done } => {
                if let Some((record, revision)) = self.lease.release() {
                    let outcome = self.write(&record, revision).await;
                    info!(host = %self.host, epoch = record.epoch, ?outcome, "this node has given the host back");
                    self.publish();
                }
                if !is_last {
                    tokio::time::sleep(OTHERS_FIRST).await;
                }
                // Whoever asked may be gone.
                let _ = done.send(());
                is_last
            }
            Command::Raise { above, done } => {
                let mut owns = false;
                if let Some((record, revision)) = self.lease.raise(above) {
                    owns = matches!(self.write(&record, revision).await, WriteOutcome::Written(_));
                    self.publish();
                }
                let _ = done.send(owns);
                false
            }
        }
    }

    async fn read(&mut self) {
        match timeout_at(self.deadline(), self.store.read(&self.host)).await {
            Ok(Ok((revision, record))) => {
                self.reached(None);
                self.lease.read(revision, record, Instant::now());
            }
            Ok(Err(error)) => {
                self.reached(Some(&error.to_string()));
                self.lease.unreadable(Instant::now());
            }
            Err(_) => {
                self.reached(Some("no answer"));
                self.lease.unreadable(Instant::now());
            }
        }
    }

    async fn write(&mut self, record: &LeaseRecord, revision: u64) -> WriteOutcome {
        let sent = Instant::now();
        let written = timeout_at(self.deadline(), self.store.write(&self.host, record, revision)).await;
        let outcome = written.unwrap_or(WriteOutcome::Unknown);
        self.lease.written(record, outcome, sent, Instant::now());
        outcome
    }

    /// Until when a call may take: a fraction of the lease, and not longer than the node may go on.
    fn deadline(&self) -> tokio::time::Instant {
        let usual = tokio::time::Instant::now() + self.time / 4;
        self.lease.give_up_at().map_or(usual, |end| usual.min(end.into()))
    }

    fn reached(&mut self, error: Option<&str>) {
        if std::mem::replace(&mut self.is_reachable, error.is_none()) == error.is_none() {
            return;
        }
        match error {
            Some(error) => warn!(host = %self.host, "the lease cannot be read: {error}"),
            None => info!(host = %self.host, "the lease can be read again"),
        }
    }

    fn publish(&self) {
        let standing = self.lease.standing();
        self.renewed.send_replace(self.lease.give_up_at());
        self.say.send_if_modified(|known| {
            let has_changed = *known != standing;
            if has_changed {
                match &standing {
                    Standing::Owner { epoch } => info!(host = %self.host, epoch, "this node owns the host"),
                    Standing::Other(record) => {
                        let LeaseRecord { node, epoch, .. } = record;
                        info!(host = %self.host, epoch, node = node.id, address = node.address, "another node owns the host");
                    }
                    Standing::Nobody => info!(host = %self.host, "no node is known to own the host"),
                }
                known.clone_from(&standing);
            }
            has_changed
        });
    }
}

/// Whether the bucket is not there.
fn is_missing(error: &jetstream::context::KeyValueError) -> bool {
    let cause = std::error::Error::source(error).and_then(|cause| cause.downcast_ref::<GetStreamError>());
    let Some(GetStreamErrorKind::JetStream(error)) = cause.map(GetStreamError::kind) else { return false };
    error.error_code() == jetstream::ErrorCode::STREAM_NOT_FOUND
}
