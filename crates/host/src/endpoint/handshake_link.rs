//! A link with a byte limit until the handshake is done; it also reads the limits that the client names in its handshake.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use breakbulk::{Acked, Arrival, BoxLink, Intake, Link, LinkError, LinkStatus, ReceiveMemory};
use breakbulk_proto::json::{self, Path};
use breakbulk_proto::{Capacity, Over, Transmit};
use futures_core::Stream;
use futures_sink::Sink;

use super::traffic::Traffic;

/// A link that accepts few bytes before the handshake is done.
pub(super) struct HandshakeLink {
    link: BoxLink,
    /// Bytes that have arrived so far; `None` when the handshake is done and the limit no longer applies.
    came: Option<u64>,
    limit: u64,
    /// The longest message that the client says it takes. The machine removes this from the params, and uses it only when
    /// the answer passes.
    offered: Option<u64>,
    /// The longest frame that the client says it takes.
    frame_limit: Option<u64>,
    /// A chunking capability that is not valid, and so counts as none.
    invalid_chunking: Option<InvalidChunking>,
    traffic: Arc<Traffic>,
}

/// What is wrong with a client's chunking capability.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct InvalidChunking {
    /// The id that the client gives itself, or the beginning of a long one.
    pub(super) client: String,
    /// The field that is missing, or has a value that is not valid.
    pub(super) field: &'static str,
}

impl HandshakeLink {
    pub(super) fn new(link: BoxLink, limit: u64, traffic: Arc<Traffic>) -> Self {
        let mut link =
            Self { link, came: Some(0), limit, offered: None, frame_limit: None, invalid_chunking: None, traffic };
        // The limit also applies to the buffers of the link.
        link.set_intake(Intake { max_frame_bytes: limit, account: None });
        link
    }

    /// The handshake is done: from now on the link accepts these frames.
    pub(super) fn open(&mut self, intake: Intake) {
        self.came = None;
        self.set_intake(intake);
    }

    fn set_intake(&mut self, intake: Intake) {
        if let Some(memory) = self.link.receive_memory() {
            memory.set_intake(intake);
        }
    }

    /// The longest message that the client says it takes, if it has said so.
    pub(super) const fn offered(&self) -> Option<u64> {
        self.offered
    }

    /// The longest frame that the client says it takes, if it has said so.
    pub(super) const fn frame_limit(&self) -> Option<u64> {
        self.frame_limit
    }

    /// What is wrong with the chunking capability of the last handshake that the client sent. Returned once.
    pub(super) fn take_invalid_chunking(&mut self) -> Option<InvalidChunking> {
        self.invalid_chunking.take()
    }

    fn note(&mut self, frame: &[u8]) -> Result<(), LinkError> {
        static PATHS: [Path; 7] = [
            &["method"],
            &["params", "capabilities", "chunking", "maxIncomingMessageBytes"],
            &["params", "capabilities", "chunking", "maxIncomingFrameBytes"],
            &["params", "capabilities", "chunking"],
            &["params", "capabilities", "chunking", "maxIncomingGroups"],
            &["params", "capabilities", "chunking", "groupTimeoutMs"],
            &["params", "clientId"],
        ];
        let Some(came) = self.came else { return Ok(()) };
        let size = came.saturating_add(u64::try_from(frame.len()).unwrap_or(u64::MAX));
        if size > self.limit {
            return Err(LinkError::FrameTooLarge(Over { size, limit: self.limit }));
        }
        self.came = Some(size);
        let Ok(found) = json::find([frame], &PATHS) else { return Ok(()) };
        let text = |i| {
            let span = found.get(i)?.span;
            frame.get(usize::try_from(span.start).ok()?..usize::try_from(span.end).ok()?)
        };
        // A second attempt names all limits again.
        if matches!(text(0), Some(br#""initialize""# | br#""reconnect""#)) {
            let number = |i| text(i).and_then(|text| json::number(text).to_u64());
            (self.offered, self.frame_limit) = (number(1), number(2));
            let field = match text(3) {
                None | Some(b"null") => None,
                Some(_) => invalid_field(text(2), text(1), text(4), text(5)),
            };
            let client = || text(6).and_then(json::string).unwrap_or_default().chars().take(MAX_CLIENT_CHARS).collect();
            self.invalid_chunking = field.map(|field| InvalidChunking { client: client(), field });
        }
        Ok(())
    }
}

/// How much of a client's id is logged before the id is checked.
const MAX_CLIENT_CHARS: usize = 64;

/// The first field because of which a chunking capability is not valid: both sizes must be there and positive, a message is not
/// shorter than a frame, and what else is there must be positive. This is the rule by which the machine ignores it.
fn invalid_field(
    frame: Option<&[u8]>,
    message: Option<&[u8]>,
    groups: Option<&[u8]>,
    timeout: Option<&[u8]>,
) -> Option<&'static str> {
    let positive = |text: &[u8]| match json::number(text) {
        json::Number::Int(value) if value > 0 => Some(u64::try_from(value).unwrap_or(u64::MAX)),
        json::Number::Huge { negative: false } => Some(u64::MAX),
        _ => None,
    };
    let is_invalid = |text: Option<&[u8]>| text.is_some_and(|text| positive(text).is_none());
    let Some(frame) = frame.and_then(positive) else { return Some("maxIncomingFrameBytes") };
    match message.and_then(positive) {
        Some(message) if message >= frame => {}
        _ => return Some("maxIncomingMessageBytes"),
    }
    if is_invalid(groups) {
        return Some("maxIncomingGroups");
    }
    is_invalid(timeout).then_some("groupTimeoutMs")
}

