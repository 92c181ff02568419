//! Room for what waits for one side: charged like what arrives, to the same principal, in a budget apart, and where that has
//! none, in the one that it came from.

use std::collections::HashMap;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

use breakbulk_proto::{Account, CloseReason, Grant, Message, Schedule, Ticket};

use crate::driver::now;
use crate::large::let_go;

/// The time in which a message should leave. What takes longer goes first when others need its room.
const MESSAGE_TIME: Duration = Duration::from_secs(30);
/// How often room is asked for again, and how often we look whether something has to go.
const RETRY: Duration = Duration::from_millis(100);

/// What the messages for one side take up.
///
/// A message is there before it can be charged here, and is on its way out: without room for it nothing more is read, and
/// it goes on all the same. So nobody waits for us while we wait for them. Until there is room it takes up that in which it
/// has arrived, which others then do not get.
#[derive(Debug)]
pub(super) struct Store {
    account: Account,
    /// For what arrives and is for this side.
    arriving: Account,
    grants: HashMap<Ticket, Grant>,
    /// What found no room.
    unpaid: Vec<Unpaid>,
    /// The last message that was handed to the link, which may still have it. The next is not taken before.
    leaving: Option<(Message, Option<Grant>)>,
    timer: Pin<Box<Sleep>>,
}

/// A message that found no room.
#[derive(Debug)]
struct Unpaid {
    ticket: Ticket,
    bytes: u64,
    /// What it takes up of the room for what arrives; none if somebody else was faster.
    arrived: Option<Grant>,
}

impl Store {
    /// What waits is charged to `account`, and if that has no room, to `arriving`.
    pub(super) fn new(account: Account, arriving: Account) -> Self {
        let timer = Box::pin(tokio::time::sleep(RETRY));
        Self { account, arriving, grants: HashMap::new(), unpaid: Vec::new(), leaving: None, timer }
    }

    /// Whether there is room for all that is there.
    pub(super) const fn has_room(&self) -> bool {
        self.unpaid.is_empty()
    }

    /// A message is there.
    pub(super) fn add(&mut self, ticket: Ticket, bytes: u64) {
        match reserve(&self.account, bytes) {
            Some(grant) => drop(self.grants.insert(ticket, grant)),
            None => self.unpaid.push(Unpaid { ticket, bytes, arrived: reserve(&self.arriving, bytes) }),
        }
    }

    /// So many bytes of a message are gone.
    pub(super) fn note_sent(&self, ticket: Ticket, bytes: u64) {
        let unpaid = || self.unpaid.iter().find(|unpaid| unpaid.ticket == ticket)?.arrived.as_ref();
        if let Some(grant) = self.grants.get(&ticket).or_else(unpaid) {
            grant.note_received(bytes);
        }
    }

    /// A message is not ours any more. If it was sent, the link may still have it.
    pub(super) fn remove(&mut self, ticket: Ticket, sent: Option<Message>) {
        let unpaid = self.unpaid.extract_if(.., |unpaid| unpaid.ticket == ticket).next();
        let grant = self.grants.remove(&ticket).or_else(|| unpaid?.arrived);
        if let Some(message) = sent {
            self.flushed();
            self.leaving = Some((message, grant));
        }
    }

    /// The link has nothing left to write.
    pub(super) fn flushed(&mut self) {
        if let Some((message, grant)) = self.leaving.take() {
            let_go(message, grant);
        }
    }

    /// Ready when there is room again where there was none; with an error when what is here has to go.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), CloseReason>> {
        while !self.unpaid.is_empty() || !self.grants.is_empty() || self.leaving.is_some() {
            ready!(self.timer.as_mut().poll(cx));
            self.timer.as_mut().reset(Instant::now() + RETRY);
            let arrived = self.unpaid.iter().filter_map(|unpaid| unpaid.arrived.as_ref());
            let leaving = self.leaving.iter().filter_map(|(_, grant)| grant.as_ref());
            if self.grants.values().chain(leaving).chain(arrived).any(Grant::evicted) {
                return Poll::Ready(Err(CloseReason::Evicted));
            }
            if self.pay() {
                return Poll::Ready(Ok(()));
            }
        }
        Poll::Pending
    }

    /// Asks again for room for what has none. Whether all has now that did not.
    fn pay(&mut self) -> bool {
        let had_none = !self.unpaid.is_empty();
        while let Some(&Unpaid { ticket, bytes, .. }) = self.unpaid.last() {
            let Some(grant) = reserve(&self.account, bytes) else { return false };
            self.grants.insert(ticket, grant);
            self.unpaid.pop();
        }
        had_none
    }
}

