// The socket that applications see: over the npm `ws` class and over a duplex of strings, with both ends in this process.
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import * as ws from 'ws';
import { segmented, sharedBudget } from '../dist/segments.js';
import { big, duplexes, messages, sockets, text } from './pair.mjs';

const SMALL = { maxFrameBytes: 4096, maxMessageBytes: 1 << 20 };
const initialize = text({ id: 1, method: 'initialize', params: { clientId: 'c', protocolVersions: ['1.0.0'] } });
const welcome = text({ id: 1, result: { protocolVersion: '1.0.0', serverSeq: 0, snapshots: [] } });

/** A client and a server that have shaken hands, over a duplex of strings. */
async function connected(client = SMALL, server = SMALL) {
  const [a, b] = duplexes();
  const [near, far] = [segmented(a, client), segmented(b, { role: 'server', ...server })];
  const asked = messages(far, 1);
  const told = messages(near, 1);
  near.send(initialize);
  assert.deepEqual(await asked, [initialize]);
  far.send(welcome);
  assert.deepEqual(await told, [welcome]);
  return { near, far };
}

test('the handshake negotiates segments, and the application sees its own bytes', async () => {
  const { near, far } = await connected();
  assert.equal(near.peer.maxFrameBytes, 4096);
  assert.equal(far.peer.settledCursor, true);
  near.close();
  await new Promise((done) => far.addEventListener('close', done));
  assert.equal(near.readyState, near.CLOSED);
});

test('messages of any size go both ways, byte for byte, in order', async () => {
  const { near, far } = await connected();
  const sent = [big(100_000), text({ method: 'action', params: { channel: 'd' } }), big(300_000), big(8)];
  const got = messages(near, 4);
  for (const one of sent) far.send(one);
  assert.deepEqual(await got, sent);
  const back = messages(far, 4);
  for (const one of sent) near.send(one);
  assert.deepEqual(await back, sent);
  near.close();
});

test('a request that is too large for the peer is answered here', async () => {
  const { near, far } = await connected(SMALL, { maxFrameBytes: 4096, maxMessageBytes: 10_000 });
  const failed = new Promise((done) => near.addEventListener('sendfailed', done));
  const answered = messages(near, 1);
  const called = [];
  near.send(text({ id: 6, method: 'ping' }), (error) => called.push(error));
  near.send(text({ id: 7, method: 'resourceWrite', params: { data: 'x'.repeat(20_000) } }), {}, (error) => called.push(error.message));
  assert.equal((await failed).detail.name, 'send-too-large');
  const [answer] = (await answered).map((one) => JSON.parse(one));
  assert.equal(answer.id, 7);
  assert.equal(answer.error.code, -32011);
  assert.equal(answer.error.data.limit, 10_000);
  assert.deepEqual(near.counters, { 'send-too-large': 1 });
  assert.deepEqual(called, [undefined, `message of ${20_000 + 70} bytes is over the peer's limit of 10000`]);
  far.close();
});

test('a violation closes with its code and its name', async () => {
  const [a, b] = duplexes();
  const near = segmented(a, SMALL);
  const ended = new Promise((done) => near.addEventListener('close', done));
  await b.writable.getWriter().write(text({ method: 'ahp/messageSegment', params: {} }));
  const { code, reason, wasClean } = await ended;
  assert.deepEqual([code, reason, wasClean], [4400, 'invalid messageSegment: uninvited-segment', false]);
  assert.equal(near.closeReason.name, 'uninvited-segment');
  assert.throws(() => segmented({ ...a }, { maxFrameBytes: 1 }));
});

test('limits that do not hold together are refused by name', () => {
  const refused = (options, name) => assert.throws(() => segmented(duplexes()[0], options), { name: 'RangeError', message: name });
  refused({ maxFrameBytes: 100 }, 'maxFrameBytes is 100; it must be from 512 to 4294967295');
  refused({ maxMessageBytes: 1000 }, /^maxMessageBytes is 1000; it must be from 4194304 to /);
  refused({ budget: sharedBudget({ process: 1 << 20 }) }, /^maxMessageBytes is 33554432/);
});

