//! The scanner and its visitors, against serde_json and at every cut.

use proptest::prelude::*;
use serde::de::IgnoredAny;
use serde_json::Value;

use super::*;

/// The verdict and all that a visitor saw.
type Seen = Result<Vec<Event>, JsonError>;

#[derive(Clone, Debug, PartialEq)]
enum Event {
    Key(usize, Option<Vec<u8>>),
    Begin(usize, ValueKind, u64),
    End(usize, u64),
}

#[derive(Clone, Debug, Default)]
struct Recorder(Vec<Event>);

impl Visit for Recorder {
    fn depth(&self) -> usize {
        3
    }

    fn key(&mut self, depth: usize, key: Option<&[u8]>) {
        // How long a borrowed key is depends on how the text is cut; one that is too long equals nothing either way.
        self.0.push(Event::Key(depth, key.filter(|key| key.len() <= 32).map(<[u8]>::to_vec)));
    }

    fn begin(&mut self, depth: usize, kind: ValueKind, at: u64) {
        self.0.push(Event::Begin(depth, kind, at));
    }

    fn end(&mut self, depth: usize, at: u64) {
        self.0.push(Event::End(depth, at));
    }
}

fn seen<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Seen {
    let mut scanner = Scanner::new(Recorder::default());
    for piece in pieces {
        scanner.feed(piece)?;
    }
    scanner.finish().map(|recorder| recorder.0)
}

fn check(bytes: &[u8]) -> Result<(), JsonError> {
    find([bytes], &[]).map(|_| ())
}

/// Checks `bytes` whole and at every cut, against serde_json's verdict.
fn agrees(bytes: &[u8]) {
    let whole = seen([bytes]);
    let by_serde = serde_json::from_slice::<IgnoredAny>(bytes);
    let text = String::from_utf8_lossy(bytes);
    assert_eq!(whole.is_ok(), by_serde.is_ok(), "{text:?}: {whole:?}, serde says {by_serde:?}");
    assert_eq!(check(bytes), whole.clone().map(|_| ()), "{text:?} without a visitor");
    for cut in 0..=bytes.len() {
        let (a, b) = bytes.split_at(cut);
        assert_eq!(seen([a, b]), whole, "{text:?} cut at {cut}");
    }
    assert_eq!(seen(bytes.chunks(1)), whole, "{text:?} byte by byte");
    assert_eq!(seen(bytes.chunks(3)), whole, "{text:?} by threes");
}

/// JSON in all its spellings: white space, escapes, odd numbers, duplicate keys.
fn json() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        prop::sample::select(vec!["null", "true", "false", "0", "-0", "1", "-12", "3.25", "1e5", "1E-05", "0.0e+0"])
            .prop_map(String::from),
        any::<f64>().prop_map(|float| Value::from(float).to_string()),
        text(),
    ];
    let space = || prop::sample::select(vec!["", "", "", " ", "\n\t", "\r\n          "]);
    leaf.prop_recursive(6, 40, 5, move |inner| {
        prop_oneof![
            (prop::collection::vec((space(), inner.clone(), space()), 0..5), space()).prop_map(|(items, space)| {
                let items: Vec<_> = items.into_iter().map(|(a, item, b)| format!("{a}{item}{b}")).collect();
                if items.is_empty() { format!("[{space}]") } else { format!("[{}]", items.join(",")) }
            }),
            (prop::collection::vec((space(), text(), space(), inner, space()), 0..5), space()).prop_map(
                |(members, space)| {
                    let members: Vec<_> =
                        members.into_iter().map(|(a, key, b, value, c)| format!("{a}{key}{b}:{c}{value}{a}")).collect();
                    if members.is_empty() { format!("{{{space}}}") } else { format!("{{{}}}", members.join(",")) }
                }
            ),
        ]
    })
}

/// A string with its quotes.
fn text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        "[ a-zA-Z0-9:,\\[\\]{}/]{0,20}",
        r#"\\["\\/bfnrt]"#,
        r"\\u[0-9a-fA-F]{4}",
        "[中文é🎈]{0,4}",
        prop::sample::select(vec!["a", "b", "c", r"\u0061", r"\u0062", r"\ud83c\udf88"]).prop_map(String::from),
    ];
    prop::collection::vec(piece, 0..4).prop_map(|pieces| format!("\"{}\"", pieces.concat()))
}

/// Bytes that mean something in JSON.
fn noise() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![
        8 => prop::sample::select(b"{}[],:\"\\ \n0123456789-+.eEtrufalsn/bx\t".to_vec()),
        1 => any::<u8>(),
    ];
    prop::collection::vec(byte, 0..24)
}

