//! The ledger: what was sent and what was acknowledged, and whether a reading of the log agrees.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::ops::RangeInclusive;

/// Who dispatched an action, and its number there.
pub(crate) type Name = (String, u64);

/// An action of a client, as it stands in a reading.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) seq: u64,
    pub(crate) name: Name,
    /// Of its payload.
    pub(crate) digest: u64,
}

/// What clients know of what they did.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    sent: HashMap<Name, u64>,
    /// Seen by its sender as its own, with this seq.
    acknowledged: BTreeMap<u64, Name>,
    answered: HashSet<Name>,
    /// Acknowledged a second time.
    repeated: usize,
}

impl Ledger {
    pub(crate) fn sent(&mut self, name: Name, digest: u64) {
        self.sent.insert(name, digest);
    }

    pub(crate) fn acknowledged(&mut self, name: Name, seq: u64) {
        self.repeated += usize::from(!self.answered.insert(name.clone()));
        self.repeated += usize::from(self.acknowledged.insert(seq, name).is_some());
    }

    /// How many were acknowledged.
    pub(crate) fn count(&self) -> usize {
        self.acknowledged.len()
    }

    /// Compares it with all that was read of these seqs.
    pub(crate) fn check(&self, lines: &[Line], seqs: RangeInclusive<u64>) -> Verdict {
        let mut verdict = Verdict { duplicated: self.repeated, ..Verdict::default() };
        let mut places: HashMap<&Name, u64> = HashMap::new();
        let mut numbers: HashMap<&str, u64> = HashMap::new();
        let mut last = 0;
        for Line { seq, name, digest } in lines {
            if places.contains_key(name) {
                verdict.duplicated += 1;
                continue;
            }
            places.insert(name, *seq);
            let before = numbers.insert(&name.0, name.1).unwrap_or(0);
            verdict.reordered += usize::from(*seq <= last || name.1 < before);
            verdict.altered += usize::from(self.sent.get(name) != Some(digest));
            last = *seq;
        }
        for (seq, name) in self.acknowledged.range(seqs) {
            match places.get(name) {
                None => verdict.lost += 1,
                Some(place) => verdict.reordered += usize::from(place != seq),
            }
        }
        verdict
    }
}

/// What is wrong with a reading.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) lost: usize,
    pub(crate) duplicated: usize,
    pub(crate) reordered: usize,
    /// Not what was sent, or never sent.
    pub(crate) altered: usize,
}

impl Verdict {
    /// Fails unless all is well.
    pub(crate) fn demand(self, of: &str) -> Result<(), String> {
        if self == Self::default() { Ok(()) } else { Err(format!("{of}: {self}")) }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lost, duplicated, reordered, altered } = self;
        write!(f, "{lost} lost, {duplicated} duplicated, {reordered} reordered, {altered} altered")
    }
}

/// What is done to a reading so that the ledger must notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sabotage {
    Drop,
    Repeat,
    Swap,
    Alter,
}

impl Sabotage {
    /// By its name in `BREAKBULK_CRASH_SABOTAGE`.
    pub(crate) fn named(name: &str) -> Self {
        match name {
            "drop" => Self::Drop,
            "repeat" => Self::Repeat,
            "swap" => Self::Swap,
            "alter" => Self::Alter,
            _ => panic!("{name:?} is none of drop, repeat, swap, alter"),
        }
    }

    /// Does it to one acknowledged action.
    pub(crate) fn harm(self, lines: &mut Vec<Line>, ledger: &Ledger) {
        let is_known = |line: &Line| ledger.acknowledged.contains_key(&line.seq);
        let Some(at) = lines.iter().rposition(is_known) else { return };
        match self {
            Self::Drop => drop(lines.remove(at)),
            Self::Repeat => lines.push(Line { seq: lines[lines.len() - 1].seq + 1, ..lines[at].clone() }),
            Self::Swap if at > 0 => lines.swap(at - 1, at),
            Self::Swap => {}
            Self::Alter => lines[at].digest ^= 1,
        }
    }
}

mod tests {
    use super::*;

    /// Two clients; the last of each was logged, and its sender does not know.
    fn kept() -> (Ledger, Vec<Line>) {
        let (mut ledger, mut lines) = (Ledger::default(), Vec::new());
        for seq in 1..=20_u64 {
            let name = (format!("c{}", seq % 2), seq.div_ceil(2));
            ledger.sent(name.clone(), seq * 7);
            if seq <= 18 {
                ledger.acknowledged(name.clone(), seq);
            }
            lines.push(Line { seq, name, digest: seq * 7 });
        }
        (ledger, lines)
    }

    fn harmed(sabotage: Sabotage) -> Verdict {
        let (ledger, mut lines) = kept();
        sabotage.harm(&mut lines, &ledger);
        ledger.check(&lines, 1..=20)
    }

    #[test]
    fn a_whole_reading_agrees_and_what_was_not_acknowledged_may_be_missing() {
        let (ledger, mut lines) = kept();
        assert_eq!(ledger.check(&lines, 1..=20), Verdict::default());
        lines.truncate(18);
        assert_eq!(ledger.check(&lines, 1..=20), Verdict::default());
        assert_eq!(ledger.check(&lines[10..], 11..=20), Verdict::default(), "a part agrees with its part");
        assert!(ledger.check(&lines[10..], 1..=20).demand("x").is_err());
    }

    #[test]
    fn each_saboteur_is_caught_by_name() {
        assert_eq!(harmed(Sabotage::Drop), Verdict { lost: 1, ..Verdict::default() });
        assert_eq!(harmed(Sabotage::Repeat), Verdict { duplicated: 1, ..Verdict::default() });
        assert_eq!(harmed(Sabotage::Swap), Verdict { reordered: 1, ..Verdict::default() });
        assert_eq!(harmed(Sabotage::Alter), Verdict { altered: 1, ..Verdict::default() });
    }

    #[test]
    fn an_action_at_another_seq_than_its_sender_saw_is_reordered() {
        let (ledger, mut lines) = kept();
        lines.iter_mut().for_each(|line| line.seq += u64::from(line.seq > 10));
        assert_eq!(ledger.check(&lines, 1..=20).reordered, 8);
    }

    #[test]
    fn what_nobody_sent_and_what_is_acknowledged_twice_is_noticed() {
        let (mut ledger, mut lines) = kept();
        lines.push(Line { seq: 21, name: ("c9".into(), 1), digest: 0 });
        assert_eq!(ledger.check(&lines, 1..=21), Verdict { altered: 1, ..Verdict::default() });
        ledger.acknowledged(("c1".into(), 1), 30);
        assert_eq!(ledger.check(&lines, 1..=21).duplicated, 1);
    }

    #[test]
    fn numbers_of_one_client_ascend() {
        let (ledger, mut lines) = kept();
        let (first, second) = (lines[18].name.clone(), lines[16].name.clone());
        (lines[16].name, lines[18].name) = (first, second);
        assert!(ledger.check(&lines, 1..=20).reordered > 0);
    }
}
