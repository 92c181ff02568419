/** A session that the page follows: the model, and what the model does not keep but a person wants to see. */

import { Model } from './model.js';

/** @typedef {{outcome: 'complete' | 'cancelled' | 'error', error?: string, usage?: any, ts: number}} TurnEnd */
/** @typedef {{attachments: {label: string, mediaType?: string}[], pictures: Sent[], ts: number, bytes?: number, url?: string}} Said */
/** @typedef {{name: string, address: string}} Sent */

/** The pictures of so many prompts of this page are kept to be shown. The host does not give them back. */
const MAX_SENT = 16;

/**
 * Events: `change` when something may look different, `snapshot` when everything was replaced, `returned` with prompts that were
 * taken out of the queue, `asked` with a permission, `ended` with the end of a turn, `gone` when the session cannot be watched.
 */
export class Session extends EventTarget {
  /** @param {string} id */
  constructor(id) {
    super();
    this.id = id;
    this.model = new Model(id);
    this.title = '';
    this.agent = '';
    /** Whether its snapshot has arrived whole. */
    this.isLoaded = false;
    /** @type {Map<string, TurnEnd>} */
    this.turns = new Map();
    /** @type {Map<string, Said>} */
    this.said = new Map();
    /** Notices, by the message that they follow. @type {Map<import('./model.js').Message | null, string[]>} */
    this.notices = new Map();
    /** Pictures that this page has sent, by the id of the command. @type {Map<string, Sent[]>} */
    this.sent = new Map();
    /** What the server's clock said last. */
    this.ts = 0;
  }

  get lastSeq() {
    return this.model.lastSeq;
  }

  get state() {
    return this.model.state;
  }

  /** @param {import('./model.js').V2Event} event */
  receive(event) {
    const base = this.model.base;
    if (!this.model.apply(event)) return;
    this.ts = event.ts;
    if (this.model.base !== base) {
      this.turns.clear();
      this.said.clear();
      this.notices.clear();
      this.dispatchEvent(new Event('snapshot'));
    }
    this.#note(event);
    this.isLoaded = !event.more;
    this.dispatchEvent(new Event('change'));
  }

  /** Keeps the pictures of a prompt to show them with it. @param {string} clientMsgId @param {Sent[]} pictures */
  sending(clientMsgId, pictures) {
    if (pictures.length > 0) this.sent.set(clientMsgId, pictures);
    const [oldest] = this.sent.keys();
    if (this.sent.size > MAX_SENT && oldest !== undefined) this.sent.delete(oldest);
  }

  /** @param {any} event */
  reattached(event) {
    if (event.type === 'reattach_failed') {
      this.dispatchEvent(new CustomEvent('gone', { detail: event.reason }));
      return;
    }
    // What the page believed before it was away counts no more.
    const state = this.model.state;
    state.running = event.running;
    state.state = event.state ?? (event.running ? 'running' : 'idle');
    if (event.ended) state.ended = true;
    this.dispatchEvent(new Event('change'));
  }

  /** @param {import('./model.js').V2Event} event */
  #note(event) {
    switch (event.type) {
      case 'session_start':
        this.title = event.title ?? this.title;
        this.agent = event.agent ?? this.agent;
        break;
      case 'user_message': {
        const { attachments = [], ts, bytes, url } = event;
        this.said.set(event.turnId, { attachments, pictures: this.sent.get(event.clientMsgId) ?? [], ts, bytes, url });
        break;
      }
      case 'turn_end': {
        const { outcome, error, usage, ts } = event;
        this.turns.set(event.turnId, { outcome, error, usage, ts });
        this.dispatchEvent(new CustomEvent('ended', { detail: event }));
        break;
      }
      case 'notice': {
        const { messages, current } = this.model.state;
        const after = current ?? messages.at(-1) ?? null;
        this.notices.set(after, [...(this.notices.get(after) ?? []), event.text]);
        if (after) this.model.touched.add(after);
        break;
      }
      case 'queue_changed':
        if (event.returned?.length) this.dispatchEvent(new CustomEvent('returned', { detail: event.returned }));
        break;
      case 'permission_request':
        this.dispatchEvent(new CustomEvent('asked', { detail: event }));
        break;
    }
  }
}
