// In a real browser: the WebSocket of a page, wrapped.
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { test } from 'node:test';
import { WebSocketServer } from 'ws';
import { openPage } from './browser.mjs';
import { machineSocket } from './programs.mjs';

test('a page gets and sends messages of megabytes, and closes with codes that it may use', { timeout: 90_000 }, async (t) => {
  const [host, { page, end }] = await Promise.all([machineSocket(), openPage()]);
  t.after(() => Promise.all([host.end(), end()]));
  for (const isOld of [false, true]) {
    const result = await page.evaluate(
      async ({ url, isOld }) => {
        if (isOld) for (const name of ['setFromBase64', 'toBase64']) delete Uint8Array.prototype[name];
        const { segmented } = await import('/segments.js');
        const { Client } = await import('/client.mjs');
        const client = new Client(segmented(new WebSocket(url), { maxFrameBytes: 900_000 }));
        await client.initialize('page');
        let segments = 0;
        client.socket.addEventListener('progress', () => segments++);
        const given = await client.ask('give', { length: 5e6 });
        const data = 'é漢😀"\\\n'.repeat(200_000);
        const small = client.ask('echo', { n: 1 });
        const echo = await client.ask('echo', { data });
        const hash = await crypto.subtle.digest('SHA-256', new TextEncoder().encode(given));
        const hex = Array.from(new Uint8Array(hash), (byte) => byte.toString(16).padStart(2, '0')).join('');
        client.socket.close(4001, 'enough');
        const { code } = await client.closed;
        return { length: given.length, hex, isSame: echo.data === data, small: await small, segments, code, counters: client.socket.counters };
      },
      { url: host.url, isOld },
    );
    let want = '';
    for (let n = 0; want.length < 5e6; n++) want += `    let value_${n} = compute(input, "text", ${n * 7}); // a comment\n`;
    assert.equal(result.hex, createHash('sha256').update(want).digest('hex'));
    assert.ok(result.isSame && result.segments > 10, JSON.stringify(result));
    assert.deepEqual(result.small.n, 1);
    assert.deepEqual(result.counters, { 'close-program': 1 });
  }
});

test('a page is disconnected from a peer that breaks a rule, and lives', { timeout: 60_000 }, async (t) => {
  const server = new WebSocketServer({ host: '127.0.0.1', port: 0 });
  await new Promise((done) => server.on('listening', done));
  const codes = [];
  const hostile = [
    (socket) => socket.send('['.repeat(3_000_000)),
    (socket) => socket.send(`{"jsonrpc":"2.0","method":"${'m'.repeat(5000)}"}`),
    (socket) => socket.send('{"jsonrpc":"2.0","method":"ahp/messageSegment","params":{}}'),
  ];
  server.on('connection', (socket) => {
    socket.on('close', (code) => codes.push(code));
    hostile[codes.length](socket);
  });
  const { page, end } = await openPage();
  t.after(async () => {
    await end();
    server.close();
  });
  const options = { maxFrameBytes: 4096, maxMessageBytes: 4_000_000, maxDepth: 10_000 };
  const limits = [options, { ...options, maxMessageBytes: 4096 }, options];
  const names = [];
  for (const limit of limits) {
    const seen = codes.length;
    names.push(
      await page.evaluate(
        async ({ url, limit }) => {
          const { segmented } = await import('/segments.js');
          const socket = segmented(new WebSocket(url), limit);
          await new Promise((done) => socket.addEventListener('close', done));
          return socket.closeReason.name;
        },
        { url: `ws://127.0.0.1:${server.address().port}/`, limit },
      ),
    );
    while (codes.length === seen) await new Promise((done) => setTimeout(done, 10));
  }
  assert.deepEqual(names, ['too-deep', 'frame-too-large', 'uninvited-segment']);
  assert.deepEqual(codes, [4400, 4009, 4400]);
});

test('a page lives through floods of groups and of segments of one byte, in bounded memory', { timeout: 90_000 }, async (t) => {
  const server = new WebSocketServer({ host: '127.0.0.1', port: 0 });
  await new Promise((done) => server.on('listening', done));
  const { page, end } = await openPage();
  t.after(async () => {
    await end();
    server.close();
  });
  const segment = (group, index, total, data) =>
    `{"jsonrpc":"2.0","method":"ahp/messageSegment","params":{"groupId":"${group}","index":${index},"total":${total},"data":"${data}"}}`;
  server.on('connection', (socket, { url }) => {
    socket.on('error', () => {});
    socket.on('message', (text) => {
      socket.send(`{"jsonrpc":"2.0","id":${JSON.parse(text).id},"result":{"protocolVersion":"1.0.0"}}`);
      if (url === '/groups') for (let group = 0; group < 20_000; group += 1) socket.send(segment(`g${group}`, 0, 2, 'ew=='));
      if (url !== '/bytes') return;
      for (let group = 0; group < 8; group += 1) for (let index = 0; index < 20_000; index += 1) socket.send(segment(`g${group}`, index, 65_535, index ? 'IA==' : 'ew=='));
      socket.send('{"jsonrpc":"2.0","method":"last"}');
    });
  });
  const session = await page.context().newCDPSession(page);
  const heap = async () => {
    await session.send('HeapProfiler.collectGarbage');
    return (await session.send('Runtime.getHeapUsage')).usedSize;
  };
  const open = (path) =>
    page.evaluate(
      async (url) => {
        const { segmented } = await import('/segments.js');
        const socket = (window.socket = segmented(new WebSocket(url)));
        const isOver = new Promise((done) => socket.addEventListener('close', done));
        socket.onopen = () => socket.send('{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersions":["1.0.0"],"clientId":"c"}}');
        const isLast = new Promise((done) => (socket.onmessage = ({ data }) => data.includes('"last"') && done()));
        await Promise.race([isOver, isLast]);
        return socket.closeReason?.name ?? 'open';
      },
      `ws://127.0.0.1:${server.address().port}${path}`,
    );
  assert.equal(await open('/groups'), 'too-many-groups');
  const before = await heap();
  assert.equal(await open('/bytes'), 'open');
  const grown = (await heap()) - before;
  t.diagnostic(`160,000 segments of one byte in 8 groups: ${grown} bytes are held`);
  assert.ok(grown < 4e6, `${grown} bytes are held`);
  assert.equal(await page.evaluate(() => 1 + 1), 2);
});
