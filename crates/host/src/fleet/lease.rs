//! The lease of a host, as a machine without IO: what one node knows of it, and what the node has to do next.
//!
//! The record in the store has a revision, which grows with each write, and a write names the revision that it replaces. The holder
//! writes the record again and again. Whoever sees one revision for longer than the lease, by their own clock, may replace it. So
//! no two clocks are compared; a clock that runs too fast takes over too early, and the fence in the log keeps that safe.
//!
//! The holder counts from the moment *before* it sent the last write that succeeded, and gives up before the lease is over. Others see
//! that write later than it was sent, so they count from a later moment.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// Others look at the record this often, however long the lease is: it may have been given back.
const LONGEST_LOOK: Duration = Duration::from_millis(200);

/// A node, as others know it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeInfo {
    /// Which process it is: another one after each start.
    pub id: String,
    /// Where other nodes reach it, as `ws://HOST:PORT`.
    pub address: String,
}

/// The lease, as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LeaseRecord {
    /// Who has it, or had it last.
    pub node: NodeInfo,
    /// One more with each owner.
    pub epoch: u64,
    /// Whether the owner still has it.
    pub tenure: Tenure,
    /// How long the others wait for a new revision, as the owner believes.
    pub lease_ms: u64,
}

/// Whether an owner still has its lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Tenure {
    /// It has it.
    Held,
    /// It has given it back: anybody can take it at once.
    Released,
}

/// Who owns the host, as far as this node knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// This node does.
    Owner {
        /// The number of the ownership.
        epoch: u64,
    },
    /// Another node does.
    Other(LeaseRecord),
    /// Nobody does, or nothing is known yet.
    Nobody,
}

/// What the node has to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseStep {
    /// Read the record, and report it with [`Lease::read`].
    Read,
    /// Write this record if the stored one has this revision (0: there is none), and report it with [`Lease::written`].
    Write {
        /// The new record.
        record: LeaseRecord,
        /// The revision that it replaces.
        revision: u64,
    },
    /// Nothing before this time.
    Wait(Instant),
}

/// What became of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteOutcome {
    /// It has this revision.
    Written(u64),
    /// The stored record has another revision.
    Conflict,
    /// Nobody knows.
    Unknown,
}

/// What one node knows of a lease.
#[derive(Debug)]
pub struct Lease {
    me: NodeInfo,
    time: Duration,
    phase: Phase,
}

#[derive(Debug)]
enum Phase {
    /// The node does not own.
    Watching {
        /// What was read last.
        seen: Option<Seen>,
        /// When to read again.
        look_at: Instant,
    },
    /// The node owns.
    Owning {
        epoch: u64,
        revision: u64,
        /// When the last write that succeeded was sent.
        renewed: Instant,
        next: Next,
    },
}

/// What an owner does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    /// Write again at this time.
    Renew(Instant),
    /// Read, because the outcome of a write is not known.
    Look(Instant),
}

/// A record that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    revision: u64,
    /// `None` if there is none, or none that anybody has.
    record: Option<LeaseRecord>,
    /// Since when this is the revision.
    since: Instant,
}

impl Lease {
    /// A node that knows nothing yet.
    #[must_use]
    pub const fn new(me: NodeInfo, time: Duration, now: Instant) -> Self {
        Self { me, time, phase: Phase::Watching { seen: None, look_at: now } }
    }

    /// Who owns the host.
    #[must_use]
    pub fn standing(&self) -> Standing {
        match &self.phase {
            Phase::Owning { epoch, .. } => Standing::Owner { epoch: *epoch },
            Phase::Watching { seen, .. } => match seen.as_ref().and_then(|seen| seen.record.as_ref()) {
                Some(record) if record.tenure == Tenure::Held && record.node.id != self.me.id => {
                    Standing::Other(record.clone())
                }
                _ => Standing::Nobody,
            },
        }
    }

