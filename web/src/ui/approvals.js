/** What the agent asks to be allowed, above the composer, with the time that is left. */

import { h, setText } from './dom.js';
import { icon } from './icons.js';
import { markdown } from './markdown.js';

/** @typedef {import('../v2/model.js').Permission} Permission */
/** @typedef {'once' | 'always' | 'deny'} Decision */

/** An answer that is sure to be in time is shown without its deadline. */
const CALM = 60;

export class Approvals {
  /** @param {(permission: Permission, decision: Decision) => Promise<void>} answer */
  constructor(answer) {
    this.answer = answer;
    this.element = h('div', { class: 'approvals', role: 'region', 'aria-label': 'Approvals', 'aria-live': 'assertive' });
    /** @type {Map<string, {card: HTMLElement, left: HTMLElement, permission: Permission}>} */
    this.cards = new Map();
    this.skew = 0;
    setInterval(() => this.#count(), 1000);
  }

  /** @param {Permission[]} permissions @param {number} skew how far the host's clock is behind ours, in milliseconds */
  update(permissions, skew) {
    this.skew = skew;
    for (const permission of permissions) {
      if (this.cards.has(permission.permId)) continue;
      const made = this.#card(permission);
      this.cards.set(permission.permId, made);
      this.element.append(made.card);
    }
    const known = new Set(permissions.map(({ permId }) => permId));
    for (const [permId, { card }] of this.cards) {
      if (known.has(permId)) continue;
      const hadFocus = card.contains(document.activeElement);
      card.remove();
      this.cards.delete(permId);
      // Focus goes on to the next question, or to where one writes.
      if (hadFocus) (this.element.querySelector('button') ?? document.querySelector('textarea'))?.focus();
    }
    this.#count();
  }

  /** Answers the first question, for the keyboard. @param {Decision} decision */
  answerFirst(decision) {
    const first = [...this.cards.values()][0];
    if (first) void this.#decide(first.permission, decision, first.card);
  }

  /** @param {Permission} permission */
  #card(permission) {
    const { toolName, options } = permission;
    const input = inputText(permission.toolInput);
    // Some agents say the command in all of these. It is shown once, below.
    const title = permission.title && permission.title !== input ? permission.title : `Allow ${toolName}?`;
    const isNew = permission.description && permission.description !== input && permission.description !== permission.title;
    const description = isNew ? permission.description : permission.title ? '' : `The agent wants to use ${toolName}.`;
    const left = h('span', { class: 'deadline muted', 'aria-live': 'off' });
    const card = h('div', { class: 'approval', role: 'group', 'aria-label': `Approval: ${title}` });
    const button = (/** @type {Decision} */ decision, /** @type {string} */ label, /** @type {string} */ look, /** @type {string | null} */ key) =>
      h('button', { type: 'button', class: look, 'aria-keyshortcuts': key, click: () => void this.#decide(permission, decision, card) }, label);
    const labelOf = (/** @type {Decision} */ decision, /** @type {string} */ usual) => options.find((option) => option.decision === decision)?.label ?? usual;
    const canAlways = options.some((option) => option.decision === 'always');
    card.append(
      h('div', { class: 'approval-head' }, icon('shield'), h('strong', {}, title), h('code', { class: 'approval-hint' }, input.split('\n', 1)[0]), left),
      ...(description ? [h('div', { class: 'markdown' }, ...markdown(description))] : []),
      h('pre', { tabindex: 0, role: 'region', 'aria-label': 'What it would do' }, input),
      h(
        'div',
        { class: 'approval-buttons' },
        button('once', labelOf('once', 'Allow'), 'primary', 'Alt+A'),
        canAlways ? button('always', labelOf('always', 'Always allow'), '', null) : null,
        button('deny', labelOf('deny', 'Deny'), '', 'Alt+D'),
        h('span', { class: 'keys muted' }, h('kbd', {}, 'Alt'), ' ', h('kbd', {}, 'A'), ' allow, ', h('kbd', {}, 'Alt'), ' ', h('kbd', {}, 'D'), ' deny'),
      ),
    );
    return { card, left, permission };
  }

  /** @param {Permission} permission @param {Decision} decision @param {HTMLElement} card */
  async #decide(permission, decision, card) {
    const buttons = [...card.querySelectorAll('button')];
    card.setAttribute('aria-busy', 'true');
    buttons.forEach((button) => (button.disabled = true));
    try {
      await this.answer(permission, decision);
    } finally {
      card.removeAttribute('aria-busy');
      buttons.forEach((button) => (button.disabled = false));
    }
  }

  #count() {
    for (const { left, permission } of this.cards.values()) {
      const seconds = Math.max(0, Math.round((permission.expiresAt - (Date.now() - this.skew)) / 1000));
      setText(left, seconds > CALM * 60 ? '' : `${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, '0')} left`);
      left.classList.toggle('is-soon', seconds < CALM / 2);
    }
  }
}

/** @param {any} input */
function inputText(input) {
  if (typeof input === 'string') return input.slice(0, 4_000);
  if (Array.isArray(input?.argv)) return input.argv.join(' ').slice(0, 4_000);
  if (typeof input?.command === 'string') return input.command.slice(0, 4_000);
  return JSON.stringify(input, null, 2).slice(0, 4_000);
}
