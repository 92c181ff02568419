/**
 * A text that grows, as Markdown. What comes before the last boundary between two blocks of Markdown is made into elements once and
 * stays; only the rest is made anew when more arrives. So a long answer costs as little at its end as at its beginning.
 */

import { h } from './dom.js';
import { markdown } from './markdown.js';

/** A rest that is longer than this without a boundary is shown as plain text until its end comes. */
const MAX_TAIL = 16_000;
/** A fence that is open: its code is appended to, and not parsed. */
const FENCE = /^ {0,3}(`{3,}|~{3,})[^`\n]*\n/;

export class TextView {
  constructor() {
    this.element = h('div', { class: 'markdown' });
    this.tail = h('div', { class: 'tail' });
    this.element.append(this.tail);
    /** How much of the text is final. */
    this.settled = 0;
    /** How much of the text was shown. */
    this.shown = 0;
    this.isDone = false;
    /** What shows the rest while it grows without being parsed. @type {{text: Text, from: number} | null} */
    this.plain = null;
  }

  /** @param {string} content @param {boolean} isDone */
  update(content, isDone) {
    if (content.length === this.shown && isDone === this.isDone) return;
    if (content.length < this.shown) this.#clear();
    this.shown = content.length;
    this.isDone = isDone;
    const boundary = isDone ? content.length : lastBoundary(content, this.settled);
    if (boundary > this.settled) {
      this.tail.before(...markdown(content.slice(this.settled, boundary)));
      this.settled = boundary;
      this.plain = null;
      this.tail.replaceChildren();
    }
    if (this.settled < content.length) this.#showTail(content);
  }

  /** @param {string} content */
  #showTail(content) {
    if (this.plain) {
      this.plain.text.appendData(content.slice(this.plain.from));
      this.plain.from = content.length;
      return;
    }
    const rest = content.slice(this.settled);
    const fence = FENCE.exec(rest);
    if (fence || rest.length > MAX_TAIL) {
      const text = document.createTextNode(fence ? rest.slice(fence[0].length) : rest);
      this.plain = { text, from: content.length };
      const shown = fence ? h('pre', {}, h('code', {}, text)) : h('p', { class: 'plain' }, text);
      this.tail.replaceChildren(fence ? h('div', { class: 'code' }, h('div', { class: 'code-head' }), shown) : shown);
    } else {
      this.tail.replaceChildren(...markdown(rest));
    }
  }

  #clear() {
    this.element.replaceChildren(this.tail);
    this.tail.replaceChildren();
    this.settled = this.shown = 0;
    this.plain = null;
  }
}

/**
 * The end of the last block that what follows cannot change: after a closed fence, before a fence that opens, and at a blank line
 * whose next line begins a paragraph or heading.
 * @param {string} text @param {number} from
 */
export function lastBoundary(text, from) {
  let boundary = from;
  /** The fence that is open. @type {string | null} */
  let fence = null;
  let afterBlank = false;
  let at = from;
  while (at < text.length) {
    const end = text.indexOf('\n', at);
    const isWhole = end >= 0;
    const line = text.slice(at, isWhole ? end : text.length);
    const next = isWhole ? end + 1 : text.length;
    if (fence !== null) {
      const close = /^ {0,3}(`{3,}|~{3,})\s*$/.exec(line)?.[1];
      if (isWhole && close && close[0] === fence[0] && close.length >= fence.length) {
        fence = null;
        boundary = next;
      }
    } else {
      const opened = /^(`{3,}|~{3,})[^`]*$/.exec(line)?.[1];
      if (opened && isWhole) {
        fence = opened;
        boundary = at;
      } else if (afterBlank && isWhole && line !== '' && !/^(\s|[-*+>|`~]|\d+[.)])/.test(line)) {
        boundary = at;
      }
    }
    afterBlank = fence === null && line.trim() === '';
    at = next;
  }
  return boundary;
}
