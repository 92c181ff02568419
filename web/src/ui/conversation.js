/**
 * The conversation: the last messages of a session, more when one scrolls up, and the end in view while it grows.
 *
 * Events only mark messages as changed; they are drawn once a frame. Messages that are not shown have no elements.
 */

import { eachFrame, h, setText, show } from './dom.js';
import { icon } from './icons.js';
import { MessageView, TurnFooter } from './message_view.js';

/** How many messages are shown at first, and how many more when one scrolls to the top. */
const PAGE = 30;
/** So near to its end, the view follows what arrives. */
const NEAR = 60;

/** @typedef {import('../v2/model.js').Message} Message */
/** @typedef {import('./message_view.js').Actions} Actions */

export class Conversation {
  /** @param {Actions} actions */
  constructor(actions) {
    this.actions = actions;
    this.session = actions.session;
    this.earlier = h('button', { type: 'button', class: 'quiet earlier', click: () => this.#showEarlier() }, 'Show earlier messages');
    this.list = h('div', { class: 'messages', role: 'log', 'aria-label': 'Conversation', 'aria-live': 'off' });
    this.working = h('div', { class: 'working', role: 'status' }, h('span', { class: 'dots' }, h('i'), h('i'), h('i')), h('span', { class: 'working-text' }));
    this.failure = h('p', { class: 'failure', role: 'alert' });
    this.empty = h('div', { class: 'empty' });
    this.ended = h('p', { class: 'notice' }, 'The agent’s program was ended. The next message starts it again.');
    this.column = h('div', { class: 'column' }, this.earlier, this.empty, this.list, this.working, this.failure, this.ended);
    this.scroller = h('div', { class: 'scroller', tabindex: -1, scroll: () => this.#scrolled(), click: (/** @type {Event} */ event) => this.#clicked(event) }, this.column);
    this.latest = h('button', { type: 'button', class: 'latest', 'aria-label': 'Go to the latest message', click: () => this.toEnd() }, icon('down'));
    this.element = h('div', { class: 'conversation' }, this.scroller, this.latest);
    /** Where the messages that are shown begin. @type {number | null} */
    this.from = null;
    this.follows = true;
    /** @type {Map<Message, MessageView>} */
    this.views = new Map();
    /** @type {Map<string, TurnFooter>} */
    this.footers = new Map();
    this.draw = eachFrame(() => this.#draw());
    this.session.addEventListener('change', this.draw);
    this.session.addEventListener('snapshot', () => (this.from = null));
    new ResizeObserver(() => (this.#keepEnd(), this.#scrolled())).observe(this.column);
    new ResizeObserver(() => this.#keepEnd()).observe(this.scroller);
    new IntersectionObserver(([seen]) => seen?.isIntersecting && this.#showEarlier(), { root: this.scroller, rootMargin: '400px' }).observe(this.earlier);
    this.draw();
  }

  toEnd() {
    this.follows = true;
    this.#keepEnd();
  }

  /** The message of a permission may look different once it is answered. */
  refresh() {
    for (const message of this.views.keys()) this.session.model.touched.add(message);
    this.draw();
  }

  #draw() {
    const { session, list } = this;
    const { messages, current, running, state, error } = session.state;
    const all = current ? [...messages, current] : messages;
    if (this.from === null || this.from > all.length) this.from = Math.max(0, all.length - PAGE);
    // Whoever follows the end sees it, and not what was above: the window moves along.
    if (this.follows && all.length - this.from > 3 * PAGE) this.from = all.length - PAGE;
    show(this.earlier, this.from > 0);
    const wanted = this.#elements(all.slice(this.from), running);
    wanted.forEach((element, at) => {
      if (list.children[at] !== element) list.insertBefore(element, list.children[at] ?? null);
    });
    while (list.children.length > wanted.length) list.lastElementChild?.remove();
    session.model.touched.clear();
    const isSilent = running && state !== 'requires_action' && !isWriting(current);
    show(this.working, running);
    this.working.classList.toggle('is-silent', isSilent || state === 'requires_action');
    this.working.classList.toggle('is-asking', state === 'requires_action');
    setText(this.working.children[1] ?? this.working, state === 'requires_action' ? 'Waiting for your answer' : 'Working');
    // The end of a turn says itself why it failed.
    const isTold = error === null || session.turns.get(all.at(-1)?.turnId ?? '')?.error === error;
    show(this.failure, !isTold);
    setText(this.failure, error ?? '');
    show(this.ended, session.state.ended && all.length > 0);
    show(this.empty, session.isLoaded && all.length === 0 && !running);
    if (this.empty.childElementCount === 0) this.#fillEmpty();
    this.#keepEnd();
    // While a snapshot arrives, its end moves: the first drawing of the whole decides anew.
    if (!session.isLoaded) this.from = null;
  }

  /** The elements of these messages, changed where the messages have changed. @param {Message[]} messages @param {boolean} isRunning */
  #elements(messages, isRunning) {
    const { session, actions, views, footers } = this;
    const elements = [];
    const kept = new Set(messages);
    for (const message of views.keys()) if (!kept.has(message)) views.delete(message);
    for (const [at, message] of messages.entries()) {
      let view = views.get(message);
      if (!view) views.set(message, (view = new MessageView(message, actions)));
      else if (session.model.touched.has(message)) view.update();
      elements.push(view.element);
      const turn = message.turnId;
      const isLast = messages[at + 1]?.turnId !== turn;
      if (turn === undefined || !isLast || (at === messages.length - 1 && isRunning)) continue;
      let footer = footers.get(turn);
      if (!footer) footers.set(turn, (footer = new TurnFooter(turn, actions)));
      footer.update();
      elements.push(footer.element);
    }
    return elements;
  }

  #fillEmpty() {
    this.empty.append(h('h2', {}, this.session.title || 'New session'), h('p', { class: 'muted' }, 'Say what you want done.'));
  }

  #showEarlier() {
    if (!this.from) return;
    const fromEnd = this.scroller.scrollHeight - this.scroller.scrollTop;
    this.from = Math.max(0, this.from - PAGE);
    this.follows = false;
    this.#draw();
    this.scroller.scrollTop = this.scroller.scrollHeight - fromEnd;
  }

  /** Who unfolds something reads it: the view stays where it is. @param {Event} event */
  #clicked(event) {
    if (event.target instanceof Element && event.target.closest('summary')) this.follows = false;
  }

  #scrolled() {
    const { scrollHeight, scrollTop, clientHeight } = this.scroller;
    this.follows = scrollHeight - scrollTop - clientHeight < NEAR;
    this.latest.classList.toggle('is-shown', !this.follows);
  }

  #keepEnd() {
    if (this.follows) this.scroller.scrollTop = this.scroller.scrollHeight;
  }
}

/** Whether text is arriving, so that nothing else must say that something happens. @param {Message | null} current */
function isWriting(current) {
  const last = current?.blocks.at(-1);
  return last !== undefined && !last.done;
}