/// Delegates everything to the inner link.
impl Link for HandshakeLink {
    fn capacity(&self) -> Capacity {
        self.link.capacity()
    }

    fn status(&self) -> LinkStatus {
        self.link.status()
    }

    fn receive_memory(&mut self) -> Option<&mut dyn ReceiveMemory> {
        self.link.receive_memory()
    }

    fn poll_acked(&mut self, cx: &mut Context<'_>) -> Poll<Acked> {
        self.link.poll_acked(cx)
    }

    fn end_output(&mut self) -> bool {
        self.link.end_output()
    }
}

impl Stream for HandshakeLink {
    type Item = Result<Arrival, LinkError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let arrival = ready!(Pin::new(&mut self.link).poll_next(cx));
        Poll::Ready(match arrival {
            Some(Ok(Arrival::Frame { bytes, meta })) => {
                self.traffic.received.frame(bytes.len());
                Some(self.note(&bytes).map(|()| Arrival::Frame { bytes, meta }))
            }
            // A client that closes its direction has left.
            Some(Ok(Arrival::Ended)) => Some(Ok(Arrival::Closed { code: 1000, text: String::new() })),
            other => other,
        })
    }
}

impl Sink<Transmit> for HandshakeLink {
    type Error = LinkError;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        Pin::new(&mut self.link).poll_ready(cx)
    }

    fn start_send(mut self: Pin<&mut Self>, item: Transmit) -> Result<(), LinkError> {
        if let Transmit::Frame { bytes, .. } = &item {
            self.traffic.sent.frame(bytes.len());
        }
        Pin::new(&mut self.link).start_send(item)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        Pin::new(&mut self.link).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        Pin::new(&mut self.link).poll_close(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::time::Duration;

    use breakbulk::HalfClose;
    use breakbulk::link::{WebSocket, WebSocketConfig};
    use breakbulk_proto::{Account, Budget, BudgetConfig, Schedule};
    use tokio::io::{AsyncWriteExt, DuplexStream, duplex};
    use tokio::time::{Instant, timeout};

    use super::*;

    const MB: usize = 1_000_000;
    const SOON: Duration = Duration::from_secs(10);

    /// A WebSocket that is open, and its peer's end: the client of a principal that may hold a megabyte.
    fn open(budget: &Budget) -> (HandshakeLink, DuplexStream) {
        let (peer, ours) = duplex(2 * MB);
        let link = WebSocket::server(ours, &WebSocketConfig { keepalive: None, ..WebSocketConfig::default() });
        let mut link = HandshakeLink::new(Box::new(link), 1000, Arc::default());
        link.open(Intake { max_frame_bytes: MB as u64, account: Some(budget.account(Some("client"))) });
        (link, peer)
    }

    fn budget() -> Budget {
        let bytes = MB as u64;
        Budget::new(BudgetConfig { process_bytes: bytes, principal_bytes: bytes, floor_bytes: 0 })
    }

    /// A client's frame of a megabyte, masked with zeros, without its last `missing` bytes.
    async fn send(peer: &mut DuplexStream, missing: usize) {
        let head = [&[0x81, 0x80 | 127][..], &(MB as u64).to_be_bytes(), &[0; 4]].concat();
        peer.write_all(&[head, vec![b'x'; MB - missing]].concat()).await.expect("a link");
    }

    fn memory(link: &mut HandshakeLink) -> &mut dyn ReceiveMemory {
        link.receive_memory().expect("a WebSocket has memory")
    }

    async fn next(link: &mut HandshakeLink) -> Option<Result<Arrival, LinkError>> {
        poll_fn(|cx| Pin::new(&mut *link).poll_next(cx)).await
    }

    /// Another principal asks for memory that the client holds.
    fn press(other: &Account) {
        let schedule = Schedule { started: Instant::now().into_std(), timeout: SOON };
        assert!(other.reserve(MB as u64, schedule).is_err());
    }

    #[tokio::test]
    async fn a_chunking_capability_that_is_not_valid_is_noticed_with_its_field_and_client() {
        let cases = [
            ("", None),
            (r#","capabilities":{"chunking":null}"#, None),
            (r#","capabilities":{"chunking":{"maxIncomingFrameBytes":1000,"maxIncomingMessageBytes":1000}}"#, None),
            (r#","capabilities":{"chunking":1}"#, Some("maxIncomingFrameBytes")),
            (r#","capabilities":{"chunking":{"maxIncomingFrameBytes":1000}}"#, Some("maxIncomingMessageBytes")),
            (
                r#","capabilities":{"chunking":{"maxIncomingFrameBytes":1000,"maxIncomingMessageBytes":999}}"#,
                Some("maxIncomingMessageBytes"),
            ),
            (r#","capabilities":{"chunking":{"maxIncomingFrameBytes":"x"}}"#, Some("maxIncomingFrameBytes")),
            (r#","capabilities":{"chunking":{"maxIncomingFrameBytes":-1}}"#, Some("maxIncomingFrameBytes")),
            (r#","capabilities":{"chunking":{"maxIncomingFrameBytes":1.5}}"#, Some("maxIncomingFrameBytes")),
        ];
        for (capabilities, field) in cases {
            let (ours, _peer) = breakbulk::link::pair(&Capacity::of(1 << 20), 16);
            let mut link = HandshakeLink::new(Box::new(ours), 1000, Arc::default());
            let frame = format!(r#"{{"method":"initialize","params":{{"clientId":"c"{capabilities}}}}}"#);
            link.note(frame.as_bytes()).expect("a short frame");
            let expected = field.map(|field| InvalidChunking { client: "c".to_owned(), field });
            assert_eq!(link.take_invalid_chunking(), expected, "{capabilities}");
        }
    }

    #[tokio::test]
    async fn a_websocket_does_not_close_one_direction_alone_behind_it_either() {
        let (link, _peer) = open(&budget());
        assert_eq!(link.status().half_close, HalfClose::Unsupported);
    }

    #[tokio::test]
    async fn the_memory_of_the_last_frame_can_be_released_or_taken() {
        let budget = budget();
        let (mut link, mut peer) = open(&budget);
        send(&mut peer, 0).await;
        assert!(matches!(next(&mut link).await, Some(Ok(Arrival::Frame { .. }))));
        assert_eq!(budget.held(), MB as u64);
        memory(&mut link).release_last();
        assert_eq!(budget.held(), 0);

        send(&mut peer, 0).await;
        assert!(matches!(next(&mut link).await, Some(Ok(Arrival::Frame { .. }))));
        let grant = memory(&mut link).take_last().expect("a long frame");
        drop(link);
        assert_eq!((grant.bytes(), budget.held()), (MB as u64, MB as u64));
    }

    #[tokio::test(start_paused = true)]
    async fn a_frame_that_nobody_reads_on_is_evicted_when_others_need_its_memory() {
        let budget = budget();
        let ((mut link, mut peer), other) = (open(&budget), budget.account(Some("other")));
        send(&mut peer, 1000).await;
        assert!(timeout(SOON, next(&mut link)).await.is_err(), "it is not whole");
        assert!(link.status().is_amid_frame && !link.status().waits_for_memory);
        let kept = timeout(SOON, poll_fn(|cx| memory(&mut link).poll_evicted(cx))).await;
        assert!(kept.is_err(), "nobody needs its memory");
        tokio::time::advance(3 * SOON).await;
        press(&other);
        let gone = timeout(SOON, poll_fn(|cx| memory(&mut link).poll_evicted(cx))).await;
        assert!(matches!(gone, Ok(LinkError::OverBudget(_))), "{gone:?}");
    }
}
