//! The fleet as a queueing model: servers, nodes, hosts and clients, and the events that change them.
//!
//! One action goes this way: client → its node → the owner of the host (forwarded if that is another node) → the host's queue → a
//! publish, with one in flight per host, which takes what the queue holds → the stream's leader and one more replica have synced it →
//! each node that has clients of the host sends it to them. What cannot go on waits: actions for an owner, publishes for a leader.
//!
//! The ledger: each action that a client sends is counted once when it is sent and once when it is committed. A publish whose leader
//! dies has an unknown outcome: the owner waits for the new leader, looks up the end of the stream, and sends again only what is not
//! there. At the end, what was sent is what was committed and what waits.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};

use crate::costs::Costs;
use crate::lanes::Lanes;
use crate::rng::Rng;
use crate::scenario::{FAULT_AT, Fault, SERVER_GONE, Size};
use crate::stats::{Second, Times};

/// What a run showed.
#[derive(Debug, Clone)]
pub(crate) struct Outcome {
    pub(crate) seconds: Vec<Second>,
    /// Latency before the fault, and from it to the end.
    pub(crate) before: Times,
    pub(crate) after: Times,
    /// Actions in one publish.
    pub(crate) group: Times,
    pub(crate) sent: u64,
    pub(crate) committed: u64,
    pub(crate) waiting: u64,
    pub(crate) publishes: u64,
    /// Publishes whose outcome had to be looked up, and those of them that were found in the stream.
    pub(crate) unknown: u64,
    pub(crate) unknown_found: u64,
    /// Hosts that could not take actions for a while, and how long.
    pub(crate) host_outages: Times,
    /// Clients that lost their link, and how long until they had all that they missed.
    pub(crate) client_outages: Times,
    pub(crate) longest_queue: u64,
    pub(crate) most_waiting: u64,
    /// Clients that waited at once for a snapshot from the object store, on one node.
    pub(crate) most_store_waits: u64,
    /// Bytes: to the replicas, from servers to nodes, to clients as actions, to clients that came back.
    pub(crate) bytes_replicated: f64,
    pub(crate) bytes_followed: f64,
    pub(crate) bytes_live: f64,
    pub(crate) bytes_returned: f64,
    /// The busiest disk and the busiest node, as a share of what they can do.
    pub(crate) disk_use: f64,
    pub(crate) node_use: f64,
}

#[derive(Debug, Clone)]
struct Server {
    up: bool,
    rack: usize,
    disk: Lanes,
    reads: Lanes,
}

#[derive(Debug, Clone)]
struct Node {
    up: bool,
    rack: usize,
    cpu: Lanes,
    store: Lanes,
    store_waits: u64,
}

/// Who orders the host's actions.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Owner {
    Node(usize),
    /// Its lease has not ended yet, or nobody has won the next one, or the winner has not begun.
    Nobody,
}

#[derive(Debug, Clone)]
struct Host {
    replicas: Vec<usize>,
    leader: Option<usize>,
    owner: Owner,
    /// Since when it cannot take actions.
    down_since: Option<f64>,
    /// When its stream lost its leader, until what was in flight then has been looked up.
    leader_lost_at: Option<f64>,
    /// Raised whenever leader or owner change, so that what was under way before is known as such.
    generation: u64,
    /// Actions of a second.
    rate: f64,
    /// Clients that see the host's live actions, on each node.
    viewers: Vec<u32>,
    queue: VecDeque<f64>,
    in_flight: Option<Publish>,
    sessions: usize,
}

#[derive(Debug, Clone)]
struct Publish {
    actions: Vec<f64>,
    /// When it is in the logs of enough replicas, whether or not the owner hears of it.
    stored_at: f64,
}

#[derive(Debug, Clone, Copy)]
enum Event {
    /// A client's action reaches the owner's node, or waits for one.
    Action {
        host: usize,
        sent: f64,
    },
    Committed {
        host: usize,
        generation: u64,
    },
    Fault,
    Leader {
        host: usize,
    },
    ServerBack {
        server: usize,
    },
    TakeOver {
        host: usize,
    },
    Owned {
        host: usize,
        node: usize,
    },
    /// A client whose link is gone tries to connect.
    Connect {
        client: usize,
        since: f64,
        attempt: u32,
    },
    Live {
        client: usize,
        since: f64,
        node: usize,
        from_store: bool,
    },
    EndOfSecond,
}

