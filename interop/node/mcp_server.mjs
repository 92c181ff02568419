// An MCP server on the TypeScript SDK, over standard input and output.
//
// Its tools: `cargo` gives back about so many bytes of text, `weigh` says how long a text is and what it hashes to.
import { Server } from '@modelcontextprotocol/sdk/server/index.js';
import { StdioServerTransport } from '@modelcontextprotocol/sdk/server/stdio.js';
import { CallToolRequestSchema, ListToolsRequestSchema } from '@modelcontextprotocol/sdk/types.js';
import { cargo, weigh } from './cargo.mjs';

const server = new Server({ name: 'cargo', version: '1.0.0' }, { capabilities: { tools: {} } });
const tool = (name) => ({ name, inputSchema: { type: 'object' } });
server.setRequestHandler(ListToolsRequestSchema, () => ({ tools: [tool('cargo'), tool('weigh')] }));
server.setRequestHandler(CallToolRequestSchema, ({ params: { name, arguments: given } }) => {
  const text = name === 'cargo' ? cargo(given.bytes) : JSON.stringify(weigh(given.text));
  return { content: [{ type: 'text', text }] };
});
// Its own limit is 10 MiB a line; the option raises it.
await server.connect(new StdioServerTransport(undefined, undefined, { maxBufferSize: 64 << 20 }));
