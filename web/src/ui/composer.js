/** Where one writes: the prompt, its pictures, what waits in the queue, and how to stop. */

import { h, show } from './dom.js';
import { icon } from './icons.js';
import { Pictures } from './pictures.js';

/** @typedef {{value: string, label: string}} Choice */
/** @typedef {import('./pictures.js').Picture} Picture */
/** @typedef {{text: string, pictures: Picture[]}} Draft */
/** @typedef {{send: (draft: Draft, model: string) => void, interrupt: (draft: Draft, model: string) => void, setMode: (mode: string) => void, complain: (problem: string) => void}} Actions */

export class Composer {
  /** @param {Actions} actions */
  constructor(actions) {
    this.actions = actions;
    this.isRunning = false;
    /** The session that is written to, and what was written to the others. */
    this.owner = '';
    /** @type {Map<string, Draft>} */
    this.drafts = new Map();
    this.text = h('textarea', {
      rows: 1, placeholder: 'Message the agent', 'aria-label': 'Message', enterkeyhint: 'send', autocomplete: 'off',
      input: () => this.#resize(), keydown: (/** @type {KeyboardEvent} */ event) => this.#key(event), paste: (/** @type {ClipboardEvent} */ event) => this.#paste(event),
    });
    this.pictures = new Pictures(actions.complain, () => this.#showButtons());
    this.queue = h('ol', { class: 'queue', 'aria-label': 'Queued prompts' });
    this.mode = this.#select('Permission mode', (value) => actions.setMode(value));
    this.model = this.#select('Model', () => {});
    const attach = h('button', { type: 'button', class: 'quiet', 'aria-label': 'Attach a picture', title: 'Attach a picture', click: () => this.pictures.picker.click() }, icon('attach'));
    this.instead = h('button', { type: 'button', class: 'quiet small instead', title: 'Stop the agent and say this now (Ctrl+Enter)', click: () => this.#interrupt() }, 'Interrupt');
    this.stop = h('button', { type: 'button', class: 'round stop', 'aria-label': 'Stop the agent', title: 'Stop (Esc)', click: () => this.cancel() }, icon('stop'));
    this.go = h('button', { type: 'submit', class: 'round primary', 'aria-label': 'Send', title: 'Send (Enter)' }, icon('send'));
    const tools = h('div', { class: 'composer-tools' }, attach, this.mode.element, this.model.element, h('span', { class: 'grow' }), this.instead, this.stop, this.go);
    this.box = h('form', { class: 'composer', submit: (/** @type {Event} */ event) => this.#submit(event) }, this.pictures.element, this.text, tools, this.pictures.picker);
    this.element = h('div', { class: 'composer-area' }, this.queue, this.box);
    this.#takeDrops();
    this.update({ isRunning: false, queue: [] });
  }

  /** @param {{isRunning: boolean, queue: import('../v2/model.js').QueuedPrompt[]}} state */
  update({ isRunning, queue }) {
    this.isRunning = isRunning;
    show(this.stop, isRunning);
    this.#showButtons();
    const key = JSON.stringify(queue.map(({ id }) => id));
    if (this.queue.dataset.key === key) return;
    this.queue.dataset.key = key;
    this.queue.replaceChildren(...queue.map(({ prompt }) => h('li', {}, h('span', { class: 'queue-label' }, 'Queued'), h('span', { class: 'queue-text' }, prompt))));
    show(this.queue, queue.length > 0);
  }

  /** @param {{modes: Choice[], mode: string | null, models: Choice[]}} options */
  offer({ modes, mode, models }) {
    this.mode.fill(modes, mode ?? '');
    this.model.fill(models, this.model.value());
  }

  /** Shows what was written to this session so far. @param {string} owner */
  switchTo(owner) {
    if (owner === this.owner) return;
    const pictures = this.pictures.take();
    if (this.text.value || pictures.length > 0) this.drafts.set(this.owner, { text: this.text.value, pictures });
    this.owner = owner;
    const draft = this.drafts.get(owner);
    this.drafts.delete(owner);
    this.text.value = draft?.text ?? '';
    this.pictures.put(draft?.pictures ?? []);
    this.#resize();
  }

  /** Puts what will not run back to where it was written. @param {string} owner @param {string[]} prompts @param {Picture[]} [pictures] */
  giveBack(owner, prompts, pictures = []) {
    const isShown = owner === this.owner;
    const draft = this.drafts.get(owner) ?? { text: '', pictures: [] };
    const text = [...prompts, isShown ? this.text.value : draft.text].filter((part) => part.trim()).join('\n\n');
    if (!isShown) return void this.drafts.set(owner, { text, pictures: [...pictures, ...draft.pictures] });
    this.text.value = text;
    this.pictures.put([...pictures, ...this.pictures.take()]);
    this.#resize();
  }

  /** Stops the turn. What is written stays. */
  cancel() {
    this.actions.interrupt({ text: '', pictures: [] }, '');
  }

  focus() {
    this.text.focus({ preventScroll: true });
  }

  /** @param {string} label @param {(value: string) => void} changed */
  #select(label, changed) {
    const select = h('select', { 'aria-label': label, title: label, change: () => changed(select.value) });
    const element = h('label', { class: 'choice' }, select);
    let known = '';
    const fill = (/** @type {Choice[]} */ choices, /** @type {string} */ chosen) => {
      const key = JSON.stringify(choices);
      if (key !== known) select.replaceChildren(...choices.map(({ value, label }) => h('option', { value }, label)));
      known = key;
      if (choices.some(({ value }) => value === chosen)) select.value = chosen;
      show(element, choices.length > 1);
    };
    show(element, false);
    return { element, fill, value: () => select.value };
  }

  /** @param {Event} event */
  #submit(event) {
    event.preventDefault();
    const draft = this.#take();
    if (draft) this.actions.send(draft, this.model.value());
  }

  #interrupt() {
    const draft = this.#take();
    if (draft) this.actions.interrupt(draft, this.model.value());
  }

  /** Takes what is written, if anything is. @returns {Draft | null} */
  #take() {
    const text = this.text.value.trim();
    const pictures = this.pictures.take();
    if (!text && pictures.length === 0) return null;
    this.text.value = '';
    this.#resize();
    this.focus();
    return { text, pictures };
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    if (event.key !== 'Enter' || event.isComposing || event.shiftKey) return;
    event.preventDefault();
    if ((event.ctrlKey || event.metaKey) && this.isRunning) this.#interrupt();
    else this.box.requestSubmit();
  }

  /** @param {ClipboardEvent} event */
  #paste(event) {
    const files = [...(event.clipboardData?.files ?? [])].filter((file) => file.type.startsWith('image/'));
    if (files.length === 0) return;
    event.preventDefault();
    void this.pictures.add(files);
  }

  #takeDrops() {
    const isFiles = (/** @type {DragEvent} */ event) => event.dataTransfer?.types.includes('Files') ?? false;
    addEventListener('dragover', (event) => {
      if (!isFiles(event)) return;
      event.preventDefault();
      this.box.classList.add('is-target');
    });
    addEventListener('dragleave', (event) => event.relatedTarget === null && this.box.classList.remove('is-target'));
    addEventListener('drop', (event) => {
      if (!isFiles(event)) return;
      event.preventDefault();
      this.box.classList.remove('is-target');
      void this.pictures.add([...(event.dataTransfer?.files ?? [])]);
    });
  }

  #resize() {
    this.text.style.height = 'auto';
    this.text.style.height = `${this.text.scrollHeight}px`;
    this.#showButtons();
  }

  #showButtons() {
    show(this.instead, this.isRunning && (this.text.value.trim() !== '' || this.pictures.list.length > 0));
    const label = this.isRunning ? 'Queue' : 'Send';
    if (this.go.title !== `${label} (Enter)`) {
      this.go.title = `${label} (Enter)`;
      this.go.setAttribute('aria-label', label);
    }
  }
}
