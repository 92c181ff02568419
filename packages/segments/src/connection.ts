// AHP with segments, over one link: a machine without socket and clock. A driver passes in what happens together with the time, and
// polls what comes out.
//
// The order of messages is decided in `order.ts` and kept in `queue.ts` on the way out, in `arrivals.ts` on the way in. A violation is
// told once to the link and once to the application, and nothing follows it.

import type { Capacity, Chunking, CloseReason, Limits } from './api.js';
import { Arrivals, type Delivery, type Finished } from './arrivals.js';
import type { Account, Grant } from './budget.js';
import { encode, release, utf8Length } from './bytes.js';
import { Agreement, type Negotiated } from './handshake.js';
import { idKey, Message, scan } from './message.js';
import {
  cancelled,
  carriesState,
  isOrdered,
  mayPass,
  MAX_REQUESTS,
  type Order,
  orderOf,
  Requests,
  type Role,
} from './order.js';
import { closing, errorResponse, invalid, overBudget, Reason, type SendError, unsent } from './reasons.js';
import { Receiver, SEGMENT } from './receive.js';
import { type Outgoing, Sender } from './send.js';

const DISCONNECTED = unsent('disconnected', 'disconnected');

/** How often the budget is asked again for memory. */
const RETRY = 100;

/** Longer messages of the application are not checked to be JSON-RPC, only to be JSON. */
const VOUCHED = 512;

/** What a connection reports. Numbers of messages are ordinals on the way in, tickets on the way out. */
export type ConnectionEvent =
  | { type: 'message'; text: string; ordinal: number; seq: bigint | null }
  | { type: 'sent'; ticket: number }
  | { type: 'failed'; ticket: number; error: SendError; reply: string | null; text: string }
  | { type: 'expired'; ordinal: number; received: number }
  | { type: 'progress'; direction: 'in' | 'out'; id: number; done: number; total: number }
  | { type: 'closed'; reason: CloseReason };

export interface ConnectionConfig {
  role: Role;
  limits: Limits;
  delivery: Delivery;
  negotiated: Negotiated;
  account: Account;
  /** The limits of the peer, if there will be no handshake. */
  agreed: Chunking | null;
}

export class Connection {
  readonly counters = new Map<string, number>();
  readonly #role: Role;
  readonly #account: Account;
  readonly #maxDepth: number;
  readonly #maxParkedBytes: number;
  readonly #agreement: Agreement;
  readonly #receiver: Receiver;
  readonly #arrivals: Arrivals;
  readonly #sender: Sender;
  readonly #peerRequests: Requests;
  readonly #ownRequests: Requests;
  #paused = false;
  /** Frames that wait for memory, or until answers of ours have left. */
  #parked: (string | Uint8Array)[] = [];
  #parkedBytes = 0;
  #retryAt: number | null = null;
  #events: { event: Exclude<ConnectionEvent, { type: 'closed' }>; grant: Grant | null }[] = [];
  /** The newest progress of each message. */
  readonly #progress = new Map<string, ConnectionEvent>();
  /** Why it has closed, and who has yet to be told. */
  reason: CloseReason | null = null;
  #toTell = { link: false, application: false };

  constructor({ role, limits, delivery, negotiated, account, agreed }: ConnectionConfig) {
    this.#role = role;
    this.#account = account;
    this.#maxDepth = limits.maxDepth;
    this.#maxParkedBytes = limits.maxMessageBytes;
    const { maxFrameBytes, maxMessageBytes, maxGroups, groupTimeoutMs } = limits;
    const ours = { maxFrameBytes, maxMessageBytes, maxGroups, groupTimeoutMs, settledCursor: true };
    this.#agreement = new Agreement(role, ours, agreed, negotiated, (name) => this.#count(name));
    this.#receiver = new Receiver(limits, account);
    this.#arrivals = new Arrivals(delivery, limits.maxHeldBytes);
    this.#sender = new Sender(role, limits);
    this.#peerRequests = new Requests(role);
    this.#ownRequests = new Requests(role === 'client' ? 'server' : 'client');
  }

  /** What we take. */
  get ours(): Chunking {
    return this.#agreement.ours;
  }

  /** What the peer takes; `null` while it takes no segments. */
  get peer(): Chunking | null {
    return this.#agreement.theirs;
  }

  /** The first ordinal that is not settled. */
  get settled(): number {
    return this.#arrivals.settled;
  }

