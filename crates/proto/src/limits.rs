//! Limits as written by a person, and limits as proven to hold together.

use std::ops::Deref;
use std::time::Duration;

use thiserror::Error;

use crate::budget::BudgetConfig;

/// Limits as written: any numbers. [`Limits::prove`] turns them into [`Limits`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitsConfig {
    /// The longest frame we take. 4 MiB, as the RFC recommends away from relays.
    pub max_frame_bytes: u64,
    /// The longest message we take, reassembled. 32 MiB, as the RFC recommends.
    pub max_message_bytes: u64,
    /// How many groups a peer may have open, if there is room for them. 8, as the RFC recommends.
    pub max_groups: u32,
    /// How long a group may take. 30 s, as the RFC recommends.
    pub group_timeout: Duration,
    /// How much longer than advertised we keep a group: what the peer sent in time may still be on its way.
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
            max_groups: 8,
            group_timeout: Duration::from_secs(30),
            grace: Duration::from_secs(5),
            max_queued_bytes: 128 << 20,
            max_held_bytes: 64 << 20,
        }
    }
}

/// The shortest frame limit that leaves room for a segment's template, its longest group id and some data.
pub(crate) const MIN_FRAME_BYTES: u64 = 512;
/// More groups than this are a mistake: each costs table space before any byte of it arrives.
pub(crate) const MAX_GROUPS: u32 = 1024;
/// A day. A longer timeout is no timeout.
pub(crate) const MAX_GROUP_TIMEOUT: Duration = Duration::from_hours(24);

/// Limits that hold together: what we advertise fits what we may hold. The defaults fit those of [`BudgetConfig`], with
/// some room left for what start-order delivery holds back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limits(LimitsConfig);

impl Limits {
    /// Proves that `config` holds together, and that one message of the largest size fits `budget`.
    ///
    /// Where not so many of them fit as groups may be open, fewer may be: a peer is told of no more than there is room for.
    ///
    /// # Errors
    /// Names the limit that does not hold, its value and what is allowed.
    pub fn prove(config: LimitsConfig, budget: &BudgetConfig) -> Result<Self, LimitsError> {
        let range = |key, value, min, max| {
            if (min..=max).contains(&value) { Ok(()) } else { Err(LimitsError { key, value, min, max }) }
        };
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let room = budget.largest_message();
        range("max_frame_bytes", config.max_frame_bytes, MIN_FRAME_BYTES, u64::from(u32::MAX))?;
        range("max_message_bytes", config.max_message_bytes, config.max_frame_bytes, room)?;
        range("max_groups", config.max_groups.into(), 1, MAX_GROUPS.into())?;
        range("group_timeout_ms", millis(config.group_timeout), 1, millis(MAX_GROUP_TIMEOUT))?;
        range("grace_ms", millis(config.grace), 0, millis(MAX_GROUP_TIMEOUT))?;
        range("max_queued_bytes", config.max_queued_bytes, 1, u64::MAX)?;
        range("max_held_bytes", config.max_held_bytes, 1, u64::MAX)?;
        let fitting = u32::try_from(budget.messages(config.max_message_bytes)).unwrap_or(u32::MAX);
        Ok(Self(LimitsConfig { max_groups: config.max_groups.min(fitting), ..config }))
    }

    /// How long a group may take before we sweep it.
    #[must_use]
    pub const fn sweep_after(&self) -> Duration {
        self.0.group_timeout.saturating_add(self.0.grace)
    }
}

/// Each limit can be read as it was proven.
impl Deref for Limits {
    type Target = LimitsConfig;

    fn deref(&self) -> &LimitsConfig {
        &self.0
    }
}

/// A limit that does not hold.
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
        assert_eq!(refused(|c| c.max_groups = 0), "max_groups");
        assert_eq!(refused(|c| c.max_groups = MAX_GROUPS + 1), "max_groups");
        assert_eq!(refused(|c| c.group_timeout = Duration::from_micros(999)), "group_timeout_ms");
        assert_eq!(refused(|c| c.group_timeout = MAX_GROUP_TIMEOUT * 2), "group_timeout_ms");
        assert_eq!(refused(|c| c.grace = MAX_GROUP_TIMEOUT * 2), "grace_ms");
        assert_eq!(refused(|c| c.max_queued_bytes = 0), "max_queued_bytes");
        assert_eq!(refused(|c| c.max_held_bytes = 0), "max_held_bytes");
    }

    #[test]
    fn what_is_advertised_fits_what_may_be_held() {
        let budget = BudgetConfig { process_bytes: 10 << 20, principal_bytes: 6 << 20, floor_bytes: 1 << 20 };
        let with = |max_message_bytes| LimitsConfig { max_message_bytes, ..LimitsConfig::default() };
        let room = budget.largest_message();
        assert!(crate::budget::group_cost(room) <= 7 << 20);
        assert!(Limits::prove(with(room), &budget).is_ok());
        let error = Limits::prove(with(room + 1), &budget).unwrap_err();
        assert_eq!((error.key, error.max), ("max_message_bytes", room));
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
            max_groups: 3,
            group_timeout: 4 * second,
            grace: 5 * second,
            max_queued_bytes: 6,
            max_held_bytes: 7,
        };
        let limits = Limits::prove(config, &BudgetConfig::default()).unwrap();
        assert_eq!((limits.max_frame_bytes, limits.max_message_bytes, limits.max_groups), (1001, 2002, 3));
        assert_eq!((limits.group_timeout, limits.sweep_after()), (4 * second, 9 * second));
        assert_eq!((limits.max_queued_bytes, limits.max_held_bytes), (6, 7));
        let defaults = LimitsConfig::default();
        assert_eq!((defaults.max_frame_bytes, defaults.max_message_bytes), (4_194_304, 33_554_432));
        assert!(defaults.max_queued_bytes >= defaults.max_message_bytes);
        assert!(defaults.max_held_bytes >= defaults.max_message_bytes);
    }

    #[test]
    fn the_sweep_waits_a_grace_beyond_what_is_advertised() {
        let limits = Limits::default();
        assert_eq!(limits.sweep_after(), limits.group_timeout + Duration::from_secs(5));
    }
}
