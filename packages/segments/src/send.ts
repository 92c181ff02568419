// The sending half: messages are queued in order, cut when they start, and sent one frame at a time.

import type { Capacity, Chunking, Limits } from './api.js';
import { encode, encodeBase64, utf8Length } from './bytes.js';
import type { MessageKind } from './message.js';
import type { Order, Role } from './order.js';
import { Pace } from './pace.js';
import { type Entry, type Fit, Queue } from './queue.js';
import { type SendError, unsent } from './reasons.js';

/** On a slow link, segments are so short that about this many pass in a second, so that other messages get their turn. */
const SEGMENTS_PER_SECOND = 20;
/** The shortest frame that is chosen for a slow link. */
const SLOW_FRAME = 16 << 10;
/** The longest frame that is chosen at all: the peer works on one while the next is made and sent. */
const LONG_FRAME = 120 << 10;
/** The longest frame that is chosen while other messages wait, or have just been sent. */
const SHARED_FRAME = 64 << 10;
/** When two messages without segments were sent within this time, more of them are expected. */
const LIVELY = 500;
/** Frames up to this length go to any peer before its limits are known. */
const ANY_PEER = 512;
/** How many error answers of our own may wait. While so many wait, the peer is not read. */
const MAX_ANSWERS = 64;

/** A message of ours. */
export interface Outgoing {
  /** The application's number for it; `null` for an answer that we made ourselves. */
  readonly ticket: number | null;
  text: string;
  readonly size: number;
  readonly kind: MessageKind;
  /** The id as it is written, if it can be answered. */
  readonly id: string | null;
  /** What it is called in errors. */
  readonly called: string;
  readonly class: 'ordinary' | 'handshake' | 'segment' | 'response';
}

/** A message of which some segments have been sent. */
interface OutgoingGroup {
  readonly out: Outgoing;
  readonly entry: Entry<Outgoing>;
  readonly bytes: Uint8Array;
  readonly name: string;
  readonly plan: Plan;
  index: number;
}

/** A frame to send: of which message, and how many bytes of that have been sent with it. */
export interface OutgoingFrame {
  readonly frame: string;
  readonly out: Outgoing;
  readonly done: number;
}

/** A message that cannot be sent. Nothing of it was. */
export interface Unsent {
  readonly out: Outgoing;
  readonly order: Order;
  readonly error: SendError;
}

const HEAD = '{"jsonrpc":"2.0","method":"ahp/messageSegment","params":{"groupId":"';
const INDEX = '","index":';
const TOTAL = ',"total":';
const DATA = ',"data":"';
const TAIL = '"}}';
/** The length of a segment frame without its numbers and its data; and how many quotes it has. */
const FIXED = HEAD.length + 32 + INDEX.length + TOTAL.length + DATA.length + TAIL.length;
const QUOTES = 22;

/** How a message is cut: bytes in each segment but the last, a multiple of 3 so that only the last has padding. */
interface Plan {
  size: number;
  total: number;
}

/** Cuts `length` bytes into segments whose frames are at most `frame` bytes; `null` if there would be too many. */
export function plan(length: number, frame: number): Plan | null {
  // Longer numbers leave less space for data, so the smallest number of digits that suffices is used.
  for (let digits = 1; digits <= 5; digits++) {
    const size = Math.floor((frame - FIXED - digits * 2) / 4) * 3;
    const total = Math.max(1, Math.ceil(length / size));
    if (size > 0 && total < 65536 && String(total).length <= digits) return { size, total };
  }
  return null;
}

const longestFrame = ({ size, total }: Plan): number => FIXED + String(total).length * 2 + Math.ceil(size / 3) * 4;

/** The sending half of a connection. */
export class Sender {
  readonly #queue: Queue<Outgoing, OutgoingGroup>;
  /** Error answers in place of responses that cannot be sent. They are sent before everything else. */
  readonly answers: Outgoing[] = [];
  readonly pace = new Pace();
  /** When the last two messages without segments were sent. */
  #short: [number, number] = [-Infinity, -Infinity];
  link: Capacity = { cap: Infinity };

