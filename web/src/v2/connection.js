/**
 * The connection to `/v2`: says hello, comes back with `reattach` when it was lost, and repeats what was not acknowledged.
 *
 * A command with a `clientMsgId` is done once however often it is sent, so it is sent again after each reconnect until it is
 * acknowledged. Others fail when the connection is lost.
 */

import { byteLength } from '../traffic.js';
import { randomId } from '../ids.js';

/** After this much silence the host is asked for a sign of life; browsers cannot send WebSocket pings. */
const SILENCE = 15_000;
/** How long that sign may take. */
const PATIENCE = 8_000;
/** The same when the page comes back from the background, where connections die unnoticed. */
const IMPATIENCE = 3_000;
/** How long connecting may take. */
const CONNECT = 10_000;
/** The first and the longest pause before connecting again. */
const [FIRST_PAUSE, LAST_PAUSE] = [250, 8_000];
/** How long a connection that was dropped on purpose stays away, so that one can see it. */
const DROPPED_PAUSE = 2_000;
/** So many sessions are listed. */
const MAX_LISTED = 1_000;
/** The closing code of a connection that this client has replaced. */
const REPLACED = 4409;

/** @typedef {'connecting' | 'open' | 'waiting' | 'refused' | 'suspended'} Phase */
/** @typedef {{command: any, resolve: (ack: any) => void, reject: (error: Error) => void}} Pending */
/** @typedef {import('../traffic.js').Traffic} Traffic */
/** @typedef {{lastSeq: number | null, receive: (event: any) => void, reattached: (event: any) => void}} Watched */

/** Events: `phase` when the phase changes, `sessions` with the answer to `list`, `failed` with what the host refused. */
export class Connection extends EventTarget {
  /** @param {string} token @param {Traffic} traffic */
  constructor(token, traffic) {
    super();
    this.token = token;
    this.traffic = traffic;
    /** @type {Phase} */
    this.phase = 'suspended';
    /** When the next attempt is made, while waiting. */
    this.retryAt = 0;
    /** @type {WebSocket | null} */
    this.socket = null;
    /** @type {string | null} */
    this.clientId = null;
    /** @type {Map<string, Watched>} */
    this.watched = new Map();
    /** @type {Pending[]} */
    this.pending = [];
    this.pause = FIRST_PAUSE;
    this.heard = 0;
    /** When a ping that is not answered yet was sent. */
    this.pinged = 0;
    /** How far the host's clock is behind ours, at least: the smallest difference that was seen. */
    this.skew = Infinity;
    /** What the present reconnect has brought so far. @type {{begun: number, server: number, actions: number, bytes: number, last: number, snapshot: boolean} | null} */
    this.recovery = null;
    /** @type {number | undefined} */
    this.timer = undefined;
    this.#followPage();
    setInterval(() => this.#beat(), 1000);
  }

  /** Connects, and stays connected from now on. */
  start() {
    clearTimeout(this.timer);
    this.#abandon();
    const address = new URL('/v2', location.href);
    address.protocol = address.protocol === 'https:' ? 'wss:' : 'ws:';
    if (this.token) address.searchParams.set('token', this.token);
    const socket = new WebSocket(address);
    this.socket = socket;
    this.heard = performance.now();
    this.#enter('connecting');
    const begun = performance.now();
    this.timer = setTimeout(() => this.#lost(), CONNECT);
    socket.onopen = () => this.#opened(begun);
    socket.onmessage = ({ data }) => this.#received(data);
    socket.onclose = ({ code }) => void this.#closed(code, this.phase === 'connecting');
  }

  /** @param {string} token */
  startWith(token) {
    this.token = token;
    this.pause = FIRST_PAUSE;
    this.start();
  }

  /** Cuts the connection, as a bad network would. */
  drop() {
    if (!this.socket) return;
    this.#abandon();
    this.#wait(DROPPED_PAUSE);
  }

  /**
   * Sends a command, and waits for its acknowledgement.
   * @param {any} command @returns {Promise<any>}
   */
  command(command) {
    return new Promise((resolve, reject) => {
      this.pending.push({ command, resolve, reject });
      if (this.phase === 'open') this.#send(command);
      else if (command.clientMsgId === undefined) this.#failUnrepeatable();
    });
  }

  /** Like `command`, with an id that makes it safe to repeat. @param {any} command */
  once(command) {
    return this.command({ ...command, clientMsgId: randomId() });
  }

  list() {
    this.mustListAgain = this.isListing;
    if (this.phase !== 'open' || this.isListing) return;
    this.isListing = true;
    this.#send({ type: 'list' });
  }

  /** @param {string} sessionId @param {Watched} watched */
  watch(sessionId, watched) {
    this.watched.set(sessionId, watched);
    if (this.phase === 'open') this.#send({ type: 'watch', sessionId, ...position(watched) });
  }

  /** @param {string} sessionId */
  unwatch(sessionId) {
    if (this.watched.delete(sessionId) && this.phase === 'open') this.#send({ type: 'unwatch', sessionId });
  }

  /** Asks for a sign of life now. */
  ping() {
    if (this.phase !== 'open' || this.pinged) return;
    this.pinged = performance.now();
    this.#send({ type: 'ping' });
  }

  /** @param {Phase} phase */
  #enter(phase) {
    this.phase = phase;
    this.dispatchEvent(new Event('phase'));
  }

  /** @param {any} command */
  #send(command) {
    const text = JSON.stringify(command);
    this.traffic.sent('v2', byteLength(text));
    this.socket?.send(text);
  }

