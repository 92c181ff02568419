//! The lifecycle of a bridge, from its first message until both sides have closed.
//!
//! `docs/bridge.md` tells users the same, under "MCP servers through pipes" and "Shutdown and exit status".
//!
//! # What follows from each event, by the phase
//!
//! [`BridgePhase::on`] is this table. An empty cell means that nothing changes.
//!
//! | Event | Open | Draining | Stopping | Answering | Closing |
//! |---|---|---|---|---|---|
//! | a side half-closes | → Draining | | | | |
//! | a side closes | → Draining | | | | |
//! | a client closes, and the next client gets its host | → Draining, for the answer timeout | drain for the answer timeout, or less | stop after the answer timeout, or earlier | | |
//! | the host's input ends | | wait for the host | | | |
//! | the program stops | → Stopping | → Stopping | | | |
//! | both sides are idle | | close both, → Closing | close both, → Closing | close both, → Closing | |
//! | the time is up | | give up, → Closing | give up, → Closing | close both, → Closing | |
//! | the time for responses is up | | end the host's input | | | |
//! | the host's input cannot be ended | | give up, → Closing | | | |
//! | the client gets errors for what the host owes | | | | | → Answering |
//!
//! To give up means to count what is under way as lost, and to close both sides. Whenever both sides are closed while the host
//! still owes responses, only the host's side is closed at first: the client takes its errors, and then its close.
//!
//! # What a draining bridge waits for
//!
//! [`BridgePhase::choose_wait`] and [`BridgePhase::is_time_up`] are this table.
//!
//! | The client | The host | Wait | The time is up |
//! |---|---|---|---|
//! | has half-closed | has yet to respond, and its input is open | `Responses` | a minute after the last response, or after more of one came |
//! | has half-closed | has yet to respond, and its input has ended | `Host` | never: the host decides when it is done |
//! | has closed | goes to the next client | `Until` | after the answer timeout |
//! | any | any other | `Progress` | when nothing has moved for the drain timeout |

use std::time::Duration;

use tokio::time::Instant;

use breakbulk_proto::CloseReason;

/// How long the next response is waited for after the client has half-closed.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);
/// How often a bridge looks whether something moves.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// How far the life of a bridge has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum BridgePhase {
    /// Messages pass both ways.
    Open,
    /// A side has closed or half-closed. What is under way is finished; then both sides are closed.
    Draining {
        /// Why they are closed then.
        reason: CloseReason,
        wait: Wait,
        host_input: HostInput,
    },
    /// The program stops. What is under way has until then to finish; then both sides are closed with 1012.
    Stopping { until: Instant },
    /// The host's side has been told to close. The client has until then to take errors for what the host owes; then its side is
    /// closed, too, for this reason.
    Answering { reason: CloseReason, until: Instant },
    /// Both sides have been told to close, for this reason.
    Closing(CloseReason),
}

/// What a draining bridge waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wait {
    /// Everything that is under way, until this time.
    Until(Instant),
    /// This many responses of the host, until this time. `moved` is [`Observed::moved`] from when this wait began.
    Responses { pending: u64, moved: u64, until: Instant },
    /// The host, which knows that nothing more comes.
    Host,
    /// Everything that is under way. `until` is put off whenever bytes have moved since the last check; the next check is at
    /// `next_check`. `moved` is the [`Observed::moved`] of the last check.
    Progress { moved: u64, until: Instant, next_check: Instant },
}

/// Whether the host has been told that nothing more comes, by the end of its input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HostInput {
    Open,
    Ended,
}

/// What a bridge sees of its two sides, to decide how long it waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Observed {
    pub(super) now: Instant,
    /// Bytes that have moved on both links.
    pub(super) moved: u64,
    /// Responses of the host that the bridge has to wait for.
    pub(super) awaited_responses: u64,
    pub(super) host: HostActivity,
}

