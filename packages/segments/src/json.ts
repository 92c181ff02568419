// JSON without trees: an iterative check that can stop and go on at any byte, and where the few values lie that we act on.

import { decode } from './bytes.js';

/** A value that was looked for: offsets from the first byte of the text, quotes and brackets included. */
export interface Found {
  start: number;
  end: number;
}

/** The members that are looked for, by their keys from the root on, and those on the way to them. */
const WANTED = new Set(
  (
    'jsonrpc method id params result error ' +
    'params.groupId params.index params.total params.data params.channel params.serverSeq params.requestId params.id ' +
    'params.action params.action.type params.clientId params.protocolVersions result.protocolVersion ' +
    'params.capabilities params.capabilities.chunking result.capabilities result.capabilities.chunking'
  ).split(' '),
);
/** How deep objects with such members are. */
const WANTED_DEPTH = 4;
/** Keys that are written longer than this are not looked for. */
const LONGEST_KEY = 250;

// What is expected next. Each state is a row of `NEXT`.
const VALUE = 1;
/** After `[`: a value, or the end. */
const ELEMENT = 2;
/** After `{`: a key, or the end. */
const MEMBER = 3;
/** After a comma in an object. */
const KEY = 4;
const COLON = 5;
const AFTER_ELEMENT = 6;
const AFTER_MEMBER = 7;
const DONE = 8;
// The states in which a number may end.
const ZERO = 9;
const DIGITS = 10;
const FRACTION = 11;
const EXPONENT = 12;
const MINUS = 13;
const POINT = 14;
const E = 15;
const SIGN = 16;
/** Followed by `ESCAPE` and four states for the digits of `\u`. */
const TEXT = 17;
/** The same six states for a key. */
const KEY_TEXT = 23;
/** A state for each letter of `true`, `false` and `null` but the first. */
const WORDS = 29;

const BACKSLASH = 92;

// What is done beside the step to the next state.
/** A value or a key begins. */
const BEGINS = 64;
/** A value or a key ends after this byte. */
const ENDS = 128;
/** An array or object ends. */
const CLOSES = ENDS + 1;

/** What comes after each byte in each state; 0 if it is not allowed. */
const NEXT = new Uint8Array(40 << 8);
const rule = (states: number[], bytes: string, next: number): void => {
  for (const state of states) for (const byte of bytes) NEXT[(state << 8) | byte.charCodeAt(0)] = next;
};
const NON_ZERO = '123456789';
const NUMERALS = `0${NON_ZERO}`;
for (let state = VALUE; state <= DONE; state++) rule([state], ' \n\r\t', state);
const BEGINNINGS = [VALUE, ELEMENT];
rule(BEGINNINGS, '"', BEGINS + TEXT);
rule(BEGINNINGS, '{', BEGINS + MEMBER);
rule(BEGINNINGS, '[', BEGINS + ELEMENT);
rule(BEGINNINGS, '-', BEGINS + MINUS);
rule(BEGINNINGS, '0', BEGINS + ZERO);
rule(BEGINNINGS, NON_ZERO, BEGINS + DIGITS);
let letter = WORDS;
for (const word of ['true', 'false', 'null']) {
  rule(BEGINNINGS, word[0], BEGINS + letter);
  for (const next of word.slice(1, -1)) rule([letter], next, ++letter);
  rule([letter++], word.slice(-1), ENDS);
}
rule([ELEMENT, AFTER_ELEMENT], ']', CLOSES);
rule([MEMBER, AFTER_MEMBER], '}', CLOSES);
rule([MEMBER, KEY], '"', BEGINS + KEY_TEXT);
rule([COLON], ':', VALUE);
rule([AFTER_ELEMENT], ',', VALUE);
rule([AFTER_MEMBER], ',', KEY);
for (const text of [TEXT, KEY_TEXT]) {
  NEXT.fill(text, (text << 8) + 32, (text << 8) + 256);
  rule([text], '"', ENDS + (text === TEXT ? 0 : COLON));
  rule([text], '\\', text + 1);
  rule([text + 1], '"\\/bfnrt', text);
  rule([text + 1], 'u', text + 2);
  for (let digit = 2; digit < 6; digit++) rule([text + digit], `${NUMERALS}abcdefABCDEF`, digit < 5 ? text + digit + 1 : text);
}
rule([MINUS], '0', ZERO);
rule([MINUS, DIGITS], NON_ZERO, DIGITS);
rule([DIGITS], '0', DIGITS);
rule([ZERO, DIGITS], '.', POINT);
rule([POINT, FRACTION], NUMERALS, FRACTION);
rule([ZERO, DIGITS, FRACTION], 'eE', E);
rule([E], '+-', SIGN);
rule([E, SIGN, EXPONENT], NUMERALS, EXPONENT);

