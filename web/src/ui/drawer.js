/** The panel beside the conversation: changes, files, terminals, the wire, and long results. What is in it is loaded when it is opened. */

import { h, show } from './dom.js';
import { icon } from './icons.js';

/** @typedef {{element: HTMLElement, close?: () => void}} Panel */
/** @typedef {'changes' | 'files' | 'terminal' | 'wire'} TabName */

const TABS = /** @type {const} */ ([
  ['changes', 'Changes'],
  ['files', 'Files'],
  ['terminal', 'Terminal'],
  ['wire', 'Wire'],
]);

export class Drawer {
  /** @param {(name: TabName) => Promise<Panel>} load */
  constructor(load) {
    this.load = load;
    /** @type {Panel | null} */
    this.panel = null;
    /** @type {string | null} */
    this.name = null;
    this.tabs = h('div', { class: 'tabs', role: 'tablist', 'aria-label': 'Panels', keydown: (/** @type {KeyboardEvent} */ event) => this.#key(event) });
    for (const [name, label] of TABS) {
      const tab = h('button', { type: 'button', role: 'tab', id: `tab-${name}`, 'aria-controls': 'drawer-body', 'aria-selected': 'false', tabindex: -1, 'data-name': name, click: () => void this.open(name) }, icon(name === 'files' ? 'folder' : name), h('span', {}, label));
      this.tabs.append(tab);
    }
    const close = h('button', { type: 'button', class: 'quiet', 'aria-label': 'Close the panel', click: () => this.close() }, icon('close'));
    this.body = h('div', { class: 'drawer-body', id: 'drawer-body', role: 'tabpanel', tabindex: -1 });
    this.element = h('aside', { class: 'drawer', 'aria-label': 'Panel' }, h('header', {}, this.tabs, close), this.body);
    this.opener = /** @type {Element | null} */ (null);
    show(this.element, false);
  }

  /** @param {TabName} name */
  async open(name) {
    if (this.name === name) return;
    await this.#show(name, () => this.load(name));
  }

  /** Opens the panel, or closes it if it shows just this. @param {TabName} name */
  async toggle(name) {
    if (this.name === name) this.close();
    else await this.open(name);
  }

  /** Shows something that has no tab. @param {string} name @param {() => Promise<Panel>} make */
  async showOther(name, make) {
    await this.#show(name, make);
  }

  /** @param {string} name @param {() => Promise<Panel>} make */
  async #show(name, make) {
    if (this.element.hidden) this.opener = document.activeElement;
    this.#leave();
    this.name = name;
    show(this.element, true);
    document.body.classList.add('has-drawer');
    for (const tab of /** @type {NodeListOf<HTMLElement>} */ (this.tabs.querySelectorAll('[role=tab]'))) {
      const isOpen = tab.dataset.name === name;
      tab.setAttribute('aria-selected', String(isOpen));
      tab.tabIndex = isOpen ? 0 : -1;
    }
    if (!this.tabs.querySelector('[tabindex="0"]')) this.tabs.querySelector('button')?.setAttribute('tabindex', '0');
    this.body.setAttribute('aria-labelledby', `tab-${name}`);
    this.body.replaceChildren(h('p', { class: 'muted pad' }, 'Loading…'));
    try {
      const panel = await make();
      if (this.name !== name) return panel.close?.();
      this.panel = panel;
      this.body.replaceChildren(panel.element);
    } catch (error) {
      if (this.name !== name) return;
      const why = error instanceof Error ? error.message : String(error);
      this.body.replaceChildren(h('p', { class: 'failure pad', role: 'alert' }, `This cannot be shown: ${why} If the host was updated, reload the page.`));
    }
  }

  close() {
    this.#leave();
    this.name = null;
    show(this.element, false);
    document.body.classList.remove('has-drawer');
    if (this.opener instanceof HTMLElement) this.opener.focus();
  }

  /** Another session is shown: what was about the former one goes. */
  reset() {
    const name = this.name;
    if (name === null || name === 'wire') return;
    if (TABS.some(([tab]) => tab === name)) void this.#show(name, () => this.load(/** @type {TabName} */ (name)));
    else this.close();
  }

  #leave() {
    this.panel?.close?.();
    this.panel = null;
    this.body.replaceChildren();
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    const step = event.key === 'ArrowRight' ? 1 : event.key === 'ArrowLeft' ? -1 : 0;
    const tabs = /** @type {HTMLElement[]} */ ([...this.tabs.querySelectorAll('[role=tab]')]);
    const at = tabs.findIndex((tab) => tab === document.activeElement);
    const next = tabs[(at + step + tabs.length) % tabs.length];
    if (step === 0 || at < 0 || !next) return;
    event.preventDefault();
    next.focus();
    next.click();
  }
}
