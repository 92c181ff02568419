// JSON without trees: an iterative check that can stop and go on at any byte, and where the few values lie that we act on.

/** What sort of value it is. */
export const enum Kind {
  Null,
  Boolean,
  Number,
  String,
  Array,
  Object,
}

/** A value that was looked for: offsets from the first byte of the text, quotes and brackets included. */
export interface Found {
  kind: Kind;
  start: number;
  end: number;
}

export type Fault = 'syntax' | 'too_deep' | 'second_value' | 'unfinished';

/** The members that are looked for, by their keys from the root on, and those on the way to them. */
const WANTED = new Set(
  (
    'jsonrpc method id params result error ' +
    'params.groupId params.index params.total params.data params.channel params.serverSeq params.requestId params.id ' +
    'params.action params.action.type params.clientId result.clientId params.protocolVersions result.protocolVersion ' +
    'params.capabilities params.capabilities.chunking result.capabilities result.capabilities.chunking'
  ).split(' '),
);

/** What the scanner expects next. */
const enum State {
  Value,
  /** After `[`: a value, or the end. */
  Element,
  /** After `{`: a key, or the end. */
  Member,
  /** After a comma in an object. */
  Key,
  Colon,
  /** After a value inside of an array or object. */
  Next,
  Done,
  Text,
  Escape,
  Hex,
  Word,
  Minus,
  Zero,
  Digits,
  Point,
  Fraction,
  E,
  Sign,
  Exponent,
}

/** Which bytes of a string need no second look: all but control characters, quotes and backslashes. */
const PLAIN = new Uint8Array(256).fill(1, 32);
PLAIN[34] = PLAIN[92] = 0;

/** The bytes that may follow a backslash, but for `u`. */
const SHORT_ESCAPES = new Uint8Array(256);
for (const letter of '"\\/bfnrt') SHORT_ESCAPES[letter.charCodeAt(0)] = 1;

/** Where the plain part of a string ends that begins at `at`. Four bytes at a time, because most of a large message is such. */
function plainEnd(bytes: Uint8Array, at: number): number {
  const fourth = bytes.length - 3;
  while (at < fourth && PLAIN[bytes[at]] & PLAIN[bytes[at + 1]] & PLAIN[bytes[at + 2]] & PLAIN[bytes[at + 3]]) at += 4;
  while (at < bytes.length && PLAIN[bytes[at]] === 1) at++;
  return at;
}

const isSpace = (byte: number): boolean => byte === 32 || byte === 10 || byte === 13 || byte === 9;
const isDigit = (byte: number): boolean => byte >= 48 && byte <= 57;

/**
 * Checks that bytes are exactly one JSON value (RFC 8259), in any number of pieces. Whether they are UTF-8 is not its affair.
 *
 * What it holds is a bit for each array or object that is open.
 */
export class Scanner {
  /** The first value of each member that was looked for. */
  readonly found = new Map<string, Found>();
  /** Members that came more than once. */
  readonly repeated = new Set<string>();
  /** What sort of value the whole text is. */
  root: Kind | null = null;
  /** What is wrong, and at which byte. */
  fault: Fault | null = null;
  offset = 0;
  /** How deep it was nested at most. */
  deepest = 0;

  #state = State.Value;
  #depth = 0;
  /** A bit for each level: whether it is an object. */
  #nest = new Uint8Array(8);
  /** For the first levels, the member that we are in, if it is looked for. */
  #live: (string | null)[] = ['', null, null, null];
  #inKey = false;
  /** Whether this key may be one that is looked for. */
  #keepsKey = false;
  /** The key that we are in, as far as it came in earlier pieces. */
  #key: number[] = [];
  #word = '';
  #wordAt = 0;

  constructor(readonly maxDepth = Infinity) {}

