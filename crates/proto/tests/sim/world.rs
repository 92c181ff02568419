//! An `ahp` world: clients, a host and links between them, from the first handshake until everything is at rest.

use std::time::{Duration, Instant};

use breakbulk_proto::{Budget, BudgetConfig, CloseReason, Event, Input, Limits, Machine};

use crate::sim::client::{Around, Client, Stage};
use crate::sim::faults::{check_close, check_refusal};
use crate::sim::host::{Host, Room};
use crate::sim::ledger::{Counts, Ledger};
use crate::sim::line::Line;
use crate::sim::middle::{DOWN, UP};
use crate::sim::plan::Plan;
use crate::sim::rng::Rng;
use crate::sim::tally::Tally;
use crate::sim::trace::trace;

/// What became of a run.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) counts: Counts,
    pub(crate) notes: Vec<String>,
    pub(crate) tally: Tally,
}

/// More steps than any world needs that comes to rest.
const MAX_STEPS: u32 = 30_000;

/// Runs a world to its end.
pub(crate) fn run(plan: Plan) -> Outcome {
    trace(|| format!("{plan:?}"));
    let mut world = World::new(plan);
    while world.steps < world.max_steps() && !world.is_at_rest() {
        world.step();
    }
    world.finish()
}

/// A world under way.
pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) rng: Rng,
    pub(crate) now: Instant,
    pub(crate) host: Host,
    pub(crate) host_budget: (Budget, BudgetConfig),
    pub(crate) host_limits: Limits,
    pub(crate) client_budget: BudgetConfig,
    pub(crate) client_limits: Limits,
    pub(crate) clients: Vec<Client>,
    pub(crate) lines: Vec<Line>,
    pub(crate) ledger: Ledger,
    pub(crate) tally: Tally,
    pub(crate) steps: u32,
    pub(crate) links: u64,
    pub(crate) operations: u32,
    pub(crate) next_operation: Instant,
    /// Steps since the last operation.
    pub(crate) since: u32,
    pub(crate) calm: bool,
}

impl World {
    fn new(plan: Plan) -> Self {
        let mut rng = Rng::new(plan.seed ^ 0x5EED);
        let now = Instant::now();
        let host = Host::new(&plan, Rng::new(rng.next()));
        let (host_config, client_budget) = (plan.budget(&mut rng), plan.budget(&mut rng));
        let shared = Budget::new(client_budget);
        let mut clients = Vec::new();
        for (n, mode) in plan.modes.iter().enumerate() {
            let budget = if plan.shares_budget { shared.clone() } else { Budget::new(client_budget) };
            let first = host.channels.iter().filter(|_| rng.chance(60)).cloned().collect();
            clients.push(Client::new(format!("client-{n}"), *mode, &plan, budget, first, now));
        }
        let (host_limits, client_limits) = (plan.limits(&mut rng, &host_config), plan.limits(&mut rng, &client_budget));
        Self {
            operations: plan.operations,
            host,
            host_budget: (Budget::new(host_config), host_config),
            host_limits,
            client_budget,
            client_limits,
            clients,
            lines: Vec::new(),
            ledger: Ledger::default(),
            tally: Tally::default(),
            steps: 0,
            links: 0,
            next_operation: now,
            since: 0,
            calm: false,
            plan,
            rng,
            now,
        }
    }

    fn step(&mut self) {
        self.steps += 1;
        self.connect();
        self.operate();
        self.go_wrong();
        for at in 0..self.lines.len() {
            self.lines[at].notice(self.now);
            self.lines[at].read(self.now);
            self.tally.add("steps without room", self.lines[at].is_parked().into());
            self.client_events(at);
            self.host_events(at);
            self.lines[at].write(&mut self.rng, &mut self.tally, self.now);
            // What was written may have closed a machine or told what was sent.
            self.client_events(at);
            self.host_events(at);
            self.lines[at].write(&mut self.rng, &mut self.tally, self.now);
        }
        self.bury();
        let (budget, config) = &self.host_budget;
        assert!(budget.used() <= config.process_bytes, "the host holds more than its budget");
        for client in &self.clients {
            assert!(client.budget.used() <= self.client_budget.process_bytes, "a client holds more than its budget");
        }
        self.pass_time();
    }

    /// Clients without a link get one.
    fn connect(&mut self) {
        for at in 0..self.clients.len() {
            if matches!(self.clients[at].stage, Stage::Down(until) if until <= self.now) {
                let mut line = self.open_line(at);
                let hello = self.clients[at].connect(&mut self.tally);
                line.send_up(&hello, &mut self.ledger, self.now);
                self.lines.push(line);
            }
        }
    }

