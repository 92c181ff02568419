// UTF-8 and base64 by the fastest means that the platform has.

interface NodeBuffer extends Uint8Array {
  write(text: string, encoding: 'base64'): number;
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
const fromBase64 = (
  Uint8Array as unknown as { fromBase64?(text: string, options: { lastChunkHandling: 'strict' }): Uint8Array }
).fromBase64;

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

/** How many bytes canonical base64 of this text stands for. */
export const decodedLength = (data: string): number => Math.ceil(data.length / 4) * 3 - padding(data);

const padding = (data: string): number => (data.endsWith('==') ? 2 : data.endsWith('=') ? 1 : 0);

/** The bytes of canonical base64; `null` if it is not canonical: any other character, padding or stray bits. */
export function decodeBase64(data: string): Uint8Array | null {
  const length = decodedLength(data);
  const pad = padding(data);
  if (data.length % 4) return null;
  if (pad) {
    const last = ALPHABET.indexOf(data[data.length - pad - 1]);
    if (last < 0 || last & (pad === 1 ? 3 : 15)) return null;
  }
  if (Buffer) {
    // Takes the URL alphabet too, and leaves out characters of no alphabet, so that less is written.
    const bytes = Buffer.allocUnsafe(length);
    const whole = bytes.write(data, 'base64') === length;
    return whole && !data.includes('-') && !data.includes('_') ? bytes : null;
  }
  if (fromBase64) {
    try {
      // Leaves out white space.
      const bytes = fromBase64(data, { lastChunkHandling: 'strict' });
      return bytes.length === length ? bytes : null;
    } catch {
      return null;
    }
  }
  return decodeByTable(data, length);
}

const VALUES = new Uint8Array(128).fill(64);
for (let value = 0; value < 64; value++) VALUES[ALPHABET.charCodeAt(value)] = value;

/** For platforms without a decoder that is fast and strict. */
export function decodeByTable(data: string, length: number): Uint8Array | null {
  const bytes = new Uint8Array(length);
  const characters = data.length - padding(data);
  let bits = 0;
  let bad = 0;
  for (let at = 0, to = 0; at < characters; at++) {
    const code = data.charCodeAt(at);
    const value = code < 128 ? VALUES[code] : 64;
    bad |= value & 64;
    bits = (bits << 6) | value;
    if (at & 3) bytes[to++] = bits >> (6 - 2 * (at & 3));
  }
  return bad ? null : bytes;
}

/** Canonical base64. */
export function encodeBase64(bytes: Uint8Array): string {
  if (Buffer) return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.length).toString('base64');
  const native = (bytes as { toBase64?(): string }).toBase64;
  if (native) return native.call(bytes);
  let binary = '';
  for (let at = 0; at < bytes.length; at += 8192) binary += String.fromCharCode(...bytes.subarray(at, at + 8192));
  return btoa(binary);
}
