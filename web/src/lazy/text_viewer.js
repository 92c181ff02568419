/** Shows a text of any length: only the lines that are in view have elements. */

import { h } from '../ui/dom.js';
import { Lines } from './lines.js';

/** As in the style sheet. */
const LINE_HEIGHT = 18;
/** The tallest element that browsers lay out reliably; a text with more lines scrolls in larger steps. */
const MAX_HEIGHT = 8_000_000;
/** Above the first line and below the last one, in pixels. */
const PADDING = 15;
/** How many more lines are drawn above and below those in view. */
const MARGIN = 30;

export class TextViewer {
  constructor() {
    this.lines = new Lines();
    this.shown = h('div', { class: 'viewer-lines' });
    this.space = h('div', { class: 'viewer-space' });
    this.element = h('div', { class: 'viewer', tabindex: 0, role: 'region', 'aria-label': 'Text', scroll: () => this.#draw() }, this.shown, this.space);
    this.key = '';
    new ResizeObserver(() => this.#draw()).observe(this.element);
  }

  /** @param {string} text */
  push(text) {
    this.lines.push(text);
    this.#draw();
  }

  end() {
    this.lines.end();
    this.#draw();
  }

  #draw() {
    const { count, longest } = this.lines;
    const height = Math.min(count * LINE_HEIGHT, MAX_HEIGHT);
    this.space.style.height = `${height + PADDING}px`;
    const view = this.element.clientHeight;
    const { scrollTop } = this.element;
    // Where all lines fit the height, one pixel is one pixel.
    const isExact = count * LINE_HEIGHT <= MAX_HEIGHT;
    const part = scrollTop / Math.max(1, height - view);
    const top = isExact ? scrollTop / LINE_HEIGHT : part * Math.max(0, count - view / LINE_HEIGHT);
    const from = Math.max(0, Math.floor(top) - MARGIN);
    const to = Math.min(count, Math.ceil(top + view / LINE_HEIGHT) + MARGIN);
    const key = `${from} ${to} ${longest}`;
    this.shown.style.top = `${isExact ? from * LINE_HEIGHT : scrollTop - (top - from) * LINE_HEIGHT}px`;
    if (key === this.key) return;
    this.key = key;
    this.shown.style.minWidth = `${longest}ch`;
    this.shown.textContent = this.lines.slice(from, to).join('\n');
  }
}