  constructor(
    readonly role: Role,
    limits: Limits,
  ) {
    this.#queue = new Queue(limits.maxQueuedBytes);
  }

  get mayRead(): boolean {
    return this.answers.length < MAX_ANSWERS;
  }

  get queuedBytes(): number {
    return this.#queue.queuedBytes;
  }

  hasUnfinished(order: Order): boolean {
    return this.#queue.hasUnfinished(order);
  }

  /** Whether the segments of the groups in flight still fit the frame limits. They cannot be cut again. */
  canGoOn(theirs: Chunking | null): boolean {
    const { groups } = this.#queue;
    if (!groups.length) return true;
    const largest = this.#largest(theirs?.maxFrameBytes ?? Infinity);
    return groups.every((group) => longestFrame(group.plan) <= largest);
  }

  /** Whether a message fits one frame. */
  fits({ text, size }: { text: string; size: number }, theirs: Chunking | null): boolean {
    if (theirs && size > theirs.maxFrameBytes) return false;
    const { cap, overhead } = this.link;
    return size + (overhead ? overhead(size, utf8Length(JSON.stringify(text)) - 2) : 0) <= cap;
  }

  /** Accepts a message, or says why not. */
  push(out: Outgoing, order: Order, request: string | null, cancels: string | null): SendError | null {
    if (out.class === 'handshake') {
      this.#queue.pushFirst(out, out.size, order);
      return null;
    }
    const isAccepted = this.#queue.push(out, out.size, order, request, cancels);
    return isAccepted ? null : unsent('queue-full', `message of ${out.size} bytes does not fit the send queue of ${this.#queue.maxBytes}`);
  }

  /** The next frame. `theirs` are the limits of the peer; `isWaiting` while the handshake that tells them is not answered. */
  poll(theirs: Chunking | null, isWaiting: boolean, now: number): OutgoingFrame | Unsent | null {
    if (!this.#queue.hasBarriers) {
      const answer = this.answers.shift();
      if (answer) return this.#whole(answer, now);
    }
    const spare = this.#spare(now);
    const fit = (out: Outgoing): Fit => {
      // Until the peer's limits are known, only messages that any peer takes are sent, and those that the peer may be waiting for. A server
      // may wait for a client's response; a client waits only for the answer to its handshake.
      const canWait = out.class === 'response' ? this.role === 'server' : out.class !== 'handshake';
      if (isWaiting && canWait && out.size > ANY_PEER) return 'wait';
      if (this.fits(out, theirs)) return 'frame';
      return out.size > spare ? 'wait' : 'group';
    };
    // What a client sends finishes as it was accepted, in whatever lane: a prompt must not pass the write that it depends on.
    const inLanes = this.role === 'server' && theirs?.settledCursor === true;
    const picked = this.#queue.pick(now, theirs?.maxGroups ?? 1, inLanes, fit);
    if (!picked) {
      this.pace.idle(now);
      return null;
    }
    if (picked.go) return this.#advance(picked.go, now);
    const entry = picked.start;
    const out = entry.item;
    if (fit(out) === 'frame') return this.#whole(out, now);
    const cut = this.#plan(out, theirs, now);
    if ('name' in cut) {
      this.#queue.settle(entry);
      return { out, order: entry.order, error: cut };
    }
    const group = { out, entry, bytes: encode(out.text), name: randomName(), plan: cut, index: 0 };
    out.text = '';
    this.#queue.begin(entry, group, now, theirs?.groupTimeoutMs ?? 0);
    return this.#advance(group, now);
  }