/// What the host is doing, as far as its link shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HostActivity {
    /// It has yet to read what it is sent.
    Reading,
    /// A part of a message of its has come.
    Writing,
    /// Neither.
    Quiet,
}

/// What happens to a bridge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum LifecycleEvent {
    /// A side sends nothing more, and still reads.
    HalfClosed {
        /// Why both sides are closed in the end.
        reason: CloseReason,
        /// The first wait of the draining phase.
        wait: Wait,
    },
    /// A side has closed.
    Closed {
        /// Why the other side is closed in the end.
        reason: CloseReason,
        /// The first wait of the draining phase.
        wait: Wait,
        /// The end of the answer timeout, if the next client gets the host of a client that has closed.
        answer_deadline: Option<Instant>,
    },
    /// The host has been told that nothing more comes.
    HostInputEnded,
    /// The program stops.
    Stopped { until: Instant },
    /// Nothing is under way, and nothing is waited for.
    Idle,
    /// The current wait has timed out.
    TimeIsUp,
    /// The host cannot be told that nothing more comes.
    CannotEndHostInput,
    /// The client was sent errors for what the host owes, before its close.
    Answered { until: Instant },
}

/// What the bridge has to do.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub(super) enum Action {
    /// Nothing.
    None,
    /// Tell the host that nothing more comes.
    EndHostInput,
    /// Close both sides.
    Close(CloseReason),
    /// Count what is under way as lost, and close both sides.
    GiveUp {
        reason: CloseReason,
        /// How long they have to take their close.
        close_time: CloseTime,
        host_input: HostInput,
    },
}

/// How long a side has to take its close.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CloseTime {
    /// As long as a driver gives it.
    Usual,
    /// A moment: it has taken nothing for long.
    Short,
}

impl BridgePhase {
    /// Goes on to the next phase: the first table at the top of this file.
    pub(super) fn on(&mut self, event: LifecycleEvent) -> Action {
        match (event, &mut *self) {
            (LifecycleEvent::HalfClosed { reason, wait }, Self::Open) => {
                *self = Self::Draining { reason, wait, host_input: HostInput::Open };
            }
            (LifecycleEvent::Closed { reason, wait, answer_deadline }, Self::Open) => {
                let wait = answer_deadline.map_or(wait, Wait::Until);
                *self = Self::Draining { reason, wait, host_input: HostInput::Open };
            }
            (LifecycleEvent::Closed { answer_deadline: Some(deadline), .. }, Self::Draining { wait, .. }) => {
                *wait = Wait::Until(match *wait {
                    Wait::Until(until) | Wait::Responses { until, .. } => until.min(deadline),
                    Wait::Host | Wait::Progress { .. } => deadline,
                });
            }
            (LifecycleEvent::Closed { answer_deadline: Some(deadline), .. }, Self::Stopping { until }) => {
                *until = deadline.min(*until);
            }
            (LifecycleEvent::HostInputEnded, Self::Draining { host_input, .. }) => *host_input = HostInput::Ended,
            (LifecycleEvent::Stopped { until }, Self::Open | Self::Draining { .. }) => *self = Self::Stopping { until },
            (LifecycleEvent::Idle, Self::Draining { .. } | Self::Stopping { .. } | Self::Answering { .. })
            | (LifecycleEvent::TimeIsUp, Self::Answering { .. }) => return Action::Close(self.close()),
            (LifecycleEvent::Answered { until }, Self::Closing(reason)) => {
                *self = Self::Answering { reason: reason.clone(), until };
            }
            (LifecycleEvent::TimeIsUp, Self::Draining { wait: Wait::Responses { .. }, .. }) => {
                return Action::EndHostInput;
            }
            (LifecycleEvent::TimeIsUp, Self::Draining { .. } | Self::Stopping { .. })
            | (LifecycleEvent::CannotEndHostInput, Self::Draining { .. }) => return self.give_up(),
            // The first end decides, and a bridge that is open waits for nothing.
            (LifecycleEvent::HalfClosed { .. } | LifecycleEvent::Closed { .. }, _)
            | (LifecycleEvent::HostInputEnded | LifecycleEvent::CannotEndHostInput, _)
            | (LifecycleEvent::Answered { .. }, _)
            | (LifecycleEvent::Stopped { .. }, Self::Stopping { .. } | Self::Answering { .. } | Self::Closing(_))
            | (LifecycleEvent::Idle | LifecycleEvent::TimeIsUp, Self::Open | Self::Closing(_)) => {}
        }
        Action::None
    }

