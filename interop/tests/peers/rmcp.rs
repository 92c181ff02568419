//! The official `rmcp` client and server, with chunked stdio between two bridges, or with our transport and one.

use std::process::Stdio;
use std::time::Duration;

use breakbulk::Dialer;
use breakbulk::rmcp::Segmented;
use breakbulk_proto::Limits;
use rmcp::model::{CallToolRequestParams, ContentBlock, JsonObject};
use rmcp::service::{RunningService, ServiceError};
use rmcp::transport::async_rw::AsyncRwTransport;
use rmcp::{RoleClient, ServiceExt};
use tokio::io::AsyncReadExt;
use tokio::process::{Child, Command};

use super::program::{breakbulk, command};
use super::soon;
use super::text::text;

type Client = RunningService<RoleClient, ()>;

const SERVER: &str = env!("CARGO_BIN_EXE_rmcp-server");
const MB: usize = 1_000_000;
/// What an application sets that wants more than 16 MiB a line.
const RAISED: usize = 64 << 20;

#[tokio::test]
async fn twenty_megabytes_pass_both_ways_where_client_and_server_take_such_lines() {
    let (client, _bridge) = behind_two_bridges(Some(RAISED), &format!("{SERVER} {RAISED}")).await;
    for size in [1000, 20 * MB] {
        assert!(echo(&client, &text(size)).await.unwrap() == text(size));
    }
}

/// The last hop is a plain line. What `rmcp` does not take there it drops, and never answers.
#[tokio::test]
async fn fifteen_megabytes_pass_with_the_limits_that_rmcp_has_by_itself_and_seventeen_are_never_answered() {
    let (client, _bridge) = behind_two_bridges(None, &format!("{SERVER} {RAISED}")).await;
    assert!(echo(&client, &text(15 * MB)).await.unwrap() == text(15 * MB));
    let large = text(17 * MB);
    let answer = tokio::time::timeout(Duration::from_secs(5), echo(&client, &large)).await;
    assert!(answer.is_err(), "dropped without a word");
    assert_eq!(echo(&client, "small").await.unwrap(), "small", "and the connection lives");
}

/// With our transport in the client, one bridge is enough, and no option is.
#[tokio::test]
async fn twenty_megabytes_pass_both_ways_to_a_client_on_our_transport_with_one_bridge() {
    let bridge = format!("{} bridge --listen stdio:?dialect=stdio", breakbulk());
    let address = format!("exec:?dialect=stdio {bridge} --connect 'exec:{SERVER} {RAISED}'").parse().unwrap();
    let link = Dialer::default().dial(&address).await.unwrap();
    let client = soon(().serve(Segmented::<RoleClient>::stdio(link, Limits::default()))).await.unwrap();
    assert!(echo(&client, &text(20 * MB)).await.unwrap() == text(20 * MB));
    soon(client.cancel()).await.unwrap();
}

/// Whoever waits for the end of a client, waits for the bridges and the server, too.
#[tokio::test]
async fn two_bridges_and_the_server_end_when_the_client_does() {
    let (client, mut bridge) = behind_two_bridges(None, SERVER).await;
    assert_eq!(echo(&client, "small").await.unwrap(), "small");
    let mut log = bridge.stderr.take().unwrap();
    soon(client.cancel()).await.unwrap();
    assert_eq!(soon(bridge.wait()).await.unwrap().code(), Some(0));
    // All of them have it open: it ends with the last.
    soon(log.read_to_string(&mut String::new())).await.unwrap();
}

/// What cannot say goodbye leaves nobody behind.
#[tokio::test]
async fn a_bridge_and_a_server_behind_a_killed_bridge_end() {
    let (client, mut bridge) = behind_two_bridges(None, SERVER).await;
    assert_eq!(echo(&client, "small").await.unwrap(), "small");
    let mut log = bridge.stderr.take().unwrap();
    bridge.kill().await.unwrap();
    soon(log.read_to_string(&mut String::new())).await.unwrap();
}

/// A client on plain lines, then a bridge, chunked stdio, and a bridge before the server.
async fn behind_two_bridges(longest_line: Option<usize>, server: &str) -> (Client, Child) {
    let host_bridge = format!("{} bridge --listen stdio:?dialect=stdio --connect 'exec:{server}'", breakbulk());
    let mut bridge = Command::from(command());
    bridge.args(["bridge", "--listen", "stdio:", "--connect", &format!("exec:?dialect=stdio {host_bridge}")]);
    let mut bridge =
        bridge.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
    let mut transport = AsyncRwTransport::new(bridge.stdout.take().unwrap(), bridge.stdin.take().unwrap());
    if let Some(longest) = longest_line {
        transport = transport.with_max_line_length(longest);
    }
    (soon(().serve(transport)).await.unwrap(), bridge)
}

async fn echo(client: &Client, text: &str) -> Result<String, ServiceError> {
    let arguments = JsonObject::from_iter([("text".to_owned(), text.into())]);
    let result = soon(client.call_tool(CallToolRequestParams::new("echo").with_arguments(arguments))).await?;
    Ok(result.content.first().and_then(ContentBlock::as_text).unwrap().text.clone())
}
