//! MCP messages as Nostr events, plain or in a gift wrap, and back.

use std::sync::Arc;

use breakbulk_proto::{Capacity, Measure, Overhead};
use bytes::Bytes;
use nostr::nips::nip44;
use nostr::{Event, EventBuilder, EventId, JsonUtil, Keys, Kind, PublicKey, Tag, Timestamp};

/// The kind of all ContextVM messages.
pub(crate) const MESSAGE: u16 = 25910;
/// A gift wrap that relays may store (NIP-59).
pub(crate) const WRAP: u16 = 1059;
/// A gift wrap that relays do not store (CEP-19).
pub(crate) const EPHEMERAL_WRAP: u16 = 21059;

/// Tags with which peers tell what they support.
pub(crate) const SUPPORT_PARTS: &str = "support_oversized_transfer";
pub(crate) const SUPPORT_ENCRYPTION: &str = "support_encryption";
pub(crate) const SUPPORT_EPHEMERAL: &str = "support_encryption_ephemeral";

/// What an event takes beside its content: ids, keys, the signature, one `p` and one `e` tag, and the tags of support. About 560.
const AROUND_CONTENT: u64 = 800;
/// The longest text that NIP-44 encrypts.
const MAX_ENCRYPTED: u64 = 65_535;
/// What NIP-44 adds to the padded text: version, nonce, length and authentication code.
const AROUND_ENCRYPTED: u64 = 1 + 32 + 2 + 32;
/// How far the clock of a peer may be behind ours. Older events are replays.
pub(crate) const CLOCK_SKEW: u64 = 600;

/// How a message is sealed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seal {
    /// Not at all: everybody at the relay can read it.
    Plain,
    /// Encrypted to its receiver, in a wrap that relays may store.
    Wrap,
    /// The same, in a wrap that relays do not store.
    EphemeralWrap,
}

impl Seal {
    /// The seal of an event of this kind.
    pub(crate) fn of(kind: Kind) -> Option<Self> {
        match kind.as_u16() {
            MESSAGE => Some(Self::Plain),
            WRAP => Some(Self::Wrap),
            EPHEMERAL_WRAP => Some(Self::EphemeralWrap),
            _ => None,
        }
    }

    /// The number of this seal, to be kept in an atomic.
    pub(crate) const fn number(self) -> u8 {
        match self {
            Self::Plain => 0,
            Self::Wrap => 1,
            Self::EphemeralWrap => 2,
        }
    }

    /// The seal with this number.
    pub(crate) const fn numbered(number: u8) -> Self {
        match number {
            0 => Self::Plain,
            1 => Self::Wrap,
            _ => Self::EphemeralWrap,
        }
    }
}

/// An event that is ready to be published.
#[derive(Debug)]
pub(crate) struct Outgoing {
    /// The id by which the relay knows it.
    pub(crate) id: EventId,
    /// The id by which the peer knows it: that of the inner event, if there is a wrap around it.
    pub(crate) name: EventId,
    /// `["EVENT",…]`.
    pub(crate) frame: Bytes,
    /// Whether relays store it. Some confirm only what they store.
    pub(crate) is_stored: bool,
}

/// The event could not be made: its text is too long to be encrypted.
#[derive(Debug)]
pub(crate) struct TooLong;

impl Outgoing {
    /// Signs a message for `to`, and wraps it if it is to be sealed.
    pub(crate) fn message(
        keys: &Keys,
        to: PublicKey,
        text: &str,
        about: Option<&EventId>,
        supports: &[Tag],
        seal: Seal,
    ) -> Result<Self, TooLong> {
        let tags =
            [Tag::public_key(to)].into_iter().chain(about.copied().map(Tag::event)).chain(supports.iter().cloned());
        let event = EventBuilder::new(Kind::Custom(MESSAGE), text).tags(tags).allow_self_tagging();
        let event = event.sign_with_keys(keys).map_err(|_| TooLong)?;
        let name = event.id;
        let kind = match seal {
            Seal::Plain => return Ok(Self::new(&event, name, false)),
            Seal::Wrap => WRAP,
            Seal::EphemeralWrap => EPHEMERAL_WRAP,
        };
        // A key of its own for each wrap, so that nobody sees who sent it.
        let wrapper = Keys::generate();
        let content =
            nip44::encrypt(wrapper.secret_key(), &to, event.as_json(), nip44::Version::V2).map_err(|_| TooLong)?;
        let wrap = EventBuilder::new(Kind::Custom(kind), content).tag(Tag::public_key(to));
        let wrap = wrap.sign_with_keys(&wrapper).map_err(|_| TooLong)?;
        Ok(Self::new(&wrap, name, seal == Seal::Wrap))
    }

    /// An event for everybody.
    pub(crate) fn public(event: &Event) -> Self {
        Self::new(event, event.id, true)
    }

