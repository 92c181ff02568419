//! The settings of a relay as proven: where it listens, and what it may use.

use std::time::Duration;

use breakbulk::{Address, Transport};

use super::proof::{Access, missing, together};
use super::serve::check_query;
use super::{Layers, SettingError, Settings};

/// Where a relay listens if nobody says where.
const USUAL: &str = "ws://127.0.0.1:8080";

/// The validated settings of `relay`.
#[derive(Debug)]
pub(crate) struct RelaySettings {
    /// A WebSocket's address, without a path.
    pub(crate) listen: Address,
    pub(crate) access: Access,
    /// The longest frame of a client.
    pub(crate) cap: Option<u64>,
    /// What the messages that wait for clients may take.
    pub(crate) memory: u64,
    pub(crate) max_connections: Option<usize>,
    pub(crate) ping_interval: Duration,
    pub(crate) idle_timeout: Duration,
}

impl RelaySettings {
    pub(crate) fn prove(settings: &Settings, layers: &Layers) -> Result<Self, SettingError> {
        let listen = match &settings.listen {
            Some(listen) => listen.0.clone(),
            None => USUAL.parse().map_err(|_| missing("listen"))?,
        };
        let allowed = match &listen.transport {
            Transport::WebSocket { target, .. } if target == "/" => Ok(()),
            Transport::WebSocket { target, .. } => {
                check_query(target).and(Err("allowed is no path: hubs are at /client/hubs/NAME".to_owned()))
            }
            _ => Err("allowed are ws://HOST:PORT and wss://HOST:PORT".to_owned()),
        };
        allowed.map_err(|why| layers.refuse("listen", why))?;
        let access = Access::prove(settings, Some(&listen), layers)?;
        if settings.ping_interval >= settings.idle_timeout {
            let why = "contradict each other: the first must be shorter";
            return Err(together(layers, "ping_interval", "idle_timeout", why));
        }
        let cap = listen.cap.or(settings.cap.map(|cap| cap.0));
        if cap.is_some_and(|cap| !(MIN_CAP..=MAX_CAP).contains(&cap)) {
            return Err(layers.refuse("cap", format!("allowed as a cap are {MIN_CAP} to {MAX_CAP} bytes")));
        }
        Ok(Self {
            cap,
            access,
            memory: settings.memory.0,
            max_connections: settings.max_connections.map(|count| usize::try_from(count.0).unwrap_or(usize::MAX)),
            ping_interval: settings.ping_interval.0,
            idle_timeout: settings.idle_timeout.0,
            listen,
        })
    }
}

/// A shorter frame has no room for what the protocol writes around a message.
const MIN_CAP: u64 = 4 << 10;
/// What a relay keeps for each client in memory is counted in whole frames.
const MAX_CAP: u64 = 1 << 30;
