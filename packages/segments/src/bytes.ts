// UTF-8 and base64 by the fastest means that the platform has.

interface NodeBuffer extends Uint8Array {
  write(text: string, offset: number, length: number, encoding: 'base64'): number;
  toString(encoding?: 'base64' | 'latin1'): string;
}

/** What of Node's `Buffer` is used, if there is one. */
const { Buffer } = globalThis as {
  Buffer?: {
    allocUnsafe(length: number): NodeBuffer;
    byteLength(text: string): number;
    from(buffer: ArrayBufferLike, offset: number, length: number): NodeBuffer;
  };
};

/** What newer browsers have, and older type libraries do not know. */
interface Base64Array extends Uint8Array {
  setFromBase64?(text: string, options: { lastChunkHandling: 'strict' }): { written: number };
  toBase64?(): string;
}

const encoder = new TextEncoder();
const decoder = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

/** The text as UTF-8. */
export const encode = (text: string): Uint8Array => encoder.encode(text);

/** The length of the text as UTF-8. */
export const utf8Length = (text: string): number => (Buffer ? Buffer.byteLength(text) : encode(text).length);

const buffer = (bytes: Uint8Array): NodeBuffer | undefined => Buffer?.from(bytes.buffer, bytes.byteOffset, bytes.length);

/** The text that UTF-8 bytes stand for; `null` if they are not UTF-8. */
export function decode(bytes: Uint8Array): string | null {
  // In Node, ASCII is copied much faster than it is decoded.
  const ascii = bytes.length > ASCII_COPY && buffer(bytes)?.toString('latin1');
  if (ascii && utf8Length(ascii) === bytes.length) return ascii;
  try {
    return decoder.decode(bytes);
  } catch {
    return null;
  }
}

/** From this length on. */
const ASCII_COPY = 1 << 12;

/** How many bytes at the end are the beginning of a character that is not whole. */
export function unfinished(bytes: Uint8Array): number {
  for (let back = 1; back <= 3 && back <= bytes.length; back++) {
    const byte = bytes[bytes.length - back];
    if ((byte & 0xc0) !== 0x80) return (byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc0 ? 2 : 1) > back ? back : 0;
  }
  return 0;
}

/** How many bytes canonical base64 stands for. */
export const decodedLength = (data: string): number =>
  Math.ceil(data.length / 4) * 3 - (data.endsWith('==') ? 2 : data.endsWith('=') ? 1 : 0);

/**
 * Memory that was given back less than a second ago. For large messages that follow each other, to ask the system for new memory
 * takes longer than all that is done with it.
 */
let spare: Uint8Array[] = [];
/** Shorter memory is not worth keeping; and how much is kept in all. */
const SPARE_LEAST = 64 << 10;
const SPARE_MOST = 64 << 20;

/** Memory for at least so many bytes, whose content is not defined: `wanted`, or what is there and at most twice as long as needed. */
export function allocate(least: number, wanted: number): Uint8Array {
  const fits = spare.find(({ length }) => length >= least && length <= least * 2);
  if (!fits) return Buffer?.allocUnsafe(wanted) ?? new Uint8Array(wanted);
  spare = spare.filter((other) => other !== fits);
  return fits;
}

/** Gives back memory that nobody uses any more. */
export function release(bytes: Uint8Array): void {
  const kept = spare.reduce((sum, { length }) => sum + length, bytes.length);
  if (bytes.length < SPARE_LEAST || kept > SPARE_MOST) return;
  if (!spare.length) {
    const timer = setTimeout(() => (spare = []), 1000) as { unref?(): void };
    timer.unref?.();
  }
  spare.push(bytes);
}

/**
 * Decodes canonical base64 to `into`, which was allocated here, from `at` on. Returns false if it is not canonical: any other
 * character, padding or stray bits.
 */
export function decodeBase64(data: string, into: Uint8Array, at: number): boolean {
  const length = decodedLength(data);
  const end = data.slice(-4);
  try {
    if (data.length % 4 || btoa(atob(end)) !== end) return false;
    // Takes the URL alphabet too, and leaves out characters of no alphabet, so that less is written.
    if (Buffer) return (into as NodeBuffer).write(data, at, length, 'base64') === length && !data.includes('-') && !data.includes('_');
    const place: Base64Array = into.subarray(at, at + length);
    // Both leave out white space.
    if (place.setFromBase64) return place.setFromBase64(data, { lastChunkHandling: 'strict' }).written === length;
    const binary = atob(data);
    for (let n = 0; n < length; n++) place[n] = binary.charCodeAt(n);
    return binary.length === length;
  } catch {
    return false;
  }
}

/** Canonical base64. */
export function encodeBase64(bytes: Base64Array): string {
  const own = buffer(bytes)?.toString('base64') ?? bytes.toBase64?.();
  if (own !== undefined) return own;
  let binary = '';
  for (let at = 0; at < bytes.length; at += 8192) binary += String.fromCharCode(...bytes.subarray(at, at + 8192));
  return btoa(binary);
}
