// A JSON-RPC message, and what it says about itself.

import { decode, encode } from './bytes.js';
import { type Found, readNumber, readString, Scanner } from './json.js';

export type MessageKind = 'request' | 'notification' | 'response' | 'other';

/** What sort of value it is: the first character of its text, `0` for numbers. Empty if there is none. */
type Sort = '' | '"' | '{' | '[' | '0' | 'n' | 't' | 'f';

/** A text that was scanned: one JSON object. */
export class Message {
  readonly kind: MessageKind;
  /** Empty if it has none. */
  readonly method: string;
  /** The id as it is written; `null` when no answer is possible. */
  readonly id: string | null;
  constructor(
    readonly text: string,
    /** Its length as UTF-8. */
    readonly size: number,
    readonly scan: Scanner,
    /** The text as UTF-8, if that is there. It is made when it is needed. */
    private bytes?: Uint8Array,
  ) {
    const id = this.sort('id');
    const isNamed = id === '"' || id === '0';
    this.method = this.string('method') ?? '';
    this.id = isNamed ? this.raw('id') : null;
    if (this.sort('method') === '"') this.kind = isNamed ? 'request' : 'notification';
    else this.kind = id && (this.#hasResult || this.isError) ? 'response' : 'other';
  }

  /** The key of the envelope that comes twice, if any does. */
  get repeated(): string | undefined {
    return this.firstRepeated('jsonrpc', 'method', 'id', 'params', 'result', 'error');
  }

  firstRepeated(...members: string[]): string | undefined {
    return members.find((member) => this.scan.repeated.has(member));
  }

  /** Whether it is exactly one JSON-RPC 2.0 request, response or notification. */
  get isValid(): boolean {
    const { kind, isError } = this;
    const isWhole =
      kind === 'response'
        ? this.#hasResult !== isError && (!isError || this.sort('error') === '{')
        : kind !== 'other' && !this.#hasResult && !isError && /^[{[n]?$/.test(this.sort('params'));
    return isWhole && /^["0n]?$/.test(this.sort('id')) && this.string('jsonrpc') === '2.0';
  }

  /** The error member, unless it is `null`. */
  get isError(): boolean {
    return this.#isThere('error');
  }

  /** A member that is a string. */
  string(member: string): string | null {
    return this.sort(member) === '"' ? readString(this.raw(member)) : null;
  }

  /** A member that is a number. */
  number(member: string): ReturnType<typeof readNumber> {
    return this.sort(member) === '0' ? readNumber(this.raw(member)) : null;
  }

  find(member: string): Found | undefined {
    return this.scan.found.get(member);
  }

  sort(member: string): Sort {
    const found = this.find(member);
    const first = found ? this.#slice(found.start, found.start + 1) : '';
    return (/[-\d]/.test(first) ? '0' : first) as Sort;
  }

  /** A member as it is written. */
  raw(member: string): string {
    const { start, end } = this.find(member) as Found;
    return this.#slice(start, end);
  }

  /** Where a byte lies in the text. */
  at(offset: number): number {
    return this.#slice(0, offset).length;
  }

  /** What lies between two bytes. */
  #slice(start: number, end: number): string {
    if (this.text.length === this.size) return this.text.slice(start, end);
    return decode((this.bytes ??= encode(this.text)).subarray(start, end)) ?? '';
  }

  /** Whether there is a member, and it is not `null`, which many write for what is not there. */
  #isThere(member: string): boolean {
    return /[^n]/.test(this.sort(member));
  }

  /** `null` is a result, unless there is an error or a method. */
  get #hasResult(): boolean {
    return this.#isThere('result') || (!!this.sort('result') && !this.isError && !this.sort('method'));
  }
}

/** Scans a text. The scanner tells if it is not JSON. */
export function scan(bytes: Uint8Array, maxDepth?: number): Scanner {
  const scanner = new Scanner(maxDepth);
  if (scanner.feed(bytes, bytes.length)) scanner.finish();
  return scanner;
}

/** Why a text is not JSON, as a sentence. */
export const jsonFault = ({ fault, offset }: Scanner): string => `${fault} at byte ${offset}`;

/**
 * A key for an id, by its value and not by its spelling: `1`, `1.0` and `10e-1` are the same id, and so are `"a"` and `"\u0061"`.
 */
export function idKey(raw: string): string {
  const text = readString(raw);
  if (text !== null) return brief(`"${text}`);
  const number = readNumber(raw);
  return brief(typeof number === 'bigint' ? String(number) : `?${raw}`);
}

/** The text itself if it is short, else a hash, so that a peer cannot make us remember long texts. */
export function brief(text: string): string {
  if (text.length <= 64) return text;
  let [one, two] = [0x811c9dc5, 0x1b873593];
  for (let at = 0; at < text.length; at++) {
    one = Math.imul(one ^ text.charCodeAt(at), 0x01000193);
    two = Math.imul(two + text.charCodeAt(at), 0x85ebca6b) ^ (two >>> 13);
  }
  return `#${text.length}.${one}.${two}`;
}