    fn new(event: &Event, name: EventId, is_stored: bool) -> Self {
        Self { id: event.id, name, frame: Bytes::from(format!(r#"["EVENT",{}]"#, event.as_json())), is_stored }
    }
}

/// A message that arrived, from a sender who has proven to be the sender.
#[derive(Debug)]
pub(crate) struct Incoming {
    pub(crate) from: PublicKey,
    pub(crate) name: EventId,
    /// The event that it refers to.
    pub(crate) about: Option<EventId>,
    pub(crate) supports_parts: bool,
    /// Whether its sender takes wraps that relays do not store. `None` if it carries no tags of support.
    pub(crate) supports_ephemeral: Option<bool>,
    pub(crate) seal: Seal,
    pub(crate) text: Bytes,
}

/// Why an event is no message for us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reject {
    /// It is of another kind, or for somebody else.
    NotForUs,
    /// A signature or an id is wrong.
    Forged,
    /// It cannot be decrypted, or what is inside is no event.
    Unreadable,
    /// It is older than our connection, so it was delivered again.
    Stale,
}

impl Reject {
    /// Its name, for counters and logs.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::NotForUs => "event-not-for-us",
            Self::Forged => "event-forged",
            Self::Unreadable => "event-unreadable",
            Self::Stale => "event-stale",
        }
    }
}

impl Incoming {
    /// Opens an event that a relay delivered. Events that were signed before `since` are refused.
    pub(crate) fn open(keys: &Keys, event: Event, since: Timestamp) -> Result<Self, Reject> {
        let seal = Seal::of(event.kind).ok_or(Reject::NotForUs)?;
        let is_for_us = |event: &Event| event.tags.public_keys().any(|key| *key == keys.public_key());
        // Some relays deliver what was not asked for.
        if !is_for_us(&event) {
            return Err(Reject::NotForUs);
        }
        let message = if seal == Seal::Plain {
            event
        } else {
            let inside =
                nip44::decrypt(keys.secret_key(), &event.pubkey, &event.content).map_err(|_| Reject::Unreadable)?;
            let inside = Event::from_json(inside).map_err(|_| Reject::Unreadable)?;
            if inside.kind != Kind::Custom(MESSAGE) {
                return Err(Reject::NotForUs);
            }
            inside
        };
        // Anybody can make a wrap around an event for somebody else.
        if !is_for_us(&message) {
            return Err(Reject::NotForUs);
        }
        if message.created_at < since {
            return Err(Reject::Stale);
        }
        message.verify().map_err(|_| Reject::Forged)?;
        let has = |name: &str| message.tags.iter().any(|tag| matches!(tag.as_slice(), [only] if only == name));
        let supports_parts = has(SUPPORT_PARTS);
        let supports_ephemeral = has(SUPPORT_EPHEMERAL);
        let tells = supports_parts || supports_ephemeral || has(SUPPORT_ENCRYPTION);
        let about = message.tags.event_ids().next().copied();
        Ok(Self {
            from: message.pubkey,
            name: message.id,
            about,
            supports_parts,
            supports_ephemeral: tells.then_some(supports_ephemeral),
            seal,
            text: Bytes::from(message.content),
        })
    }
}

/// How long a text may be so that its event takes at most `cap` bytes on the wire. `is_sealed` tells whether it will be encrypted.
pub(crate) fn capacity(cap: u64, is_sealed: impl Fn() -> bool + Send + Sync + 'static) -> Capacity {
    let overhead = Overhead::new(move |measure| added(measure, is_sealed()));
    Capacity { cap, overhead }
}

fn added(Measure { bytes, escaped }: Measure, is_sealed: bool) -> u64 {
    let event = escaped.saturating_add(AROUND_CONTENT);
    if !is_sealed {
        return event.saturating_sub(bytes);
    }
    if event > MAX_ENCRYPTED {
        return u64::MAX / 2;
    }
    let encrypted = padded(event).saturating_add(AROUND_ENCRYPTED);
    let base64 = encrypted.div_ceil(3).saturating_mul(4);
    base64.saturating_add(AROUND_CONTENT).saturating_sub(bytes)
}

/// The length to which NIP-44 pads a text.
fn padded(len: u64) -> u64 {
    if len <= 32 {
        return 32;
    }
    let power = len.next_power_of_two();
    let chunk = if power <= 256 { 32 } else { power / 8 };
    len.div_ceil(chunk).saturating_mul(chunk)
}

