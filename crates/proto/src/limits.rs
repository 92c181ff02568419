//! Limits as a person writes them, and limits that were proven to be consistent.

use std::ops::Deref;
use std::time::Duration;

use thiserror::Error;

use crate::budget::BudgetConfig;

/// Limits as written: any numbers. [`Limits::prove`] turns them into [`Limits`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitsConfig {
    /// The longest frame that we accept. 4 MiB, which the RFC recommends where there is no relay.
    pub max_frame_bytes: u64,
    /// The longest message that we accept, reassembled. 32 MiB, as the RFC recommends.
    pub max_message_bytes: u64,
    /// How deep arrays and objects may be nested in a message. A deeper message is neither accepted nor sent. A million, far above
    /// what peers send: many parsers accept 128 or 1,000 levels, some 100,000. The check is iterative, and needs a bit for each
    /// level, which is charged to the budget. A sender checks only messages with more brackets than this.
    pub max_depth: u32,
    /// How many groups a peer may have open, if the budget has memory for them. 8, as the RFC recommends.
    pub max_groups: u32,
    /// How long a group may take. `None` means the time that the longest message takes at 64 KiB a second, but at least the 30 s
    /// that the RFC recommends, and at most ten minutes. See [`Limits::group_timeout`].
    pub group_timeout: Option<Duration>,
    /// How much longer than we advertise we wait for a group, because segments that were sent in time may still be on their way.
    pub grace: Duration,
    /// Bytes of messages that may wait to be sent.
    pub max_queued_bytes: u64,
    /// Bytes of finished messages that start-order delivery may hold back.
    pub max_held_bytes: u64,
}

impl Default for LimitsConfig {
    fn default() -> Self {
        Self {
            max_frame_bytes: 4 << 20,
            max_message_bytes: 32 << 20,
            max_depth: 1_000_000,
            max_groups: 8,
            group_timeout: None,
            grace: Duration::from_secs(5),
            max_queued_bytes: 128 << 20,
            max_held_bytes: 64 << 20,
        }
    }
}

/// The shortest frame limit: a segment's template with the longest group id fits it, and some data.
pub(crate) const MIN_FRAME_BYTES: u64 = 512;
/// The smallest depth limit. A handshake has six levels, and our own messages have fewer.
pub(crate) const MIN_DEPTH: u32 = 16;
/// The largest depth limit. Each open group may take a bit for each level, which is 2 MiB.
pub(crate) const MAX_DEPTH: u32 = 1 << 24;
/// The largest limit of open groups. More would be a mistake, because each costs memory before any byte of it has arrived.
pub(crate) const MAX_GROUPS: u32 = 1024;
/// The longest timeout: a day.
pub(crate) const MAX_GROUP_TIMEOUT: Duration = Duration::from_hours(24);

/// The slowest link, in bytes a second, on which the longest message arrives in time, unless another timeout is configured.
pub(crate) const SLOWEST_RATE: u64 = 64 << 10;
/// The shortest timeout that we choose ourselves: what the RFC recommends.
const SHORTEST_TIMEOUT: Duration = Duration::from_secs(30);
/// The longest timeout that we choose ourselves.
const LONGEST_TIMEOUT: Duration = Duration::from_mins(10);

/// Limits that are consistent: the budget has enough memory for what we advertise. The defaults fit the default [`BudgetConfig`],
/// with some memory left for messages that start-order delivery holds back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limits(LimitsConfig);

impl Limits {
    /// Proves that `config` is consistent, and that one message of the largest size fits `budget`.
    ///
    /// If the budget has not enough memory for as many of them as groups may be open, the number of groups is reduced, and the peer
    /// is told the smaller number.
    ///
    /// # Errors
    /// A limit is out of its range. The error names it, its value, and the range.
    pub fn prove(config: LimitsConfig, budget: &BudgetConfig) -> Result<Self, LimitsError> {
        let range = |key, value, min, max| {
            if (min..=max).contains(&value) { Ok(()) } else { Err(LimitsError { key, value, min, max }) }
        };
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let largest = budget.largest_message();
        range("max_frame_bytes", config.max_frame_bytes, MIN_FRAME_BYTES, u64::from(u32::MAX))?;
        range("max_message_bytes", config.max_message_bytes, config.max_frame_bytes, largest)?;
        range("max_depth", config.max_depth.into(), MIN_DEPTH.into(), MAX_DEPTH.into())?;
        range("max_groups", config.max_groups.into(), 1, MAX_GROUPS.into())?;
        if let Some(timeout) = config.group_timeout {
            range("group_timeout_ms", millis(timeout), 1, millis(MAX_GROUP_TIMEOUT))?;
        }
        range("grace_ms", millis(config.grace), 0, millis(MAX_GROUP_TIMEOUT))?;
        range("max_queued_bytes", config.max_queued_bytes, 1, u64::MAX)?;
        range("max_held_bytes", config.max_held_bytes, 1, u64::MAX)?;
        let fitting = u32::try_from(budget.messages(config.max_message_bytes)).unwrap_or(u32::MAX);
        Ok(Self(LimitsConfig { max_groups: config.max_groups.min(fitting), ..config }))
    }

