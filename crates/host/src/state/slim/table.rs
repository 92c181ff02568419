//! What each action has that may be sent by reference: one row each.

/// Where in an action something is that has a form by reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Has {
    /// Nothing: whatever is large in it, the protocol has no reference for.
    Nothing,
    /// `result.content`: blocks of a tool's result.
    Result,
    /// `content`: blocks of a tool's result.
    Content,
    /// `toolInput`.
    Input,
    /// `message`, that of the turn.
    Message,
    /// `message`, that waits under an id.
    Pending,
    /// `draft`.
    Draft,
    /// `userSuggestion`, of a tool call.
    Suggestion,
    /// `part`: a tool call as it is. A `markdown` stays: deltas must find it, and one action cannot add two parts.
    Part,
    /// `turns`.
    Turns,
    /// `request`: a tool call as its chat has it.
    Needed,
}

/// What an action of this type has; nothing, if it is of a later version of the protocol.
pub(super) fn has(name: &str) -> Has {
    TABLE.iter().find(|(known, _)| *known == name).map_or(Has::Nothing, |(_, has)| *has)
}

/// The whole table.
const TABLE: &[(&str, Has)] = &[
    ("chat/toolCallComplete", Has::Result),
    ("chat/toolCallContentChanged", Has::Content),
    ("chat/toolCallReady", Has::Input),
    ("chat/turnStarted", Has::Message),
    ("chat/pendingMessageSet", Has::Pending),
    ("chat/draftChanged", Has::Draft),
    ("chat/toolCallConfirmed", Has::Suggestion),
    ("chat/responsePart", Has::Part),
    ("chat/turnsLoaded", Has::Turns),
    ("session/inputNeededSet", Has::Needed),
    // Texts that grow, or that are what they are.
    ("chat/delta", Has::Nothing),
    ("chat/reasoning", Has::Nothing),
    ("chat/toolCallStart", Has::Nothing),
    ("chat/toolCallDelta", Has::Nothing),
    ("chat/error", Has::Nothing),
    ("chat/inputRequested", Has::Nothing),
    ("chat/inputAnswerChanged", Has::Nothing),
    ("chat/inputCompleted", Has::Nothing),
    ("terminal/data", Has::Nothing),
    ("terminal/input", Has::Nothing),
    ("annotations/set", Has::Nothing),
    ("annotations/updated", Has::Nothing),
    ("annotations/entrySet", Has::Nothing),
    // Files are by reference already.
    ("changeset/fileSet", Has::Nothing),
    ("changeset/contentChanged", Has::Nothing),
    // Lists that can be long, without a reference for any of it.
    ("root/agentsChanged", Has::Nothing),
    ("root/configChanged", Has::Nothing),
    ("root/terminalsChanged", Has::Nothing),
    ("session/chatAdded", Has::Nothing),
    ("session/chatUpdated", Has::Nothing),
    ("session/chatsReordered", Has::Nothing),
    ("session/changesetsChanged", Has::Nothing),
    ("session/serverToolsChanged", Has::Nothing),
    ("session/activeClientSet", Has::Nothing),
    ("session/customizationsChanged", Has::Nothing),
    ("session/customizationUpdated", Has::Nothing),
    ("session/mcpServerStateChanged", Has::Nothing),
    ("session/configChanged", Has::Nothing),
    ("session/metaChanged", Has::Nothing),
    ("chat/changesetsChanged", Has::Nothing),
    ("chat/canvasesChanged", Has::Nothing),
    ("chat/backgroundWorkSet", Has::Nothing),
    ("chat/queuedMessagesReordered", Has::Nothing),
    ("canvas/stateChanged", Has::Nothing),
    ("changeset/operationsChanged", Has::Nothing),
    ("changeset/filesReviewChanged", Has::Nothing),
    ("resourceWatch/changed", Has::Nothing),
    // Messages of automations may have attachments; this host has no automations.
    ("automation/createRequested", Has::Nothing),
    ("automation/updateRequested", Has::Nothing),
    ("automation/set", Has::Nothing),
    // Short.
    ("root/activeSessionsChanged", Has::Nothing),
    ("session/ready", Has::Nothing),
    ("session/creationFailed", Has::Nothing),
    ("session/chatRemoved", Has::Nothing),
    ("session/defaultChatChanged", Has::Nothing),
    ("session/titleChanged", Has::Nothing),
    ("session/isReadChanged", Has::Nothing),
    ("session/isArchivedChanged", Has::Nothing),
    ("session/activityChanged", Has::Nothing),
    ("session/activeClientRemoved", Has::Nothing),
    ("session/workingDirectorySet", Has::Nothing),
    ("session/workingDirectoryRemoved", Has::Nothing),
    ("session/workingDirectoryReplaced", Has::Nothing),
    ("session/inputNeededRemoved", Has::Nothing),
    ("session/customizationToggled", Has::Nothing),
    ("session/customizationRemoved", Has::Nothing),
    ("session/mcpServerStartRequested", Has::Nothing),
    ("session/mcpServerStopRequested", Has::Nothing),
    ("session/mcpServerBackgroundRequested", Has::Nothing),
    ("chat/toolCallResultConfirmed", Has::Nothing),
    ("chat/toolCallAuthRequired", Has::Nothing),
    ("chat/toolCallAuthResolved", Has::Nothing),
    ("chat/turnComplete", Has::Nothing),
    ("chat/turnCancelled", Has::Nothing),
    ("chat/turnResume", Has::Nothing),
    ("chat/activityChanged", Has::Nothing),
    ("chat/backgroundWorkRemoved", Has::Nothing),
    ("chat/movableChanged", Has::Nothing),
    ("chat/usage", Has::Nothing),
    ("chat/workingDirectorySet", Has::Nothing),
    ("chat/workingDirectoryRemoved", Has::Nothing),
    ("chat/pendingMessageRemoved", Has::Nothing),
    ("chat/isReadChanged", Has::Nothing),
    ("chat/isArchivedChanged", Has::Nothing),
    ("chat/truncated", Has::Nothing),
    ("changeset/statusChanged", Has::Nothing),
    ("changeset/fileRemoved", Has::Nothing),
    ("changeset/operationStatusChanged", Has::Nothing),
    ("changeset/cleared", Has::Nothing),
    ("annotations/removed", Has::Nothing),
    ("annotations/entryRemoved", Has::Nothing),
    ("terminal/resized", Has::Nothing),
    ("terminal/claimed", Has::Nothing),
    ("terminal/titleChanged", Has::Nothing),
    ("terminal/cwdChanged", Has::Nothing),
    ("terminal/exited", Has::Nothing),
    ("terminal/cleared", Has::Nothing),
    ("terminal/commandDetectionAvailable", Has::Nothing),
    ("terminal/commandExecuted", Has::Nothing),
    ("terminal/commandFinished", Has::Nothing),
    ("automation/removed", Has::Nothing),
    ("automationRun/lifecycleChanged", Has::Nothing),
    ("automationRun/sessionSet", Has::Nothing),
    ("automationRun/sessionRemoved", Has::Nothing),
    ("automationRun/primarySessionChanged", Has::Nothing),
    ("automationRun/cancelRequested", Has::Nothing),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::gate;

    /// The gate's table does not compile without a row for each variant of the protocol's type.
    #[test]
    fn every_action_of_the_protocol_has_one_row() {
        let known: BTreeSet<&str> = gate::ROWS.iter().map(|row| row.name).collect();
        let ours: BTreeSet<&str> = TABLE.iter().map(|(name, _)| *name).collect();
        assert_eq!(ours, known);
        assert_eq!(TABLE.len(), known.len(), "none twice");
        assert_eq!((has("chat/draftChanged"), has("chat/of-tomorrow")), (Has::Draft, Has::Nothing));
    }
}
