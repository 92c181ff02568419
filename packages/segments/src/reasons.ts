// What can go wrong, with one name per rule: what the peer did wrong, what we cannot send, and why a link closes.

import type { CloseReason } from './api.js';

/** Why a message of ours was not sent. */
export interface SendError {
  readonly name: string;
  readonly because: string;
  /** The limit that the size of the message is over, if the size is the reason. */
  readonly limit?: number;
  /** More members for the `data` of the error response. */
  readonly more?: string;
}

/** Why a link closes. It is thrown by what finds a rule broken. */
export class Reason implements CloseReason {
  readonly text: string;

  constructor(
    readonly name: string,
    readonly code: number,
    readonly because: string,
    text = because,
  ) {
    this.text = text.slice(0, 123);
  }
}

/** The peer broke a rule about segments. */
export const violation = (name: string, because: string): Reason =>
  new Reason(name, 4400, because, `invalid messageSegment: ${name}`);

/** The peer broke a rule that holds for every message. */
export const invalid = (name: string, because: string, text = name): Reason =>
  new Reason(name, 4400, because, `invalid message: ${text}`);

/** We close, and the peer did nothing wrong. */
export const closing = (name: string, code: number, because: string): Reason => new Reason(`close-${name}`, code, because);

export const overBudget = (size: number): Reason => closing('over-budget', 1013, `no memory for a message of ${size} bytes`);

/** The application closes. */
export const closedHere = (code: number, text: string): Reason =>
  closing(code === 1000 ? 'normal' : code === 1012 ? 'restart' : 'program', code, text);

export const closedByPeer = (code: number): Reason =>
  closing('peer', code, code === 1006 ? 'the link ended without a close' : `closed by the peer with code ${code}`);

/** Why a message of ours was not sent. */
export const unsent = (name: string, because: string, limit?: number, more = ''): SendError => ({
  name: `send-${name}`,
  because,
  limit,
  more,
});

/** The error response that takes the place of a message that could not be sent. `id` is copied as it is written. */
export function errorResponse(id: string, size: number, { name, because, limit, more }: SendError): string {
  const message = JSON.stringify(limit === undefined || more ? because : 'MessageTooLarge');
  const data = limit === undefined ? `"${name}"}` : `"messageTooLarge","size":${size},"limit":${limit}${more}}`;
  return `{"jsonrpc":"2.0","id":${id},"error":{"code":${limit === undefined ? -32603 : -32011},"message":${message},"data":{"reason":${data}}}`;
}
