//! The table of actions: one rule for each.

use ahp_types::actions::StateAction;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::mismatch;
use crate::state::ChannelKind;

/// What is known of an action without any state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ActionRule {
    /// The action's `type`.
    pub name: &'static str,
    /// The kind of channels that it is for.
    pub kind: ChannelKind,
    /// Who may dispatch it.
    pub dispatcher: Dispatcher,
}

/// Who may dispatch an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dispatcher {
    /// Clients too, if the state allows it.
    Client,
    /// The host alone.
    Host,
}

/// Writes the table, and the match that fails to compile when an action has no row.
macro_rules! action_rules {
    ($($variant:ident $name:literal $kind:ident $dispatcher:ident;)*) => {
        /// The whole table.
        #[cfg(feature = "test-support")]
        pub const ACTION_RULES: &[ActionRule] = &[$(ActionRule { name: $name, kind: ChannelKind::$kind, dispatcher: Dispatcher::$dispatcher }),*];

        /// The row of an action; `None` for one of a later version of the protocol.
        #[must_use]
        pub const fn rule_of(action: &StateAction) -> Option<ActionRule> {
            match action {
                $(StateAction::$variant(_) => Some(ActionRule { name: $name, kind: ChannelKind::$kind, dispatcher: Dispatcher::$dispatcher }),)*
                StateAction::Unknown(_) => None,
            }
        }

        /// What is wrong with the text of an action of this type; `None` if there is no such type, or nothing is.
        fn mismatch(name: &str, text: &[u8]) -> Option<String> {
            match name {
                $($name => describe(StateAction::$variant, text),)*
                _ => None,
            }
        }
    };
}

/// What is wrong with a text that was to be the content of this variant.
fn describe<T: DeserializeOwned>(_variant: fn(T) -> StateAction, text: &[u8]) -> Option<String> {
    mismatch::describe::<T>(text)
}

/// Says what is wrong with an action that the types of the protocol do not know: with the name of its type, or of the
/// field that does not fit.
#[must_use]
pub fn explain(unknown: &Value) -> String {
    let Some(name) = unknown.get("type").and_then(Value::as_str) else {
        return "invalid action: it must be an object with a \"type\"".to_owned();
    };
    if let Some(why) = mismatch(name, unknown.to_string().as_bytes()) {
        return format!("invalid action {name}: {why}");
    }
    // The client chose the name: no more of it is repeated than a type can have.
    let name: String = name.chars().take(64).collect();
    format!("this host does not know the action {name:?}")
}

