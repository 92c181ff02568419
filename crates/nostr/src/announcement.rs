//! Public announcements (CEP-6): a client of our own asks the server what it offers, and the answers are published.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use breakbulk::{Acked, Arrival, BoxLink, Link, LinkError, LinkStatus, ReceiveMemory};
use breakbulk_proto::{Capacity, Meta, Receipt, Transmit};
use bytes::Bytes;
use futures_core::Stream;
use futures_sink::Sink;
use nostr::{EventBuilder, Kind, Tag, TagKind};
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;
use tracing::{info, warn};

use crate::address::Profile;
use crate::event::Outgoing;
use crate::link::support_tags;
use crate::pool::Pool;
use crate::publication::Publication;

/// The kind of the announcement of a server.
const SERVER: u16 = 11316;
/// What else is announced: the capability that a server has if it offers it, the method, and the kind.
const LISTS: [(&str, &str, u16); 4] = [
    ("tools", "tools/list", 11317),
    ("resources", "resources/list", 11318),
    ("resources", "resources/templates/list", 11319),
    ("prompts", "prompts/list", 11320),
];
/// The kind of a list of relays (NIP-65).
const RELAY_LIST: u16 = 10002;

/// Announces a server once, when it is first accepted for.
pub(crate) struct Announcer(Option<(Arc<Pool>, Profile, Vec<String>)>);

impl Announcer {
    pub(crate) fn new(pool: Arc<Pool>, profile: Profile, relays: Vec<String>) -> Self {
        Self(Some((pool, profile, relays)))
    }

    /// The link of the client that asks; only once.
    pub(crate) fn take_link(&mut self) -> Option<BoxLink> {
        let (pool, profile, relays) = self.0.take()?;
        Some(Box::new(AskingLink::new(pool, profile, &relays)))
    }
}

/// A client that asks a server what it offers, in the shape of a link.
struct AskingLink {
    pool: Arc<Pool>,
    profile: Profile,
    /// What the server gets next: requests, and receipts for its frames.
    arrivals: VecDeque<Arrival>,
    /// The kind under which the answer to each open request is published; the place is the id.
    kinds: Vec<Option<u16>>,
    phase: InquiryPhase,
    reader: Option<Waker>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum InquiryPhase {
    Asking,
    /// All answers are here.
    Done,
    Ended,
}

/// What is needed of an answer.
#[derive(Deserialize)]
struct ServerResponse<'a> {
    id: Option<usize>,
    #[serde(borrow)]
    result: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Initialized {
    #[serde(default)]
    capabilities: serde_json::Map<String, serde_json::Value>,
}

impl AskingLink {
    fn new(pool: Arc<Pool>, profile: Profile, relays: &[String]) -> Self {
        let mut this = Self {
            pool,
            profile,
            arrivals: VecDeque::new(),
            kinds: Vec::new(),
            phase: InquiryPhase::Asking,
            reader: None,
        };
        let client = json!({"name": "breakbulk", "version": env!("CARGO_PKG_VERSION")});
        let params = json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client});
        this.ask("initialize", &params, SERVER);
        let relays = relays.iter().map(|url| Tag::custom(TagKind::Custom("r".into()), [url]));
        this.publish(RELAY_LIST, "", relays.collect());
        this
    }

    fn ask(&mut self, method: &str, params: &serde_json::Value, kind: u16) {
        let id = self.kinds.len();
        self.kinds.push(Some(kind));
        self.say(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
    }

    fn say(&mut self, message: &serde_json::Value) {
        self.arrivals.push_back(Arrival::Frame { bytes: Bytes::from(message.to_string()), meta: Meta::default() });
    }

    fn hear(&mut self, text: &[u8]) {
        let Ok(ServerResponse { id: Some(id), result }) = serde_json::from_slice(text) else { return };
        let Some(kind) = self.kinds.get_mut(id).and_then(Option::take) else { return };
        match result {
            Some(result) if kind == SERVER => {
                self.publish(SERVER, result.get(), self.server_tags());
                let offers = serde_json::from_str::<Initialized>(result.get()).map(|answer| answer.capabilities);
                let offers = offers.unwrap_or_default();
                self.say(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
                for (_, method, kind) in LISTS.iter().filter(|(capability, ..)| offers.contains_key(*capability)) {
                    self.ask(method, &json!({}), *kind);
                }
            }
            Some(result) => self.publish(kind, result.get(), Vec::new()),
            None => warn!(kind, "the server answers with an error, so that is not announced"),
        }
        if self.kinds.iter().all(Option::is_none) {
            info!("the server is announced");
            self.phase = InquiryPhase::Done;
        }
    }

    fn server_tags(&self) -> Vec<Tag> {
        let Profile { name, about, website, picture } = &self.profile;
        let name = Some(name).filter(|name| !name.is_empty());
        let described =
            [("name", name), ("about", about.as_ref()), ("website", website.as_ref()), ("picture", picture.as_ref())];
        let described =
            described.into_iter().filter_map(|(tag, value)| Some(Tag::custom(TagKind::Custom(tag.into()), [value?])));
        described.chain(support_tags(self.pool.shared.encryption)).collect()
    }

    fn publish(&self, kind: u16, content: &str, tags: Vec<Tag>) {
        let shared = &self.pool.shared;
        let event = EventBuilder::new(Kind::Custom(kind), content).tags(tags).sign_with_keys(&shared.keys);
        if let Ok(event) = event {
            shared.publish(&Publication::new(Outgoing::public(&event), false, None, shared.relay_count()));
        }
    }
}

impl Link for AskingLink {
    fn capacity(&self) -> Capacity {
        Capacity::of(u64::MAX)
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

impl Stream for AskingLink {
    type Item = Result<Arrival, LinkError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(arrival) = self.arrivals.pop_front() {
            return Poll::Ready(Some(Ok(arrival)));
        }
        match self.phase {
            InquiryPhase::Asking => {
                self.reader = Some(cx.waker().clone());
                Poll::Pending
            }
            InquiryPhase::Done => {
                self.phase = InquiryPhase::Ended;
                Poll::Ready(Some(Ok(Arrival::Closed { code: 1000, text: "the server is announced".into() })))
            }
            InquiryPhase::Ended => Poll::Ready(None),
        }
    }
}

impl Sink<Transmit> for AskingLink {
    type Error = LinkError;

    fn poll_ready(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        Poll::Ready(Ok(()))
    }

    fn start_send(mut self: Pin<&mut Self>, item: Transmit) -> Result<(), LinkError> {
        match item {
            Transmit::Frame { tag, bytes, .. } => {
                self.arrivals.push_back(Arrival::Acked { tag, result: Ok(Receipt::default()) });
                self.hear(&bytes.to_bytes());
            }
            Transmit::Close(_) => self.phase = InquiryPhase::Ended,
        }
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
        Ok(())
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        Poll::Ready(Ok(()))
    }
}