#[derive(Debug)]
struct Scheduled {
    at: f64,
    /// Events of one moment happen in the order in which they were scheduled.
    order: u64,
    event: Event,
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Scheduled {}
impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Scheduled {
    fn cmp(&self, other: &Self) -> Ordering {
        other.at.total_cmp(&self.at).then(other.order.cmp(&self.order))
    }
}

/// A client that is connected, or comes back.
#[derive(Debug, Clone, Copy)]
struct Client {
    host: usize,
    node: usize,
    /// Whether something happens in its session: it misses actions while it is away.
    active: bool,
    /// Actions of its session in a second.
    rate: f64,
    connected: bool,
}

/// Actions of one publish: what fits NATS's 1,000 messages of a batch, and one is never too long here.
const LARGEST_GROUP: usize = 1000;
/// A handshake that takes longer is given up by the client, which tries again.
const HANDSHAKE_TIME: f64 = 10.0;

pub(crate) struct World {
    size: Size,
    costs: Costs,
    fault: Fault,
    rng: Rng,
    events: BinaryHeap<Scheduled>,
    scheduled: u64,
    servers: Vec<Server>,
    nodes: Vec<Node>,
    hosts: Vec<Host>,
    clients: Vec<Client>,
    disconnected: u64,
    outcome: Outcome,
    current: Second,
}

impl World {
    pub(crate) fn run(size: &Size, costs: &Costs, fault: Fault, seed: u64) -> Outcome {
        let mut world = Self::new(size.clone(), costs.clone(), fault, Rng::new(seed));
        let end = world.size.seconds as f64;
        while let Some(Scheduled { at, event, .. }) = world.events.pop() {
            if at > end {
                break;
            }
            world.handle(at, event);
        }
        world.finish()
    }

    fn new(size: Size, costs: Costs, fault: Fault, mut rng: Rng) -> Self {
        let servers: Vec<Server> = (0..size.servers)
            .map(|n| Server {
                up: true,
                rack: n % size.racks,
                disk: Lanes::new(costs.disk_lanes),
                reads: Lanes::new(2),
            })
            .collect();
        let nodes: Vec<Node> = (0..size.nodes)
            .map(|n| Node {
                up: true,
                rack: n % size.racks,
                cpu: Lanes::new(costs.node_cores),
                store: Lanes::new(costs.object_reads_at_once),
                store_waits: 0,
            })
            .collect();
        let hosts = (0..size.hosts)
            .map(|n| {
                let replicas: Vec<usize> =
                    (0..size.replicas).map(|replica| place(&servers, &size, n, replica)).collect();
                let leader = replicas.get(rng.below(size.replicas)).copied();
                Host {
                    replicas,
                    leader,
                    owner: Owner::Node(n % size.nodes),
                    down_since: None,
                    leader_lost_at: None,
                    generation: 0,
                    rate: 0.0,
                    viewers: vec![0; size.nodes],
                    queue: VecDeque::new(),
                    in_flight: None,
                    sessions: size.sessions / size.hosts,
                }
            })
            .collect();
        let seconds = Vec::with_capacity(size.seconds);
        let mut world = Self {
            size,
            costs,
            fault,
            rng,
            events: BinaryHeap::new(),
            scheduled: 0,
            servers,
            nodes,
            hosts,
            clients: Vec::new(),
            disconnected: 0,
            outcome: Outcome::new(seconds),
            current: Second::default(),
        };
        world.populate();
        world.begin();
        world
    }

    /// Gives sessions to hosts, and clients to sessions: the busiest session has the most of both (Zipf, exponent 0.8).
    fn populate(&mut self) {
        let active = ((self.size.sessions as f64 * self.size.active) as usize).max(1);
        let weights: Vec<f64> = (1..=active).map(|rank| (rank as f64).powf(-0.8)).collect();
        let total: f64 = weights.iter().sum();
        let watching = self.size.clients as f64 * 0.15;
        for weight in &weights {
            let host = self.rng.below(self.size.hosts);
            // One agent writes at most fifty merged deltas in a second.
            let rate = (self.size.actions * weight / total).min(50.0);
            self.hosts[host].rate += rate;
            let viewers = (watching * weight / total).max(self.rng.unit()).round() as usize;
            for _ in 0..viewers {
                self.add_client(host, true, rate);
            }
        }
        while self.clients.len() < self.size.clients {
            let host = self.rng.below(self.size.hosts);
            self.add_client(host, false, 0.0);
        }
    }

