/** A client of the Agent Host Protocol: requests, subscriptions, and `reconnect` from where it was when the link drops. */

import { tabId } from '../../ids.js';
import { AhpSocket } from './socket.js';

const ROOT = 'ahp-root://';
const VERSION = '1.0.0';
const [FIRST_PAUSE, LAST_PAUSE] = [300, 8_000];
/** How long a sign of life may take. */
const PATIENCE = 5_000;
/** Requests that change nothing: they are made again when the link was lost, so often. */
const READS = new Set(['resourceList', 'resourceRead', 'resolveSessionConfig']);
const ATTEMPTS = 3;

/** @typedef {{snapshot: (state: any) => void, action: (action: any) => void, gone?: () => void}} Subscriber */
/** @typedef {{resolve: (result: any) => void, reject: (error: Error) => void}} Call */

/** Events: `notification` with messages that belong to no channel; `link` when the link opens or closes. */
export class AhpClient extends EventTarget {
  /** @param {() => string} token @param {import('../../traffic.js').Traffic} traffic */
  constructor(token, traffic) {
    super();
    this.token = token;
    this.traffic = traffic;
    this.clientId = `page-${tabId('breakbulk.client')}`;
    /** @type {Map<string, Set<Subscriber>>} */
    this.subscribers = new Map();
    /** Channels that the host knows we follow. @type {Set<string>} */
    this.followed = new Set();
    /** @type {Map<number, Call>} */
    this.calls = new Map();
    this.lastId = 0;
    this.clientSeq = 0;
    /** The highest seq that was applied. */
    this.seq = 0;
    /** The answer to `initialize`. @type {any} */
    this.info = null;
    /** @type {AhpSocket | null} */
    this.link = null;
    this.pause = FIRST_PAUSE;
    this.isOpen = false;
    /** @type {{resolve: () => void, reject: (error: Error) => void}[]} */
    this.waiting = [];
    this.connects = 0;
    /** @type {number | undefined} */
    this.timer = undefined;
    addEventListener('pagehide', (event) => {
      if (event.persisted) this.#close();
    });
    this.#connect();
  }

  /** Resolves when the handshake is done. @returns {Promise<void>} */
  ready() {
    return this.isOpen ? Promise.resolve() : new Promise((resolve, reject) => this.waiting.push({ resolve, reject }));
  }

  /** Connects now. A connection that is there may have died unnoticed while the page slept: it has to answer. */
  wake() {
    const link = this.link;
    if (!link) return this.#connect();
    if (!this.isOpen) return;
    const before = link.socket.traffic.framesIn;
    this.#call('ping', { channel: ROOT }).catch(() => {});
    setTimeout(() => {
      if (this.link === link && link.socket.traffic.framesIn === before) this.#lost();
    }, PATIENCE);
  }

  /** Cuts the link, as a bad network would. */
  drop() {
    if (this.link) this.#lost();
  }

  /** What both sides take. @returns {{host: Record<string, any> | null, page: Record<string, any>} | null} */
  limits() {
    return this.link?.limits() ?? null;
  }

  /** Large messages that are under way, or were until a moment ago. @returns {import('./socket.js').Transfer[]} */
  transfers() {
    this.link?.count();
    return this.link?.recent() ?? [];
  }

  /** @param {string} method @param {any} params @returns {Promise<any>} */
  async request(method, params) {
    for (let attempt = 1; ; attempt += 1) {
      await this.ready();
      try {
        return await this.#call(method, params);
      } catch (error) {
        if (!(error instanceof LinkLost) || !READS.has(method) || attempt >= ATTEMPTS) throw error;
      }
    }
  }

  /** @param {string} channel @param {any} action */
  dispatch(channel, action) {
    this.clientSeq += 1;
    this.#send({ jsonrpc: '2.0', method: 'dispatchAction', params: { channel, clientSeq: this.clientSeq, action } });
  }

  /** Follows a channel until the returned function is called. @param {string} channel @param {Subscriber} subscriber */
  subscribe(channel, subscriber) {
    const all = this.subscribers.get(channel) ?? new Set();
    this.subscribers.set(channel, all.add(subscriber));
    if (this.isOpen) void this.#follow(channel);
    return () => {
      all.delete(subscriber);
      if (all.size > 0) return;
      this.subscribers.delete(channel);
      if (this.followed.delete(channel) && this.isOpen) this.#send({ jsonrpc: '2.0', method: 'unsubscribe', params: { channel } });
    };
  }

  /** The state of a channel now. @param {string} channel @returns {Promise<any>} */
  read(channel) {
    return new Promise((resolve, reject) => {
      const leave = this.subscribe(channel, {
        snapshot: (state) => (resolve(state), queueMicrotask(() => leave())),
        action: () => {},
        gone: () => reject(new Error('The host does not have it.')),
      });
    });
  }

