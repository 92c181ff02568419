/** Asks for the token when the host does not take the one that the page has. */

import { h, show } from './dom.js';
import { keepToken, tokenIn } from '../token.js';

/** @param {import('../v2/connection.js').Connection} connection */
export function tokenForm(connection) {
  const field = h('input', { type: 'password', name: 'token', required: true, autocomplete: 'off', 'aria-describedby': 'token-help' });
  const form = h(
    'form',
    { class: 'token-form', submit: (/** @type {Event} */ event) => submit(event) },
    h('h1', {}, 'This host needs a token'),
    h('p', { id: 'token-help', class: 'muted' }, 'Paste the address that the host has printed, or its token. A host makes a new token at each start, unless it was given one.'),
    h('p', { class: 'failure', role: 'alert' }, 'The token is missing or wrong.'),
    h('label', { class: 'field' }, h('span', {}, 'Address or token'), field),
    h('button', { type: 'submit', class: 'primary' }, 'Connect'),
  );
  const element = h('div', { class: 'token-screen' }, form);
  connection.addEventListener('phase', () => {
    const isRefused = connection.phase === 'refused';
    const wasShown = !element.hidden;
    if (connection.phase === 'open' || isRefused) show(element, isRefused);
    if (isRefused && !wasShown) field.focus();
  });
  show(element, false);
  return element;

  /** @param {Event} event */
  function submit(event) {
    event.preventDefault();
    const token = tokenIn(field.value);
    field.value = '';
    keepToken(token);
    connection.startWith(token);
  }
}
