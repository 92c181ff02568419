// A socket for whole messages over one for frames: drives a connection, and looks like a WebSocket to its application.

import type {
  Chunking,
  CloseReason,
  Options,
  SendCallback,
  SendOptions,
  SegmentedEvents,
  SegmentedSocket,
  TextDuplex,
  WebSocketLike,
} from './api.js';
import { Budget } from './budget.js';
import { Connection, type ConnectionEvent } from './connection.js';
import { Negotiated } from './handshake.js';
import { checked } from './limits.js';
import { CLOSED, CLOSING, CONNECTING, duplexLink, type Link, OPEN, socketLink } from './link.js';
import { closedByPeer, closedHere } from './reasons.js';

/** How much may wait in the socket, where a small message cannot pass it any more: at most this, and about 50 ms of a slow link. */
const MOST_BUFFERED = 256 << 10;
const LEAST_BUFFERED = 16 << 10;
/** How often a socket that does not tell is asked whether it takes more, in milliseconds. */
const POLL = 4;
/** How long a close waits for what is to be sent before it. */
const FLUSH = 10_000;
/** A timer that comes this late was held up with everything else, so frames that wait are read first. */
const LATE = 1000;

type Type = keyof SegmentedEvents;
type Listener = (...values: unknown[]) => void;

/** What earlier sockets with the same address have negotiated; the newest addresses. */
const memories = new Map<string, Negotiated>();

