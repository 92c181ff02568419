/** The page as a whole: which session is shown, and which part of the page tells which other part what. */

import { Connection } from '../v2/connection.js';
import { Session } from '../v2/session.js';
import { Traffic } from '../traffic.js';
import { Host } from '../host.js';
import { randomId } from '../ids.js';
import { Approvals } from './approvals.js';
import { banner } from './banner.js';
import { ChatTabs } from './chat_tabs.js';
import { Composer } from './composer.js';
import { Conversation } from './conversation.js';
import { Drawer } from './drawer.js';
import { h, eachFrame, requestIdle, setText, show } from './dom.js';
import { icon } from './icons.js';
import { NewSessionDialog } from './new_session.js';
import { Sidebar } from './sidebar.js';
import { notify, settings } from './settings.js';
import { shortPath } from './format.js';
import { Toasts } from './toast.js';
import { tokenForm } from './token_form.js';

/** What is loaded when it is first needed, or when there is nothing else to do. The terminal is large, and waits until it is opened. */
const load = {
  changes: () => import('../lazy/changes.js'),
  chats: () => import('../lazy/chats.js'),
  files: () => import('../lazy/files.js'),
  result: () => import('../lazy/result.js'),
  wire: () => import('../lazy/wire.js'),
};

/** So many sessions are followed at once; the one that was opened first goes. */
const MAX_FOLLOWED = 12;

/** @typedef {{session: Session, conversation: Conversation, parent: string, chat: string | null}} Shown */
/** @typedef {import('../v2/model.js').Permission} Permission */

