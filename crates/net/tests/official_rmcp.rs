//! The official `rmcp` client and server, unmodified, on our transport: messages of any size over capped links.
#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

#[path = "../examples/rmcp_stdio.rs"]
mod example;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use breakbulk::Arrival;
use breakbulk::link::{InProcessLink, pair};
use breakbulk::rmcp::{Ended, Segmented};
use breakbulk_proto::{BudgetConfig, Capacity, CloseReason, Limits, LimitsConfig, Transmit};
use futures_util::{Sink, SinkExt, Stream, StreamExt};
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ErrorData, JsonObject, ServerCapabilities,
    ServerConfig,
};
use rmcp::service::{QuitReason, RequestContext, RunningService, ServiceError};
use rmcp::{RoleClient, RoleServer, ServerHandler, ServiceExt};
use serde_json::{Value, json};

const MB: usize = 1_000_000;

#[test]
fn the_example_runs() {
    example::main().unwrap();
}

#[tokio::test]
async fn twenty_megabytes_pass_both_ways_over_stdio_in_lines_of_61_440_bytes() {
    twenty_megabytes_pass_both_ways(World::stdio(61_440, Limits::default()).await).await;
}

#[tokio::test]
async fn twenty_megabytes_pass_both_ways_over_stdio_on_a_link_that_takes_65_536_bytes() {
    twenty_megabytes_pass_both_ways(World::stdio(65_536, Limits::default()).await).await;
}

#[tokio::test]
async fn twenty_megabytes_pass_both_ways_over_cep22_in_frames_of_61_440_bytes() {
    twenty_megabytes_pass_both_ways(World::cep22(61_440, Limits::default()).await).await;
}

#[tokio::test]
async fn twenty_megabytes_pass_both_ways_over_cep22_in_frames_of_65_536_bytes() {
    twenty_megabytes_pass_both_ways(World::cep22(65_536, Limits::default()).await).await;
}

async fn twenty_megabytes_pass_both_ways(world: World) {
    let text = text(20 * MB);
    assert!(world.echo(&text).await.unwrap() == text);
    let frames = world.frames.load(Ordering::Relaxed);
    assert!(frames > 2 * 20 * MB / 65_536, "only {frames} frames");
    assert_eq!(world.echo("small").await.unwrap(), "small");
}

#[tokio::test]
async fn many_calls_of_all_sizes_at_once_get_each_its_own_answer() {
    for world in [World::stdio(65_536, Limits::default()).await, World::cep22(65_536, Limits::default()).await] {
        let texts: Vec<_> = (0..30).map(|n| text(n * n * 1000) + &n.to_string()).collect();
        let answers = futures_util::future::join_all(texts.iter().map(|text| world.echo(text))).await;
        assert!(answers.into_iter().map(Result::unwrap).eq(texts));
    }
}

#[tokio::test]
async fn a_request_that_cannot_be_sent_is_answered_to_its_caller_and_the_client_lives() {
    // On a pipe we guess that the peer takes what we take; in CEP-22 the peer refuses the transfer.
    let (stdio, cep22) = (World::stdio(65_536, small()).await, World::cep22(65_536, small()).await);
    for (world, code, reason) in [(stdio, -32011, "messageTooLarge"), (cep22, -32603, "send-aborted")] {
        assert_refused(world.echo(&text(2 * MB)).await, code, reason);
        assert_eq!(world.echo("small").await.unwrap(), "small");
    }
}

#[tokio::test]
async fn an_answer_that_cannot_be_sent_becomes_an_error_for_its_caller() {
    let (stdio, cep22) = (World::stdio(65_536, small()).await, World::cep22(65_536, small()).await);
    for (world, code, reason) in [(stdio, -32011, "messageTooLarge"), (cep22, -32603, "message-too-large")] {
        assert_refused(world.call("double", &text(700_000)).await, code, reason);
        assert_eq!(world.echo("small").await.unwrap(), "small");
    }
}

#[tokio::test]
async fn a_client_that_leaves_closes_the_link_and_the_server_sees_it() {
    let World { client, server, client_ended, server_ended, .. } = World::stdio(65_536, Limits::default()).await;
    soon(client.cancel()).await.unwrap();
    assert!(matches!(soon(server.waiting()).await.unwrap(), QuitReason::Closed));
    assert_eq!(soon(client_ended.wait()).await, CloseReason::Normal);
    assert_eq!(soon(server_ended.wait()).await, CloseReason::Peer { code: 1000 });
}

#[tokio::test]
async fn a_client_on_cep22_lets_even_its_first_answer_be_large_and_one_on_stdio_says_nothing_of_it() {
    for is_cep22 in [true, false] {
        let (near, mut far) = pair(&Capacity::of(65_536), 1);
        let transport = match is_cep22 {
            true => Segmented::<RoleClient>::cep22(near, Limits::default()),
            false => Segmented::<RoleClient>::stdio(near, Limits::default()),
        };
        let client = tokio::spawn(().serve(transport));
        let first = read(&mut far).await;
        assert_eq!(first["method"], "initialize");
        assert_eq!(first["params"]["_meta"].get("progressToken").is_some(), is_cep22, "{first}");
        client.abort();
    }
}

