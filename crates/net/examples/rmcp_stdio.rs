//! An `rmcp` server and an `rmcp` client with 20 MB tool results, over a link that takes lines of 64 KiB.
//!
//! ```text
//! cargo run --example rmcp_stdio --features rmcp
//! ```
//!
//! Both sides are the official crate, unmodified; only the transport is ours. The link here is inside the process; a
//! pipe or a socket works the same way.

use breakbulk::link;
use breakbulk::rmcp::Segmented;
use breakbulk_proto::{Capacity, Limits};
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ErrorData, JsonObject, ServerCapabilities,
    ServerConfig,
};
use rmcp::service::RequestContext;
use rmcp::{RoleClient, RoleServer, ServerHandler, ServiceExt};

/// The longest line that the link takes: what an asyncio reader takes by default.
const CAP: u64 = 65_536;

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (near, far) = link::pair(&Capacity::of(CAP), 8);

    let server = Segmented::<RoleServer>::stdio(far, Limits::default());
    tokio::spawn(async move { Shouter.serve(server).await?.waiting().await.map_err(rmcp::RmcpError::from) });

    let client = Segmented::<RoleClient>::stdio(near, Limits::default());
    let ended = client.ended();
    let client = ().serve(client).await?;

    for text in ["small cargo".to_owned(), "積荷を小分けにする 🚢 ".repeat(600_000)] {
        let arguments = JsonObject::from_iter([("text".to_owned(), text.clone().into())]);
        let result = client.call_tool(CallToolRequestParams::new("shout").with_arguments(arguments)).await?;
        let answer = result.content.first().and_then(ContentBlock::as_text).ok_or("no text came back")?;
        assert_eq!(answer.text, text + "!");
        println!("the tool answered with {} bytes, over lines of at most {CAP}", answer.text.len());
    }

    client.cancel().await?;
    println!("closed: {}", ended.wait().await);
    Ok(())
}

/// A server with one tool, which repeats what it is told, louder.
struct Shouter;

impl ServerHandler for Shouter {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let text = request.arguments.as_ref().and_then(|arguments| arguments.get("text")?.as_str());
        let text = text.ok_or_else(|| ErrorData::invalid_params("the tool needs a text", None))?;
        Ok(CallToolResult::success(vec![ContentBlock::text(format!("{text}!"))]).into())
    }
}
