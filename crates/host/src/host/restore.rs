//! Restores content that a client sends back by reference: it is logged whole, because what the reference names may be
//! removed later.

use ahp_types::actions::StateAction;
use ahp_types::errors::ahp_error_codes::NOT_FOUND;
use ahp_types::state::{Message, MessageAttachment, MessageEmbeddedResourceAttachment};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use breakbulk_proto::MESSAGE_TOO_LARGE;

use super::services::Services;
use crate::error::MethodError;
use crate::state::{StateError, by_reference};

/// The most bytes that are restored in one message. References are short, and many may name the same large content.
const MAX_RESTORED_BYTES: usize = 64 << 20;

/// The action with the attachments of its message restored; `None` if there is nothing to restore.
pub(super) async fn action(services: &Services, action: &StateAction) -> Result<Option<StateAction>, MethodError> {
    let message_of_action = match action {
        StateAction::ChatTurnStarted(action) => Some(&action.message),
        StateAction::ChatPendingMessageSet(action) => Some(&action.message),
        StateAction::ChatDraftChanged(action) => action.draft.as_ref(),
        StateAction::ChatToolCallConfirmed(action) => action.user_suggestion.as_ref(),
        _ => None,
    };
    if !message_of_action.is_some_and(has_references) {
        return Ok(None);
    }
    let mut action = action.clone();
    let message_of_action = match &mut action {
        StateAction::ChatTurnStarted(action) => Some(&mut action.message),
        StateAction::ChatPendingMessageSet(action) => Some(&mut action.message),
        StateAction::ChatDraftChanged(action) => action.draft.as_mut(),
        StateAction::ChatToolCallConfirmed(action) => action.user_suggestion.as_mut(),
        _ => None,
    };
    if let Some(message_of_action) = message_of_action {
        message(services, message_of_action).await?;
    }
    Ok(Some(action))
}

/// Whether a message has an attachment that is a reference of this host.
fn has_references(message: &Message) -> bool {
    let is_reference = |attachment: &MessageAttachment| match attachment {
        MessageAttachment::Resource(by) => by.uri.starts_with(by_reference::SCHEME),
        _ => false,
    };
    message.attachments.iter().flatten().any(is_reference)
}

/// Restores the attachments of a message.
pub(super) async fn message(services: &Services, message: &mut Message) -> Result<(), MethodError> {
    let mut restored = 0_usize;
    for attachment in message.attachments.iter_mut().flatten() {
        let MessageAttachment::Resource(by) = attachment else { continue };
        if !by.uri.starts_with(by_reference::SCHEME) {
            continue;
        }
        let content = services.log_writer.state().content(&by.uri).await.map_err(|error| match error {
            StateError::NotFound => {
                let uri: String = by.uri.chars().take(256).collect();
                MethodError::new(NOT_FOUND, format!("the content of the attachment {uri:?} is not there any more"))
            }
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
