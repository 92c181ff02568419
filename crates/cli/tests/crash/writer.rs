//! A client that dispatches under load, comes back by itself after each crash, and keeps its page of the ledger.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use breakbulk::client::{Client, Config, Event, Events, State};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::chance::Chance;
use crate::host::HostAccess;
use crate::ledger::Ledger;
use crate::reading::{Entry, Trail, Turn, digest};

/// Actions of one client that may wait for the host to show them.
const WINDOW: usize = 24;

/// The channels of the session that all work in.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) session: String,
    pub(crate) chat: String,
    pub(crate) annotations: String,
    /// A file that annotations are about.
    pub(crate) file: String,
}

/// What a writer writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    Annotations,
    Drafts,
    /// To the demo agent, the next when the last turn has ended.
    Prompts,
}

/// Whether there is load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Rest,
    Load,
    /// No more than one last prompt, which is a short one.
    Last,
}

/// What is known of a writer from outside.
#[derive(Debug, Default)]
pub(crate) struct Page {
    pub(crate) trail: Trail,
    /// The first thing that went wrong.
    pub(crate) fault: Option<String>,
    /// Actions that the host has not shown yet.
    pub(crate) waiting: HashSet<u64>,
    /// The turn that runs.
    pub(crate) turn: Option<String>,
    pub(crate) has_said_last: bool,
    pub(crate) bytes: usize,
}

pub(crate) struct Writer {
    pub(crate) id: String,
    client: Client,
    pub(crate) page: Arc<Mutex<Page>>,
    task: JoinHandle<()>,
}

impl Writer {
    pub(crate) fn start(
        id: String,
        work: Work,
        access: HostAccess,
        place: &Place,
        chance: Chance,
        (ledger, phase): (Arc<Mutex<Ledger>>, watch::Receiver<Phase>),
    ) -> Self {
        let mut config = Config::new(id.clone());
        config.subscriptions = vec![place.annotations.clone(), place.chat.clone()];
        config.limits = access.limits();
        (config.retry_base, config.retry_cap) = (Duration::from_millis(20), Duration::from_millis(60));
        let (client, events) = Client::start(
            move || {
                let access = access.clone();
                async move { access.open().await }
            },
            config,
        );
        let page = Arc::<Mutex<Page>>::default();
        let writing = Writing {
            id: id.clone(),
            work,
            place: place.clone(),
            client: client.clone(),
            chance,
            ledger,
            page: page.clone(),
        };
        let task = tokio::spawn(writing.run(events, phase));
        Self { id, client, page, task }
    }

    /// Waits until it is live, or until it is not.
    pub(crate) async fn until_live(&self, live: bool) {
        let _ = self.client.state().wait_for(|state| matches!(state, State::Live) == live).await;
    }

    /// What went wrong, and whether what it was shown is what the log has.
    pub(crate) fn check(&self, log: &crate::reading::Reading) -> Result<usize, String> {
        let page = self.page.lock().unwrap();
        if let Some(fault) = &page.fault {
            return Err(format!("{}: {fault}", self.id));
        }
        page.trail.check(log).map_err(|error| format!("{}: {error}", self.id))
    }

    /// It goes, and what waits goes with it.
    pub(crate) async fn stop(&self) {
        self.task.abort();
        self.client.close().await;
    }
}

struct Writing {
    id: String,
    work: Work,
    place: Place,
    client: Client,
    chance: Chance,
    ledger: Arc<Mutex<Ledger>>,
    page: Arc<Mutex<Page>>,
}

impl Writing {
    async fn run(mut self, mut events: Events, mut phase: watch::Receiver<Phase>) {
        let mut due = Instant::now();
        loop {
            let now = *phase.borrow_and_update();
            let may = self.may(now);
            tokio::select! {
                event = events.next() => {
                    let Some(event) = event else { return };
                    if let Err(fault) = self.hear(event) {
                        self.page.lock().unwrap().fault.get_or_insert(fault);
                    }
                }
                () = tokio::time::sleep_until(due), if may => {
                    self.say(now).await;
                    due = Instant::now() + self.chance.pause();
                }
                changed = phase.changed() => {
                    if changed.is_err() {
                        return;
                    }
                }
            }
        }
    }

