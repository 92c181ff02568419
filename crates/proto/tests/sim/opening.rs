//! How a link of an `ahp` world comes up: fresh machines with old memories, and limits that may have changed.

use breakbulk_proto::ahp::{Config, Connection, Delivery, Negotiated, Role};
use breakbulk_proto::{Account, Capacity, Input, Limits, Machine, Overhead};

use crate::sim::client::Client;
use crate::sim::endpoint::Endpoint;
use crate::sim::host::Desk;
use crate::sim::ledger::Strictness;
use crate::sim::line::Line;
use crate::sim::link::{Manner, Pipe};
use crate::sim::middle::{DOWN, Middle, UP};
use crate::sim::plan::{Mode, Plan, Sabotage};
use crate::sim::rng::Rng;
use crate::sim::world::World;

impl World {
    /// A fresh link for a client.
    pub(crate) fn open_line(&mut self, at: usize) -> Line {
        self.links += 1;
        self.tally.one("links");
        let capacity = capacity(&self.plan, &mut self.rng);
        let near = self.near(at, &capacity);
        let far = self.far(at, &capacity);
        let client = &self.clients[at];
        self.open_books(client.mode);
        let manner = |rng: &mut Rng| if self.calm { Manner::CALM } else { self.plan.manner(rng) };
        let pipes = [UP, DOWN].map(|_| Pipe::new(manner(&mut self.rng), self.now));
        let middle = Middle {
            hides_settled: self.clients[at].mode == Mode::Legacy,
            hides_reconnect: self.plan.hides_reconnect,
            recuts: self.plan.recuts,
            flips: self.plan.flips.filter(|_| !self.calm),
            sabotage: self.plan.sabotage,
            ..Middle::default()
        };
        let (near, far) = (Some(near), Some(far));
        Line {
            id: self.links,
            client: at,
            pipes,
            near,
            far,
            desk: Desk::default(),
            middle,
            capacity,
            cut: None,
            tickets: 0,
        }
    }

    /// The client's end.
    fn near(&mut self, at: usize, capacity: &Capacity) -> Endpoint<Connection> {
        let (plan, rng) = (&self.plan, &mut self.rng);
        let Client { name, mode, budget, negotiated, .. } = &self.clients[at];
        let limits = if plan.changes_limits { plan.limits(rng, &self.client_budget) } else { self.client_limits };
        let delivery = match mode {
            Mode::StartOrder if plan.sabotage != Some(Sabotage::ReleasedEarly) => Delivery::StartOrder,
            _ => Delivery::Settled,
        };
        let mut config = Config::new(Role::Client, limits, rng.bytes());
        (config.delivery, config.negotiated) = (delivery, memory(plan, negotiated));
        self.end("client", config, budget.account(Some(name)), capacity)
    }

    /// The host's end.
    fn far(&mut self, at: usize, capacity: &Capacity) -> Endpoint<Connection> {
        let (plan, rng) = (&self.plan, &mut self.rng);
        let (budget, _) = &self.host_budget;
        let principal = if plan.shares_budget { "everyone" } else { &self.clients[at].name };
        let mut config = Config::new(Role::Server, self.host_limits, rng.bytes());
        config.delivery = rng.pick(&[Delivery::Settled, Delivery::StartOrder]);
        config.negotiated = memory(plan, &self.host.negotiated);
        self.end("host", config, budget.account(Some(principal)), capacity)
    }

    fn end(&self, side: &str, config: Config, account: Account, capacity: &Capacity) -> Endpoint<Connection> {
        let limits: Limits = config.limits;
        let name = format!("link {} {side}", self.links);
        let machine = Connection::new(config, account);
        let mut end = Endpoint::new(machine, name, limits.sweep_after(), self.now)
            .sabotaged(self.plan.sabotage)
            .batched(self.links as u32 % 4);
        end.machine.handle(Input::Capacity(capacity.clone()), self.now);
        end
    }

    fn open_books(&mut self, mode: Mode) {
        // With flipped bits, nobody can tell what should have arrived.
        if self.plan.flips.is_some() {
            return;
        }
        let id = self.links;
        let strictness = if mode == Mode::Settled { Strictness::PerLane } else { Strictness::OverAll };
        self.ledger.open((id, UP), format!("link {id} up"), Strictness::OverAll);
        self.ledger.open((id, DOWN), format!("link {id} down"), strictness);
    }
}

/// What earlier connections negotiated, unless a saboteur forgets it.
fn memory(plan: &Plan, kept: &Negotiated) -> Negotiated {
    if plan.sabotage == Some(Sabotage::ForgottenCapability) { Negotiated::default() } else { kept.clone() }
}

fn capacity(plan: &Plan, rng: &mut Rng) -> Capacity {
    let overhead = match rng.below(4) {
        0 => Overhead::new(|_| 30),
        1 => Overhead::new(|measure| measure.escaped.saturating_sub(measure.bytes) + 12),
        _ => Overhead::default(),
    };
    Capacity { cap: plan.cap(rng), overhead }
}
