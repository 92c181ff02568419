//! The validated arguments of `split` and `join`: consistent limits, and a machine for the dialect.

use std::time::Duration;

use breakbulk_proto::{
    Budget, BudgetConfig, Capacity, Input, Limits, LimitsConfig, Machine, Message, Over, Violation, ahp, cep22, stdio,
};

use breakbulk_proto::json::{self, Path};

use crate::args::{Dialect, JoinArgs, SplitArgs, WireArgs};
use crate::cep22 as tokens;
use crate::failure::Error;

/// The cap when none is given: what most relays take.
const DEFAULT_CAP: u64 = 65_536;
/// For `cep22`, the official SDKs' budget: with what a relay's event adds it stays below that.
const DEFAULT_CEP22_CAP: u64 = 48_000;
/// `max_message` decides how long a transfer may be, not its number of chunks.
const MAX_CHUNKS: u64 = 1_000_000;
/// No clock runs here: nothing expires while we wait for input.
const FOREVER: Duration = Duration::from_secs(24 * 60 * 60);
/// The bytes of a line end, where a limit includes it.
const LINE_END: u64 = 1;
/// The allowed range of a frame limit.
const FRAME_LIMITS: std::ops::RangeInclusive<u64> = 512..=u32::MAX as u64;

/// What `split` or `join` does, validated.
#[derive(Debug)]
pub(crate) struct Plan {
    side: Side,
    dialect: Dialect,
    limits: Limits,
    budget: Budget,
    cap: Option<u64>,
    token: Option<String>,
    seed: [u8; 32],
}

#[derive(Debug, Clone, Copy)]
enum Side {
    Splits,
    Joins,
}

/// How much fails when a line is too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ends {
    /// The whole input, as a link would be closed.
    All,
    /// The line alone. The message that it belongs to stays incomplete.
    Line,
    /// The group that the line belongs to. The machine finds the group from the beginning of the line.
    Group,
}

impl TryFrom<SplitArgs> for Plan {
    type Error = Error;

    fn try_from(args: SplitArgs) -> Result<Self, Error> {
        Self::new(Side::Splits, args.wire)
    }
}

impl TryFrom<JoinArgs> for Plan {
    type Error = Error;

    fn try_from(args: JoinArgs) -> Result<Self, Error> {
        Self::new(Side::Joins, args.wire)
    }
}

impl Plan {
    fn new(side: Side, wire: WireArgs) -> Result<Self, Error> {
        if wire.token.is_some() && wire.dialect != Dialect::Cep22 {
            return Err(Error::Arguments("--token is for --dialect cep22".into()));
        }
        let max_message_bytes = wire.max_message.0;
        let cap = wire.cap.map(|cap| cap.0);
        let max_groups = LimitsConfig::default().max_groups;
        // Enough for all groups that a sender may have open. Memory is allocated only as bytes arrive.
        let room = max_message_bytes.saturating_add(max_message_bytes >> 10).saturating_add(1 << 20);
        let room = room.saturating_mul(max_groups.into());
        let budget = BudgetConfig { process_bytes: room, principal_bytes: room, floor_bytes: 0 };
        let config = LimitsConfig {
            max_frame_bytes: max_message_bytes.clamp(*FRAME_LIMITS.start(), *FRAME_LIMITS.end()),
            max_message_bytes,
            max_depth: LimitsConfig::default().max_depth,
            max_groups,
            group_timeout: Some(FOREVER),
            grace: FOREVER,
            max_queued_bytes: u64::MAX,
            max_held_bytes: u64::MAX,
        };
        let limits = Limits::prove(config, &budget)
            .map_err(|error| Error::Arguments(format!("--max-message is invalid: {error}")))?;
        let mut seed = [0; 32];
        getrandom::fill(&mut seed).map_err(Error::Random)?;
        Ok(Self { side, dialect: wire.dialect, limits, budget: Budget::new(budget), cap, token: wire.token, seed })
    }

    /// Whether the cap is smaller than those that are enough for every message.
    pub(crate) fn is_cap_small(&self) -> bool {
        self.cap.is_some_and(|cap| !FRAME_LIMITS.contains(&cap))
    }

    /// Why the cap is not enough.
    pub(crate) fn refused_cap(&self) -> String {
        let (least, most) = (FRAME_LIMITS.start(), FRAME_LIMITS.end());
        let cap = self.cap.unwrap_or_default();
        format!("--cap {cap} is too small for this message: allowed as a cap are {least} to {most} bytes")
    }