test('it stands in for a socket of the npm ws class, with its events and with on', async () => {
  const { near, far, end } = await sockets(ws);
  const [client, server] = [segmented(near, SMALL), segmented(far, { role: 'server', ...SMALL })];
  const heard = [];
  server.on('message', (data, isBinary) => {
    heard.push([data, isBinary]);
    server.send(welcome);
  });
  const told = messages(client, 1);
  assert.equal(client.readyState, client.OPEN);
  assert.match(client.url, /^ws:\/\/127\.0\.0\.1:\d+\/ahp$/);
  client.send(initialize);
  await told;
  assert.deepEqual(heard, [[initialize, false]]);
  const large = messages(client, 1);
  server.send(big(200_000));
  assert.deepEqual(await large, [big(200_000)]);
  const closing = new Promise((done) => server.on('close', (code, reason) => done([code, reason])));
  client.send(big(100_000));
  client.close(4001, 'enough');
  assert.deepEqual(await closing, [4001, 'enough']);
  assert.equal(heard.length, 2, 'what was sent before the close has come');
  end();
});

test('what was negotiated is remembered for the next socket to the same address', async () => {
  const server = new ws.WebSocketServer({ host: '127.0.0.1', port: 0 });
  await new Promise((done) => server.on('listening', done));
  server.on('connection', (socket) => {
    const far = segmented(socket, { role: 'server', ...SMALL });
    far.onmessage = ({ data }) => far.send(text({ id: JSON.parse(data).id, result: { protocolVersion: '1.0.0' } }));
  });
  const open = async (query) => {
    const socket = segmented(new ws.WebSocket(`ws://127.0.0.1:${server.address().port}/ahp?${query}`), SMALL);
    await new Promise((done) => socket.addEventListener('open', done));
    return socket;
  };
  const first = await open('a');
  const told = messages(first, 1);
  first.send(initialize);
  await told;
  first.close();
  const second = await open('b');
  assert.equal(second.peer, null);
  // Longer than a frame, so it goes in segments, before any answer of this connection.
  const answered = messages(second, 1);
  second.send(text({ id: 2, method: 'reconnect', params: { clientId: 'c', lastSeenServerSeq: 1, x: 'x'.repeat(10_000) } }));
  assert.equal(second.peer.maxMessageBytes, 1 << 20);
  assert.deepEqual(await answered, [text({ id: 2, result: { protocolVersion: '1.0.0' } })]);
  second.close();
  server.close();
});

test('small messages pass the rest of a large one that the socket has not taken', async () => {
  const { near, far, end } = await sockets(ws);
  const [client, server] = [segmented(near, SMALL), segmented(far, { role: 'server', ...SMALL, maxMessageBytes: 32 << 20 })];
  const order = [];
  server.on('message', (data) => {
    const { id, method } = JSON.parse(data);
    order.push(method);
    if (method === 'initialize') server.send(text({ id, result: { protocolVersion: '1.0.0' } }));
  });
  const told = messages(client, 1);
  client.send(initialize);
  await told;
  const done = new Promise((resolve) => server.on('message', (data) => data.length > 1e7 && resolve()));
  client.send(text({ id: 2, method: 'resourceWrite', params: { channel: 'a', data: 'x'.repeat(20 << 20) } }));
  client.send(text({ id: 3, method: 'ping' }));
  client.send(text({ method: 'dispatchAction', params: { channel: 'b', action: { type: 'chat/turnCancelled' } } }));
  client.send(text({ id: 4, method: 'resourceRead', params: { channel: 'b' } }));
  await done;
  await new Promise((resolve) => setTimeout(resolve, 50));
  assert.deepEqual(order, ['initialize', 'ping', 'dispatchAction', 'resourceWrite', 'resourceRead']);
  end();
});

test('progress tells of large messages after each segment, and done when they are over', async () => {
  const { near, far } = await connected();
  const seen = [];
  for (const [name, socket] of Object.entries({ near, far })) {
    socket.addEventListener('progress', ({ detail }) => seen.push([name, detail.direction, detail.done <= detail.total]));
    socket.addEventListener('done', ({ detail }) => seen.push([name, detail.direction, 'done']));
  }
  const got = messages(near, 2);
  far.send(big(500_000));
  far.send(text({ method: 'action', params: {} }));
  await got;
  assert.deepEqual(seen.filter(([, , what]) => what === 'done').map(([name]) => name).sort(), ['far', 'near']);
  assert.ok(seen.length > 4 && seen.every(([name, direction, what]) => what && (name === 'near') === (direction === 'in')));
});

