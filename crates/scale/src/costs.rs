//! What each step costs. Times are seconds, sizes are bytes.
//!
//! The values were measured on two shared cores with `nats-server` 2.15.1 and this project's benches, or are marked as assumed. The
//! simulation is only as true as these.

/// The costs of one run.
#[derive(Debug, Clone)]
pub(crate) struct Costs {
    /// One synced write of a small message on one server, with nothing beside it. Measured: 2,640 a second.
    pub(crate) disk_write: f64,
    /// Synced writes of different streams that one server's disk does at once. Measured: 5,970 a second in all.
    pub(crate) disk_lanes: usize,
    /// What a disk writes in a second beyond the sync. Assumed: 500 MB/s, one NVMe disk.
    pub(crate) disk_rate: f64,
    /// One way between two machines of a region. Assumed.
    pub(crate) hop: f64,
    /// One way between a client and its node. Assumed.
    pub(crate) client_hop: f64,
    /// Processor time of the owner for one action: check, reduce, encode. Measured with the host's benches.
    pub(crate) owner_cpu: f64,
    /// Processor time of a node for one action that one client is sent. Measured: 200 clients take 1 MB in 52 ms, of which most is bytes.
    pub(crate) send_cpu: f64,
    /// What a node's core moves in a second to clients. Measured: 1 MB to 200 clients in 52 ms on two cores.
    pub(crate) send_rate: f64,
    /// Processor time of a node for a client that connects: TLS, handshake, the answer. Assumed 1 ms, most of it TLS.
    pub(crate) connect_cpu: f64,
    /// Cores of a node. Assumed.
    pub(crate) node_cores: usize,
    /// A batched direct get of up to 1,000 entries from a server. Measured: 4,100 messages replay in 54 ms.
    pub(crate) read_entry: f64,
    /// A read of a snapshot from the object store. Assumed: 5 ms. One scenario has a slower store.
    pub(crate) object_read: f64,
    /// Snapshot reads that one node has under way at once: the host's limit.
    pub(crate) object_reads_at_once: usize,
    /// A lease is lost so long after its owner has fallen silent. The default of `serve`.
    pub(crate) lease: f64,
    /// A node looks so often for leases that have ended: a third of the lease, as it renews its own.
    pub(crate) lease_check: f64,
    /// From the won lease to the first append: fence entry, catalogue, open turns ended. Measured.
    pub(crate) take_over: f64,
    /// How long a stream has no leader after its leader was killed. Measured: 4.4 to 6.2 s.
    pub(crate) election: (f64, f64),
    /// A client that lost its link tries again after a random part of this.
    pub(crate) backoff: f64,
    /// A client notices a node that is gone: its socket closes at once, or after this if the machine is gone. The default keepalive.
    pub(crate) silence: f64,
    /// Bytes of one action on average: a merged delta of 200 ms of an answer, with its envelope.
    pub(crate) action_bytes: f64,
    /// Bytes of a session in a host's catalogue.
    pub(crate) catalogue_entry: f64,
    /// Bytes of a snapshot of an active chat: the turns in view.
    pub(crate) snapshot_bytes: f64,
    /// Entries that every node keeps in memory for each host that it follows, so that a short absence needs no read.
    pub(crate) window_entries: f64,
}

impl Default for Costs {
    fn default() -> Self {
        Self {
            disk_write: 1.0 / 2640.0,
            disk_lanes: 2,
            disk_rate: 500e6,
            hop: 0.000_25,
            client_hop: 0.015,
            owner_cpu: 40e-6,
            send_cpu: 12e-6,
            send_rate: 1.9e9,
            connect_cpu: 0.001,
            node_cores: 8,
            read_entry: 0.054 / 4100.0,
            object_read: 0.005,
            object_reads_at_once: 32,
            lease: 3.0,
            lease_check: 1.0,
            take_over: 0.2,
            election: (4.4, 6.2),
            backoff: 1.0,
            silence: 30.0,
            action_bytes: 600.0,
            catalogue_entry: 300.0,
            snapshot_bytes: 60_000.0,
            window_entries: 4096.0,
        }
    }
}
