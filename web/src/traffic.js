/** Counts what the page's connections carry, with a sample each second for the plots. */

/** How many seconds the plots show. */
export const SECONDS = 300;

/** @typedef {{bytesIn: number, bytesOut: number, latency: number | null}} Sample */
/** @typedef {{actions: number, bytes: number, milliseconds: number, snapshot: boolean}} Reconnect */

const encoder = new TextEncoder();

/** How many bytes a text is on the wire. @param {string} text */
export function byteLength(text) {
  return encoder.encode(text).length;
}

/** What one connection has carried. */
export class Counters {
  constructor() {
    this.framesIn = 0;
    this.framesOut = 0;
    this.bytesIn = 0;
    this.bytesOut = 0;
    this.connects = 0;
  }
}

export class Traffic {
  constructor() {
    /** @type {Map<string, Counters>} */
    this.connections = new Map();
    /** Rules that a peer broke, by name. @type {Map<string, number>} */
    this.violations = new Map();
    /** The last seconds, the oldest first. @type {Sample[]} */
    this.samples = [];
    /** The last of each connection. @type {Map<string, Reconnect>} */
    this.reconnects = new Map();
    /** @type {Sample} */
    this.now = { bytesIn: 0, bytesOut: 0, latency: null };
    setInterval(() => this.tick(), 1000);
  }

  tick() {
    this.samples.push(this.now);
    if (this.samples.length > SECONDS) this.samples.shift();
    this.now = { bytesIn: 0, bytesOut: 0, latency: null };
  }

  /** @param {string} name */
  counters(name) {
    let counters = this.connections.get(name);
    if (!counters) this.connections.set(name, (counters = new Counters()));
    return counters;
  }

  /** @param {string} name @param {number} bytes */
  received(name, bytes) {
    const counters = this.counters(name);
    counters.framesIn += 1;
    counters.bytesIn += bytes;
    this.now.bytesIn += bytes;
  }

  /** @param {string} name @param {number} bytes */
  sent(name, bytes) {
    const counters = this.counters(name);
    counters.framesOut += 1;
    counters.bytesOut += bytes;
    this.now.bytesOut += bytes;
  }

  /** Bytes whose frames are counted elsewhere. @param {string} name @param {number} bytesIn @param {number} bytesOut */
  carried(name, bytesIn, bytesOut) {
    const counters = this.counters(name);
    counters.bytesIn += bytesIn;
    counters.bytesOut += bytesOut;
    this.now.bytesIn += bytesIn;
    this.now.bytesOut += bytesOut;
  }

  /** @param {number} milliseconds */
  answered(milliseconds) {
    this.now.latency = Math.max(this.now.latency ?? 0, milliseconds);
  }

  /** @param {string} name @param {number} times */
  violated(name, times) {
    this.violations.set(name, (this.violations.get(name) ?? 0) + times);
  }
}
