//! What goes wrong, and how it ends: ways, wires, readers and programs.

use std::time::Duration;

use crate::sim::host::HOST;
use crate::sim::plan::Faults;
use crate::sim::rng::Rng;
use crate::sim::trace::trace;
use crate::sim::watcher::WATCHER;
use crate::sim::world::{World, name};

/// What ends a fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Mend {
    /// The way to a client is as it was.
    Way(String),
    /// A program starts again.
    Program(String),
}

impl World {
    /// Something goes wrong, perhaps.
    pub(crate) fn go_wrong(&mut self) {
        self.disturb_ways();
        self.disturb_wires();
        self.disturb_clients();
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
                Mend::Way(client) => {
                    self.sim.release(HOST, client.as_str());
                    self.sim.repair(HOST, client.as_str());
                }
                Mend::Program(program) => self.sim.bounce(program),
            }
        }
    }

    /// From now on nothing goes wrong.
    pub(crate) fn calm_down(&mut self) {
        self.mend(Duration::MAX);
        for at in 0..self.clients() {
            self.sim.set_link_latency(HOST, name(at).as_str(), Duration::from_millis(2));
        }
    }

    fn disturb_ways(&mut self) {
        let client = name(self.rng.below(self.clients() as u64) as usize);
        let mend = Mend::Way(client.clone());
        let rng = &mut self.rng;
        let Faults { partitions, holds, latencies, .. } = &mut self.plan.faults;
        let scene = self.scene.clone();
        let tally = &mut scene.facts().tally;
        if happens(latencies, 5, rng) {
            tally.one("latencies changed");
            self.sim.set_link_latency(HOST, client.as_str(), rng.millis(0, 80));
        }
        if self.mends.iter().any(|(_, other)| *other == mend) {
            return;
        }
        if happens(partitions, 3, rng) {
            let kind = rng.below(4);
            trace(|| format!("{:>6} ms  partition {kind} of {mend:?}", self.now.as_millis()));
            tally.one("partitions");
            match kind {
                0 | 1 => self.sim.partition(HOST, client.as_str()),
                2 => self.sim.partition_oneway(HOST, client.as_str()),
                _ => self.sim.partition_oneway(client.as_str(), HOST),
            }
            self.mends.push((self.now + rng.millis(50, 5000), mend));
        } else if happens(holds, 4, rng) {
            tally.one("ways held");
            trace(|| format!("{:>6} ms  held: {mend:?}", self.now.as_millis()));
            self.sim.hold(HOST, client.as_str());
            self.mends.push((self.now + rng.millis(20, 2500), mend));
        }
    }

    /// A wire breaks a little later, perhaps.
    fn disturb_wires(&mut self) {
        // The more there are to come, the sooner.
        let permille = 2 + u64::from(self.plan.faults.resets);
        if !happens(&mut self.plan.faults.resets, permille, &mut self.rng) {
            return;
        }
        let facts = &mut *self.scene.facts();
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
        let (rng, facts) = (&mut self.rng, &mut *self.scene.facts());
        let at = rng.below(facts.clients.len() as u64) as usize;
        if happens(&mut self.plan.faults.stalls, 6, rng) {
            facts.tally.one("readers stalled");
            facts.clients[at].stall = Some(rng.millis(50, 5000));
        }
        if at >= self.plan.authors && happens(&mut self.plan.faults.moves, 10, rng) {
            facts.clients[at].moves = true;
        }
        self.scene.bell.notify_waiters();
    }

    /// A program ends without a word, and is started again.
    fn disturb_programs(&mut self) {
        if !happens(&mut self.plan.faults.crashes, 4, &mut self.rng) {
            return;
        }
        let at = self.rng.below(self.clients() as u64) as usize;
        let is_host = self.rng.chance(60);
        let program = if is_host { HOST.to_owned() } else { name(at) };
        let mend = Mend::Program(program.clone());
        if self.mends.iter().any(|(_, other)| *other == mend) {
            return;
        }
        self.tell(|| format!("{program} crashes"));
        self.scene.facts().tally.one(if is_host { "crashes of the host" } else { "crashes of a client" });
        self.sim.crash(program);
        if !is_host {
            self.scene.facts().crashed(at);
        }
        self.mends.push((self.now + self.rng.millis(0, 1500), mend));
    }

    fn tell(&self, what: impl FnOnce() -> String) {
        trace(|| format!("{:>6} ms  {}", self.now.as_millis(), what()));
    }
}

fn happens(left: &mut u32, permille: u64, rng: &mut Rng) -> bool {
    let happens = *left > 0 && rng.below(1000) < permille;
    *left -= u32::from(happens);
    happens
}
