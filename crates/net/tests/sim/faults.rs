//! What goes wrong, and how it ends: ways, wires, readers and programs.

use std::time::Duration;

use crate::sim::gate::{INNER, OUTER};
use crate::sim::host::HOST;
use crate::sim::memory::Client;
use crate::sim::plan::{Faults, Mode};
use crate::sim::rng::Rng;
use crate::sim::scene::{DOWN, Stall, UP};
use crate::sim::trace::trace;
use crate::sim::world::World;

/// What ends a fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Mend {
    /// A way is as it was.
    Way(String, String),
    /// A program starts again.
    Program(String),
}

/// Where a fault tells the most.
enum Aim {
    /// On the link of this client, where something has passed an unfinished group.
    Ahead(usize),
    /// On the link of this client, where a group is unfinished.
    Inside(usize),
    Anywhere,
}

impl World {
    /// Something goes wrong, perhaps.
    pub(crate) fn go_wrong(&mut self) {
        self.disturb_ways();
        self.disturb_wires();
        self.disturb_ends();
        self.disturb_programs();
    }

    /// Ends the faults that are over by `now`.
    pub(crate) fn mend(&mut self, now: Duration) {
        let (over, rest) = std::mem::take(&mut self.mends).into_iter().partition(|(until, _)| *until <= now);
        self.mends = rest;
        let over: Vec<(Duration, Mend)> = over;
        for (_, mend) in over {
            self.tell(|| format!("mended: {mend:?}"));
            match mend {
                Mend::Way(a, b) => {
                    self.sim.release(a.as_str(), b.as_str());
                    self.sim.repair(a.as_str(), b.as_str());
                }
                Mend::Program(name) => self.sim.bounce(name),
            }
        }
    }

    /// From now on nothing goes wrong.
    pub(crate) fn calm_down(&mut self) {
        self.mend(Duration::MAX);
        self.sim.set_fail_rate(0.0);
        for (a, b) in self.ways() {
            self.sim.release(a.as_str(), b.as_str());
            self.sim.repair(a.as_str(), b.as_str());
            self.sim.set_link_latency(a.as_str(), b.as_str(), Duration::from_millis(5));
        }
    }

    fn tell(&self, what: impl FnOnce() -> String) {
        trace(|| format!("{:>6} ms  {}", self.now.as_millis(), what()));
    }

    /// Who is connected to whom.
    fn ways(&self) -> Vec<(String, String)> {
        let mut ways = Vec::new();
        for (at, mode) in self.plan.modes.iter().enumerate() {
            let to = if *mode == Mode::Plain { OUTER } else { HOST };
            ways.push((format!("client-{at}"), to.to_owned()));
        }
        if self.plan.modes.contains(&Mode::Plain) {
            ways.extend([(OUTER.into(), INNER.into()), (INNER.into(), HOST.into())]);
        }
        ways
    }

    fn aim(&self) -> Aim {
        let facts = self.scene.facts.borrow();
        let is_inside = |client: &Client| client.link.is_some_and(|id| facts.inside.contains(&id));
        let ahead = facts.clients.iter().position(Client::is_ahead);
        let inside = facts.clients.iter().position(is_inside);
        ahead.map(Aim::Ahead).or(inside.map(Aim::Inside)).unwrap_or(Aim::Anywhere)
    }

    fn disturb_ways(&mut self) {
        let ways = self.ways();
        let (at, more) = match self.aim() {
            // The first ways are those of the clients.
            Aim::Ahead(at) | Aim::Inside(at) => (at, 8),
            Aim::Anywhere => (self.rng.below(ways.len() as u64) as usize, 1),
        };
        let (a, b) = ways[at].clone();
        let mend = Mend::Way(a.clone(), b.clone());
        let rng = &mut self.rng;
        let Faults { partitions, holds, latencies, .. } = &mut self.plan.faults;
        let tally = &mut self.scene.facts.borrow_mut().books.tally;
        if happens(latencies, 5, rng) {
            tally.one("latencies changed");
            self.sim.set_link_latency(a.as_str(), b.as_str(), rng.millis(0, 80));
        }
        if self.mends.iter().any(|(_, other)| *other == mend) {
            return;
        }
        if happens(partitions, 3, rng) {
            let kind = rng.below(4);
            trace(|| format!("{:>6} ms  partition {kind} of {mend:?}", self.now.as_millis()));
            tally.one(if kind < 2 { "partitions" } else { "partitions one way" });
            match kind {
                0 | 1 => self.sim.partition(a.as_str(), b.as_str()),
                2 => self.sim.partition_oneway(a.as_str(), b.as_str()),
                _ => self.sim.partition_oneway(b.as_str(), a.as_str()),
            }
            self.mends.push((self.now + rng.millis(50, 4000), mend));
        } else if happens(holds, 4 * more, rng) {
            tally.one("ways held");
            trace(|| format!("{:>6} ms  held: {mend:?}", self.now.as_millis()));
            self.sim.hold(a.as_str(), b.as_str());
            self.mends.push((self.now + rng.millis(20, 1500), mend));
        }
    }