    fn add_client(&mut self, host: usize, active: bool, rate: f64) {
        let node = self.rng.below(self.size.nodes);
        if active {
            self.hosts[host].viewers[node] += 1;
        }
        self.clients.push(Client { host, node, active, rate, connected: true });
    }

    fn begin(&mut self) {
        for host in 0..self.hosts.len() {
            self.next_action(0.0, host);
        }
        for second in 1..=self.size.seconds {
            self.schedule(second as f64, Event::EndOfSecond);
        }
        self.schedule(FAULT_AT, Event::Fault);
    }

    fn schedule(&mut self, at: f64, event: Event) {
        self.scheduled += 1;
        self.events.push(Scheduled { at, order: self.scheduled, event });
    }

    fn handle(&mut self, now: f64, event: Event) {
        match event {
            Event::Action { host, sent } => self.action(now, host, sent),
            Event::Committed { host, generation } => self.committed(now, host, generation),
            Event::Fault => self.break_something(now),
            Event::Leader { host } => self.new_leader(now, host),
            Event::ServerBack { server } => self.server_back(now, server),
            Event::TakeOver { host } => self.take_over(now, host),
            Event::Owned { host, node } => self.owned(now, host, node),
            Event::Connect { client, since, attempt } => self.connect(now, client, since, attempt),
            Event::Live { client, since, node, from_store } => self.live(now, client, since, node, from_store),
            Event::EndOfSecond => self.end_of_second(),
        }
    }

    // Actions.

    fn next_action(&mut self, now: f64, host: usize) {
        let rate = self.hosts[host].rate;
        if rate > 0.0 {
            let sent = now + self.rng.exponential(1.0 / rate);
            // To the client's node, and mostly on to the owner, which is another one.
            let at = sent + self.costs.client_hop + self.costs.hop;
            self.schedule(at, Event::Action { host, sent });
        }
    }

    fn action(&mut self, now: f64, host: usize, sent: f64) {
        self.next_action(sent, host);
        self.outcome.sent += 1;
        self.hosts[host].queue.push_back(sent);
        self.publish(now, host);
    }

    /// Publishes what the queue holds, unless a publish is in flight or there is nobody to publish or to lead.
    fn publish(&mut self, now: f64, host: usize) {
        let has_quorum = self.has_quorum(host);
        let Host { owner: Owner::Node(owner), leader: Some(leader), ref mut queue, ref in_flight, .. } =
            self.hosts[host]
        else {
            return;
        };
        if in_flight.is_some() || queue.is_empty() || !has_quorum {
            return;
        }
        let count = queue.len().min(LARGEST_GROUP);
        let actions: Vec<f64> = queue.drain(..count).collect();
        let bytes = count as f64 * self.costs.action_bytes;
        let made = self.nodes[owner].cpu.run(now, count as f64 * self.costs.owner_cpu);
        let write = self.costs.disk_write + bytes / self.costs.disk_rate;
        let mut stored = Vec::with_capacity(self.size.replicas);
        for replica in self.hosts[host].replicas.clone() {
            if self.servers[replica].up {
                let hops = if replica == leader { 1.0 } else { 2.0 };
                let written = self.servers[replica].disk.run(made + hops * self.costs.hop, write);
                stored.push(written + (hops - 1.0) * self.costs.hop);
                self.outcome.bytes_replicated += bytes;
            }
        }
        stored.sort_by(f64::total_cmp);
        let majority = self.size.replicas / 2;
        let stored_at = stored.get(majority).copied().unwrap_or(f64::INFINITY);
        let generation = self.hosts[host].generation;
        self.hosts[host].in_flight = Some(Publish { actions, stored_at });
        self.outcome.publishes += 1;
        self.schedule(stored_at + self.costs.hop, Event::Committed { host, generation });
    }

    fn committed(&mut self, now: f64, host: usize, generation: u64) {
        if self.hosts[host].generation != generation {
            return; // Whoever raised it has dealt with what was in flight.
        }
        let Some(publish) = self.hosts[host].in_flight.take() else { return };
        self.deliver(now, host, &publish.actions);
        self.publish(now, host);
    }

