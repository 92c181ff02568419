/** A call as a compact card that unfolds: what it is given, what came of it, and what its sub-agent says. */

import { h, setText, show } from './dom.js';
import { icon } from './icons.js';
import { copyButton } from './copy.js';
import { size } from './format.js';

/** @typedef {import('../v2/model.js').Block} Block */
/** @typedef {{blockList: () => {element: HTMLElement, update: (blocks: Block[]) => void}, openResult: (title: string, url: string) => void, isAsked: (toolId: string) => boolean}} Context */

/** A result that is longer than this is shown from its beginning only, with a way to see all of it. */
const PREVIEW = 20_000;

export class ToolView {
  /** @param {Context} context */
  constructor(context) {
    this.context = context;
    this.status = h('span', { class: 'tool-status' });
    this.name = h('span', { class: 'tool-name' });
    this.hint = h('span', { class: 'tool-hint' });
    this.body = h('div', { class: 'tool-body' });
    const summary = h('summary', {}, this.status, this.name, this.hint, icon('chevron'));
    this.card = h('details', { class: 'tool', toggle: () => this.#fill() }, summary, this.body);
    this.nested = context.blockList();
    this.nested.element.className = 'nested';
    this.element = h('div', { class: 'tool-holder' }, this.card, this.nested.element);
    /** @type {Block | null} */
    this.block = null;
    /** What the body shows. */
    this.filled = '';
    this.looks = '';
  }

  /** @param {Block} block */
  update(block) {
    this.block = block;
    const tool = block.tool;
    const state = stateOf(block, this.context);
    if (state !== this.looks) {
      this.looks = state;
      this.card.dataset.state = state;
      this.status.replaceChildren(...drawn(state), h('span', { class: 'visually-hidden' }, LABELS[state]));
    }
    setText(this.name, tool?.toolName || 'Tool');
    setText(this.hint, hint(tool?.input));
    this.#fill();
    show(this.nested.element, block.blocks.length > 0);
    if (block.blocks.length > 0) this.nested.update(block.blocks);
  }

  /** Fills the card, only while it is open: most cards never are. */
  #fill() {
    const tool = this.block?.tool;
    if (!this.card.open || !this.block) return;
    const key = `${tool?.input?.length ?? this.block.content.length} ${tool?.outcome?.result.length ?? -1} ${tool?.outcome?.url ?? ''}`;
    if (key === this.filled) return;
    this.filled = key;
    const input = tool?.input ?? this.block.content;
    const parts = input ? [section('Input', pretty(input))] : [];
    if (tool?.outcome) parts.push(this.#result(tool.toolName, tool.outcome));
    else if (this.block.done) parts.push(h('p', { class: 'muted' }, 'No result yet.'));
    this.body.replaceChildren(...parts);
  }

  /** @param {string} name @param {import('../v2/model.js').ToolOutcome} outcome */
  #result(name, outcome) {
    const { result, isError, bytes, url } = outcome;
    const title = isError ? 'Error' : 'Result';
    const part = section(title, result.slice(0, PREVIEW));
    const whole = bytes ?? result.length;
    if (url) {
      const all = h('button', { type: 'button', class: 'small', click: () => this.context.openResult(`${name}: result`, url) }, `Show all ${size(whole)}`);
      part.append(h('p', { class: 'more-line' }, `The first ${size(Math.min(PREVIEW, result.length))} of ${size(whole)}. `, all));
    } else if (result.length > PREVIEW) {
      part.append(h('p', { class: 'more-line' }, `The first ${size(PREVIEW)} of ${size(result.length)}.`));
    }
    if (isError) part.classList.add('is-error');
    return part;
  }
}

/** @typedef {'writing' | 'waiting' | 'running' | 'done' | 'failed'} CallState */

const LABELS = { writing: 'is being written', waiting: 'waits for your approval', running: 'runs', done: 'done', failed: 'failed' };

/** @param {Block} block @param {Context} context @returns {CallState} */
function stateOf(block, context) {
  const outcome = block.tool?.outcome;
  if (outcome) return outcome.isError ? 'failed' : 'done';
  if (!block.done) return 'writing';
  return block.tool?.toolId && context.isAsked(block.tool.toolId) ? 'waiting' : 'running';
}

/** @param {CallState} state @returns {Node[]} */
function drawn(state) {
  switch (state) {
    case 'done':
      return [icon('check')];
    case 'failed':
      return [icon('cross')];
    case 'waiting':
      return [icon('shield')];
    default:
      return [h('span', { class: 'spinner' })];
  }
}

/** @param {string} title @param {string} text */
function section(title, text) {
  const pre = h('pre', { tabindex: 0, role: 'region', 'aria-label': title }, text);
  return h('section', { class: 'tool-part' }, h('header', {}, h('span', {}, title), copyButton(() => text)), pre);
}

/** What a call is about, in a few words, from its input. @param {string | undefined} input */
export function hint(input) {
  if (!input) return '';
  const value = parsed(input.slice(0, 20_000));
  if (typeof value !== 'object' || value === null) return firstLine(input);
  const { argv, command, file_path, path, file, pattern, query, url, description, prompt } = /** @type {any} */ (value);
  if (Array.isArray(argv)) return firstLine(argv.join(' '));
  const said = command ?? file_path ?? path ?? file ?? pattern ?? query ?? url ?? description ?? prompt;
  if (typeof said === 'string') return firstLine(said);
  const first = Object.entries(value)[0];
  return first ? firstLine(`${first[0]}: ${typeof first[1] === 'string' ? first[1] : JSON.stringify(first[1])}`) : '';
}

/** @param {string} text */
function firstLine(text) {
  const line = text.trimStart().split('\n', 1)[0] ?? '';
  return line.length > 160 ? `${line.slice(0, 160)}…` : line;
}

/** @param {string} text */
function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

/** An input for people: values of several lines as they are, the rest as indented JSON. @param {string} input */
function pretty(input) {
  const value = input.length > 100_000 ? undefined : parsed(input);
  if (value === undefined) return input.slice(0, PREVIEW);
  if (typeof value !== 'object' || value === null) return String(value);
  const fields = Object.entries(value).map(([name, field]) =>
    typeof field === 'string' ? `${name}: ${field.includes('\n') ? `\n${field}` : field}` : `${name}: ${JSON.stringify(field)}`,
  );
  return fields.join('\n').slice(0, PREVIEW);
}
