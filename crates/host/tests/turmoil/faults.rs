//! Faults and how they end: of links, sockets, readers and programs.

use std::time::Duration;

use crate::sim::host::HOST;
use crate::sim::trace::trace;
use crate::sim::trouble::{Measure, happens};
use crate::sim::watcher::WATCHER;
use crate::sim::world::{World, name};

impl World {
    /// Something goes wrong, perhaps.
    pub(crate) fn go_wrong(&mut self) {
        self.disturb_ways();
        self.disturb_wires();
        self.disturb_clients();
        self.disturb_programs();
    }

    /// From now on nothing goes wrong.
    pub(crate) fn calm_down(&mut self) {
        self.trouble.mend(&mut self.sim, self.now, Duration::MAX);
        for at in 0..self.clients() {
            self.sim.set_link_latency(HOST, name(at).as_str(), Duration::from_millis(2));
        }
    }

    fn disturb_ways(&mut self) {
        let client = name(self.rng.below(self.clients() as u64) as usize);
        let Self { sim, shared, rng, now, plan, trouble, .. } = self;
        let measure = Measure { partition: 5000, hold: 2500, hold_permille: 4 };
        let happened = trouble.disturb_way(sim, *now, (HOST, &client), &mut plan.faults, measure, rng);
        let tally = &mut shared.facts().tally;
        happened.into_iter().for_each(|what| tally.one(what));
    }

    /// A wire breaks a little later, perhaps.
    fn disturb_wires(&mut self) {
        // The more there are to come, the sooner.
        let permille = 2 + u64::from(self.plan.faults.resets);
        if !happens(&mut self.plan.faults.resets, permille, &mut self.rng) {
            return;
        }
        let facts = &mut *self.shared.facts();
        let whose = self.rng.chance(50).then_some(WATCHER);
        let fuses = facts.fuses(whose);
        if let Some(fuse) = fuses.get(self.rng.below(fuses.len() as u64) as usize) {
            facts.tally.one("resets");
            let bytes = self.rng.pick(&[0, 3000, 30_000, 200_000]);
            trace(|| format!("{:>6} ms  a wire breaks in {bytes} bytes", self.now.as_millis()));
            fuse.light(bytes);
        }
    }

    /// A client reads nothing for a while, or opens a second link.
    fn disturb_clients(&mut self) {
        let (rng, facts) = (&mut self.rng, &mut *self.shared.facts());
        let at = rng.below(facts.clients.len() as u64) as usize;
        if happens(&mut self.plan.faults.stalls, 6, rng) {
            facts.tally.one("readers stalled");
            facts.clients[at].stall = Some(rng.millis(50, 5000));
        }
        if at >= self.plan.authors && happens(&mut self.plan.faults.moves, 10, rng) {
            facts.clients[at].moves = true;
        }
        self.shared.changed.notify_waiters();
    }

    /// A program ends without a word, and is started again.
    fn disturb_programs(&mut self) {
        if !happens(&mut self.plan.faults.crashes, 4, &mut self.rng) {
            return;
        }
        let at = self.rng.below(self.clients() as u64) as usize;
        let is_host = self.rng.chance(60);
        let program = if is_host { HOST.to_owned() } else { name(at) };
        let Self { sim, shared, rng, now, trouble, .. } = self;
        if !trouble.crash(sim, *now, &program, rng) {
            return;
        }
        let facts = &mut *shared.facts();
        facts.tally.one(if is_host { "crashes of the host" } else { "crashes of a client" });
        if !is_host {
            facts.crashed(at);
        }
    }
}
