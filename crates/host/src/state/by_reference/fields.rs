//! Which member of each action may be sent by reference: one row for each action.

/// The member of an action that has a form by reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ContentField {
    /// None: the protocol has no reference for anything large in it.
    Nothing,
    /// `result.content`: blocks of a tool's result.
    Result,
    /// `content`: blocks of a tool's result.
    Content,
    /// `toolInput`.
    Input,
    /// `message`, of a turn.
    Message,
    /// `message`, of a pending message with an id.
    Pending,
    /// `draft`.
    Draft,
    /// `userSuggestion`, of a tool call.
    Suggestion,
    /// `part`, if it is a tool call. A `markdown` part stays: later deltas need it, and one action cannot add two parts.
    Part,
    /// `turns`.
    Turns,
    /// `request`: a tool call as its chat has it.
    Needed,
}

/// The member for an action of this type; `Nothing` for types of a later version of the protocol.
pub(super) fn content_field(name: &str) -> ContentField {
    CONTENT_FIELDS
        .iter()
        .find(|(known, _)| *known == name)
        .map_or(ContentField::Nothing, |(_, content_field)| *content_field)
}

/// The whole table.
const CONTENT_FIELDS: &[(&str, ContentField)] = &[
    ("chat/toolCallComplete", ContentField::Result),
    ("chat/toolCallContentChanged", ContentField::Content),
    ("chat/toolCallReady", ContentField::Input),
    ("chat/turnStarted", ContentField::Message),
    ("chat/pendingMessageSet", ContentField::Pending),
    ("chat/draftChanged", ContentField::Draft),
    ("chat/toolCallConfirmed", ContentField::Suggestion),
    ("chat/responsePart", ContentField::Part),
    ("chat/turnsLoaded", ContentField::Turns),
    ("session/inputNeededSet", ContentField::Needed),
    // Texts that grow, or that are what they are.
    ("chat/delta", ContentField::Nothing),
    ("chat/reasoning", ContentField::Nothing),
    ("chat/toolCallStart", ContentField::Nothing),
    ("chat/toolCallDelta", ContentField::Nothing),
    ("chat/error", ContentField::Nothing),
    ("chat/inputRequested", ContentField::Nothing),
    ("chat/inputAnswerChanged", ContentField::Nothing),
    ("chat/inputCompleted", ContentField::Nothing),
    ("terminal/data", ContentField::Nothing),
    ("terminal/input", ContentField::Nothing),
    ("annotations/set", ContentField::Nothing),
    ("annotations/updated", ContentField::Nothing),
    ("annotations/entrySet", ContentField::Nothing),
    // Files are by reference already.
    ("changeset/fileSet", ContentField::Nothing),
    ("changeset/contentChanged", ContentField::Nothing),
    // Lists that can be long, without a reference for any of it.
    ("root/agentsChanged", ContentField::Nothing),
    ("root/configChanged", ContentField::Nothing),
    ("root/terminalsChanged", ContentField::Nothing),
    ("session/chatAdded", ContentField::Nothing),
    ("session/chatUpdated", ContentField::Nothing),
    ("session/chatsReordered", ContentField::Nothing),
    ("session/changesetsChanged", ContentField::Nothing),
    ("session/serverToolsChanged", ContentField::Nothing),
    ("session/activeClientSet", ContentField::Nothing),
    ("session/customizationsChanged", ContentField::Nothing),
    ("session/customizationUpdated", ContentField::Nothing),
    ("session/mcpServerStateChanged", ContentField::Nothing),
    ("session/configChanged", ContentField::Nothing),
    ("session/metaChanged", ContentField::Nothing),
    ("chat/changesetsChanged", ContentField::Nothing),
    ("chat/canvasesChanged", ContentField::Nothing),
    ("chat/backgroundWorkSet", ContentField::Nothing),
    ("chat/queuedMessagesReordered", ContentField::Nothing),
    ("canvas/stateChanged", ContentField::Nothing),
    ("changeset/operationsChanged", ContentField::Nothing),
    ("changeset/filesReviewChanged", ContentField::Nothing),
    ("resourceWatch/changed", ContentField::Nothing),
    // Messages of automations may have attachments; this host has no automations.
    ("automation/createRequested", ContentField::Nothing),
    ("automation/updateRequested", ContentField::Nothing),
    ("automation/set", ContentField::Nothing),
    // Short.
    ("root/activeSessionsChanged", ContentField::Nothing),
    ("session/ready", ContentField::Nothing),
    ("session/creationFailed", ContentField::Nothing),
    ("session/chatRemoved", ContentField::Nothing),
    ("session/defaultChatChanged", ContentField::Nothing),
    ("session/titleChanged", ContentField::Nothing),
    ("session/isReadChanged", ContentField::Nothing),
    ("session/isArchivedChanged", ContentField::Nothing),
    ("session/activityChanged", ContentField::Nothing),
    ("session/activeClientRemoved", ContentField::Nothing),
    ("session/workingDirectorySet", ContentField::Nothing),
    ("session/workingDirectoryRemoved", ContentField::Nothing),
    ("session/workingDirectoryReplaced", ContentField::Nothing),
    ("session/inputNeededRemoved", ContentField::Nothing),
    ("session/customizationToggled", ContentField::Nothing),
    ("session/customizationRemoved", ContentField::Nothing),
    ("session/mcpServerStartRequested", ContentField::Nothing),
    ("session/mcpServerStopRequested", ContentField::Nothing),
    ("session/mcpServerBackgroundRequested", ContentField::Nothing),
    ("chat/toolCallResultConfirmed", ContentField::Nothing),
    ("chat/toolCallAuthRequired", ContentField::Nothing),
    ("chat/toolCallAuthResolved", ContentField::Nothing),
    ("chat/turnComplete", ContentField::Nothing),
    ("chat/turnCancelled", ContentField::Nothing),
    ("chat/turnResume", ContentField::Nothing),
    ("chat/activityChanged", ContentField::Nothing),
    ("chat/backgroundWorkRemoved", ContentField::Nothing),
    ("chat/movableChanged", ContentField::Nothing),
    ("chat/usage", ContentField::Nothing),
    ("chat/workingDirectorySet", ContentField::Nothing),
    ("chat/workingDirectoryRemoved", ContentField::Nothing),
    ("chat/pendingMessageRemoved", ContentField::Nothing),
    ("chat/isReadChanged", ContentField::Nothing),
    ("chat/isArchivedChanged", ContentField::Nothing),
    ("chat/truncated", ContentField::Nothing),
    ("changeset/statusChanged", ContentField::Nothing),
    ("changeset/fileRemoved", ContentField::Nothing),
    ("changeset/operationStatusChanged", ContentField::Nothing),
    ("changeset/cleared", ContentField::Nothing),
    ("annotations/removed", ContentField::Nothing),
    ("annotations/entryRemoved", ContentField::Nothing),
    ("terminal/resized", ContentField::Nothing),
    ("terminal/claimed", ContentField::Nothing),
    ("terminal/titleChanged", ContentField::Nothing),
    ("terminal/cwdChanged", ContentField::Nothing),
    ("terminal/exited", ContentField::Nothing),
    ("terminal/cleared", ContentField::Nothing),
    ("terminal/commandDetectionAvailable", ContentField::Nothing),
    ("terminal/commandExecuted", ContentField::Nothing),
    ("terminal/commandFinished", ContentField::Nothing),
    ("automation/removed", ContentField::Nothing),
    ("automationRun/lifecycleChanged", ContentField::Nothing),
    ("automationRun/sessionSet", ContentField::Nothing),
    ("automationRun/sessionRemoved", ContentField::Nothing),
    ("automationRun/primarySessionChanged", ContentField::Nothing),
    ("automationRun/cancelRequested", ContentField::Nothing),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::gate;

    /// The gate's table does not compile without a row for each variant of the protocol's type.
    #[test]
    fn every_action_of_the_protocol_has_one_row() {
        let known: BTreeSet<&str> = gate::ACTION_RULES.iter().map(|rule| rule.name).collect();
        let ours: BTreeSet<&str> = CONTENT_FIELDS.iter().map(|(name, _)| *name).collect();
        assert_eq!(ours, known);
        assert_eq!(CONTENT_FIELDS.len(), known.len(), "none twice");
        assert_eq!(
            (content_field("chat/draftChanged"), content_field("chat/of-tomorrow")),
            (ContentField::Draft, ContentField::Nothing)
        );
    }
}