function memoryOf(url: string): Negotiated {
  const [address] = url.split(/[?#]/);
  const memory = memories.get(address) ?? new Negotiated();
  if (!address) return memory;
  memories.delete(address);
  memories.set(address, memory);
  if (memories.size > 64) for (const oldest of memories.keys()) return memories.delete(oldest), memory;
  return memory;
}

/** What an `EventTarget` and its subclass type in another way. */
type Listening = 'addEventListener' | 'removeEventListener' | 'on' | 'once' | 'off';

export class Segmented extends EventTarget implements Omit<SegmentedSocket, Listening> {
  readonly CONNECTING = CONNECTING;
  readonly OPEN = OPEN;
  readonly CLOSING = CLOSING;
  readonly CLOSED = CLOSED;
  declare onopen: SegmentedSocket['onopen'];
  declare onmessage: SegmentedSocket['onmessage'];
  declare onerror: SegmentedSocket['onerror'];
  declare onclose: SegmentedSocket['onclose'];
  binaryType = 'blob';
  readonly url: string;
  readonly traffic = { framesIn: 0, charsIn: 0, framesOut: 0, charsOut: 0 };
  readonly #socket: Partial<WebSocketLike>;
  readonly #link: Link;
  readonly #connection: Connection;
  /** What was set as `onopen` and so on. */
  readonly #handlers = new Map<string, EventListener>();
  /** Listeners that were added with `on`, and what was registered for them. */
  readonly #wrapped = new Map<Listener, (event: Event) => void>();
  /** Who wants to know when a message was sent. */
  readonly #callbacks = new Map<number, SendCallback>();
  /** Large messages of which progress was told. */
  readonly #large = new Set<string>();
  #tickets = 0;
  /** The ordinal of the message that is being delivered. */
  #ordinal = 0;
  #isBusy = false;
  #isPaused = false;
  #poll: ReturnType<typeof setTimeout> | null = null;
  #timer: ReturnType<typeof setTimeout> | null = null;
  #due: number | null = null;
  /** The close that waits until everything is sent. */
  #closing: CloseReason | null = null;
  #flush: ReturnType<typeof setTimeout> | null = null;
  /** Whether the link has ended, and whether the application was told so. */
  #hasEnded = false;
  #isOver = false;

  static {
    for (const type of ['open', 'message', 'error', 'close']) {
      Object.defineProperty(this.prototype, `on${type}`, {
        get(this: Segmented) {
          return this.#handlers.get(type) ?? null;
        },
        set(this: Segmented, handler: EventListener | null) {
          this.removeEventListener(type, this.#handlers.get(type) ?? null);
          this.addEventListener(type, handler);
          if (handler) this.#handlers.set(type, handler);
          else this.#handlers.delete(type);
        },
      });
    }
  }

  constructor(socket: WebSocketLike | TextDuplex, options: Options) {
    super();
    const { role = 'client', delivery = 'start-order', agreed = null, link, principal = '' } = options;
    const isDuplex = 'readable' in socket;
    this.#socket = isDuplex ? {} : socket;
    this.url = this.#socket.url ?? '';
    const budget = (options.budget as Budget | undefined) ?? new Budget();
    const account = budget.account(principal);
    account.onevict = () => queueMicrotask(() => this.#timeout());
    const negotiated = (options.negotiated as Negotiated | undefined) ?? memoryOf(this.url);
    const limits = checked(options, budget.limits);
    this.#connection = new Connection({ role, limits, delivery, agreed, negotiated, account });
    if (link) this.#connection.capacity(link);
    const events = {
      opened: () => {
        this.#dispatch(new Event('open'));
        this.#run();
      },
      frame: (frame: string | Uint8Array) => {
        this.traffic.framesIn++;
        this.traffic.charsIn += frame.length;
        this.#connection.frame(frame, now());
        this.#run();
      },
      drained: () => this.#run(),
      failed: () => this.#dispatch(new Event('error')),
      closed: (code: number, reason: string, wasClean: boolean) => {
        this.#hasEnded = true;
        this.#connection.close(closedByPeer(code));
        this.#run();
        this.#end(code, reason, wasClean);
      },
    };
    this.#link = isDuplex ? duplexLink(socket, events) : socketLink(socket, events);
  }

  get readyState(): number {
    const state = this.#link.readyState;
    return this.#isOver ? CLOSED : state === OPEN && (this.#closing || this.#connection.reason) ? CLOSING : state;
  }

  get protocol(): string {
    return this.#socket.protocol ?? '';
  }

  get extensions(): string {
    return this.#socket.extensions ?? '';
  }

  get bufferedAmount(): number {
    return this.#connection.queuedBytes + this.#link.bufferedAmount;
  }

  get ours(): Chunking {
    return this.#connection.ours;
  }

  get peer(): Chunking | null {
    return this.#connection.peer;
  }

  get cursor(): number | null {
    const { cursor } = this.#connection;
    return cursor === null ? null : Number(cursor);
  }

  get counters(): Record<string, number> {
    return Object.fromEntries(this.#connection.counters);
  }

  get closeReason(): CloseReason | null {
    return this.#connection.reason;
  }

  send(message: string, options: SendOptions | SendCallback = {}, callback?: SendCallback): void {
    const isCallback = typeof options === 'function';
    const done = isCallback ? options : callback;
    if (done) this.#callbacks.set(++this.#tickets, done);
    else this.#tickets++;
    this.#connection.send(this.#tickets, String(message), !isCallback && options.free === true);
    this.#run();
  }

  close(code = 1000, reason = ''): void {
    if (this.#closing || this.#connection.reason) return;
    this.#closing = closedHere(code, reason);
    if (this.#link.readyState === CONNECTING) this.#connection.close(this.#closing);
    else this.#flush = setTimeout(() => this.#finish(), FLUSH);
    this.#run();
  }

  noteSeq(seq: number): void {
    this.#connection.noteSeq(this.#ordinal, BigInt(seq));
  }

  on(type: Type, listener: Listener): this {
    return this.#on(type, listener, false);
  }

  once(type: Type, listener: Listener): this {
    return this.#on(type, listener, true);
  }

  off(type: Type, listener: Listener): this {
    super.removeEventListener(type, this.#wrapped.get(listener) ?? null);
    this.#wrapped.delete(listener);
    return this;
  }

  #on(type: Type, listener: Listener, once: boolean): this {
    const wrapped = (event: Event): void => {
      if (event instanceof MessageEvent) listener(event.data, false);
      else if (event instanceof CustomEvent) listener(event.detail);
      else if (type === 'close') listener((event as SegmentedEvents['close']).code, (event as SegmentedEvents['close']).reason);
      else listener(event);
    };
    this.#wrapped.set(listener, wrapped);
    super.addEventListener(type, wrapped, { once });
    return this;
  }

  #dispatch(event: Event): void {
    this.dispatchEvent(event);
  }

  /** Gives the link what it takes and the application what there is. Listeners may send more meanwhile. */
  #run(): void {
    if (this.#isBusy) return;
    this.#isBusy = true;
    try {
      for (let hasMore = true; hasMore; ) {
        hasMore = this.#transmit();
        for (let event = this.#connection.pollEvent(); event; event = this.#connection.pollEvent()) {
          hasMore = true;
          this.#tell(event);
        }
      }
    } finally {
      this.#isBusy = false;
    }
    const isPaused = !this.#connection.wantsFrames && !this.#connection.reason;
    if (isPaused !== this.#isPaused) this.#link.pause((this.#isPaused = isPaused));
    this.#arm(0);
  }

  /** Sends as many frames as the link takes. Returns whether there may be events because of that. */
  #transmit(): boolean {
    let hasSent = false;
    while (this.#link.readyState === OPEN || this.#connection.reason) {
      const time = now();
      const rate = this.#connection.rate(time);
      const most = rate ? Math.max(LEAST_BUFFERED, Math.min(MOST_BUFFERED, rate / 20)) : MOST_BUFFERED;
      if (this.#link.bufferedAmount >= most && !this.#connection.reason) {
        this.#poll ??= setTimeout(() => {
          this.#poll = null;
          this.#run();
        }, POLL);
        break;
      }
      const transmit = this.#connection.pollTransmit(time);
      if (!transmit) {
        this.#finish();
        if (!this.#connection.reason) break;
        const last = this.#connection.pollTransmit(time);
        if (last && 'close' in last) this.#closeLink(last.close);
        break;
      }
      hasSent = true;
      if ('close' in transmit) {
        this.#closeLink(transmit.close);
        break;
      }
      this.traffic.framesOut++;
      this.traffic.charsOut += transmit.frame.length;
      this.#link.send(transmit.frame);
    }
    return hasSent;
  }

  /** Everything was sent, or waited too long: the close that waits goes on. */
  #finish(): void {
    if (!this.#closing || this.#connection.reason) return;
    this.#connection.close(this.#closing);
    this.#run();
  }

  #closeLink({ code, text }: CloseReason): void {
    if (this.#link.readyState < CLOSING) this.#link.close(code === 1006 ? 1000 : code, text);
  }

  #tell(event: ConnectionEvent): void {
    const detail = <T>(type: Type, detail: T): void => this.#dispatch(new CustomEvent(type, { detail }));
    const done = (direction: 'in' | 'out', id: number): void => {
      if (this.#large.delete(direction + id)) detail('done', { direction, id });
    };
    switch (event.type) {
      case 'message':
        done('in', event.ordinal);
        this.#ordinal = event.ordinal;
        this.#dispatch(new MessageEvent('message', { data: event.text }));
        break;
      case 'sent':
        done('out', event.ticket);
        this.#callBack(event.ticket);
        break;
      case 'failed':
        this.#callBack(event.ticket, new Error(event.error.because));
        detail('sendfailed', { name: event.error.name, because: event.error.because, text: event.text });
        if (event.reply !== null) this.#dispatch(new MessageEvent('message', { data: event.reply }));
        break;
      case 'expired':
        detail('expired', { id: event.ordinal, received: event.received });
        break;
      case 'progress': {
        const { direction, id, done, total } = event;
        this.#large.add(direction + id);
        detail('progress', { direction, id, done, total });
        break;
      }
      case 'closed':
        // What the application asked for ends when the link has ended.
        if (event.reason !== this.#closing && !this.#hasEnded) this.#end(event.reason.code, event.reason.text, false);
    }
  }

  #callBack(ticket: number, error?: Error): void {
    const callback = this.#callbacks.get(ticket);
    this.#callbacks.delete(ticket);
    callback?.(error);
  }

  #end(code: number, reason: string, wasClean: boolean): void {
    if (this.#isOver) return;
    this.#isOver = true;
    for (const timer of [this.#poll, this.#timer, this.#flush]) if (timer !== null) clearTimeout(timer);
    this.#dispatch(Object.assign(new Event('close'), { code, reason, wasClean }));
  }

  /** Sets the timer for the next timeout. */
  #arm(least: number): void {
    const due = this.#isOver ? null : this.#connection.pollTimeout();
    if (due === this.#due && !least) return;
    this.#due = due;
    if (this.#timer !== null) clearTimeout(this.#timer);
    if (due === null) return;
    this.#timer = setTimeout(() => this.#timeout(), Math.max(least, due - now()));
    // A group that does not come keeps no program running.
    (this.#timer as { unref?(): void }).unref?.();
  }

  #timeout(): void {
    const time = now();
    const due = this.#due;
    this.#due = null;
    if (due && time - due > LATE) {
      this.#connection.pause(true, due);
      this.#connection.pause(this.#isPaused, time);
      return this.#arm(50);
    }
    this.#connection.timeout(time);
    this.#run();
  }
}

const now = (): number => performance.now();
