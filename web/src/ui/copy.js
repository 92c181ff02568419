/** Copies text. Pages that came without TLS from another machine have no clipboard, so there a selection is copied. */

import { h, setText } from './dom.js';

/** @param {string} text */
export async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = h('textarea', { class: 'off-screen', readonly: true });
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand('copy');
  area.remove();
}

/** @param {() => string} text */
export function copyButton(text) {
  const button = h('button', { type: 'button', class: 'quiet small', click: () => void run() }, 'Copy');
  async function run() {
    await copy(text());
    setText(button, 'Copied');
    setTimeout(() => setText(button, 'Copy'), 1500);
  }
  return button;
}