    /// What to do now. An owner that could not renew in time is none any more from this call on.
    pub fn next(&mut self, now: Instant) -> LeaseStep {
        if self.give_up_at().is_some_and(|end| now >= end) {
            self.phase = Phase::Watching { seen: None, look_at: now };
        }
        match &self.phase {
            Phase::Owning { revision, next: Next::Renew(at), epoch, .. } if now >= *at => {
                LeaseStep::Write { record: self.record(*epoch, Tenure::Held), revision: *revision }
            }
            Phase::Owning { next: Next::Look(at), .. } if now >= *at => LeaseStep::Read,
            Phase::Owning { next: Next::Renew(at) | Next::Look(at), .. } => {
                LeaseStep::Wait(self.give_up_at().map_or(*at, |end| end.min(*at)))
            }
            Phase::Watching { look_at, .. } if now >= *look_at => LeaseStep::Read,
            Phase::Watching { look_at, seen } => match seen {
                Some(seen) if self.is_free(seen, now) => {
                    let epoch = seen.record.as_ref().map_or(0, |record| record.epoch).saturating_add(1);
                    LeaseStep::Write { record: self.record(epoch, Tenure::Held), revision: seen.revision }
                }
                _ => LeaseStep::Wait(*look_at),
            },
        }
    }

    /// Until when an owner may go on without another renewal.
    #[must_use]
    pub fn give_up_at(&self) -> Option<Instant> {
        match &self.phase {
            Phase::Owning { renewed, .. } => Some(after(*renewed, self.time.saturating_sub(self.time / 6))),
            Phase::Watching { .. } => None,
        }
    }

    /// The record was read: its revision, and what it says. Without a record the revision is 0, or that of what was removed.
    pub fn read(&mut self, revision: u64, record: Option<LeaseRecord>, now: Instant) {
        let is_ours = record.as_ref().is_some_and(|it| it.node.id == self.me.id && it.tenure == Tenure::Held);
        let look_at = after(now, self.look_every());
        match &mut self.phase {
            Phase::Owning { revision: known, next, epoch, .. }
                if is_ours && record.as_ref().is_some_and(|record| record.epoch == *epoch) =>
            {
                *known = revision;
                *next = Next::Renew(now);
            }
            Phase::Watching { seen: Some(seen), look_at: at } if seen.revision == revision => {
                seen.record = record;
                *at = look_at;
            }
            Phase::Owning { .. } | Phase::Watching { .. } => {
                self.phase = Phase::Watching { seen: Some(Seen { revision, record, since: now }), look_at };
            }
        }
    }

    /// The record could not be read.
    pub fn unreadable(&mut self, now: Instant) {
        let again = after(now, self.look_every());
        match &mut self.phase {
            Phase::Watching { look_at, .. } => *look_at = again,
            Phase::Owning { next, .. } => *next = Next::Look(again),
        }
    }

    /// The record that [`next`](Self::next) or [`raise`](Self::raise) gave was sent at `sent`.
    pub fn written(&mut self, record: &LeaseRecord, outcome: WriteOutcome, sent: Instant, now: Instant) {
        match (outcome, &mut self.phase) {
            (WriteOutcome::Written(revision), _) if record.tenure == Tenure::Held => {
                let next = Next::Renew(after(sent, self.time / 6));
                self.phase = Phase::Owning { epoch: record.epoch, revision, renewed: sent, next };
            }
            (WriteOutcome::Written(revision), _) => {
                let seen = Some(Seen { revision, record: Some(record.clone()), since: now });
                self.phase = Phase::Watching { seen, look_at: after(now, self.look_every()) };
            }
            // It may be ours all the same: an earlier write without an answer.
            (WriteOutcome::Conflict | WriteOutcome::Unknown, Phase::Owning { next, .. }) => *next = Next::Look(now),
            // A replica that is behind would show the old revision again.
            (WriteOutcome::Conflict | WriteOutcome::Unknown, Phase::Watching { look_at, .. }) => {
                *look_at = after(now, (self.time / 15).min(LONGEST_LOOK));
            }
        }
    }