  /** Drops everything that was not sent whole, and returns it. */
  abandon(): Outgoing[] {
    this.answers.length = 0;
    const all = [...this.#queue.groups.map(({ out }) => out), ...this.#queue.waiting];
    this.#queue.clear();
    return all;
  }

  /** The longest segment frame that fits the peer's cap and the link's. */
  #largest(limit: number): number {
    const { cap, overhead } = this.link;
    let high = Math.min(limit, cap, 2 ** 32);
    let low = 0;
    if (!overhead) return high;
    // Overhead does not shrink as the text grows, so the lengths that fit are a range from zero.
    while (low < high) {
      const bytes = Math.ceil((low + high) / 2);
      if (bytes + overhead(bytes, bytes + QUOTES) <= cap) low = bytes;
      else high = bytes - 1;
    }
    return low;
  }

  #whole(out: Outgoing, now: number): OutgoingFrame {
    this.pace.frame(out.size, now);
    this.#short = [this.#short[1], now];
    return { frame: out.text, out, done: out.size };
  }

  /** The next segment of a group. */
  #advance(group: OutgoingGroup, now: number): OutgoingFrame {
    const { out, bytes, name, plan, index } = group;
    const done = Math.min((index + 1) * plan.size, out.size);
    const data = encodeBase64(bytes.subarray(index * plan.size, done));
    const frame = `${HEAD}${name}${INDEX}${index}${TOTAL}${plan.total}${DATA}${data}${TAIL}`;
    this.pace.frame(frame.length, now);
    if (++group.index >= plan.total) this.#queue.finish(group);
    return { frame, out, done };
  }

  /** How long a message may be that starts now, so that all groups in flight still finish in time. */
  #spare(now: number): number {
    const { groups, due } = this.#queue;
    const believed = this.pace.believed(now);
    if (!believed || due === Infinity) return Infinity;
    const left = Math.floor(Math.max(0, due - now) / 1000);
    const underWay = groups.reduce((sum, { out, plan, index }) => sum + Math.max(0, out.size - index * plan.size), 0);
    return Math.floor((believed.rate.bytes * left * 2) / 3) - underWay;
  }

  /** How a message that does not fit a frame is cut, or why it cannot be sent. */
  #plan(out: Outgoing, theirs: Chunking | null, now: number): Plan | SendError {
    const { size } = out;
    if (!theirs || out.class === 'segment') {
      const { cap } = this.link;
      return unsent('no-segments', `message of ${size} bytes does not fit a frame of ${cap}, and the peer takes no segments`, cap);
    }
    const { maxMessageBytes: most } = theirs;
    if (size > most) return unsent('too-large', `message of ${size} bytes is over the peer's limit of ${most}`, most);
    const largest = this.#largest(theirs.maxFrameBytes);
    const believed = this.pace.believed(now);
    const isLively = now - this.#short[0] < LIVELY;
    const longest = isLively || this.#queue.hasWaiting ? SHARED_FRAME : LONG_FRAME;
    const slow = believed ? Math.max(SLOW_FRAME, Math.floor(believed.rate.bytes / SEGMENTS_PER_SECOND)) : longest;
    const cut = plan(size, Math.min(slow, longest, largest)) ?? plan(size, largest);
    if (!cut) return unsent('too-many-segments', `message of ${size} bytes would need more than 65535 segments at this frame cap`, 65535);
    if (believed) {
      const { rate, left } = believed;
      const needed = Math.floor((cut.total * longestFrame(cut) * 1000) / rate.bytes);
      const limit = theirs.groupTimeoutMs;
      if (needed > limit) {
        return unsent(
          'too-slow',
          `message of ${size} bytes needs ${needed} ms at the measured ${rate.bytes} bytes/s, and the peer allows ${limit} ms (its groupTimeoutMs)`,
          Math.floor((rate.bytes * limit) / 1000),
          `,"bytesPerSecond":${rate.bytes},"neededMs":${needed},"limitMs":${limit},"retryAfterMs":${Math.floor(left)}`,
        );
      }
    }
    return cut;
  }
}

/** A group id that nobody can guess. */
function randomName(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('');
}
