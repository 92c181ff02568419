//! What is large on its way between the official client and the host: a result, a file, a prompt.

use ahp_types::state::SnapshotState;
use breakbulk::ahp::Negotiated;

use super::guest::{Guest, calls, chat_of};
use super::way::Way;
use crate::soon;
use crate::text::text;
use crate::world::{read, write};

const MB: usize = 1_000_000;

#[tokio::test(flavor = "multi_thread")]
async fn a_result_a_file_and_a_prompt_of_many_megabytes_pass_without_a_cap() {
    pass(Way::Plain).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_a_file_and_a_prompt_of_many_megabytes_pass_through_64_kib() {
    pass(Way::Capped).await;
}

async fn pass(way: Way) {
    let place = way.place(&[]);
    let relay = way.relay(&place, []).await;
    let guest = Guest::arrive(way.transport(&relay.url, &Negotiated::default()).await.unwrap(), "one").await;
    let chat = guest.begin("ahp-session:/large").await;
    let turn = guest.turn(&chat, "big", "/big 5MB").await;
    let content = calls(&turn)[0]["content"][0]["text"].as_str().unwrap();
    assert_eq!(content.len(), 5 * MB);
    assert!(content.starts_with("demo line 1:"), "{content:.80}");

    let (uri, file) = (place.uri("large.txt"), text(30 * MB));
    soon(guest.client.resource_write(write(&uri, &file))).await.unwrap();
    assert!(std::fs::read_to_string(place.file("large.txt")).unwrap() == file, "what was written");
    assert!(soon(guest.client.resource_read(read(&uri))).await.unwrap().data == file, "what is read");
    println!("{way:?}: 5 MB of a result, 30 MB of a file each way");

    // 20 MB, and more as JSON.
    let prompt = text(22 * MB);
    assert!(prompt.len() >= 20 * MB);
    guest.prompt(&chat, "paste", &prompt).await;
    let is_complete = |state: &SnapshotState| {
        let turn = chat_of(state).turns.iter().find(|turn| turn.id == "paste")?;
        Some(turn.message.text == prompt)
    };
    assert!(guest.memory.until(&chat, is_complete).await, "the prompt came back as it was");
    println!("{way:?}: a prompt of {} bytes", prompt.len());
    guest.memory.assert_in_order();
    way.assert_kept(&relay);
}
