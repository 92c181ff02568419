// A text as a vector writes it: verbatim JSON, a string, or parts that are generated.
import { createHash } from 'node:crypto';
import { plain } from './raw.mjs';

export const sha256 = (bytes) => createHash('sha256').update(bytes).digest('hex');

const PARTS = {
  repeat: ({ items: [text, times] }) => repeated(textOf(text), plain(times)),
  hex: (node) => Buffer.from(plain(node).replaceAll(' ', ''), 'hex'),
  base64: (node) => Buffer.from(textOf(node).toString('base64')),
  escaped: (node) => Buffer.from(JSON.stringify(textOf(node).toString()).slice(1, -1)),
  sha256: (node) => Buffer.from(sha256(textOf(node))),
  text: (node) => textOf(node),
  object: (node) => textOf(node),
  inside: (node) => textOf(node).subarray(1, -1),
};

/** The bytes of a text. */
export function textOf(node) {
  if (node.kind === '"') return Buffer.from(plain(node));
  if (node.kind === '{') return Buffer.from(node.raw);
  if (node.kind !== '[') throw new Error(`${node.raw} is no text`);
  return Buffer.concat(node.items.map(part));
}

function part(node) {
  if (node.kind === '"') return textOf(node);
  const [[name, value], ...more] = node.members;
  if (!PARTS[name] || more.length) throw new Error(`${node.raw} is no part`);
  return PARTS[name](value);
}

function repeated(text, times) {
  return Buffer.alloc(text.length * times, text.length ? text : 0);
}

/** The text with each `{n}` replaced by a number. */
export const numbered = (text, n) => Buffer.from(text.toString().replaceAll('{n}', String(n)));

/** A text as an error message shows it: short, and different for different texts. */
export function shown(bytes) {
  const text = Buffer.from(bytes);
  if (text.length <= 300) return text.toString();
  return `${text.subarray(0, 300)}… (${text.length} bytes, ${sha256(text)})`;
}