    fn may(&self, phase: Phase) -> bool {
        let page = self.page.lock().unwrap();
        let is_free = page.waiting.len() < WINDOW;
        match (self.work, phase) {
            (_, Phase::Rest) => false,
            (Work::Prompts, Phase::Last) => page.turn.is_none() && !page.has_said_last,
            (_, Phase::Last) => false,
            (Work::Prompts, Phase::Load) => page.turn.is_none(),
            (_, Phase::Load) => is_free,
        }
    }

    async fn say(&mut self, phase: Phase) {
        let name = format!("{} {:016x}", self.id, self.chance.next());
        let (channel, action, text) = match self.work {
            Work::Annotations => self.annotation(&name),
            Work::Drafts => self.draft(&name),
            Work::Prompts => self.prompt(&name, phase),
        };
        // What waits is noted before the action can come back: this task alone hears of it.
        if let Ok(number) = self.client.dispatch(&channel, action.to_string()).await {
            self.ledger.lock().unwrap().sent((self.id.clone(), number), digest(&text));
            let mut page = self.page.lock().unwrap();
            page.waiting.insert(number);
            page.bytes += text.len();
        }
    }

    fn annotation(&mut self, name: &str) -> (String, Value, String) {
        let len = self.chance.size();
        let text = self.chance.text(name, len);
        let Place { session, chat, annotations, file } = &self.place;
        // A few of each writer, over and over: the log grows, the state does not.
        let id = format!("{}-{}", self.id, self.chance.below(4));
        let annotation = json!({"id": id, "origin": {"session": session, "chat": chat, "turnId": "t"}, "turnId": "t",
            "resource": file, "resolved": false, "entries": [{"id": "e", "text": text}]});
        (annotations.clone(), json!({"type": "annotations/set", "annotation": annotation}), text)
    }

    fn draft(&mut self, name: &str) -> (String, Value, String) {
        let len = self.chance.size();
        let text = self.chance.text(name, len);
        let draft = json!({"text": text, "origin": {"kind": "user"}});
        (self.place.chat.clone(), json!({"type": "chat/draftChanged", "draft": draft}), text)
    }

    fn prompt(&mut self, name: &str, phase: Phase) -> (String, Value, String) {
        let text = match self.chance.below(4) {
            _ if phase == Phase::Last => "/big 10KB".to_owned(),
            0 => format!("hello from {name}"),
            1 => "/slow /think".to_owned(),
            _ => "/big 200KB".to_owned(),
        };
        let mut page = self.page.lock().unwrap();
        page.has_said_last |= phase == Phase::Last;
        page.turn = Some(name.to_owned());
        let action = json!({"type": "chat/turnStarted", "turnId": name, "startedAt": "2026-01-01T00:00:00.000Z",
            "message": {"text": text, "origin": {"kind": "user"}}});
        (self.place.chat.clone(), action, text)
    }

    fn hear(&self, event: Event) -> Result<(), String> {
        let mut page = self.page.lock().unwrap();
        match event {
            Event::Snapshot { channel, from_seq, .. } => page.trail.snapshot(&channel, from_seq),
            Event::Action { seq, own, envelope, .. } => {
                let bytes = envelope.to_bytes();
                let entry = Entry::of_envelope(seq, std::str::from_utf8(&bytes).unwrap())?;
                page.trail.action(&entry)?;
                if let Some(Turn::Ended { id, .. }) = &entry.turn
                    && page.turn.as_ref() == Some(id)
                {
                    page.turn = None;
                }
                if let Some(number) = own {
                    page.waiting.remove(&number);
                    self.ledger.lock().unwrap().acknowledged((self.id.clone(), number), seq);
                }
                Ok(())
            }
            Event::Missing { channels } => Err(format!("{channels:?} are missing")),
            Event::Lost(lost) => Err(format!("action {} is lost: {:?}", lost.client_seq, lost.why)),
            _ => Ok(()),
        }
    }
}