#[test]
fn each_short_text_gets_the_verdict_of_serde() {
    let alphabet = b"[]{},:\"\\u0-1.e+ nt";
    let mut texts = vec![vec![]];
    for _ in 0..4 {
        texts =
            texts.iter().flat_map(|text| alphabet.iter().map(|&byte| [text.as_slice(), &[byte]].concat())).collect();
        for text in &texts {
            let ours = check(text);
            assert_eq!(
                ours.is_ok(),
                serde_json::from_slice::<IgnoredAny>(text).is_ok(),
                "{:?}",
                text.escape_ascii().to_string()
            );
        }
    }
}

#[test]
fn literals_and_numbers_are_strict() {
    for text in [
        "nul",
        "nulll",
        "True",
        "tru e",
        "-",
        "01",
        "-01",
        "1.",
        "1.e1",
        "1e",
        "1e+",
        ".1",
        "+1",
        "1..2",
        "0x10",
        "NaN",
        "\"\\x\"",
        "\"\\u12g4\"",
        "\"\\u123\"",
        "\"\t\"",
        "\"",
        "[1,]",
        "{\"a\":1,}",
        "{a:1}",
        "[1 2]",
        "{\"a\" 1}",
        "[}",
        "{]",
        "[1}",
        "{\"a\":1]",
        "",
        " ",
        "]",
        "[[]",
        "\u{feff}1",
        "'a'",
        "{\"a\"}",
        "{\"a\":}",
        "{,}",
        "[,]",
        "{1:2}",
        "1 x",
        "{}}",
    ] {
        agrees(text.as_bytes());
        assert!(check(text.as_bytes()).is_err(), "{text:?}");
    }
}

fn unfinished(offset: u64) -> Result<(), JsonError> {
    Err(JsonError { fault: Fault::Unfinished, offset })
}

#[test]
fn a_fault_is_named_with_its_offset() {
    assert_eq!(check(b"[1,x]"), Err(JsonError { fault: Fault::Syntax, offset: 3 }));
    assert_eq!(check(b"{} {}"), Err(JsonError { fault: Fault::SecondValue, offset: 3 }));
    assert_eq!(check(b"1 2"), Err(JsonError { fault: Fault::SecondValue, offset: 2 }));
    assert_eq!(check(b"{}}"), Err(JsonError { fault: Fault::Syntax, offset: 2 }));
    assert_eq!(check(b"\"ab\n\""), Err(JsonError { fault: Fault::Syntax, offset: 3 }));
    assert_eq!(check(b"tru"), unfinished(3));
    assert_eq!(check(b"1e"), unfinished(2));
    assert_eq!(check(b" \n"), unfinished(2));
}

#[test]
fn an_error_stays() {
    let mut scanner = Scanner::new(());
    assert_eq!(scanner.feed(b"[1"), Ok(()));
    assert_eq!(scanner.offset(), 2);
    assert_eq!(scanner.feed(b" x"), Err(JsonError { fault: Fault::Syntax, offset: 3 }));
    assert_eq!(scanner.feed(b"]"), Err(JsonError { fault: Fault::Syntax, offset: 3 }));
    assert_eq!(scanner.offset(), 3);
    assert_eq!(scanner.finish().err(), Some(JsonError { fault: Fault::Syntax, offset: 3 }));
}

#[test]
fn the_limit_on_depth_is_legal_and_one_more_is_not() {
    let check = |text: &str, limit| {
        let mut scanner = Scanner::with_max_depth((), limit);
        scanner.feed(text.as_bytes()).and_then(|()| scanner.finish())
    };
    for limit in [1, 2, 100, 127, 128, 129, 256, 1000, 10_000] {
        for (open, close) in [("[", "]"), ("{\"a\":", "}"), ("[{\"a\":", "}]")] {
            let each = open.matches(['[', '{']).count();
            let times = limit as usize / each;
            let nested = format!("{}1{}", open.repeat(times), close.repeat(times));
            assert_eq!(check(&nested, limit), Ok(()), "{limit} of {open}");
            let most = u32::try_from(times * each).unwrap();
            let deep = format!("{}[]{}", open.repeat(times), close.repeat(times));
            let refused = JsonError { fault: Fault::TooDeep, offset: u64::try_from(open.len() * times).unwrap() };
            assert_eq!(check(&deep, most), Err(refused), "{limit} of {open}");
        }
    }
    assert_eq!(self::check(&[b'['; 128]), unfinished(128));
}

