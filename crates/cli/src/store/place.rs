//! Where a log is: in a directory, or in NATS JetStream. What `breakbulk log` does with it is the same.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use breakbulk_host::fleet::{LeaseStore, Nats, NodeInfo, Ownership, Standing};
use breakbulk_host::log::jetstream::{JetStreamConfig, JetStreamError, JetStreamLog};
use breakbulk_host::log::sqlite::{Options, SqliteLog};
use breakbulk_host::log::{
    Channels, Copied, CopyError, DamagedRecord, ExportError, Log, OpenError, ReadError, Report, Usage,
};
use tokio::time::timeout;

use crate::failure::Error;
use crate::serve::unopened;
use crate::settings::{self, Configuration, FleetSettings, HostSettings, Origin};

/// How much longer than its lease an owner is waited for that may be gone.
const PATIENCE: Duration = Duration::from_secs(2);

/// Where a log is.
#[derive(Debug, Clone)]
pub(super) enum Place {
    /// In this directory.
    Directory(PathBuf),
    /// On these NATS servers.
    Fleet(Box<FleetSettings>),
}

/// A log that is open.
pub(super) enum OpenLog {
    File(SqliteLog),
    JetStream {
        log: JetStreamLog,
        /// While it is open for writing, no node serves the host.
        owner: Option<Ownership>,
    },
}

impl Place {
    /// What the settings say.
    pub(super) fn of(configuration: &Configuration) -> Result<Self, Error> {
        let host = HostSettings::read(&configuration.layers)?;
        Ok(match FleetSettings::prove(&host, &configuration.layers)? {
            Some(fleet) => Self::Fleet(Box::new(fleet)),
            None => Self::Directory(settings::data(configuration)?),
        })
    }

    /// What an argument says: a directory, or NATS servers.
    pub(super) fn named(text: &str, argument: &'static str, configuration: &mut Configuration) -> Result<Self, Error> {
        if !["nats://", "tls://"].iter().any(|scheme| text.starts_with(scheme)) {
            return Ok(Self::Directory(text.into()));
        }
        configuration.layers.put("log", text, Origin::Flag(argument.to_owned()));
        Self::of(configuration)
    }

    /// Copies the log of this place to another, where there is none.
    pub(super) async fn copy_to(&self, to: &Self) -> Result<Copied, Error> {
        let (source, copied) = match (self, to) {
            (Self::Directory(_), Self::Fleet(fleet)) => {
                let source = self.open_for_writing().await?;
                let nats = connect(fleet).await?;
                // No node serves the host before all of its log is there.
                let owner = own(fleet, &nats).await?;
                let mut config = JetStreamConfig::new(fleet.host.clone());
                config.replicas = fleet.replicas;
                let copied = match &source {
                    OpenLog::File(log) => JetStreamLog::copy_from(log, nats.client(), config).await,
                    OpenLog::JetStream { .. } => Err(CopyError::Exists),
                };
                drop(timeout(PATIENCE, owner.hand_over()).await);
                (source, copied)
            }
            (Self::Fleet(_), Self::Directory(dir)) => {
                let source = self.open_for_writing().await?;
                let copied = match &source {
                    OpenLog::JetStream { log, .. } => SqliteLog::copy_from(log, dir).await,
                    OpenLog::File(_) => Err(CopyError::Exists),
                };
                (source, copied)
            }
            (Self::Directory(_), Self::Directory(_)) | (Self::Fleet(_), Self::Fleet(_)) => {
                return Err(Error::Arguments(
                    "one of --from and --to is a directory, and the other is nats://…".into(),
                ));
            }
        };
        source.close().await;
        copied.map_err(|error| {
            Error::Host(format!(
                "{}: {error}",
                if matches!(error, CopyError::Exists) { to.name() } else { self.name() }
            ))
        })
    }

