/** Short messages about something that did not work. */

import { h } from './dom.js';
import { icon } from './icons.js';

const SHOWN = 8_000;

export class Toasts {
  constructor() {
    this.element = h('div', { class: 'toasts', role: 'status', 'aria-live': 'polite' });
  }

  /** @param {string} text */
  say(text) {
    const close = h('button', { type: 'button', class: 'quiet', 'aria-label': 'Close', click: () => toast.remove() }, icon('close'));
    const toast = h('div', { class: 'toast' }, h('span', {}, text), close);
    this.element.append(toast);
    while (this.element.childElementCount > 3) this.element.firstElementChild?.remove();
    setTimeout(() => toast.remove(), SHOWN);
  }
}
