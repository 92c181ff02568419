//! What a relay says, and what it means when it refuses an event.

use breakbulk_proto::Refusal;
use nostr::{Event, EventId};
use serde_json::value::RawValue;

/// What a relay says.
#[derive(Debug)]
pub(crate) enum RelayMessage {
    /// An event for our subscription.
    Event(Box<Event>),
    /// An event of ours was taken or refused.
    Ok { id: EventId, is_taken: bool, text: String },
    /// All stored events were sent.
    EndOfStored,
    /// The relay ended our subscription.
    Closed(String),
    /// Words for people.
    Notice(String),
    /// We are to prove who we are.
    Auth(String),
    /// Something that we did not ask for.
    Other,
}

impl RelayMessage {
    /// Reads a message; `None` if it is none.
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        let parts: Vec<&RawValue> = serde_json::from_slice(bytes).ok()?;
        let [kind, rest @ ..] = parts.as_slice() else { return None };
        let text = |part: &RawValue| serde_json::from_str::<String>(part.get()).ok();
        Some(match (text(kind)?.as_str(), rest) {
            ("EVENT", [_, event, ..]) => Self::Event(Box::new(serde_json::from_str(event.get()).ok()?)),
            ("OK", [id, is_taken, words @ ..]) => {
                let words = words.first().and_then(|words| text(words)).unwrap_or_default();
                let is_taken = serde_json::from_str(is_taken.get()).ok()?;
                Self::Ok { id: EventId::from_hex(&text(id)?).ok()?, is_taken, text: words }
            }
            ("EOSE", _) => Self::EndOfStored,
            ("CLOSED", [_, words @ ..]) => {
                Self::Closed(words.first().and_then(|words| text(words)).unwrap_or_default())
            }
            ("NOTICE", [words, ..]) => Self::Notice(text(words)?),
            ("AUTH", [challenge, ..]) => Self::Auth(text(challenge)?),
            _ => Self::Other,
        })
    }
}

/// What the text of an `OK` means, when the event was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rejection {
    /// The relay has the event already.
    Duplicate,
    /// We have to prove who we are first.
    AuthRequired,
    /// It is refused.
    Refused(Refusal),
}

/// Reads the reason of a refusal. A reason that is not clearly about size counts as another one.
pub(crate) fn refusal(text: &str) -> Rejection {
    let text = text.to_ascii_lowercase();
    let prefix = text.split(':').next().unwrap_or_default();
    match prefix {
        "duplicate" => Rejection::Duplicate,
        "auth-required" => Rejection::AuthRequired,
        "rate-limited" => Rejection::Refused(Refusal::TooFast),
        _ if is_about_size(&text) => Rejection::Refused(Refusal::TooLarge),
        _ => Rejection::Refused(Refusal::Other),
    }
}

/// Whether the words say that an event is too large. Each phrase is one that a relay in use has.
fn is_about_size(text: &str) -> bool {
    const PHRASES: [&str; 10] = [
        "too large",
        "too big",
        "too long",
        "max size",
        "maximum size",
        "max event size",
        "size limit",
        "max_message_length",
        "max_content_length",
        "exceeds maximum",
    ];
    // "event has too many tags" and "created_at too large" are no sizes.
    !text.contains("created_at") && PHRASES.iter().any(|phrase| text.contains(phrase))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_words_that_are_clearly_about_size_mean_size() {
        for text in
            ["invalid: event too large: 70000", "blocked: event size exceeds maximum", "error: event is too big"]
        {
            assert_eq!(refusal(text), Rejection::Refused(Refusal::TooLarge), "{text}");
        }
        for text in
            ["error: could not connect to the database", "blocked: you are banned", "", "invalid: created_at too large"]
        {
            assert_eq!(refusal(text), Rejection::Refused(Refusal::Other), "{text}");
        }
        assert_eq!(refusal("rate-limited: slow down, too large a burst"), Rejection::Refused(Refusal::TooFast));
        assert_eq!(refusal("duplicate: already have it"), Rejection::Duplicate);
        assert_eq!(refusal("auth-required: sign in"), Rejection::AuthRequired);
    }

    #[test]
    fn what_is_no_message_of_a_relay_is_nothing() {
        for text in ["", "{}", "[]", "[1]", r#"["OK"]"#, r#"["OK","xyz",true,""]"#, r#"["EVENT","s",{}]"#, "[[[["] {
            let read = RelayMessage::read(text.as_bytes());
            assert!(matches!(read, None | Some(RelayMessage::Other)), "{text}: {read:?}");
        }
        assert!(matches!(RelayMessage::read(br#"["EOSE","s"]"#), Some(RelayMessage::EndOfStored)));
        assert!(matches!(RelayMessage::read(br#"["NOTICE","hm"]"#), Some(RelayMessage::Notice(_))));
        assert!(matches!(RelayMessage::read(br#"["CLOSED","s","auth-required: x"]"#), Some(RelayMessage::Closed(_))));
        let ok = format!(r#"["OK","{}",false,"why"]"#, "ab".repeat(32));
        assert!(matches!(RelayMessage::read(ok.as_bytes()), Some(RelayMessage::Ok { is_taken: false, .. })));
    }
}