    /// Its name, for people.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Directory(dir) => dir.display().to_string(),
            Self::Fleet(fleet) => format!("the host {} at {}", fleet.host, fleet.access.address),
        }
    }

    /// Opens a log that a host may be writing to.
    pub(super) async fn open(&self) -> Result<OpenLog, Error> {
        match self {
            Self::Directory(dir) => {
                let opened = SqliteLog::open_for_reading(dir).await;
                Ok(OpenLog::File(opened.map_err(|error| match error {
                    OpenError::Missing(path) => {
                        let dir = path.parent().unwrap_or(&path);
                        Error::Host(format!("{} has no log; is --data the directory of the host?", dir.display()))
                    }
                    error => unopened(error),
                })?))
            }
            Self::Fleet(fleet) => {
                let nats = connect(fleet).await?;
                let opened = JetStreamLog::follow(nats.client(), JetStreamConfig::new(fleet.host.clone())).await;
                let log = opened.map_err(|error| match error {
                    JetStreamError::Missing(_) => Error::Host(format!("{error}; is --host its name?")),
                    error => Error::Host(nats.explain(&error.to_string()).to_string()),
                })?;
                Ok(OpenLog::JetStream { log, owner: None })
            }
        }
    }

    /// Opens a log that no host has. Nothing is made where there is none.
    pub(super) async fn open_for_writing(&self) -> Result<OpenLog, Error> {
        drop(self.open().await?);
        match self {
            Self::Directory(dir) => {
                Ok(OpenLog::File(SqliteLog::open(dir, Options::default()).await.map_err(unopened)?))
            }
            Self::Fleet(fleet) => {
                let nats = connect(fleet).await?;
                let owner = own(fleet, &nats).await?;
                let config = JetStreamConfig::new(fleet.host.clone());
                let opened = owner.open_log(nats.client(), &config).await;
                let log = opened.map_err(|error| Error::Host(nats.explain(&error.to_string()).to_string()))?;
                Ok(OpenLog::JetStream { log, owner: Some(owner) })
            }
        }
    }
}

impl OpenLog {
    pub(super) fn shared(&self) -> Arc<dyn Log> {
        match self {
            Self::File(log) => Arc::new(log.clone()),
            Self::JetStream { log, .. } => Arc::new(log.clone()),
        }
    }

    pub(super) async fn usage(&self) -> Result<Vec<Usage>, ReadError> {
        match self {
            Self::File(log) => log.usage().await,
            Self::JetStream { log, .. } => log.usage().await,
        }
    }

    /// Compares every record with its checksum. Says how far it is, where that is known.
    pub(super) async fn verify(&self, seen: impl FnMut(u64, u64) + Send + 'static) -> Result<Report, ReadError> {
        match self {
            Self::File(log) => log.verify_with(seen).await,
            Self::JetStream { log, .. } => log.verify().await,
        }
    }

    pub(super) async fn export(
        &self,
        channels: Channels,
        to: &mut (dyn Write + Send),
    ) -> Result<Vec<DamagedRecord>, ExportError> {
        match self {
            Self::File(log) => log.export(channels, to).await,
            Self::JetStream { log, .. } => log.export(channels, to).await,
        }
    }

    /// Closes it, so that a host can open it.
    pub(super) async fn close(&self) {
        match self {
            Self::File(log) => log.close().await,
            Self::JetStream { log, owner } => {
                log.close().await;
                if let Some(owner) = owner {
                    // Without an answer it ends by itself.
                    drop(timeout(PATIENCE, owner.hand_over()).await);
                }
            }
        }
    }
}

/// Connects to the NATS servers.
pub(crate) async fn connect(fleet: &FleetSettings) -> Result<Nats, Error> {
    let failed = |error: breakbulk_host::fleet::ConnectError| Error::Host(error.to_string());
    let nats = fleet.access.connect("log").await.map_err(failed)?;
    nats.check_jetstream().await.map_err(failed)?;
    Ok(nats)
}

/// Takes the lease of a host that no node serves.
async fn own(fleet: &FleetSettings, nats: &Nats) -> Result<Ownership, Error> {
    let failed = |error: breakbulk_host::fleet::ConnectError| Error::Host(error.to_string());
    let leases = LeaseStore::open(nats, fleet.replicas).await.map_err(failed)?;
    let (_, lease) = leases.read(&fleet.host).await.map_err(failed)?;
    let longest = lease.map_or(fleet.lease, |lease| Duration::from_millis(lease.lease_ms).max(fleet.lease));
    let mut random = [0; 4];
    getrandom::fill(&mut random).map_err(Error::Random)?;
    let id = format!("log-{:08x}", u32::from_be_bytes(random));
    let owner = Ownership::start(leases, fleet.host.clone(), NodeInfo { id, address: String::new() }, fleet.lease);
    let mut standing = owner.standing();
    let owns = |standing: &Standing| matches!(standing, Standing::Owner { .. });
    // An owner that is gone has not given its lease back.
    if timeout(longest.saturating_add(PATIENCE), standing.wait_for(owns)).await.is_ok_and(|owned| owned.is_ok()) {
        return Ok(owner);
    }
    Err(Error::Host(match &*standing.borrow() {
        Standing::Other(record) => {
            let (host, address) = (&fleet.host, &record.node.address);
            format!("the host {host} is served by the node at {address}: stop all of its nodes first")
        }
        Standing::Nobody | Standing::Owner { .. } => format!("the lease of the host {} cannot be taken", fleet.host),
    }))
}
