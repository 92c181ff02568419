/** The dialog that begins a session: which agent, where, and with which model and mode. */

import { h, setText, show } from './dom.js';
import { pathOf } from './format.js';

/** @typedef {import('./composer.js').Choice} Choice */
/** @typedef {{provider: string, displayName: string, description: string, models: {id: string, name: string}[]}} Agent */
/** @typedef {{agents: Agent[], directory: string, modes: (provider: string) => Promise<{choices: Choice[], value: string}>, directories: (path: string) => Promise<string[]>}} Host */
/** @typedef {{agent: string, cwd: string, model?: string, mode?: string}} Wanted */

export class NewSessionDialog {
  /** @param {() => Promise<Host>} host @param {(wanted: Wanted) => Promise<void>} create @param {() => void} created */
  constructor(host, create, created) {
    this.host = host;
    this.create = create;
    this.created = created;
    this.agents = h('div', { class: 'agents', role: 'radiogroup', 'aria-label': 'Agent', change: () => void this.#chosen() });
    this.places = h('datalist', { id: 'places' });
    this.cwd = h('input', { type: 'text', name: 'cwd', required: true, list: 'places', spellcheck: 'false', autocapitalize: 'off', autocomplete: 'off', input: () => void this.#suggest() });
    this.model = h('select', { name: 'model' });
    this.mode = h('select', { name: 'mode' });
    this.modelField = h('label', { class: 'field' }, h('span', {}, 'Model'), this.model);
    this.modeField = h('label', { class: 'field' }, h('span', {}, 'Permission mode'), this.mode);
    this.problem = h('p', { class: 'failure', role: 'alert' });
    this.submit = h('button', { type: 'submit', class: 'primary' }, 'Begin');
    const form = h(
      'form',
      { method: 'dialog', submit: (/** @type {Event} */ event) => void this.#submitted(event) },
      h('h2', { id: 'new-session-title' }, 'New session'),
      this.agents,
      h('label', { class: 'field' }, h('span', {}, 'Directory'), this.cwd),
      this.places,
      h('div', { class: 'fields' }, this.modelField, this.modeField),
      this.problem,
      h('div', { class: 'dialog-buttons' }, h('button', { type: 'button', click: () => this.element.close() }, 'Cancel'), this.submit),
    );
    this.element = h('dialog', { class: 'dialog', 'aria-labelledby': 'new-session-title' }, form);
  }

  async open() {
    show(this.problem, false);
    this.element.showModal();
    this.submit.disabled = true;
    try {
      const { agents, directory } = await this.host();
      if (!this.cwd.value) this.cwd.value = directory;
      if (this.agents.childElementCount !== agents.length) this.#offer(agents);
      await this.#chosen();
      this.submit.disabled = false;
      // Not the directory: on a phone that would open the keyboard over the dialog.
      if (document.activeElement === this.element || document.activeElement === this.cwd) this.agents.querySelector('input')?.focus();
    } catch (error) {
      this.#complain(error);
    }
  }

  /** @param {Agent[]} agents */
  #offer(agents) {
    // The demo is for those who have nothing else.
    const first = agents.find(({ provider }) => provider !== 'demo') ?? agents[0];
    this.agents.replaceChildren(
      ...agents.map(({ provider, displayName, description }) =>
        h('label', { class: 'agent-choice' }, h('input', { type: 'radio', name: 'agent', value: provider, checked: provider === first?.provider }), h('span', {}, h('strong', {}, displayName), h('span', { class: 'muted' }, description))),
      ),
    );
  }

  #provider() {
    return /** @type {HTMLInputElement | null} */ (this.agents.querySelector('input:checked'))?.value ?? '';
  }

  async #chosen() {
    const { agents, modes } = await this.host();
    const provider = this.#provider();
    const models = agents.find((agent) => agent.provider === provider)?.models ?? [];
    fill(this.model, [{ value: '', label: 'The agent’s own choice' }, ...models.map(({ id, name }) => ({ value: id, label: name }))], '');
    show(this.modelField, models.length > 1);
    const { choices, value } = await modes(provider);
    if (provider !== this.#provider()) return;
    fill(this.mode, choices, value);
    show(this.modeField, choices.length > 0);
  }

  /** Names directories below the one that is typed. */
  async #suggest() {
    const { directories } = await this.host();
    const typed = this.cwd.value;
    const parent = typed.slice(0, typed.lastIndexOf('/') + 1) || '/';
    if (this.places.dataset.parent === parent) return;
    this.places.dataset.parent = parent;
    const names = await directories(parent).catch(() => []);
    if (this.places.dataset.parent !== parent) return;
    this.places.replaceChildren(...names.map((name) => h('option', { value: parent + name })));
  }

  /** @param {Event} event */
  async #submitted(event) {
    event.preventDefault();
    this.submit.disabled = true;
    show(this.problem, false);
    const wanted = { agent: this.#provider(), cwd: pathOf(this.cwd.value.trim()), model: this.model.value || undefined, mode: this.mode.value || undefined };
    try {
      await this.create(wanted);
      this.element.close();
      this.created();
    } catch (error) {
      this.#complain(error);
    }
    this.submit.disabled = false;
  }

  /** @param {unknown} error */
  #complain(error) {
    setText(this.problem, error instanceof Error ? error.message : String(error));
    show(this.problem, true);
  }
}

/** @param {HTMLSelectElement} select @param {Choice[]} choices @param {string} chosen */
function fill(select, choices, chosen) {
  select.replaceChildren(...choices.map(({ value, label }) => h('option', { value, selected: value === chosen }, label)));
}