fn reserve(account: &Account, bytes: u64) -> Option<Grant> {
    account.reserve(bytes, Schedule { started: now(), timeout: MESSAGE_TIME }).ok()
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use breakbulk_proto::{Budget, BudgetConfig};
    use futures_util::FutureExt;

    use super::*;

    const KB: u64 = 1000;

    fn budget(process: u64, principal: u64) -> Budget {
        let (process_bytes, principal_bytes) = (process * KB, principal * KB);
        Budget::new(BudgetConfig { process_bytes, principal_bytes, floor_bytes: KB })
    }

    fn store(budget: &Budget, principal: &str) -> Store {
        Store::new(budget.account(Some(principal)), Budget::default().account(None))
    }

    #[tokio::test(start_paused = true)]
    async fn what_waits_is_charged_until_the_link_has_written_it() {
        let budget = budget(100, 100);
        let mut store = store(&budget, "one");
        (1..=3).for_each(|n| store.add(Ticket(n), 10 * KB));
        assert_eq!(budget.held(), 30 * KB);
        store.remove(Ticket(1), Some(Message::default()));
        assert_eq!(budget.held(), 30 * KB, "the link may have it");
        store.remove(Ticket(2), Some(Message::default()));
        assert_eq!(budget.held(), 20 * KB, "the link takes no second before the first is gone");
        store.flushed();
        assert_eq!(budget.held(), 10 * KB);
        store.remove(Ticket(3), None);
        assert_eq!(budget.held(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn without_room_nothing_more_is_read_until_somebody_lets_go() {
        let budget = budget(100, 20);
        let (mut one, mut two) = (store(&budget, "same"), store(&budget, "same"));
        one.add(Ticket(1), 15 * KB);
        two.add(Ticket(1), 15 * KB);
        assert!(one.has_room() && !two.has_room());
        one.remove(Ticket(1), None);
        poll_fn(|cx| two.poll(cx)).await.expect("room");
        assert!(two.has_room() && budget.held() == 15 * KB);
        // What is larger than all that there is does not stop the next for ever.
        two.add(Ticket(2), 500 * KB);
        assert!(!two.has_room());
        two.remove(Ticket(2), Some(Message::default()));
        assert!(two.has_room());
    }

    #[tokio::test(start_paused = true)]
    async fn without_room_of_its_own_a_message_keeps_that_in_which_it_came() {
        let (leaving, arriving) = (budget(100, 20), budget(100, 40));
        let mut store = Store::new(leaving.account(Some("one")), arriving.account(Some("one")));
        (1..=4).for_each(|n| store.add(Ticket(n), 15 * KB));
        assert_eq!((leaving.held(), arriving.held()), (15 * KB, 30 * KB), "the fourth was too slow");
        store.remove(Ticket(2), Some(Message::default()));
        assert_eq!(arriving.held(), 30 * KB, "the link may have it");
        store.flushed();
        assert_eq!(arriving.held(), 15 * KB);
        [1, 4].into_iter().for_each(|n| store.remove(Ticket(n), None));
        poll_fn(|cx| store.poll(cx)).await.expect("room");
        assert_eq!((store.has_room(), leaving.held(), arriving.held()), (true, 15 * KB, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn what_has_no_room_of_its_own_goes_too_when_others_need_that_of_what_arrives() {
        let (leaving, arriving) = (budget(100, 1), budget(100, 90));
        let mut stalled = Store::new(leaving.account(Some("stalled")), arriving.account(Some("stalled")));
        stalled.add(Ticket(1), 70 * KB);
        tokio::time::advance(MESSAGE_TIME / 2).await;
        stalled.note_sent(Ticket(1), 40 * KB);
        let other = arriving.account(Some("other"));
        assert!(reserve(&other, 50 * KB).is_none());
        assert!(poll_fn(|cx| stalled.poll(cx)).now_or_never().is_none(), "it is in time");
        tokio::time::advance(MESSAGE_TIME / 2).await;
        assert!(reserve(&other, 50 * KB).is_none());
        assert_eq!(poll_fn(|cx| stalled.poll(cx)).await, Err(CloseReason::Evicted));
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_reader_does_not_take_goes_when_others_need_the_room() {
        let budget = budget(100, 90);
        let (mut stalled, mut moving, mut third) =
            (store(&budget, "stalled"), store(&budget, "moving"), store(&budget, "third"));
        stalled.add(Ticket(1), 70 * KB);
        moving.add(Ticket(1), 20 * KB);
        tokio::time::advance(MESSAGE_TIME / 2).await;
        moving.note_sent(Ticket(1), 15 * KB);
        third.add(Ticket(1), 30 * KB);
        assert!(!third.has_room());
        assert_eq!(poll_fn(|cx| stalled.poll(cx)).await, Err(CloseReason::Evicted));
        drop(stalled);
        poll_fn(|cx| third.poll(cx)).await.expect("room");
    }
}