    /// Decides anew what a draining bridge waits for: the second table at the top of this file.
    pub(super) fn choose_wait(&mut self, observed: Observed, drain_timeout: Duration) {
        let Self::Draining { wait, host_input, .. } = self else { return };
        let awaits_responses = observed.awaited_responses > 0;
        *wait = match *wait {
            Wait::Until(_) => return,
            _ if awaits_responses && *host_input == HostInput::Ended => Wait::Host,
            Wait::Responses { pending, .. } if pending == observed.awaited_responses => return,
            _ if awaits_responses => Wait::responses(observed),
            Wait::Progress { .. } => return,
            Wait::Responses { .. } | Wait::Host => Wait::progress(observed, drain_timeout),
        };
    }

    /// Called at the [deadline](Self::deadline): whether the wait has timed out. A wait that has made progress is
    /// prolonged.
    pub(super) fn is_time_up(&mut self, observed: Observed, drain_timeout: Duration) -> bool {
        let wait = match self {
            Self::Open | Self::Closing(_) => return false,
            Self::Stopping { .. } | Self::Answering { .. } => return true,
            Self::Draining { wait, .. } => wait,
        };
        match wait {
            Wait::Until(_) => true,
            Wait::Host => false,
            Wait::Responses { pending, moved, .. } => {
                let has_progress = match observed.host {
                    HostActivity::Reading => true,
                    HostActivity::Writing => observed.moved != *moved,
                    HostActivity::Quiet => false,
                };
                if has_progress {
                    *wait = Wait::responses(Observed { awaited_responses: *pending, ..observed });
                }
                !has_progress
            }
            Wait::Progress { moved, until, next_check } => {
                if observed.moved != *moved {
                    *moved = observed.moved;
                    *until = observed.now + drain_timeout;
                }
                *next_check = observed.now + CHECK_INTERVAL;
                observed.now >= *until
            }
        }
    }

    /// When this phase has to be looked at again, even if nothing happens until then.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self {
            Self::Open | Self::Closing(_) => None,
            Self::Stopping { until } | Self::Answering { until, .. } => Some(*until),
            Self::Draining { wait, .. } => match wait {
                Wait::Until(until) | Wait::Responses { until, .. } => Some(*until),
                Wait::Host => None,
                Wait::Progress { until, next_check, .. } => Some(*until.min(next_check)),
            },
        }
    }

    /// Whether the program stops.
    pub(super) const fn is_stopping(&self) -> bool {
        matches!(
            self,
            Self::Stopping { .. }
                | Self::Answering { reason: CloseReason::Restart, .. }
                | Self::Closing(CloseReason::Restart)
        )
    }

    /// Whether the host's side has been told to close, and the client's side has or soon will be.
    pub(super) const fn is_closing(&self) -> bool {
        matches!(self, Self::Answering { .. } | Self::Closing(_))
    }

    /// Whether the bridge drains, and has told the host that nothing more comes.
    pub(super) const fn has_ended_host_input(&self) -> bool {
        matches!(self, Self::Draining { host_input: HostInput::Ended, .. })
    }

    fn give_up(&mut self) -> Action {
        let (close_time, host_input) = match self {
            Self::Draining { wait: Wait::Progress { .. }, host_input, .. } => (CloseTime::Short, *host_input),
            Self::Draining { host_input, .. } => (CloseTime::Usual, *host_input),
            Self::Open | Self::Stopping { .. } | Self::Answering { .. } | Self::Closing(_) => {
                (CloseTime::Usual, HostInput::Open)
            }
        };
        Action::GiveUp { reason: self.close(), close_time, host_input }
    }

    /// Enters the last phase; returns the reason.
    fn close(&mut self) -> CloseReason {
        let reason = match self {
            Self::Draining { reason, .. } | Self::Answering { reason, .. } | Self::Closing(reason) => reason.clone(),
            Self::Open | Self::Stopping { .. } => CloseReason::Restart,
        };
        *self = Self::Closing(reason.clone());
        reason
    }
}

