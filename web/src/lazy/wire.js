/** The panel that shows what the page's connections carry. */

import { h, setText } from '../ui/dom.js';
import { count, size } from '../ui/format.js';
import { SECONDS } from '../traffic.js';
import { plot } from './plot.js';

/** How often latency is measured while the panel is open. */
const PING = 2_000;
const REFRESH = 500;

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
  const rows = h('tbody');
  const table = h('table', {}, h('thead', {}, h('tr', {}, ...['Connection', 'State', 'Frames in', 'Bytes in', 'Frames out', 'Bytes out'].map((name) => h('th', { scope: 'col' }, name)))), rows);
  const transfers = h('div', { class: 'transfers' });
  const limits = h('dl');
  const last = h('dl');
  const violations = h('dl');
  const throughput = plot('Bytes per second', size, '--accent');
  const latency = plot('Answer to a ping', (value) => `${value.toFixed(0)} ms`, '--ask');
  const drop = h('button', { type: 'button', click: () => (connection.drop(), host.drop()) }, 'Drop this connection');
  const part = (/** @type {string} */ title, /** @type {HTMLElement[]} */ ...content) => h('section', {}, h('h3', {}, title), ...content);
  const element = h(
    'div',
    { class: 'wire' },
    h('div', { class: 'wire-buttons' }, drop),
    part('Large messages in flight', transfers),
    part('Bytes per second, last five minutes', throughput.element),
    part('Latency, last five minutes', latency.element),
    part('Carried', h('div', { class: 'table', tabindex: 0, role: 'region', 'aria-label': 'Carried' }, table)),
    part('Last reconnect', last),
    part('Negotiated limits: the host · this page', limits),
    part('Violations', violations),
  );
  const refresh = setInterval(update, REFRESH);
  const ping = setInterval(() => connection.ping(), PING);
  connection.ping();
  update();
  return { element, close: () => (clearInterval(refresh), clearInterval(ping)) };

  function update() {
    rows.replaceChildren(
      ...[...traffic.connections].map(([name, counters]) => {
        const state = name === 'v2' ? connection.phase : host.isConnected() ? 'open' : 'waiting';
        const { framesIn, bytesIn, framesOut, bytesOut } = counters;
        return h('tr', {}, h('th', { scope: 'row' }, `/${name}`), ...[state, framesIn.toLocaleString(), size(bytesIn), framesOut.toLocaleString(), size(bytesOut)].map((text) => h('td', {}, text)));
      }),
    );
    showTransfers();
    const reconnect = traffic.lastReconnect;
    fill(last, reconnect
      ? [['Connection', `/${reconnect.name}`], ['Actions replayed', reconnect.actions.toLocaleString()], ['Bytes', size(reconnect.bytes)], ['Time', `${reconnect.milliseconds.toFixed(0)} ms`], ['How', reconnect.snapshot ? 'by a snapshot' : 'exactly what was missed']]
      : [['None yet', '']]);
    const sides = host.limits();
    fill(limits, sides?.host ? LIMITS.map(([name, key, show]) => [name, `${show(sides.host?.[key])} · ${show(sides.page[key])}`]) : [['Not negotiated yet', '']]);
    fill(violations, traffic.violations.size > 0 ? [...traffic.violations].map(([name, times]) => [name, count(times, 'time')]) : [['None', '']]);
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
      ...all.map(({ direction, done, total, segments, begun }) => {
        const seconds = (performance.now() - begun) / 1000;
        const rate = `${size(done / Math.max(seconds, 0.001))}/s`;
        const text = `${size(done)} of ${size(total)} · ${count(segments, 'segment')} · ${rate} · ${seconds.toFixed(1)} s`;
        return h('div', { class: 'transfer' }, h('div', { class: 'transfer-text' }, h('span', {}, direction === 'in' ? 'Receiving' : 'Sending'), h('span', { class: 'muted' }, text)), h('progress', { max: total, value: done, 'aria-label': text }));
      }),
    );
  }
}

/** @param {HTMLElement} list @param {string[][]} pairs */
function fill(list, pairs) {
  const key = JSON.stringify(pairs);
  if (list.dataset.key === key) return;
  list.dataset.key = key;
  list.replaceChildren(...pairs.flatMap(([name = '', value = '']) => [h('dt', {}, name), h('dd', {}, value)]));
}
