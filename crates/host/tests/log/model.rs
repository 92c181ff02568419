//! Whatever is done to a log, it answers like the plain one in memory: the embedded log, and the one in JetStream.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use breakbulk_host::log::jetstream::{JetStreamConfig, JetStreamLog};
use breakbulk_host::log::sqlite::{Options, SqliteLog};
use breakbulk_host::log::{
    AppendError, Batch, Bounds, ChannelInfo, Channels, Entry, Log, LogHealth, MemoryLog, NewEntry, ReadError,
    RetentionPolicy, Rows, Save, Seq, Snapshot,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::common::{body, small};
use crate::nats::NatsServer;

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
    run(64, |steps| {
        runtime.block_on(async {
            let mut subject = Embedded::new().await;
            compare(steps, &mut subject).await
        })
    });
}

#[test]
fn the_log_in_jetstream_answers_like_the_one_in_memory() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let server = NatsServer::start();
    let client = runtime.block_on(server.connect());
    let hosts = AtomicU64::new(0);
    // More with `BREAKBULK_MODEL_CASES`; each takes a second or two.
    let cases = std::env::var("BREAKBULK_MODEL_CASES").ok().and_then(|cases| cases.parse().ok());
    run(cases.unwrap_or(8), |steps| {
        runtime.block_on(async {
            // A host of its own: a stream is still there for a while after it was deleted.
            let host = format!("model-{}", hosts.fetch_add(1, Relaxed));
            let mut subject = InJetStream::new(client.clone(), &host).await;
            let compared = compare(steps, &mut subject).await;
            subject.log.delete().await.unwrap();
            compared
        })
    });
}

fn run(cases: u32, test: impl Fn(Vec<Step>) -> Result<(), TestCaseError>) {
    let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    let run = runner.run(&proptest::collection::vec(step(), 1..40), test);
    run.unwrap_or_else(|error| panic!("{error}"));
}

/// A log that is compared with the model.
trait Subject {
    fn log(&self) -> &dyn Log;
    fn first_of_run(&self) -> Seq;

    /// Closes it and opens it again.
    async fn reopen(&mut self);

    /// Makes the next append fail, before or after it is durable.
    fn fail(&self, fail: Fail);
}

struct Embedded {
    dir: tempfile::TempDir,
    options: Options,
    log: SqliteLog,
}

impl Embedded {
    async fn new() -> Self {
        let (dir, options) = (tempfile::tempdir().unwrap(), options());
        let log = SqliteLog::open(dir.path(), options.clone()).await.unwrap();
        Self { dir, options, log }
    }
}

impl Subject for Embedded {
    fn log(&self) -> &dyn Log {
        &self.log
    }

    fn first_of_run(&self) -> Seq {
        self.log.first_of_run()
    }

    async fn reopen(&mut self) {
        self.log.close().await;
        self.options = options();
        self.log = SqliteLog::open(self.dir.path(), self.options.clone()).await.unwrap();
    }

    fn fail(&self, fail: Fail) {
        self.options.faults().fail_before_commit.store(fail == Fail::Before, Relaxed);
        self.options.faults().fail_after_commit.store(fail == Fail::After, Relaxed);
    }
}

struct InJetStream {
    client: async_nats::Client,
    config: JetStreamConfig,
    log: JetStreamLog,
}

impl InJetStream {
    async fn new(client: async_nats::Client, host: &str) -> Self {
        let mut config = JetStreamConfig::new(host.parse().unwrap());
        config.recent_bytes = 8_000;
        config.faults().clock.store(1, Relaxed);
        let log = JetStreamLog::open(client.clone(), config.clone()).await.unwrap();
        Self { client, config, log }
    }
}

impl Subject for InJetStream {
    fn log(&self) -> &dyn Log {
        &self.log
    }

    fn first_of_run(&self) -> Seq {
        self.log.first_of_run()
    }

    async fn reopen(&mut self) {
        // Every second time the new owner does not wait for the old one.
        if self.log.epoch().is_multiple_of(2) {
            self.log.close().await;
        }
        self.log = JetStreamLog::open(self.client.clone(), self.config.clone()).await.unwrap();
    }

    fn fail(&self, fail: Fail) {
        self.config.faults().lose_publish.store(fail == Fail::Before, Relaxed);
        self.config.faults().lose_answer.store(fail == Fail::After, Relaxed);
    }
}

fn options() -> Options {
    let mut options = small();
    // Nothing is cut off here, so nothing needs to be synced; and the window is small, so that the file is read, too.
    options.faults().no_sync.store(true, Relaxed);
    (options.recent_bytes, options.wal_bytes) = (8_000, 64 << 10);
    options
}

async fn compare(steps: Vec<Step>, subject: &mut impl Subject) -> Result<(), TestCaseError> {
    let model = MemoryLog::new();
    model.begin_run_at(subject.first_of_run());
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
                append(subject, &model, batch, fail).await?;
            }
            Step::Again(index) if !batches.is_empty() => {
                append(subject, &model, index.get(&batches).clone(), Fail::No).await?;
            }
            Step::Again(_) => {}
            Step::Save { channel, back, rows, cut } => {
                let mut save = Save::new(URIS[channel]);
                save.cut_rows = cut;
                save.rows = rows.into_iter().map(|index| (index, body(index, n).into())).collect();
                if let Some(back) = back {
                    save = save.snapshot((last + 1).saturating_sub(back), format!("v{n}"), body(last, n));
                }
                prop_assert_eq!(subject.log().save(save.clone()).await, model.save(save).await);
            }
            Step::Trim { channel, back } => {
                let before = (last + 2).saturating_sub(back);
                prop_assert_eq!(
                    subject.log().trim(URIS[channel], before).await,
                    model.trim(URIS[channel], before).await
                );
            }
            Step::RetainNothing => {
                let policy = RetentionPolicy {
                    max_age: Some(std::time::Duration::from_secs(1_000)),
                    ..RetentionPolicy::default()
                };
                prop_assert_eq!(subject.log().retain(policy).await, model.retain(policy).await);
            }
            Step::Erase(session) => prop_assert_eq!(subject.log().erase(session).await, model.erase(session).await),
            Step::Reopen => {
                subject.reopen().await;
                model.begin_run_at(subject.first_of_run());
            }
        }
        prop_assert_eq!(view(subject.log()).await, view(&model).await);
        let last = model.bounds().await.unwrap().last;
        for at in [0, 1, last / 2, last.saturating_sub(n as u64), last, last + 1, subject.first_of_run() - 1, END] {
            prop_assert_eq!(subject.log().lag(at), model.lag(at), "{}", at);
        }
    }
    let (report, expected) = (subject.log().verify().await.unwrap(), model.verify().await.unwrap());
    prop_assert_eq!(report, expected);
    Ok(())
}

/// Appends to both. Where the outcome is not known, the same batch again brings it to light.
async fn append(subject: &impl Subject, model: &MemoryLog, batch: Batch, fail: Fail) -> Result<(), TestCaseError> {
    subject.fail(fail);
    let mut answer = subject.log().append(batch.clone()).await;
    subject.fail(Fail::No);
    if answer == Err(AppendError::Unknown) {
        prop_assert_ne!(fail, Fail::No);
        let mut health = subject.log().health();
        tokio::time::timeout(Duration::from_secs(20), health.wait_for(LogHealth::is_good)).await.unwrap().unwrap();
        answer = subject.log().append(batch.clone()).await;
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
