//! One event on its way to all relays, and what they make of it together.

use std::sync::{Arc, Mutex, PoisonError};

use breakbulk_proto::{Receipt, Refusal, Tag};

use crate::event::{self, Outgoing};
use crate::inbox::InboxSender;

/// An event on its way to all relays.
#[derive(Debug)]
pub(crate) struct Publication {
    pub(crate) event: Outgoing,
    /// Whether it is a whole request, which some servers run again when it comes again. If a connection breaks before it is confirmed,
    /// it is not sent again.
    pub(crate) is_request: bool,
    /// The link to which the result is reported, and the frame that it is about.
    report: Option<(InboxSender, Tag)>,
    verdict: Mutex<Verdict>,
}

/// What one relay made of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It has the event.
    Taken,
    Refused(Refusal),
}

/// What the relays have made of an event so far.
#[derive(Debug)]
struct Verdict {
    /// Relays that have not answered.
    waiting: usize,
    is_taken: bool,
    refusal: Refusal,
}

impl Publication {
    /// An event for this many relays.
    pub(crate) fn new(
        event: Outgoing,
        is_request: bool,
        report: Option<(InboxSender, Tag)>,
        relays: usize,
    ) -> Arc<Self> {
        let verdict = Verdict { waiting: relays, is_taken: false, refusal: Refusal::Other };
        Arc::new(Self { event, is_request, report, verdict: Mutex::new(verdict) })
    }

    /// Notes what a relay made of the event; each does so once. After the last, the result is reported: taken if any relay has it.
    /// Otherwise it is worth another try if any relay was only too busy.
    pub(crate) fn settle(&self, outcome: Outcome) {
        let mut verdict = self.verdict.lock().unwrap_or_else(PoisonError::into_inner);
        match (outcome, verdict.refusal) {
            (Outcome::Taken, _) => verdict.is_taken = true,
            (Outcome::Refused(Refusal::TooFast), _) | (Outcome::Refused(Refusal::TooLarge), Refusal::Other) => {
                let Outcome::Refused(refusal) = outcome else { return };
                verdict.refusal = refusal;
            }
            (Outcome::Refused(_), _) => {}
        }
        verdict.waiting = verdict.waiting.saturating_sub(1);
        if verdict.waiting > 0 {
            return;
        }
        let result = if verdict.is_taken {
            Ok(Receipt { id: Some(event::hex(&self.event.name)) })
        } else {
            Err(verdict.refusal)
        };
        if let Some((inbox, tag)) = &self.report {
            inbox.acked((*tag, result));
        }
    }
}
