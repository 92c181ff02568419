//! A world: programs on a simulated network, from the first handshake until everything is at rest.

use std::rc::Rc;
use std::time::Duration;

use turmoil::Sim;

use crate::sim::client;
use crate::sim::gate::{self, Place};
use crate::sim::host::{self, HOST};
use crate::sim::ledger::Counts;
use crate::sim::memory::Deed;
use crate::sim::plan::{Mode, Plan};
use crate::sim::rng::Rng;
use crate::sim::shared::Shared;
use crate::sim::tally::Tally;
use crate::sim::trace::trace;
use crate::sim::trouble::Trouble;

/// How much time passes in a step.
pub(crate) const TICK: Duration = Duration::from_millis(4);
/// How long nothing may happen before the world counts as at rest, beside the time until a silent peer is missed: longer
/// than a driver waits for the answer to its close.
const QUIET: Duration = Duration::from_secs(6);
/// Longer than any world needs that comes to rest.
const MAX_TIME: Duration = Duration::from_secs(180);

/// What became of a run.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) counts: Counts,
    pub(crate) notes: Vec<String>,
    pub(crate) tally: Tally,
    /// A digest of all that happened, in order.
    pub(crate) print: u64,
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

/// A world under way.
pub(crate) struct World {
    pub(crate) sim: Sim<'static>,
    pub(crate) shared: Rc<Shared>,
    pub(crate) rng: Rng,
    pub(crate) now: Duration,
    /// Faults to come.
    pub(crate) plan: Plan,
    pub(crate) trouble: Trouble,
    /// Things that applications have not done yet.
    operations: u32,
    next_operation: Duration,
    calm: bool,
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
            .max_message_latency(Duration::from_millis(rng.range(4, 40)))
            .fail_rate(if plan.faults.lossy { 0.000_5 } else { 0.0 })
            .repair_rate(0.05);
        let mut sim = builder.build();
        let shared = Rc::new(Shared::new(plan.clone(), &mut rng));
        shared.facts.borrow_mut().books.tally.add("runs with lossy ways", plan.faults.lossy.into());
        let on = Rc::clone(&shared);
        sim.host(HOST, move || host::serve(Rc::clone(&on)));
        if plan.modes.contains(&Mode::Plain) {
            for place in [Place::Inner, Place::Outer] {
                let on = Rc::clone(&shared);
                sim.host(place.name(), move || gate::stand(Rc::clone(&on), place));
            }
        }
        for at in 0..plan.modes.len() {
            let on = Rc::clone(&shared);
            sim.host(format!("client-{at}"), move || client::live(Rc::clone(&on), at));
        }
        let (now, quiet, operations) = (Duration::ZERO, Duration::ZERO, plan.operations);
        let trouble = Trouble::default();
        Self { sim, shared, rng, now, plan, trouble, operations, next_operation: now, calm: false, moved: 0, quiet }
    }

    fn step(&mut self) {
        self.operate();
        if self.operations > 0 {
            self.go_wrong();
        } else if !self.calm {
            self.calm = true;
            self.calm_down();
        }
        self.trouble.mend(&mut self.sim, self.now, self.now);
        self.sim.step().expect("no program ends");
        self.now += TICK;
        let moved = self.shared.facts.borrow().moved();
        let is_still = std::mem::replace(&mut self.moved, moved) == moved;
        let is_at_rest = self.calm && is_still && self.is_at_rest();
        self.quiet = if is_at_rest { self.quiet + TICK } else { Duration::ZERO };
    }

    /// The applications do something.
    fn operate(&mut self) {
        while self.operations > 0 && self.next_operation <= self.now {
            self.operations -= 1;
            let pause = if self.rng.chance(40) { Duration::ZERO } else { self.rng.millis(0, self.plan.slowest) };
            self.next_operation = self.now + pause;
            let len = self.plan.text_len(&mut self.rng);
            let facts = &mut *self.shared.facts.borrow_mut();
            let channel = facts.host.channels[self.rng.below(self.plan.channels as u64) as usize].clone();
            match self.rng.below(20) {
                0..12 => facts.act(&channel, self.rng.text(len)),
                12..14 => {
                    let ready: Vec<_> = facts.desks.values_mut().filter(|connection| connection.is_ready()).collect();
                    let at = self.rng.below(ready.len() as u64) as usize;
                    ready.into_iter().skip(at).take(1).for_each(|connection| connection.todo.push_back(len));
                }
                other => {
                    let at = self.rng.below(facts.clients.len() as u64) as usize;
                    let deed = match other {
                        14 | 15 => Deed::Dispatch(channel, len),
                        16 => Deed::Write(len),
                        17 => Deed::Read(len),
                        18 => Deed::Ping,
                        _ => Deed::Subscribe(channel),
                    };
                    let client = &mut facts.clients[at];
                    if client.is_up() {
                        client.todo.push_back(deed);
                    }
                }
            }
            self.shared.ring();
        }
    }

    fn is_at_rest(&self) -> bool {
        let facts = self.shared.facts.borrow();
        let (links, are_whole) = facts.links();
        let count = facts.clients.len();
        are_whole
            && links == count
            && facts.desks.len() == count
            && facts.clients.iter().all(|client| client.is_at_rest())
            && facts.desks.values().all(|connection| connection.is_level(facts.log.seq))
            && facts.stalls.is_empty()
            && facts.stalled == 0
    }

    /// Draws the sums.
    fn finish(self) -> Outcome {
        let Self { sim, shared, now, .. } = self;
        {
            let facts = &mut *shared.facts.borrow_mut();
            let ledger = &mut facts.books.ledger;
            if now >= MAX_TIME {
                let clients = facts.clients.iter().filter(|client| !client.is_at_rest());
                let desks = facts.desks.values().filter(|connection| !connection.is_level(facts.log.seq));
                let busy: Vec<_> = clients.map(|it| it.about()).chain(desks.map(|it| format!("{it:?}"))).collect();
                ledger.lost(format!("the world did not come to rest at {}: {}", facts.log.seq, busy.join("; ")));
            } else {
                ledger.settle();
                facts.clients.iter().for_each(|client| client.follower.settle(&facts.log, ledger));
                if facts.books.asked > 0 {
                    ledger.lost(format!("{} requests were neither answered nor rejected", facts.books.asked));
                }
                let held = facts.held();
                check_memory(held, "at rest", &mut facts.books.ledger);
            }
        }
        drop(sim);
        let facts = &mut *shared.facts.borrow_mut();
        let held = facts.held();
        check_memory(held, "after everything is gone", &mut facts.books.ledger);
        facts.books.tally.add("simulated seconds", now.as_secs());
        let ledger = std::mem::take(&mut facts.books.ledger);
        let tally = std::mem::take(&mut facts.books.tally);
        Outcome { counts: ledger.counts, notes: ledger.notes, tally, print: facts.print }
    }
}

/// Nothing is charged when nothing is held.
fn check_memory(held: u64, when: &str, ledger: &mut crate::sim::ledger::Ledger) {
    if held > 0 {
        ledger.altered(format!("{held} bytes are charged {when}"));
    }
}