/** The bytes that may follow a backslash, but for `u`. */
const SHORT_ESCAPES = NEXT.slice((TEXT + 1) << 8, (TEXT + 2) << 8).map((next) => (next === TEXT ? 1 : 0));

/**
 * Goes over the plain part of a string and over short escapes, up to a byte that needs a second look, or to less than four bytes before
 * the end. Four bytes are looked at together, because most of a large message is such.
 */
function passText(bytes: Uint8Array, view: DataView, from: number, length: number): number {
  let at = from;
  for (;;) {
    for (; at < length - 3; at += 4) {
      const four = view.getInt32(at, true);
      const quote = four ^ 0x22222222;
      const backslash = four ^ 0x5c5c5c5c;
      // The lowest bit that is set here belongs to the first byte that is below 32, a quote or a backslash.
      const ends =
        (((four - 0x20202020) & ~four) | ((quote - 0x01010101) & ~quote) | ((backslash - 0x01010101) & ~backslash)) & 0x80808080;
      if (ends) {
        at += (31 - Math.clz32(ends & -ends)) >> 3;
        break;
      }
    }
    if (at >= length - 3 || bytes[at] !== BACKSLASH || !SHORT_ESCAPES[bytes[at + 1]]) return at;
    at += 2;
  }
}

/** What is expected after a value at this depth. */
function afterValue(nest: Uint8Array, depth: number): number {
  const level = depth - 1;
  return depth ? AFTER_ELEMENT + ((nest[level >> 3] >> (level & 7)) & 1) : DONE;
}

const isDigit = (byte: number): boolean => byte >= 48 && byte <= 57;
const mayEnd = (state: number): boolean => state >= ZERO && state <= EXPONENT;

/**
 * Checks that bytes are exactly one JSON value (RFC 8259), in any number of pieces. Whether they are UTF-8 is not its affair.
 *
 * What it holds is a bit for each array or object that is open.
 */
export class Scanner {
  /** The first value of each member that was looked for; under an empty key, the whole text. */
  readonly found = new Map<string, Found>();
  /** Members that came more than once. */
  readonly repeated = new Set<string>();
  /** What is wrong, as a sentence, and at which byte. */
  fault = '';
  isTooDeep = false;
  offset = 0;
  /** How deep it was nested at most. */
  deepest = 0;

  #state = VALUE;
  #depth = 0;
  /** A bit for each level: whether it is an object. */
  #nest = new Uint8Array(8);
  /** For the first levels, the member that we are in, if it is looked for. */
  #live: (string | null)[] = [''];
  #keyAt = 0;

  constructor(readonly maxDepth = Infinity) {}