    fn deliver(&mut self, now: f64, host: usize, actions: &[f64]) {
        let count = actions.len() as u64;
        self.outcome.committed += count;
        self.outcome.group.add(count as f64 * 1e-3, 1); // Thousandths, so that the histogram's range fits.
        let bytes = count as f64 * self.costs.action_bytes;
        for node in 0..self.nodes.len() {
            let viewers = self.hosts[host].viewers[node];
            if viewers == 0 || !self.nodes[node].up {
                continue;
            }
            self.outcome.bytes_followed += bytes;
            self.outcome.bytes_live += bytes * f64::from(viewers);
            let work = f64::from(viewers) * (count as f64 * self.costs.send_cpu + bytes / self.costs.send_rate);
            let seen = self.nodes[node].cpu.run_divided(now + self.costs.hop, work) + self.costs.client_hop;
            for sent in actions {
                let latency = seen - sent;
                let weight = u64::from(viewers);
                self.current.latency.add(latency, weight);
                let side = if now < FAULT_AT { &mut self.outcome.before } else { &mut self.outcome.after };
                side.add(latency, weight);
            }
        }
    }

    // Faults.

    fn break_something(&mut self, now: f64) {
        match self.fault {
            Fault::None => {}
            Fault::Burst(times) => {
                for host in &mut self.hosts {
                    host.rate *= f64::from(times);
                }
            }
            Fault::ServerLost => self.lose_busiest_server(now),
            Fault::NodeLost => self.lose_busiest_node(now),
            Fault::ServerAndNodeLost => {
                self.lose_busiest_server(now);
                self.lose_busiest_node(now);
            }
            Fault::RackLost => {
                for server in 0..self.servers.len() {
                    if self.servers[server].rack == 0 {
                        self.lose_server(now, server);
                    }
                }
                for node in 0..self.nodes.len() {
                    if self.nodes[node].rack == 0 {
                        self.lose_node(now, node);
                    }
                }
            }
            Fault::ClientsReturn(count) | Fault::SlowObjectStore { clients: count, .. } => {
                if let Fault::SlowObjectStore { read_ms, .. } = self.fault {
                    self.costs.object_read = read_ms as f64 / 1000.0;
                }
                for client in 0..count.min(self.clients.len()) {
                    self.disconnect(now, client, now);
                }
            }
        }
    }

    fn lose_busiest_server(&mut self, now: f64) {
        let leads = |server: usize| self.hosts.iter().filter(|host| host.leader == Some(server)).count();
        let Some(server) = (0..self.servers.len()).max_by_key(|server| leads(*server)) else { return };
        self.lose_server(now, server);
        self.schedule(now + SERVER_GONE, Event::ServerBack { server });
    }

    fn lose_busiest_node(&mut self, now: f64) {
        let owns = |node: usize| self.hosts.iter().filter(|host| host.owner == Owner::Node(node)).count();
        if let Some(node) = (0..self.nodes.len()).max_by_key(|node| owns(*node)) {
            self.lose_node(now, node);
        }
    }

    fn lose_server(&mut self, now: f64, server: usize) {
        self.servers[server].up = false;
        self.servers[server].disk.clear(now);
        for host in 0..self.hosts.len() {
            if self.hosts[host].leader != Some(server) {
                continue;
            }
            self.hosts[host].leader = None;
            self.hosts[host].leader_lost_at = Some(now);
            self.host_down(now, host);
            let (shortest, longest) = self.costs.election;
            let at = now + self.rng.between(shortest, longest);
            self.schedule(at, Event::Leader { host });
        }
    }

    /// From now on nothing of what was under way is heard of.
    fn host_down(&mut self, now: f64, host: usize) {
        self.hosts[host].generation += 1;
        self.hosts[host].down_since.get_or_insert(now);
    }

    fn new_leader(&mut self, now: f64, host: usize) {
        if self.hosts[host].leader.is_some() {
            return;
        }
        let candidates: Vec<usize> =
            self.hosts[host].replicas.iter().copied().filter(|server| self.servers[*server].up).collect();
        if candidates.len() <= self.size.replicas / 2 {
            return; // Without a majority there is no leader; a server that comes back tries again.
        }
        self.hosts[host].leader = Some(candidates[self.rng.below(candidates.len())]);
        self.resume(now, host);
    }