#[test]
fn what_closes_is_what_opened_at_any_depth() {
    // An object inside of 127, of 128 and of 129 arrays, and so on.
    for outer in [1, 127, 128, 129, 255, 256, 257, 5000] {
        let text = |close: &str| format!("{}{{\"a\":[1{close}{}", "[".repeat(outer), "]".repeat(outer));
        assert_eq!(check(text("]}").as_bytes()), Ok(()), "{outer}");
        let fault = check(text("}]").as_bytes()).unwrap_err();
        assert_eq!((fault.fault, fault.offset), (Fault::Syntax, outer as u64 + 7));
        let wrong = format!("{}{{}}{}", "[".repeat(outer), "]".repeat(outer - 1) + "}");
        assert_eq!(check(wrong.as_bytes()).unwrap_err().fault, Fault::Syntax, "{outer}");
    }
}

#[test]
fn a_million_brackets_are_refused_at_the_limit() {
    let mut scanner = Scanner::with_max_depth((), 128);
    let error = JsonError { fault: Fault::TooDeep, offset: 128 };
    assert_eq!(scanner.feed(&vec![b'['; 1_000_000]), Err(error));
    assert_eq!(scanner.offset(), 128);
}

#[test]
fn a_bit_is_held_for_each_level() {
    let mut scanner = Scanner::new(());
    assert_eq!(scanner.allocated(), 0);
    scanner.feed(&[b'['; 128]).unwrap();
    assert_eq!(scanner.allocated(), 0);
    scanner.feed(&vec![b'['; 10_000 - 128]).unwrap();
    assert_eq!(scanner.allocated(), 1280 + 24);
    scanner.feed(&vec![b'['; 1_000_000]).unwrap();
    assert!(scanner.allocated() < 1_010_000 / 8 + 512, "{}", scanner.allocated());
}