  /** Checks the next piece: `bytes` is the text so far, of `length` bytes. Returns false if it is not JSON. */
  feed(bytes: Uint8Array, length: number): boolean {
    const view = new DataView(bytes.buffer, bytes.byteOffset, length);
    let at = this.offset;
    let state = this.#state;
    let depth = this.#depth;
    let nest = this.#nest;
    let after = afterValue(nest, depth);
    if (this.fault) return false;
    while (at < length) {
      if (state === TEXT) {
        at = passText(bytes, view, at, length);
        if (at === length) break;
      }
      const next = NEXT[(state << 8) | bytes[at]];
      if (next >= ENDS) {
        if (next === ENDS + COLON) {
          state = COLON;
          if (depth < WANTED_DEPTH && this.#live[depth - 1] !== null) this.#endKey(bytes.subarray(this.#keyAt, at + 1), depth);
        } else {
          if (next === CLOSES) {
            depth--;
            after = afterValue(nest, depth);
          }
          state = after;
          if (depth < WANTED_DEPTH) this.#end(at + 1, depth);
        }
      } else if (next >= BEGINS) {
        state = next - BEGINS;
        if (state === KEY_TEXT) this.#keyAt = at;
        else {
          if (depth < WANTED_DEPTH) this.#begin(at, depth);
          if (state <= MEMBER) {
            if (depth >= this.maxDepth) {
              this.isTooDeep = true;
              return this.#fail('too deep', at);
            }
            if (depth >> 3 >= nest.length) {
              nest = new Uint8Array(depth >> 2);
              nest.set(this.#nest);
              this.#nest = nest;
            }
            const bit = 1 << (depth & 7);
            if (state === MEMBER) nest[depth >> 3] |= bit;
            else nest[depth >> 3] &= ~bit;
            if (++depth > this.deepest) this.deepest = depth;
            if (depth < WANTED_DEPTH) this.#live[depth] = null;
            after = afterValue(nest, depth);
          }
        }
      } else if (next) state = next;
      else if (mayEnd(state) && !(state === ZERO && isDigit(bytes[at]))) {
        state = after;
        if (depth < WANTED_DEPTH) this.#end(at, depth);
        continue;
      } else return this.#fail(state === DONE && NEXT[(VALUE << 8) | bytes[at]] ? 'a second JSON value' : 'not JSON', at);
      at++;
    }
    this.#state = state;
    this.#depth = depth;
    this.offset = at;
    return true;
  }

  /** Whether exactly one value came. */
  finish(): boolean {
    if (this.fault) return false;
    const isDone = this.#state === DONE || (!this.#depth && mayEnd(this.#state));
    return isDone || this.#fail('the JSON text ends too early', this.offset);
  }

  #fail(fault: string, at: number): false {
    this.fault = fault;
    this.offset = at;
    return false;
  }

  #begin(start: number, depth: number): void {
    const member = this.#live[depth];
    if (member == null) return;
    if (this.found.has(member)) this.repeated.add(member);
    else this.found.set(member, { start, end: 0 });
  }

  #end(end: number, depth: number): void {
    const member = this.#live[depth];
    const found = member == null ? null : this.found.get(member);
    if (found) found.end ||= end;
  }

  #endKey(key: Uint8Array, depth: number): void {
    const parent = this.#live[depth - 1];
    this.#live[depth] = null;
    if (key.length > LONGEST_KEY) return;
    // Bytes that are no UTF-8 are found out later.
    const name = String(JSON.parse(decode(key) ?? 'null'));
    const path = parent ? `${parent}.${name}` : name;
    if (WANTED.has(path) && !name.includes('.')) this.#live[depth] = path;
  }
}

/** A string with its quotes; `null` if it is none, or has half of a surrogate pair. */
export function readString(raw: string): string | null {
  if (raw[0] !== '"') return null;
  try {
    const text = JSON.parse(raw) as string;
    return /\p{Cs}/u.test(text) ? null : text;
  } catch {
    return null;
  }
}

/** A number by its value and not by its spelling: an integer, `'fraction'`, `'huge'`, `'huge_negative'`; `null` if it is none. */
export function readNumber(raw: string): bigint | 'fraction' | 'huge' | 'huge_negative' | null {
  const parts = /^(-?)(0|[1-9]\d*)(?:\.(\d+))?(?:[eE]([+-]?\d+))?$/.exec(raw);
  if (!parts) return null;
  const [, sign, whole, fraction = '', exponent = '0'] = parts;
  const digits = (whole + fraction).replace(/^0+/, '');
  let end = digits.length;
  while (end > 0 && digits[end - 1] === '0') end--;
  const significant = digits.slice(0, end);
  if (!significant) return 0n;
  const power = Number(exponent) - fraction.length + digits.length - significant.length;
  if (power < 0) return 'fraction';
  if (significant.length + power > 38) return sign ? 'huge_negative' : 'huge';
  return BigInt(sign + significant + '0'.repeat(power));
}
