// Against the programs of this tree: a host that splits, a bridge in front of a host that knows nothing of segments.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import * as ws from 'ws';
import { segmented } from '../dist/segments.js';
import { Client } from './client.mjs';
import { bridge, serve } from './programs.mjs';

const connect = (url, options) => new Client(segmented(new ws.WebSocket(url), options));
const finished = (client) => client.until(() => client.actions.some(({ action }) => action.type === 'chat/turnComplete'));
const text = (actions) => actions.map(({ action }) => JSON.stringify(action)).join('\n');

test('a client that knows nothing of segments gets 5 MB from a host whose frames are capped at 64 KiB', async (t) => {
  const host = await serve('?cap=65536');
  t.after(host.end);
  const client = connect(host.url, { maxFrameBytes: 65_536 });
  let longest = 0;
  await client.initialize('one');
  assert.ok(client.socket.peer.maxFrameBytes <= 65_536, 'the host takes segments');
  const chat = await client.begin('ahp-session:/s1');
  client.socket.addEventListener('progress', ({ detail }) => {
    longest = Math.max(longest, detail.total);
  });
  client.prompt(chat, 't1', '/big 5MB');
  await finished(client);
  const largest = Math.max(...client.actions.map((action) => JSON.stringify(action).length));
  assert.ok(largest > 4_500_000, `the largest action has ${largest} characters`);
  assert.ok(longest > 4_500_000, 'progress was told of it');
  assert.deepEqual(client.socket.counters, {});
  client.socket.close();
});

for (const delivery of ['start-order', 'settled']) {
  test(`a connection that is cut in the middle of 5 MB resumes, and misses nothing (${delivery})`, async (t) => {
    const host = await serve('?cap=65536');
    t.after(host.end);
    const watcher = connect(host.url, {});
    await watcher.initialize('watcher');
    const chat = await watcher.begin('ahp-session:/s1');
    const inner = new ws.WebSocket(host.url);
    const first = new Client(segmented(inner, { maxFrameBytes: 65_536, delivery }));
    const { serverSeq } = await first.initialize('two');
    const { snapshot } = await first.ask('subscribe', { channel: chat });
    first.socket.addEventListener('progress', ({ detail }) => detail.done > 1_000_000 && inner.terminate());
    watcher.prompt(chat, 't1', '/big 5MB');
    await first.closed;
    const cursor = Math.max(delivery === 'settled' ? (first.socket.cursor ?? 0) : 0, snapshot.fromSeq, serverSeq);
    const seen = delivery === 'settled' ? cursor : Math.max(cursor, ...first.actions.map(({ serverSeq }) => serverSeq));
    await finished(watcher);
    const second = connect(host.url, { maxFrameBytes: 65_536, delivery });
    await second.opened;
    const result = await second.ask('reconnect', { clientId: 'two', lastSeenServerSeq: seen, subscriptions: [chat] });
    assert.equal(result.type, 'replay');
    const applied = new Map([...first.actions, ...result.actions].map((action) => [action.serverSeq, action]));
    const of = (actions) => actions.filter(({ channel }) => channel === chat);
    const got = of([...applied.values()].sort((a, b) => a.serverSeq - b.serverSeq));
    assert.equal(text(got), text(of(watcher.actions)));
    assert.ok(text(got).length > 4_500_000);
    for (const client of [watcher, second]) client.socket.close();
  });
}

test('a bridge carries 20 MB both ways to a host that knows nothing of segments, byte for byte', async (t) => {
  const server = new ws.WebSocketServer({ host: '127.0.0.1', port: 0, maxPayload: 1 << 28 });
  await new Promise((done) => server.on('listening', done));
  const seen = [];
  server.on('connection', (socket) =>
    socket.on('message', (data) => {
      const { id, method, params } = JSON.parse(data);
      if (method === 'initialize') seen.push(params.capabilities);
      const result = method === 'initialize' ? { protocolVersion: '1.0.0', serverSeq: 0, snapshots: [] } : params;
      socket.send(JSON.stringify({ jsonrpc: '2.0', id, result }));
    }),
  );
  const between = await bridge('ws://127.0.0.1:0?cap=100000', `ws://127.0.0.1:${server.address().port}`);
  t.after(() => {
    between.end();
    server.close();
    for (const client of server.clients) client.terminate();
  });
  const client = connect(between.url, { maxFrameBytes: 100_000 });
  await client.initialize('three');
  assert.deepEqual(seen, [undefined], 'the host was not told of segments');
  const data = 'é"\\\n'.repeat(20e6 / 7);
  const small = client.ask('resourceRead', { n: 1 });
  const echo = await client.ask('resourceWrite', { data });
  assert.ok(echo.data === data, 'what came back is what was sent');
  assert.equal((await small).n, 1);
  client.socket.close();
  await client.closed;
});

test('the example of the README runs', async (t) => {
  const host = await serve('');
  t.after(host.end);
  const address = `${host.url.split('?')[0]}#token=${host.token}`;
  const example = fileURLToPath(new URL('../examples/host.mjs', import.meta.url));
  const printed = execFileSync(process.execPath, [example, address], { encoding: 'utf8', timeout: 20_000 });
  assert.match(printed, /^protocol 1\.0\.0; the host takes messages of \d+ bytes\nclosed with 1000\n$/);
});