  /** @param {number} begun */
  #opened(begun) {
    clearTimeout(this.timer);
    this.traffic.counters('v2').connects += 1;
    this.pinged = 0;
    this.phase = 'open';
    if (this.clientId === null) {
      this.#send({ type: 'hello', protocolVersion: 2 });
    } else {
      const sessions = [...this.watched].map(([sessionId, watched]) => ({ sessionId, ...position(watched) }));
      this.#send({ type: 'reattach', clientId: this.clientId, sessions });
      const server = Date.now() - this.skew;
      this.recovery = { begun, server, actions: 0, bytes: 0, last: 0, snapshot: false };
    }
    for (const { command } of this.pending) this.#send(command);
    this.listing = [];
    this.isListing = true;
    this.#send({ type: 'list' });
    this.#enter('open');
  }

  /** @param {string} data */
  #received(data) {
    const bytes = byteLength(data);
    this.traffic.received('v2', bytes);
    this.heard = performance.now();
    const event = JSON.parse(data);
    if (event.seq !== undefined) {
      this.#measure(event, bytes);
      this.watched.get(event.sessionId)?.receive(event);
      return;
    }
    switch (event.type) {
      case 'client_id':
        this.pause = FIRST_PAUSE;
        if (this.clientId === null) {
          this.clientId = event.clientId;
          for (const [sessionId, watched] of this.watched) this.#send({ type: 'watch', sessionId, ...position(watched) });
        }
        break;
      case 'reattached':
        this.pause = FIRST_PAUSE;
        if (this.recovery && event.snapshot) this.recovery.snapshot = true;
        this.watched.get(event.sessionId)?.reattached(event);
        break;
      case 'reattach_failed':
        this.watched.get(event.sessionId)?.reattached(event);
        break;
      case 'sessions':
        this.#recovered();
        this.#listed(event);
        break;
      case 'pong':
        if (this.pinged) this.traffic.answered(performance.now() - this.pinged);
        this.pinged = 0;
        break;
      case 'ack':
        this.#answered(event)?.resolve(event);
        break;
      case 'error': {
        const pending = this.#answered(event);
        if (event.command === 'list') this.isListing = false;
        if (pending) pending.reject(new Error(event.error));
        else this.dispatchEvent(new CustomEvent('failed', { detail: event }));
        break;
      }
    }
  }

  /** Counts an event for the present reconnect: it belongs to it if it is older than the new connection. @param {any} event @param {number} bytes */
  #measure(event, bytes) {
    const recovery = this.recovery;
    if (recovery && (event.ts < recovery.server || recovery.snapshot)) {
      recovery.actions += 1;
      recovery.bytes += bytes;
      recovery.last = performance.now();
      clearTimeout(this.recoveryTimer);
      this.recoveryTimer = setTimeout(() => this.#recovered(), 250);
    } else if (recovery) {
      this.#recovered();
    }
    if (!recovery) this.skew = Math.min(this.skew, Date.now() - event.ts);
  }

  /** What was missed is here. */
  #recovered() {
    const recovery = this.recovery;
    if (!recovery) return;
    const { begun, actions, bytes, last, snapshot } = recovery;
    if (actions === 0 && performance.now() - begun < 1_000) {
      clearTimeout(this.recoveryTimer);
      this.recoveryTimer = setTimeout(() => this.#recovered(), 1_000);
      return;
    }
    this.recovery = null;
    const milliseconds = (last || this.heard) - begun;
    this.traffic.reconnects.set('v2', { actions, bytes, milliseconds, snapshot });
  }

  /** Whether an answer to `list` is on its way. */
  isListing = false;
  /** Whether the list may have changed since that was asked for. */
  mustListAgain = false;

  /** Pages of the list that have come, while more follow. @type {any[]} */
  listing = [];

  /** @param {{sessions: any[], nextCursor?: string}} page */
  #listed({ sessions, nextCursor }) {
    this.listing.push(...sessions);
    if (nextCursor !== undefined && this.listing.length < MAX_LISTED) return this.#send({ type: 'list', cursor: nextCursor });
    const detail = this.listing;
    this.listing = [];
    this.isListing = false;
    if (this.mustListAgain) this.list();
    this.dispatchEvent(new CustomEvent('sessions', { detail }));
  }

  /** @type {number | undefined} */
  recoveryTimer = undefined;

  /** The command that this answers. Commands without an id are answered in order. @param {any} event */
  #answered(event) {
    const at = this.pending.findIndex(
      ({ command }) => command.type === event.command && command.clientMsgId === event.clientMsgId,
    );
    return at < 0 ? undefined : this.pending.splice(at, 1)[0];
  }

  /** @param {number} code @param {boolean} isEarly */
  async #closed(code, isEarly) {
    const socket = this.socket;
    if (code === REPLACED) return this.#lost();
    // A browser does not say why a WebSocket was refused, so the host is asked in another way.
    if (isEarly && (await this.#isRefused()) && this.socket === socket) {
      this.#abandon();
      clearTimeout(this.timer);
      return this.#enter('refused');
    }
    if (this.socket === socket) this.#lost();
  }

  async #isRefused() {
    try {
      const answer = await fetch('/content/none', { headers: authorization(this.token), cache: 'no-store' });
      return answer.status === 401;
    } catch {
      return false;
    }
  }

  #lost() {
    this.#abandon();
    this.#wait(this.pause * (0.75 + Math.random() / 2));
    this.pause = Math.min(this.pause * 2, LAST_PAUSE);
  }

  /** @param {number} pause */
  #wait(pause) {
    clearTimeout(this.timer);
    this.retryAt = performance.now() + pause;
    this.timer = setTimeout(() => this.start(), pause);
    this.#failUnrepeatable();
    this.#enter('waiting');
  }

  #failUnrepeatable() {
    const failed = this.pending.filter(({ command }) => command.clientMsgId === undefined);
    this.pending = this.pending.filter(({ command }) => command.clientMsgId !== undefined);
    for (const { reject } of failed) reject(new Error('The connection was lost. Try again.'));
  }

  /** Forgets the socket: nothing that it does counts any more. */
  #abandon() {
    const socket = this.socket;
    if (!socket) return;
    this.socket = null;
    this.recovery = null;
    socket.onopen = socket.onmessage = socket.onclose = null;
    socket.close();
  }

  #beat() {
    if (this.phase !== 'open') return;
    const now = performance.now();
    if (this.pinged && now - this.pinged > PATIENCE && now - this.heard > PATIENCE) this.#lost();
    else if (now - this.heard > SILENCE) this.ping();
  }

  /** The page comes and goes: phones suspend it, browsers keep it for the back button. */
  #followPage() {
    const wake = () => {
      if (this.phase === 'waiting' || this.phase === 'suspended') return this.start();
      if (this.phase !== 'open') return;
      this.ping();
      const asked = performance.now();
      setTimeout(() => {
        if (this.phase === 'open' && this.heard < asked) this.#lost();
      }, IMPATIENCE);
    };
    document.addEventListener('visibilitychange', () => {
      if (document.visibilityState === 'visible') wake();
    });
    addEventListener('online', wake);
    addEventListener('pageshow', (event) => {
      if (event.persisted) wake();
    });
    document.addEventListener('resume', wake);
    addEventListener('pagehide', (event) => {
      // An open WebSocket would keep the page out of the cache for the back button.
      if (!event.persisted) return;
      clearTimeout(this.timer);
      this.#abandon();
      this.#enter('suspended');
    });
  }
}

/** @param {string} token @returns {Record<string, string>} */
export function authorization(token) {
  return token ? { authorization: `Bearer ${token}` } : {};
}

/** @param {Watched} watched */
function position({ lastSeq }) {
  return lastSeq === null ? {} : { lastSeq };
}
