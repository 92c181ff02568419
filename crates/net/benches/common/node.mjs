// Both ends of loopback WebSockets, each end in a thread of its own. The package sets TCP_NODELAY by itself.
//
// node node.mjs PACKAGE
//
// The first line of standard input is the message. Then `carry` sends it, and `parse` sends it to be parsed. Each line is
// answered with `done`: when the links are open, and when the message has arrived.
import { once } from 'node:events';
import { createRequire } from 'node:module';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { Worker, isMainThread, parentPort, workerData } from 'node:worker_threads';

const require = createRequire(import.meta.url);

async function send(path) {
  const { WebSocket } = require(path);
  const receiver = new Worker(fileURLToPath(import.meta.url), { workerData: path });
  const [port] = await once(receiver, 'message');
  const links = {};
  for (const way of ['carry', 'parse']) {
    links[way] = new WebSocket(`ws://127.0.0.1:${port}/${way}`);
    await once(links[way], 'open');
  }
  receiver.on('message', () => process.stdout.write('done\n'));
  let text;
  for await (const line of createInterface({ input: process.stdin })) {
    if (text === undefined) {
      text = line;
      process.stdout.write('done\n');
    } else {
      links[line].send(text);
    }
  }
  process.exit(0);
}

function receive(path) {
  const { WebSocketServer } = require(path);
  const server = new WebSocketServer({ host: '127.0.0.1', port: 0 });
  server.on('listening', () => parentPort.postMessage(server.address().port));
  server.on('connection', (link, { url }) => {
    const take = url === '/parse' ? (data) => JSON.parse(data).id : (data) => data.length;
    link.on('message', (data) => parentPort.postMessage(take(data)));
  });
}

if (isMainThread) send(process.argv[2]);
else receive(workerData);
