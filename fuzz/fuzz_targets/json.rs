//! The JSON check against serde_json's, however the text is cut, and the spans it finds against serde_json's tree.
#![no_main]

use breakbulk_fuzz::{cut, text_and_cuts};
use breakbulk_proto::json::{Fault, JsonError, Path, Paths, Scanner, Utf8};
use libfuzzer_sys::fuzz_target;
use serde::de::IgnoredAny;
use serde_json::Value;

/// Each path's prefixes come too, so that a duplicate on the way can be told.
static PATHS: [Path; 6] =
    [&["id"], &["params"], &["params", "a"], &["params", "a", "b"], &["params", "a", "b", "c"], &["result"]];

/// As deep as serde_json goes.
const SERDE_DEPTH: u32 = 127;

fuzz_target!(|data: &[u8]| {
    let (text, cuts) = text_and_cuts(data);
    check_utf8(text, cuts);
    let mut scanner = Scanner::with_max_depth(Paths::new(&PATHS), SERDE_DEPTH);
    let verdict = cut(text, cuts).try_for_each(|piece| scanner.feed(piece));
    let verdict = verdict.and_then(|()| scanner.finish());
    let theirs = serde_json::from_slice::<IgnoredAny>(text);
    match verdict {
        Ok(paths) => {
            assert!(theirs.is_ok(), "we accept what serde_json refuses: {theirs:?}");
            if let Ok(tree) = serde_json::from_slice::<Value>(text) {
                check_paths(text, &paths, &tree);
            }
        }
        Err(JsonError { fault: Fault::TooDeep, .. }) => {}
        Err(error) => assert!(theirs.is_err(), "we refuse what serde_json accepts: {error}"),
    }
});

fn check_utf8(text: &[u8], cuts: &[u8]) {
    let mut utf8 = Utf8::default();
    let verdict = cut(text, cuts).try_for_each(|piece| utf8.feed(piece)).and_then(|()| utf8.finish());
    match (verdict, std::str::from_utf8(text)) {
        (Ok(()), Ok(_)) => {}
        (Err(JsonError { fault: Fault::Utf8, offset }), Err(error)) => assert_eq!(offset, error.valid_up_to() as u64),
        (ours, theirs) => panic!("{ours:?} where std says {theirs:?}"),
    }
}

fn check_paths(text: &[u8], paths: &Paths<6>, tree: &Value) {
    for (i, path) in PATHS.iter().enumerate() {
        let twice = PATHS.iter().enumerate().any(|(j, prefix)| path.starts_with(prefix) && paths.repeated(j));
        if twice {
            continue;
        }
        let value = path.iter().try_fold(tree, |value, key| value.as_object()?.get(*key));
        let found = paths.get(i).map(|found| &text[found.span.start as usize..found.span.end as usize]);
        let found = found.map(|raw| serde_json::from_slice::<Value>(raw).expect("a span is a value"));
        assert_eq!(found.as_ref(), value, "at {path:?}");
    }
}
