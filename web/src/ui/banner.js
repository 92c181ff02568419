/** Says that the connection is lost, over the page, so that nothing moves. */

import { h, setText, show } from './dom.js';

/** A loss that is mended sooner is not mentioned. */
const GRACE = 700;

/** @param {import('../v2/connection.js').Connection} connection */
export function banner(connection) {
  const text = h('span');
  const retry = h('button', { type: 'button', class: 'small', click: () => connection.start() }, 'Try now');
  const element = h('div', { class: 'banner', role: 'status' }, h('span', { class: 'banner-dot' }), text, retry);
  let since = performance.now();
  connection.addEventListener('phase', () => {
    if (connection.phase === 'open') since = Infinity;
    else if (since === Infinity) since = performance.now();
    update();
  });
  setInterval(update, 250);
  update();
  return element;

  function update() {
    const isLost = connection.phase !== 'open' && connection.phase !== 'refused' && performance.now() - since > GRACE;
    show(element, isLost);
    if (!isLost) return;
    const seconds = Math.ceil((connection.retryAt - performance.now()) / 1000);
    const soon = seconds > 1 ? `again in ${seconds} s` : 'now';
    setText(text, navigator.onLine === false ? 'You are offline. Nothing is lost.' : `Not connected. Trying ${connection.phase === 'waiting' ? soon : 'now'}.`);
  }
}
