//! Whatever is done to the embedded log, it answers like the plain one in memory.

use std::sync::atomic::Ordering::Relaxed;

use breakbulk_host::log::sqlite::{Options, SqliteLog};
use breakbulk_host::log::{
    AppendError, Batch, Bounds, ChannelInfo, Channels, Entry, Log, LogHealth, MemoryLog, NewEntry, ReadError,
    RetentionPolicy, Rows, Save, Seq, Snapshot,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::common::{body, small, until};

const URIS: [&str; 4] = ["root", "a-chat", "a-term", "b-chat"];
const SESSIONS: [Option<&str>; 4] = [None, Some("a"), Some("a"), Some("b")];
const END: Seq = Seq::MAX;

#[derive(Debug, Clone)]
enum Step {
    /// Channels to open, entries (channel, length, whether about a session), an expectation, and how the store fails.
    Append {
        open: Vec<usize>,
        entries: Vec<(usize, usize, bool)>,
        expect: Option<(usize, Option<Seq>)>,
        fail: Fail,
    },
    /// A batch that came before.
    Again(prop::sample::Index),
    Save {
        channel: usize,
        back: Option<Seq>,
        rows: Vec<u64>,
        cut: Option<u64>,
    },
    Trim {
        channel: usize,
        back: Seq,
    },
    RetainNothing,
    Erase(&'static str),
    Reopen,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Fail {
    No,
    Before,
    After,
}

fn step() -> impl Strategy<Value = Step> {
    let fail = prop_oneof![20 => Just(Fail::No), 1 => Just(Fail::Before), 1 => Just(Fail::After)];
    let entry = (0..4_usize, prop_oneof![0..50_usize, 3_000..9_000_usize], any::<bool>());
    let expect = proptest::option::of((0..4_usize, proptest::option::of(0..20_u64)));
    let opens = proptest::collection::vec(0..4_usize, 0..3);
    prop_oneof![
        12 => (opens, proptest::collection::vec(entry, 0..6), expect, fail)
            .prop_map(|(open, entries, expect, fail)| Step::Append { open, entries, expect, fail }),
        2 => any::<prop::sample::Index>().prop_map(Step::Again),
        3 => (0..4_usize, proptest::option::of(0..6_u64), proptest::collection::vec(0..20_u64, 0..4), proptest::option::of(0..10_u64))
            .prop_map(|(channel, back, rows, cut)| Step::Save { channel, back, rows, cut }),
        3 => (0..4_usize, 0..8_u64).prop_map(|(channel, back)| Step::Trim { channel, back }),
        1 => Just(Step::RetainNothing),
        1 => prop_oneof![Just("a"), Just("b"), Just("a-term"), Just("root"), Just("nobody")].prop_map(Step::Erase),
        1 => Just(Step::Reopen),
    ]
}

#[test]
fn the_embedded_log_answers_like_the_one_in_memory() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut runner = TestRunner::new(Config { cases: 64, failure_persistence: None, ..Config::default() });
    let steps = proptest::collection::vec(step(), 1..40);
    let run = runner.run(&steps, |steps| runtime.block_on(compare(steps)));
    run.unwrap_or_else(|error| panic!("{error}"));
}

fn options() -> Options {
    let mut options = small();
    // Nothing is cut off here, so nothing needs to be synced; and the window is small, so that the file is read, too.
    options.faults().no_sync.store(true, Relaxed);
    (options.recent_bytes, options.wal_bytes) = (8_000, 64 << 10);
    options
}

async fn compare(steps: Vec<Step>) -> Result<(), TestCaseError> {
    let (dir, model) = (tempfile::tempdir().unwrap(), MemoryLog::new());
    let mut options = options();
    let mut log = SqliteLog::open(dir.path(), options.clone()).await.unwrap();
    model.begin_run_at(log.first_of_run());
    let mut batches: Vec<Batch> = Vec::new();
    for (n, step) in steps.into_iter().enumerate() {
        let last = model.bounds().await.unwrap().last;
        match step {
            Step::Append { open, entries, expect, fail } => {
                let mut batch = open.iter().fold(Batch::new(), |batch, at| batch.open(URIS[*at], SESSIONS[*at]));
                for (at, len, about) in entries {
                    let entry = NewEntry::new(URIS[at], body(n as u64, len));
                    batch = batch.push(if about && at == 0 { entry.about("a") } else { entry });
                }
                if let Some((at, wrong)) = expect {
                    let infos = model.channels(None).await.unwrap();
                    let info = infos.iter().find(|info| *info.channel == *URIS[at]);
                    batch = batch.expect(URIS[at], wrong.unwrap_or(info.map_or(0, |info| info.last)));
                }
                batches.push(batch.clone());
                append(&log, &model, batch, fail, &options).await?;
            }
            Step::Again(index) if !batches.is_empty() => {
                append(&log, &model, index.get(&batches).clone(), Fail::No, &options).await?;
            }
            Step::Again(_) => {}
            Step::Save { channel, back, rows, cut } => {
                let mut save = Save::new(URIS[channel]);
                save.cut_rows = cut;
                save.rows = rows.into_iter().map(|index| (index, body(index, n).into())).collect();
                if let Some(back) = back {
                    save = save.snapshot((last + 1).saturating_sub(back), format!("v{n}"), body(last, n));
                }
                prop_assert_eq!(log.save(save.clone()).await, model.save(save).await);
            }
            Step::Trim { channel, back } => {
                let before = (last + 2).saturating_sub(back);
                prop_assert_eq!(log.trim(URIS[channel], before).await, model.trim(URIS[channel], before).await);
            }
            Step::RetainNothing => {
                let policy = RetentionPolicy {
                    max_age: Some(std::time::Duration::from_secs(1_000)),
                    ..RetentionPolicy::default()
                };
                prop_assert_eq!(log.retain(policy).await, model.retain(policy).await);
            }
            Step::Erase(session) => prop_assert_eq!(log.erase(session).await, model.erase(session).await),
            Step::Reopen => {
                log.close().await;
                options = self::options();
                log = SqliteLog::open(dir.path(), options.clone()).await.unwrap();
                model.begin_run_at(log.first_of_run());
            }
        }
        prop_assert_eq!(view(&log).await, view(&model).await);
        let last = model.bounds().await.unwrap().last;
        for at in [0, 1, last / 2, last.saturating_sub(n as u64), last, last + 1, log.first_of_run() - 1, END] {
            prop_assert_eq!(log.lag(at), model.lag(at), "{}", at);
        }
    }
    let (report, expected) = (log.verify().await.unwrap(), model.verify().await.unwrap());
    prop_assert_eq!(report, expected);
    Ok(())
}

/// Appends to both. Where the outcome is not known, the same batch again brings it to light.
async fn append(
    log: &SqliteLog,
    model: &MemoryLog,
    batch: Batch,
    fail: Fail,
    options: &Options,
) -> Result<(), TestCaseError> {
    options.faults().fail_before_commit.store(fail == Fail::Before, Relaxed);
    options.faults().fail_after_commit.store(fail == Fail::After, Relaxed);
    let mut answer = log.append(batch.clone()).await;
    if fail != Fail::No {
        prop_assert_eq!(answer, Err(AppendError::Unknown));
        until(log, LogHealth::is_good).await;
        answer = log.append(batch.clone()).await;
    }
    prop_assert_eq!(answer, model.append(batch).await);
    Ok(())
}

type Told = Result<Vec<Entry>, ReadError>;

/// All that a log shows, but for the times.
#[derive(Debug, PartialEq)]
struct View {
    bounds: Result<Bounds, ReadError>,
    channels: Result<Vec<ChannelInfo>, ReadError>,
    tails: Vec<Told>,
    reads: Vec<Told>,
    snapshots: Vec<Result<Option<Snapshot>, ReadError>>,
    rows: Vec<Result<Rows, ReadError>>,
}

async fn view(log: &dyn Log) -> View {
    let bounds = log.bounds().await;
    let middle = bounds.as_ref().map_or(0, |bounds| bounds.last / 2);
    let (mut tails, mut reads, mut snapshots, mut rows) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for after in [0, middle, END] {
        for channels in [
            Channels::All,
            Channels::only([URIS[0], URIS[2]]),
            Channels::only([URIS[3]]),
            Channels::Except(&["a-t", "b"]),
        ] {
            tails.push(timeless(crate::common::all(log, after, channels).await));
        }
    }
    for uri in URIS {
        reads.push(timeless(log.read(uri, 0..END, usize::MAX >> 1).await));
        reads.push(timeless(log.read(uri, middle..END, 100).await));
        snapshots.push(log.snapshot(uri).await);
        rows.push(log.rows(uri, 3..15, 100).await);
    }
    View { bounds, channels: log.channels(None).await, tails, reads, snapshots, rows }
}

fn timeless(entries: Told) -> Told {
    entries.map(|entries| entries.into_iter().map(|entry| Entry { at_ms: 0, ..entry }).collect())
}
