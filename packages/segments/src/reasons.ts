// What can go wrong, with one name per rule: what the peer did wrong, what we cannot send, and why a link closes.

import type { CloseReason } from './api.js';

/** Why a message of ours was not sent. */
export interface SendError {
  readonly name: string;
  readonly because: string;
  /** The size of the message and the limit, if the size is the reason. */
  readonly over?: readonly [size: number, limit: number];
  /** More members for the `data` of the error response. */
  readonly more?: string;
}

const reason = (name: string, code: number, because: string, text = because): CloseReason => ({
  name,
  code,
  because,
  text: text.slice(0, 123),
});

/** The peer broke a rule about segments. */
export const violation = (name: string, because: string): CloseReason =>
  reason(name, 4400, because, `invalid messageSegment: ${name}`);

/** The peer broke a rule that holds for every message. */
const invalid = (name: string, because: string, text = name): CloseReason =>
  reason(name, 4400, because, `invalid message: ${text}`);

const frameTooLarge = (size: number, limit: number): CloseReason =>
  reason('frame-too-large', 1009, `frame of ${size} bytes is over the limit of ${limit}`);

const notRpc = 'not a JSON-RPC 2.0 request, response or notification';
const noBatch = 'a message is one JSON object; batches are not accepted';

export const broken = {
  frameTooLarge,
  frameNotUtf8: invalid('frame-not-utf8', 'frame is not UTF-8'),
  frameNotJson: (why: string) => invalid('frame-not-json', `frame is not JSON: ${why}`),
  tooDeep: (limit: number) => {
    const because = `nested deeper than ${limit} levels (max_nesting)`;
    return invalid('too-deep', because, because);
  },
  frameNotObject: invalid('frame-not-object', noBatch, noBatch),
  duplicateKey: (key: string) => invalid('duplicate-key', `key "${key}" comes twice`),
  tooManyRequests: (limit: number) =>
    invalid('too-many-requests', `more than ${limit} requests wait for an answer`),
  messageNotRpc: invalid('message-not-json-rpc', notRpc, notRpc),
  messageTooLarge: (size: number, limit: number) =>
    violation('message-too-large', `message of at least ${size} bytes is over the limit of ${limit}`),
  messageNotUtf8: violation('message-not-utf8', 'reassembled message is not UTF-8'),
  messageNotJson: (why: string) => violation('message-not-json', `reassembled message is not JSON: ${why}`),
};

export const closed = {
  overBudget: (size: number) => reason('close-over-budget', 1013, `no memory for a message of ${size} bytes`),
  unwanted: (size: number, limit: number) =>
    reason('close-unwanted', 1013, `${size} bytes of frames came while there was no memory for them, the limit is ${limit}`),
  evicted: reason('close-evicted', 1013, 'a group was given up under memory pressure'),
  heldTooMuch: (size: number, limit: number) =>
    reason('close-held-too-much', 1013, `${size} bytes wait for an unfinished group, the limit is ${limit}`),
  groupExpired: (received: number, limit: number) =>
    reason(
      'close-group-expired',
      4408,
      `a message was not finished within the time for a group (${limit} ms): ${received} bytes had come`,
    ),
  unsendable: (called: string, { name, because }: SendError) =>
    reason('close-unsendable', /json|deep/.test(name) ? 4422 : 4413, `${called} cannot be sent: ${because}`),
  capShrank: reason('close-cap-shrank', 4413, "the frame cap shrank below a started group's segments"),
  /** The application closes. */
  own: (code: number, text: string) =>
    reason(code === 1000 ? 'close-normal' : code === 1012 ? 'close-restart' : 'close-program', code, text, text),
  peer: (code: number) =>
    reason('close-peer', code, code === 1006 ? 'the link ended without a close' : `closed by the peer with code ${code}`),
};

const error = (name: string, because: string, over?: [number, number], more?: string): SendError => ({
  name: `send-${name}`,
  because,
  over,
  more,
});

export const unsent = {
  notRpc: error('not-json-rpc', 'not a JSON-RPC message'),
  tooDeep: (depth: number, limit: number) =>
    error('too-deep', `message is nested ${depth} levels deep, the limit is ${limit}`),
  noSegments: (size: number, limit: number) =>
    error(
      'no-segments',
      `message of ${size} bytes does not fit a frame of ${limit}, and the peer takes no segments`,
      [size, limit],
    ),
  tooLarge: (size: number, limit: number) =>
    error('too-large', `message of ${size} bytes is over the peer's limit of ${limit}`, [size, limit]),
  tooManySegments: (size: number) =>
    error('too-many-segments', `message of ${size} bytes would need more than 65535 segments at this frame cap`, [
      size,
      65535,
    ]),
  tooSlow: (size: number, needed: number, limit: number, rate: number, retry: number) =>
    error(
      'too-slow',
      `message of ${size} bytes needs ${needed} ms at the measured ${rate} bytes/s, and the peer allows ${limit} ms (its groupTimeoutMs)`,
      [size, Math.floor((rate * limit) / 1000)],
      `,"bytesPerSecond":${rate},"neededMs":${needed},"limitMs":${limit},"retryAfterMs":${retry}`,
    ),
  queueFull: (size: number, limit: number) =>
    error('queue-full', `message of ${size} bytes does not fit the send queue of ${limit}`),
  disconnected: error('disconnected', 'disconnected'),
};

/** The error response that takes the place of a message that could not be sent. `id` is copied as it is written. */
export function errorResponse(id: string, { name, because, over, more }: SendError): string {
  const message = JSON.stringify(over && !more ? 'MessageTooLarge' : because);
  const data = over
    ? `{"reason":"messageTooLarge","size":${over[0]},"limit":${over[1]}${more ?? ''}}`
    : `{"reason":"${name}"}`;
  return `{"jsonrpc":"2.0","id":${id},"error":{"code":${over ? -32011 : -32603},"message":${message},"data":${data}}}`;
}
