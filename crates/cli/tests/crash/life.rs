//! The life of a log: rounds of load, each ended by `kill -9` and judged; and a last host that must have all of it.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::sync::{oneshot, watch};
use tokio::task::{JoinHandle, block_in_place};
use tokio::time::timeout;

use crate::chance::Chance;
use crate::follower::{Follower, PATIENCE, Raw, seq_of};
use crate::host::{Home, Host};
use crate::ledger::{Ledger, Sabotage};
use crate::reading::{Entry, Reading};
use crate::writer::{Phase, Place, Work, Writer};

const SMALL_CAP: u64 = 64 << 10;
const SESSION: &str = "ahp-session:/crash";

/// A follower at work, and how that ended.
type Following = JoinHandle<(Follower, Result<(), String>)>;

/// What is to happen.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) rounds: u64,
    /// What is done to what is read back.
    pub(crate) sabotage: Option<Sabotage>,
}

/// What happened.
#[derive(Debug, Default)]
pub(crate) struct Summary {
    rounds: u64,
    pub(crate) acknowledged: usize,
    bytes: usize,
    /// Actions that clients were shown, compared with the log.
    pub(crate) shown: usize,
    /// Actions that were read by way of a reconnect with an old seq.
    replayed: usize,
    cut_turns: usize,
}

impl Summary {
    pub(crate) fn add(&mut self, other: &Self) {
        self.rounds += other.rounds;
        self.acknowledged += other.acknowledged;
        self.bytes += other.bytes;
        self.shown += other.shown;
        self.replayed += other.replayed;
        self.cut_turns += other.cut_turns;
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rounds, acknowledged, bytes, shown, replayed, cut_turns } = self;
        let megabytes = bytes / 1_000_000;
        write!(
            f,
            "{rounds} rounds, {acknowledged} acknowledged, {megabytes} MB dispatched, {shown} shown to clients, "
        )?;
        write!(f, "{replayed} read by replays, {cut_turns} turns cut")
    }
}

/// Lives it. An error says in which round what was wrong.
pub(crate) async fn live(plan: &Plan) -> Result<Summary, String> {
    let mut life = Life::begin(*plan).await;
    for round in 1..=plan.rounds {
        let begun = Instant::now();
        let done = life.round(round).await;
        let line = done.map_err(|error| format!("seed {}, round {round}: {error}", plan.seed))?;
        println!("seed {}, round {round}: {line}; {:.1} s", plan.seed, begun.elapsed().as_secs_f64());
    }
    life.end().await.map_err(|error| format!("seed {}, after round {}: {error}", plan.seed, plan.rounds))
}

struct Life {
    plan: Plan,
    chance: Chance,
    home: Home,
    place: Place,
    ledger: Arc<Mutex<Ledger>>,
    phase: watch::Sender<Phase>,
    /// The first three stay for all rounds; of the others one comes each round, and goes two rounds later.
    writers: Vec<Writer>,
    gone: Vec<Writer>,
    followers: Vec<Follower>,
    /// The last seq at each crash.
    crashes: Vec<u64>,
    /// The log at the last crash.
    log: Reading,
    /// Up to here the log was read by way of reconnects.
    replayed_to: u64,
    replayed: usize,
}

impl Life {
    /// A session in which all work; its host is killed too.
    async fn begin(plan: Plan) -> Self {
        let home = Home::new();
        let host = block_in_place(|| home.start(&[]));
        let mut raw = Raw::open(&home.access(None)).await.unwrap();
        raw.initialize("founder", &[]).await.unwrap();
        raw.call("createSession", json!({"channel": SESSION})).await.unwrap().unwrap();
        let session = raw.subscribe(SESSION).await.unwrap()["state"].take();
        let place = Place {
            session: SESSION.to_owned(),
            chat: session["defaultChat"].as_str().unwrap().to_owned(),
            annotations: session["annotations"]["resource"].as_str().unwrap().to_owned(),
            file: format!("file://{}", home.root().join("f").display()),
        };
        let channels = channels(&place);
        let capped = Follower::new("capped-follower", home.access(Some(SMALL_CAP)), &channels).await;
        let followers = vec![capped, Follower::new("follower", home.access(None), &channels).await];
        host.kill();
        let mut life = Self {
            plan,
            chance: Chance::new(plan.seed),
            log: home.export(),
            home,
            place,
            ledger: Arc::default(),
            phase: watch::channel(Phase::Rest).0,
            writers: Vec::new(),
            gone: Vec::new(),
            followers,
            crashes: Vec::new(),
            replayed_to: 0,
            replayed: 0,
        };
        life.replayed_to = life.log.last;
        life.enter("annotator".into(), Work::Annotations, Some(SMALL_CAP));
        life.enter("drafter".into(), Work::Drafts, None);
        life.enter("prompter".into(), Work::Prompts, Some(SMALL_CAP));
        life
    }