    /// The record with which an owner raises its epoch above this one, and the revision that it replaces. `None` if it does not own.
    #[must_use]
    pub fn raise(&self, above: u64) -> Option<(LeaseRecord, u64)> {
        let Phase::Owning { epoch, revision, .. } = &self.phase else { return None };
        Some((self.record(above.max(*epoch).saturating_add(1), Tenure::Held), *revision))
    }

    /// The record with which an owner gives the lease back, and the revision that it replaces. `None` if it does not own.
    #[must_use]
    pub fn release(&self) -> Option<(LeaseRecord, u64)> {
        let Phase::Owning { epoch, revision, .. } = &self.phase else { return None };
        Some((self.record(*epoch, Tenure::Released), *revision))
    }

    /// Whether the record that was seen can be replaced.
    fn is_free(&self, seen: &Seen, now: Instant) -> bool {
        let Some(record) = &seen.record else { return true };
        // One of ours that we do not hold: its write had no answer, or could not be renewed.
        if record.tenure == Tenure::Released || record.node.id == self.me.id {
            return true;
        }
        now >= after(seen.since, self.time.max(Duration::from_millis(record.lease_ms)))
    }

    fn record(&self, epoch: u64, tenure: Tenure) -> LeaseRecord {
        let lease_ms = u64::try_from(self.time.as_millis()).unwrap_or(u64::MAX);
        LeaseRecord { node: self.me.clone(), epoch, tenure, lease_ms }
    }

    fn look_every(&self) -> Duration {
        (self.time / 15).min(LONGEST_LOOK)
    }
}

