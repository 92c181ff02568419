//! The official `ahp` client on the official `ahp-ws` transport, through two bridges, with messages of 1, 17 and 30 MB.

use ahp::Client;
use ahp_ws::WebSocketTransport;
use breakbulk::ahp::{Negotiated, Segmented};
use breakbulk_proto::Limits;

use super::soon;
use super::text::text;
use super::world::{World, client_on, read, write};

const MB: usize = 1_000_000;
const SIZES: [usize; 3] = [MB, 17 * MB, 30 * MB];

#[tokio::test(flavor = "multi_thread")]
async fn thirty_megabytes_pass_both_ways_through_two_bridges_and_no_frame_between_them_is_over_the_cap() {
    let world = World::new([]).await;
    let client = client_on(WebSocketTransport::connect(&world.client_bridge.url).await.unwrap()).await;
    for size in SIZES {
        passes_to_the_host(&world, &client, size).await;
        passes_to_the_client(&world, &client, size).await;
    }
    world.assert_capped();
}

/// The control for the test above: the official transport takes no frame over 16 MiB.
#[tokio::test(flavor = "multi_thread")]
async fn without_us_seventeen_megabytes_from_the_host_end_the_client() {
    let world = World::new([]).await;
    let client = client_on(WebSocketTransport::connect(&world.server).await.unwrap()).await;
    passes_to_the_client(&world, &client, MB).await;
    world.host.put_file("file:///back", &text(17 * MB));
    let error = soon(client.resource_read(read("file:///back"))).await.unwrap_err();
    assert!(error.to_string().contains("transport closed"), "{error}");
    assert!(soon(client.ping()).await.is_err(), "the client is dead");
}

/// The adapter needs no bridge beside the client, but works with one that speaks segments on both sides.
#[tokio::test(flavor = "multi_thread")]
async fn thirty_megabytes_pass_both_ways_to_a_client_that_segments_itself() {
    let world = World::listening("ws://127.0.0.1:0?cap=300000", []).await;
    let transport = WebSocketTransport::connect(&world.client_bridge.url).await.unwrap();
    let client = client_on(Segmented::new(transport, Limits::default(), Negotiated::default())).await;
    for size in SIZES {
        passes_to_the_host(&world, &client, size).await;
        passes_to_the_client(&world, &client, size).await;
    }
    world.assert_capped();
}

async fn passes_to_the_host(world: &World, client: &Client, size: usize) {
    let there = text(size);
    soon(client.resource_write(write("file:///there", &there))).await.unwrap();
    assert!(world.host.file("file:///there") == Some(there), "{size} bytes to the host");
}

async fn passes_to_the_client(world: &World, client: &Client, size: usize) {
    let back = text(size);
    world.host.put_file("file:///back", &back);
    assert!(soon(client.resource_read(read("file:///back"))).await.unwrap().data == back, "{size} bytes to the client");
}
