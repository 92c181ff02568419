// A JSON-RPC message, and what it says about itself.

import { decode, encode, encodeBriefly } from './bytes.js';
import { type Found, Kind, readNumber, readString, Scanner } from './json.js';

export type MessageKind = 'request' | 'notification' | 'response' | 'other';

const ENVELOPE = ['jsonrpc', 'method', 'id', 'params', 'result', 'error'];

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
    private bytes: Uint8Array | null = null,
  ) {
    const method = this.#there('method');
    const id = scan.found.get('id');
    const named = id?.kind === Kind.String || id?.kind === Kind.Number;
    this.method = this.string('method') ?? '';
    this.id = id && named ? this.raw(id) : null;
    const outcome = this.#result() ?? this.#there('error');
    if (method?.kind === Kind.String) this.kind = named ? 'request' : 'notification';
    else this.kind = outcome && id ? 'response' : 'other';
  }

  /** The key of the envelope that comes twice, if any does. */
  repeated(): string | undefined {
    return ENVELOPE.find((key) => this.scan.repeated.has(key));
  }

  /** Whether it is exactly one JSON-RPC 2.0 request, response or notification. */
  isValid(): boolean {
    const { found } = this.scan;
    const id = found.get('id')?.kind;
    const params = this.#there('params')?.kind;
    const error = this.#there('error');
    const result = this.#result();
    const idOk = id === undefined || id === Kind.String || id === Kind.Number || id === Kind.Null;
    const shape =
      this.kind === 'response'
        ? !result !== !error && (!error || error.kind === Kind.Object)
        : this.kind !== 'other' &&
          !result &&
          !error &&
          (params === undefined || params === Kind.Object || params === Kind.Array);
    return shape && idOk && this.string('jsonrpc') === '2.0';
  }

  /** The error member, unless it is `null`. */
  isError(): boolean {
    return this.#there('error') !== undefined;
  }

  /** A member that is a string. */
  string(member: string): string | null {
    const found = this.scan.found.get(member);
    return found?.kind === Kind.String ? readString(this.raw(found)) : null;
  }

  /** A member that is a number. */
  number(member: string): ReturnType<typeof readNumber> {
    const found = this.scan.found.get(member);
    return found?.kind === Kind.Number ? readNumber(this.raw(found)) : null;
  }

  /** A value as it is written. */
  raw({ start, end }: Found): string {
    if (this.text.length === this.size && !this.bytes) return this.text.slice(start, end);
    return decode(this.#encoded().subarray(start, end)) ?? '';
  }

  /** Where a byte lies in the text. */
  at(offset: number): number {
    if (this.text.length === this.size) return offset;
    return decode(this.#encoded().subarray(0, offset))?.length ?? 0;
  }

  #encoded(): Uint8Array {
    return (this.bytes ??= encode(this.text));
  }

  /** A member, unless it is `null`, which many write for what is not there. */
  #there(member: string): Found | undefined {
    const found = this.scan.found.get(member);
    return found?.kind === Kind.Null ? undefined : found;
  }

  /** `null` is a result, unless there is an error or a method. */
  #result(): Found | undefined {
    const { found } = this.scan;
    const none = this.#there('error') ?? found.get('method');
    return none ? this.#there('result') : found.get('result');
  }
}

/** Scans a text. The scanner tells if it is not JSON. */
export function scan(text: string, maxDepth?: number): { scanner: Scanner; size: number } {
  const bytes = encodeBriefly(text);
  const scanner = new Scanner(maxDepth);
  if (scanner.feed(bytes)) scanner.finish();
  return { scanner, size: bytes.length };
}

/** Why a text is not JSON, as a sentence. */
export function jsonFault({ fault, offset }: Scanner): string {
  const why =
    fault === 'second_value'
      ? 'a second JSON value'
      : fault === 'unfinished'
        ? 'the JSON text ends too early'
        : 'not JSON';
  return `${why} at byte ${offset}`;
}

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