    /// The applications do something.
    fn operate(&mut self) {
        let now = self.now;
        while self.operations > 0 && self.next_operation <= now {
            self.operations -= 1;
            let slowest = if self.plan.slow { 150 } else { 30 };
            let pause = if self.rng.chance(50) { Duration::ZERO } else { self.rng.millis(0, slowest) };
            self.next_operation = now + pause;
            match self.rng.below(10) {
                0..6 => {
                    let len = self.plan.text_len(&mut self.rng);
                    let channel = self.rng.below(self.host.channels.len() as u64) as usize;
                    let (channel, text) = (self.host.channels[channel].clone(), self.rng.text(len));
                    self.host.act(&channel, text);
                    self.tally.one("actions logged");
                }
                6 if self.rng.chance(50) => {
                    let out = self.host.ask(&self.plan);
                    let asked = self.lines.iter_mut().find(|line| line.desk.is_ready());
                    if let Some(line) = asked {
                        self.tally.one("requests of the host");
                        line.send_down(&out, &mut self.ledger, now);
                    }
                }
                6 => {
                    let out = self.host.add_session(&mut self.tally);
                    for line in self.lines.iter_mut().filter(|line| line.desk.is_ready()) {
                        let waiting = self.host.pull(&mut line.desk, true);
                        waiting.iter().chain([&out]).for_each(|out| line.send_down(out, &mut self.ledger, now));
                    }
                }
                _ => self.operate_client(),
            }
        }
        for line in &mut self.lines {
            let client = &mut self.clients[line.client];
            if line.near.is_some() {
                client.due().iter().for_each(|out| line.send_up(out, &mut self.ledger, now));
            }
            self.host.pull(&mut line.desk, false).iter().for_each(|out| line.send_down(out, &mut self.ledger, now));
        }
    }

    fn operate_client(&mut self) {
        let at = self.rng.below(self.clients.len() as u64) as usize;
        let client = &mut self.clients[at];
        let ready = client.stage == Stage::Up || (self.plan.eager && client.stage == Stage::Asking);
        let line = self.lines.iter_mut().find(|line| line.client == at && line.near.is_some());
        if let Some(line) = line.filter(|_| ready)
            && let Some(out) = client.act(&self.plan, &mut self.rng, &self.host.channels)
        {
            self.tally.one("client messages");
            line.send_up(&out, &mut self.ledger, self.now);
        }
    }

    fn client_events(&mut self, at: usize) {
        let Self { lines, clients, host, ledger, tally, rng, now, plan, calm, .. } = self;
        let (line, now) = (&mut lines[at], *now);
        let client = &mut clients[line.client];
        let id = line.id;
        let mut patience = if plan.lazy && !*calm { u32::from(rng.chance(40)) } else { u32::MAX };
        while patience > 0
            && let Some(near) = &mut line.near
            && let Some(event) = near.event(ledger)
        {
            patience -= 1;
            let mut outs = Vec::new();
            match event {
                Event::Message { message, ordinal, .. } => {
                    let text = message.to_bytes();
                    tally.one("messages received");
                    if !is_our_error(&text) {
                        ledger.arrived((id, DOWN), ordinal, &text);
                    }
                    let mut around = Around { log: &host.log, ledger, tally };
                    outs = client.message(&text, ordinal, &mut near.machine, &mut around);
                    client.note_cursor(&near.machine);
                }
                Event::SendFailed { ticket, error, reply } => {
                    ledger.failed((id, UP), ticket.0);
                    check_refusal(&error, plan, ledger, "client");
                    if let Some(reply) = reply {
                        client.failed(&reply.to_bytes(), &mut Around { log: &host.log, ledger, tally });
                    }
                }
                Event::Expired { .. } => {
                    tally.one("groups expired at a client");
                    client.expired();
                    if rng.chance(20) {
                        near.machine.handle(Input::Close(CloseReason::Normal), now);
                    }
                }
                Event::Closed(reason) => {
                    tally.one(reason.name());
                    check_close(&reason, near.has_expired(), plan, ledger);
                    client.disconnected(now + rng.millis(0, 100));
                }
                _ => {}
            }
            outs.iter().for_each(|out| line.send_up(out, ledger, now));
        }
    }