  /** @param {string} channel */
  async #follow(channel) {
    try {
      const { snapshot } = await this.#call('subscribe', { channel });
      if (!this.subscribers.has(channel)) return;
      this.followed.add(channel);
      if (snapshot) this.#snapshot(snapshot);
    } catch {
      // Whoever asked still waits for a snapshot, which comes with another subscription.
      this.followed.delete(channel);
      if (this.isOpen) for (const subscriber of this.subscribers.get(channel) ?? []) subscriber.gone?.();
    }
  }

  #connect() {
    clearTimeout(this.timer);
    const link = new AhpSocket(this.token(), this.traffic);
    this.link = link;
    const begun = performance.now();
    link.socket.onopen = () => void this.#opened(begun);
    link.socket.onmessage = ({ data }) => {
      link.count();
      this.#received(data);
    };
    link.socket.onclose = () => {
      if (this.link === link) this.#lost();
    };
  }

  /** @param {number} begun */
  async #opened(begun) {
    this.connects += 1;
    this.traffic.counters('ahp').connects += 1;
    const before = this.traffic.counters('ahp').bytesIn;
    try {
      if (this.info === null) {
        const params = { channel: ROOT, protocolVersions: [VERSION], clientId: this.clientId, clientInfo: { name: 'breakbulk-page', version: '1' }, capabilities: {} };
        this.info = await this.#call('initialize', params);
        this.seq = this.info.serverSeq;
      } else {
        const params = { channel: ROOT, clientId: this.clientId, lastSeenServerSeq: this.seq, capabilities: {}, subscriptions: [...this.followed] };
        const result = await this.#call('reconnect', params);
        for (const snapshot of result.snapshots ?? []) this.#snapshot(snapshot);
        for (const envelope of result.actions ?? []) this.#action(envelope);
        for (const channel of result.missing ?? []) {
          this.followed.delete(channel);
          for (const subscriber of this.subscribers.get(channel) ?? []) subscriber.gone?.();
        }
        const [actions, bytes] = [result.actions?.length ?? 0, this.traffic.counters('ahp').bytesIn - before];
        this.traffic.reconnects.set('ahp', { actions, bytes, milliseconds: performance.now() - begun, snapshot: Boolean(result.snapshots) });
      }
    } catch (error) {
      // A host that was started anew does not know this client: it begins again.
      if (this.link) this.info = null;
      this.followed.clear();
      this.#lost(error instanceof Error ? error : undefined);
      return;
    }
    this.pause = FIRST_PAUSE;
    this.isOpen = true;
    for (const channel of this.subscribers.keys()) if (!this.followed.has(channel)) void this.#follow(channel);
    for (const { resolve } of this.waiting.splice(0)) resolve();
    this.dispatchEvent(new Event('link'));
  }

  /** @param {string} method @param {any} params @returns {Promise<any>} */
  #call(method, params) {
    this.lastId += 1;
    const id = this.lastId;
    return new Promise((resolve, reject) => {
      this.calls.set(id, { resolve, reject });
      this.#send({ jsonrpc: '2.0', id, method, params });
    });
  }

  /** @param {any} message */
  #send(message) {
    this.link?.socket.send(JSON.stringify(message));
  }

  /** @param {string} data */
  #received(data) {
    const message = JSON.parse(data);
    if (message.method === undefined) {
      const call = this.calls.get(message.id);
      this.calls.delete(message.id);
      if (message.error) call?.reject(new Error(message.error.message));
      else call?.resolve(message.result);
    } else if (message.method === 'action') {
      this.#action(message.params);
    } else if (message.id !== undefined) {
      this.#send({ jsonrpc: '2.0', id: message.id, error: { code: -32601, message: 'This client answers no requests.' } });
    } else {
      this.dispatchEvent(new CustomEvent('notification', { detail: message }));
    }
  }

  /** @param {{resource: string, state: any, fromSeq: number}} snapshot */
  #snapshot({ resource, state, fromSeq }) {
    this.seq = Math.max(this.seq, fromSeq);
    for (const subscriber of this.subscribers.get(resource) ?? []) subscriber.snapshot(state);
  }

  /** @param {{channel: string, action: any, serverSeq: number, rejectionReason?: string}} envelope */
  #action({ channel, action, serverSeq, rejectionReason }) {
    this.seq = Math.max(this.seq, serverSeq);
    if (rejectionReason) return;
    for (const subscriber of this.subscribers.get(channel) ?? []) subscriber.action(action);
  }

  #close() {
    const link = this.link;
    this.link = null;
    this.isOpen = false;
    if (link) {
      link.socket.onopen = link.socket.onmessage = link.socket.onclose = null;
      link.socket.close();
    }
    for (const { reject } of this.calls.values()) reject(new LinkLost());
    this.calls.clear();
    this.dispatchEvent(new Event('link'));
  }

  /** @param {Error} [why] */
  #lost(why) {
    this.#close();
    if (why) for (const { reject } of this.waiting.splice(0)) reject(why);
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.#connect(), this.pause * (0.75 + Math.random() / 2));
    this.pause = Math.min(this.pause * 2, LAST_PAUSE);
  }
}

/** The link was lost before the answer to a request came. */
class LinkLost extends Error {
  constructor() {
    super('The connection was lost. Try again.');
  }
}