    /// The dialect whose frame a whole message is, if that is another one than ours.
    pub(crate) fn is_frame_of(&self, message: &Message) -> Option<&'static str> {
        static PATHS: [Path; 2] = [&["method"], &["params", "cvm"]];
        let found = json::find(message.slices(), &PATHS).ok()?;
        let method = message.read(found.get(0)?.span);
        match self.dialect {
            Dialect::Cep22 | Dialect::Stdio if &*method == br#""ahp/messageSegment""# => Some("ahp"),
            Dialect::Ahp | Dialect::Stdio if &*method == br#""notifications/progress""# => {
                found.get(1).map(|_| "cep22")
            }
            _ => None,
        }
    }

    /// The limits.
    pub(crate) const fn limits(&self) -> Limits {
        self.limits
    }

    /// The longest message.
    pub(crate) fn max_message_bytes(&self) -> u64 {
        self.limits.max_message_bytes
    }

    /// The longest line to read: a whole frame, or a message that needed no segments.
    pub(crate) fn max_line_bytes(&self) -> u64 {
        match (self.dialect, self.cap) {
            (Dialect::Stdio, Some(cap)) => cap.saturating_sub(LINE_END),
            (_, Some(cap)) => cap,
            (_, None) => self.limits.max_frame_bytes,
        }
    }

    /// A line as a frame for the machine: without a trailing `\r`, which the machine for pipes strips itself.
    pub(crate) fn frame(&self, mut line: Vec<u8>) -> Vec<u8> {
        if self.dialect != Dialect::Stdio {
            line.pop_if(|last| *last == b'\r');
        }
        line
    }

    /// How much fails when a line is too long.
    pub(crate) const fn too_long(&self) -> Ends {
        match self.dialect {
            Dialect::Ahp => Ends::All,
            Dialect::Cep22 => Ends::Line,
            Dialect::Stdio => Ends::Group,
        }
    }

    /// The rule that a longer line breaks.
    pub(crate) fn line_rule(&self) -> &'static str {
        match self.dialect {
            Dialect::Ahp | Dialect::Cep22 => Violation::FrameTooLarge(Over::default()).name(),
            Dialect::Stdio => Violation::LineTooLong(Over::default()).name(),
        }
    }

    /// A new machine.
    pub(crate) fn machine(&self) -> Box<dyn Machine> {
        let account = self.budget.account(Some("input"));
        match self.dialect {
            Dialect::Ahp => Box::new(ahp::Connection::new(self.ahp(), account)),
            Dialect::Cep22 => Box::new(cep22::Connection::new(self.cep22(), account)),
            Dialect::Stdio => Box::new(stdio::Connection::new(self.stdio(), account)),
        }
    }

    /// The inputs that a machine needs before it splits `message`.
    pub(crate) fn prelude(&self, message: &Message) -> Result<Vec<Input>, Error> {
        let capacity = match self.dialect {
            Dialect::Ahp => None,
            Dialect::Cep22 => Some(Capacity::of(self.cap.unwrap_or(DEFAULT_CEP22_CAP))),
            Dialect::Stdio => self.cap.map(|cap| Capacity::of(cap.saturating_sub(LINE_END))),
        };
        let asked = self.token().map(|token| tokens::prelude(message, token)).transpose()?.flatten();
        Ok(capacity.map(Input::Capacity).into_iter().chain(asked).collect())
    }

    /// The only transfer to read; without it, all are read.
    pub(crate) fn token(&self) -> Option<&str> {
        self.token.as_deref()
    }

    /// Whether a machine holds parts of messages.
    pub(crate) fn holds_parts(&self) -> bool {
        self.budget.held() > 0
    }

    /// Whether a machine counts the requests that wait for their answers.
    pub(crate) fn counts_requests(&self) -> bool {
        self.dialect == Dialect::Ahp
    }

    fn cep22(&self) -> cep22::Config {
        cep22::Config {
            limits: self.limits,
            max_chunks: MAX_CHUNKS,
            soft_timeout: FOREVER,
            hard_timeout: FOREVER,
            accept_timeout: FOREVER,
            known_support: true,
            ..cep22::Config::default()
        }
    }

    fn stdio(&self) -> stdio::Config {
        let max_line_bytes = self.max_line_bytes().min(self.limits.max_message_bytes);
        stdio::Config { max_line_bytes, ..stdio::Config::new(self.limits, self.seed) }
    }

    /// A client's machine writes into the handshakes that it sends, and a server's into those that it takes: with the
    /// roles this way round every message passes unchanged.
    fn ahp(&self) -> ahp::Config {
        let role = match self.side {
            Side::Splits => ahp::Role::Server,
            Side::Joins => ahp::Role::Client,
        };
        let mut config = ahp::Config::new(role, self.limits, self.seed);
        config.delivery = ahp::Delivery::Settled;
        config.agreed = Some(ahp::Chunking {
            max_frame_bytes: self.cap.unwrap_or(DEFAULT_CAP),
            max_message_bytes: self.limits.max_message_bytes,
            max_groups: 1,
            group_timeout: FOREVER,
            settled_cursor: true,
        });
        config
    }
}