    /// Goes on if there are an owner and a leader: first looks up what became of the publish that was in flight.
    fn resume(&mut self, now: f64, host: usize) {
        if matches!(self.hosts[host].owner, Owner::Nobody) || self.hosts[host].leader.is_none() {
            return;
        }
        if let Some(since) = self.hosts[host].down_since.take() {
            self.outcome.host_outages.add(now - since, 1);
        }
        let leader_lost_at = self.hosts[host].leader_lost_at.take();
        if let Some(publish) = self.hosts[host].in_flight.take() {
            self.outcome.unknown += 1;
            // A leader that lives stores it, whoever owns the host by now.
            if leader_lost_at.is_none_or(|at| publish.stored_at <= at) {
                self.outcome.unknown_found += 1;
                self.deliver(now, host, &publish.actions);
            } else {
                for sent in publish.actions.into_iter().rev() {
                    self.hosts[host].queue.push_front(sent);
                }
            }
        }
        self.publish(now, host);
    }

    fn has_quorum(&self, host: usize) -> bool {
        let up = self.hosts[host].replicas.iter().filter(|server| self.servers[**server].up).count();
        up > self.size.replicas / 2
    }

    fn server_back(&mut self, now: f64, server: usize) {
        // What it missed comes from the leaders, and is written before it takes part again.
        let missed: f64 = self
            .hosts
            .iter()
            .filter(|host| host.replicas.contains(&server))
            .map(|host| host.rate * SERVER_GONE * self.costs.action_bytes)
            .sum();
        self.outcome.bytes_replicated += missed;
        self.servers[server].up = true;
        self.servers[server].disk.run_divided(now, missed / self.costs.disk_rate);
        for host in 0..self.hosts.len() {
            if self.hosts[host].leader.is_none() && self.hosts[host].replicas.contains(&server) {
                let at = now + self.rng.between(self.costs.election.0, self.costs.election.1);
                self.schedule(at, Event::Leader { host });
            }
        }
    }

    fn lose_node(&mut self, now: f64, node: usize) {
        self.nodes[node].up = false;
        self.nodes[node].cpu.clear(now);
        for host in 0..self.hosts.len() {
            if self.hosts[host].owner != Owner::Node(node) {
                continue;
            }
            self.hosts[host].owner = Owner::Nobody;
            self.host_down(now, host);
            // The lease was renewed within the last third of its time; then somebody has to look.
            let lease_left = self.costs.lease - self.rng.between(0.0, self.costs.lease / 3.0);
            let at = now + lease_left + self.rng.between(0.0, self.costs.lease_check);
            self.schedule(at, Event::TakeOver { host });
        }
        // A process that was killed closes its sockets; a load balancer notices a rack that is gone.
        let noticed = match self.fault {
            Fault::RackLost => (0.0, self.costs.silence),
            _ => (0.0, 0.0),
        };
        for client in 0..self.clients.len() {
            if self.clients[client].node == node && self.clients[client].connected {
                let at = now + self.rng.between(noticed.0, noticed.1);
                self.disconnect(at, client, now);
            }
        }
    }

    fn take_over(&mut self, now: f64, host: usize) {
        let up: Vec<usize> = (0..self.nodes.len()).filter(|node| self.nodes[*node].up).collect();
        if up.is_empty() {
            return;
        }
        let node = up[self.rng.below(up.len())];
        // The fence entry needs a leader: it waits for one in `resume`, as any publish does.
        let catalogue = self.hosts[host].sessions as f64 * self.costs.catalogue_entry;
        self.outcome.bytes_followed += catalogue;
        let work = self.costs.take_over + catalogue / self.costs.disk_rate;
        let at = self.nodes[node].cpu.run(now, work);
        self.schedule(at, Event::Owned { host, node });
    }

    fn owned(&mut self, now: f64, host: usize, node: usize) {
        if !self.nodes[node].up {
            self.schedule(now + self.costs.lease, Event::TakeOver { host });
            return;
        }
        self.hosts[host].owner = Owner::Node(node);
        self.resume(now, host);
    }

    // Clients.

    /// A client has lost its link at `since`, and notices at `at`.
    fn disconnect(&mut self, at: f64, client: usize, since: f64) {
        let Client { host, node, active, connected, .. } = self.clients[client];
        if !connected {
            return;
        }
        self.clients[client].connected = false;
        self.disconnected += 1;
        if active {
            self.hosts[host].viewers[node] -= 1;
        }
        let at = at + self.rng.between(0.0, self.costs.backoff);
        self.schedule(at, Event::Connect { client, since, attempt: 1 });
    }

