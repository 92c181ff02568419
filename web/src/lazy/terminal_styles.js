/**
 * Styles for the terminal. It makes `style` elements and attributes, which the page's security policy refuses; so it is given a
 * document whose elements keep their rules in style sheets and style objects instead, as the policy allows.
 */

import { h } from '../ui/dom.js';

/** Loads the terminal's own style sheet. @returns {Promise<void>} */
export function useStyles() {
  const href = new URL('../../vendor/lazy/xterm.css', import.meta.url).href;
  if (document.querySelector(`link[href="${href}"]`)) return Promise.resolve();
  return new Promise((resolve, reject) => {
    document.head.append(h('link', { rel: 'stylesheet', href, load: () => resolve(), error: () => reject(new Error('The host does not answer.')) }));
  });
}

/**
 * Runs something that makes `style` elements with the document of the page itself.
 * @param {() => void} run
 */
export function withStyles(run) {
  const real = document.createElement;
  const styled = (/** @type {string} */ tag) => (tag === 'style' ? styleElement() : real.call(document, tag));
  document.createElement = /** @type {typeof document.createElement} */ (styled);
  try {
    run();
  } finally {
    document.createElement = real;
  }
}

/** @returns {Document} */
export function styledDocument() {
  return new Proxy(document, {
    get(target, name) {
      if (name === 'createElement') return (/** @type {string} */ tag) => (tag === 'style' ? styleElement() : styledElement(tag));
      const value = Reflect.get(target, name, target);
      return typeof value === 'function' ? value.bind(target) : value;
    },
  });
}

/** An element whose style can be set as an attribute. @param {string} tag */
function styledElement(tag) {
  const element = Document.prototype.createElement.call(document, tag);
  element.setAttribute = (name, value) => {
    if (name === 'style') element.style.cssText = value;
    else HTMLElement.prototype.setAttribute.call(element, name, value);
  };
  return element;
}

/** An element that holds rules as a `style` element does, as long as it is in the page. */
function styleElement() {
  const sheet = new CSSStyleSheet();
  const element = Document.prototype.createElement.call(document, 'span');
  element.hidden = true;
  document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];
  Object.defineProperty(element, 'textContent', { get: () => '', set: (rules) => sheet.replaceSync(rules) });
  Object.defineProperty(element, 'sheet', { get: () => sheet });
  element.remove = () => {
    document.adoptedStyleSheets = document.adoptedStyleSheets.filter((one) => one !== sheet);
    HTMLElement.prototype.remove.call(element);
  };
  return element;
}
