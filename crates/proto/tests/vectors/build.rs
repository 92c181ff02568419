//! A machine as a case sets it up.

use std::time::Duration;

use breakbulk_proto::ahp::{self, Chunking, Delivery, Negotiated, Role};
use breakbulk_proto::{Account, Budget, BudgetConfig, Limits, LimitsConfig, Machine, cep22, plain, stdio};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::case::Dialect;
use super::expect::ChunkingSpec;

/// How a case is set up. Everything has the crate's own default.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Setup {
    role: RoleSpec,
    limits: LimitsSpec,
    budget: BudgetSpec,
    /// Nobody is known to be at the other end, so there is only the floor of the budget.
    anonymous: bool,
    delivery: DeliverySpec,
    /// `ahp`: what the peer takes, where no handshake is to come.
    agreed: Option<ChunkingSpec>,
    cep22: Cep22Spec,
    /// `stdio`: the longest line that we take.
    max_line: Option<u64>,
    /// `plain`: whether the link ends frames at line ends.
    one_line: bool,
    /// The link takes frames only in `take` steps.
    pub(super) hold: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum RoleSpec {
    #[default]
    Client,
    Server,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum DeliverySpec {
    #[default]
    Settled,
    StartOrder,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct LimitsSpec {
    frame: Option<u64>,
    message: Option<u64>,
    depth: Option<u32>,
    groups: Option<u32>,
    timeout: Option<u64>,
    grace: Option<u64>,
    queued: Option<u64>,
    held: Option<u64>,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct BudgetSpec {
    process: Option<u64>,
    principal: Option<u64>,
    floor: Option<u64>,
}

/// What only `cep22` has. Times are in milliseconds.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Cep22Spec {
    max_chunks: Option<u64>,
    max_transfers: Option<u32>,
    max_transfers_in_all: Option<u32>,
    window: Option<u32>,
    soft_timeout: Option<u64>,
    hard_timeout: Option<u64>,
    accept_timeout: Option<u64>,
    publish_window: Option<u32>,
    acks: bool,
    known_support: bool,
    inject_tokens: bool,
}

impl Cep22Spec {
    fn config(self, limits: Limits) -> cep22::Config {
        let default = cep22::Config::default();
        let time = |millis: Option<u64>, default| millis.map_or(default, Duration::from_millis);
        cep22::Config {
            limits,
            max_chunks: self.max_chunks.unwrap_or(default.max_chunks),
            max_transfers: self.max_transfers.unwrap_or(default.max_transfers),
            max_transfers_in_all: self.max_transfers_in_all.unwrap_or(default.max_transfers_in_all),
            window: self.window.unwrap_or(default.window),
            soft_timeout: time(self.soft_timeout, default.soft_timeout),
            hard_timeout: time(self.hard_timeout, default.hard_timeout),
            accept_timeout: time(self.accept_timeout, default.accept_timeout),
            publish_window: self.publish_window.unwrap_or(default.publish_window),
            acks: self.acks,
            known_support: self.known_support,
            inject_tokens: self.inject_tokens,
            ..default
        }
    }
}

impl Setup {
    pub(super) fn read(written: Map<String, Value>) -> Result<Self, String> {
        let setup: Self = serde_json::from_value(Value::Object(written)).map_err(|error| format!("setup: {error}"))?;
        setup.limits().map(|_| setup)
    }

    pub(super) fn budget(&self) -> BudgetConfig {
        let BudgetSpec { process, principal, floor } = self.budget;
        let default = BudgetConfig::default();
        BudgetConfig {
            process_bytes: process.unwrap_or(default.process_bytes),
            principal_bytes: principal.unwrap_or(default.principal_bytes),
            floor_bytes: floor.unwrap_or(default.floor_bytes),
        }
    }

    fn limits(&self) -> Result<Limits, String> {
        let LimitsSpec { frame, message, depth, groups, timeout, grace, queued, held } = self.limits;
        let default = LimitsConfig::default();
        let config = LimitsConfig {
            max_frame_bytes: frame.unwrap_or(default.max_frame_bytes),
            max_message_bytes: message.unwrap_or(default.max_message_bytes),
            max_depth: depth.unwrap_or(default.max_depth),
            max_groups: groups.unwrap_or(default.max_groups),
            group_timeout: timeout.map(Duration::from_millis),
            grace: grace.map_or(default.grace, Duration::from_millis),
            max_queued_bytes: queued.unwrap_or(default.max_queued_bytes),
            max_held_bytes: held.unwrap_or(default.max_held_bytes),
        };
        Limits::prove(config, &self.budget()).map_err(|error| error.to_string())
    }

    /// A fresh connection. What earlier ones negotiated comes along.
    pub(super) fn build(&self, dialect: Dialect, budget: &Budget, negotiated: &Negotiated) -> Built {
        let limits = self.limits().expect("proven when it was read");
        let account: Account = budget.account((!self.anonymous).then_some("someone"));
        let seed = [7; 32];
        match dialect {
            Dialect::Ahp => {
                let role = if self.role == RoleSpec::Server { Role::Server } else { Role::Client };
                let mut config = ahp::Config::new(role, limits, seed);
                config.delivery = match self.delivery {
                    DeliverySpec::Settled => Delivery::Settled,
                    DeliverySpec::StartOrder => Delivery::StartOrder,
                };
                config.agreed = self.agreed.map(Chunking::from);
                config.negotiated = negotiated.clone();
                Built::Ahp(Box::new(ahp::Connection::new(config, account)))
            }
            Dialect::Cep22 => Built::Other(Box::new(cep22::Connection::new(self.cep22.config(limits), account))),
            Dialect::Stdio => {
                let mut config = stdio::Config::new(limits, seed);
                config.max_line_bytes = self.max_line.unwrap_or(config.max_line_bytes);
                Built::Other(Box::new(stdio::Connection::new(config, account)))
            }
            Dialect::Plain => {
                let framing = if self.one_line { plain::Framing::Lines } else { plain::Framing::Frames };
                let config = plain::Config { framing, ..plain::Config::new(limits) };
                Built::Other(Box::new(plain::Connection::new(config)))
            }
            Dialect::Json | Dialect::Scalar => panic!("{dialect:?} is no machine"),
        }
    }
}

/// A machine of any dialect.
pub(super) enum Built {
    Ahp(Box<ahp::Connection>),
    Other(Box<dyn Machine>),
}

impl Built {
    pub(super) fn machine(&mut self) -> &mut dyn Machine {
        match self {
            Self::Ahp(connection) => &mut **connection,
            Self::Other(machine) => &mut **machine,
        }
    }

    pub(super) fn ahp(&mut self) -> Option<&mut ahp::Connection> {
        match self {
            Self::Ahp(connection) => Some(connection),
            Self::Other(_) => None,
        }
    }
}

impl From<ChunkingSpec> for Chunking {
    fn from(spec: ChunkingSpec) -> Self {
        Self {
            max_frame_bytes: spec.frame,
            max_message_bytes: spec.message,
            max_groups: spec.groups,
            group_timeout: Duration::from_millis(spec.timeout),
            settled_cursor: spec.settled_cursor,
        }
    }
}
