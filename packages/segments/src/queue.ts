// What is sent next: order across lanes, slots for groups, deadlines, small messages before the rest of large ones.

import { isOrdered, type Order } from './order.js';

/** How many bytes of small messages may be sent before a large one gets its turn. */
const SMALL_RUN = 64 << 10;

/** What a message needs from the link: one frame, several, or that is not decided yet. */
export type Fit = 'frame' | 'group' | 'wait';

/** A message that waits. */
export interface Entry<T> {
  readonly order: Order;
  readonly item: T;
  readonly bytes: number;
  /** Its key, if it is a request. */
  readonly request: string | null;
  /** The request that it cancels, if that had not been sent whole. */
  readonly after: Entry<T> | null;
  accepted: number;
}

interface Flight<T, G> {
  readonly entry: Entry<T>;
  readonly group: G;
  readonly lateAt: number;
  readonly due: number;
  turn: number;
}

/** Messages to send: those that wait, and those of which some segments have gone. */
export class Queue<T, G> {
  #urgent: Entry<T>[] = [];
  #ordered: Entry<T>[] = [];
  #free: Entry<T>[] = [];
  #flights: Flight<T, G>[] = [];
  #barriers: Entry<T>[] = [];
  #requests = new Map<string, Entry<T>>();
  #accepted = 0;
  #turns = 0;
  #smallRun = 0;
  queuedBytes = 0;

  constructor(readonly maxBytes: number) {}

  /** Accepts a message. Returns false if the queue is full. Barriers are exempt: without them no connection comes up. */
  push(item: T, bytes: number, order: Order, request: string | null, cancels: string | null): boolean {
    if (this.queuedBytes + bytes > this.maxBytes && order !== 'barrier') return false;
    this.queuedBytes += bytes;
    const after = (cancels !== null && this.#requests.get(cancels)) || null;
    const entry = { order, item, bytes, request, after, accepted: ++this.#accepted };
    if (request !== null) this.#requests.set(request, entry);
    if (order === 'urgent') this.#urgent.push(entry);
    else if (order === 'free') this.#free.push(entry);
    else this.#ordered.push(entry);
    if (order === 'barrier') this.#barriers.push(entry);
    return true;
  }

  /** Accepts a handshake: ahead of all ordered messages, which wait for it, and exempt from the limit. */
  pushFirst(item: T, bytes: number, order: Order): void {
    this.queuedBytes += bytes;
    this.#ordered.unshift({ order, item, bytes, request: null, after: null, accepted: ++this.#accepted });
  }

  /** What is sent next: a message that starts, or a group that goes on. At most `slots` groups are in flight. */
  pick(now: number, slots: number, inLanes: boolean, fit: (item: T) => Fit): { start: Entry<T>; go?: undefined } | { go: G; start?: undefined } | null {
    const urgent = this.#urgent.shift();
    if (urgent) {
      if (fit(urgent.item) === 'frame') return { start: this.#taken(urgent, true) };
      this.#free.unshift(urgent);
    }
    const head = this.#head(inLanes);
    const headFit = head && fit(head.item);
    const oldest = (want: Fit): Entry<T> | null => {
      const ready = (entry: Entry<T>): boolean =>
        this.#passesBarriers(entry) &&
        fit(entry.item) === want &&
        !(entry.after && this.#requests.get(entry.after.request ?? '') === entry.after);
      const free = this.#free.find(ready);
      if (!head || headFit !== want) return free ?? null;
      return free && free.accepted < head.accepted ? free : head;
    };
    const small = oldest('frame');
    if (!small || this.#smallRun >= SMALL_RUN) {
      this.#smallRun = 0;
      const late = this.#flights.filter((flight) => flight.lateAt <= now);
      const first = (flights: Flight<T, G>[], by: (flight: Flight<T, G>) => number): Flight<T, G> =>
        flights.reduce((least, flight) => (by(flight) < by(least) ? flight : least));
      if (late.length) return { go: first(late, ({ lateAt }) => lateAt).group };
      const large = this.#flights.length < slots && oldest('group');
      if (large) return { start: this.#taken(this.#remove(large), false) };
      if (this.#flights.length) {
        const next = first(this.#flights, ({ turn }) => turn);
        next.turn = ++this.#turns;
        return { go: next.group };
      }
    }
    if (!small) return null;
    this.#smallRun += small.bytes;
    return { start: this.#taken(this.#remove(small), true) };
  }

  /** A message that was picked is now in flight as a group. */
  begin(entry: Entry<T>, group: G, now: number, timeout: number): void {
    this.#flights.push({ entry, group, lateAt: now + timeout / 2, due: now + timeout, turn: ++this.#turns });
  }

  /** A group has sent its last segment. */
  finish(group: G): void {
    const at = this.#flights.findIndex((flight) => flight.group === group);
    const [flight] = this.#flights.splice(at, 1);
    if (flight) this.settle(flight.entry);
  }

  /** A message that was picked is done: sent, or refused. */
  settle(entry: Entry<T>): void {
    if (entry.order === 'barrier') this.#barriers = this.#barriers.filter((barrier) => barrier !== entry);
    if (entry.request !== null && this.#requests.get(entry.request) === entry) this.#requests.delete(entry.request);
  }

  /** Whether an ordered message of this order waits, or is in flight. */
  hasUnfinished(order: Order): boolean {
    return (
      this.#ordered.some((entry) => entry.order === order) || this.#flights.some(({ entry }) => entry.order === order)
    );
  }

  get hasWaiting(): boolean {
    return this.#ordered.length + this.#free.length + this.#urgent.length > 0;
  }

  get hasBarriers(): boolean {
    return this.#barriers.length > 0;
  }

  /** All groups in flight. */
  get groups(): G[] {
    return this.#flights.map(({ group }) => group);
  }

  /** All messages that wait, in the order of acceptance. */
  get waiting(): T[] {
    const entries = [...this.#urgent, ...this.#ordered, ...this.#free].sort((a, b) => a.accepted - b.accepted);
    return entries.map(({ item }) => item);
  }

  /** The earliest time at which a group in flight has to be finished. */
  get due(): number {
    return Math.min(...this.#flights.map(({ due }) => due));
  }

  clear(): void {
    this.#urgent = [];
    this.#ordered = [];
    this.#free = [];
    this.#flights = [];
    this.#barriers = [];
    this.#requests.clear();
    this.queuedBytes = 0;
  }

  #taken(entry: Entry<T>, isWhole: boolean): Entry<T> {
    this.queuedBytes -= entry.bytes;
    if (isWhole) this.settle(entry);
    return entry;
  }

  #remove(entry: Entry<T>): Entry<T> {
    if (this.#ordered[0] === entry) this.#ordered.shift();
    else this.#free.splice(this.#free.indexOf(entry), 1);
    return entry;
  }

  /** The first ordered message, if it may start. */
  #head(inLanes: boolean): Entry<T> | null {
    const head = this.#ordered[0];
    if (!head || !this.#passesBarriers(head)) return null;
    const blocks = ({ entry }: Flight<T, G>): boolean => (inLanes ? entry.order === head.order : isOrdered(entry.order));
    return this.#flights.some(blocks) ? null : head;
  }

  #passesBarriers(entry: Entry<T>): boolean {
    const [barrier] = this.#barriers;
    return !barrier || entry.accepted <= barrier.accepted;
  }
}
