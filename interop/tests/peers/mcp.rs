//! The TypeScript MCP SDK, client and server, with chunked stdio between two bridges.

use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::process::Command;

use super::peer::node;
use super::program::{breakbulk, file};

/// A frame of chunked stdio with its line end.
const LONGEST_LINE: u64 = 61_440;

#[tokio::test]
async fn twenty_megabytes_of_cjk_and_emoji_pass_both_ways_in_lines_of_61_440_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let longest = dir.path().join("longest.json");
    let said = call(json!({"bytes": 20_000_000, "maxBufferSize": 64 << 20}), Some(longest.to_str().unwrap())).await;
    assert!(said["got"]["bytes"].as_u64().unwrap_or(0) >= 20_000_000, "{said}");
    assert_eq!(said["got"], said["want"], "the tool's result");
    assert_eq!(said["there"], said["want"], "what the tool was given");
    let longest: Value = serde_json::from_slice(&std::fs::read(longest).unwrap()).unwrap();
    for way in ["in", "out"] {
        let longest = longest[way].as_u64().unwrap();
        assert!((LONGEST_LINE / 2..=LONGEST_LINE).contains(&longest), "{way}: {longest}");
    }
}

/// The last hop is a plain line, and the SDK takes no line over 10 MiB unless it is told to: we cannot help that.
#[tokio::test]
async fn a_client_that_keeps_its_own_limit_of_10_mib_takes_nine_megabytes_and_not_eleven() {
    let said = call(json!({"bytes": 9_000_000}), None).await;
    assert!(said["got"] == said["want"] && said["got"].is_object(), "{said}");
    let said = call(json!({"bytes": 11_000_000}), None).await;
    assert!(said["failed"].as_str().is_some_and(|why| why.contains("10485760")), "{said}");
}

/// Runs the client with two bridges before its server; `measured` keeps the longest lines between the bridges.
async fn call(how: Value, measured: Option<&str>) -> Value {
    let program = breakbulk();
    let server = format!("node {}", quoted(&file("node/mcp_server.mjs")));
    let host_bridge =
        format!("{program} bridge --listen stdio:?dialect=stdio --connect {}", quoted(&format!("exec:{server}")));
    let between = match measured {
        Some(path) => format!("node {} {} {host_bridge}", quoted(&file("node/measure.mjs")), quoted(path)),
        None => host_bridge,
    };
    let output = Command::from(node())
        .args([&file("node/mcp_client.mjs"), &how.to_string()])
        .args([program, "bridge", "--listen", "stdio:", "--connect", &format!("exec:?dialect=stdio {between}")])
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(Duration::from_secs(90), output).await.expect("the client ends").unwrap();
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"))
}

/// One word of a command.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}
