/**
 * Markdown as elements. The parser makes tokens, and this makes elements of them, with text as text: HTML in Markdown is shown and
 * never interpreted, pictures of other hosts are links, and a link leads to the web or nowhere.
 */

import { lexer } from '../../vendor/marked.js';
import { h } from './dom.js';
import { copyButton } from './copy.js';

/** @typedef {import('../../vendor/marked.js').Token} Token */

/** @param {string} text @returns {Node[]} */
export function markdown(text) {
  return blocks(lexer(text, { gfm: true }));
}

/** @param {Token[] | undefined} tokens @returns {Node[]} */
function blocks(tokens) {
  return (tokens ?? []).map(block).filter((node) => node !== null);
}

/** @param {Token} token @returns {Node | null} */
function block(token) {
  switch (token.type) {
    case 'space':
    case 'def':
      return null;
    case 'code':
      return codeBlock(token.text, token.lang ?? '');
    case 'heading': {
      // A message is a section of the page, below its headings.
      const depth = Math.min(6, token.depth + 2);
      return h(/** @type {'h3'} */ (`h${depth}`), {}, ...inlines(token.tokens));
    }
    case 'hr':
      return h('hr');
    case 'blockquote':
      return h('blockquote', {}, ...blocks(token.tokens));
    case 'list':
      return list(token);
    case 'table':
      return table(token);
    case 'paragraph':
      return h('p', {}, ...inlines(token.tokens));
    case 'text':
      return token.tokens ? h('span', {}, ...inlines(token.tokens)) : document.createTextNode(token.text);
    case 'html':
      return h('p', {}, token.text);
    default:
      return document.createTextNode(token.raw);
  }
}

/** @param {string} text @param {string} language */
export function codeBlock(text, language) {
  const name = /^[\w+#.-]{1,24}/.exec(language)?.[0] ?? '';
  const code = h('code', {}, text);
  const pre = h('pre', { tabindex: 0, role: 'region', 'aria-label': name ? `Code, ${name}` : 'Code' }, code);
  return h('div', { class: 'code' }, h('div', { class: 'code-head' }, h('span', {}, name), copyButton(() => code.textContent ?? '')), pre);
}

/** @param {any} token */
function list(token) {
  const start = token.ordered && token.start !== 1 ? token.start : null;
  const items = token.items.map((/** @type {any} */ item) => {
    const box = item.task && h('input', { type: 'checkbox', disabled: true, checked: item.checked, 'aria-label': 'Done' });
    return h('li', { class: item.task ? 'task' : null }, box, ...blocks(item.tokens.filter((/** @type {any} */ inner) => inner.type !== 'checkbox')));
  });
  return token.ordered ? h('ol', { start }, ...items) : h('ul', {}, ...items);
}

/** @param {any} token */
function table(token) {
  const cell = (/** @type {'td' | 'th'} */ tag, /** @type {any} */ of, /** @type {number} */ at) =>
    h(tag, { class: token.align[at] ? `align-${token.align[at]}` : null, scope: tag === 'th' ? 'col' : null }, ...inlines(of.tokens));
  const head = token.header.map((/** @type {any} */ of, /** @type {number} */ at) => cell('th', of, at));
  const rows = token.rows.map((/** @type {any[]} */ row) => h('tr', {}, ...row.map((of, at) => cell('td', of, at))));
  const whole = h('table', {}, h('thead', {}, h('tr', {}, ...head)), h('tbody', {}, ...rows));
  return h('div', { class: 'table', tabindex: 0, role: 'region', 'aria-label': 'Table' }, whole);
}

/** @param {Token[] | undefined} tokens @returns {Node[]} */
function inlines(tokens) {
  return (tokens ?? []).map(inline);
}

/** @param {any} token @returns {Node} */
function inline(token) {
  switch (token.type) {
    case 'text':
      return token.tokens ? h('span', {}, ...inlines(token.tokens)) : document.createTextNode(unescaped(token.text));
    case 'escape':
      return document.createTextNode(unescaped(token.text));
    case 'strong':
      return h('strong', {}, ...inlines(token.tokens));
    case 'em':
      return h('em', {}, ...inlines(token.tokens));
    case 'del':
      return h('del', {}, ...inlines(token.tokens));
    case 'codespan':
      return h('code', {}, unescaped(token.text));
    case 'br':
      return h('br');
    case 'link':
      return link(token.href, inlines(token.tokens));
    case 'image':
      return link(token.href, [document.createTextNode(token.text || token.href)]);
    default:
      return document.createTextNode(token.raw);
  }
}

/** @param {string} address @param {Node[]} content */
function link(address, content) {
  let url;
  try {
    url = new URL(address);
  } catch {
    url = null;
  }
  if (!url || !['http:', 'https:', 'mailto:'].includes(url.protocol)) return h('span', { class: 'no-link', title: address }, ...content);
  return h('a', { href: url.href, target: '_blank', rel: 'noopener noreferrer' }, ...content);
}

const ENTITIES = new Map(Object.entries({ amp: '&', lt: '<', gt: '>', quot: '"', apos: "'", '#39': "'", nbsp: '\u00a0' }));

/** Character references as what they stand for. @param {string} text */
function unescaped(text) {
  return text.replace(/&(#?\w{1,8});/g, (whole, name) => ENTITIES.get(name) ?? whole);
}
