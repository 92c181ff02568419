//! An MCP server on the official `rmcp` crate, over standard input and output, with one tool: it repeats what it is told.
//!
//! `rmcp-server [MAX_LINE_BYTES]` raises the longest line that it takes, which is 16 MiB if nobody does.

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ErrorData, ServerCapabilities, ServerConfig,
};
use rmcp::service::RequestContext;
use rmcp::transport::async_rw::AsyncRwTransport;
use rmcp::{RoleServer, ServerHandler, ServiceExt};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut transport = AsyncRwTransport::new(tokio::io::stdin(), tokio::io::stdout());
    if let Some(longest) = std::env::args().nth(1) {
        transport = transport.with_max_line_length(longest.parse()?);
    }
    Echo.serve(transport).await?.waiting().await?;
    Ok(())
}

struct Echo;

impl ServerHandler for Echo {
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
        Ok(CallToolResult::success(vec![ContentBlock::text(text)]).into())
    }
}
