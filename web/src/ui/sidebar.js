/** The list of sessions, the last used first, and what concerns the whole page. */

import { h, setText, show } from './dom.js';
import { icon } from './icons.js';
import { shortPath, when } from './format.js';

/** @typedef {{sessionId: string, title: string, agent: string, cwd: string, state: string, modifiedAt: string}} Info */
/** @typedef {{open: (sessionId: string) => void, create: () => void, close: () => void}} Actions */

/** From so many sessions on there is a field to search them. */
const MANY = 8;

const STATES = new Map([['running', 'working'], ['requires_action', 'waits for your answer'], ['idle', '']]);

export class Sidebar {
  /** @param {Actions} actions @param {HTMLElement} settings */
  constructor(actions, settings) {
    this.actions = actions;
    /** @type {Info[]} */
    this.sessions = [];
    this.current = '';
    this.list = h('ul', { class: 'session-list' });
    this.search = h('input', { type: 'search', placeholder: 'Search sessions', 'aria-label': 'Search sessions', input: () => this.#draw() });
    this.none = h('p', { class: 'muted none' }, 'No sessions yet.');
    const create = h('button', { type: 'button', class: 'new', click: () => actions.create() }, icon('add'), 'New session');
    const close = h('button', { type: 'button', class: 'quiet close-sidebar', 'aria-label': 'Close the list', click: () => actions.close() }, icon('close'));
    const head = h('header', {}, h('h1', {}, mark(), 'Breakbulk'), close);
    this.element = h('nav', { class: 'sidebar', 'aria-label': 'Sessions' }, head, create, this.search, this.none, this.list, settings);
    this.#draw();
  }

  /** @param {Info[]} sessions */
  update(sessions) {
    this.sessions = sessions;
    this.#draw();
  }

  /** What a session does now, before the host's list says so. @param {string} sessionId @param {string} state */
  setState(sessionId, state) {
    const info = this.sessions.find((known) => known.sessionId === sessionId);
    if (!info || info.state === state) return;
    info.state = state;
    this.#draw();
  }

  /** @param {string} sessionId */
  select(sessionId) {
    this.current = sessionId;
    this.#draw();
  }

  #draw() {
    const wanted = this.search.value.trim().toLowerCase();
    const found = this.sessions.filter(({ title, cwd, agent }) => `${title} ${cwd} ${agent}`.toLowerCase().includes(wanted));
    show(this.search, this.sessions.length >= MANY);
    show(this.none, found.length === 0);
    setText(this.none, wanted ? 'No session has these words.' : 'No sessions yet.');
    const focused = document.activeElement?.closest('[data-session]')?.getAttribute('data-session');
    this.list.replaceChildren(...found.map((info) => this.#item(info)));
    if (focused) /** @type {HTMLElement | null} */ (this.list.querySelector(`[data-session="${CSS.escape(focused)}"]`))?.focus();
  }

  /** @param {Info} info */
  #item({ sessionId, title, agent, cwd, state, modifiedAt }) {
    const isCurrent = sessionId === this.current;
    const doing = STATES.get(state) ?? '';
    return h(
      'li',
      {},
      h(
        'button',
        { type: 'button', class: 'session', 'data-session': sessionId, 'data-state': state, 'aria-current': isCurrent ? 'page' : null, click: () => this.actions.open(sessionId) },
        h('span', { class: 'session-title' }, title || 'New session'),
        h('span', { class: 'session-dot', title: doing }, doing && h('span', { class: 'visually-hidden' }, doing)),
        h('span', { class: 'session-info', title: cwd }, `${agent} · ${shortPath(cwd.split('/').at(-1) || cwd, 26)}`),
        h('time', { class: 'session-time', datetime: modifiedAt }, when(modifiedAt)),
      ),
    );
  }
}

/** Three boxes of one cargo. */
function mark() {
  const svg = document.createElementNS('http://www.w3.org/2000/svg', 'svg');
  svg.setAttribute('viewBox', '0 0 20 20');
  svg.setAttribute('class', 'mark');
  svg.setAttribute('aria-hidden', 'true');
  for (const d of ['M2 11h7v7H2z', 'M11 11h7v7h-7z', 'M6.5 2h7v7h-7z']) {
    const path = document.createElementNS(svg.namespaceURI, 'path');
    path.setAttribute('d', d);
    svg.append(path);
  }
  return svg;
}