    /// How long a group may take: as configured, or the time that the longest message takes at 64 KiB a second, at least 30 s and at
    /// most ten minutes.
    #[must_use]
    pub fn group_timeout(&self) -> Duration {
        let at_slowest = || Duration::from_secs(self.0.max_message_bytes.div_ceil(SLOWEST_RATE));
        self.0.group_timeout.unwrap_or_else(|| at_slowest().clamp(SHORTEST_TIMEOUT, LONGEST_TIMEOUT))
    }

    /// When we give up a group: after the timeout and the grace.
    #[must_use]
    pub fn sweep_after(&self) -> Duration {
        self.group_timeout().saturating_add(self.0.grace)
    }

    /// The time that a message of `bytes` bytes takes at the rate at which the longest message just arrives in time. A group that is
    /// slower is behind its schedule.
    pub(crate) fn time_for(&self, bytes: u64) -> Duration {
        let (timeout, longest) = (self.group_timeout().as_nanos(), u128::from(self.0.max_message_bytes.max(1)));
        let time = timeout.saturating_mul(bytes.into()).checked_div(longest).unwrap_or(timeout).min(timeout);
        Duration::from_nanos(u64::try_from(time).unwrap_or(u64::MAX))
    }

    /// How long a message may go without progress, in dialects where progress extends its time (`stdio`).
    pub(crate) fn progress_timeout(&self) -> Duration {
        self.group_timeout().min(SHORTEST_TIMEOUT)
    }
}

/// The proven limits can be read like those of the config.
impl Deref for Limits {
    type Target = LimitsConfig;

    fn deref(&self) -> &LimitsConfig {
        &self.0
    }
}

