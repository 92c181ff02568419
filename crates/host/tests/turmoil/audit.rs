//! Compares the log with what was dispatched, what clients received, and what state each of them has.

use std::collections::{BTreeMap, HashMap};

use ahp_types::state::SnapshotState;

use crate::sim::client_run::{ClientRun, Fate};
use crate::sim::final_log::{Channel, FinalLog};
use crate::sim::follower::{Followed, Step, comparable};
use crate::sim::ledger::Ledger;

/// Compares everything with the log.
pub(crate) fn audit(
    truth: &FinalLog,
    runs: &[ClientRun],
    shown: &BTreeMap<String, SnapshotState>,
    ledger: &mut Ledger,
) {
    dispatched(truth, runs, ledger);
    for life in runs {
        for (name, followed) in &life.follower.channels {
            let who = format!("{} on {name}", life.id);
            told(&who, life, followed, &truth.channels[name], ledger);
        }
        let missing = life.wanted.iter().filter(|name| !life.follower.channels.contains_key(*name));
        for name in missing.filter(|_| !life.is_over) {
            ledger.lost(format!("{} never came to follow {name}", life.id));
        }
    }
    for (name, channel) in &truth.channels {
        let Some(state) = shown.get(name) else { continue };
        if comparable(state) != comparable(&channel.state) {
            ledger.altered(format!("the host shows another state of {name} than its log has"));
        }
    }
}

/// What was dispatched is in the log as its sender knows it, at most once, and in the order in which it was dispatched.
fn dispatched(truth: &FinalLog, runs: &[ClientRun], ledger: &mut Ledger) {
    let mut logged: HashMap<(&str, u64), u32> = HashMap::new();
    let mut last: HashMap<&str, u64> = HashMap::new();
    let by_id: HashMap<_, _> = runs.iter().map(|life| (&*life.id, life)).collect();
    for (id, number, text) in &truth.dispatched {
        *logged.entry((id, *number)).or_default() += 1;
        let before = last.entry(id).or_default();
        if number < before {
            ledger.reordered(format!("{id}: {number} is in the log after {before}"));
        }
        *before = *number.max(before);
        match by_id.get(&**id).and_then(|life| life.dispatched.get(number)) {
            Some(own) if own.text == *text => {}
            Some(_) => ledger.altered(format!("{id}: {number} is in the log with another text")),
            // It crashed before it could write its number down.
            None if by_id.get(&**id).is_some_and(|life| life.is_over) => {}
            None => ledger.altered(format!("{id}: {number} is in the log, and was never dispatched")),
        }
    }
    for life in runs {
        for (number, own) in &life.dispatched {
            let times = logged.get(&(&*life.id, *number)).copied().unwrap_or(0);
            let about = format!("{}: {number}, whose fate is {:?}, is in the log {times} times", life.id, own.fate);
            match (&own.fate, times) {
                (Fate::Shown, 1) | (Fate::Refused, 0) | (Fate::Unknown, 0 | 1) => {}
                (Fate::Open, 0 | 1) if life.is_over => {}
                (Fate::Open, 1) => {}
                (_, 0) => ledger.lost(about),
                _ => ledger.duplicated(about),
            }
        }
    }
}

/// What somebody was told of a channel is what the log has: each action once and in order, but for what a state held.
fn told(who: &str, life: &ClientRun, followed: &Followed, channel: &Channel, ledger: &mut Ledger) {
    let mut position = 0;
    let actions = &channel.actions;
    let next_after = |seq: u64| actions.partition_point(|action| action.seq <= seq);
    for step in &followed.steps {
        let Step::Action(seq, digest) = *step else {
            let Step::ChannelSnapshot(seq) = *step else { continue };
            position = seq;
            continue;
        };
        if seq <= position {
            let is_last = position == seq;
            let note = format!("{who}: {seq} comes after {position}");
            if is_last {
                ledger.duplicated(note)
            } else {
                ledger.reordered(note)
            }
            continue;
        }
        let mut next = next_after(position);
        while life.has_terms && actions.get(next).is_some_and(|action| action.is_delta && action.seq < seq) {
            next += 1;
        }
        match actions.get(next) {
            Some(action) if action.seq == seq => {
                if action.digest != digest && !(life.has_terms && action.is_delta) {
                    ledger.altered(format!("{who}: {seq} is not what the log has"));
                }
            }
            Some(action) if action.seq < seq => ledger.lost(format!("{who}: {} was left out before {seq}", action.seq)),
            _ => ledger.altered(format!("{who}: {seq} is not in the log")),
        }
        position = seq;
    }
    if life.is_over {
        return;
    }
    if let Some(action) = actions.get(next_after(position)) {
        ledger.lost(format!("{who}: {} never came, {position} was the last", action.seq));
    }
    if followed.is_void {
        ledger.lost(format!("{who}: it began anew, and no state came"));
    }
    let ((ours, turns), (theirs, all)) = (comparable(&followed.state), comparable(&channel.state));
    let is_same = if life.has_terms { all.ends_with(&turns) } else { all == turns };
    if ours != theirs || !is_same {
        ledger.altered(format!("{who}: the state is another than that of the log"));
    }
}
