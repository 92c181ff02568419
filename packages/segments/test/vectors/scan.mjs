// Cases of the JSON reader: the same verdict however the text is cut, and scalars by their value.
import { decode } from '../../build/bytes.js';
import { readNumber, readString, Scanner } from '../../build/json.js';
import { plain } from './raw.mjs';
import { known } from './suite.mjs';
import { textOf } from './text.mjs';

/** Texts up to this length are cut at every byte, longer ones at this many. */
const CUTS = 600;

export function runText({ node }) {
  known(node, ['name', 'each', 'hostile', 'known_gap', 'text', 'verdict', 'at', 'depth']);
  const member = (key) => plain(node.members.get(key));
  const text = textOf(node.members.get('text'));
  const want = JSON.stringify([member('verdict'), member('at') ?? null]);
  const differences = [];
  const utf8Fault = firstFault(text);
  const check = (how, pieces) => {
    const got = JSON.stringify(utf8Fault === null ? verdict(pieces, member('depth')) : ['not_utf8', utf8Fault]);
    if (got !== want) differences.push(`${how}: got ${got}, want ${want}`);
  };
  check('whole', [text]);
  const step = Math.max(1, Math.ceil(text.length / CUTS));
  for (let at = 0; at <= text.length; at += step) {
    const [front, back] = [text.subarray(0, at), text.subarray(at)];
    check(`cut at ${at}`, [front, back]);
    check(`cut at ${at} and with an empty piece`, [front, new Uint8Array(0), back]);
  }
  check('byte by byte', Array.from(text, (byte) => Uint8Array.of(byte)));
  return differences.slice(0, 3);
}

/** Where the first byte lies that is not UTF-8: after the longest front that is. */
function firstFault(text) {
  if (decode(text) !== null) return null;
  let [good, bad] = [0, text.length];
  // A front that ends inside of a character is no text either, so the search is not a plain bisection.
  for (let at = 0; at < bad; at++) if (decode(text.subarray(0, at)) !== null) good = at;
  return good;
}

/** What a fault is called in vectors. */
const FAULTS = {
  'not JSON': 'syntax',
  'a second JSON value': 'second_value',
  'the JSON text ends too early': 'unfinished',
  'too deep': 'too_deep',
};

function verdict(pieces, maxDepth) {
  const scanner = new Scanner(maxDepth);
  const text = Buffer.concat(pieces);
  let length = 0;
  if (pieces.every((piece) => scanner.feed(text, (length += piece.length))) && scanner.finish()) return ['valid', null];
  const fault = FAULTS[scanner.fault];
  return [fault, fault === 'unfinished' ? null : scanner.offset];
}

export function runScalar({ node }) {
  known(node, ['name', 'each', 'hostile', 'known_gap', 'raw', 'is']);
  const raw = textOf(node.members.get('raw')).toString();
  const number = readNumber(raw);
  const string = readString(raw);
  const got = number !== null ? (typeof number === 'bigint' ? { integer: String(number) } : number) : string !== null ? { string } : 'neither';
  const want = plain(node.members.get('is'));
  return JSON.stringify(got) === JSON.stringify(want) ? [] : [`got ${JSON.stringify(got)}, want ${JSON.stringify(want)}`];
}