    fn enter(&mut self, id: String, work: Work, cap: Option<u64>) {
        let chance = self.chance.split(self.writers.len() as u64 + self.gone.len() as u64);
        let shared = (self.ledger.clone(), self.phase.subscribe());
        self.writers.push(Writer::start(id, work, self.home.access(cap), &self.place, chance, shared));
    }

    async fn round(&mut self, round: u64) -> Result<String, String> {
        let before = self.ledger.lock().unwrap().count();
        let (is_steady, load) = (self.chance.below(3) > 0, self.chance.millis(50, 400));
        let newcomer = [Work::Annotations, Work::Drafts][usize::from(self.chance.below(2) == 0)];
        let cap = (self.chance.below(2) == 0).then_some(SMALL_CAP);
        // Its clients are to segment what they send in some rounds, and not in others.
        let limit: &[&str] = if self.chance.below(2) == 0 { &["--max-frame-bytes", "64KiB"] } else { &[] };
        self.phase.send_replace(Phase::Load);
        let host = block_in_place(|| self.home.start(limit));
        self.enter(format!("newcomer-{round}"), newcomer, cap);
        let (following, back) = self.follow(u64::MAX);
        if is_steady {
            timeout(PATIENCE, self.all_back(back)).await.map_err(|_| "somebody does not come back")?;
            self.read_back().await?;
        }
        tokio::time::sleep(load).await;
        self.crash(host, following).await?;
        let cut = self.judge()?;
        let after = self.ledger.lock().unwrap().count();
        let from = if is_steady { "all were back" } else { "its start" };
        if self.writers.len() > 5 {
            let old = self.writers.remove(3);
            old.stop().await;
            self.gone.push(old);
        }
        let (last, load) = (self.log.last, load.as_millis());
        let cut = if cut { "a turn was cut" } else { "no turn ran" };
        let new = after - before;
        Ok(format!("killed {load} ms after {from}, {new} acknowledged, log at {last}, {cut}, nothing lost"))
    }

    /// Followers come back; when they are back; and how it goes.
    fn follow(&mut self, until: u64) -> (Vec<Following>, Vec<oneshot::Receiver<()>>) {
        let start = |mut follower: Follower| {
            let (back, is_back) = oneshot::channel();
            let task = tokio::spawn(async move {
                let done = follower.follow(until, back).await;
                (follower, done)
            });
            (task, is_back)
        };
        self.followers.drain(..).map(start).unzip()
    }

    async fn all_back(&self, followers: Vec<oneshot::Receiver<()>>) {
        for writer in &self.writers {
            writer.until_live(true).await;
        }
        for follower in followers {
            // One that failed is heard of later.
            let _ = follower.await;
        }
    }

    /// Kills the host, and waits until everybody has heard all that it had said.
    async fn crash(
        &mut self,
        host: Host,
        following: Vec<JoinHandle<(Follower, Result<(), String>)>>,
    ) -> Result<(), String> {
        block_in_place(|| host.kill());
        self.phase.send_replace(Phase::Rest);
        for writer in &self.writers {
            timeout(PATIENCE, writer.until_live(false)).await.map_err(|_| "a writer does not notice the crash")?;
        }
        for task in following {
            let (follower, done) = timeout(PATIENCE, task).await.map_err(|_| "a follower does not end")?.unwrap();
            self.followers.push(follower);
            done.map_err(|error| format!("a follower: {error}"))?;
        }
        self.log = block_in_place(|| self.home.export());
        self.crashes.push(self.log.last);
        Ok(())
    }

    /// Reads what was not read so yet, as a stranger who was last here long ago; compares it with the last export.
    async fn read_back(&mut self) -> Result<(), String> {
        if self.replayed_to >= self.log.last {
            return Ok(());
        }
        let (mut raw, channels) = (Raw::open(&self.home.access(None)).await.unwrap(), channels(&self.place));
        let missed = raw.missed("reader", self.replayed_to, &channels).await.ok_or_else(|| raw.end())??;
        let mut entries = Vec::new();
        for envelope in missed {
            entries.push(Entry::of_envelope(seq_of(&envelope), &envelope)?);
        }
        let (from, last) = (self.replayed_to + 1, self.log.last);
        entries.retain(|entry| entry.seq <= last);
        let is_ours = |entry: &&Entry| (from..=last).contains(&entry.seq) && channels.contains(&entry.channel);
        let logged: Vec<_> = self.log.entries.iter().filter(is_ours).map(|entry| (entry.seq, entry.digest)).collect();
        if entries.iter().map(|entry| (entry.seq, entry.digest)).ne(logged) {
            return Err(format!("the replay from {from} to {last} is not what the log has"));
        }
        let mut lines: Vec<_> = entries.iter().filter_map(|entry| entry.line.clone()).collect();
        let ledger = self.ledger.lock().unwrap();
        self.plan.sabotage.inspect(|sabotage| sabotage.harm(&mut lines, &ledger));
        ledger.check(&lines, from..=last).demand("a replay")?;
        self.replayed += entries.len();
        self.replayed_to = last;
        Ok(())
    }

