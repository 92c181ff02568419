/** The difference between two texts, line by line. */

import { structuredPatch } from '../../vendor/lazy/diff.js';
import { h } from '../ui/dom.js';

/** The comparison of texts that have little in common is given up after this long, in milliseconds. */
const TIMEOUT = 250;
/** So many lines are shown; the rest is a number. */
const MAX_LINES = 3_000;

/** @param {string} old @param {string} now @returns {HTMLElement} */
export function diffView(old, now) {
  const patch = structuredPatch('', '', old, now, '', '', { context: 3, timeout: TIMEOUT });
  if (!patch) return h('p', { class: 'muted pad' }, 'These texts differ too much to be compared line by line.');
  const rows = [];
  for (const { oldStart, newStart, lines } of patch.hunks) {
    let [before, after] = [oldStart, newStart];
    rows.push(h('div', { class: 'diff-hunk' }, `Line ${newStart}`));
    for (const line of lines) {
      const sign = line[0] ?? ' ';
      if (sign === '\\') continue;
      const isAdded = sign === '+';
      const isRemoved = sign === '-';
      rows.push(
        h(
          'div',
          { class: `diff-line ${isAdded ? 'add' : isRemoved ? 'remove' : ''}` },
          h('span', {}, isAdded ? '' : String(before)),
          h('span', {}, isRemoved ? '' : String(after)),
          h('span', {}, isAdded ? '+' : isRemoved ? '−' : ' '),
          h('span', {}, line.slice(1, 2_000)),
        ),
      );
      if (!isAdded) before += 1;
      if (!isRemoved) after += 1;
    }
  }
  if (rows.length === 0) return h('p', { class: 'muted pad' }, 'No difference in the text.');
  const more = rows.length - MAX_LINES;
  const rest = more > 0 ? h('p', { class: 'muted pad' }, `${more.toLocaleString()} more lines are not shown.`) : null;
  const table = h('div', { class: 'diff-rows' }, ...rows.slice(0, MAX_LINES));
  return h('div', { class: 'diff', tabindex: 0, role: 'region', 'aria-label': 'Differences' }, table, rest);
}