export class App {
  /** @param {string} token */
  constructor(token) {
    this.traffic = new Traffic();
    this.connection = new Connection(token, this.traffic);
    this.host = new Host(this.connection, this.traffic);
    /** Sessions that this page follows. @type {Map<string, Shown>} */
    this.followed = new Map();
    /** @type {Shown | null} */
    this.shown = null;
    this.toasts = new Toasts();
    this.drawer = new Drawer((name) => this.#panel(name));
    this.sidebar = new Sidebar(
      { open: (id) => this.open(id), create: () => void this.dialog.open(), close: () => this.#toggleSidebar(false) },
      settings(() => void this.drawer.toggle('wire')),
    );
    this.dialog = new NewSessionDialog(() => this.host.facts(), (wanted) => this.#create(wanted), () => this.composer.focus());
    this.approvals = new Approvals((permission, decision) => this.#answer(permission, decision));
    this.composer = new Composer({
      send: (draft, model) => void this.#send(draft, model),
      interrupt: (draft, model) => void this.#interrupt(draft, model),
      setMode: (mode) => void this.#setMode(mode),
      complain: (problem) => this.toasts.say(problem),
    });
    this.chats = new ChatTabs((chat) => this.shown && this.open(this.shown.parent, chat));
    this.title = h('h2', { class: 'title' });
    this.place = h('span', { class: 'place muted' });
    this.stage = h('div', { class: 'stage' });
    this.welcome = this.#makeWelcome();
    this.update = eachFrame(() => this.#update());
  }

  /** @param {HTMLElement} body */
  start(body) {
    const menu = h('button', { type: 'button', class: 'quiet menu', 'aria-label': 'Sessions', click: () => this.#toggleSidebar(true) }, icon('menu'));
    const tool = (/** @type {import('./drawer.js').TabName} */ name, /** @type {string} */ label, /** @type {'changes' | 'folder' | 'terminal'} */ sign) =>
      h('button', { type: 'button', class: 'quiet tool-button', title: label, click: () => void this.drawer.toggle(name) }, icon(sign), h('span', {}, label));
    this.tools = h('div', { class: 'header-tools' }, tool('changes', 'Changes', 'changes'), tool('files', 'Files', 'folder'), tool('terminal', 'Terminal', 'terminal'), ...this.#makeMenu());
    const header = h('header', { class: 'header' }, menu, h('div', { class: 'header-text' }, this.title, this.place), this.tools);
    const dock = h('div', { class: 'dock' }, h('div', { class: 'column' }, this.approvals.element, this.composer.element));
    this.dock = dock;
    this.main = h('main', { class: 'main' }, header, this.chats.element, this.stage, dock);
    const { main } = this;
    const veil = h('div', { class: 'veil', click: () => this.#toggleSidebar(false) });
    const skip = h('a', { class: 'skip', href: '#message', click: (/** @type {Event} */ event) => (event.preventDefault(), this.composer.focus()) }, 'Skip to the message field');
    body.append(skip, this.sidebar.element, veil, main, this.drawer.element, banner(this.connection), this.toasts.element, this.dialog.element, tokenForm(this.connection));
    this.#listen();
    this.update();
    this.connection.start();
    this.#openWanted();
  }

  #listen() {
    const { connection } = this;
    connection.addEventListener('sessions', (event) => {
      const sessions = /** @type {CustomEvent<import('./sidebar.js').Info[]>} */ (event).detail;
      if (this.isListed) this.#announce(sessions);
      this.sidebar.update(sessions);
      this.infos = sessions;
      this.isListed = true;
      this.update();
    });
    connection.addEventListener('failed', (event) => this.toasts.say(/** @type {CustomEvent} */ (event).detail.error));
    connection.addEventListener('phase', () => {
      if (connection.phase === 'open') {
        this.host.wake();
        // A panel that is there opens at once, also while the host cannot be reached.
        requestIdle(() => Object.values(load).forEach((one) => one().catch(() => {})));
      }
      this.update();
    });
    this.host.addEventListener('sessions', () => connection.list());
    this.host.addEventListener('facts', () => this.#offerOptions());
    addEventListener('hashchange', () => this.#openWanted());
    addEventListener('keydown', (event) => this.#key(event));
  }

  /** Tells of sessions that this page does not follow. @param {import('./sidebar.js').Info[]} sessions */
  #announce(sessions) {
    const before = new Map(this.infos.map(({ sessionId, state }) => [sessionId, state]));
    for (const { sessionId, state, title } of sessions) {
      const was = before.get(sessionId);
      if (was === state || this.followed.has(sessionId)) continue;
      const what = state === 'requires_action' ? 'Approval wanted' : state === 'idle' && was !== undefined ? 'The agent is done' : null;
      if (what) notify(what, title, () => this.open(sessionId));
    }
  }

  /** @type {import('./sidebar.js').Info[]} */
  infos = [];
  isListed = false;

  /** Shows the session, and the chat, that the address names. */
  #openWanted() {
    const wanted = new URLSearchParams(location.hash.slice(1));
    const session = wanted.get('session');
    if (session) this.open(session, wanted.get('chat'));
  }

  /** Shows a session, or one of its chats. @param {string} parent @param {string | null} [chat] */
  open(parent, chat = null) {
    const id = chat ?? parent;
    this.#toggleSidebar(false);
    if (this.shown?.session.id === id) return;
    const isOther = this.shown?.parent !== parent;
    const shown = this.followed.get(id) ?? this.#follow(parent, chat);
    this.shown = shown;
    this.composer.switchTo(id);
    this.stage.replaceChildren(shown.conversation.element);
    shown.conversation.toEnd();
    this.sidebar.select(parent);
    const address = new URLSearchParams(chat ? { session: parent, chat } : { session: parent });
    history.replaceState(null, '', `#${address}`);
    if (isOther) {
      this.drawer.reset();
      this.#followChats(parent);
    }
    this.#showChats();
    this.#offerOptions();
    // At once: what is hidden cannot have the focus.
    this.#update();
    if (matchMedia('(pointer: fine)').matches) this.composer.focus();
  }

  leaveChats = () => {};
  /** @type {{chats: import('../lazy/chats.js').Chat[], main: string} | null} */
  known = null;

  /** @param {string} parent */
  async #followChats(parent) {
    this.leaveChats();
    this.leaveChats = () => {};
    this.known = null;
    this.chats.clear();
    const ahp = await this.host.ahp().catch(() => null);
    const { followChats } = await load.chats();
    if (!ahp || this.shown?.parent !== parent) return;
    this.leaveChats();
    this.leaveChats = followChats(ahp, parent, (chats, main) => {
      this.known = { chats, main };
      this.#showChats();
      this.update();
    });
  }

  #showChats() {
    if (this.known && this.shown) this.chats.update(this.known.chats, this.known.main, this.shown.chat);
  }

  /** @param {string} parent @param {string | null} chat @returns {Shown} */
  #follow(parent, chat) {
    const id = chat ?? parent;
    const session = new Session(id);
    const conversation = new Conversation({
      session,
      openResult: (title, url) => void this.#openResult(title, url),
      fork: (turnId) => void this.#branch(session, turnId, 'fork'),
      sideChat: (turnId) => void this.#branch(session, turnId, 'sideChat'),
      canFork: () => this.host.canBranch(session.agent),
    });
    const shown = { session, conversation, parent, chat };
    let state = session.state.state;
    session.addEventListener('change', () => {
      if (this.shown === shown) this.update();
      if (session.state.state !== state) {
        state = session.state.state;
        this.sidebar.setState(parent, state);
        this.connection.list();
      }
    });
    session.addEventListener('asked', (event) => {
      const { title, toolName } = /** @type {CustomEvent} */ (event).detail;
      notify('Approval wanted', `${session.title}: ${title ?? toolName}`, () => this.open(parent, chat));
    });
    session.addEventListener('ended', (event) => {
      const { outcome, ts } = /** @type {CustomEvent} */ (event).detail;
      // A snapshot tells of turns that ended long ago.
      const isNew = Date.now() - ts - this.#skew() < 60_000;
      if (isNew && outcome !== 'cancelled') notify(outcome === 'error' ? 'The turn failed' : 'The agent is done', session.title, () => this.open(parent, chat));
    });
    session.addEventListener('returned', (event) => {
      this.composer.giveBack(id, /** @type {CustomEvent} */ (event).detail.map((/** @type {any} */ one) => one.prompt));
    });
    session.addEventListener('gone', (event) => {
      this.toasts.say(`This session cannot be shown: ${/** @type {CustomEvent} */ (event).detail}`);
      this.#forget(id);
    });
    this.followed.set(id, shown);
    this.connection.watch(id, {
      get lastSeq() {
        return session.lastSeq;
      },
      receive: (event) => session.receive(event),
      reattached: (event) => session.reattached(event),
    });
    const oldest = [...this.followed.keys()].find((key) => key !== id && key !== this.shown?.session.id);
    if (this.followed.size > MAX_FOLLOWED && oldest) this.#forget(oldest);
    return shown;
  }

  /** @param {string} id */
  #forget(id) {
    this.connection.unwatch(id);
    this.followed.delete(id);
    if (this.shown?.session.id !== id) return;
    this.shown = null;
    this.composer.switchTo('');
    history.replaceState(null, '', location.pathname);
    this.leaveChats();
    this.chats.clear();
    this.sidebar.select('');
    this.update();
  }

  #update() {
    const { shown } = this;
    const state = shown?.session.state;
    const info = this.infos.find(({ sessionId }) => sessionId === shown?.parent);
    const title = shown ? info?.title || shown.session.title || 'New session' : '';
    setText(this.title, title);
    document.title = `${state?.state === 'requires_action' ? '● ' : ''}${title ? `${title} – ` : ''}Breakbulk`;
    this.#showPlace(shown?.session.agent ?? '', state?.cwd ?? info?.cwd ?? '', state?.branch ?? '');
    for (const element of [this.dock, this.tools]) if (element) show(element, shown !== null);
    this.main?.classList.toggle('is-bare', !shown);
    if (this.end) this.end.disabled = state?.ended ?? true;
    if (!shown && this.stage.firstChild !== this.welcome) this.stage.replaceChildren(this.welcome);
    show(this.welcome, this.isListed);
    if (!state) return;
    this.approvals.update(state.permissions, this.#skew());
    this.composer.update({ isRunning: state.running, queue: state.queue });
    this.composer.offer({ ...this.options, mode: state.mode });
    const asked = state.permissions.map(({ permId }) => permId).join();
    if (asked !== this.asked) shown?.conversation.refresh();
    this.asked = asked;
  }

  /** Where the agent works. On narrow screens only the directory's own name is shown. @param {string} agent @param {string} cwd @param {string} branch */
  #showPlace(agent, cwd, branch) {
    const key = JSON.stringify([agent, cwd, branch]);
    if (key === this.place.dataset.key) return;
    this.place.dataset.key = key;
    this.place.title = cwd;
    const name = cwd.slice(cwd.lastIndexOf('/') + 1);
    const path = cwd && h('span', {}, h('span', { class: 'wide-only' }, shortPath(cwd).slice(0, name ? -name.length : undefined)), name);
    const parts = [agent, path, branch].filter(Boolean);
    this.place.replaceChildren(...parts.flatMap((part, at) => (at > 0 ? [' · ', part] : [part])));
  }

  asked = '';
  /** @type {{modes: import('./composer.js').Choice[], models: import('./composer.js').Choice[]}} */
  options = { modes: [], models: [] };

  async #offerOptions() {
    const session = this.shown?.session;
    this.options = { modes: [], models: [] };
    if (!session) return;
    const facts = await this.host.facts().catch(() => null);
    const agent = session.agent || this.infos.find(({ sessionId }) => sessionId === this.shown?.parent)?.agent;
    if (!facts || !agent) return;
    const models = facts.agents.find(({ provider }) => provider === agent)?.models ?? [];
    const { choices } = await facts.modes(agent);
    if (this.shown?.session !== session) return;
    this.options = { modes: choices, models: [{ value: '', label: 'Default model' }, ...models.map(({ id, name }) => ({ value: id, label: name }))] };
    if (models.length < 2) this.options.models = [];
    for (const message of session.state.messages) session.model.touched.add(message);
    this.shown?.conversation.draw();
    this.update();
  }

  /** How far the host's clock is behind ours. */
  #skew() {
    return Number.isFinite(this.connection.skew) ? this.connection.skew : 0;
  }

  /** @param {import('./new_session.js').Wanted} wanted */
  async #create(wanted) {
    const { sessionId } = await this.connection.once({ type: 'open', ...wanted });
    // `open` watches the session already; to watch it again is how its events come to this page from the beginning.
    this.open(sessionId);
    this.connection.list();
  }

  /** @param {import('./composer.js').Draft} draft @param {string} model */
  async #send({ text, pictures }, model) {
    const shown = this.shown;
    if (!shown) return;
    shown.conversation.toEnd();
    const clientMsgId = randomId();
    shown.session.sending(clientMsgId, pictures);
    const command = { type: 'send', clientMsgId, sessionId: shown.session.id, prompt: text, images: pictures.map(({ image }) => image), model: model || undefined };
    await this.#try(this.connection.command(command), () => this.composer.giveBack(shown.session.id, [text], pictures));
  }

  /** Cancels the turn, and says this instead. @param {import('./composer.js').Draft} draft @param {string} model */
  async #interrupt(draft, model) {
    const session = this.shown?.session;
    if (!session) return;
    // The command takes neither pictures nor a model: a prompt that has them is sent after it.
    const isPlain = draft.pictures.length === 0 && !model;
    const prompt = (isPlain && draft.text) || undefined;
    const sent = this.#try(this.connection.once({ type: 'interrupt', sessionId: session.id, prompt }), () => isPlain && this.composer.giveBack(session.id, [draft.text]));
    if (isPlain) await sent;
    else await this.#send(draft, model);
  }

