//! Hubs: who is connected to each, and who is in which group.
//!
//! Locks are taken in this order, and never the other way round: the list of hubs, a hub's lists, a client.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::RelayState;
use super::client::{Client, Closed, Overflow, Published};

/// The longest name of a hub.
const MAX_HUB_NAME: usize = 128;

/// All hubs, by name.
#[derive(Debug, Default)]
pub(super) struct Hubs {
    hubs: RwLock<BTreeMap<String, Arc<Hub>>>,
    /// Bytes of messages that wait for clients.
    queued: AtomicU64,
    /// How many clients there are.
    clients: AtomicU64,
}

/// Clients that can see each other.
#[derive(Debug, Default)]
pub(super) struct Hub(RwLock<Members>);

#[derive(Debug, Default)]
struct Members {
    clients: HashMap<Arc<str>, Arc<Client>>,
    groups: HashMap<Arc<str>, Vec<Arc<Client>>>,
}

/// Whom a message is for.
#[derive(Debug, Clone, Copy)]
pub(super) enum Target<'a> {
    Group(&'a str),
    User(&'a str),
    Client(&'a str),
    All,
}

/// A message was not delivered, because all messages together take too much memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NoMemory;

impl Hub {
    /// Whether a hub may have this name.
    pub(super) fn may_be_called(name: &str) -> bool {
        let mut letters = name.bytes();
        letters.next().is_some_and(|first| first.is_ascii_alphabetic())
            && letters.all(|letter| letter.is_ascii_alphanumeric() || b"_.,-".contains(&letter))
            && name.len() <= MAX_HUB_NAME
    }

    fn read(&self) -> RwLockReadGuard<'_, Members> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Members> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The client with this id.
    pub(super) fn client(&self, id: &str) -> Option<Arc<Client>> {
        self.read().clients.get(id).cloned()
    }

    /// The clients that a message for this target reaches.
    pub(super) fn clients(&self, target: Target<'_>) -> Vec<Arc<Client>> {
        let members = self.read();
        match target {
            Target::Group(group) => members.groups.get(group).cloned().unwrap_or_default(),
            Target::Client(id) => members.clients.get(id).cloned().into_iter().collect(),
            Target::User(user) => {
                members.clients.values().filter(|client| client.user.as_deref() == Some(user)).cloned().collect()
            }
            Target::All => members.clients.values().cloned().collect(),
        }
    }

    /// Puts a client into a group. Returns false if it may not be in so many, or is over.
    pub(super) fn join(&self, client: &Arc<Client>, group: &str, max_groups: usize) -> bool {
        let mut members = self.write();
        let name = members.groups.get_key_value(group).map_or_else(|| Arc::from(group), |(name, _)| Arc::clone(name));
        let mut state = client.lock();
        if state.groups.contains(group) {
            return true;
        }
        if state.groups.len() >= max_groups || !members.clients.contains_key(&client.id) {
            return false;
        }
        state.groups.insert(Arc::clone(&name));
        drop(state);
        members.groups.entry(name).or_default().push(Arc::clone(client));
        true
    }

    /// Takes a client out of a group, if it is in it.
    pub(super) fn leave(&self, client: &Client, group: &str) {
        let mut members = self.write();
        if client.lock().groups.remove(group) {
            members.leave(client, group);
        }
    }

    /// Takes a client out of all groups.
    pub(super) fn leave_all(&self, client: &Client) {
        let mut members = self.write();
        let groups = std::mem::take(&mut client.lock().groups);
        for group in groups {
            members.leave(client, &group);
        }
    }
}

impl Members {
    fn leave(&mut self, client: &Client, group: &str) {
        if let Some(in_group) = self.groups.get_mut(group) {
            in_group.retain(|other| other.id != client.id);
            if in_group.is_empty() {
                self.groups.remove(group);
            }
        }
    }
}

impl Hubs {
    /// The hub with this name. Without clients, it is not remembered.
    pub(super) fn get(&self, name: &str) -> Arc<Hub> {
        let hubs = self.hubs.read().unwrap_or_else(PoisonError::into_inner);
        hubs.get(name).cloned().unwrap_or_default()
    }

    /// Adds a client to a hub. Returns the hub; `None` if there are too many clients.
    pub(super) fn add(&self, name: &str, client: &Arc<Client>, max_clients: usize) -> Option<Arc<Hub>> {
        let max = u64::try_from(max_clients).unwrap_or(u64::MAX);
        let added =
            self.clients.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| (count < max).then_some(count + 1));
        added.ok()?;
        let mut hubs = self.hubs.write().unwrap_or_else(PoisonError::into_inner);
        let hub = Arc::clone(hubs.entry(name.to_owned()).or_default());
        hub.write().clients.insert(Arc::clone(&client.id), Arc::clone(client));
        Some(hub)
    }

    /// Forgets a client that is over.
    pub(super) fn remove(&self, name: &str, hub: &Hub, client: &Client) {
        hub.leave_all(client);
        let mut hubs = self.hubs.write().unwrap_or_else(PoisonError::into_inner);
        let mut members = hub.write();
        if members.clients.remove(&client.id).is_some() {
            self.clients.fetch_sub(1, Ordering::Relaxed);
        }
        let is_empty = members.clients.is_empty();
        drop(members);
        if is_empty && hubs.get(name).is_some_and(|current| std::ptr::eq(&**current, hub)) {
            hubs.remove(name);
        }
    }

    /// Ends a client and forgets it.
    pub(super) fn close(&self, shared: &RelayState, name: &str, hub: &Hub, client: &Client, closed: Closed) {
        let reason = closed.reason;
        if let Some(freed) = client.close(closed) {
            self.free(freed);
            shared.counters.close(reason);
            self.remove(name, hub, client);
        }
    }

    /// Delivers a message to clients, but not to those that `is_excluded` names. A client for which too many wait is closed and
    /// forgotten, as the service does it.
    pub(super) fn deliver(
        &self,
        shared: &RelayState,
        name: &str,
        hub: &Hub,
        target: Target<'_>,
        message: &Arc<Published>,
        is_excluded: impl Fn(&Client) -> bool,
    ) -> Result<(), NoMemory> {
        let receivers = match target {
            // The usual case, without a list of its own.
            Target::Group(group) => {
                let members = hub.read();
                let Some(in_group) = members.groups.get(group) else { return Ok(()) };
                self.deliver_each(shared, in_group.iter().filter(|client| !is_excluded(client)), message)?
            }
            target => {
                let clients = hub.clients(target);
                self.deliver_each(shared, clients.iter().filter(|client| !is_excluded(client)), message)?
            }
        };
        for client in receivers {
            let message = "Too many messages wait for an acknowledgement.".to_owned();
            self.close(shared, name, hub, &client, Closed { reason: "queue-full", code: 1008, message });
        }
        Ok(())
    }

    /// Delivers a message to each of these. Returns those for which too many wait.
    fn deliver_each<'a>(
        &self,
        shared: &RelayState,
        receivers: impl Iterator<Item = &'a Arc<Client>> + Clone,
        message: &Arc<Published>,
    ) -> Result<Vec<Arc<Client>>, NoMemory> {
        let count = u64::try_from(receivers.clone().count()).unwrap_or(u64::MAX);
        let bytes = message.bytes();
        self.reserve(bytes.saturating_mul(count), shared.config.total_bytes)?;
        let mut overflowed = Vec::new();
        for client in receivers {
            match client.deliver(message, &shared.config) {
                Ok(true) => continue,
                Ok(false) => {}
                Err(Overflow) => overflowed.push(Arc::clone(client)),
            }
            self.free(bytes);
        }
        Ok(overflowed)
    }

    /// Messages of so many bytes do not wait any more.
    pub(super) fn free(&self, bytes: u64) {
        if bytes > 0 {
            self.queued.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    fn reserve(&self, bytes: u64, limit: u64) -> Result<(), NoMemory> {
        let reserve = |queued: u64| queued.checked_add(bytes).filter(|sum| *sum <= limit);
        self.queued.fetch_update(Ordering::Relaxed, Ordering::Relaxed, reserve).map(drop).map_err(|_| NoMemory)
    }

    /// Tells all clients that the service ends.
    pub(super) fn close_all(&self, message: &str) {
        for client in self.all_clients() {
            let closed = Closed { reason: "shutdown", code: 1001, message: message.to_owned() };
            self.free(client.close(closed).unwrap_or_default());
        }
    }

    /// The clients of all hubs.
    pub(super) fn all_clients(&self) -> Vec<Arc<Client>> {
        let hubs = self.hubs.read().unwrap_or_else(PoisonError::into_inner);
        hubs.values().flat_map(|hub| hub.read().clients.values().cloned().collect::<Vec<_>>()).collect()
    }

    /// How many groups somebody is in.
    pub(super) fn count_groups(&self) -> u64 {
        let hubs = self.hubs.read().unwrap_or_else(PoisonError::into_inner);
        let count: usize = hubs.values().map(|hub| hub.read().groups.len()).sum();
        u64::try_from(count).unwrap_or(u64::MAX)
    }

    /// Bytes of messages that wait for clients.
    pub(super) fn queued_bytes(&self) -> u64 {
        self.queued.load(Ordering::Relaxed)
    }
}
