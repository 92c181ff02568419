//! `breakbulk fleet`: shows what is in a fleet.

use std::io::{self, BufWriter, Write};

use breakbulk_host::fleet::{self, HostStatus, LeaseStore, NodeStatus, Tenure};
use serde_json::{Value, json};

use crate::args::{FleetCommand, Format, StatusArgs};
use crate::config::print_json;
use crate::failure::Error;
use crate::runtime;
use crate::settings::{FleetSettings, HostSettings};
use crate::store;
use crate::units;

/// Does what a command asks for.
pub(crate) fn run(command: FleetCommand) -> Result<(), Error> {
    runtime::run(async {
        match command {
            FleetCommand::Status(args) => status(args).await,
        }
    })
}

async fn status(args: StatusArgs) -> Result<(), Error> {
    let (_, configuration) = crate::prepare(args.settings)?;
    let host = HostSettings::read(&configuration.layers)?;
    let Some(settings) = FleetSettings::prove(&host, &configuration.layers)? else {
        return Err(Error::Arguments("which NATS servers? give --log nats://HOST:PORT, or set BREAKBULK_LOG".into()));
    };
    let failed = |error: fleet::ConnectError| Error::Host(error.to_string());
    let nats = store::connect(&settings).await?;
    let leases = LeaseStore::find(&nats).await.map_err(failed)?;
    let hosts = match leases {
        Some(leases) => fleet::status(&nats, &leases).await.map_err(failed)?,
        None => Vec::new(),
    };
    let output = BufWriter::new(io::stdout());
    match args.format {
        Format::Json => print_json(hosts.iter().map(object), output),
        Format::Text => print(&hosts, output).map_err(Error::Output),
    }
}

fn print(hosts: &[HostStatus], mut output: impl Write) -> io::Result<()> {
    if hosts.is_empty() {
        writeln!(output, "no node has served a host yet")?;
    }
    for HostStatus { host, lease, messages, bytes, nodes } in hosts {
        let owner = match lease {
            Some(lease) if lease.tenure == Tenure::Held => {
                format!("owned by {} at {}, epoch {}", lease.node.id, lease.node.address, lease.epoch)
            }
            Some(lease) => format!("not owned, last epoch {}", lease.epoch),
            None => "never owned".to_owned(),
        };
        let (messages, bytes) = (units::count(*messages, "message", "messages"), units::size(*bytes));
        writeln!(output, "host {host}: {owner}; {messages}, {bytes}")?;
        for NodeStatus { node, version, epoch, clients, carried } in nodes {
            let role = match epoch {
                Some(epoch) => format!("serves since epoch {epoch}, {}", units::count(*clients, "client", "clients")),
                None => format!("carries {}", units::count(*carried, "connection", "connections")),
            };
            writeln!(output, "  node {} at {}: {role}; version {version}", node.id, node.address)?;
        }
        let answers = |id: &str| nodes.iter().any(|node| node.node.id == id);
        if let Some(lease) = lease.as_ref().filter(|lease| lease.tenure == Tenure::Held && !answers(&lease.node.id)) {
            writeln!(output, "  node {} at {}: does not answer", lease.node.id, lease.node.address)?;
        }
    }
    output.flush()
}

fn object(status: &HostStatus) -> Value {
    let HostStatus { host, lease, messages, bytes, nodes } = status;
    let owner = lease.as_ref().filter(|lease| lease.tenure == Tenure::Held).map(|lease| &lease.node);
    json!({
        "host": host,
        "owner": owner,
        "epoch": lease.as_ref().map(|lease| lease.epoch),
        "leaseMs": lease.as_ref().map(|lease| lease.lease_ms),
        "messages": messages,
        "bytes": bytes,
        "nodes": nodes,
    })
}