    /// The ledger, what each client was shown, and turns that were under way. Whether one was cut by the last crash.
    fn judge(&self) -> Result<bool, String> {
        let mut lines = self.log.lines();
        let ledger = self.ledger.lock().unwrap();
        self.plan.sabotage.inspect(|sabotage| sabotage.harm(&mut lines, &ledger));
        ledger.check(&lines, 1..=u64::MAX).demand("the export")?;
        drop(ledger);
        self.shown()?;
        for (n, crash) in self.crashes.iter().enumerate() {
            let is_last = n + 1 == self.crashes.len();
            match self.log.open_turn(*crash) {
                None => {}
                Some((_, None)) if is_last => {}
                Some((_, Some(Some(error)))) if error == "hostRestarted" => {}
                Some((id, end)) => return Err(format!("turn {id}, cut at {crash}, ended so: {end:?}")),
            }
        }
        Ok(self.log.open_turn(self.log.last).is_some())
    }

    /// Compares what each client was shown with the log; how much it is in all.
    fn shown(&self) -> Result<usize, String> {
        let mut shown = 0;
        for writer in self.writers.iter().chain(&self.gone) {
            shown += writer.check(&self.log)?;
        }
        for follower in &self.followers {
            shown += follower.trail.check(&self.log)?;
        }
        Ok(shown)
    }

    /// A last host: what waits is taken, a last prompt is answered, and who followed through all has what it has.
    async fn end(mut self) -> Result<Summary, String> {
        self.phase.send_replace(Phase::Last);
        let host = block_in_place(|| self.home.start(&[]));
        timeout(PATIENCE, self.settled()).await.map_err(|_| self.unsettled())?;
        self.read_back().await?;
        for writer in std::mem::take(&mut self.writers) {
            writer.stop().await;
            self.gone.push(writer);
        }
        let last = self.quiet().await;
        let (following, _) = self.follow(last);
        for task in following {
            let (follower, done) = timeout(PATIENCE, task).await.map_err(|_| "a follower does not catch up")?.unwrap();
            done.map_err(|error| format!("a follower: {error}"))?;
            follower.compare().await?;
            self.followers.push(follower);
        }
        self.crash(host, Vec::new()).await?;
        if self.judge()? {
            return Err("a turn runs although all is done".into());
        }
        block_in_place(|| self.home.verify())?;
        let bytes = |writer: &Writer| writer.page.lock().unwrap().bytes;
        Ok(Summary {
            rounds: self.plan.rounds,
            acknowledged: self.ledger.lock().unwrap().count(),
            bytes: self.gone.iter().map(bytes).sum(),
            shown: self.shown()?,
            replayed: self.replayed,
            cut_turns: self.crashes.iter().filter(|crash| self.log.open_turn(**crash).is_some()).count(),
        })
    }

    /// Waits until everything is acknowledged, and the last turn has ended. Faults are looked at later.
    async fn settled(&self) {
        let is_busy = |writer: &Writer| {
            let page = writer.page.lock().unwrap();
            page.fault.is_none() && (!page.waiting.is_empty() || page.turn.is_some())
        };
        let has_prompted = |writer: &Writer| writer.page.lock().unwrap().has_said_last || writer.id != "prompter";
        while self.writers.iter().any(|writer| is_busy(writer) || !has_prompted(writer)) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn unsettled(&self) -> String {
        let state = |writer: &Writer| {
            let page = writer.page.lock().unwrap();
            format!("{} waits for {:?} and turn {:?}, fault {:?}", writer.id, page.waiting, page.turn, page.fault)
        };
        self.writers.iter().map(state).collect::<Vec<_>>().join("; ")
    }

    /// Waits until nothing more is logged; the last seq that followers see.
    async fn quiet(&mut self) -> u64 {
        let channels = channels(&self.place);
        loop {
            let before = self.log.last;
            self.log = block_in_place(|| self.home.export());
            if self.log.last == before {
                let seen = self.log.entries.iter().filter(|entry| channels.contains(&entry.channel));
                return seen.map(|entry| entry.seq).max().unwrap_or(0);
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
}

fn channels(place: &Place) -> Vec<String> {
    ["ahp-root://", &place.session, &place.chat, &place.annotations].map(str::to_owned).into()
}