action_rules! {
    RootAgentsChanged "root/agentsChanged" Root Host;
    RootActiveSessionsChanged "root/activeSessionsChanged" Root Host;
    RootConfigChanged "root/configChanged" Root Client;
    RootTerminalsChanged "root/terminalsChanged" Root Host;

    SessionReady "session/ready" Session Host;
    SessionCreationFailed "session/creationFailed" Session Host;
    SessionChatAdded "session/chatAdded" Session Host;
    SessionChatRemoved "session/chatRemoved" Session Host;
    SessionChatUpdated "session/chatUpdated" Session Host;
    SessionChatsReordered "session/chatsReordered" Session Host;
    SessionDefaultChatChanged "session/defaultChatChanged" Session Host;
    SessionTitleChanged "session/titleChanged" Session Client;
    SessionIsReadChanged "session/isReadChanged" Session Client;
    SessionIsArchivedChanged "session/isArchivedChanged" Session Client;
    SessionActivityChanged "session/activityChanged" Session Host;
    SessionChangesetsChanged "session/changesetsChanged" Session Host;
    SessionServerToolsChanged "session/serverToolsChanged" Session Host;
    SessionActiveClientSet "session/activeClientSet" Session Client;
    SessionActiveClientRemoved "session/activeClientRemoved" Session Client;
    SessionWorkingDirectorySet "session/workingDirectorySet" Session Client;
    SessionWorkingDirectoryRemoved "session/workingDirectoryRemoved" Session Client;
    SessionWorkingDirectoryReplaced "session/workingDirectoryReplaced" Session Client;
    SessionInputNeededSet "session/inputNeededSet" Session Host;
    SessionInputNeededRemoved "session/inputNeededRemoved" Session Host;
    SessionCustomizationsChanged "session/customizationsChanged" Session Host;
    SessionCustomizationToggled "session/customizationToggled" Session Client;
    SessionCustomizationUpdated "session/customizationUpdated" Session Host;
    SessionCustomizationRemoved "session/customizationRemoved" Session Host;
    SessionMcpServerStateChanged "session/mcpServerStateChanged" Session Host;
    SessionMcpServerStartRequested "session/mcpServerStartRequested" Session Client;
    SessionMcpServerStopRequested "session/mcpServerStopRequested" Session Client;
    SessionMcpServerBackgroundRequested "session/mcpServerBackgroundRequested" Session Client;
    SessionConfigChanged "session/configChanged" Session Client;
    SessionMetaChanged "session/metaChanged" Session Host;

    ChatTurnStarted "chat/turnStarted" Chat Client;
    ChatDelta "chat/delta" Chat Host;
    ChatResponsePart "chat/responsePart" Chat Host;
    ChatToolCallStart "chat/toolCallStart" Chat Host;
    ChatToolCallDelta "chat/toolCallDelta" Chat Host;
    ChatToolCallReady "chat/toolCallReady" Chat Host;
    ChatToolCallConfirmed "chat/toolCallConfirmed" Chat Client;
    ChatToolCallComplete "chat/toolCallComplete" Chat Client;
    ChatToolCallResultConfirmed "chat/toolCallResultConfirmed" Chat Client;
    ChatToolCallContentChanged "chat/toolCallContentChanged" Chat Client;
    ChatToolCallAuthRequired "chat/toolCallAuthRequired" Chat Host;
    ChatToolCallAuthResolved "chat/toolCallAuthResolved" Chat Host;
    ChatTurnComplete "chat/turnComplete" Chat Host;
    ChatTurnCancelled "chat/turnCancelled" Chat Client;
    ChatError "chat/error" Chat Host;
    ChatTurnResume "chat/turnResume" Chat Client;
    ChatActivityChanged "chat/activityChanged" Chat Host;
    ChatBackgroundWorkSet "chat/backgroundWorkSet" Chat Host;
    ChatBackgroundWorkRemoved "chat/backgroundWorkRemoved" Chat Host;
    ChatMovableChanged "chat/movableChanged" Chat Host;
    ChatChangesetsChanged "chat/changesetsChanged" Chat Host;
    ChatCanvasesChanged "chat/canvasesChanged" Chat Host;
    ChatUsage "chat/usage" Chat Host;
    ChatReasoning "chat/reasoning" Chat Host;
    ChatWorkingDirectorySet "chat/workingDirectorySet" Chat Client;
    ChatWorkingDirectoryRemoved "chat/workingDirectoryRemoved" Chat Client;
    ChatPendingMessageSet "chat/pendingMessageSet" Chat Client;
    ChatPendingMessageRemoved "chat/pendingMessageRemoved" Chat Client;
    ChatQueuedMessagesReordered "chat/queuedMessagesReordered" Chat Client;
    ChatDraftChanged "chat/draftChanged" Chat Client;
    ChatIsReadChanged "chat/isReadChanged" Chat Client;
    ChatIsArchivedChanged "chat/isArchivedChanged" Chat Client;
    ChatInputRequested "chat/inputRequested" Chat Host;
    ChatInputAnswerChanged "chat/inputAnswerChanged" Chat Client;
    ChatInputCompleted "chat/inputCompleted" Chat Client;
    ChatTruncated "chat/truncated" Chat Client;
    ChatTurnsLoaded "chat/turnsLoaded" Chat Host;

    CanvasStateChanged "canvas/stateChanged" Canvas Host;

    ChangesetStatusChanged "changeset/statusChanged" Changeset Host;
    ChangesetFileSet "changeset/fileSet" Changeset Host;
    ChangesetFileRemoved "changeset/fileRemoved" Changeset Host;
    ChangesetFilesReviewChanged "changeset/filesReviewChanged" Changeset Client;
    ChangesetContentChanged "changeset/contentChanged" Changeset Host;
    ChangesetOperationsChanged "changeset/operationsChanged" Changeset Host;
    ChangesetOperationStatusChanged "changeset/operationStatusChanged" Changeset Host;
    ChangesetCleared "changeset/cleared" Changeset Host;

    AnnotationsSet "annotations/set" Annotations Client;
    AnnotationsUpdated "annotations/updated" Annotations Client;
    AnnotationsRemoved "annotations/removed" Annotations Client;
    AnnotationsEntrySet "annotations/entrySet" Annotations Client;
    AnnotationsEntryRemoved "annotations/entryRemoved" Annotations Client;

    TerminalData "terminal/data" Terminal Host;
    TerminalInput "terminal/input" Terminal Client;
    TerminalResized "terminal/resized" Terminal Client;
    TerminalClaimed "terminal/claimed" Terminal Client;
    TerminalTitleChanged "terminal/titleChanged" Terminal Client;
    TerminalCwdChanged "terminal/cwdChanged" Terminal Host;
    TerminalExited "terminal/exited" Terminal Host;
    TerminalCleared "terminal/cleared" Terminal Client;
    TerminalCommandDetectionAvailable "terminal/commandDetectionAvailable" Terminal Host;
    TerminalCommandExecuted "terminal/commandExecuted" Terminal Host;
    TerminalCommandFinished "terminal/commandFinished" Terminal Host;

    ResourceWatchChanged "resourceWatch/changed" ResourceWatch Host;

    AutomationCreateRequested "automation/createRequested" Automations Client;
    AutomationUpdateRequested "automation/updateRequested" Automations Client;
    AutomationSet "automation/set" Automations Host;
    AutomationRemoved "automation/removed" Automations Client;

    AutomationRunLifecycleChanged "automationRun/lifecycleChanged" AutomationRun Host;
    AutomationRunSessionSet "automationRun/sessionSet" AutomationRun Host;
    AutomationRunSessionRemoved "automationRun/sessionRemoved" AutomationRun Host;
    AutomationRunPrimarySessionChanged "automationRun/primarySessionChanged" AutomationRun Host;
    AutomationRunCancelRequested "automationRun/cancelRequested" AutomationRun Client;
}
