//! The roster: which chat has a task, and which chats of sub-agents belong to it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tracing::warn;

use super::pen::{Pen, Stop};
use super::{Shared, chat};
use crate::lock::lock;
use crate::log::Entry;

/// What may wait for a task. It takes what comes at once, unless an agent is slow to begin or the log takes nothing; and a
/// client can begin and cancel turns meanwhile. A task that is further behind than this is broken.
const WAITING: usize = 1_024;

/// How long nothing is heard from a chat that was closed: longer than it takes until its channel is gone too.
const CLOSED_FOR: Duration = Duration::from_secs(60);

/// All tasks.
#[derive(Default)]
pub(super) struct Roster(Mutex<Lists>);

#[derive(Default)]
struct Lists {
    chats: HashMap<Arc<str>, Member>,
    /// Chats of sub-agents, and the chat whose task hears of them.
    workers: HashMap<Arc<str>, Arc<str>>,
    /// Chats that were disposed of, and when. What clients have done in them just before is not heard.
    closed: HashMap<Arc<str>, Instant>,
    is_over: bool,
}

impl Roster {
    /// Takes an entry to the task of its chat, which begins if there is none. Never waits, so that no chat holds up others.
    pub(super) fn tell(shared: &Arc<Shared>, entry: Entry) {
        let mut lists = shared.roster.lists();
        let chat = Arc::clone(lists.workers.get(&entry.channel).unwrap_or(&entry.channel));
        if lists.is_over || lists.closed.get(&chat).is_some_and(|since| since.elapsed() < CLOSED_FOR) {
            return;
        }
        let member = lists.chats.entry(chat).or_insert_with_key(|chat| Member::begin(shared, chat, false));
        let entry = match member.inbox.try_send(entry) {
            Ok(()) => return,
            Err(TrySendError::Full(entry)) => {
                warn!(chat = %member.chat, "an agent does not take its messages; its conversation is ended");
                entry
            }
            Err(TrySendError::Closed(entry)) => entry,
        };
        let chat = Arc::clone(&member.chat);
        *member = Member::begin(shared, &chat, true);
        // A new one has room.
        drop(member.inbox.try_send(entry));
    }

    /// A channel begins, maybe with the name of one that was disposed of; or it is gone, and nothing more comes from it.
    pub(super) fn renew(&self, channel: &str) {
        self.lists().closed.remove(channel);
    }

    /// A sub-agent works in a chat of its own.
    pub(super) fn add_worker(&self, worker: &Arc<str>, chat: &Arc<str>) {
        self.lists().workers.insert(Arc::clone(worker), Arc::clone(chat));
    }

    /// The chats of a chat's sub-agents.
    pub(super) fn workers_of(&self, chat: &str) -> Vec<Arc<str>> {
        let lists = self.lists();
        lists.workers.iter().filter(|(_, of)| ***of == *chat).map(|(worker, _)| Arc::clone(worker)).collect()
    }

    /// The sub-agents of a chat are done.
    pub(super) fn forget_workers(&self, chat: &str) {
        self.lists().workers.retain(|_, of| **of != *chat);
    }

    /// Takes a chat's task off the list, for good.
    pub(super) fn close(&self, chat: &str) -> Option<Member> {
        let mut lists = self.lists();
        lists.closed.retain(|_, since| since.elapsed() < CLOSED_FOR);
        lists.closed.insert(chat.into(), Instant::now());
        lists.workers.retain(|worker, of| **of != *chat && **worker != *chat);
        lists.chats.remove(chat)
    }

    /// Takes all tasks off the list, and no new one begins.
    pub(super) fn close_all(&self) -> Vec<Member> {
        let mut lists = self.lists();
        lists.is_over = true;
        lists.chats.drain().map(|(_, member)| member).collect()
    }

    fn lists(&self) -> MutexGuard<'_, Lists> {
        lock(&self.0)
    }
}

/// A chat's task. It ends when this is dropped.
pub(super) struct Member {
    chat: Arc<str>,
    inbox: mpsc::Sender<Entry>,
    stop: watch::Sender<Stop>,
    task: JoinHandle<()>,
}

impl Member {
    /// Begins a task; after one that broke, which may have left a turn open.
    fn begin(shared: &Arc<Shared>, chat: &Arc<str>, is_after: bool) -> Self {
        let (inbox, receiver) = mpsc::channel(WAITING);
        let (stop, stopped) = watch::channel(Stop::No);
        let pen = Pen::new(Arc::clone(&shared.desk), stopped);
        let task = tokio::spawn(chat::conduct(Arc::clone(shared), Arc::clone(chat), pen, receiver, is_after));
        Self { chat: Arc::clone(chat), inbox, stop, task }
    }

    /// Ends the task: from now on in order, and after this time at once.
    pub(super) fn end(mut self, stop: Stop, time: Duration) -> impl Future<Output = ()> {
        self.stop.send_replace(stop);
        let deadline = tokio::time::Instant::now() + time;
        async move {
            if tokio::time::timeout_at(deadline, &mut self.task).await.is_err() {
                warn!(chat = %self.chat, "an agent does not end and is dropped");
                self.task.abort();
                // A task that is aborted ends where it waits next.
                drop((&mut self.task).await);
            }
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.task.abort();
    }
}