    fn connect(&mut self, now: f64, client: usize, since: f64, attempt: u32) {
        let up: Vec<usize> = (0..self.nodes.len()).filter(|node| self.nodes[*node].up).collect();
        let Some(node) = up.get(self.rng.below(up.len().max(1))).copied() else { return };
        if self.nodes[node].cpu.wait(now) > HANDSHAKE_TIME {
            let most = self.costs.backoff * f64::from(1 << attempt.min(5));
            let at = now + HANDSHAKE_TIME + self.rng.between(0.0, most);
            self.schedule(at, Event::Connect { client, since, attempt: attempt + 1 });
            return;
        }
        let Client { host, active, rate, .. } = self.clients[client];
        let missed = rate * (now - since);
        let mut ready = now;
        let mut from_store = false;
        let mut bytes = missed * self.costs.action_bytes;
        if active && missed <= self.costs.window_entries {
            // Every node that follows the host has these in memory.
        } else if active {
            let leader = self.hosts[host].leader.unwrap_or_default();
            ready = self.servers[leader].reads.run(now, missed * self.costs.read_entry);
        } else if self.rng.unit() < 0.2 {
            // It asks for a chat that the node does not have in memory.
            bytes = self.costs.snapshot_bytes;
            from_store = true;
            self.nodes[node].store_waits += 1;
            self.outcome.most_store_waits = self.outcome.most_store_waits.max(self.nodes[node].store_waits);
            ready = self.nodes[node].store.run(now, self.costs.object_read);
        }
        self.outcome.bytes_returned += bytes;
        // The answer is made when its content is there; the handshake itself does not wait for the store.
        let shaken = self.nodes[node].cpu.run(now, self.costs.connect_cpu + bytes / self.costs.send_rate);
        let at = shaken.max(ready) + 2.0 * self.costs.client_hop;
        self.schedule(at, Event::Live { client, since, node, from_store });
    }

    fn live(&mut self, now: f64, client: usize, since: f64, node: usize, from_store: bool) {
        if from_store {
            self.nodes[node].store_waits -= 1;
        }
        if !self.nodes[node].up {
            self.schedule(now, Event::Connect { client, since, attempt: 1 });
            return;
        }
        self.clients[client].connected = true;
        self.clients[client].node = node;
        self.disconnected -= 1;
        if self.clients[client].active {
            self.hosts[self.clients[client].host].viewers[node] += 1;
        }
        self.outcome.client_outages.add(now - since, 1);
    }

    // Results.

    fn waiting(&self) -> impl Iterator<Item = u64> {
        self.hosts
            .iter()
            .map(|host| (host.queue.len() + host.in_flight.as_ref().map_or(0, |publish| publish.actions.len())) as u64)
    }

    fn end_of_second(&mut self) {
        let mut second = std::mem::take(&mut self.current);
        second.waiting = self.waiting().sum();
        second.longest_queue = self.waiting().max().unwrap_or_default();
        second.disconnected = self.disconnected;
        self.outcome.most_waiting = self.outcome.most_waiting.max(second.waiting);
        self.outcome.longest_queue = self.outcome.longest_queue.max(second.longest_queue);
        self.outcome.seconds.push(second);
    }

    fn finish(mut self) -> Outcome {
        self.outcome.waiting = self.waiting().sum();
        let time = self.size.seconds as f64;
        let share = |lanes: &Lanes| lanes.busy() / (time * lanes.count() as f64);
        self.outcome.disk_use = self.servers.iter().map(|server| share(&server.disk)).fold(0.0, f64::max);
        self.outcome.node_use = self.nodes.iter().map(|node| share(&node.cpu)).fold(0.0, f64::max);
        self.outcome
    }
}

/// The server of a replica: each in a rack of its own, as far as there are racks.
fn place(servers: &[Server], size: &Size, host: usize, replica: usize) -> usize {
    let rack = (host + replica) % size.racks;
    let in_rack: Vec<usize> = (0..servers.len()).filter(|server| servers[*server].rack == rack).collect();
    in_rack[(host + replica / size.racks) % in_rack.len()]
}

impl Outcome {
    fn new(seconds: Vec<Second>) -> Self {
        Self {
            seconds,
            before: Times::default(),
            after: Times::default(),
            group: Times::default(),
            sent: 0,
            committed: 0,
            waiting: 0,
            publishes: 0,
            unknown: 0,
            unknown_found: 0,
            host_outages: Times::default(),
            client_outages: Times::default(),
            longest_queue: 0,
            most_waiting: 0,
            most_store_waits: 0,
            bytes_replicated: 0.0,
            bytes_followed: 0.0,
            bytes_live: 0.0,
            bytes_returned: 0.0,
            disk_use: 0.0,
            node_use: 0.0,
        }
    }
}
