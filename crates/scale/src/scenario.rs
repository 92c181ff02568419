//! What goes wrong in a run, and when.

/// How large the fleet is.
#[derive(Debug, Clone)]
pub(crate) struct Size {
    pub(crate) sessions: usize,
    /// The share of sessions in which something happens.
    pub(crate) active: f64,
    pub(crate) hosts: usize,
    pub(crate) nodes: usize,
    /// NATS servers.
    pub(crate) servers: usize,
    /// Nodes and servers are spread evenly over so many racks, and the replicas of a stream too.
    pub(crate) racks: usize,
    /// Servers that hold a copy of each stream.
    pub(crate) replicas: usize,
    /// Clients that are connected.
    pub(crate) clients: usize,
    /// Actions of all active sessions in a second.
    pub(crate) actions: f64,
    pub(crate) seconds: usize,
}

impl Size {
    /// The size that the fleet is designed for.
    pub(crate) fn large() -> Self {
        Self {
            sessions: 1_000_000,
            active: 0.01,
            hosts: 512,
            nodes: 64,
            servers: 24,
            racks: 3,
            replicas: 3,
            clients: 100_000,
            actions: 20_000.0,
            seconds: 90,
        }
    }

    /// A size that one machine can really run.
    pub(crate) fn small() -> Self {
        Self {
            sessions: 100,
            active: 0.3,
            hosts: 1,
            nodes: 3,
            servers: 3,
            racks: 3,
            replicas: 3,
            clients: 30,
            actions: 200.0,
            seconds: 40,
        }
    }
}

/// What goes wrong. All faults begin at [`FAULT_AT`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// From then on every session sends so many times as much.
    Burst(u32),
    /// The NATS server that leads the most streams is killed, and comes back after 25 s.
    ServerLost,
    /// The node that owns the most hosts is killed.
    NodeLost,
    /// The server and the node of the two faults above, at the same moment.
    ServerAndNodeLost,
    /// All servers and nodes of one rack are gone, and do not come back.
    RackLost,
    /// So many clients lose their links at once.
    ClientsReturn(usize),
    /// As before, while each read of the object store takes so many milliseconds.
    SlowObjectStore {
        clients: usize,
        read_ms: u64,
    },
}

/// Seconds after the start of a run.
pub(crate) const FAULT_AT: f64 = 20.0;

/// How long a killed server is gone.
pub(crate) const SERVER_GONE: f64 = 25.0;

impl Fault {
    /// The runs of a report, with their headings.
    pub(crate) fn all(clients: usize) -> [(&'static str, &'static str, Self); 8] {
        [
            ("steady", "Nothing goes wrong", Self::None),
            ("burst", "Every session sends ten times as much", Self::Burst(10)),
            ("server", "A NATS server is lost, and its streams need new leaders", Self::ServerLost),
            ("node", "A node is lost, and its hosts need new owners", Self::NodeLost),
            ("both", "A NATS server and a node are lost together", Self::ServerAndNodeLost),
            ("rack", "A rack is lost: a third of the servers and of the nodes", Self::RackLost),
            ("return", "All clients come back at once", Self::ClientsReturn(clients)),
            (
                "slow-store",
                "All clients come back while a read of the object store takes 2 s",
                Self::SlowObjectStore { clients, read_ms: 2000 },
            ),
        ]
    }
}
