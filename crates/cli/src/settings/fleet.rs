//! The validated settings of a node of a fleet: where the log of its host is, and how other nodes reach it.

use std::time::Duration;

use breakbulk::{Address, Transport};
use breakbulk_host::fleet::NatsAccess;
use breakbulk_host::log::jetstream::HostName;

use super::proof::{ClientAuth, together};
use super::{HostSettings, Layers, SettingError};

/// Leases between these are allowed: a shorter one ends by a busy machine, a longer one keeps clients waiting.
const LEASES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(300)];

/// Where the log of a host is in NATS JetStream, and how this node shares the host.
#[derive(Debug, Clone)]
pub(crate) struct FleetSettings {
    pub(crate) access: NatsAccess,
    pub(crate) host: HostName,
    pub(crate) replicas: usize,
    /// Where other nodes reach this one; `None` for the listening address.
    pub(crate) advertise: Option<Address>,
    pub(crate) lease: Duration,
}

impl FleetSettings {
    /// `None` if the log is in a file.
    pub(crate) fn prove(host: &HostSettings, layers: &Layers) -> Result<Option<Self>, SettingError> {
        let Some(address) = host.log.clone() else { return Ok(None) };
        if let Some(advertise) = &host.advertise {
            check_advertised(advertise).map_err(|why| layers.refuse("advertise", why))?;
        }
        let replicas = match host.replicas.0 {
            1 => 1,
            3 => 3,
            5 => 5,
            _ => return Err(layers.refuse("replicas", "allowed are 1, 3 and 5".to_owned())),
        };
        let [shortest, longest] = LEASES;
        if !(shortest..=longest).contains(&host.lease.0) {
            return Err(layers.refuse("lease", "allowed are 1s to 5m".to_owned()));
        }
        Ok(Some(Self {
            access: NatsAccess {
                address,
                credentials: host.nats_credentials.clone(),
                authorities: host.nats_ca.clone(),
            },
            host: host.host.clone(),
            replicas,
            advertise: host.advertise.clone(),
            lease: host.lease.0,
        }))
    }

    /// What else a node needs that clients can connect to.
    pub(super) fn check_node(
        key: &ClientAuth,
        listen: &Address,
        has_relays: bool,
        layers: &Layers,
    ) -> Result<(), SettingError> {
        if *key == ClientAuth::Made {
            let why = "a token is needed, the same on each node: set BREAKBULK_TOKEN, token in the file or --token";
            return Err(layers.refuse("log", why.to_owned()));
        }
        if has_relays {
            return Err(together(layers, "via", "log", "cannot be used together yet: clients connect to the nodes"));
        }
        if listen.private.is_some() {
            return Err(layers.refuse("listen", "private= cannot be used with log yet".to_owned()));
        }
        Ok(())
    }
}

/// Whether other nodes can use the address.
fn check_advertised(address: &Address) -> Result<(), String> {
    let Transport::WebSocket { port, target, .. } = &address.transport else {
        return Err("allowed are ws://HOST:PORT and wss://HOST:PORT".to_owned());
    };
    if *port == 0 || !matches!(target.as_str(), "/" | "/ahp") {
        return Err("allowed are ws://HOST:PORT and wss://HOST:PORT, with a port and without a path".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::file::File;
    use super::super::layers::Environment;
    use super::*;

    fn prove(text: &str) -> Result<Option<FleetSettings>, String> {
        let file = File::parse("b.toml".into(), text).unwrap();
        let layers = Layers::new(Vec::new(), &Environment::default(), file);
        let host = HostSettings::read(&layers).map_err(|error| error.to_string())?;
        FleetSettings::prove(&host, &layers).map_err(|error| error.to_string())
    }

    #[test]
    fn without_an_address_of_nats_the_log_is_in_a_file() {
        assert!(prove("host = 'alpha'\nreplicas = 3").unwrap().is_none());
    }

    #[test]
    fn a_node_has_a_host_called_main_and_a_lease_of_three_seconds() {
        let fleet = prove("log = 'nats://127.0.0.1:4222'").unwrap().unwrap();
        assert_eq!((fleet.host.as_str(), fleet.replicas, fleet.lease), ("main", 1, Duration::from_secs(3)));
    }

    #[test]
    fn what_a_node_cannot_use_is_refused_without_its_password() {
        for (text, want) in [
            (
                "log = '/var/log'",
                "log is \"/var/log\" (file b.toml:1): allowed is nats://HOST:PORT[,HOST:PORT…] or tls://…, with TOKEN@ or \
                 USER:PASSWORD@ before the first host if needed",
            ),
            (
                "log = 'http://s3cret@h'",
                "log (file b.toml:1) is invalid: allowed is nats://HOST:PORT[,HOST:PORT…] or tls://…, with TOKEN@ or \
                 USER:PASSWORD@ before the first host if needed",
            ),
            (
                "log = 'nats://h'\nhost = 'A'",
                "host is \"A\" (file b.toml:2): allowed are 1 to 32 characters of a-z, 0-9, - and _",
            ),
            ("log = 'nats://h'\nreplicas = 2", "replicas is \"2\" (file b.toml:2): allowed are 1, 3 and 5"),
            ("log = 'nats://h'\nlease = '100ms'", "lease is \"100ms\" (file b.toml:2): allowed are 1s to 5m"),
            (
                "log = 'nats://h'\nadvertise = 'stdio:'",
                "advertise is \"stdio:\" (file b.toml:2): allowed are ws://HOST:PORT and wss://HOST:PORT",
            ),
        ] {
            assert_eq!(prove(text).unwrap_err(), want);
        }
    }
}
