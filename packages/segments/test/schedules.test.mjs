// Seeded networks between this package and the machine in Rust. `BREAKBULK_SEGMENTS_SEEDS` says how many, `…_FROM` from which seed on.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Machine } from './machine.mjs';
import { fault, runSchedule } from './schedules.mjs';

const seeds = Number(process.env.BREAKBULK_SEGMENTS_SEEDS ?? 300);
const from = Number(process.env.BREAKBULK_SEGMENTS_FROM ?? 1);

test('nothing is lost, duplicated, reordered or altered, wherever the link is cut', { timeout: 3_600_000 }, async () => {
  const machine = new Machine();
  const sum = fault();
  const total = { cuts: 0, large: 0, messages: 0 };
  const wrong = [];
  for (let seed = from; seed < from + seeds; seed++) {
    const { ledger, ...more } = await runSchedule(machine, seed).catch((error) => {
      error.message = `seed ${seed}: ${error.message}`;
      throw error;
    });
    for (const key of Object.keys(sum)) sum[key] += ledger[key];
    for (const key of Object.keys(total)) total[key] += more[key];
    if (Object.values(ledger).some(Boolean)) wrong.push(`seed ${seed} (${more.delivery}): ${JSON.stringify(ledger)}`);
  }
  machine.end();
  process.stdout.write(`schedules: ${seeds} seeds from ${from}: ${total.messages} messages, ${total.cuts} cuts; `);
  process.stdout.write(`ledger: ${sum.lost} lost, ${sum.duplicated} duplicated, ${sum.reordered} reordered, ${sum.altered} altered\n`);
  assert.deepEqual(wrong.slice(0, 10), []);
  assert.ok(total.cuts > seeds / 3 && total.large > seeds, 'the schedules cut, and have large messages');
});

test('the ledger shows what a saboteur does', { timeout: 300_000 }, async () => {
  const machine = new Machine();
  const caught = {};
  const saboteurs = { 'a cursor that passes the unfinished': 'lost', 'actions applied twice': 'duplicated', 'a message overtaken': 'reordered', 'a byte changed': 'altered' };
  for (const [saboteur, kind] of Object.entries(saboteurs)) {
    for (let seed = 1; seed <= 60 && !caught[kind]; seed++) {
      const { ledger } = await runSchedule(machine, seed, saboteur);
      if (ledger[kind]) caught[kind] = saboteur;
    }
  }
  machine.end();
  assert.deepEqual(caught, Object.fromEntries(Object.entries(saboteurs).map(([saboteur, kind]) => [kind, saboteur])));
});
