// Writes crates/lifecycle/tests/v2/golden/transcripts.json: what a client is told, and the state that it must have then. The Rust
// model and the one of the page are tested with the same file. The states are what the page's model makes; that they are right is
// for the Rust tests to say, which know nothing of this program.

import { writeFileSync } from 'node:fs';
import { Model } from '../src/v2/model.js';

const SEEDS = 48;
const EVENTS = 40;

/** Numbers that look random and are the same each time. */
function numbers(seed) {
  let state = seed * 2654435761 + 1;
  return (below) => {
    state = (Math.imul(state ^ (state >>> 15), 2246822519) + 0x9e3779b9) >>> 0;
    return ((state ^ (state >>> 13)) >>> 0) % below;
  };
}

/** Events that a server must not send in this order, and that a client must survive. */
function hostile(seed) {
  const below = numbers(seed);
  const pick = (list) => list[below(list.length)];
  const message = () => pick(['m1', 'm2', 'm3', 'n1']);
  const block = () => pick(['b0', 'b1', 'b2']);
  const kind = () => pick(['text', 'thinking', 'redacted_thinking', 'tool_use']);
  const call = () => (below(2) ? { toolName: pick(['Bash', 'Task']), toolId: pick(['c1', 'c2', 'c3']) } : {});
  const turn = () => pick(['t1', 't2', 't3']);
  const result = () => ({ result: pick(['', 'done', 'ü😀']), isError: below(2) === 1, ...(below(3) ? {} : { truncated: true, bytes: 100000, url: '/content/x' }) });
  const snapshotBlock = (depth) => {
    const blockType = kind();
    const made = { blockId: block(), blockType, done: below(2) === 1 };
    if (blockType !== 'tool_use') return { ...made, content: pick(['', 'said', 'ä']) };
    const tool = { toolName: 'Task', toolId: pick(['c1', 'c2', 'c3']), ...(below(2) ? { input: '{}' } : {}), ...(below(2) ? result() : {}) };
    const blocks = depth > 0 ? Array.from({ length: below(3) }, () => ({ ...snapshotBlock(depth - 1), messageId: pick(['n1', 'n2']) })) : [];
    return { ...made, ...tool, ...(blocks.length ? { blocks } : {}) };
  };
  const queue = () => Array.from({ length: below(3) }, (_, at) => ({ id: `q${at}`, prompt: `wait ${at}` }));
  const makers = [
    () => ({ type: 'message_start', messageId: message(), ...(below(3) ? {} : { parentToolId: pick(['c1', 'c2']) }) }),
    () => ({ type: 'message_end', messageId: message() }),
    () => ({ type: 'block_start', messageId: message(), blockId: block(), blockType: kind(), ...call() }),
    () => ({ type: 'block_delta', messageId: message(), blockId: block(), blockType: kind(), delta: pick(['a', 'bc', '{"x":', '1}', '😀']) }),
    () => ({ type: 'block_delta', messageId: message(), blockId: block(), blockType: kind(), delta: pick(['more', ' text']) }),
    () => ({ type: 'block_end', messageId: message(), blockId: block(), blockType: kind(), ...call(), ...(below(2) ? { input: '{"a":1}' } : {}) }),
    () => ({ type: 'tool_result', messageId: message(), toolId: pick(['c1', 'c2', 'c3']), ...result() }),
    () => ({ type: 'message_snapshot', messageId: message(), blocks: Array.from({ length: below(4) }, () => snapshotBlock(2)) }),
    () => ({ type: 'user_message', turnId: turn(), text: pick(['hello', 'go on']) }),
    () => ({ type: 'turn_end', turnId: turn(), outcome: pick(['complete', 'cancelled', 'error']) }),
    () => ({ type: 'permission_request', permId: pick(['p1', 'p2']), toolName: 'Bash', toolInput: { command: 'ls' }, toolId: pick(['c1', 'c2']), expiresAt: 120000, ...(below(2) ? { title: 'Run', description: 'ls', options: [{ id: 'o', label: 'Yes', decision: 'once' }] } : {}) }),
    () => ({ type: pick(['permission_timeout']), permId: pick(['p1', 'p2']) }),
    () => ({ type: 'permission_resolved', permId: pick(['p1', 'p2']), decision: pick(['once', 'deny']) }),
    () => ({ type: 'mode_changed', mode: pick(['plan', 'default']) }),
    () => ({ type: 'queue_changed', queue: queue() }),
    () => ({ type: 'session_state', state: pick(['idle', 'running', 'requires_action']) }),
    () => ({ type: 'error', error: 'it failed' }),
    () => ({ type: 'notice', text: 'a notice' }),
    () => (below(3) ? { type: 'notice', text: 'x' } : { type: 'truncated', ...(below(3) ? { turnId: turn() } : {}) }),
    () => (below(4) ? { type: 'session_id' } : { type: 'session_end' }),
    () => (below(4) ? { type: 'session_id' } : { type: 'session_start', agent: 'demo', branch: pick([null, 'main']), cwd: '/w', worktree: false, ...(below(2) ? { mode: 'plan' } : {}), ...(below(2) ? { snapshot: true, hasEarlier: below(2) === 1 } : {}) }),
  ];
  let seq = 1;
  let sub = 0;
  return Array.from({ length: EVENTS }, () => {
    // Now and then an event comes again, or belongs to another session.
    const step = below(12);
    if (step > 3) [seq, sub] = [seq + 1 + below(3), 0];
    else if (step > 0) sub += 1;
    const sessionId = below(25) ? 's' : 'other';
    return { v: 2, ...pick(makers)(), ts: 1000 + seq, seq, ...(sub ? { sub } : {}), ...(below(4) ? {} : { more: true }), sessionId };
  });
}

const cases = Array.from({ length: SEEDS }, (_, seed) => {
  const events = hostile(seed + 1);
  const model = new Model('s');
  const applied = events.filter((event) => model.apply(event)).length;
  return { name: `hostile ${seed + 1}`, events, applied, lastSeq: model.lastSeq, state: model.state };
});
const path = new URL('../../crates/lifecycle/tests/v2/golden/transcripts.json', import.meta.url);
writeFileSync(path, `[\n${cases.map((one) => JSON.stringify(one)).join(',\n')}\n]\n`);
console.log(`${cases.length} transcripts, ${cases.reduce((sum, one) => sum + one.applied, 0)} events applied`);
