//! The runner itself: a vector that is mistyped, empty or wrong does not pass.

use breakbulk_proto::{Budget, BudgetConfig};

use super::suite::{Outcome, Watch, read};

const GOOD: &str = r#"{"about": "a", "dialect": "ahp", "cases": [{"name": "n", "side": "receive",
    "steps": [{"frame": {"jsonrpc":"2.0","method":"m"}}], "expect": {"messages": [{"jsonrpc":"2.0","method":"m"}]}}]}"#;

fn outcomes(text: &str) -> Vec<Outcome> {
    read("proof", text).expect("it can be read").iter().map(|case| case.run()).collect()
}

fn refused(from: &str, to: &str) {
    assert!(GOOD.contains(from), "{from}");
    assert!(read("proof", &GOOD.replace(from, to)).is_err(), "{to} was read");
}

fn wrong(from: &str, to: &str) {
    assert!(GOOD.contains(from), "{from}");
    assert!(matches!(outcomes(&GOOD.replace(from, to))[..], [Outcome::Wrong(_)]), "{to} passed");
}

#[test]
fn a_good_case_passes() {
    assert!(matches!(outcomes(GOOD)[..], [Outcome::AsExpected]));
}

#[test]
fn a_typo_anywhere_is_refused() {
    refused(r#""about""#, r#""abuot""#);
    refused(r#""dialect": "ahp""#, r#""dialect": "apl""#);
    refused(r#""side": "receive""#, r#""side": "receive", "setpu": {}"#);
    refused(r#""side": "receive""#, r#""side": "receive", "setup": {"limit": {}}"#);
    refused(r#""side": "receive""#, r#""side": "receive", "setup": {"limits": {"frames": 1}}"#);
    refused(r#""side": "receive""#, r#""side": "send""#);
    refused(r#"{"frame""#, r#"{"fame""#);
    refused(r#"{"messages""#, r#"{"mesages""#);
    refused(r#"{"messages""#, r#"{"frames_like": {"cuont": 1}, "messages""#);
    refused(r#""side""#, r#""each": [{"x": 1}], "side""#);
    refused(r#""side""#, r#""each": [], "side""#);
}

#[test]
fn nothing_at_all_is_refused() {
    refused(r#""about": "a""#, r#""about": """#);
    refused(r#""name": "n""#, r#""name": """#);
    assert!(read("proof", r#"{"about": "a", "dialect": "ahp", "cases": []}"#).is_err());
    assert!(read("proof", "").is_err());
    let twice = GOOD.replace("}}]}", "}},").to_owned() + GOOD.split_once("[").expect("it has cases").1;
    assert!(read("proof", &twice).is_err_and(|error| error.contains("two cases")));
}

#[test]
fn what_did_not_happen_is_missed_and_what_did_is_seen() {
    wrong(r#"[{"jsonrpc":"2.0","method":"m"}]}"#, r#"[{"jsonrpc":"2.0","method":"x"}]}"#);
    wrong(r#"[{"jsonrpc":"2.0","method":"m"}]}"#, r#"[]}"#);
    wrong(r#"{"messages""#, r#"{"closed": ["frame-not-json", 4400], "messages""#);
    wrong(r#"{"messages""#, r#"{"frames": [{}], "messages""#);
    wrong(r#"{"messages""#, r#"{"frames_like": {"count": 1}, "messages""#);
    wrong(r#"{"messages""#, r#"{"failed": [{"ticket": 1, "error": "x"}], "messages""#);
    wrong(r#"{"messages""#, r#"{"refused": [{"ordinal": 1, "violation": "x"}], "messages""#);
    wrong(r#"{"messages""#, r#"{"expired": [[0, 0]], "messages""#);
    wrong(r#"{"messages""#, r#"{"lines": ["x"], "messages""#);
    wrong(r#"{"messages""#, r#"{"stopped": true, "messages""#);
    wrong(r#"{"messages""#, r#"{"because": "x", "messages""#);
    wrong(r#"{"messages""#, r#"{"ordinals": [1], "messages""#);
    wrong(r#"{"messages""#, r#"{"metas": [], "messages""#);
    wrong(r#"{"messages""#, r#"{"frame_metas": [{}], "messages""#);
    wrong(r#"{"messages""#, r#"{"sent": [1], "messages""#);
    wrong(r#"{"messages""#, r#"{"counters": {"x": 1}, "messages""#);
    wrong(r#"{"messages""#, r#"{"settled": 0, "messages""#);
    wrong(r#"{"messages""#, r#"{"cursor": 1, "messages""#);
    wrong(r#"{"messages""#, r#"{"peer": {"frame": 1, "message": 1}, "messages""#);
    wrong(r#"{"messages""#, r#"{"timeout": 1, "messages""#);
    wrong(r#"{"messages""#, r#"{"held": 1, "messages""#);
}

#[test]
fn a_known_gap_that_passes_is_wrong() {
    let gap = GOOD.replace(r#""side""#, r#""known_gap": "why", "side""#);
    assert!(matches!(outcomes(&gap)[..], [Outcome::Wrong(_)]));
    let failing = gap.replace(r#"[{"jsonrpc":"2.0","method":"m"}]}"#, "[]}");
    assert!(matches!(&outcomes(&failing)[..], [Outcome::KnownGap(reason)] if reason == "why"));
}

#[test]
fn each_value_is_a_case_and_stands_as_it_is_written() {
    let each = GOOD
        .replace(r#""side""#, r#""each": [{"x": 1.0}, {"x": "a"}], "side""#)
        .replace(r#""method":"m"}"#, r#""method":"m$x","id":"$x"}"#);
    assert!(matches!(outcomes(&each)[..], [Outcome::AsExpected, Outcome::AsExpected]));
}

#[derive(Default)]
struct Seen(Vec<&'static str>);

impl Watch for Seen {
    fn begin(&mut self, _: BudgetConfig) {
        self.0.push("begin");
    }

    fn settled(&mut self, _: &Budget) {
        self.0.push("settled");
    }

    fn end(&mut self, _: &Budget) {
        self.0.push("end");
    }
}

#[test]
fn a_watcher_looks_after_every_input() {
    let mut seen = Seen::default();
    read("proof", GOOD).expect("it can be read").iter().for_each(|case| case.watch(&mut seen));
    assert_eq!(seen.0, ["begin", "settled", "end"]);
}
