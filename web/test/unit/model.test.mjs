// The page's model, with the transcripts that the Rust model is tested with.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { Model } from '../../src/v2/model.js';

const golden = new URL('../../../crates/lifecycle/tests/v2/golden/', import.meta.url);
const plain = (value) => JSON.parse(JSON.stringify(value));

const transcripts = JSON.parse(readFileSync(new URL('transcripts.json', golden), 'utf8'));

for (const { name, events, applied, lastSeq, state } of transcripts) {
  test(`${name}: the state is the one of the Rust model`, () => {
    const model = new Model('s');
    assert.equal(events.filter((event) => model.apply(event)).length, applied);
    assert.equal(model.lastSeq, lastSeq);
    assert.deepEqual(plain(model.state), state);
  });
}

const lines = (file) => readFileSync(new URL(file, golden), 'utf8').trim().split('\n').map((line) => JSON.parse(line));

test('a conversation ends with two messages of the agent, and nothing is open', () => {
  const model = new Model('s1');
  for (const event of lines('conversation.jsonl')) assert.ok(model.apply(event));
  const { messages, current, running, permissions } = model.state;
  assert.deepEqual(messages.map(({ author }) => author), ['user', 'agent', 'agent']);
  assert.deepEqual([current, running, permissions], [null, false, []]);
  assert.equal(messages[1].blocks[2].tool.outcome.result, 'one\ntwo');
});

test('events that come again change nothing, wherever the link was cut', () => {
  const events = lines('conversation.jsonl');
  const whole = new Model('s1');
  events.forEach((event) => whole.apply(event));
  for (let cut = 0; cut < events.length; cut += 1) {
    const model = new Model('s1');
    events.slice(0, cut).forEach((event) => model.apply(event));
    const from = model.lastSeq ?? 0;
    events.filter((event) => event.seq > from).forEach((event) => model.apply(event));
    assert.deepEqual(model.state, whole.state, `cut at ${cut}`);
  }
});

test('a client that comes in the middle has what the others have', () => {
  const model = new Model('s1');
  for (const event of lines('middle.jsonl')) assert.ok(model.apply(event));
  assert.equal(model.state.current.blocks.at(-1).content, 'Two.');
});
