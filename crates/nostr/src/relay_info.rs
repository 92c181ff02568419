//! What a relay says about itself (NIP-11): how long an event may be.

use breakbulk::{Address, Dialer};
use serde::Deserialize;

/// The longest document that is read.
const MAX_BYTES: usize = 256 << 10;
/// The shortest limit that is believed. A relay that takes less could not carry the keys and signatures of an event.
const LEAST: u64 = 2048;

#[derive(Deserialize)]
struct Document {
    #[serde(default)]
    limitation: Limitation,
}

#[derive(Deserialize, Default)]
struct Limitation {
    max_message_length: Option<u64>,
    max_content_length: Option<u64>,
}

/// The longest event that the relay takes, if it says so.
pub(crate) async fn limits(dialer: &Dialer, address: &Address) -> Option<u64> {
    let document = dialer.fetch(address, "application/nostr+json", MAX_BYTES).await.ok()??;
    limit(&document)
}

fn limit(document: &[u8]) -> Option<u64> {
    let Limitation { max_message_length, max_content_length } =
        serde_json::from_slice::<Document>(document).ok()?.limitation;
    // The content is only a part of an event, so this errs on the safe side.
    let limits = [max_message_length, max_content_length].into_iter().flatten();
    limits.filter(|limit| *limit >= LEAST).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shorter_limit_counts_and_an_unbelievable_one_does_not() {
        let of = |limitation: &str| limit(format!(r#"{{"name":"r","limitation":{limitation}}}"#).as_bytes());
        assert_eq!(of(r#"{"max_message_length":65536,"max_content_length":8196}"#), Some(8196));
        assert_eq!(of(r#"{"max_message_length":131072}"#), Some(131_072));
        assert_eq!(of(r#"{"max_message_length":0}"#), None);
        assert_eq!(of("{}"), None);
        assert_eq!((limit(b"{}"), limit(b"<html>")), (None, None));
    }
}