/// A limit that is out of its range.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{key} is {value}; it must be from {min} to {max}")]
pub struct LimitsError {
    /// The limit's name, as in [`LimitsConfig`].
    pub key: &'static str,
    /// Its value.
    pub value: u64,
    /// The least it may be.
    pub min: u64,
    /// The most it may be.
    pub max: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(change: impl FnOnce(&mut LimitsConfig)) -> &'static str {
        let mut config = LimitsConfig::default();
        change(&mut config);
        Limits::prove(config, &BudgetConfig::default()).unwrap_err().key
    }

    #[test]
    fn the_defaults_hold_together() {
        assert_eq!(Limits::prove(LimitsConfig::default(), &BudgetConfig::default()), Ok(Limits::default()));
    }

    #[test]
    fn each_limit_is_refused_by_name() {
        assert_eq!(refused(|c| c.max_frame_bytes = MIN_FRAME_BYTES - 1), "max_frame_bytes");
        assert_eq!(refused(|c| c.max_frame_bytes = 1 << 32), "max_frame_bytes");
        assert_eq!(refused(|c| c.max_message_bytes = c.max_frame_bytes - 1), "max_message_bytes");
        assert_eq!(refused(|c| c.max_depth = MIN_DEPTH - 1), "max_depth");
        assert_eq!(refused(|c| c.max_depth = MAX_DEPTH + 1), "max_depth");
        assert_eq!(refused(|c| c.max_groups = 0), "max_groups");
        assert_eq!(refused(|c| c.max_groups = MAX_GROUPS + 1), "max_groups");
        assert_eq!(refused(|c| c.group_timeout = Some(Duration::from_micros(999))), "group_timeout_ms");
        assert_eq!(refused(|c| c.group_timeout = Some(MAX_GROUP_TIMEOUT * 2)), "group_timeout_ms");
        assert_eq!(refused(|c| c.grace = MAX_GROUP_TIMEOUT * 2), "grace_ms");
        assert_eq!(refused(|c| c.max_queued_bytes = 0), "max_queued_bytes");
        assert_eq!(refused(|c| c.max_held_bytes = 0), "max_held_bytes");
    }

    #[test]
    fn what_is_advertised_fits_what_may_be_held() {
        let budget = BudgetConfig { process_bytes: 10 << 20, principal_bytes: 6 << 20, floor_bytes: 1 << 20 };
        let with = |max_message_bytes| LimitsConfig { max_message_bytes, ..LimitsConfig::default() };
        let largest = budget.largest_message();
        assert!(crate::budget::group_cost(largest) <= 7 << 20);
        assert!(Limits::prove(with(largest), &budget).is_ok());
        let error = Limits::prove(with(largest + 1), &budget).unwrap_err();
        assert_eq!((error.key, error.max), ("max_message_bytes", largest));
    }

    #[test]
    fn no_more_groups_are_advertised_than_there_is_room_for() {
        let proven = |max_groups, max_message_bytes, budget| {
            let config = LimitsConfig { max_groups, max_message_bytes, ..LimitsConfig::default() };
            Limits::prove(config, &budget).unwrap().max_groups
        };
        let default = BudgetConfig::default();
        assert_eq!((proven(1024, 32 << 20, default), proven(8, 100 << 20, default)), (9, 3));
        let small = BudgetConfig { process_bytes: 10 << 20, principal_bytes: 30 << 20, floor_bytes: 1 << 20 };
        assert_eq!((proven(8, 5 << 20, small), proven(8, small.largest_message(), small)), (2, 1));
        let room = crate::budget::group_cost(32 << 20) * 8;
        let held = LimitsConfig::default().max_held_bytes / 2;
        assert!(room + held <= default.principal_bytes, "there is some left for what start order holds back");
    }

    #[test]
    fn proven_limits_are_as_written() {
        let second = Duration::from_secs(1);
        let config = LimitsConfig {
            max_frame_bytes: 1001,
            max_message_bytes: 2002,
            max_depth: 77,
            max_groups: 3,
            group_timeout: Some(4 * second),
            grace: 5 * second,
            max_queued_bytes: 6,
            max_held_bytes: 7,
        };
        let limits = Limits::prove(config, &BudgetConfig::default()).unwrap();
        assert_eq!((limits.max_frame_bytes, limits.max_message_bytes, limits.max_groups), (1001, 2002, 3));
        assert_eq!((limits.group_timeout(), limits.sweep_after()), (4 * second, 9 * second));
        assert_eq!((limits.max_queued_bytes, limits.max_held_bytes, limits.max_depth), (6, 7, 77));
        let defaults = LimitsConfig::default();
        assert_eq!((defaults.max_frame_bytes, defaults.max_message_bytes), (4_194_304, 33_554_432));
        assert!(defaults.max_queued_bytes >= defaults.max_message_bytes);
        assert!(defaults.max_held_bytes >= defaults.max_message_bytes);
    }

    #[test]
    fn the_sweep_waits_a_grace_beyond_what_is_advertised() {
        let limits = Limits::default();
        assert_eq!(limits.sweep_after(), limits.group_timeout() + Duration::from_secs(5));
    }

    #[test]
    fn the_longest_message_has_the_time_that_it_takes_at_64_kib_a_second() {
        let timeout = |max_message_bytes| {
            let budget = BudgetConfig { process_bytes: 1 << 40, principal_bytes: 1 << 40, floor_bytes: 0 };
            let config = LimitsConfig { max_frame_bytes: 4096, max_message_bytes, ..LimitsConfig::default() };
            Limits::prove(config, &budget).unwrap().group_timeout().as_secs()
        };
        assert_eq!(Limits::default().group_timeout().as_secs(), 512);
        assert_eq!((timeout(8 << 20), timeout((8 << 20) + 1)), (128, 129));
        assert_eq!(
            (timeout(4096), timeout(30 << 16), timeout(31 << 16)),
            (30, 30, 31),
            "never less than the RFC's 30 s"
        );
        assert_eq!((timeout(600 << 16), timeout(1 << 36)), (600, 600), "never more than ten minutes");
    }

    #[test]
    fn a_shorter_message_has_its_part_of_the_time() {
        let limits = Limits::default();
        assert_eq!(limits.time_for(32 << 20), limits.group_timeout());
        assert_eq!(limits.time_for(64 << 10), Duration::from_secs(1));
        assert_eq!(limits.time_for(u64::MAX), limits.group_timeout());
    }
}
