// Memory that is used again, base64 that is canonical, and text that is decoded by whatever means the platform has.
import assert from 'node:assert/strict';
import { mock, test } from 'node:test';
import { allocate, decode, decodeBase64, release } from '../build/bytes.js';

const MB = 1 << 20;

test('memory that was given back is used again, unless it is more than twice what is needed', () => {
  mock.timers.enable({ apis: ['setTimeout'] });
  const memory = allocate(MB, MB);
  release(memory);
  assert.notEqual(allocate(MB + 1, MB + 1), memory);
  assert.notEqual(allocate(MB / 2 - 1, MB), memory);
  assert.equal(allocate(MB / 2, MB), memory);
  assert.notEqual(allocate(MB / 2, MB), memory, 'it is used once');
  release(memory);
  mock.timers.tick(1000);
  assert.notEqual(allocate(MB, MB), memory, 'it is kept for a second');
  mock.timers.reset();
});

test('at most 64 MiB are kept', () => {
  mock.timers.enable({ apis: ['setTimeout'] });
  const pieces = [40, 20, 10].map((size) => allocate(size * MB, size * MB));
  for (const piece of pieces) release(piece);
  const again = [40, 20, 10].map((size) => allocate(size * MB, size * MB));
  assert.deepEqual(again.map((piece, n) => piece === pieces[n]), [true, true, false]);
  mock.timers.tick(1000);
  mock.timers.reset();
});

test('base64 is taken if it is canonical, and else refused', () => {
  const into = allocate(16, 16);
  for (const data of ['', 'TQ==', 'TWE=', 'TWFu', '+/+/']) assert.ok(decodeBase64(data, into, 0), data);
  for (const data of ['T', 'TQ', 'TQ=', 'TR==', 'TWF=', 'TQ==TQ==', '-_-_', 'TW u', 'TWFé', 'TW"u', '====']) assert.ok(!decodeBase64(data, into, 0), data);
});

test('text of any length is decoded, and what is not UTF-8 is refused', () => {
  for (const text of ['plain ', 'é', '漢', '😀', '\ufeff']) {
    for (const times of [1, 100_000]) assert.equal(decode(Buffer.from(text.repeat(times))), text.repeat(times));
  }
  assert.equal(decode(Buffer.alloc(100_000, 0xe9)), null);
});
