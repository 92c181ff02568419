/** Where one writes: the prompt, its pictures, what waits in the queue, and how to stop. */

import { h, setText, show } from './dom.js';
import { icon } from './icons.js';
import { Pictures } from './pictures.js';

/** @typedef {{value: string, label: string}} Choice */
/** @typedef {{send: (prompt: string, images: any[], model: string) => void, interrupt: (prompt: string) => void, setMode: (mode: string) => void, complain: (problem: string) => void}} Actions */

export class Composer {
  /** @param {Actions} actions */
  constructor(actions) {
    this.actions = actions;
    this.isRunning = false;
    this.text = h('textarea', {
      rows: 1, placeholder: 'Message the agent', 'aria-label': 'Message', enterkeyhint: 'send', autocomplete: 'off',
      input: () => this.#resize(), keydown: (/** @type {KeyboardEvent} */ event) => this.#key(event), paste: (/** @type {ClipboardEvent} */ event) => this.#paste(event),
    });
    this.pictures = new Pictures(actions.complain);
    this.queue = h('ol', { class: 'queue', 'aria-label': 'Queued prompts' });
    this.mode = this.#select('Permission mode', (value) => actions.setMode(value));
    this.model = this.#select('Model', () => {});
    const attach = h('button', { type: 'button', class: 'quiet', 'aria-label': 'Attach a picture', title: 'Attach a picture', click: () => this.pictures.picker.click() }, icon('attach'));
    this.instead = h('button', { type: 'button', class: 'quiet small instead', title: 'Stop the agent and say this now (Ctrl+Enter)', click: () => this.#interrupt() }, 'Interrupt');
    this.stop = h('button', { type: 'button', class: 'round stop', 'aria-label': 'Stop the agent', title: 'Stop (Esc)', click: () => actions.interrupt('') }, icon('stop'));
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

  /** Puts prompts that will not run back to where they were written. @param {string[]} prompts */
  giveBack(prompts) {
    this.text.value = [...prompts, this.text.value].filter((text) => text.trim()).join('\n\n');
    this.#resize();
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
    const prompt = this.text.value.trim();
    const images = this.pictures.take();
    if (!prompt && images.length === 0) return;
    this.#clear();
    this.actions.send(prompt, images, this.model.value());
  }

  #interrupt() {
    const prompt = this.text.value.trim();
    this.#clear();
    this.actions.interrupt(prompt);
  }

  #clear() {
    this.text.value = '';
    this.#resize();
    this.focus();
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    if (event.key !== 'Enter' || event.isComposing || event.shiftKey) return;
    event.preventDefault();
    if ((event.ctrlKey || event.metaKey) && this.isRunning && this.text.value.trim()) this.#interrupt();
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
    const hasText = this.text.value.trim() !== '';
    show(this.instead, this.isRunning && hasText);
    const label = this.isRunning ? 'Queue' : 'Send';
    if (this.go.title !== `${label} (Enter)`) {
      this.go.title = `${label} (Enter)`;
      this.go.setAttribute('aria-label', label);
    }
    setText(this.instead, 'Interrupt');
  }
}
