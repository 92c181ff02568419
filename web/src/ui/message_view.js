/** A message: what a person has said, or the blocks of the agent, in order. */

import { h, setText, show } from './dom.js';
import { icon } from './icons.js';
import { TextView } from './text_view.js';
import { ToolView } from './tool_view.js';
import { count, size } from './format.js';

/** @typedef {import('../v2/model.js').Block} Block */
/** @typedef {import('../v2/model.js').Message} Message */
/** @typedef {import('../v2/session.js').Session} Session */
/** @typedef {{session: Session, openResult: (title: string, url: string) => void, fork: (turnId: string) => void, sideChat: (turnId: string) => void, canFork: () => boolean}} Actions */

/** Blocks in order, with views that are kept as long as their block is there. */
export class BlockList {
  /** @param {Actions} actions */
  constructor(actions) {
    this.actions = actions;
    this.element = h('div', { class: 'blocks' });
    /** @type {Map<string, {element: HTMLElement, update: (block: Block) => void}>} */
    this.views = new Map();
  }

  /** @param {Block[]} blocks */
  update(blocks) {
    const names = new Set();
    blocks.forEach((block, at) => {
      const name = `${block.messageId} ${block.blockId}`;
      names.add(name);
      let view = this.views.get(name);
      if (!view) this.views.set(name, (view = this.#viewOf(block)));
      view.update(block);
      if (this.element.children[at] !== view.element) this.element.insertBefore(view.element, this.element.children[at] ?? null);
    });
    for (const [name, view] of this.views) {
      if (names.has(name)) continue;
      view.element.remove();
      this.views.delete(name);
    }
  }

  /** @param {Block} block */
  #viewOf(block) {
    const { session, openResult } = this.actions;
    switch (block.blockType) {
      case 'tool_use':
        return new ToolView({
          blockList: () => new BlockList(this.actions),
          openResult,
          isAsked: (toolId) => session.state.permissions.some((permission) => permission.toolId === toolId),
        });
      case 'thinking':
        return new ThinkingView();
      case 'redacted_thinking':
        return { element: h('p', { class: 'thinking-redacted muted' }, 'Reasoning redacted'), update() {} };
      default: {
        const text = new TextView();
        return { element: text.element, update: (/** @type {Block} */ now) => text.update(now.content, now.done) };
      }
    }
  }
}

/** What the agent has thought, folded. */
class ThinkingView {
  constructor() {
    this.label = h('span', { class: 'thinking-label' });
    this.preview = h('span', { class: 'thinking-preview' });
    this.text = document.createTextNode('');
    const body = h('div', { class: 'thinking-body' }, this.text);
    const fold = { class: 'thinking', toggle: () => show(this.preview, !this.element.open) };
    this.element = h('details', fold, h('summary', {}, icon('chevron'), this.label, this.preview), body);
  }

  /** @param {Block} block */
  update({ content, done }) {
    setText(this.label, done ? 'Thought' : 'Thinking');
    this.element.dataset.state = done ? 'done' : 'running';
    const known = this.text.length;
    if (content.length > known) this.text.appendData(content.slice(known));
    else if (content.length < known) this.text.data = content;
    setText(this.preview, content.slice(-120).replaceAll('\n', ' '));
  }
}

/** A message of a person or of the agent, with what has come of its turn. */
export class MessageView {
  /** @param {Message} message @param {Actions} actions */
  constructor(message, actions) {
    this.message = message;
    this.actions = actions;
    this.notices = h('div', { class: 'notices' });
    const isUser = message.author === 'user';
    const speaker = h('h2', { class: 'visually-hidden' }, isUser ? 'You' : 'Agent');
    this.element = h('article', { class: `message ${message.author}` }, speaker);
    if (isUser) {
      this.text = document.createTextNode('');
      this.extras = h('div', { class: 'attachments' });
      this.element.append(h('div', { class: 'bubble' }, h('div', { class: 'said' }, this.text), this.extras));
    } else {
      this.list = new BlockList(actions);
      this.element.append(this.list.element);
    }
    this.element.append(this.notices);
    this.update();
  }

  update() {
    const { message, actions } = this;
    if (this.text) this.#updateSaid();
    else this.list?.update(message.blocks);
    const notices = actions.session.notices.get(message) ?? [];
    if (this.notices.children.length !== notices.length) {
      this.notices.replaceChildren(...notices.map((text) => h('p', { class: 'notice' }, text)));
    }
  }

  #updateSaid() {
    const { message, actions } = this;
    const content = message.blocks[0]?.content ?? '';
    if (this.text && this.text.data !== content) this.text.data = content;
    const said = message.turnId === undefined ? undefined : actions.session.said.get(message.turnId);
    if (!said || !this.extras || this.extras.childElementCount > 0) return;
    const isThere = said.pictures.length === said.attachments.length;
    this.extras.append(
      ...(isThere
        ? said.pictures.map(({ name, address }) => h('img', { class: 'sent', src: address, alt: name, title: name }))
        : said.attachments.map(({ label }) => h('span', { class: 'chip' }, icon('attach'), label))),
    );
    const { url, bytes } = said;
    if (url && bytes) {
      this.extras.append(h('button', { type: 'button', class: 'small', click: () => actions.openResult('Prompt', url) }, `Show all ${size(bytes)}`));
    }
  }
}

/** What has come of a turn: how it ended, what it cost, and what one can do from here. */
export class TurnFooter {
  /** @param {string} turnId @param {Actions} actions */
  constructor(turnId, actions) {
    this.element = h('footer', { class: 'turn-end' });
    this.turnId = turnId;
    this.actions = actions;
    this.key = '';
  }

  update() {
    const { session, canFork, fork, sideChat } = this.actions;
    const end = session.turns.get(this.turnId);
    const key = `${end?.outcome} ${canFork()}`;
    if (key === this.key || !end) return;
    this.key = key;
    const tokens = (end.usage?.inputTokens ?? 0) + (end.usage?.outputTokens ?? 0);
    const parts = [];
    if (end.outcome === 'cancelled') parts.push(h('span', { class: 'outcome' }, 'Stopped'));
    if (end.outcome === 'error') parts.push(h('p', { class: 'failure', role: 'alert' }, end.error ?? 'The turn failed.'));
    if (tokens > 0) parts.push(h('span', {}, count(tokens, 'token')));
    if (end.usage?.model) parts.push(h('span', {}, end.usage.model));
    if (canFork()) {
      parts.push(
        h('button', { type: 'button', class: 'quiet small', title: 'Continue from here in a chat of its own', click: () => fork(this.turnId) }, icon('fork'), 'Fork'),
        h('button', { type: 'button', class: 'quiet small', title: 'Ask about this without changing the chat', click: () => sideChat(this.turnId) }, icon('side'), 'Side chat'),
      );
    }
    this.element.replaceChildren(...parts);
  }
}
