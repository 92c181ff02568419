// The receiving half: a table of unfinished groups, the rules for segments, and what happens to groups that take too long.

import type { Limits } from './api.js';
import type { Account, Grant } from './budget.js';
import { allocate, decode, decodeBase64, decodedLength, encode, release, unfinished } from './bytes.js';
import type { Invitation } from './handshake.js';
import { type readNumber, Scanner } from './json.js';
import { GROUP_COST, groupCost, timeFor } from './limits.js';
import { jsonFault, Message, scan } from './message.js';
import { invalid, overBudget, Reason, violation } from './reasons.js';

export const SEGMENT = 'ahp/messageSegment';

/** A segment as it arrived. Its group id was checked; its numbers and data were not yet. */
interface Segment {
  groupId: string;
  index: ReturnType<typeof readNumber>;
  total: ReturnType<typeof readNumber>;
  data: string | null;
}

/** What a frame turned out to be: a whole message, or a segment, and if it is the last one the message of its group. */
export interface Received {
  message?: Message | null;
  grant?: Grant;
  /** The group of a segment. */
  group?: Group;
}

/** A message of which a part has arrived. */
export interface Group {
  readonly ordinal: number;
  readonly total: number;
  readonly firstLength: number;
  readonly started: number;
  readonly grant: Grant;
  readonly scanner: Scanner;
  next: number;
  /** Grows with what has arrived, never with what was declared. */
  bytes: Uint8Array;
  size: number;
  /** How long the message will be, as far as that can be told. */
  expected: number;
}

/** The reassembly table of one connection. */
export class Receiver {
  readonly #groups = new Map<string, Group>();

  constructor(
    readonly limits: Limits,
    readonly account: Account,
  ) {}

  /**
   * Takes a frame; throws a `Reason` if it breaks a rule. `null` if the budget has no memory for the group that it begins: then it
   * has to be passed in again later. `begin` gives an ordinal to a group.
   */
  frame(frame: string | Uint8Array, invitation: Invitation, now: number, begin: () => number): Received | null {
    const { maxFrameBytes, maxMessageBytes, maxDepth } = this.limits;
    const limit = invitation === 'segments' ? maxFrameBytes : maxMessageBytes;
    const isText = typeof frame === 'string';
    let bytes = isText ? null : frame;
    if (frame.length <= limit) {
      const text = isText ? frame : textOf(frame);
      const segment = invitation === 'none' ? null : recognise(text);
      if (segment) return this.#segment(segment, now, begin);
      bytes ??= encode(text);
      if (bytes.length <= limit) {
        const scanner = scan(bytes, maxDepth);
        if (scanner.isTooDeep) throw tooDeep(maxDepth);
        if (scanner.fault) throw notJson(scanner);
        const message = new Message(text, bytes.length, scanner, bytes);
        if (message.sort('') !== '{') throw invalid('frame-not-object', NO_BATCH, NO_BATCH);
        checkKeys(message.repeated);
        if (message.method !== SEGMENT) return { message };
        if (invitation === 'none') fail('uninvited-segment', 'a segment came, but chunking was never advertised');
        return this.#segment(parse(message), now, begin);
      }
    }
    const size = bytes ? bytes.length : encode(frame as string).length;
    throw new Reason('frame-too-large', 1009, `frame of ${size} bytes is over the limit of ${limit}`);
  }

