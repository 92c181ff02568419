//! What a client may do on the channels that are neither chats nor sessions.

use ahp_types::actions::{RootConfigChangedAction, StateAction};
use ahp_types::state::{
    AnnotationsState, AutomationOperation, AutomationRunLifecycle, AutomationState, RootState, SnapshotState,
    TerminalClaim, TerminalLifecycleState, TerminalState,
};

use super::{Client, GateContext, Rejection, only_mutable, require_feature};
use crate::terminal::is_free;

pub(super) fn check(client: &Client, action: &StateAction, context: &GateContext<'_>) -> Result<(), Rejection> {
    use StateAction as A;
    match (context.state, action) {
        (SnapshotState::Root(root), A::RootConfigChanged(a)) => config(a, root),
        (SnapshotState::Terminal(state), action) => terminal(client, action, state),
        (SnapshotState::Changeset(_), A::ChangesetFilesReviewChanged(_)) => require_feature(context.features.review),
        (SnapshotState::Annotations(state), action) => annotations(action, state),
        (SnapshotState::Automations(state), action) => automations(action, state, context),
        (SnapshotState::AutomationRun(run), A::AutomationRunCancelRequested(_)) => {
            let can_end =
                matches!(run.lifecycle, AutomationRunLifecycle::Pending(_) | AutomationRunLifecycle::Running(_));
            require_feature(context.features.run_cancellation && can_end)
        }
        _ => Err(super::only_the_host(action)),
    }
}

fn terminal(client: &Client, action: &StateAction, state: &TerminalState) -> Result<(), Rejection> {
    use StateAction as A;
    // The kernel counts both in 16 bits.
    let fits = |size: i64| (1..=i64::from(u16::MAX)).contains(&size);
    match action {
        A::TerminalInput(_) => running(state),
        A::TerminalResized(a) if !fits(a.cols) || !fits(a.rows) => Err(Rejection::Size),
        A::TerminalResized(_) => running(state),
        A::TerminalClaimed(_) => match &state.claim {
            TerminalClaim::Client(claim) if claim.client_id == client.id => Ok(()),
            free if is_free(free) => Ok(()),
            TerminalClaim::Client(_) | TerminalClaim::Session(_) => Err(Rejection::NotYourTerminal),
        },
        A::TerminalTitleChanged(_) | A::TerminalCleared(_) => Ok(()),
        _ => Err(super::only_the_host(action)),
    }
}

fn running(state: &TerminalState) -> Result<(), Rejection> {
    match state.lifecycle {
        TerminalLifecycleState::Exited(_) => Err(Rejection::Exited),
        _ => Ok(()),
    }
}

/// Properties that are known and not fixed.
fn config(a: &RootConfigChangedAction, root: &RootState) -> Result<(), Rejection> {
    let config = root.config.as_ref().ok_or(Rejection::NoConfig)?;
    let is_mutable =
        |key: &str| config.schema.properties.get(key).is_some_and(|property| property.read_only != Some(true));
    only_mutable(&a.config, a.replace == Some(true), &config.values, is_mutable)
}

/// No annotation is ever without an entry.
fn annotations(action: &StateAction, state: &AnnotationsState) -> Result<(), Rejection> {
    use StateAction as A;
    let empty = match action {
        A::AnnotationsSet(a) => a.annotation.entries.is_empty(),
        A::AnnotationsEntryRemoved(a) => {
            let annotation = state.annotations.iter().find(|annotation| annotation.id == a.annotation_id);
            annotation.is_some_and(|annotation| annotation.entries.iter().all(|entry| entry.id == a.entry_id))
        }
        A::AnnotationsUpdated(_) | A::AnnotationsRemoved(_) | A::AnnotationsEntrySet(_) => false,
        _ => return Err(super::only_the_host(action)),
    };
    if empty { Err(Rejection::EmptyAnnotation) } else { Ok(()) }
}

fn automations(action: &StateAction, state: &AutomationState, context: &GateContext<'_>) -> Result<(), Rejection> {
    use StateAction as A;
    let find = |resource: &str| state.entries.iter().find(|entry| entry.resource == resource);
    let can = |resource: &str, operation| {
        require_feature(find(resource).is_some_and(|entry| entry.operations.contains(&operation)))
    };
    match action {
        A::AutomationCreateRequested(a) => {
            require_feature(context.features.automation_creation)?;
            let free = a.resource.starts_with("ahp-automation:") && find(&a.resource).is_none();
            if free { Ok(()) } else { Err(Rejection::Resource) }
        }
        A::AutomationUpdateRequested(a) => can(&a.resource, AutomationOperation::Update),
        A::AutomationRemoved(a) => can(&a.resource, AutomationOperation::Remove),
        _ => Err(super::only_the_host(action)),
    }
}
