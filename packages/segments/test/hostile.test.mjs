// Peers that mean ill: memory stays bounded, whatever they send.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { Budget } from '../build/budget.js';
import { Connection } from '../build/connection.js';
import { Negotiated } from '../build/handshake.js';
import { checked } from '../build/limits.js';

setFlagsFromString('--expose-gc');
const gc = runInNewContext('gc');
const MB = 1 << 20;

function connection(options = {}) {
  const budget = new Budget();
  const limits = checked(options, budget.limits);
  const agreed = { maxFrameBytes: 1 << 20, maxMessageBytes: 32 << 20, maxGroups: 8, groupTimeoutMs: 30_000, settledCursor: true };
  return new Connection({ role: 'client', limits, delivery: 'start-order', negotiated: new Negotiated(), account: budget.account('peer'), agreed });
}

const segment = (group, index, total, data) =>
  `{"jsonrpc":"2.0","method":"ahp/messageSegment","params":{"groupId":"${group}","index":${index},"total":${total},"data":"${data}"}}`;

/** Bytes that are held after `act` and were not before. */
function held(act) {
  const used = () => {
    gc();
    const { heapUsed, external } = process.memoryUsage();
    return heapUsed + external;
  };
  const before = used();
  const kept = act();
  const after = used();
  assert.ok(kept);
  return after - before;
}

test('half a million segments of one byte cost their sender more than us', () => {
  let sent = 0;
  const grown = held(() => {
    const one = connection();
    for (let group = 0; group < 8; group++) {
      for (let index = 0; index < 65_534; index++) {
        const frame = segment(`g${group}`, index, 65_535, index ? 'IA==' : 'ew==');
        sent += frame.length;
        one.frame(frame, 0);
      }
    }
    assert.equal(one.reason, null);
    return one;
  });
  assert.ok(grown < 4 * MB && grown < sent / 10, `${grown} bytes are held of ${sent} that were sent`);
});

test('a declared size allocates nothing', () => {
  const grown = held(() => {
    const one = connection();
    for (let group = 0; group < 8; group++) one.frame(segment(`g${group}`, 0, 65_535, Buffer.alloc(500, ' ').toString('base64')), 0);
    assert.equal(one.reason, null);
    return one;
  });
  assert.ok(grown < MB, `${grown} bytes are held`);
});

test('a flood of groups closes at the first too many', () => {
  const one = connection();
  for (let group = 0; group < 100_000; group++) one.frame(segment(`g${group}`, 0, 2, 'ew=='), 0);
  assert.equal(one.reason.name, 'too-many-groups');
  assert.equal(one.counters.get('too-many-groups'), 1);
});

test('a million levels cost a bit each, and one level more closes', () => {
  const text = `{"jsonrpc":"2.0","method":"m","params":${'['.repeat(999_999)}${']'.repeat(999_999)}}`;
  const bytes = Buffer.from(text).subarray(0, text.length / 2);
  const grown = held(() => {
    const one = connection();
    for (let at = 0; at < bytes.length; at += 30_000) {
      one.frame(segment('g', at / 30_000, 100, bytes.toString('base64', at, at + 30_000)), 0);
    }
    assert.equal(one.reason, null);
    return one;
  });
  assert.ok(grown < 4 * MB, `${grown} bytes are held`);
  const one = connection();
  one.frame(text, 0);
  assert.equal(one.reason, null);
  assert.equal(one.pollEvent().text.length, text.length);
  one.frame(text.replace('[', '[[').replace(']', ']]'), 0);
  assert.equal(one.reason.name, 'too-deep');
});

test('numbers, keys and ids of megabytes take no time of their own', () => {
  const one = connection({ maxFrameBytes: 8 * MB });
  const zeros = '0'.repeat(3 * MB);
  one.frame(`{"jsonrpc":"2.0","id":1${zeros}1,"method":"ping"}`, 0);
  one.frame(`{"jsonrpc":"2.0","method":"action","params":{"serverSeq":1${zeros}1e-3,"${zeros}":"\\u0000"}}`, 0);
  one.frame(`{"jsonrpc":"2.0","id":"${zeros}","method":"ping","params":{"channel":"${zeros}"}}`, 0);
  assert.equal(one.reason, null);
  one.frame(segment(1, `1${zeros}1`, 2, 'ew=='), 0);
  assert.equal(one.reason.name, 'index-invalid');
});
