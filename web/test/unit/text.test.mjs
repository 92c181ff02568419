// Where a growing text can be cut, and how a long one is held.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Lines } from '../../src/lazy/lines.js';
import { tokenIn } from '../../src/token.js';
import { lastBoundary } from '../../src/ui/text_view.js';
import { hint } from '../../src/ui/tool_view.js';
import { lexer } from '../../vendor/marked.js';

const LONG = `# A heading

A paragraph of
two lines.

- a list

  with a paragraph
- and more

Another paragraph.

\`\`\`js
const code = 1;

# not a heading
\`\`\`
After the code.

1. one

2. two

The end.
`;

const kinds = (text) => lexer(text).filter(({ type }) => type !== 'space').map(({ type, raw }) => [type, raw.trim()]);

test('a text that is cut at its boundaries has the same blocks as the whole', () => {
  for (let length = 1; length <= LONG.length; length += 1) {
    const parts = [];
    let from = 0;
    for (let shown = 0; shown < LONG.length; shown += length) {
      const boundary = lastBoundary(LONG.slice(0, shown + length), from);
      if (boundary > from) parts.push(LONG.slice(from, boundary));
      from = boundary;
    }
    parts.push(LONG.slice(from));
    assert.equal(parts.join(''), LONG);
    assert.deepEqual(parts.flatMap(kinds), kinds(LONG), `in pieces of ${length}`);
  }
});

test('nothing is final inside of a fence', () => {
  assert.equal(lastBoundary('```\na\n\nb\n\nc\n', 0), 0);
  assert.equal(lastBoundary('text\n\n````\n```\n\nb\n', 0), 6);
});

test('lines are found wherever the text was cut', () => {
  const text = `${'x'.repeat(4_500)}\nshort\r\n\n${'last '.repeat(3)}`;
  for (const step of [1, 7, 1_000, text.length]) {
    const lines = new Lines();
    for (let at = 0; at < text.length; at += step) lines.push(text.slice(at, at + step));
    lines.end();
    const all = lines.slice(0, lines.count);
    assert.deepEqual(all.slice(-3), ['short', '', 'last last last ']);
    assert.equal(all.slice(0, -3).join(''), 'x'.repeat(4_500));
    assert.deepEqual(lines.slice(lines.count - 2, lines.count), all.slice(-2));
  }
});

test('a token is found in whatever a person pastes', () => {
  assert.equal(tokenIn('http://127.0.0.1:4140/#token=a%2Bb'), 'a+b');
  assert.equal(tokenIn('ws://127.0.0.1:4140/ahp?token=abc&x=1'), 'abc');
  assert.equal(tokenIn('  abc \n'), 'abc');
});

test('a call is described by what its input says', () => {
  assert.equal(hint('{"argv":["ls","-l"]}'), 'ls -l');
  assert.equal(hint('{"command":"make\\nmore"}'), 'make');
  assert.equal(hint('{"unknown":{"a":1}}'), 'unknown: {"a":1}');
  assert.equal(hint('{"broken'), '{"broken');
  assert.equal(hint(undefined), '');
});
