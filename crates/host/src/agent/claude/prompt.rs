//! What a user says, as the program takes it: text and images.

use ahp_types::state::{Message, MessageAttachment};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use breakbulk_lifecycle::claude::Part;

use crate::agent::is_command_mark;
use crate::files::path_of;

/// The images that the program takes.
const IMAGES: [&str; 4] = ["image/png", "image/jpeg", "image/gif", "image/webp"];

/// The parts of a message: what the program is told before it, its attachments, and its text.
pub(super) fn parts(message: Message, preamble: Option<String>) -> Vec<Part> {
    let mut parts: Vec<Part> = preamble.map(Part::Text).into_iter().collect();
    parts.extend(message.attachments.into_iter().flatten().filter_map(attached));
    // A command of the program must be all that the prompt says.
    if !message.text.is_empty() || parts.is_empty() {
        parts.push(Part::Text(message.text));
    }
    parts
}

fn attached(attachment: MessageAttachment) -> Option<Part> {
    if is_command_mark(&attachment) {
        return None;
    }
    let text = match attachment {
        MessageAttachment::EmbeddedResource(attached) => {
            let mime = attached.content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
            if IMAGES.contains(&&*mime) {
                return Some(Part::Image { base64: attached.data, mime });
            }
            match text_of(&mime, &attached.data) {
                Some(text) => format!("<attachment name={:?}>\n{text}\n</attachment>", attached.label),
                None => format!("(The user has attached {:?} of type {mime}, which cannot be shown.)", attached.label),
            }
        }
        MessageAttachment::Simple(attached) => match attached.model_representation {
            Some(text) => format!("<attachment name={:?}>\n{text}\n</attachment>", attached.label),
            None => format!("(The user has attached {:?}.)", attached.label),
        },
        MessageAttachment::Resource(attached) => {
            let place = path_of(&attached.uri).map_or(attached.uri, |path| path.display().to_string());
            format!("(The user has attached {:?}: {place})", attached.label)
        }
        MessageAttachment::Annotations(attached) => format!("(The user refers to {:?}.)", attached.label),
        MessageAttachment::Chat(attached) => format!("(The user refers to the chat {:?}.)", attached.label),
        MessageAttachment::Unknown(_) => return None,
    };
    Some(Part::Text(text))
}

/// The text of a resource that is one.
fn text_of(mime: &str, base64: &str) -> Option<String> {
    let is_text = mime.starts_with("text/")
        || mime.ends_with("+json")
        || mime.ends_with("+xml")
        || matches!(mime, "application/json" | "application/xml" | "application/yaml" | "application/javascript");
    if !is_text {
        return None;
    }
    String::from_utf8(STANDARD.decode(base64).ok()?).ok()
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may fail by panicking")]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(attachments: serde_json::Value, preamble: Option<&str>) -> Vec<Part> {
        let message = json!({"text": "Look", "origin": {"kind": "user"}, "attachments": attachments});
        parts(serde_json::from_value(message).unwrap(), preamble.map(str::to_owned))
    }

    fn text(text: &str) -> Part {
        Part::Text(text.to_owned())
    }

    #[test]
    fn images_and_texts_come_before_what_is_said_about_them() {
        let image = json!({"type": "embeddedResource", "label": "a.png", "contentType": "image/png", "data": "AAAA"});
        let note = json!({"type": "embeddedResource", "label": "n", "contentType": "text/plain; charset=utf-8", "data": "aGk="});
        let file = json!({"type": "resource", "label": "f", "uri": "file:///tmp/a%20b"});
        assert_eq!(
            of(json!([image, note, file]), Some("Before.")),
            [
                text("Before."),
                Part::Image { base64: "AAAA".to_owned(), mime: "image/png".to_owned() },
                text("<attachment name=\"n\">\nhi\n</attachment>"),
                text("(The user has attached \"f\": /tmp/a b)"),
                text("Look"),
            ]
        );
    }

    #[test]
    fn what_the_program_cannot_take_is_named() {
        let film = json!({"type": "embeddedResource", "label": "a.mp4", "contentType": "video/mp4", "data": "AAAA"});
        let broken = json!({"type": "embeddedResource", "label": "b", "contentType": "text/plain", "data": "?"});
        assert_eq!(
            of(json!([film, broken]), None),
            [
                text("(The user has attached \"a.mp4\" of type video/mp4, which cannot be shown.)"),
                text("(The user has attached \"b\" of type text/plain, which cannot be shown.)"),
                text("Look"),
            ]
        );
    }

    #[test]
    fn a_command_that_was_completed_stays_all_that_the_prompt_says() {
        let mark = json!({"type": "simple", "label": "/init", "_meta": {"breakbulk": {"command": "init"}}});
        assert_eq!(of(json!([mark]), None), [text("Look")]);
    }

    #[test]
    fn a_plain_text_stays_one_part() {
        assert_eq!(of(json!(null), None), [text("Look")]);
    }
}
