//! A world: the host and its clients on a simulated network, from the first handshake until everything is at rest.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use turmoil::Sim;

use crate::sim::audit::audit;
use crate::sim::final_log::FinalLog;
use crate::sim::host::{self, HOST};
use crate::sim::ledger::Counts;
use crate::sim::plan::Plan;
use crate::sim::rng::Rng;
use crate::sim::shared::Shared;
use crate::sim::tally::Tally;
use crate::sim::trace::trace;
use crate::sim::trouble::Trouble;
use crate::sim::{auditor, author, watcher};

/// How much time passes in a step.
const TICK: Duration = Duration::from_millis(4);
/// How long nothing may move before the world counts as at rest, beside the time until a silent peer is missed.
const QUIET: Duration = Duration::from_secs(7);
/// Longer than any world needs that comes to rest.
const MAX_TIME: Duration = Duration::from_secs(240);

/// What became of a run.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) counts: Counts,
    pub(crate) notes: Vec<String>,
    pub(crate) tally: Tally,
}

/// Runs a world to its end.
pub(crate) fn run(plan: Plan) -> Outcome {
    trace(|| format!("{plan:?}"));
    let mut world = World::new(plan);
    while world.now < MAX_TIME && world.quiet < QUIET + world.plan.dead_after {
        world.step();
    }
    world.finish()
}

/// What the program of a client is called.
pub(crate) fn name(at: usize) -> String {
    format!("client-{at}")
}

/// A world under way.
pub(crate) struct World {
    pub(crate) sim: Sim<'static>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) rng: Rng,
    pub(crate) now: Duration,
    /// Faults to come.
    pub(crate) plan: Plan,
    pub(crate) trouble: Trouble,
    /// Things that have not been done yet.
    operations: u32,
    next_operation: Duration,
    is_calm: bool,
    /// Bytes that wires had brought by the last step.
    moved: u64,
    /// For how long everything has been at rest.
    quiet: Duration,
}

impl World {
    fn new(plan: Plan) -> Self {
        let mut rng = Rng::new(plan.seed ^ 0x5EED);
        let mut builder = turmoil::Builder::new();
        builder
            .tick_duration(TICK)
            .simulation_duration(MAX_TIME * 2)
            .rng_seed(rng.next())
            .enable_random_order()
            .tcp_capacity(16)
            .min_message_latency(Duration::from_millis(1))
            .max_message_latency(Duration::from_millis(rng.range(4, 40)));
        let mut sim = builder.build();
        let shared = Arc::new(Shared::new(plan.clone(), &mut rng));
        count(&shared);
        let on = Arc::clone(&shared);
        sim.host(HOST, move || host::serve(Arc::clone(&on)));
        for at in 0..plan.authors {
            let on = Arc::clone(&shared);
            sim.host(name(at), move || author::live(Arc::clone(&on), at));
        }
        for at in plan.authors..plan.authors + plan.watchers {
            let on = Arc::clone(&shared);
            sim.host(name(at), move || watcher::live(Arc::clone(&on), at));
        }
        let (now, operations) = (Duration::ZERO, plan.operations);
        let (trouble, is_calm, moved, quiet) = (Trouble::default(), false, 0, Duration::ZERO);
        Self { sim, shared, rng, now, plan, trouble, operations, next_operation: now, is_calm, moved, quiet }
    }

    /// How many clients there are.
    pub(crate) const fn clients(&self) -> usize {
        self.plan.authors + self.plan.watchers
    }

    fn step(&mut self) {
        self.operate();
        if self.operations > 0 {
            self.go_wrong();
        } else if !self.is_calm {
            self.is_calm = true;
            self.calm_down();
        }
        self.trouble.mend(&mut self.sim, self.now, self.now);
        self.sim.step().expect("no program ends");
        self.now += TICK;
        let moved = self.shared.moved();
        let is_still = std::mem::replace(&mut self.moved, moved) == moved;
        let is_at_rest = self.is_calm && is_still && self.is_at_rest();
        self.quiet = if is_at_rest { self.quiet + TICK } else { Duration::ZERO };
    }

    /// Somebody has something to do. Until all sessions are there, that is to make them.
    fn operate(&mut self) {
        let facts = &mut *self.shared.facts();
        if !facts.is_founded {
            return;
        }
        while self.operations > 0 && self.next_operation <= self.now {
            self.operations -= 1;
            let pause = if self.rng.chance(40) { Duration::ZERO } else { self.rng.millis(0, self.plan.slowest) };
            self.next_operation = self.now + pause;
            let channels = self.plan.channels();
            let channel = channels[self.rng.below(channels.len() as u64) as usize].clone();
            if self.rng.chance(10) && channel.starts_with("ahp-chat") {
                facts.turns.push_back(channel);
            } else {
                let at = self.rng.below(self.plan.authors as u64) as usize;
                let len = self.plan.text_len(&mut self.rng);
                facts.clients[at].todo.push_back((channel, len));
            }
        }
        self.shared.changed.notify_waiters();
    }

    fn is_at_rest(&self) -> bool {
        let facts = self.shared.facts();
        let is_at_rest = |client: &crate::sim::shared::Client| client.is_ready && client.todo.is_empty();
        facts.turns.is_empty() && facts.clients.iter().all(is_at_rest)
    }

    /// Asks the host what there is, and draws the sums.
    fn finish(mut self) -> Outcome {
        if self.now >= MAX_TIME {
            let facts = &mut *self.shared.facts();
            let note = format!("the world did not come to rest: {:?}, {:?}", facts.clients, facts.turns);
            facts.ledger.lost(note);
        } else {
            let on = Arc::clone(&self.shared);
            self.sim.client("auditor", auditor::ask(on));
            while self.shared.facts().shown.is_none() {
                self.sim.step().expect("no program ends");
            }
        }
        let Self { sim, shared, now, .. } = self;
        drop(sim);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let truth = FinalLog::read(&runtime.block_on(shared.store.entries()).unwrap());
        let facts = &mut *shared.facts();
        let shown = facts.shown.take().unwrap_or_else(BTreeMap::new);
        audit(&truth, &facts.runs, &shown, &mut facts.ledger);
        facts.tally.add("simulated seconds", now.as_secs());
        facts.tally.add("bytes moved", shared.moved());
        let ledger = std::mem::take(&mut facts.ledger);
        Outcome { counts: ledger.counts, notes: ledger.notes, tally: std::mem::take(&mut facts.tally) }
    }
}

/// Counts what kind of world this is.
fn count(shared: &Shared) {
    let tally = &mut shared.facts().tally;
    tally.add("runs on a disk", shared.plan.on_disk.into());
    tally.one(match shared.plan.cap {
        Some(65_536) => "runs with a cap of 65536",
        Some(_) => "runs with a cap of 900000",
        None => "runs without a cap",
    });
}