/// An event id as text, for the metadata of frames.
pub(crate) fn hex(id: &EventId) -> Arc<str> {
    id.to_hex().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use breakbulk_proto::json;

    fn tags() -> Vec<Tag> {
        [SUPPORT_ENCRYPTION, SUPPORT_EPHEMERAL, SUPPORT_PARTS]
            .map(|name| Tag::custom(nostr::TagKind::Custom(name.into()), Vec::<String>::new()))
            .into()
    }

    fn opened(keys: &Keys, out: &Outgoing) -> Result<Incoming, Reject> {
        let (_, event): (String, Event) = serde_json::from_slice(&out.frame).unwrap();
        Incoming::open(keys, event, Timestamp::from(0))
    }

    #[test]
    fn a_message_arrives_with_its_sender_its_reference_and_what_is_supported_under_every_seal() {
        let (ours, theirs) = (Keys::generate(), Keys::generate());
        let about = EventId::from_byte_array([7; 32]);
        for seal in [Seal::Plain, Seal::Wrap, Seal::EphemeralWrap] {
            let text = "{\"text\":\"日本語 🎉 \\n\"}";
            let out = Outgoing::message(&ours, theirs.public_key(), text, Some(&about), &tags(), seal).unwrap();
            let came = opened(&theirs, &out).unwrap();
            assert_eq!((came.from, came.name, came.about), (ours.public_key(), out.name, Some(about)));
            assert_eq!((came.supports_parts, came.supports_ephemeral, came.seal), (true, Some(true), seal));
            assert_eq!(came.text, text);
            assert_eq!(out.id == out.name, seal == Seal::Plain);
        }
    }

    #[test]
    fn what_is_forged_stale_unreadable_or_for_another_is_refused_by_name() {
        let (ours, theirs, third) = (Keys::generate(), Keys::generate(), Keys::generate());
        for seal in [Seal::Plain, Seal::Wrap] {
            let out = Outgoing::message(&ours, theirs.public_key(), "{}", None, &[], seal).unwrap();
            let (_, event): (String, Event) = serde_json::from_slice(&out.frame).unwrap();
            assert_eq!(opened(&third, &out).unwrap_err(), Reject::NotForUs);
            let later = Timestamp::now() + 60;
            assert_eq!(Incoming::open(&theirs, event.clone(), later).unwrap_err(), Reject::Stale);
            let mut altered = event;
            if seal == Seal::Plain {
                altered.content.push(' ');
                assert_eq!(Incoming::open(&theirs, altered, Timestamp::from(0)).unwrap_err(), Reject::Forged);
            }
        }
        // A wrap around an event that somebody else signed for somebody else.
        let inner = Outgoing::message(&ours, third.public_key(), "{}", None, &[], Seal::Plain).unwrap();
        let (_, inner): (String, Event) = serde_json::from_slice(&inner.frame).unwrap();
        let wrapper = Keys::generate();
        let version = nip44::Version::V2;
        let content = nip44::encrypt(wrapper.secret_key(), &theirs.public_key(), inner.as_json(), version).unwrap();
        let wrap = EventBuilder::new(Kind::Custom(WRAP), content).tag(Tag::public_key(theirs.public_key()));
        let wrap = wrap.sign_with_keys(&wrapper).unwrap();
        assert_eq!(Incoming::open(&theirs, wrap, Timestamp::from(0)).unwrap_err(), Reject::NotForUs);
    }

    #[test]
    fn no_event_is_longer_than_its_measure_says_and_none_wastes_much() {
        let (ours, theirs) = (Keys::generate(), Keys::generate());
        let about = EventId::from_byte_array([7; 32]);
        for sealed in [false, true] {
            for unit in ["a", "\\", "日", "\"🎉\n"] {
                for count in [1, 10, 100, 1000, 5000, 9000] {
                    let text = unit.repeat(count);
                    let measure = Measure { bytes: text.len() as u64, escaped: json::escaped_len(text.as_bytes()) };
                    let seal = if sealed { Seal::EphemeralWrap } else { Seal::Plain };
                    let foreseen = measure.bytes + added(measure, sealed);
                    let out = Outgoing::message(&ours, theirs.public_key(), &text, Some(&about), &tags(), seal);
                    let Ok(out) = out else {
                        assert!(
                            foreseen > 1 << 60,
                            "{unit:?} {count} is too long to be encrypted, which was not foreseen"
                        );
                        continue;
                    };
                    let real = out.frame.len() as u64;
                    assert!(real <= foreseen, "{sealed} {unit:?} {count}: {real} > {foreseen}");
                    assert!(foreseen - real <= 1500 + foreseen / 6, "{sealed} {unit:?} {count}: {foreseen} for {real}");
                }
            }
        }
        assert!(!capacity(1 << 20, || true).fits(Measure { bytes: 65_000, escaped: 65_000 }), "NIP-44 takes no more");
        assert!(capacity(1 << 20, || false).fits(Measure { bytes: 65_000, escaped: 65_000 }));
    }

    #[test]
    fn padding_is_that_of_nip_44() {
        let cases = [
            (16, 32),
            (33, 64),
            (37, 64),
            (100, 128),
            (111, 128),
            (200, 224),
            (320, 320),
            (383, 384),
            (400, 448),
            (1020, 1024),
            (65_515, 65_536),
        ];
        cases.iter().for_each(|(len, want)| assert_eq!(padded(*len), *want, "{len}"));
    }
}