  /** Ends the agent's program. */
  async #stop() {
    const session = this.shown?.session;
    if (session) await this.#try(this.connection.command({ type: 'stop', sessionId: session.id }));
  }

  /** @param {string} mode */
  async #setMode(mode) {
    const session = this.shown?.session;
    if (session) await this.#try(this.connection.command({ type: 'set_mode', sessionId: session.id, mode }));
  }

  /** @param {Permission} permission @param {'once' | 'always' | 'deny'} decision */
  async #answer({ permId }, decision) {
    await this.#try(this.connection.command({ type: 'permission_response', permId, decision }));
  }

  /** @param {Promise<any>} work @param {() => void} [undo] */
  async #try(work, undo) {
    try {
      await work;
    } catch (error) {
      undo?.();
      this.toasts.say(error instanceof Error ? error.message : String(error));
    }
  }

  /** @param {Session} session @param {string} turnId @param {'fork' | 'sideChat'} kind */
  async #branch(session, turnId, kind) {
    const shown = this.followed.get(session.id);
    if (shown) await this.#try(this.host.branch(shown.parent, shown.chat, turnId, kind).then((chat) => this.open(shown.parent, chat)));
  }

  /** @param {string} title @param {string} url */
  async #openResult(title, url) {
    await this.drawer.showOther('result', async () => {
      const { resultPanel } = await load.result();
      return resultPanel(title, url, this.connection.token);
    });
  }

  /** @param {import('./drawer.js').TabName} name @returns {Promise<import('./drawer.js').Panel>} */
  async #panel(name) {
    if (name === 'wire') {
      const { wirePanel } = await load.wire();
      return wirePanel(this.traffic, this.connection, this.host);
    }
    const session = this.shown?.session;
    if (!session) throw new Error('Open a session first.');
    const ahp = await this.host.ahp();
    if (name === 'changes') return (await load.changes()).changesPanel(ahp, session, this.shown?.parent ?? session.id);
    if (name === 'files') return (await load.files()).filesPanel(ahp, session, this.connection.token);
    return (await import('../lazy/terminal.js')).terminalPanel(ahp, session, this.shown?.parent ?? session.id);
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    if (event.altKey && !event.ctrlKey && (event.code === 'KeyA' || event.code === 'KeyD') && this.approvals.cards.size > 0) {
      event.preventDefault();
      this.approvals.answerFirst(event.code === 'KeyA' ? 'once' : 'deny');
    } else if (event.key === 'Escape' && document.body.classList.contains('has-sidebar')) {
      this.#toggleSidebar(false);
    } else if (event.key === 'Escape' && this.drawer.element.contains(document.activeElement) && !document.activeElement?.closest('.terminal-host')) {
      this.drawer.close();
    } else if (event.key === 'Escape' && !this.dialog.element.open && this.composer.isRunning && document.activeElement === this.composer.text) {
      event.preventDefault();
      this.composer.cancel();
    }
  }

  /** On narrow screens the list covers the page. @param {boolean} isOpen */
  #toggleSidebar(isOpen) {
    const was = document.body.classList.toggle('has-sidebar', isOpen);
    if (was && isOpen) this.sidebar.element.querySelector('button')?.focus();
  }

  /** What is needed less often, behind a button. */
  #makeMenu() {
    const item = (/** @type {string} */ label, /** @type {() => void} */ run, /** @type {string} */ look = '') =>
      h('button', { type: 'button', class: `quiet ${look}`, click: () => (list.hidePopover(), run()) }, label);
    this.end = item('End the agent’s program', () => void this.#stop());
    this.end.title = 'It is started again with the next message.';
    const list = h(
      'div',
      { class: 'popup', id: 'more', popover: 'auto' },
      item('Files', () => void this.drawer.toggle('files'), 'narrow-only'),
      item('Terminal', () => void this.drawer.toggle('terminal'), 'narrow-only'),
      item('Wire', () => void this.drawer.toggle('wire')),
      this.end,
    );
    const more = h('button', { type: 'button', class: 'quiet more', 'aria-label': 'More', title: 'More', popovertarget: 'more' }, icon('more'));
    return [more, list];
  }

  #makeWelcome() {
    return h(
      'div',
      { class: 'welcome' },
      h('h2', {}, 'What shall be done?'),
      h('p', { class: 'muted' }, 'Begin a session with an agent of this host. Sessions go on when this page is closed.'),
      h('button', { type: 'button', class: 'primary', click: () => void this.dialog.open() }, icon('add'), 'New session'),
    );
  }
}
