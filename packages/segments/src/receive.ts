// The receiving half: a table of unfinished groups, the rules for segments, and what happens to groups that take too long.

import type { CloseReason, Limits } from './api.js';
import type { Account, Grant } from './budget.js';
import { allocate, decode, decodeBase64, decodedLength, unfinished, utf8Length } from './bytes.js';
import type { Invitation } from './handshake.js';
import { Kind, type readNumber, Scanner } from './json.js';
import { GROUP_COST, groupCost, timeFor } from './limits.js';
import { jsonFault, Message, scan } from './message.js';
import { broken, closed, violation } from './reasons.js';

export const SEGMENT = 'ahp/messageSegment';

/** A reason to close the link, on its way to whoever closes it. */
export class Closing {
  constructor(readonly reason: CloseReason) {}
}

function fail(name: string, because: string): never {
  throw new Closing(violation(name, because));
}

/** A segment as it arrived. Its group id was checked; its numbers and data were not yet. */
interface Segment {
  groupId: string;
  index: ReturnType<typeof readNumber>;
  total: ReturnType<typeof readNumber>;
  data: string | null;
}

/** What a frame turned out to be: a whole message, or a segment, and if it is the last one the message of its group. */
export interface Received {
  message: Message | null;
  grant: Grant | null;
  segment: { ordinal: number; received: number; expected: number } | null;
}

/** The reassembly table of one connection. */
export class Receiver {
  readonly #groups = new Map<string, Group>();

  constructor(
    readonly limits: Limits,
    readonly account: Account,
  ) {}

  /**
   * Takes a frame; throws a `Closing` if it breaks a rule. `null` if the budget has no memory for the group that it begins: then it
   * has to be passed in again later. `begin` gives an ordinal to a group.
   */
  frame(frame: string | Uint8Array, invitation: Invitation, now: number, begin: () => number): Received | null {
    const { maxFrameBytes, maxMessageBytes, maxDepth } = this.limits;
    const limit = invitation === 'segments' ? maxFrameBytes : maxMessageBytes;
    const checkSize = (size: number): void => {
      if (size > limit) throw new Closing(broken.frameTooLarge(size, limit));
    };
    // A text has at least as many bytes as characters.
    if (frame.length > limit) checkSize(typeof frame === 'string' ? utf8Length(frame) : frame.length);
    const text = typeof frame === 'string' ? frame : textOf(frame);
    const segment = invitation === 'none' ? null : recognise(text);
    if (segment) return this.#segment(segment, now, begin);
    const { scanner, size } = scan(text, maxDepth);
    checkSize(size);
    if (scanner.fault === 'too_deep') throw new Closing(broken.tooDeep(maxDepth));
    if (scanner.fault) throw new Closing(broken.frameNotJson(jsonFault(scanner)));
    if (scanner.root !== Kind.Object) throw new Closing(broken.frameNotObject);
    const message = new Message(text, size, scanner);
    checkKeys(message.repeated());
    if (message.method !== SEGMENT) return { message, grant: null, segment: null };
    if (invitation === 'none') fail('uninvited-segment', 'a segment came, but chunking was never advertised');
    return this.#segment(parse(message), now, begin);
  }

