//! What a client dispatches on a terminal: whether it may be logged, and what it does then.

use std::sync::Arc;

use ahp_types::actions::StateAction;
use ahp_types::state::{TerminalClaim, TerminalLifecycleState};
use pty_process::Size;
use tokio::sync::OwnedSemaphorePermit;

use super::claim::{self, Holder, Refusal};
use super::list::{List, Live};
use super::size_of;
use crate::lock::lock;
use crate::log::AppendError;

/// What a client asks of a program.
pub(super) struct Order {
    pub(super) work: Work,
    /// Of the input that may wait.
    pub(super) share: OwnedSemaphorePermit,
}

pub(super) enum Work {
    Input(String),
    Resize(Size),
    Clear,
}

/// An action of a client that may be logged. Dropped without being [performed](Admitted::perform), it had no effect.
#[must_use]
pub struct Admitted {
    list: Arc<List>,
    live: Arc<Live>,
    effect: Effect,
}

enum Effect {
    Order(Order),
    Claim(TerminalClaim),
    Title(String),
    /// The reducer does it all.
    Nothing,
}

impl Admitted {
    /// Carries it out. To be called when the action is in the log.
    pub async fn perform(self) -> Result<(), AppendError> {
        match self.effect {
            // A program that has just ended reads nothing any more.
            Effect::Order(order) => {
                drop(self.live.orders.send(order));
                return Ok(());
            }
            Effect::Claim(claim) => self.live.show(|shown| shown.claim = claim),
            Effect::Title(title) => self.live.show(|shown| shown.title = title),
            Effect::Nothing => return Ok(()),
        }
        self.list.announce().await
    }
}

/// The least that an order counts for, so that a million empty ones are not free.
const ORDER_COST: usize = 64;

pub(super) fn admit(
    list: &Arc<List>,
    live: Arc<Live>,
    who: &Holder,
    action: &StateAction,
) -> Result<Admitted, Refusal> {
    let shown = live.shown();
    claim::check(who, &shown.claim, action)?;
    let order = |work: Work, bytes: usize| {
        let running = matches!(shown.lifecycle, TerminalLifecycleState::Running(_));
        let input = lock(&live.input).clone().filter(|_| running).ok_or(Refusal::Exited)?;
        let limit = list.config.max_input_bytes;
        let free = input.available_permits();
        let full =
            || Refusal::InputFull { waiting: bytes.saturating_add((limit as usize).saturating_sub(free)), limit };
        let wanted = u32::try_from(bytes.max(ORDER_COST)).map_err(|_| full())?;
        let share = input.try_acquire_many_owned(wanted).map_err(|_| full())?;
        Ok(Effect::Order(Order { work, share }))
    };
    let effect = match action {
        StateAction::TerminalInput(input) => order(Work::Input(input.data.clone()), input.data.len())?,
        StateAction::TerminalResized(size) => {
            let (cols, rows) = (size.cols, size.rows);
            let (cols, rows) = size_of(cols, rows).map_err(|_| Refusal::BadSize { cols, rows })?;
            order(Work::Resize(Size::new(rows, cols)), 0)?
        }
        StateAction::TerminalCleared(_) => match order(Work::Clear, 0) {
            // After the end nothing counts the content any more.
            Err(Refusal::Exited) => Effect::Nothing,
            other => other?,
        },
        StateAction::TerminalClaimed(claimed) => Effect::Claim(claimed.claim.clone()),
        StateAction::TerminalTitleChanged(changed) if claim::title(&changed.title) != changed.title => {
            return Err(Refusal::BadTitle);
        }
        StateAction::TerminalTitleChanged(changed) => Effect::Title(changed.title.clone()),
        _ => return Err(Refusal::NotForClients),
    };
    Ok(Admitted { list: list.clone(), live, effect })
}
