//! Temporary faults: links are disturbed, programs crash, and all of it is repaired later.

use std::time::Duration;

use turmoil::Sim;

use crate::sim::plan::Faults;
use crate::sim::rng::Rng;
use crate::sim::trace::trace;

/// Faults at present, and when each ends.
#[derive(Debug, Default)]
pub(crate) struct Trouble {
    mends: Vec<(Duration, Mend)>,
}

/// What ends a fault.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Mend {
    /// A way is as it was.
    Way(String, String),
    /// A program starts again.
    Program(String),
}

/// How bad it gets on a way.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Measure {
    /// The longest partition, in milliseconds.
    pub(crate) partition: u64,
    /// The longest hold, in milliseconds, and in how many steps of a thousand one begins.
    pub(crate) hold: u64,
    pub(crate) hold_permille: u64,
}

impl Trouble {
    /// Ends the faults that are over by `until`.
    pub(crate) fn mend(&mut self, sim: &mut Sim<'_>, now: Duration, until: Duration) {
        for (_, mend) in self.mends.extract_if(.., |(end, _)| *end <= until) {
            tell(now, || format!("mended: {mend:?}"));
            match mend {
                Mend::Way(a, b) => {
                    sim.release(a.as_str(), b.as_str());
                    sim.repair(a.as_str(), b.as_str());
                }
                Mend::Program(name) => sim.bounce(name),
            }
        }
    }

    /// A way between two programs gets slower, loses everything for a while or delivers nothing for a while, perhaps. What
    /// has happened to it.
    pub(crate) fn disturb_way(
        &mut self,
        sim: &mut Sim<'_>,
        now: Duration,
        (a, b): (&str, &str),
        faults: &mut Faults,
        measure: Measure,
        rng: &mut Rng,
    ) -> Vec<&'static str> {
        let mut happened = Vec::new();
        if happens(&mut faults.latencies, 5, rng) {
            happened.push("latencies changed");
            sim.set_link_latency(a, b, rng.millis(0, 80));
        }
        let mend = Mend::Way(a.to_owned(), b.to_owned());
        if self.has(&mend) {
            return happened;
        }
        if happens(&mut faults.partitions, 3, rng) {
            let kind = rng.below(4);
            tell(now, || format!("partition {kind} of {mend:?}"));
            happened.push(if kind < 2 { "partitions" } else { "partitions one way" });
            match kind {
                0 | 1 => sim.partition(a, b),
                2 => sim.partition_oneway(a, b),
                _ => sim.partition_oneway(b, a),
            }
            self.mends.push((now + rng.millis(50, measure.partition), mend));
        } else if happens(&mut faults.holds, measure.hold_permille, rng) {
            happened.push("ways held");
            tell(now, || format!("held: {mend:?}"));
            sim.hold(a, b);
            self.mends.push((now + rng.millis(20, measure.hold), mend));
        }
        happened
    }

    /// A program ends without a word, and is started again; unless it has ended already. Whether it did.
    pub(crate) fn crash(&mut self, sim: &mut Sim<'_>, now: Duration, program: &str, rng: &mut Rng) -> bool {
        let mend = Mend::Program(program.to_owned());
        if self.has(&mend) {
            return false;
        }
        tell(now, || format!("{program} crashes"));
        sim.crash(program);
        self.mends.push((now + rng.millis(0, 1500), mend));
        true
    }

    fn has(&self, mend: &Mend) -> bool {
        self.mends.iter().any(|(_, other)| other == mend)
    }
}

/// Whether one of so many faults happens in this step.
pub(crate) fn happens(left: &mut u32, permille: u64, rng: &mut Rng) -> bool {
    let happens = *left > 0 && rng.below(1000) < permille;
    *left -= u32::from(happens);
    happens
}

fn tell(now: Duration, what: impl FnOnce() -> String) {
    trace(|| format!("{:>6} ms  {}", now.as_millis(), what()));
}
