/** The panel that shows what the page's connections carry. */

import { h, setText, show } from '../ui/dom.js';
import { count, size } from '../ui/format.js';
import { SECONDS } from '../traffic.js';
import { plot } from './plot.js';

/** How often latency is measured while the panel is open. */
const PING = 2_000;
const REFRESH = 250;

/** The limits that are shown: how they are called, where they are, and how they are written. @type {[string, string, (value: any) => string][]} */
const LIMITS = [
  ['Longest frame', 'maxFrameBytes', size],
  ['Longest message', 'maxMessageBytes', size],
  ['Large messages at once', 'maxGroups', String],
  ['Time for one', 'groupTimeoutMs', (value) => `${Math.round(value / 1000)} s`],
  ['Settled cursor', 'settledCursor', (value) => (value ? 'yes' : 'no')],
];

/**
 * @param {import('../traffic.js').Traffic} traffic @param {import('../v2/connection.js').Connection} connection
 * @param {import('../host.js').Host} host @returns {import('../ui/drawer.js').Panel}
 */
export function wirePanel(traffic, connection, host) {
  const transfers = h('div', { class: 'transfers' });
  const carried = table('Carried', ['Connection', 'State', 'In', 'Out']);
  const reconnects = table('Last reconnect', ['Connection', 'Actions replayed', 'Bytes', 'Time'], 'None yet.');
  const limits = table('Negotiated limits', ['', 'Host', 'This page'], 'Not negotiated yet.');
  const violations = table('Broken rules', ['Rule', 'Times'], 'None.');
  const throughput = plot('Throughput', (value) => `${size(value)}/s`, '--accent');
  const latency = plot('Latency', (value) => `${value.toFixed(0)} ms`, '--ask');
  const drop = h('button', { type: 'button', click: () => (connection.drop(), host.drop()) }, 'Drop this connection');
  const part = (/** @type {string} */ title, /** @type {Node[]} */ ...content) => h('section', {}, h('h3', {}, title), ...content);
  const element = h(
    'div',
    { class: 'wire' },
    h('div', { class: 'wire-drop' }, drop, h('span', { class: 'muted' }, 'Cuts it as a bad network would. What you see comes back whole.')),
    part('Large messages in flight', transfers),
    part('Throughput', throughput.element),
    part('Latency', latency.element),
    part('Carried', ...carried.elements),
    part('Last reconnect', ...reconnects.elements),
    part('Negotiated limits', ...limits.elements),
    part('Broken rules', ...violations.elements),
  );
  const refresh = setInterval(update, REFRESH);
  const ping = setInterval(() => connection.ping(), PING);
  connection.ping();
  // A plot is as wide as the panel, which is not in the page yet.
  requestAnimationFrame(update);
  update();
  return { element, close: () => (clearInterval(refresh), clearInterval(ping)) };

  function update() {
    carried.fill(
      [...traffic.connections].map(([name, { framesIn, bytesIn, framesOut, bytesOut }]) => {
        const state = name === 'v2' ? connection.phase : host.isConnected() ? 'open' : 'waiting';
        return [`/${name}`, state, amount(framesIn, bytesIn), amount(framesOut, bytesOut)];
      }),
    );
    showTransfers();
    reconnects.fill(
      [...traffic.reconnects].map(([name, { actions, bytes, milliseconds, snapshot }]) => [
        `/${name}`, `${actions.toLocaleString()}${snapshot ? ', by a snapshot' : ''}`, size(bytes), `${milliseconds.toFixed(0)} ms`,
      ]),
    );
    const sides = host.limits();
    limits.fill(sides?.host ? LIMITS.map(([name, key, write]) => [name, write(sides.host?.[key]), write(sides.page[key])]) : []);
    violations.fill([...traffic.violations].map(([name, times]) => [name, times.toLocaleString()]));
    const { samples } = traffic;
    throughput.draw(samples.map(({ bytesIn, bytesOut }) => bytesIn + bytesOut), SECONDS);
    latency.draw(samples.map((sample) => sample.latency), SECONDS);
  }

  function showTransfers() {
    const all = host.transfers();
    if (all.length === 0) {
      if (transfers.textContent !== 'None now.') transfers.replaceChildren(h('p', { class: 'muted' }, 'None now.'));
      return;
    }
    transfers.replaceChildren(
      ...all.map(({ direction, done, total, segments, begun, ended }) => {
        const seconds = ((ended ?? performance.now()) - begun) / 1000;
        const rate = `${size(done / Math.max(seconds, 0.001))}/s`;
        const text = `${size(done)} of ${size(total)} · ${count(segments, 'segment')} · ${rate} · ${seconds.toFixed(1)} s`;
        const what = ended === null ? { in: 'Receiving', out: 'Sending' } : { in: 'Received', out: 'Sent' };
        return h(
          'div',
          { class: 'transfer', 'data-state': ended === null ? 'running' : 'done' },
          h('div', { class: 'transfer-text' }, h('span', {}, what[direction]), h('span', { class: 'muted' }, text)),
          h('progress', { max: total, value: done, 'aria-label': `${what[direction]} ${text}` }),
        );
      }),
    );
  }
}

/** Frames and bytes, which wrap between the two. @param {number} frames @param {number} bytes */
function amount(frames, bytes) {
  return [count(frames, 'frame'), size(bytes)].map((part) => part.replace(' ', '\u00a0')).join(', ');
}

/**
 * A table whose rows begin with what they are about; and what stands there while it has none.
 * @param {string} label @param {string[]} heads @param {string} [nothing]
 */
function table(label, heads, nothing = '') {
  const rows = h('tbody');
  const none = h('p', { class: 'muted' }, nothing);
  const whole = h('table', { 'aria-label': label }, h('thead', {}, h('tr', {}, ...heads.map((head) => (head ? h('th', { scope: 'col' }, head) : h('td'))))), rows);
  const holder = h('div', { class: 'table', tabindex: 0, role: 'region', 'aria-label': label }, whole);
  let known = '';
  show(holder, false);
  return { elements: [none, holder], fill };

  /** @param {string[][]} all */
  function fill(all) {
    const key = JSON.stringify(all);
    if (key === known) return;
    known = key;
    show(none, all.length === 0);
    show(holder, all.length > 0);
    // Cells are kept, so that a selection and a screen reader stay where they are.
    while (rows.childElementCount > all.length) rows.lastElementChild?.remove();
    all.forEach((cells, at) => {
      const row = rows.children[at] ?? rows.appendChild(h('tr', {}, ...cells.map((_, column) => (column === 0 ? h('th', { scope: 'row' }) : h('td')))));
      cells.forEach((text, column) => setText(/** @type {Element} */ (row.children[column]), text));
    });
  }
}