  #segment(segment: Segment, now: number, begin: () => number): Received | null {
    const { groupId, data } = segment;
    const { maxMessageBytes, maxGroups, maxDepth } = this.limits;
    const { account } = this;
    let group = this.#groups.get(groupId);
    if (group && segment.index === 0n) fail('group-in-flight', 'a group begins twice');
    const [index, total] = numbers(segment);
    if (data === null) return fail('data-missing', 'data is missing');
    const length = decodedLength(data);
    if (!group) {
      if (index) fail('group-unknown', `segment ${index} of a group that is not open`);
      const { size: open } = this.#groups;
      if (open >= maxGroups) fail('too-many-groups', `more than ${maxGroups} groups are open`);
      // What the group declares is reserved.
      const declared = Math.min(length * total, maxMessageBytes);
      const cost = groupCost(declared);
      const grant = account.reserve(cost, { started: now, timeout: timeFor(this.limits, declared) });
      if (!grant) {
        if (open || !account.could(cost)) throw overBudget(cost);
        return null;
      }
      group = {
        ordinal: begin(),
        total,
        firstLength: length,
        started: account.clock.read(now),
        grant,
        scanner: new Scanner(maxDepth),
        next: 0,
        bytes: allocate(length, length),
        size: 0,
        expected: 0,
      };
      this.#groups.set(groupId, group);
    }
    const { grant, scanner, firstLength } = group;
    if (total !== group.total) fail('total-changed', `total ${total} where the group has ${group.total}`);
    if (index !== group.next) fail('index-out-of-order', `index ${index} where ${group.next} was due`);
    const size = group.size + length;
    if (size > maxMessageBytes) fail('message-too-large', `message of at least ${size} bytes is over the limit of ${maxMessageBytes}`);
    // What the scanner holds for each open array and object is a bit.
    const cost = size + (scanner.deepest >> 3) + GROUP_COST;
    if (!grant.grow(cost, now)) throw overBudget(cost);
    const rest = (total - ++group.next) * firstLength;
    if (size > group.bytes.length) {
      const grown = allocate(size, Math.max(size, Math.min(size * 2, size + rest, maxMessageBytes)));
      grown.set(group.bytes.subarray(0, group.size));
      release(group.bytes);
      group.bytes = grown;
    }
    if (!decodeBase64(data, group.bytes, group.size)) fail('data-not-base64', 'data is not canonical base64');
    group.size = size;
    group.expected = Math.min(size + rest, maxMessageBytes);
    grant.note(size, now);
    const isJson = scanner.feed(group.bytes, size);
    if (isJson && group.next < total) return { group };
    this.#groups.delete(groupId);
    try {
      const message = finished(group, isJson);
      grant.complete(size + GROUP_COST);
      return { message, grant, group };
    } catch (reason) {
      grant.complete();
      throw reason;
    }
  }

  /** Reserves memory for a whole message that has to wait. */
  hold(size: number, now: number): Grant | null {
    const bytes = size + GROUP_COST;
    const grant = this.account.reserve(bytes, { started: now, timeout: timeFor(this.limits, bytes) });
    grant?.complete(bytes);
    return grant;
  }

  /** Drops and returns groups that took longer than allowed. */
  sweep(now: number): Group[] {
    const reading = this.account.clock.read(now);
    const old = [...this.#groups].filter(([, { started }]) => reading - started >= this.#sweepAfter);
    for (const [id, { grant }] of old) {
      this.#groups.delete(id);
      grant.complete();
    }
    return old.map(([, group]) => group);
  }

  /** Whether the budget has evicted a group. */
  get isEvicted(): boolean {
    return [...this.#groups.values()].some(({ grant }) => grant.evicted);
  }

  /** When the oldest group will be too old, if we go on reading until then. */
  get due(): number | null {
    const [oldest] = this.#groups.values();
    return oldest ? this.account.clock.when(oldest.started + this.#sweepAfter) : null;
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

/** The message of a group, if it is exactly one JSON-RPC request, response or notification. */
function finished(group: Group, isJson: boolean): Message {
  const { scanner, size } = group;
  const bytes = group.bytes.subarray(0, size);
  const isWhole = isJson && scanner.finish();
  // What is not JSON may still end inside of a character.
  const text = decode(isJson ? bytes : bytes.subarray(0, size - unfinished(bytes)));
  if (text === null) return fail('message-not-utf8', 'reassembled message is not UTF-8');
  if (scanner.isTooDeep) throw tooDeep(scanner.maxDepth);
  if (!isWhole) fail('message-not-json', `reassembled message is not JSON: ${jsonFault(scanner)}`);
  const message = new Message(text, size, scanner, bytes);
  if (message.sort('') === '{') checkKeys(message.repeated);
  if (!message.isValid) throw invalid('message-not-json-rpc', NOT_RPC, NOT_RPC);
  if (message.method === SEGMENT) fail('nested-segment', 'reassembled message is a segment');
  return message;
}

const NOT_RPC = 'not a JSON-RPC 2.0 request, response or notification';
const NO_BATCH = 'a message is one JSON object; batches are not accepted';

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
  if (message.sort('id')) fail('segment-with-id', 'segment with an id');
  if (message.string('jsonrpc') !== '2.0') fail('segment-not-json-rpc', 'segment without jsonrpc "2.0"');
  if (message.sort('params') !== '{') fail('segment-params-not-object', 'segment params are not an object');
  checkKeys(message.firstRepeated('params.groupId', 'params.index', 'params.total', 'params.data')?.slice(7));
  const groupId = message.string('params.groupId');
  if (groupId === null) return fail('group-id-missing', 'groupId is missing');
  if (!groupId) fail('group-id-empty', 'groupId is empty');
  const { length } = encode(groupId);
  if (length > 128) fail('group-id-too-long', `groupId of ${length} bytes is over 128`);
  const [index, total] = ['params.index', 'params.total'].map((member) => message.number(member));
  return { groupId, index, total, data: message.string('params.data') };
}

/** The index and the total, after checking that both are in range, and the index is below the total. */
function numbers({ index, total }: Segment): [index: number, total: number] {
  if (typeof index !== 'bigint' || index < 0n || index >= 1n << 31n) {
    return fail('index-invalid', 'index is not a non-negative integer below 2^31');
  }
  if (total === null || total === 'fraction') return fail('total-invalid', 'total is not an integer');
  if (typeof total !== 'bigint' || total < 1n || total >= 65536n) return fail('total-out-of-range', 'total is not from 1 to 65,535');
  if (index >= total) fail('index-beyond-total', `index ${index} is not below total ${total}`);
  return [Number(index), Number(total)];
}

/** The peer broke a rule about segments. */
function fail(name: string, because: string): never {
  throw violation(name, because);
}

function checkKeys(twice: string | undefined): void {
  if (twice) throw invalid('duplicate-key', `key "${twice}" comes twice`);
}

function tooDeep(limit: number): Reason {
  const because = `nested deeper than ${limit} levels (max_nesting)`;
  return invalid('too-deep', because, because);
}

const notJson = (scanner: Scanner): Reason => invalid('frame-not-json', `frame is not JSON: ${jsonFault(scanner)}`);

/** The text of a binary frame. */
function textOf(frame: Uint8Array): string {
  const text = decode(frame);
  if (text !== null) return text;
  // What ends inside of a character is not UTF-8, but more may be wrong before that.
  const rest = unfinished(frame);
  const scanner = rest && decode(frame.subarray(0, frame.length - rest)) !== null ? scan(frame) : null;
  throw scanner?.fault ? notJson(scanner) : invalid('frame-not-utf8', 'frame is not UTF-8');
}
