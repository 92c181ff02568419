//! The kinds of channels, and which reducer each has.

use ahp::reducers::{
    ReduceOutcome, apply_action_to_annotations, apply_action_to_automation, apply_action_to_automation_run,
    apply_action_to_canvas, apply_action_to_changeset, apply_action_to_chat, apply_action_to_resource_watch,
    apply_action_to_root, apply_action_to_session, apply_action_to_terminal,
};
use ahp_types::actions::StateAction;
use ahp_types::state::{RootState, SnapshotState};
use serde::{Deserialize, Serialize};

/// The kind of a channel. It cannot be told from the URI, because clients choose the URIs of sessions and chats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ChannelKind {
    /// The host itself.
    Root,
    /// A session.
    Session,
    /// A chat.
    Chat,
    /// A canvas.
    Canvas,
    /// A terminal.
    Terminal,
    /// A view of changed files.
    Changeset,
    /// A watch on files.
    ResourceWatch,
    /// Annotations of a session.
    Annotations,
    /// The catalogue of automations.
    Automations,
    /// One run of an automation.
    AutomationRun,
}

impl ChannelKind {
    /// The kind of a state.
    #[must_use]
    pub const fn of(state: &SnapshotState) -> Self {
        match state {
            SnapshotState::Root(_) => Self::Root,
            SnapshotState::Session(_) => Self::Session,
            SnapshotState::Chat(_) => Self::Chat,
            SnapshotState::Canvas(_) => Self::Canvas,
            SnapshotState::Terminal(_) => Self::Terminal,
            SnapshotState::Changeset(_) => Self::Changeset,
            SnapshotState::ResourceWatch(_) => Self::ResourceWatch,
            SnapshotState::Annotations(_) => Self::Annotations,
            SnapshotState::Automations(_) => Self::Automations,
            SnapshotState::AutomationRun(_) => Self::AutomationRun,
        }
    }

    /// Parses a state of this kind. The union itself is untagged, so parsing it without the kind would be a guess.
    pub(super) fn decode(self, text: &str) -> serde_json::Result<SnapshotState> {
        Ok(match self {
            Self::Root => SnapshotState::Root(serde_json::from_str(text)?),
            Self::Session => SnapshotState::Session(serde_json::from_str(text)?),
            Self::Chat => SnapshotState::Chat(serde_json::from_str(text)?),
            Self::Canvas => SnapshotState::Canvas(serde_json::from_str(text)?),
            Self::Terminal => SnapshotState::Terminal(serde_json::from_str(text)?),
            Self::Changeset => SnapshotState::Changeset(serde_json::from_str(text)?),
            Self::ResourceWatch => SnapshotState::ResourceWatch(serde_json::from_str(text)?),
            Self::Annotations => SnapshotState::Annotations(serde_json::from_str(text)?),
            Self::Automations => SnapshotState::Automations(serde_json::from_str(text)?),
            Self::AutomationRun => SnapshotState::AutomationRun(serde_json::from_str(text)?),
        })
    }
}

/// Applies an action with the official reducer.
pub(super) fn reduce(state: &mut SnapshotState, action: &StateAction) -> ReduceOutcome {
    match state {
        SnapshotState::Root(state) => apply_action_to_root(state, action),
        SnapshotState::Session(state) => apply_action_to_session(state, action),
        SnapshotState::Chat(state) => apply_action_to_chat(state, action),
        SnapshotState::Canvas(state) => apply_action_to_canvas(state, action),
        SnapshotState::Terminal(state) => apply_action_to_terminal(state, action),
        SnapshotState::Changeset(state) => apply_action_to_changeset(state, action),
        SnapshotState::ResourceWatch(state) => apply_action_to_resource_watch(state, action),
        SnapshotState::Annotations(state) => apply_action_to_annotations(state, action),
        SnapshotState::Automations(state) => apply_action_to_automation(state, action),
        SnapshotState::AutomationRun(state) => apply_action_to_automation_run(state, action),
    }
}

/// The root before its first entry.
pub(super) fn empty_root() -> SnapshotState {
    let root = RootState { agents: Vec::new(), active_sessions: None, terminals: None, config: None, meta: None };
    SnapshotState::Root(Box::new(root))
}
