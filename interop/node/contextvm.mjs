// An MCP server or client on `@contextvm/sdk`, over a Nostr relay.
//
// node contextvm.mjs server RELAY '{"encryption":"optional"|"required"|"disabled"}'
// Prints {"server":PUBKEY} when it listens. Its tools are those of mcp_server.mjs.
//
// node contextvm.mjs client RELAY PUBKEY '{"bytes":N,"ascii":bool,"token":"…"?,"progress":bool,"stateless":bool,"encryption":…}'
// Calls them, and prints what mcp_client.mjs prints.
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { Server } from '@modelcontextprotocol/sdk/server/index.js';
import { CallToolRequestSchema } from '@modelcontextprotocol/sdk/types.js';
import { NostrClientTransport, NostrServerTransport, PrivateKeySigner, ApplesauceRelayPool } from '@contextvm/sdk';
import { generateSecretKey } from 'nostr-tools/pure';
import { cargo, weigh } from './cargo.mjs';

const [role, relay, ...rest] = process.argv.slice(2);
const signer = new PrivateKeySigner(Buffer.from(generateSecretKey()).toString('hex'));
const relayHandler = new ApplesauceRelayPool(relay.split(','));
const given = JSON.parse(rest[rest.length - 1]);
const encryptionMode = given.encryption ?? 'optional';
const text = (bytes) => (given.ascii ? 'x'.repeat(bytes) : cargo(bytes));

if (role === 'server') {
  const server = new Server({ name: 'cargo', version: '1.0.0' }, { capabilities: { tools: {} } });
  server.setRequestHandler(CallToolRequestSchema, ({ params: { name, arguments: args } }) => {
    const answer = name === 'cargo' ? (args.ascii ? 'x'.repeat(args.bytes) : cargo(args.bytes)) : JSON.stringify(weigh(args.text));
    return { content: [{ type: 'text', text: answer }] };
  });
  await server.connect(new NostrServerTransport({ signer, relayHandler, encryptionMode, logLevel: 'silent' }));
  console.log(JSON.stringify({ server: await signer.getPublicKey() }));
} else {
  const errors = [];
  const client = new Client({ name: 'interop', version: '1.0.0' });
  client.onerror = (error) => errors.push(error.message);
  const transport = new NostrClientTransport({
    signer, relayHandler, encryptionMode, serverPubkey: rest[0], isStateless: given.stateless ?? false, logLevel: 'silent',
  });
  const call = async (name, args, token) => {
    const params = { name, arguments: args, ...(token === undefined ? {} : { _meta: { progressToken: token } }) };
    const options = { timeout: 80_000, ...(given.progress ? { onprogress: () => {} } : {}) };
    const { content } = await client.callTool(params, undefined, options);
    return content[0].text;
  };
  let failed;
  try {
    await client.connect(transport);
    const got = weigh(await call('cargo', { bytes: given.bytes, ascii: given.ascii }, given.token));
    const want = weigh(text(given.bytes));
    const there = given.down ? want : JSON.parse(await call('weigh', { text: text(given.bytes) }, given.token));
    console.log(JSON.stringify({ got, want, there }));
  } catch (error) {
    failed = Buffer.from([error.message, ...errors].join('; ')).toString();
    console.log(JSON.stringify({ failed }));
  }
  process.exit(failed === undefined ? 0 : 1);
}
