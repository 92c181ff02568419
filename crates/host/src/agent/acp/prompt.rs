//! What a user says, as content blocks of ACP.

use agent_client_protocol_schema::v1::{
    ContentBlock, EmbeddedResource, EmbeddedResourceResource, ImageContent, ResourceLink, TextContent,
    TextResourceContents,
};
use ahp_types::state::{Message, MessageAttachment};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::agent::is_command_mark;

/// The blocks of a message: what the agent is told before it, its attachments, and its text.
pub(super) fn blocks(message: Message, preamble: Option<String>) -> Vec<ContentBlock> {
    let mut blocks: Vec<ContentBlock> = preamble.map(text).into_iter().collect();
    blocks.extend(message.attachments.into_iter().flatten().filter_map(attached));
    if !message.text.is_empty() || blocks.is_empty() {
        blocks.push(text(message.text));
    }
    blocks
}

fn text(text: String) -> ContentBlock {
    ContentBlock::Text(TextContent::new(text))
}

fn attached(attachment: MessageAttachment) -> Option<ContentBlock> {
    if is_command_mark(&attachment) {
        return None;
    }
    Some(match attachment {
        MessageAttachment::EmbeddedResource(attached) => {
            let mime = attached.content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
            if mime.starts_with("image/") {
                return Some(ContentBlock::Image(ImageContent::new(attached.data, mime)));
            }
            let decoded = STANDARD.decode(&attached.data).ok().and_then(|bytes| String::from_utf8(bytes).ok());
            match decoded {
                Some(contents) => resource(attached.label, contents, Some(mime)),
                None => text(format!("(The user has attached {:?} of type {mime}, which is no text.)", attached.label)),
            }
        }
        MessageAttachment::Simple(attached) => match attached.model_representation {
            Some(contents) => resource(attached.label, contents, None),
            None => text(format!("(The user has attached {:?}.)", attached.label)),
        },
        MessageAttachment::Resource(attached) => {
            ContentBlock::ResourceLink(ResourceLink::new(attached.label, attached.uri))
        }
        MessageAttachment::Annotations(attached) => text(format!("(The user refers to {:?}.)", attached.label)),
        MessageAttachment::Chat(attached) => text(format!("(The user refers to the chat {:?}.)", attached.label)),
        MessageAttachment::Unknown(_) => return None,
    })
}

/// A text that came with the message. It has no place of its own, so its name is its address.
fn resource(label: String, contents: String, mime: Option<String>) -> ContentBlock {
    let contents = TextResourceContents::new(contents, format!("attachment:{label}")).mime_type(mime);
    ContentBlock::Resource(EmbeddedResource::new(EmbeddedResourceResource::TextResourceContents(contents)))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may fail by panicking")]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn of(attachments: Value, preamble: Option<&str>) -> Value {
        let message = json!({"text": "Look", "origin": {"kind": "user"}, "attachments": attachments});
        let blocks = blocks(serde_json::from_value(message).unwrap(), preamble.map(str::to_owned));
        serde_json::to_value(blocks).unwrap()
    }

    #[test]
    fn attachments_come_before_what_is_said_about_them() {
        let image = json!({"type": "embeddedResource", "label": "a.png", "contentType": "image/png", "data": "AAAA"});
        let note = json!({"type": "embeddedResource", "label": "n", "contentType": "text/plain", "data": "aGk="});
        let file = json!({"type": "resource", "label": "f", "uri": "file:///tmp/a"});
        let blocks = of(json!([image, note, file]), Some("Before."));
        let kinds: Vec<_> = blocks.as_array().unwrap().iter().map(|block| block["type"].as_str().unwrap()).collect();
        assert_eq!(kinds, ["text", "image", "resource", "resource_link", "text"]);
        assert_eq!((&blocks[2]["resource"]["text"], &blocks[3]["uri"]), (&json!("hi"), &json!("file:///tmp/a")));
    }

    #[test]
    fn a_command_that_was_completed_stays_all_that_the_prompt_says() {
        let mark = json!({"type": "simple", "label": "/init", "_meta": {"breakbulk": {"command": "init"}}});
        assert_eq!(of(json!([mark]), None), json!([{"type": "text", "text": "Look"}]));
    }

    #[test]
    fn a_plain_text_stays_one_block() {
        assert_eq!(of(Value::Null, None), json!([{"type": "text", "text": "Look"}]));
    }
}
