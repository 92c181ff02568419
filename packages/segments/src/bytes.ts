// UTF-8 and base64 by the fastest means that the platform has.

interface NodeBuffer extends Uint8Array {
  write(text: string, offset: number, length: number, encoding: 'base64'): number;
  toString(encoding?: 'base64'): string;
}

/** What of Node's `Buffer` is used, if there is one. */
const Buffer = (
  globalThis as {
    Buffer?: {
      allocUnsafe(length: number): NodeBuffer;
      byteLength(text: string): number;
      from(buffer: ArrayBufferLike, offset: number, length: number): NodeBuffer;
    };
  }
).Buffer;

/** What newer browsers have, and older type libraries do not know. */
interface Base64Array extends Uint8Array {
  setFromBase64?(text: string, options: { lastChunkHandling: 'strict' }): { written: number };
  toBase64?(): string;
}

const encoder = new TextEncoder();
const decoder = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });
const ALPHABET = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/';

/** The text as UTF-8. */
export const encode = (text: string): Uint8Array => encoder.encode(text);

/** Short texts are encoded here, one at a time. */
const scratch = new Uint8Array(48 << 10);

/** The text as UTF-8, valid until the next call. */
export function encodeBriefly(text: string): Uint8Array {
  if (text.length * 3 > scratch.length) return encode(text);
  return scratch.subarray(0, encoder.encodeInto(text, scratch).written);
}

/** The length of the text as UTF-8. */
export const utf8Length = (text: string): number => (Buffer ? Buffer.byteLength(text) : encodeBriefly(text).length);

/** The text that UTF-8 bytes stand for; `null` if they are not UTF-8. */
export function decode(bytes: Uint8Array): string | null {
  try {
    return decoder.decode(bytes);
  } catch {
    return null;
  }
}

/** How many bytes at the end are the beginning of a character that is not whole. */
export function unfinished(bytes: Uint8Array): number {
  for (let back = 1; back <= 3 && back <= bytes.length; back++) {
    const byte = bytes[bytes.length - back];
    if ((byte & 0xc0) !== 0x80) return (byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc0 ? 2 : 1) > back ? back : 0;
  }
  return 0;
}

/** How many bytes canonical base64 stands for. */
export const decodedLength = (data: string): number => Math.ceil(data.length / 4) * 3 - padding(data);

const padding = (data: string): number => (data.endsWith('==') ? 2 : data.endsWith('=') ? 1 : 0);

/** Memory whose content is not defined. */
export const allocate = (length: number): Uint8Array =>
  Buffer ? Buffer.allocUnsafe(length) : new Uint8Array(length);

/**
 * Decodes canonical base64 to `into`, which was allocated here, from `at` on. Returns false if it is not canonical: any other
 * character, padding or stray bits.
 */
export function decodeBase64(data: string, into: Uint8Array, at: number): boolean {
  const length = decodedLength(data);
  if (data.length % 4) return false;
  const pad = padding(data);
  if (pad) {
    const last = ALPHABET.indexOf(data[data.length - pad - 1]);
    if (last < 0 || last & (pad === 1 ? 3 : 15)) return false;
  }
  // Takes the URL alphabet too, and leaves out characters of no alphabet, so that less is written.
  if (Buffer) {
    const isWhole = (into as NodeBuffer).write(data, at, length, 'base64') === length;
    return isWhole && !data.includes('-') && !data.includes('_');
  }
  const place: Base64Array = into.subarray(at, at + length);
  if (!place.setFromBase64) return decodeByTable(data, into, at);
  try {
    // Leaves out white space.
    return place.setFromBase64(data, { lastChunkHandling: 'strict' }).written === length;
  } catch {
    return false;
  }
}

/** For each place in a group of four characters, what a character stands for there. A bit above all others says: nothing. */
const NOTHING = 1 << 24;
const TABLES = [18, 12, 6, 0].map((shift) => {
  const table = new Int32Array(256).fill(NOTHING);
  for (let value = 0; value < 64; value++) table[ALPHABET.charCodeAt(value)] = value << shift;
  return table;
});

/** For platforms without a decoder that is fast and strict. */
export function decodeByTable(text: string, into: Uint8Array, start: number): boolean {
  const [first, second, third, fourth] = TABLES;
  const pad = padding(text);
  const data = encode(text);
  const whole = pad ? data.length - 4 : data.length;
  let bits = 0;
  let to = start;
  let from = 0;
  for (; from < whole; from += 4) {
    const group = first[data[from]] | second[data[from + 1]] | third[data[from + 2]] | fourth[data[from + 3]];
    bits |= group;
    into[to] = group >> 16;
    into[to + 1] = group >> 8;
    into[to + 2] = group;
    to += 3;
  }
  if (pad) {
    const group = first[data[from]] | second[data[from + 1]] | (pad === 1 ? third[data[from + 2]] : 0);
    if (group & (pad === 1 ? 0xff : 0xffff)) return false;
    bits |= group;
    into[to] = group >> 16;
    if (pad === 1) into[to + 1] = group >> 8;
  }
  return bits < NOTHING;
}

/** Canonical base64. */
export function encodeBase64(bytes: Uint8Array): string {
  if (Buffer) return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.length).toString('base64');
  const own = (bytes as Base64Array).toBase64?.();
  if (own !== undefined) return own;
  let binary = '';
  for (let at = 0; at < bytes.length; at += 8192) binary += String.fromCharCode(...bytes.subarray(at, at + 8192));
  return btoa(binary);
}
