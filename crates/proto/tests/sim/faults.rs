//! What goes wrong in an `ahp` world, and what may never follow from it.

use std::time::{Duration, Instant};

use breakbulk_proto::{Capacity, CloseReason, Input, Machine, SendError, Violation};

use crate::sim::endpoint::Endpoint;
use crate::sim::ledger::Ledger;
use crate::sim::line::Line;
use crate::sim::plan::{Faults, Plan};
use crate::sim::rng::Rng;
use crate::sim::trace::trace;
use crate::sim::world::World;

/// Steps after the last operation during which faults are still waited for.
const FAULT_STEPS: u32 = 80;

impl World {
    /// Links break, stall, shrink; readers pause. When everything was done that was to be done, all is calm.
    pub(crate) fn go_wrong(&mut self) {
        if self.calm {
            return;
        }
        // Most faults hit a link that is in use.
        let idle = self.rng.chance(10);
        let hit = |line: &Line| line.cut.is_none() && line.near.is_some() && (idle || !line.is_quiet());
        let whole: Vec<_> = (0..self.lines.len()).filter(|at| hit(&self.lines[*at])).collect();
        if !whole.is_empty() {
            let at = self.rng.pick(&whole);
            self.cut(at);
            self.disturb(at);
        }
        self.since += u32::from(self.operations == 0);
        if self.since > FAULT_STEPS {
            self.calm = true;
            self.lines.iter_mut().for_each(|line| line.calm(self.now));
            self.lines.iter_mut().for_each(|line| line.middle.flips = None);
        }
    }

    /// Cuts a link, perhaps. Each end notices in its own time; a client may be gone with all that its machine held.
    fn cut(&mut self, at: usize) {
        let (rng, line, now) = (&mut self.rng, &mut self.lines[at], self.now);
        let client = &mut self.clients[line.client];
        // Cuts tell the most inside a group, and when something has passed it.
        let inside = line.near.as_ref().is_some_and(Endpoint::has_open_groups);
        let percent = if client.is_ahead() {
            // Where clients come and go, snapshots shall pass too.
            if self.plan.restless { 15 } else { 40 }
        } else if inside {
            6
        } else {
            2
        };
        if !happens(&mut self.plan.faults.cuts, percent, rng) {
            return;
        }
        trace(|| format!("link {} is cut", line.id));
        self.tally.one("cuts");
        self.tally.add("cuts inside a group", inside.into());
        line.cut(now + late(rng), now + late(rng), now);
        if rng.chance(20) {
            self.tally.one("machines dropped with all they held");
            line.near = None;
            client.disconnected(now + late(rng));
        }
    }

    /// Stalls a link, pauses one of its readers or shrinks its cap, perhaps.
    fn disturb(&mut self, at: usize) {
        let (rng, line, now) = (&mut self.rng, &mut self.lines[at], self.now);
        let Faults { stalls, pauses, shrinks, .. } = &mut self.plan.faults;
        if happens(stalls, 6, rng) {
            self.tally.one("stalls");
            line.pipes[rng.below(2) as usize].stall(now + rng.millis(10, 900));
        }
        if happens(pauses, 6, rng) {
            self.tally.one("pauses");
            let until: Instant = now + rng.millis(10, 900);
            let end = if rng.chance(70) { &mut line.near } else { &mut line.far };
            end.iter_mut().for_each(|end| end.pause(until, now));
        }
        if happens(shrinks, 2, rng) {
            self.tally.one("caps shrunk");
            line.capacity = Capacity::of(line.capacity.cap.min(rng.range(2048, 4096)));
            let ends = [&mut line.near, &mut line.far].into_iter().flatten();
            ends.for_each(|end| end.machine.handle(Input::Capacity(line.capacity.clone()), now));
        }
    }
}

fn happens(left: &mut u32, percent: u64, rng: &mut Rng) -> bool {
    let happens = *left > 0 && rng.chance(percent);
    *left -= u32::from(happens);
    happens
}

/// How much later somebody notices.
fn late(rng: &mut Rng) -> Duration {
    if rng.chance(50) { Duration::ZERO } else { rng.millis(0, 400) }
}

/// A peer that takes segments is never told that a message does not fit a frame.
pub(crate) fn check_refusal(error: &SendError, plan: &Plan, ledger: &mut Ledger, who: &str) {
    if !plan.old_version && plan.flips.is_none() && matches!(error, SendError::NoSegments { .. }) {
        ledger.lost(format!("the {who} refused a message although its peer takes segments: {error}"));
    }
}

/// Nobody here breaks a rule, so nobody may be accused; only a segment of a group that expired comes too late.
pub(crate) fn check_close(reason: &CloseReason, has_expired: bool, plan: &Plan, ledger: &mut Ledger) {
    if let CloseReason::Violation(violation) = reason
        && plan.flips.is_none()
        && !(has_expired && matches!(violation, Violation::GroupUnknown { .. }))
    {
        ledger.altered(format!("an honest peer is accused: {violation}"));
    }
}
