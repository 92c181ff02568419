/** The chats of the session that is shown, if it has more than one. */

import { h, show } from './dom.js';
import { icon } from './icons.js';

/** @typedef {import('../lazy/chats.js').Chat} Chat */

export class ChatTabs {
  /** @param {(chat: string | null) => void} open called with `null` for the main chat */
  constructor(open) {
    this.open = open;
    this.element = h('nav', { class: 'chat-tabs', 'aria-label': 'Chats of this session' });
    this.key = '';
    this.clear();
  }

  clear() {
    this.key = '';
    this.element.replaceChildren();
    show(this.element, false);
  }

  /** @param {Chat[]} chats @param {string} main @param {string | null} current */
  update(chats, main, current) {
    const key = JSON.stringify([chats, main, current]);
    if (key === this.key) return;
    this.key = key;
    show(this.element, chats.length > 1);
    this.element.replaceChildren(
      ...chats.map(({ resource, title, origin }) => {
        const isMain = resource === main;
        const isCurrent = isMain ? current === null : resource === current;
        const sign = origin?.kind === 'sideChat' ? icon('side') : origin?.kind === 'fork' ? icon('fork') : null;
        return h('button', { type: 'button', class: 'quiet small', 'aria-current': isCurrent ? 'page' : null, title, click: () => this.open(isMain ? null : resource) }, sign, h('span', {}, isMain ? 'Main' : title));
      }),
    );
  }
}
