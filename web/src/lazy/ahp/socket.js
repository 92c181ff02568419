/** The socket under AHP: a WebSocket with segments, and what is seen of them. */

import { segmented } from '../../../vendor/lazy/segments.js';

/** Ends of a connection that break no rule. */
const HARMLESS = /^close-(normal|peer|restart|program)$/;

/** Longer frames would keep the page from drawing while they are read: longer messages come in segments. */
const MAX_FRAME_BYTES = 256 * 1024;

/** How long a large message is shown after its end, so that one sees a fast one too. */
const SHOWN = 4_000;

/** @typedef {{direction: 'in' | 'out', done: number, total: number, segments: number, begun: number, ended: number | null}} Transfer */
/** @typedef {import('../../../vendor/lazy/segments.js').SegmentedSocket} SegmentedSocket */

export class AhpSocket {
  /** @param {string} token @param {import('../../traffic.js').Traffic} traffic */
  constructor(token, traffic) {
    const address = new URL('/ahp', location.href);
    address.protocol = address.protocol === 'https:' ? 'wss:' : 'ws:';
    if (token) address.searchParams.set('token', token);
    this.traffic = traffic;
    /** Large messages that are under way. @type {Map<string, Transfer>} */
    this.transfers = new Map();
    this.known = { framesIn: 0, charsIn: 0, framesOut: 0, charsOut: 0 };
    /** @type {Record<string, number>} */
    this.counted = {};
    this.socket = segmented(new WebSocket(address), { maxFrameBytes: MAX_FRAME_BYTES });
    this.socket.addEventListener('progress', (event) => this.#progress(event.detail));
    this.socket.addEventListener('done', ({ detail: { direction, id } }) => {
      const transfer = this.transfers.get(direction + id);
      if (transfer) Object.assign(transfer, { done: transfer.total, ended: performance.now() });
    });
    this.socket.addEventListener('close', () => this.count());
  }

  /** Adds what was carried since it was last counted. */
  count() {
    const { framesIn, charsIn, framesOut, charsOut } = this.socket.traffic;
    const counters = this.traffic.counters('ahp');
    counters.framesIn += framesIn - this.known.framesIn;
    counters.framesOut += framesOut - this.known.framesOut;
    this.traffic.carried('ahp', charsIn - this.known.charsIn, charsOut - this.known.charsOut);
    this.known = { framesIn, charsIn, framesOut, charsOut };
    for (const [name, times] of Object.entries(this.socket.counters)) {
      const more = times - (this.counted[name] ?? 0);
      if (more > 0 && !HARMLESS.test(name)) this.traffic.violated(name, more);
      this.counted[name] = times;
    }
  }

  /** What both sides take, as it was negotiated. @returns {{host: Record<string, any> | null, page: Record<string, any>}} */
  limits() {
    return { host: this.socket.peer, page: this.socket.ours };
  }

  /** @param {{direction: 'in' | 'out', id: number, done: number, total: number}} progress */
  #progress({ direction, id, done, total }) {
    const known = this.transfers.get(direction + id);
    const begun = known?.begun ?? performance.now();
    if (!known) this.recent();
    this.transfers.set(direction + id, { direction, done, total, segments: (known?.segments ?? 0) + 1, begun, ended: null });
  }

  /** Large messages that are under way, or ended a moment ago. Forgets older ones. */
  recent() {
    const now = performance.now();
    for (const [key, { ended }] of this.transfers) if (ended !== null && now - ended > SHOWN) this.transfers.delete(key);
    return [...this.transfers.values()];
  }
}