#[test]
fn a_visitor_sees_the_outer_layers_only() {
    use Event::{Begin, End, Key};
    let events = seen([&br#" {"a":[{"b":[1]}],"c":-1.5e3}"#[..]]).unwrap();
    let want = vec![
        Begin(0, ValueKind::Object, 1),
        Key(1, Some(b"a".to_vec())),
        Begin(1, ValueKind::Array, 6),
        Begin(2, ValueKind::Object, 7),
        Key(3, Some(b"b".to_vec())),
        Begin(3, ValueKind::Array, 12),
        End(3, 15),
        End(2, 16),
        End(1, 17),
        Key(1, Some(b"c".to_vec())),
        Begin(1, ValueKind::Number, 22),
        End(1, 28),
        End(0, 29),
    ];
    assert_eq!(events, want);
}

#[test]
fn a_number_alone_ends_with_its_text() {
    assert_eq!(seen([&b"12"[..], b"34"]).unwrap(), [Event::Begin(0, ValueKind::Number, 0), Event::End(0, 4)]);
    assert_eq!(seen([&b"12"[..], b" "]).unwrap(), [Event::Begin(0, ValueKind::Number, 0), Event::End(0, 2)]);
}

#[test]
fn a_key_is_unescaped_and_at_most_32_bytes_long() {
    let key = |raw: &str| match &seen([format!("{{\"{raw}\":0}}").as_bytes()]).unwrap()[1] {
        Event::Key(1, key) => key.clone().map(|key| String::from_utf8(key).unwrap()),
        other => panic!("{other:?}"),
    };
    let long = "k".repeat(32);
    assert_eq!(key(&long), Some(long.clone()));
    assert_eq!(key(&format!("{long}k")), None);
    assert_eq!(key(&r"\u006b".repeat(32)), Some(long.clone()));
    assert_eq!(key(&r"\u006b".repeat(33)), None);
    assert_eq!(key(&format!(r"{long}\n")), None);
    assert_eq!(key(r"\u006d\u0065thod"), Some("method".into()));
    assert_eq!(key(r#"\"\\\/\b\f\n\r\t"#), Some("\"\\/\u{8}\u{c}\n\r\t".into()));
    assert_eq!(key(r"\ud83c\udf88"), Some("🎈".into()));
    assert_eq!(key(""), Some(String::new()));
    for lone in [r"\ud83c", r"\udf88", r"\ud83cx", r"\ud83c\n", r"\ud83c\ud83c\udf88", r"a\udf88b", r"\ud83c\u0041"] {
        assert_eq!(key(lone), None, "{lone}");
    }
}

static PATHS: [Path; 9] = [
    &["a"],
    &["b"],
    &["a", "b"],
    &["a", "a"],
    &["c"],
    &["a", "b", "c"],
    &["a", "b", "c", "a"],
    &[],
    &["a", "b", "c", "a", "b"],
];

fn read(text: &str, found: Found) -> &str {
    let span = usize::try_from(found.span.start).unwrap()..usize::try_from(found.span.end).unwrap();
    &text[span]
}

#[test]
fn the_first_of_duplicate_members_is_kept_and_the_path_is_marked() {
    let text = r#"{"a":{"b":1},"\u0061":{"b":2,"a":3}, "c":[{"b":4}] }"#;
    let paths = find([text.as_bytes()], &PATHS).unwrap();
    let got: Vec<_> = (0..9).map(|i| (paths.get(i).map(|found| read(text, found)), paths.repeated(i))).collect();
    let want = [
        (Some(r#"{"b":1}"#), true),
        (None, false),
        (Some("1"), true),
        (Some("3"), false),
        (Some(r#"[{"b":4}]"#), false),
        (None, false),
        (None, false),
        (Some(text), false),
        (None, false),
    ];
    assert_eq!(got, want);
    assert_eq!(paths.root(), Some(ValueKind::Object));
    assert_eq!(paths.get(9), None);
    assert!(!paths.repeated(9) && !paths.repeated(usize::MAX));
}

#[test]
fn arrays_on_the_way_match_nothing() {
    let paths = find([&br#"[{"a":1},{"b":2}]"#[..]], &PATHS).unwrap();
    assert_eq!(paths.root(), Some(ValueKind::Array));
    assert!((0..7).all(|i| paths.get(i).is_none()));
    let paths = find([&br#"{"a":[{"b":{"c":1}},{"a":1}],"x":{"a":{"b":1}}}"#[..]], &PATHS).unwrap();
    assert!(paths.get(0).is_some());
    assert!((1..7).all(|i| paths.get(i).is_none()));
}

#[test]
fn thirty_two_paths_fit() {
    static MANY: [Path; 32] = [&["k"]; 32];
    let paths = find([&br#"{"k":1}"#[..]], &MANY).unwrap();
    assert!((0..32).all(|i| paths.get(i).is_some() && !paths.repeated(i)));
    assert!(!paths.repeated(32));
    assert!(find([&b"{}"[..]], &[]).unwrap().get(0).is_none());
}

proptest! {
    #[test]
    fn random_json_gets_the_verdict_of_serde(text in json()) {
        prop_assert!(check(text.as_bytes()).is_ok());
        agrees(text.as_bytes());
    }

    #[test]
    fn mutated_json_gets_the_verdict_of_serde(text in json(), at: prop::sample::Index, noise in noise(), cut in 0_usize..4) {
        let mut bytes = text.into_bytes();
        let at = at.index(bytes.len());
        let end = (at + cut).min(bytes.len());
        bytes.splice(at..end, noise.into_iter().take(2));
        agrees(&bytes);
    }

    #[test]
    fn noise_gets_the_verdict_of_serde(bytes in prop_oneof![noise(), any::<Vec<u8>>()]) {
        agrees(&bytes);
    }

    #[test]
    fn paths_are_what_a_tree_has(text in json(), a in json(), b in json(), c in json(), cut: prop::sample::Index) {
        let text = format!(r#"{{"x":{text},"a" : {{ "b":{{"\u0063": {{"a":{a}}},"y":{b} }} , "a":{c}}},"b":{b},"z":[{a}]}}"#);
        let tree: Value = match serde_json::from_str(&text) {
            Ok(tree) => tree,
            Err(_) => return Ok(()), // half of a surrogate pair, or a number out of range
        };
        let (front, back) = text.as_bytes().split_at(cut.index(text.len()));
        let paths = find([front, back], &PATHS).unwrap();
        for (i, path) in PATHS.iter().enumerate().take(8) {
            let want = path.iter().try_fold(&tree, |value, key| value.as_object()?.get(*key));
            let got = paths.get(i).map(|found| serde_json::from_str::<Value>(read(&text, found)).unwrap());
            prop_assert_eq!(got.as_ref(), want, "{:?} in {}", path, text);
            prop_assert!(!paths.repeated(i));
        }
    }

    #[test]
    fn repeated_is_what_a_count_says(members in prop::collection::vec((prop::sample::select(vec!["a", "b", "c", r"\u0061"]), prop::sample::select(vec!["1", "{}", "[]", r#"{"b":1}"#, r#"{"b":1,"b":2}"#])), 0..5)) {
        let text = format!("{{{}}}", members.iter().map(|(key, value)| format!("\"{key}\":{value}")).collect::<Vec<_>>().join(","));
        let paths = find([text.as_bytes()], &PATHS).unwrap();
        let a = members.iter().filter(|(key, _)| matches!(*key, "a" | r"\u0061"));
        let a_b: usize = a.clone().map(|(_, value)| value.matches("\"b\"").count()).sum();
        prop_assert_eq!(paths.repeated(0), a.count() > 1);
        prop_assert_eq!(paths.repeated(2), a_b > 1);
        prop_assert_eq!(paths.get(2).is_some(), a_b > 0);
    }
}