    fn host_events(&mut self, at: usize) {
        let Self { lines, host, ledger, tally, now, plan, .. } = self;
        let (line, now) = (&mut lines[at], *now);
        let id = line.id;
        while let Some(far) = &mut line.far
            && let Some(event) = far.event(ledger)
        {
            let mut outs = Vec::new();
            match event {
                Event::Message { message, ordinal, .. } => {
                    let text = message.to_bytes();
                    tally.one("messages received");
                    if !is_our_error(&text) {
                        ledger.arrived((id, UP), ordinal, &text);
                    }
                    outs = {
                        let room = Room { peer: far.machine.peer(), cap: line.capacity.cap };
                        host.message(&mut line.desk, &text, room, tally)
                    };
                }
                Event::Sent { ticket } => line.desk.sent(ticket.0),
                Event::SendFailed { ticket, error, .. } => {
                    ledger.failed((id, DOWN), ticket.0);
                    check_refusal(&error, plan, ledger, "host");
                    host.failed(&mut line.desk, ticket.0, &error, tally);
                }
                Event::Expired { .. } => tally.one("groups expired at the host"),
                Event::Closed(reason) => {
                    tally.one(reason.name());
                    check_close(&reason, far.has_expired(), plan, ledger);
                }
                _ => {}
            }
            outs.iter().for_each(|out| line.send_down(out, ledger, now));
        }
    }

    /// Ends that are over are dropped, and links without ends.
    fn bury(&mut self) {
        let ledger = &mut self.ledger;
        for line in &mut self.lines {
            line.near.take_if(|end| end.is_over());
            line.far.take_if(|end| end.is_over());
        }
        self.lines.retain(|line| {
            let lives = line.near.is_some() || line.far.is_some();
            if !lives {
                ledger.forget((line.id, UP));
                ledger.forget((line.id, DOWN));
            }
            lives
        });
    }

    /// Goes to the next thing that happens by itself, and sometimes a little past it.
    fn pass_time(&mut self) {
        let waits = self.clients.iter().filter_map(|client| match client.stage {
            Stage::Down(until) => Some(until),
            _ => None,
        });
        let operation = (self.operations > 0).then_some(self.next_operation);
        let wake = self.lines.iter().filter_map(Line::wake).chain(waits).chain(operation).min();
        let late = if self.rng.chance(20) { self.rng.millis(0, 8) } else { Duration::ZERO };
        // Without anything to wait for, faults may still be due.
        let wake = wake.unwrap_or(self.now + Duration::from_millis(5));
        self.now = self.now.max(wake) + late;
    }

    fn is_at_rest(&self) -> bool {
        self.calm
            && self.operations == 0
            && self.lines.len() == self.clients.len()
            && self.clients.iter().all(Client::is_at_rest)
            && self.lines.iter().all(|line| line.is_quiet() && !line.is_parked() && line.desk.is_level(&self.host.log))
    }

    /// A world in which bits flip may wait for ever for an answer to a flipped id.
    fn max_steps(&self) -> u32 {
        if self.plan.flips.is_some() { 2000 } else { MAX_STEPS }
    }

    /// Draws the sums.
    fn finish(mut self) -> Outcome {
        if self.steps >= self.max_steps() {
            let stages: Vec<_> = self.clients.iter().map(|client| client.stage).collect();
            self.ledger.lost(format!("the world did not come to rest: clients {stages:?}, {} links", self.lines.len()));
        } else {
            self.ledger.settle();
            for client in &self.clients {
                client.follower.settle(&self.host.log, &mut self.ledger);
            }
            self.check_budgets("at rest");
        }
        self.close_all();
        self.check_budgets("after everything is closed");
        self.tally.add("steps", self.steps.into());
        let flipped = self.plan.flips.is_some();
        let counts = if flipped { Counts::default() } else { self.ledger.counts };
        self.tally.one(if flipped { "runs with flipped bits" } else { "runs with a ledger" });
        Outcome { counts, notes: self.ledger.notes, tally: self.tally }
    }

    /// Nothing is charged when nothing is held.
    fn check_budgets(&mut self, when: &str) {
        let budgets = self.clients.iter().map(|client| &client.budget).chain([&self.host_budget.0]);
        let held: u64 = budgets.map(Budget::held).sum();
        if held > 0 {
            self.ledger.altered(format!("{held} bytes are charged {when}"));
        }
    }

    fn close_all(&mut self) {
        let (now, ledger) = (self.now, &mut self.ledger);
        for line in &mut self.lines {
            let Line { near, far, pipes: [up, down], .. } = line;
            for (end, pipe) in [(near, up), (far, down)] {
                let Some(end) = end else { continue };
                end.machine.handle(Input::Close(CloseReason::Normal), now);
                while end.event(ledger).is_some() {}
                end.write(pipe, now, |_| panic!("a frame after a close"));
                assert!(end.is_over() && end.closed().is_some(), "no Closed after a close");
                assert!(end.machine.poll_event().is_none() && end.machine.poll_transmit(now).is_none());
            }
        }
        self.lines.clear();
    }
}

/// Whether a machine wrote this in place of an answer that was too large.
fn is_our_error(text: &[u8]) -> bool {
    text.len() < 400 && text.windows(15).any(|window| window == b"messageTooLarge")
}
