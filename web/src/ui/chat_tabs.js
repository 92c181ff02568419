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
    const mainTitle = chats.find(({ resource }) => resource === main)?.title ?? '';
    /** How many of each kind came before. @type {Map<string, number>} */
    const counts = new Map();
    this.element.replaceChildren(
      ...chats.map(({ resource, title, origin }) => {
        const isMain = resource === main;
        const isCurrent = isMain ? current === null : resource === current;
        const kind = origin?.kind === 'sideChat' ? 'Side chat' : 'Fork';
        const count = (counts.get(kind) ?? 0) + 1;
        if (!isMain) counts.set(kind, count);
        // A fork is called as what it was made from, until it has a title of its own.
        const own = title && title !== mainTitle ? `${kind}: ${title}` : count > 1 ? `${kind} ${count}` : kind;
        const sign = isMain ? null : icon(kind === 'Fork' ? 'fork' : 'side');
        return h('button', { type: 'button', class: 'quiet small', 'aria-current': isCurrent ? 'page' : null, title, click: () => this.open(isMain ? null : resource) }, sign, h('span', {}, isMain ? 'Main' : own));
      }),
    );
    this.element.querySelector('[aria-current]')?.scrollIntoView({ block: 'nearest', inline: 'nearest' });
  }
}