  /** The seq to resume from. */
  get cursor(): bigint | null {
    return this.#arrivals.cursor;
  }

  /** Notes that a delivered message brought the application up to a seq. */
  noteSeq(ordinal: number, seq: bigint): void {
    this.#arrivals.note(ordinal, seq);
  }

  /** Whether frames should be read. Those that are passed in all the same wait, within a bound. */
  get wantsFrames(): boolean {
    return !this.#parked.length && this.#sender.mayRead;
  }

  /** Bytes of messages that wait to be sent. */
  get queuedBytes(): number {
    return this.#sender.queuedBytes;
  }

  /** Bytes a second that the link takes; `null` if that is not known. */
  rate(now: number): number | null {
    return this.#sender.pace.believed(now)?.rate.bytes ?? null;
  }

  /** A frame has arrived. */
  frame(frame: string | Uint8Array, now: number): void {
    if (this.reason || (this.wantsFrames && this.#take(frame, now))) return;
    this.#parkedBytes += frame.length + 64;
    if (this.#parked.length && this.#parkedBytes > this.#maxParkedBytes) {
      return this.close(closing('unwanted', 1013, `${this.#parkedBytes} bytes of frames came while there was no memory for them, the limit is ${this.#maxParkedBytes}`));
    }
    if (this.reason) return;
    this.#parked.push(frame);
    this.#retryAt ??= now + RETRY;
    this.#runClock(now);
  }

  /** The link says how much it takes. */
  capacity(link: Capacity): void {
    this.#sender.link = link;
  }

  /** The driver has stopped reading, or reads again. */
  pause(paused: boolean, now: number): void {
    this.#paused = paused;
    this.#runClock(now);
  }

  /** A timeout was due. */
  timeout(now: number): void {
    if (this.reason) return;
    if (this.#retryAt !== null && this.#retryAt <= now) this.#retry(now);
    if (this.#receiver.isEvicted) return this.close(closing('evicted', 1013, 'a group was given up under memory pressure'));
    for (const { ordinal, size: received } of this.#receiver.sweep(now)) {
      this.#count('group-expired');
      this.#push({ type: 'expired', ordinal, received }, `in${ordinal}`);
      if (!this.#arrivals.expire(ordinal)) continue;
      const because = `a message was not finished within the time for a group (${this.ours.groupTimeoutMs} ms): ${received} bytes had come`;
      return this.close(closing('group-expired', 4408, because));
    }
  }

  /** The application sends a message; `isFree` if it may pass others, and they it. */
  send(ticket: number, text: string, isFree = false): void {
    const bytes = encode(text);
    const scanner = scan(bytes);
    const size = bytes.length;
    const whole = scanner.fault ? null : new Message(text, size, scanner, bytes);
    const message = whole?.sort('') === '{' ? whole : null;
    const { kind = 'other', id = null, method = '' } = message ?? {};
    const name = method === SEGMENT ? 'segment' : /^(initialize|reconnect)$/.test(method) ? 'handshake' : 'ordinary';
    const called = message ? nameOf(message) : 'an action';
    const out = { ticket, text, size, kind, id, called, class: method ? name : 'response' } as const;
    if (this.reason) return void this.#fail(out, DISCONNECTED);
    // The application vouches for a long message.
    const isSound = message && !message.repeated && (size > VOUCHED || message.isValid);
    if (!isSound) return this.#giveUp(out, !isFree, unsent('not-json-rpc', 'not a JSON-RPC message'));
    const natural = this.#orderOf(message);
    const request = kind === 'request' && id !== null ? idKey(id) : null;
    const edited = this.#pass(this.#role, message);
    const order = isFree && natural !== 'barrier' ? 'free' : natural;
    const sent: Outgoing = edited === null ? out : { ...out, text: edited, size: utf8Length(edited) };
    const tooDeep = scanner.deepest > this.#maxDepth ? unsent('too-deep', `message is nested ${scanner.deepest} levels deep, the limit is ${this.#maxDepth}`) : null;
    const error = tooDeep ?? this.#sender.push(sent, order, request, cancelled(message));
    if (error) this.#refuse(sent, order, error);
  }

  /** Ends the connection. Nothing more is sent or delivered. The first reason stays. */
  close(reason: CloseReason): void {
    if (this.reason) return;
    this.reason = reason;
    this.#toTell = { link: true, application: true };
    this.#count(reason.name);
    this.#receiver.clear();
    this.#arrivals.clear();
    this.#progress.clear();
    this.#parked = [];
    this.#retryAt = null;
    for (const out of this.#sender.abandon()) this.#fail(out, DISCONNECTED);
  }

  /** The next frame for the link, or the reason to close it. */
  pollTransmit(now: number): { frame: string } | { close: CloseReason } | null {
    if (!this.reason && !this.#sender.canGoOn(this.peer)) this.close(closing('cap-shrank', 4413, "the frame cap shrank below a started group's segments"));
    while (!this.reason) {
      const couldRead = this.#sender.mayRead;
      const polled = this.#sender.poll(this.peer, this.#agreement.isWaiting, now);
      const rate = this.#sender.pace.news();
      if (rate) this.#agreement.noteRate(rate);
      if (!couldRead && this.#sender.mayRead) this.#retry(now);
      if (!polled) return this.#tellLink();
      if ('error' in polled) {
        this.#refuse(polled.out, polled.order, polled.error);
        continue;
      }
      const { frame, done, out } = polled;
      if (out.ticket !== null) {
        const { ticket: id, size: total } = out;
        if (done >= total) this.#push({ type: 'sent', ticket: id }, `out${id}`);
        else this.#progress.set(`out${id}`, { type: 'progress', direction: 'out', id, done, total });
      }
      return { frame };
    }
    return this.#tellLink();
  }

  /** The next event: those that happened, in order, then progress, then the close. */
  pollEvent(): ConnectionEvent | null {
    const next = this.#events.shift();
    if (next) {
      next.grant?.complete();
      if (next.event.type === 'message') this.#arrivals.delivered(next.event.ordinal, next.event.seq);
      return next.event;
    }
    for (const [key, progress] of this.#progress) {
      this.#progress.delete(key);
      return progress;
    }
    if (!this.reason || !this.#toTell.application) return null;
    this.#toTell.application = false;
    return { type: 'closed', reason: this.reason };
  }

  /** When `timeout` has to be called. */
  pollTimeout(): number | null {
    if (this.reason) return null;
    if (this.#receiver.isEvicted) return 0;
    const due = this.#receiver.due;
    return due === null || this.#retryAt === null ? (due ?? this.#retryAt) : Math.min(due, this.#retryAt);
  }

  /** Takes parked frames, as far as there is memory for them and the peer takes our answers. */
  #retry(now: number): void {
    while (this.#sender.mayRead && this.#parked.length) {
      const [frame] = this.#parked;
      if (!this.#take(frame, now)) break;
      if (this.reason) return;
      this.#parked.shift();
      this.#parkedBytes -= frame.length + 64;
    }
    this.#retryAt = this.#parked.length ? now + RETRY : null;
    this.#runClock(now);
  }

  #runClock(now: number): void {
    this.#account.clock.pause(this.#paused || this.#parked.length > 0, now);
  }

  /** Takes a frame. Returns false if there is no memory for the group that it begins. */
  #take(frame: string | Uint8Array, now: number): boolean {
    try {
      const received = this.#receiver.frame(frame, this.#agreement.invitation, now, () => this.#arrivals.begin());
      if (!received) return false;
      const { message, grant = null, group } = received;
      if (group && !message) {
        const { ordinal: id, size: done, expected: total } = group;
        this.#progress.set(`in${id}`, { type: 'progress', direction: 'in', id, done, total });
      }
      if (message) this.#message(group?.ordinal ?? this.#arrivals.begin(), message, grant, now);
      if (message && group) release(group.bytes);
    } catch (reason) {
      if (!(reason instanceof Reason)) throw reason;
      this.close(reason);
    }
    return true;
  }

  /** A message has arrived whole. */
  #message(ordinal: number, message: Message, given: Grant | null, now: number): void {
    const { kind, method } = message;
    const from = this.#role === 'client' ? 'server' : 'client';
    if (kind === 'request' && !this.#peerRequests.note(message)) {
      given?.complete();
      return this.close(invalid('too-many-requests', `more than ${MAX_REQUESTS} requests wait for an answer`));
    }
    const isState = kind === 'response' ? isOrdered(this.#ownRequests.answer(message.id)) : carriesState(from, kind, method);
    const isHeldBack = from === 'server' && isState;
    const number = method === 'action' ? message.number('params.serverSeq') : null;
    const seq = typeof number === 'bigint' && number >= 0n && number < 1n << 64n ? number : null;
    const text = this.#pass(from, message) ?? message.text;
    let grant = given;
    if (!grant && this.#arrivals.mustHold(ordinal, isHeldBack)) {
      grant = this.#receiver.hold(message.size, now);
      if (!grant) return this.close(overBudget(message.size));
    }
    const finished: Finished = { ordinal, text, size: message.size, seq, isOrdered: isHeldBack, grant };
    const ready = this.#arrivals.finish(finished);
    if (typeof ready === 'number') {
      grant?.complete();
      return this.close(closing('held-too-much', 1013, `${ready} bytes wait for an unfinished group, the limit is ${this.#arrivals.maxHeldBytes}`));
    }
    for (const { ordinal: id, text, seq, grant } of ready) {
      this.#push({ type: 'message', text, ordinal: id, seq }, `in${id}`, grant);
    }
  }

  #orderOf(message: Message): Order {
    const { kind, method, id } = message;
    if (!method) return this.#peerRequests.answer(id);
    if (kind === 'request') this.#ownRequests.note(message);
    const order = orderOf(this.#role, kind, method, message.string('params.channel'));
    if (this.#role === 'server' || !mayPass(message) || this.#agreement.isWaiting) return order;
    // It may overtake others only if it fits one frame. Otherwise a later message for its channel could overtake it.
    return this.#sender.fits(message, this.peer) && !this.#sender.hasUnfinished(order) ? 'free' : order;
  }

  #pass(from: Role, message: Message): string | null {
    const edited = this.#agreement.pass(from, message);
    if (edited !== null) this.#sender.pace.recall(this.#agreement.rate);
    return edited;
  }

  /** A message that was queued cannot be sent. */
  #refuse(out: Outgoing, order: Order, error: SendError): void {
    if (out.class === 'handshake') this.#agreement.withdraw();
    this.#giveUp(out, isOrdered(order), error);
  }

  /** A message cannot be sent. If it is one that a client's state depends on, the link closes. */
  #giveUp(out: Outgoing, inOrder: boolean, error: SendError): void {
    this.#fail(out, error);
    const diverges = out.kind === 'notification' || (out.kind === 'other' && out.id === null);
    if (this.#role !== 'server' || !inOrder || !diverges) return;
    const { name, because } = error;
    this.close(closing('unsendable', /json|deep/.test(name) ? 4422 : 4413, `${out.called} cannot be sent: ${because}`));
  }

  /** A request fails here, and in place of a response the peer gets an error. */
  #fail(out: Outgoing, error: SendError): void {
    const { ticket, kind, id, text } = out;
    this.#count(error.name);
    if (ticket === null) return;
    const answer = id === null ? null : errorResponse(id, out.size, error);
    const reply = kind === 'request' ? answer : null;
    this.#push({ type: 'failed', ticket, error, reply, text }, `out${ticket}`);
    if (answer === null || reply !== null || this.reason) return;
    // The peer may have chosen an id so long that no answer fits a frame.
    const instead: Outgoing = { ...out, ticket: null, text: answer, size: utf8Length(answer) };
    if (this.#sender.fits(instead, this.peer)) this.#sender.answers.push(instead);
    else this.#count('answer-too-large');
  }

  #tellLink(): { close: CloseReason } | null {
    if (!this.reason || !this.#toTell.link) return null;
    this.#toTell.link = false;
    return { close: this.reason };
  }

  /** Adds an event that ends a message, whose progress is dropped. */
  #push(event: Exclude<ConnectionEvent, { type: 'closed' }>, ends: string, grant: Grant | null = null): void {
    this.#progress.delete(ends);
    this.#events.push({ event, grant });
  }

  #count(name: string): void {
    this.counters.set(name, (this.counters.get(name) ?? 0) + 1);
  }
}

/** What a message is called in errors: by the type of its action, or by its method, if that looks like a name. */
function nameOf(message: Message): string {
  const isName = (name: string): boolean => /^[\w/$.-]{1,64}$/.test(name);
  const type = message.string('params.action.type') ?? '';
  if (isName(type)) return `the action ${type}`;
  return isName(message.method) && !/^(action|dispatchAction)$/.test(message.method) ? message.method : 'an action';
}