/// A time that far in the future; the same time if it does not exist.
fn after(time: Instant, wait: Duration) -> Instant {
    time.checked_add(wait).unwrap_or(time)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may fail by panicking")]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_millis(3_000);

    /// The store of one record, and the time.
    struct World {
        stored: Option<(u64, LeaseRecord)>,
        now: Instant,
    }

    impl World {
        fn new() -> Self {
            Self { stored: None, now: Instant::now() }
        }

        fn node(&self, id: &str) -> Lease {
            let me = NodeInfo { id: id.to_owned(), address: format!("ws://{id}:1") };
            Lease::new(me, LEASE, self.now)
        }

        fn write(&mut self, record: &LeaseRecord, revision: u64) -> WriteOutcome {
            let last = self.stored.as_ref().map_or(0, |(revision, _)| *revision);
            if last != revision {
                return WriteOutcome::Conflict;
            }
            self.stored = Some((last + 1, record.clone()));
            WriteOutcome::Written(last + 1)
        }

        /// Does all that the node wants now.
        fn run(&mut self, lease: &mut Lease) {
            for _ in 0..10 {
                match lease.next(self.now) {
                    LeaseStep::Wait(until) => {
                        assert!(until > self.now);
                        return;
                    }
                    LeaseStep::Read => {
                        let (revision, record) = self.stored.clone().unzip();
                        lease.read(revision.unwrap_or(0), record, self.now);
                    }
                    LeaseStep::Write { record, revision } => {
                        let outcome = self.write(&record, revision);
                        lease.written(&record, outcome, self.now, self.now);
                    }
                }
            }
            panic!("it never waits: {lease:?}");
        }

        fn pass(&mut self, ms: u64) {
            self.now += Duration::from_millis(ms);
        }

        fn release(&mut self, lease: &mut Lease) {
            let (record, revision) = lease.release().unwrap();
            let outcome = self.write(&record, revision);
            lease.written(&record, outcome, self.now, self.now);
        }
    }

    fn epoch(lease: &Lease) -> Option<u64> {
        match lease.standing() {
            Standing::Owner { epoch } => Some(epoch),
            Standing::Other(_) | Standing::Nobody => None,
        }
    }

    #[test]
    fn the_first_node_owns_and_the_second_knows_where_it_is() {
        let mut world = World::new();
        let (mut a, mut b) = (world.node("a"), world.node("b"));
        assert_eq!(a.standing(), Standing::Nobody);
        world.run(&mut a);
        world.run(&mut b);
        assert_eq!(epoch(&a), Some(1));
        let Standing::Other(record) = b.standing() else { panic!("{b:?}") };
        assert_eq!((&*record.node.address, record.epoch), ("ws://a:1", 1));
    }

    #[test]
    fn an_owner_that_renews_stays_the_owner() {
        let mut world = World::new();
        let (mut a, mut b) = (world.node("a"), world.node("b"));
        for _ in 0..1_000 {
            world.run(&mut a);
            world.run(&mut b);
            world.pass(100);
        }
        assert_eq!((epoch(&a), epoch(&b)), (Some(1), None));
    }

    #[test]
    fn a_dead_owner_is_replaced_when_its_revision_was_the_same_for_the_lease() {
        let mut world = World::new();
        let (mut a, mut b) = (world.node("a"), world.node("b"));
        world.run(&mut a);
        world.run(&mut b);
        for _ in 0..29 {
            world.pass(100);
            world.run(&mut b);
        }
        assert_eq!(epoch(&b), None);
        world.pass(100);
        world.run(&mut b);
        world.pass(200);
        world.run(&mut b);
        assert_eq!(epoch(&b), Some(2));
    }

    #[test]
    fn a_watcher_counts_from_what_it_saw_itself_and_not_from_what_others_say() {
        let mut world = World::new();
        let mut a = world.node("a");
        world.run(&mut a);
        world.pass(60_000);
        let mut b = world.node("b");
        world.run(&mut b);
        assert_eq!(epoch(&b), None, "it has only just come");
    }

    #[test]
    fn a_released_lease_is_taken_at_once_and_by_one_node() {
        let mut world = World::new();
        let (mut a, mut b, mut c) = (world.node("a"), world.node("b"), world.node("c"));
        world.run(&mut a);
        world.run(&mut b);
        world.run(&mut c);
        world.release(&mut a);
        assert_eq!(a.standing(), Standing::Nobody);
        world.pass(200);
        world.run(&mut c);
        world.run(&mut b);
        assert_eq!((epoch(&b), epoch(&c)), (None, Some(2)));
    }

    #[test]
    fn an_owner_that_cannot_renew_gives_up_before_others_may_take_over() {
        let mut world = World::new();
        let (mut a, mut b) = (world.node("a"), world.node("b"));
        world.run(&mut a);
        world.run(&mut b);
        let end = a.give_up_at().unwrap();
        for _ in 0..30 {
            world.pass(100);
            // The store does not answer the owner.
            match a.next(world.now) {
                LeaseStep::Write { record, .. } => a.written(&record, WriteOutcome::Unknown, world.now, world.now),
                LeaseStep::Read => a.unreadable(world.now),
                LeaseStep::Wait(_) => {}
            }
            assert_eq!(epoch(&a).is_some(), world.now < end, "{a:?}");
            world.run(&mut b);
            assert!(epoch(&a).is_none() || epoch(&b).is_none());
        }
        world.pass(200);
        world.run(&mut b);
        assert_eq!(epoch(&b), Some(2));
        world.run(&mut a);
        assert!(matches!(a.standing(), Standing::Other(record) if record.epoch == 2));
    }

    #[test]
    fn an_owner_that_slept_finds_the_other_and_does_not_write() {
        let mut world = World::new();
        let (mut a, mut b) = (world.node("a"), world.node("b"));
        world.run(&mut a);
        world.run(&mut b);
        world.pass(3_100);
        world.run(&mut b);
        world.pass(200);
        world.run(&mut b);
        assert_eq!(epoch(&b), Some(2));
        assert_eq!(a.next(world.now), LeaseStep::Read, "it has given up");
        world.run(&mut a);
        assert!(matches!(a.standing(), Standing::Other(record) if record.node.id == "b"));
    }

    #[test]
    fn a_renewal_without_an_answer_is_looked_up() {
        let mut world = World::new();
        let mut a = world.node("a");
        world.run(&mut a);
        for is_stored in [true, false] {
            world.pass(500);
            let LeaseStep::Write { record, revision } = a.next(world.now) else { panic!("{a:?}") };
            if is_stored {
                world.write(&record, revision);
            }
            a.written(&record, WriteOutcome::Unknown, world.now, world.now);
            assert_eq!(a.next(world.now), LeaseStep::Read);
            world.run(&mut a);
            assert_eq!(epoch(&a), Some(1));
        }
        assert_eq!(world.stored.as_ref().unwrap().1.epoch, 1);
    }

    #[test]
    fn a_claim_without_an_answer_is_claimed_again_with_a_higher_epoch() {
        let mut world = World::new();
        let mut a = world.node("a");
        assert_eq!(a.next(world.now), LeaseStep::Read);
        a.read(0, None, world.now);
        let LeaseStep::Write { record, revision } = a.next(world.now) else { panic!("{a:?}") };
        world.write(&record, revision);
        a.written(&record, WriteOutcome::Unknown, world.now, world.now);
        assert_eq!(a.standing(), Standing::Nobody);
        world.pass(200);
        world.run(&mut a);
        assert_eq!(epoch(&a), Some(2));
    }

    #[test]
    fn an_owner_raises_its_epoch_above_that_of_the_log() {
        let mut world = World::new();
        let mut a = world.node("a");
        world.run(&mut a);
        let (record, revision) = a.raise(7).unwrap();
        let outcome = world.write(&record, revision);
        a.written(&record, outcome, world.now, world.now);
        assert_eq!(epoch(&a), Some(8));
        assert!(world.node("b").raise(1).is_none());
    }

    #[test]
    fn a_long_lease_that_is_given_back_is_taken_as_soon_as_a_short_one() {
        let mut world = World::new();
        let (mut a, mut b) = (world.node("a"), world.node("b"));
        (a.time, b.time) = (LEASE * 100, LEASE * 100);
        world.run(&mut a);
        world.run(&mut b);
        world.release(&mut a);
        world.pass(200);
        world.run(&mut b);
        assert_eq!(epoch(&b), Some(2));
    }

    #[test]
    fn whoever_wants_a_longer_lease_gets_it() {
        let mut world = World::new();
        let mut patient = world.node("a");
        patient.time = LEASE * 10;
        let mut b = world.node("b");
        world.run(&mut patient);
        world.run(&mut b);
        world.pass(20_000);
        world.run(&mut b);
        assert_eq!(epoch(&b), None);
    }

    /// Random steps of three nodes, some of which sleep or are cut off.
    #[test]
    fn in_each_epoch_there_is_one_owner() {
        let mut seed = 7_u64;
        let mut random = move |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        let mut world = World::new();
        let mut nodes = ["a", "b", "c"].map(|id| world.node(id));
        let mut owners = std::collections::BTreeMap::new();
        for _ in 0..20_000 {
            world.pass(random(400));
            let at = usize::try_from(random(3)).unwrap();
            let node = &mut nodes[at];
            for _ in 0..3 {
                match (node.next(world.now), random(10)) {
                    (LeaseStep::Wait(_), _) => {}
                    (LeaseStep::Read, 0..3) => node.unreadable(world.now),
                    (LeaseStep::Read, _) => {
                        let (revision, record) = world.stored.clone().unzip();
                        node.read(revision.unwrap_or(0), record, world.now);
                    }
                    (LeaseStep::Write { record, revision }, chance) => {
                        let sent = world.now;
                        let outcome = if chance == 0 { WriteOutcome::Unknown } else { world.write(&record, revision) };
                        let outcome = if chance == 1 { WriteOutcome::Unknown } else { outcome };
                        world.pass(random(50));
                        node.written(&record, outcome, sent, world.now);
                    }
                }
                if let Some(epoch) = epoch(node) {
                    assert_eq!(*owners.entry(epoch).or_insert(at), at, "epoch {epoch}");
                }
            }
            if random(50) == 0 && node.release().is_some() {
                let (record, revision) = node.release().unwrap();
                let outcome = world.write(&record, revision);
                node.written(&record, outcome, world.now, world.now);
            }
        }
        assert!(owners.len() > 100, "{}", owners.len());
    }
}