test('the settled cursor waits for messages that are unfinished', async () => {
  const { near, far } = await connected({ ...SMALL, delivery: 'settled' });
  const seqs = [];
  near.onmessage = ({ data }) => {
    seqs.push([JSON.parse(data).params.serverSeq, near.cursor]);
  };
  const got = messages(near, 2);
  far.send(big(200_000, { serverSeq: 5 }));
  far.send(text({ method: 'action', params: { channel: 'other', serverSeq: 6 } }));
  await got;
  // The small one came first; the cursor had to wait for the large one.
  assert.deepEqual(seqs, [
    [6, null],
    [5, 6],
  ]);
});

test("it wraps Node's own WebSocket", async () => {
  const server = new ws.WebSocketServer({ host: '127.0.0.1', port: 0 });
  await new Promise((done) => server.on('listening', done));
  server.on('connection', (socket) => {
    const far = segmented(socket, { role: 'server', ...SMALL });
    far.onmessage = ({ data }) => far.send(JSON.parse(data).id === 1 ? welcome : data);
  });
  const child = fileURLToPath(new URL('./node-socket.mjs', import.meta.url));
  const flags = globalThis.WebSocket ? [] : ['--experimental-websocket', '--no-warnings'];
  const printed = await new Promise((done, failed) =>
    execFile(process.execPath, [...flags, child, `ws://127.0.0.1:${server.address().port}/`], (error, out) => (error ? failed(error) : done(out))),
  );
  assert.equal(printed, '1000 true\n');
  server.close();
});

test('a socket that can pause is not read while there is no memory for what it brings', () => {
  const MB = 1 << 20;
  const agreed = { maxFrameBytes: MB, maxMessageBytes: 4 * MB, maxGroups: 8, groupTimeoutMs: 60_000, settledCursor: true };
  const budget = sharedBudget({ process: 5 * MB, principal: 5 * MB });
  const calls = [];
  const open = (name) => {
    const inner = Object.assign(new EventTarget(), { readyState: 1, bufferedAmount: 0, close() {}, send() {} });
    for (const what of ['pause', 'resume']) inner[what] = () => calls.push(`${name} ${what}`);
    const socket = segmented(inner, { maxFrameBytes: MB, maxMessageBytes: 4 * MB, agreed, budget });
    const data = Buffer.alloc(MB / 2, ' ').toString('base64');
    const params = { groupId: name, index: 0, total: 8, data };
    inner.dispatchEvent(new MessageEvent('message', { data: text({ method: 'ahp/messageSegment', params }) }));
    return socket;
  };
  const [first, second] = [open('first'), open('second')];
  assert.equal(second.closeReason, null);
  assert.deepEqual(calls, ['second pause']);
  for (const socket of [first, second]) socket.close();
});

test('a group does not expire while nothing could be read', async () => {
  const { near, far, end } = await sockets(ws);
  const agreed = { maxFrameBytes: 4096, maxMessageBytes: 1 << 20, maxGroups: 8, groupTimeoutMs: 200, settledCursor: true };
  const client = segmented(near, { ...SMALL, groupTimeoutMs: 200, graceMs: 0, agreed });
  const [begun, expired] = ['progress', 'expired'].map((type) => new Promise((done) => client.addEventListener(type, done)));
  const whole = text({ method: 'm' });
  const part = (index, data) =>
    text({ method: 'ahp/messageSegment', params: { groupId: 'g', index, total: 2, data: Buffer.from(data).toString('base64') } });
  far.send(part(0, whole.slice(0, 9)));
  await begun;
  const got = messages(client, 1);
  far.send(part(1, whole.slice(9)));
  // As a page that is frozen, or a program that computes: the rest lies in the socket meanwhile.
  for (const until = performance.now() + 1500; performance.now() < until; );
  assert.deepEqual(await Promise.race([got, expired.then(() => 'expired')]), [whole]);
  end();
});