#[tokio::test]
async fn what_rmcp_cannot_read_goes_no_further_and_the_connection_lives() {
    let (near, mut far) = pair(&Capacity::of(65_536), 1);
    let server = tokio::spawn(Tools.serve(Segmented::<RoleServer>::stdio(near, Limits::default())));
    write(&mut far, r#"{"jsonrpc":"2.0","id":1.5,"method":"ping"}"#).await;
    write(&mut far, r#"{"jsonrpc":"2.0","id":7,"error":{}}"#).await;
    write(&mut far, "a line of a log").await;
    let hello = r#"{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"c","version":"1"}}"#;
    write(&mut far, &format!(r#"{{"jsonrpc":"2.0","id":1,"method":"initialize","params":{hello}}}"#)).await;
    assert_eq!(read(&mut far).await["id"], 1, "nothing else was answered");
    server.abort();
}

/// A server with two tools, and a client, with a link in between that asserts its cap on every frame.
struct World {
    client: RunningService<RoleClient, ()>,
    server: RunningService<RoleServer, Tools>,
    client_ended: Ended,
    server_ended: Ended,
    frames: Arc<AtomicUsize>,
}

impl World {
    async fn stdio(cap: usize, limits: Limits) -> Self {
        Self::new(cap, |link| Segmented::stdio(link, limits), |link| Segmented::stdio(link, limits)).await
    }

    async fn cep22(cap: usize, limits: Limits) -> Self {
        Self::new(cap, |link| Segmented::cep22(link, limits), |link| Segmented::cep22(link, limits)).await
    }

    async fn new(
        cap: usize,
        client: impl Fn(InProcessLink) -> Segmented<RoleClient>,
        server: impl Fn(InProcessLink) -> Segmented<RoleServer>,
    ) -> Self {
        let (near, left) = pair(&Capacity::of(cap as u64), 2);
        let (right, far) = pair(&Capacity::of(cap as u64), 2);
        let frames = Arc::new(AtomicUsize::new(0));
        let ((to_left, from_left), (to_right, from_right)) = (left.split(), right.split());
        tokio::spawn(carry(from_left, to_right, cap, Arc::clone(&frames)));
        tokio::spawn(carry(from_right, to_left, cap, Arc::clone(&frames)));
        let (client, server) = (client(near), server(far));
        let (client_ended, server_ended) = (client.ended(), server.ended());
        let (client, server) = soon(async { tokio::join!(().serve(client), Tools.serve(server)) }).await;
        Self { client: client.unwrap(), server: server.unwrap(), client_ended, server_ended, frames }
    }

    async fn echo(&self, text: &str) -> Result<String, ServiceError> {
        self.call("echo", text).await
    }

    async fn call(&self, tool: &'static str, text: &str) -> Result<String, ServiceError> {
        let arguments = JsonObject::from_iter([("text".to_owned(), Value::String(text.to_owned()))]);
        let params = CallToolRequestParams::new(tool).with_arguments(arguments);
        let result = soon(self.client.call_tool(params)).await?;
        Ok(result.content[0].as_text().unwrap().text.clone())
    }
}

/// Carries frames from one link to another, one way.
async fn carry(
    mut from: impl Stream<Item = Result<Arrival, breakbulk::LinkError>> + Unpin,
    mut to: impl Sink<Transmit> + Unpin,
    cap: usize,
    frames: Arc<AtomicUsize>,
) {
    while let Some(Ok(arrival)) = from.next().await {
        let transmit = match arrival {
            Arrival::Frame { bytes, meta } => {
                assert!(bytes.len() <= cap, "a frame of {} bytes", bytes.len());
                frames.fetch_add(1, Ordering::Relaxed);
                Transmit::Frame { tag: Default::default(), bytes: bytes.into(), meta }
            }
            Arrival::Closed { code, .. } | Arrival::Exited { code, .. } => Transmit::Close(CloseReason::Peer { code }),
            Arrival::Acked { .. } | Arrival::Ended => continue,
        };
        if to.send(transmit).await.is_err() {
            return;
        }
    }
}

#[derive(Clone)]
struct Tools;

impl ServerHandler for Tools {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let Some(Value::String(text)) = request.arguments.unwrap_or_default().remove("text") else {
            return Err(ErrorData::invalid_params("no text", None));
        };
        let times = if request.name == "double" { 2 } else { 1 };
        Ok(CallToolResult::success(vec![ContentBlock::text(text.repeat(times))]).into())
    }
}

fn assert_refused(result: Result<String, ServiceError>, code: i32, reason: &str) {
    let Err(ServiceError::McpError(error)) = result else { panic!("no error response") };
    assert_eq!((error.code.0, &error.data.unwrap()["reason"]), (code, &json!(reason)));
}

/// Limits that a message of a megabyte is over.
fn small() -> Limits {
    let limits = LimitsConfig { max_frame_bytes: 65_536, max_message_bytes: 1 << 20, ..LimitsConfig::default() };
    Limits::prove(limits, &BudgetConfig::default()).unwrap()
}

/// About `len` bytes: words, characters of two to four bytes, and what JSON escapes.
fn text(len: usize) -> String {
    let piece = "lorem ipsum größe 積荷を小分けにする 🚢👩‍🚀 \"quoted\\\" \r\n\t\u{1b}[0m ";
    piece.repeat(len.div_ceil(piece.len()))
}

async fn write(far: &mut InProcessLink, text: &str) {
    let bytes = text.to_owned().into();
    soon(far.send(Transmit::Frame { tag: Default::default(), bytes, meta: Default::default() })).await.unwrap();
}

async fn read(far: &mut InProcessLink) -> Value {
    match soon(far.next()).await {
        Some(Ok(Arrival::Frame { bytes, .. })) => serde_json::from_slice(&bytes).unwrap(),
        other => panic!("{other:?}"),
    }
}

/// What happens within a minute.
async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), future).await.expect("it happens within a minute")
}
