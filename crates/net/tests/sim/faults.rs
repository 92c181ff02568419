//! Faults and how they end: of links, sockets, readers and programs.

use std::time::Duration;

use crate::sim::gate::{INNER, OUTER};
use crate::sim::host::HOST;
use crate::sim::memory::Client;
use crate::sim::plan::Mode;
use crate::sim::shared::{DOWN, Stall, UP};
use crate::sim::trace::trace;
use crate::sim::trouble::{Measure, happens};
use crate::sim::world::World;

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

    /// From now on nothing goes wrong.
    pub(crate) fn calm_down(&mut self) {
        self.trouble.mend(&mut self.sim, self.now, Duration::MAX);
        self.sim.set_fail_rate(0.0);
        for (a, b) in self.ways() {
            self.sim.release(a.as_str(), b.as_str());
            self.sim.repair(a.as_str(), b.as_str());
            self.sim.set_link_latency(a.as_str(), b.as_str(), Duration::from_millis(5));
        }
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
        let facts = self.shared.facts.borrow();
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
        let Self { sim, shared, rng, now, plan, trouble, .. } = self;
        let measure = Measure { partition: 4000, hold: 1500, hold_permille: 4 * more };
        let happened = trouble.disturb_way(sim, *now, (&a, &b), &mut plan.faults, measure, rng);
        let tally = &mut shared.facts.borrow_mut().books.tally;
        happened.into_iter().for_each(|what| tally.one(what));
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
        let facts = &mut *self.shared.facts.borrow_mut();
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
        let (rng, facts) = (&mut self.rng, &mut *self.shared.facts.borrow_mut());
        let links = facts.whole_links();
        if links.is_empty() {
            return;
        }
        if happens(&mut self.plan.faults.stalls, 6, rng) {
            let (id, way) = (rng.pick(&links), rng.pick(&[UP, UP, DOWN]));
            let (time, is_deaf) = (rng.millis(50, 5000), rng.chance(50));
            facts.books.tally.one(if is_deaf { "readers stalled" } else { "ends paused" });
            facts.stalls.insert((id, way), if is_deaf { Stall::Deaf(time) } else { Stall::Still(time) });
            self.shared.ring();
        }
        if happens(&mut self.plan.faults.pauses, 3, rng) {
            facts.books.tally.one("host paused");
            let time = rng.millis(50, 5000);
            facts.stalls.extend(links.iter().map(|id| ((*id, DOWN), Stall::Still(time))));
            self.shared.ring();
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
        let Self { sim, shared, rng, now, trouble, .. } = self;
        if trouble.crash(sim, *now, &name, rng) {
            shared.facts.borrow_mut().books.tally.one(what);
        }
    }
}