  #segment(segment: Segment, now: number, begin: () => number): Received | null {
    const { groupId, data } = segment;
    const { maxMessageBytes } = this.limits;
    let group = this.#groups.get(groupId);
    if (group && segment.index === 0n) fail('group-in-flight', 'a group begins twice');
    const [index, total] = numbers(segment);
    if (data === null) fail('data-missing', 'data is missing');
    const length = decodedLength(data);
    if (!group) {
      const grant = this.#admit(index, total, length, now);
      if (!grant) return null;
      group = new Group(begin(), total, length, this.account.clock.read(now), grant, this.limits.maxDepth);
      this.#groups.set(groupId, group);
    }
    group.append(index, total, data, length, maxMessageBytes, now);
    const { ordinal, size } = group;
    const expected = Math.min(size + restLength(group), maxMessageBytes);
    const isLast = group.next === total;
    if (isLast) this.#groups.delete(groupId);
    try {
      const message = isLast ? group.finish() : null;
      return { message, grant: isLast ? group.grant : null, segment: { ordinal, received: size, expected } };
    } catch (closing) {
      group.grant.complete();
      throw closing;
    }
  }

  /** Begins a group, and reserves what it declares. */
  #admit(index: number, total: number, length: number, now: number): Grant | null {
    if (index !== 0) fail('group-unknown', `segment ${index} of a group that is not open`);
    const { maxGroups, maxMessageBytes } = this.limits;
    if (this.#groups.size >= maxGroups) fail('too-many-groups', `more than ${maxGroups} groups are open`);
    const declared = Math.min(length * total, maxMessageBytes);
    const cost = groupCost(declared);
    const grant = this.account.reserve(cost, { started: now, timeout: timeFor(this.limits, declared) });
    if (!grant && (this.#groups.size > 0 || !this.account.could(cost))) throw new Closing(closed.overBudget(cost));
    return grant;
  }

  /** Reserves memory for a whole message that has to wait. */
  hold(size: number, now: number): Grant | null {
    const bytes = size + GROUP_COST;
    const grant = this.account.reserve(bytes, { started: now, timeout: timeFor(this.limits, bytes) });
    grant?.complete(bytes);
    return grant;
  }

  /** Drops groups that took longer than allowed. Returns the ordinal of each, and how much had arrived. */
  sweep(now: number): [ordinal: number, received: number][] {
    const swept: [number, number][] = [];
    const reading = this.account.clock.read(now);
    for (const [id, group] of this.#groups) {
      if (reading - group.started < this.#sweepAfter) continue;
      this.#groups.delete(id);
      group.grant.complete();
      swept.push([group.ordinal, group.size]);
    }
    return swept;
  }

  /** Whether the budget has evicted a group. */
  get isEvicted(): boolean {
    for (const { grant } of this.#groups.values()) if (grant.evicted) return true;
    return false;
  }

  /** When the oldest group will be too old, if we go on reading until then. */
  get due(): number | null {
    const oldest = Math.min(...[...this.#groups.values()].map(({ started }) => started));
    return oldest === Infinity ? null : this.account.clock.when(oldest + this.#sweepAfter);
  }

  /** Drops all groups. */
  clear(): void {
    for (const { grant } of this.#groups.values()) grant.complete();
    this.#groups.clear();
  }

  get #sweepAfter(): number {
    return this.limits.groupTimeoutMs + this.limits.graceMs;
  }
}

/** A message of which a part has arrived. */
class Group {
  size = 0;
  next = 0;
  readonly #scanner: Scanner;
  /** Grows with what has arrived, never with what was declared. */
  #bytes = allocate(0);

  constructor(
    readonly ordinal: number,
    readonly total: number,
    readonly firstLength: number,
    readonly started: number,
    readonly grant: Grant,
    maxDepth: number,
  ) {
    this.#scanner = new Scanner(maxDepth);
  }

  append(index: number, total: number, data: string, length: number, limit: number, now: number): void {
    if (total !== this.total) fail('total-changed', `total ${total} where the group has ${this.total}`);
    if (index !== this.next) fail('index-out-of-order', `index ${index} where ${this.next} was due`);
    this.next++;
    const size = this.size + length;
    if (size > limit) throw new Closing(broken.messageTooLarge(size, limit));
    // What the scanner holds for each open array and object is a bit.
    const cost = size + (this.#scanner.deepest >> 3) + GROUP_COST;
    if (!this.grant.grow(cost, now)) throw new Closing(closed.overBudget(cost));
    this.#reserve(size, limit);
    if (!decodeBase64(data, this.#bytes, this.size)) fail('data-not-base64', 'data is not canonical base64');
    const isJson = this.#scanner.feed(this.#bytes.subarray(this.size, size));
    this.size = size;
    this.grant.note(size, now);
    if (!isJson) throw this.#notJson();
  }

  /** The message, if it is exactly one JSON-RPC request, response or notification. */
  finish(): Message {
    const bytes = this.#bytes.subarray(0, this.size);
    const text = decode(bytes);
    if (text === null) throw new Closing(broken.messageNotUtf8);
    if (!this.#scanner.finish()) throw this.#notJson();
    if (this.#scanner.root !== Kind.Object) throw new Closing(broken.messageNotRpc);
    const message = new Message(text, this.size, this.#scanner, bytes);
    checkKeys(message.repeated());
    if (!message.isValid()) throw new Closing(broken.messageNotRpc);
    if (message.method === SEGMENT) fail('nested-segment', 'reassembled message is a segment');
    this.grant.complete(this.size + GROUP_COST);
    return message;
  }

  /** Allocates memory for `size` bytes. At most twice as many, and no more than the rest may need. */
  #reserve(size: number, limit: number): void {
    if (size <= this.#bytes.length) return;
    const rest = Math.max(0, this.total - this.next) * this.firstLength;
    const grown = allocate(Math.max(size, Math.min(size * 2, size + rest, limit)));
    grown.set(this.#bytes.subarray(0, this.size));
    this.#bytes = grown;
  }

  #notJson(): Closing {
    const { fault, maxDepth } = this.#scanner;
    const text = this.#bytes.subarray(0, this.size);
    const isUtf8 = decode(text.subarray(0, this.size - unfinished(text))) !== null;
    if (!isUtf8) return new Closing(broken.messageNotUtf8);
    return new Closing(fault === 'too_deep' ? broken.tooDeep(maxDepth) : broken.messageNotJson(jsonFault(this.#scanner)));
  }
}

const restLength = ({ firstLength, total, next }: Group): number => firstLength * (total - next);

const INTEGER = '(0|[1-9]\\d{0,9})';
// A group id of printable characters that need no escape.
const FRONT = new RegExp(
  `^{"jsonrpc":"2\\.0","method":"${SEGMENT}","params":{"groupId":"([ !#-[\\]-~]{1,128})","index":${INTEGER},"total":${INTEGER},"data":"`,
);
/** The longest front: longer numbers are not recognised, and parsed. */
const LONGEST_FRONT = 256;

/**
 * Recognises a segment that is written exactly as we write it, without reading its data: if that turns out to be base64, the frame is
 * what it seems.
 */
function recognise(frame: string): Segment | null {
  const front = FRONT.exec(frame.slice(0, LONGEST_FRONT));
  if (!front || !frame.endsWith('"}}')) return null;
  const [{ length }, groupId, index, total] = front;
  const data = frame.slice(length, -3);
  if (data.includes('"') || data.includes('\\')) return null;
  return { groupId, index: BigInt(index), total: BigInt(total), data };
}

/** Reads a segment in any legal spelling. */
function parse(message: Message): Segment {
  const { found, repeated } = message.scan;
  if (found.has('id')) fail('segment-with-id', 'segment with an id');
  if (message.string('jsonrpc') !== '2.0') fail('segment-not-json-rpc', 'segment without jsonrpc "2.0"');
  if (found.get('params')?.kind !== Kind.Object) fail('segment-params-not-object', 'segment params are not an object');
  checkKeys(['groupId', 'index', 'total', 'data'].find((key) => repeated.has(`params.${key}`)));
  const groupId = message.string('params.groupId');
  if (groupId === null) return fail('group-id-missing', 'groupId is missing');
  if (!groupId) fail('group-id-empty', 'groupId is empty');
  const length = utf8Length(groupId);
  if (length > 128) fail('group-id-too-long', `groupId of ${length} bytes is over 128`);
  const index = message.number('params.index');
  const total = message.number('params.total');
  return { groupId, index, total, data: message.string('params.data') };
}

/** The index and the total, after checking that both are in range, and the index is below the total. */
function numbers({ index, total }: Segment): [index: number, total: number] {
  if (typeof index !== 'bigint' || index < 0n || index >= 1n << 31n) {
    fail('index-invalid', 'index is not a non-negative integer below 2^31');
  }
  if (total === null || total === 'fraction') return fail('total-invalid', 'total is not an integer');
  if (typeof total !== 'bigint' || total < 1n || total >= 65536n) {
    fail('total-out-of-range', 'total is not from 1 to 65,535');
  }
  if (index >= total) fail('index-beyond-total', `index ${index} is not below total ${total}`);
  return [Number(index), Number(total)];
}

function checkKeys(twice: string | undefined): void {
  if (twice !== undefined) throw new Closing(broken.duplicateKey(twice));
}

/** The text of a binary frame. */
function textOf(frame: Uint8Array): string {
  const text = decode(frame);
  if (text !== null) return text;
  // What ends inside of a character is not UTF-8, but more may be wrong before that.
  const scanner = new Scanner();
  const rest = unfinished(frame);
  if (rest && decode(frame.subarray(0, frame.length - rest)) !== null && !scanner.feed(frame)) {
    throw new Closing(broken.frameNotJson(jsonFault(scanner)));
  }
  throw new Closing(broken.frameNotUtf8);
}