    /// A wire breaks a little later, perhaps.
    fn disturb_wires(&mut self) {
        let (whose, permille) = match self.aim() {
            Aim::Ahead(at) => (Some(at), 150),
            Aim::Inside(at) => (Some(at), 20),
            // The more there are to come, the sooner.
            Aim::Anywhere => (None, 1 + u64::from(self.plan.faults.resets)),
        };
        if !happens(&mut self.plan.faults.resets, permille, &mut self.rng) {
            return;
        }
        let facts = &mut *self.scene.facts.borrow_mut();
        let whose = whose.map(|at| facts.clients[at].name.clone());
        let fuses = facts.fuses(whose.as_deref());
        if let Some(fuse) = fuses.get(self.rng.below(fuses.len() as u64) as usize) {
            facts.books.tally.one("resets");
            let bytes = self.rng.pick(&[0, 3000, 30_000, 200_000]);
            trace(|| format!("{:>6} ms  a wire breaks in {bytes} bytes", self.now.as_millis()));
            fuse.light(bytes);
        }
    }

    /// One end stops for a while, or all of the host's do.
    fn disturb_ends(&mut self) {
        let (rng, facts) = (&mut self.rng, &mut *self.scene.facts.borrow_mut());
        let links = facts.whole_links();
        if links.is_empty() {
            return;
        }
        if happens(&mut self.plan.faults.stalls, 6, rng) {
            let (id, way) = (rng.pick(&links), rng.pick(&[UP, UP, DOWN]));
            let (time, is_deaf) = (rng.millis(50, 5000), rng.chance(50));
            facts.books.tally.one(if is_deaf { "readers stalled" } else { "ends paused" });
            facts.stalls.insert((id, way), if is_deaf { Stall::Deaf(time) } else { Stall::Still(time) });
            self.scene.ring();
        }
        if happens(&mut self.plan.faults.pauses, 3, rng) {
            facts.books.tally.one("host paused");
            let time = rng.millis(50, 5000);
            facts.stalls.extend(links.iter().map(|id| ((*id, DOWN), Stall::Still(time))));
            self.scene.ring();
        }
    }

    /// A program ends without a word, and is started again.
    fn disturb_programs(&mut self) {
        if !happens(&mut self.plan.faults.crashes, 3, &mut self.rng) {
            return;
        }
        let (clients, has_gateways) = (self.plan.modes.len() as u64, self.plan.modes.contains(&Mode::Plain));
        let (name, what) = match self.rng.below(if has_gateways { 4 } else { 2 }) {
            0 => (HOST.to_owned(), "crashes of the host"),
            1 => (format!("client-{}", self.rng.below(clients)), "crashes of a client"),
            n => (if n == 2 { INNER } else { OUTER }.to_owned(), "crashes of a gateway"),
        };
        let mend = Mend::Program(name.clone());
        if self.mends.iter().any(|(_, other)| *other == mend) {
            return;
        }
        self.tell(|| format!("{what}: {name}"));
        self.scene.facts.borrow_mut().books.tally.one(what);
        self.sim.crash(name);
        self.mends.push((self.now + self.rng.millis(0, 1500), mend));
    }
}

fn happens(left: &mut u32, permille: u64, rng: &mut Rng) -> bool {
    let happens = *left > 0 && rng.below(1000) < permille;
    *left -= u32::from(happens);
    happens
}
