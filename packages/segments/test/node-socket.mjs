// Sends a large message through Node's own WebSocket, and prints how it closed and whether the same came back.
import { segmented } from '../dist/segments.js';
import { Client } from './client.mjs';

const client = new Client(segmented(new WebSocket(process.argv[2]), { maxFrameBytes: 4096 }));
await client.initialize('c');
const sent = JSON.stringify({ jsonrpc: '2.0', method: 'x', params: { text: 'é"'.repeat(100_000) } });
const got = new Promise((done) => client.socket.addEventListener('message', ({ data }) => done(data)));
client.socket.send(sent);
const isSame = (await got) === sent;
client.socket.close();
console.log((await client.closed).code, isSame);
