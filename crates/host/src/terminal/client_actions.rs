//! Actions of clients on a terminal: whether one may be logged, and its effect.

use std::sync::Arc;

use ahp_types::actions::StateAction;
use ahp_types::state::{TerminalClaim, TerminalLifecycleState};
use pty_process::Size;
use tokio::sync::OwnedSemaphorePermit;

use super::claim::{self, TerminalRejection};
use super::registry::{Registry, Terminal};
use super::size_of;
use crate::lock::lock;
use crate::log::AppendError;

/// A request of a client to a program.
pub(super) struct ProgramRequest {
    pub(super) command: ProgramCommand,
    /// Its share of the input that may wait.
    pub(super) share: OwnedSemaphorePermit,
}

pub(super) enum ProgramCommand {
    Input(String),
    Resize(Size),
    Clear,
}

/// An action of a client that may be logged. If it is dropped without being [performed](AcceptedAction::perform), it has no
/// effect.
#[must_use]
pub struct AcceptedAction {
    list: Arc<Registry>,
    terminal: Arc<Terminal>,
    effect: ActionEffect,
}

enum ActionEffect {
    ProgramRequest(ProgramRequest),
    Claim(TerminalClaim),
    Title(String),
    /// The reducer does everything.
    Nothing,
}

impl AcceptedAction {
    /// Carries it out. To be called when the action is in the log.
    pub async fn perform(self) -> Result<(), AppendError> {
        match self.effect {
            // If the program has just ended, nobody receives it.
            ActionEffect::ProgramRequest(order) => {
                drop(self.terminal.requests.send(order));
                return Ok(());
            }
            ActionEffect::Claim(claim) => self.terminal.show(|shown| shown.claim = claim),
            ActionEffect::Title(title) => self.terminal.show(|shown| shown.title = title),
            ActionEffect::Nothing => return Ok(()),
        }
        self.list.announce().await
    }
}

/// The least bytes that a request counts as, so that a million empty ones are bounded too.
const ORDER_COST: usize = 64;

pub(super) fn accept(
    list: &Arc<Registry>,
    terminal: Arc<Terminal>,
    client: &str,
    action: &StateAction,
) -> Result<AcceptedAction, TerminalRejection> {
    let shown = terminal.shown();
    claim::check(client, &shown.claim, action)?;
    let order = |command: ProgramCommand, bytes: usize| {
        let running = matches!(shown.lifecycle, TerminalLifecycleState::Running(_));
        let input = lock(&terminal.input).clone().filter(|_| running).ok_or(TerminalRejection::Exited)?;
        let limit = list.config.max_input_bytes;
        let free = input.available_permits();
        let full = || TerminalRejection::InputFull {
            waiting: bytes.saturating_add((limit as usize).saturating_sub(free)),
            limit,
        };
        let wanted = u32::try_from(bytes.max(ORDER_COST)).map_err(|_| full())?;
        let share = input.try_acquire_many_owned(wanted).map_err(|_| full())?;
        Ok(ActionEffect::ProgramRequest(ProgramRequest { command, share }))
    };
    let effect = match action {
        StateAction::TerminalInput(input) => order(ProgramCommand::Input(input.data.clone()), input.data.len())?,
        StateAction::TerminalResized(size) => {
            let (cols, rows) = (size.cols, size.rows);
            let (cols, rows) = size_of(cols, rows).map_err(|_| TerminalRejection::BadSize { cols, rows })?;
            order(ProgramCommand::Resize(Size::new(rows, cols)), 0)?
        }
        StateAction::TerminalCleared(_) => match order(ProgramCommand::Clear, 0) {
            // After the program's end the content is not counted any more.
            Err(TerminalRejection::Exited) => ActionEffect::Nothing,
            other => other?,
        },
        StateAction::TerminalClaimed(claimed) => ActionEffect::Claim(claimed.claim.clone()),
        StateAction::TerminalTitleChanged(changed) if !claim::is_title(&changed.title) => {
            return Err(TerminalRejection::BadTitle);
        }
        StateAction::TerminalTitleChanged(changed) => ActionEffect::Title(changed.title.clone()),
        _ => return Err(TerminalRejection::NotForClients),
    };
    Ok(AcceptedAction { list: list.clone(), terminal, effect })
}