impl Wait {
    /// A wait for the responses that the host has yet to make.
    fn responses(Observed { now, moved, awaited_responses: pending, .. }: Observed) -> Self {
        Self::Responses { pending, moved, until: now + RESPONSE_TIMEOUT }
    }

    /// A wait for as long as something moves.
    pub(super) fn progress(Observed { now, moved, .. }: Observed, drain_timeout: Duration) -> Self {
        Self::Progress { moved, until: now + drain_timeout, next_check: now + CHECK_INTERVAL }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
    const REASON: CloseReason = CloseReason::Peer { code: 1001 };
    const LATER_REASON: CloseReason = CloseReason::Peer { code: 1011 };

    fn draining(wait: Wait) -> BridgePhase {
        BridgePhase::Draining { reason: REASON, wait, host_input: HostInput::Open }
    }

    fn draining_without_input(wait: Wait) -> BridgePhase {
        BridgePhase::Draining { reason: REASON, wait, host_input: HostInput::Ended }
    }

    /// The first table at the top of this file, cell by cell: the phase after the event, and what is to be done.
    #[test]
    fn each_event_in_each_phase_does_what_the_table_says() {
        let begin = Instant::now();
        let at = |seconds: u32| begin + seconds * SECOND;
        let progress = Wait::Progress { moved: 0, until: at(9), next_check: at(1) };
        let responses = Wait::Responses { pending: 1, moved: 0, until: at(7) };
        let open = || BridgePhase::Open;
        let stopping = |seconds| BridgePhase::Stopping { until: at(seconds) };
        let closing = || BridgePhase::Closing(REASON);
        let restarting = || BridgePhase::Closing(CloseReason::Restart);
        let begun = |wait| BridgePhase::Draining { reason: LATER_REASON, wait, host_input: HostInput::Open };
        let give_up = |reason, close_time, host_input| Action::GiveUp { reason, close_time, host_input };
        let half_closed = || LifecycleEvent::HalfClosed { reason: LATER_REASON, wait: progress };
        let closed = |answer_deadline| LifecycleEvent::Closed { reason: LATER_REASON, wait: progress, answer_deadline };
        let input_ended = || LifecycleEvent::HostInputEnded;
        let stopped = || LifecycleEvent::Stopped { until: at(5) };
        let idle = || LifecycleEvent::Idle;
        let time_is_up = || LifecycleEvent::TimeIsUp;
        let cannot_end = || LifecycleEvent::CannotEndHostInput;
        let answered = || LifecycleEvent::Answered { until: at(2) };
        let answering = || BridgePhase::Answering { reason: REASON, until: at(2) };
        let table = [
            // A side half-closes.
            (half_closed(), open(), begun(progress), Action::None),
            (half_closed(), draining(responses), draining(responses), Action::None),
            (half_closed(), stopping(6), stopping(6), Action::None),
            (half_closed(), answering(), answering(), Action::None),
            (half_closed(), closing(), closing(), Action::None),
            // A side closes.
            (closed(None), open(), begun(progress), Action::None),
            (closed(None), draining(responses), draining(responses), Action::None),
            (closed(None), stopping(6), stopping(6), Action::None),
            (closed(None), answering(), answering(), Action::None),
            (closed(None), closing(), closing(), Action::None),
            // A client closes, and the next client gets its host.
            (closed(Some(at(3))), open(), begun(Wait::Until(at(3))), Action::None),
            (closed(Some(at(3))), draining(responses), draining(Wait::Until(at(3))), Action::None),
            (closed(Some(at(8))), draining(responses), draining(Wait::Until(at(7))), Action::None),
            (closed(Some(at(8))), draining(progress), draining(Wait::Until(at(8))), Action::None),
            (closed(Some(at(8))), draining(Wait::Host), draining(Wait::Until(at(8))), Action::None),
            (closed(Some(at(3))), stopping(6), stopping(3), Action::None),
            (closed(Some(at(8))), stopping(6), stopping(6), Action::None),
            (closed(Some(at(3))), answering(), answering(), Action::None),
            (closed(Some(at(3))), closing(), closing(), Action::None),
            // The host's input ends.
            (input_ended(), open(), open(), Action::None),
            (input_ended(), draining(responses), draining_without_input(responses), Action::None),
            (input_ended(), stopping(6), stopping(6), Action::None),
            (input_ended(), answering(), answering(), Action::None),
            (input_ended(), closing(), closing(), Action::None),
            // The program stops.
            (stopped(), open(), stopping(5), Action::None),
            (stopped(), draining(Wait::Host), stopping(5), Action::None),
            (stopped(), stopping(6), stopping(6), Action::None),
            (stopped(), answering(), answering(), Action::None),
            (stopped(), closing(), closing(), Action::None),
            // Both sides are idle.
            (idle(), open(), open(), Action::None),
            (idle(), draining(progress), closing(), Action::Close(REASON)),
            (idle(), stopping(6), restarting(), Action::Close(CloseReason::Restart)),
            (idle(), answering(), closing(), Action::Close(REASON)),
            (idle(), closing(), closing(), Action::None),
            // The time is up.
            (time_is_up(), open(), open(), Action::None),
            (time_is_up(), draining(progress), closing(), give_up(REASON, CloseTime::Short, HostInput::Open)),
            (
                time_is_up(),
                draining_without_input(progress),
                closing(),
                give_up(REASON, CloseTime::Short, HostInput::Ended),
            ),
            (time_is_up(), draining(Wait::Until(at(1))), closing(), give_up(REASON, CloseTime::Usual, HostInput::Open)),
            (time_is_up(), stopping(6), restarting(), give_up(CloseReason::Restart, CloseTime::Usual, HostInput::Open)),
            (time_is_up(), answering(), closing(), Action::Close(REASON)),
            (time_is_up(), closing(), closing(), Action::None),
            // The time for responses is up.
            (time_is_up(), draining(responses), draining(responses), Action::EndHostInput),
            // The host's input cannot be ended.
            (cannot_end(), open(), open(), Action::None),
            (cannot_end(), draining(responses), closing(), give_up(REASON, CloseTime::Usual, HostInput::Open)),
            (cannot_end(), stopping(6), stopping(6), Action::None),
            (cannot_end(), answering(), answering(), Action::None),
            (cannot_end(), closing(), closing(), Action::None),
            // The client gets errors for what the host owes.
            (answered(), open(), open(), Action::None),
            (answered(), draining(responses), draining(responses), Action::None),
            (answered(), stopping(6), stopping(6), Action::None),
            (answered(), answering(), answering(), Action::None),
            (answered(), closing(), answering(), Action::None),
        ];
        for (event, before, want, want_action) in table {
            let mut phase = before.clone();
            let action = phase.on(event.clone());
            assert_eq!((phase, action), (want, want_action), "{event:?} in {before:?}");
        }
    }

    /// The second table at the top of this file: which wait follows from what the host has yet to do.
    #[test]
    fn what_a_draining_bridge_waits_for_is_what_the_table_says() {
        let now = Instant::now();
        let [progress, responses] = [0, 2].map(|awaited_responses| {
            let observed = Observed { now, moved: 7, awaited_responses, host: HostActivity::Quiet };
            if awaited_responses == 0 { Wait::progress(observed, DRAIN_TIMEOUT) } else { Wait::responses(observed) }
        });
        let until = Wait::Until(now);
        let earlier = Wait::Responses { pending: 3, moved: 1, until: now };
        for (before, awaited_responses, want) in [
            (draining(progress), 0, progress),
            (draining(progress), 2, responses),
            (draining(responses), 2, responses),
            (draining(earlier), 2, responses),
            (draining(responses), 0, progress),
            (draining(until), 2, until),
            (draining_without_input(responses), 2, Wait::Host),
            (draining_without_input(Wait::Host), 2, Wait::Host),
            (draining_without_input(Wait::Host), 0, progress),
            (draining_without_input(until), 2, until),
        ] {
            let mut phase = before.clone();
            phase.choose_wait(Observed { now, moved: 7, awaited_responses, host: HostActivity::Quiet }, DRAIN_TIMEOUT);
            let BridgePhase::Draining { wait, .. } = phase else { panic!("{phase:?}") };
            assert_eq!(wait, want, "{awaited_responses} responses in {before:?}");
        }
    }

    #[test]
    fn what_makes_progress_has_more_time() {
        let begin = Instant::now();
        let mut observed = Observed { now: begin, moved: 7, awaited_responses: 1, host: HostActivity::Quiet };
        let mut phase = draining(Wait::progress(observed, DRAIN_TIMEOUT));
        observed.now = begin + DRAIN_TIMEOUT;
        observed.moved = 8;
        assert!(!phase.is_time_up(observed, DRAIN_TIMEOUT), "something has moved");
        assert_eq!(phase.deadline(), Some(observed.now + CHECK_INTERVAL));
        observed.now += DRAIN_TIMEOUT - CHECK_INTERVAL;
        assert!(!phase.is_time_up(observed, DRAIN_TIMEOUT), "there is still time");
        observed.now += CHECK_INTERVAL;
        assert!(phase.is_time_up(observed, DRAIN_TIMEOUT), "nothing has moved since");

        for (host, moved, has_more_time) in [
            (HostActivity::Reading, 7, true),
            (HostActivity::Writing, 8, true),
            (HostActivity::Writing, 7, false),
            (HostActivity::Quiet, 8, false),
        ] {
            let begun = Observed { now: begin, moved: 7, awaited_responses: 1, host };
            let mut phase = draining(Wait::responses(begun));
            let later = Observed { now: begin + RESPONSE_TIMEOUT, moved, ..begun };
            assert_eq!(!phase.is_time_up(later, DRAIN_TIMEOUT), has_more_time, "{host:?} {moved}");
            let deadline = later.now + if has_more_time { RESPONSE_TIMEOUT } else { Duration::ZERO };
            assert_eq!(phase.deadline(), Some(deadline), "{host:?} {moved}");
        }
        let observed = Observed { moved: 9, host: HostActivity::Writing, ..observed };
        assert!(draining(Wait::Until(begin)).is_time_up(observed, DRAIN_TIMEOUT));
        assert!(BridgePhase::Stopping { until: begin }.is_time_up(observed, DRAIN_TIMEOUT));
    }

    #[test]
    fn a_bridge_that_is_open_or_closing_or_waits_for_its_host_has_no_deadline() {
        let now = Instant::now();
        for phase in [BridgePhase::Open, draining_without_input(Wait::Host), BridgePhase::Closing(REASON)] {
            assert_eq!(phase.deadline(), None, "{phase:?}");
        }
        assert_eq!(BridgePhase::Stopping { until: now }.deadline(), Some(now));
        assert_eq!(draining(Wait::Until(now)).deadline(), Some(now));
    }
}
