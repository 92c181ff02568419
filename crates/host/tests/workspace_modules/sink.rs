//! A place for actions, which tests look at: it keeps them, and can be slow, full or gone.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use ahp_types::actions::StateAction;
use breakbulk_host::log::{AppendError, BoxFuture, Seq};
use breakbulk_host::test_support::action_sink::ActionSink;
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

/// Long enough for any machine.
pub(crate) const LONG: Duration = Duration::from_secs(30);

/// More than ever act at a time.
const OPEN: u32 = 1 << 10;

pub(crate) struct Sink {
    kept: Mutex<Vec<(String, StateAction)>>,
    count: watch::Sender<usize>,
    open: Semaphore,
    refusal: Mutex<Option<AppendError>>,
}

impl Sink {
    pub(crate) fn new() -> Arc<Self> {
        let open = Semaphore::new(OPEN as usize);
        Arc::new(Self { kept: Mutex::default(), count: watch::Sender::new(0), open, refusal: Mutex::default() })
    }

    /// All actions on a channel so far.
    pub(crate) fn on(&self, channel: &str) -> Vec<StateAction> {
        let kept = self.kept.lock().unwrap();
        kept.iter().filter(|(on, _)| on == channel).map(|(_, action)| action.clone()).collect()
    }

    /// The last action on a channel.
    pub(crate) fn last(&self, channel: &str) -> Option<StateAction> {
        let kept = self.kept.lock().unwrap();
        kept.iter().rev().find(|(on, _)| on == channel).map(|(_, action)| action.clone())
    }

    /// Waits until the actions are such.
    pub(crate) async fn until(&self, mut so: impl FnMut(&Self) -> bool) {
        let mut count = self.count.subscribe();
        let wait = async {
            while !so(self) {
                count.changed().await.unwrap();
            }
        };
        timeout(LONG, wait).await.expect("it takes too long");
    }

    /// From now on nothing is acknowledged, or everything is.
    pub(crate) async fn hold(&self, held: bool) {
        if held {
            self.open.acquire_many(OPEN).await.unwrap().forget();
        } else {
            self.open.add_permits(OPEN as usize);
        }
    }

    /// From now on everything is refused, or nothing is.
    pub(crate) fn refuse(&self, refusal: Option<AppendError>) {
        *self.refusal.lock().unwrap() = refusal;
    }
}

impl ActionSink for Sink {
    fn append_actions<'a>(
        &'a self,
        actions: Vec<(String, StateAction)>,
    ) -> BoxFuture<'a, Result<Vec<Seq>, AppendError>> {
        Box::pin(async move {
            drop(self.open.acquire().await.unwrap());
            if let Some(refusal) = self.refusal.lock().unwrap().clone() {
                return Err(refusal);
            }
            let mut kept = self.kept.lock().unwrap();
            let first = kept.len() as Seq;
            let seqs = (0..actions.len() as Seq).map(|at| first + at + 1).collect();
            kept.extend(actions);
            self.count.send_replace(kept.len());
            Ok(seqs)
        })
    }
}
