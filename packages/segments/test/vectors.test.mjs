// Runs every case of `vectors/` that is about AHP or JSON, prints how many ran, and fails when any differs from what it expects.
import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { test } from 'node:test';
import { run } from './vectors/drive.mjs';
import { runScalar, runText } from './vectors/scan.mjs';
import { load } from './vectors/suite.mjs';

const RUN = {
  ahp: (one) => [...run(one), ...run(one, true).map((how) => `with binary frames: ${how}`)],
  json: runText,
  scalar: runScalar,
};

test('every vector does what it says', () => {
  const counts = new Map();
  const wrong = [];
  for (const one of load(Object.keys(RUN))) {
    counts.set(one.subject, (counts.get(one.subject) ?? 0) + 1);
    const differences = RUN[one.dialect](one);
    if (differences.length && !one.knownGap) wrong.push(`${one.subject}: ${one.name}\n  ${differences.join('\n  ')}`);
    if (!differences.length && one.knownGap) wrong.push(`${one.subject}: ${one.name} passes, though it is a known gap`);
  }
  const printed = [...counts].map(([subject, count]) => `vectors: ${subject}: ${count}\n`).join('');
  process.stdout.write(`${printed}vectors: ${[...counts.values()].reduce((sum, count) => sum + count)} ran\n`);
  // `cargo xtask test` compares these counts with those of the Rust test.
  writeFileSync(new URL('../build/vector-counts.txt', import.meta.url), printed);
  assert.equal(wrong.length, 0, `${wrong.length} are wrong:\n\n${wrong.join('\n\n')}`);
});