  /** Checks the next piece. Returns false if the text is not JSON. */
  feed(bytes: Uint8Array): boolean {
    if (this.fault) return false;
    const base = this.offset;
    const length = bytes.length;
    let state = this.#state;
    let at = 0;
    while (at < length) {
      const byte = bytes[at];
      switch (state) {
        case State.Text: {
          const from = at;
          at = plainEnd(bytes, at);
          // Most strings are values, of which nothing is kept.
          while (!this.#inKey && at + 1 < length && bytes[at] === 92 && SHORT_ESCAPES[bytes[at + 1]] === 1) {
            at = plainEnd(bytes, at + 2);
          }
          const next = at < length ? bytes[at] : 0;
          if (this.#keepsKey) this.#gather(bytes, from, at);
          if (at === length) break;
          if (next < 32) return this.#fail('syntax', base + at);
          at++;
          if (next === 92) state = State.Escape;
          else if (!this.#inKey) state = this.#end(base + at);
          else {
            if (this.#depth < 4) this.#endKey();
            this.#keepsKey = false;
            state = State.Colon;
          }
          break;
        }
        case State.Value:
        case State.Element:
          if (isSpace(byte)) at++;
          else if (byte === 34) {
            this.#begin(Kind.String, base + at++);
            this.#inKey = false;
            state = State.Text;
          } else if (byte === 123 || byte === 91) {
            const isObject = byte === 123;
            this.#begin(isObject ? Kind.Object : Kind.Array, base + at);
            if (this.#depth >= this.maxDepth) return this.#fail('too_deep', base + at);
            this.#push(isObject);
            at++;
            state = isObject ? State.Member : State.Element;
          } else if (byte === 93 && state === State.Element) state = this.#close(base + ++at);
          else if (byte === 45 || isDigit(byte)) {
            this.#begin(Kind.Number, base + at++);
            state = byte === 45 ? State.Minus : byte === 48 ? State.Zero : State.Digits;
          } else if (byte === 116 || byte === 102 || byte === 110) {
            this.#begin(byte === 110 ? Kind.Null : Kind.Boolean, base + at);
            this.#word = byte === 116 ? 'true' : byte === 102 ? 'false' : 'null';
            this.#wordAt = 0;
            state = State.Word;
          } else return this.#fail('syntax', base + at);
          break;
        case State.Member:
        case State.Key:
          if (byte === 34) {
            this.#inKey = true;
            this.#keepsKey = this.#depth < 4 && this.#live[this.#depth - 1] !== null;
            this.#key.length = 0;
            at++;
            state = State.Text;
          } else if (byte === 125 && state === State.Member) state = this.#close(base + ++at);
          else if (isSpace(byte)) at++;
          else return this.#fail('syntax', base + at);
          break;
        case State.Colon:
          if (byte === 58) state = State.Value;
          else if (!isSpace(byte)) return this.#fail('syntax', base + at);
          at++;
          break;
        case State.Next: {
          const inObject = this.#inObject();
          if (byte === 44) {
            at++;
            state = inObject ? State.Key : State.Value;
          } else if (byte === (inObject ? 125 : 93)) state = this.#close(base + ++at);
          else if (isSpace(byte)) at++;
          else return this.#fail('syntax', base + at);
          break;
        }
        case State.Done:
          if (!isSpace(byte)) {
            const begins = isDigit(byte) || '"{[-tfn'.includes(String.fromCharCode(byte));
            return this.#fail(begins ? 'second_value' : 'syntax', base + at);
          }
          at++;
          break;
        case State.Escape:
          if (SHORT_ESCAPES[byte] !== 1 && byte !== 117) return this.#fail('syntax', base + at);
          if (this.#keepsKey && this.#key.length < 250) this.#key.push(92, byte);
          this.#wordAt = 4;
          at++;
          state = byte === 117 ? State.Hex : State.Text;
          break;
        case State.Hex:
          if (!isDigit(byte) && !((byte | 32) >= 97 && (byte | 32) <= 102)) return this.#fail('syntax', base + at);
          if (this.#keepsKey && this.#key.length < 250) this.#key.push(byte);
          at++;
          if (--this.#wordAt === 0) state = State.Text;
          break;
        case State.Word:
          if (byte !== this.#word.charCodeAt(this.#wordAt)) return this.#fail('syntax', base + at);
          at++;
          if (++this.#wordAt === this.#word.length) state = this.#end(base + at);
          break;
        default: {
          const next = afterDigit(state, byte);
          if (next === null) return this.#fail('syntax', base + at);
          if (next === State.Next) state = this.#end(base + at);
          else {
            at++;
            state = next;
          }
        }
      }
    }
    this.#state = state;
    this.offset = base + length;
    return true;
  }

  /** Whether exactly one value came. */
  finish(): boolean {
    if (this.fault) return false;
    const state = this.#state;
    const isNumber =
      state === State.Zero || state === State.Digits || state === State.Fraction || state === State.Exponent;
    if (isNumber) this.#state = this.#end(this.offset);
    return this.#state === State.Done || this.#fail('unfinished', this.offset);
  }

  #fail(fault: Fault, offset: number): false {
    this.fault = fault;
    this.offset = offset;
    return false;
  }

  #inObject(): boolean {
    const level = this.#depth - 1;
    return ((this.#nest[level >> 3] >> (level & 7)) & 1) === 1;
  }

  #push(isObject: boolean): void {
    const level = this.#depth++;
    if (this.#depth > this.deepest) this.deepest = this.#depth;
    if (level >> 3 >= this.#nest.length) {
      const grown = new Uint8Array(this.#nest.length * 2);
      grown.set(this.#nest);
      this.#nest = grown;
    }
    const bit = 1 << (level & 7);
    if (isObject) this.#nest[level >> 3] |= bit;
    else this.#nest[level >> 3] &= ~bit;
    if (level < 3) this.#live[level + 1] = null;
  }

  #begin(kind: Kind, start: number): void {
    const depth = this.#depth;
    if (depth > 3) return;
    if (depth === 0) this.root = kind;
    const member = this.#live[depth];
    if (!member) return;
    if (this.found.has(member)) this.repeated.add(member);
    else this.found.set(member, { kind, start, end: -1 });
  }

  /** A value ends before the byte at `end`. */
  #end(end: number): State {
    const depth = this.#depth;
    if (depth === 0) return State.Done;
    const member = depth < 4 && this.#live[depth];
    const found = member && this.found.get(member);
    if (found && found.end < 0) found.end = end;
    return State.Next;
  }

  #close(end: number): State {
    this.#depth--;
    return this.#end(end);
  }

  /** Keeps a part of a key. Longer ones than any that is looked for are only kept in part. */
  #gather(bytes: Uint8Array, from: number, to: number): void {
    for (let at = from; at < to && this.#key.length < 250; at++) this.#key.push(bytes[at]);
  }

  #endKey(): void {
    const depth = this.#depth;
    const parent = this.#live[depth - 1];
    this.#live[depth] = null;
    if (!this.#keepsKey) return;
    const raw = String.fromCharCode(...this.#key);
    let key: string | null = raw;
    // An escape that stands for half of a character is in no key that is looked for.
    if (raw.includes('\\')) key = this.#key.length < 240 ? unescape(raw) : null;
    const path = depth === 1 ? key : `${parent}.${key}`;
    if (key !== null && path !== null && WANTED.has(path) && path.split('.').length === depth) this.#live[depth] = path;
  }
}

function unescape(inside: string): string | null {
  try {
    return JSON.parse(`"${inside}"`) as string;
  } catch {
    return null;
  }
}

/** What follows in a number; `State.Next` if it has ended before this byte, `null` if it is wrong. */
function afterDigit(state: State, byte: number): State | null {
  const digit = isDigit(byte);
  const isE = (byte | 32) === 101;
  switch (state) {
    case State.Minus:
      return byte === 48 ? State.Zero : digit ? State.Digits : null;
    case State.Zero:
    case State.Digits:
      if (digit) return state === State.Digits ? state : null;
      return byte === 46 ? State.Point : isE ? State.E : State.Next;
    case State.Point:
      return digit ? State.Fraction : null;
    case State.Fraction:
      return digit ? state : isE ? State.E : State.Next;
    case State.E:
      if (byte === 43 || byte === 45) return State.Sign;
      return digit ? State.Exponent : null;
    case State.Sign:
      return digit ? State.Exponent : null;
    default:
      return digit ? state : State.Next;
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
