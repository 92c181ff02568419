//! The way to the host: fresh links in memory, each of which may break after so many frames.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use breakbulk::client::{Client, Config, ConnectError, Event, Events, State};
use breakbulk::link::{self, InProcessLink};
use breakbulk::{Acked, Arrival, Link, LinkError, LinkStatus, ReceiveMemory};
use breakbulk_proto::{Capacity, CloseReason, Tag, Transmit};
use futures_core::Stream;
use futures_sink::Sink;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use tokio::time::{Duration, sleep, timeout};

use super::host::{CAP, Host, limits};

/// Long enough for anything, also on a busy machine.
pub(crate) const SOON: Duration = Duration::from_mins(20);

/// A host and the way to it.
#[derive(Clone, Default)]
pub(crate) struct Line {
    pub(crate) host: Host,
    /// After how many frames the next links break; links past these last.
    pub(crate) cuts: Arc<Mutex<VecDeque<u64>>>,
    /// Whether a link goes silent when it is to break: it takes everything, and brings nothing.
    pub(crate) silent: bool,
    /// How many bytes a second the links take, each way.
    pub(crate) rate: Option<u32>,
    /// How many links there have been.
    pub(crate) dials: Arc<Mutex<usize>>,
}

impl Line {
    pub(crate) fn dial(&self) -> Breaking {
        *self.dials.lock().unwrap() += 1;
        let (near, far) = link::pair(&Capacity::of(CAP), 4);
        match self.rate {
            Some(rate) => {
                // Frames wait before the slow part, and not behind it.
                let (before, host) = link::pair(&Capacity::of(CAP), 1);
                self.host.serve(host);
                tokio::spawn(slow(far, before, rate));
            }
            None => self.host.serve(far),
        }
        let left = self.cuts.lock().unwrap().pop_front().unwrap_or(u64::MAX);
        Breaking { link: Some(near), left, silent: self.silent }
    }

    /// A client of this host that follows these channels.
    pub(crate) fn client(&self, channels: &[&str]) -> (Client, Events) {
        self.client_with(channels, |_| {})
    }

    pub(crate) fn client_with(&self, channels: &[&str], change: impl FnOnce(&mut Config)) -> (Client, Events) {
        let mut config = Config::new("me");
        config.subscriptions = channels.iter().map(|name| (*name).to_owned()).collect();
        config.limits = limits();
        config.seed = Some(1);
        change(&mut config);
        let line = self.clone();
        Client::start(
            move || {
                let link = line.dial();
                async move { Ok::<_, ConnectError>(link) }
            },
            config,
        )
    }

    pub(crate) fn dials(&self) -> usize {
        *self.dials.lock().unwrap()
    }
}

/// Carries frames between two links, so many bytes a second each way.
async fn slow(one: InProcessLink, other: InProcessLink, rate: u32) {
    let ((to_one, from_one), (to_other, from_other)) = (one.split(), other.split());
    tokio::join!(pass(from_one, to_other, rate), pass(from_other, to_one, rate));
}

async fn pass(mut from: SplitStream<InProcessLink>, mut to: SplitSink<InProcessLink, Transmit>, rate: u32) {
    while let Some(Ok(arrival)) = from.next().await {
        let transmit = match arrival {
            Arrival::Frame { bytes, meta } => {
                sleep(Duration::from_secs(bytes.len() as u64) / rate).await;
                Transmit::Frame { tag: Tag(0), bytes: bytes.into(), meta }
            }
            Arrival::Closed { code, .. } => Transmit::Close(CloseReason::Peer { code }),
            _ => continue,
        };
        if to.send(transmit).await.is_err() {
            return;
        }
    }
}

/// The next event.
pub(crate) async fn next(events: &mut Events) -> Event {
    timeout(SOON, events.next()).await.expect("an event, soon").expect("the client lives")
}

/// The next event that `pick` takes; others are left out.
pub(crate) async fn pick<T>(events: &mut Events, mut pick: impl FnMut(Event) -> Option<T>) -> T {
    loop {
        if let Some(picked) = pick(next(events).await) {
            return picked;
        }
    }
}

/// The seqs of the next actions.
pub(crate) async fn seqs(events: &mut Events, count: usize) -> Vec<u64> {
    let mut seqs = Vec::new();
    while seqs.len() < count {
        seqs.push(pick(events, |event| if let Event::Action { seq, .. } = event { Some(seq) } else { None }).await);
    }
    seqs
}

/// Waits until the client is live.
pub(crate) async fn live(client: &Client) {
    state(client, |state| *state == State::Live).await;
}

pub(crate) async fn state(client: &Client, is: impl FnMut(&State) -> bool) -> State {
    let mut states = client.state();
    timeout(SOON, states.wait_for(is)).await.expect("a state, soon").unwrap().clone()
}

/// A link that breaks after so many frames, in both directions together.
pub(crate) struct Breaking {
    link: Option<InProcessLink>,
    left: u64,
    silent: bool,
}

impl Breaking {
    fn spend(&mut self) -> Result<&mut InProcessLink, LinkError> {
        match self.left.checked_sub(1) {
            Some(left) => self.left = left,
            None if self.silent => {}
            None => self.link = None,
        }
        self.get()
    }

    fn get(&mut self) -> Result<&mut InProcessLink, LinkError> {
        self.link.as_mut().ok_or(LinkError::Protocol("cut".into()))
    }
}

impl Link for Breaking {
    fn capacity(&self) -> Capacity {
        Capacity::of(CAP)
    }

    fn status(&self) -> LinkStatus {
        LinkStatus::default()
    }

    fn receive_memory(&mut self) -> Option<&mut dyn ReceiveMemory> {
        None
    }

    fn poll_acked(&mut self, _: &mut Context<'_>) -> Poll<Acked> {
        Poll::Pending
    }

    fn end_output(&mut self) -> bool {
        false
    }
}

impl Stream for Breaking {
    type Item = Result<Arrival, LinkError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.silent && self.left == 0 {
            return Poll::Pending;
        }
        let arrival = match self.get() {
            Ok(link) => std::task::ready!(Pin::new(link).poll_next(cx)),
            Err(error) => return Poll::Ready(Some(Err(error))),
        };
        Poll::Ready(match self.spend() {
            Ok(_) => arrival,
            Err(error) => Some(Err(error)),
        })
    }
}

impl Sink<Transmit> for Breaking {
    type Error = LinkError;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        Pin::new(self.get()?).poll_ready(cx)
    }

    fn start_send(mut self: Pin<&mut Self>, item: Transmit) -> Result<(), LinkError> {
        Pin::new(self.spend()?).start_send(item)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        Pin::new(self.get()?).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        Pin::new(self.get()?).poll_close(cx)
    }
}
