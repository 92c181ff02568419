//! Each rule that a peer can break: it is named, the peer is told, and the connection lives.

use serde_json::{Value, json};

use super::{Endpoint, accept, breaks, chunk, end, frame, hex, known, request, start, transfer};
use crate::cep22::Config;
use crate::error::{Differs, Over, Violation};

#[test]
fn each_broken_rule_is_named_aborted_and_survived() {
    let t = json!("t");
    let (whole, good) = transfer(&t, 3);
    let with = |at: usize, text: String| {
        let mut frames = good[..=at].to_vec();
        frames[at] = text;
        frames
    };
    let digest = format!("sha256:{}", hex(&whole));
    let declare = |mode: Value, digest: Value, bytes: Value, chunks: Value| {
        let cvm =
            json!({"frameType":"start","completionMode":mode,"digest":digest,"totalBytes":bytes,"totalChunks":chunks});
        vec![frame(&t, 1, &cvm)]
    };
    let n = json!(whole.len());
    let cases = [
        (declare(json!("stream"), json!(digest), n.clone(), json!(3)), Violation::CompletionModeUnknown),
        (declare(json!(null), json!(digest), n.clone(), json!(3)), Violation::CompletionModeUnknown),
        (declare(json!("render"), json!(null), n.clone(), json!(3)), Violation::DigestInvalid),
        (declare(json!("render"), json!(digest.replace("256", "512")), n.clone(), json!(3)), Violation::DigestInvalid),
        (declare(json!("render"), json!(digest[..70]), n.clone(), json!(3)), Violation::DigestInvalid),
        (declare(json!("render"), json!(digest), json!("9"), json!(3)), Violation::TotalsInvalid),
        (declare(json!("render"), json!(digest), json!(0), json!(3)), Violation::TotalsInvalid),
        (declare(json!("render"), json!(digest), n.clone(), json!(1.5)), Violation::TotalsInvalid),
        (declare(json!("render"), json!(digest), n.clone(), json!(-1)), Violation::TotalsInvalid),
        (
            declare(json!("render"), json!(digest), json!(u64::MAX), json!(3)),
            Violation::MessageTooLarge(Over { size: u64::MAX, limit: 32 << 20 }),
        ),
        (
            declare(json!("render"), json!(digest), json!(1e300), json!(3)),
            Violation::MessageTooLarge(Over { size: u64::MAX, limit: 32 << 20 }),
        ),
        (
            declare(json!("render"), json!(digest), n.clone(), json!(10_001)),
            Violation::TooManyChunks(Over { size: 10_001, limit: 10_000 }),
        ),
        (with(1, start(&t, "another message", 3)), Violation::TransferInFlight),
        (with(1, chunk(&t, 1, "x")), Violation::ProgressNotIncreasing { got: 1, after: 1 }),
        (with(2, frame(&t, 3, &json!({"frameType":"chunk"}))), Violation::DataMissing),
        (with(2, frame(&t, 3, &json!({"frameType":"chunk","data":1}))), Violation::DataMissing),
        (with(2, chunk(&t, 3, "x").replace("\"progress\":3", "\"progress\":3.5")), Violation::ProgressInvalid),
        (with(2, chunk(&t, 3, "x").replace("\"progress\":3", "\"progress\":-3")), Violation::ProgressInvalid),
        (
            with(2, chunk(&t, 3, "x").replace("\"progress\":3", "\"progress\":3,\"progress\":4")),
            Violation::DuplicateKey("progress"),
        ),
        (with(2, chunk(&t, 3, "@").replace('@', "\\ud800")), Violation::MessageNotUtf8),
        (
            with(3, chunk(&t, 4, &"x".repeat(whole.len()))),
            Violation::SizeMismatch(Differs { got: 0, want: whole.len() as u64 }),
        ),
        (with(2, end(&t, 5)), Violation::ChunksMissing(Differs { got: 1, want: 3 })),
        (with(4, end(&t, 4)), Violation::ProgressNotIncreasing { got: 4, after: 4 }),
    ];
    for (frames, want) in cases {
        let got = breaks(Config::default(), &frames);
        match (&got, &want) {
            (Violation::SizeMismatch(_), Violation::SizeMismatch(_)) => {}
            _ => assert_eq!(got, want),
        }
    }
}

#[test]
fn more_chunks_than_declared_fail_even_when_they_are_empty() {
    let t = json!("t");
    let whole = request(1, &t, "");
    let frames = [start(&t, &whole, 1), chunk(&t, 2, &whole), chunk(&t, 3, "")];
    assert_eq!(breaks(known(), &frames), Violation::TooManyChunks(Over { size: 2, limit: 1 }));
}

#[test]
fn nothing_surfaces_that_is_not_what_was_declared() {
    let t = json!("t");
    let whole = request(1, &t, "abc");
    let altered = whole.replace("abc", "abd");
    let frames = [start(&t, &whole, 1), chunk(&t, 2, &altered), end(&t, 3)];
    assert_eq!(breaks(known(), &frames), Violation::DigestMismatch);
    let frames = [start(&t, &whole, 1), chunk(&t, 2, &whole[..9]), end(&t, 3)];
    assert_eq!(breaks(known(), &frames), Violation::SizeMismatch(Differs { got: 9, want: whole.len() as u64 }));
    for (text, name) in [
        ("{\"jsonrpc\":\"2.0\",", "message-not-json"),
        ("[]", "message-not-json-rpc"),
        ("{\"jsonrpc\":\"1.0\",\"method\":\"m\"}", "message-not-json-rpc"),
        ("{\"jsonrpc\":\"2.0\",\"method\":\"m\",\"method\":\"n\"}", "duplicate-key"),
        (&accept(&t), "nested-segment"),
    ] {
        let frames = [start(&t, text, 1), chunk(&t, 2, text), end(&t, 3)];
        assert_eq!(breaks(known(), &frames).name(), name, "{text}");
    }
    let frames = [start(&t, "}}", 1), chunk(&t, 2, "}}")];
    assert_eq!(breaks(known(), &frames).name(), "message-not-json", "at once");
}

#[test]
fn a_left_out_completion_mode_means_render() {
    let (whole, mut frames) = transfer(&json!("t"), 2);
    frames[0] = frames[0].replace("\"completionMode\":\"render\",", "");
    assert!(!frames[0].contains("render"));
    let mut end = Endpoint::new(known(), 9999);
    frames.iter().for_each(|text| end.take(text.clone()));
    assert_eq!(end.messages(), [whole]);
}
