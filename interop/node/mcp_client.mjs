// An MCP client on the TypeScript SDK: starts a server by its command, calls its tools, prints what came of it.
//
// node mcp_client.mjs '{"bytes":N,"maxBufferSize":N?}' COMMAND ARGUMENT...
// Prints {"got":{bytes,sha256},"want":{...},"there":{...}}: the text that came, the one that should have, and the one
// that the server says it was sent. Or {"failed":why}.
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js';
import { cargo, weigh } from './cargo.mjs';

const [{ bytes, maxBufferSize }, command, ...args] = [JSON.parse(process.argv[2]), ...process.argv.slice(3)];
const errors = [];
const client = new Client({ name: 'interop', version: '1.0.0' });
client.onerror = (error) => errors.push(error.message);

async function call(name, given) {
  const { content } = await client.callTool({ name, arguments: given });
  return content[0].text;
}

try {
  await client.connect(new StdioClientTransport({ command, args, env: process.env, maxBufferSize }));
  const got = weigh(await call('cargo', { bytes }));
  const there = JSON.parse(await call('weigh', { text: cargo(bytes) }));
  console.log(JSON.stringify({ got, want: weigh(cargo(bytes)), there }));
  await client.close();
} catch (error) {
  // A quoted piece of a message may begin or end with half a character, which is no JSON.
  const failed = Buffer.from([error.message, ...errors].join('; ')).toString();
  console.log(JSON.stringify({ failed }));
}
