//! What a client sends back by a reference of ours is logged whole: the place that it names may be gone tomorrow.

use ahp_types::actions::StateAction;
use ahp_types::errors::ahp_error_codes::NOT_FOUND;
use ahp_types::state::{Message, MessageAttachment, MessageEmbeddedResourceAttachment};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use breakbulk_proto::MESSAGE_TOO_LARGE;

use super::front::Rooms;
use crate::error::MethodError;
use crate::state::{StateError, by_reference};

/// What one message may bring back in all. Each reference is short, and may name the same large content again.
const MAX_RESTORED_BYTES: usize = 64 << 20;

/// The action with the attachments restored of the message that it brings; `None` if there is nothing to restore.
pub(super) async fn action(rooms: &Rooms, action: &StateAction) -> Result<Option<StateAction>, MethodError> {
    let said = match action {
        StateAction::ChatTurnStarted(action) => Some(&action.message),
        StateAction::ChatPendingMessageSet(action) => Some(&action.message),
        StateAction::ChatDraftChanged(action) => action.draft.as_ref(),
        StateAction::ChatToolCallConfirmed(action) => action.user_suggestion.as_ref(),
        _ => None,
    };
    if !said.is_some_and(has_references) {
        return Ok(None);
    }
    let mut action = action.clone();
    let said = match &mut action {
        StateAction::ChatTurnStarted(action) => Some(&mut action.message),
        StateAction::ChatPendingMessageSet(action) => Some(&mut action.message),
        StateAction::ChatDraftChanged(action) => action.draft.as_mut(),
        StateAction::ChatToolCallConfirmed(action) => action.user_suggestion.as_mut(),
        _ => None,
    };
    if let Some(said) = said {
        message(rooms, said).await?;
    }
    Ok(Some(action))
}

/// Whether a message has an attachment by a reference of ours.
fn has_references(message: &Message) -> bool {
    let is_one = |attachment: &MessageAttachment| match attachment {
        MessageAttachment::Resource(by) => by.uri.starts_with(by_reference::SCHEME),
        _ => false,
    };
    message.attachments.iter().flatten().any(is_one)
}

/// Restores the attachments of a message.
pub(super) async fn message(rooms: &Rooms, message: &mut Message) -> Result<(), MethodError> {
    let mut restored = 0_usize;
    for attachment in message.attachments.iter_mut().flatten() {
        let MessageAttachment::Resource(by) = attachment else { continue };
        if !by.uri.starts_with(by_reference::SCHEME) {
            continue;
        }
        let content = rooms.desk.state().content(&by.uri).await.map_err(|error| match error {
            StateError::NotFound => MethodError::new(NOT_FOUND, "the content of an attachment is not there any more"),
            error => error.into(),
        })?;
        restored = restored.saturating_add(content.data.len());
        if restored > MAX_RESTORED_BYTES {
            let why = format!("attachments by reference are over {MAX_RESTORED_BYTES} bytes together");
            return Err(MethodError::new(MESSAGE_TOO_LARGE, why));
        }
        let data = if content.is_base64 { content.data } else { STANDARD.encode(content.data) };
        *attachment = MessageAttachment::EmbeddedResource(MessageEmbeddedResourceAttachment {
            label: std::mem::take(&mut by.label),
            range: by.range.take(),
            display_kind: by.display_kind.take(),
            meta: by.meta.take(),
            data,
            content_type: content.content_type,
            selection: by.selection.take(),
        });
    }
    Ok(())
}
