// Messages of any size over sockets that cap frames: the segments of the Agent Host Protocol.

import type {
  BudgetLimits,
  NegotiationMemory,
  Options,
  SegmentedSocket,
  SharedBudget,
  TextDuplex,
  WebSocketLike,
} from './api.js';
import { Budget } from './budget.js';
import { Negotiated } from './handshake.js';
import { Segmented } from './socket.js';

export type * from './api.js';

/**
 * Wraps a socket that carries frames into one that carries whole messages. An AHP client that is given the result in place of the socket
 * needs no change: the handshake that passes through negotiates segments, and messages of any size go both ways.
 *
 * Throws a `RangeError` if the limits do not hold together.
 */
export function segmented(socket: WebSocketLike | TextDuplex, options: Options = {}): SegmentedSocket {
  return new Segmented(socket, options) as SegmentedSocket;
}

/** A budget for the memory of several connections. */
export function sharedBudget(limits: Partial<BudgetLimits> = {}): SharedBudget {
  return new Budget(limits);
}

/** A memory of what connections negotiate, to be passed to each of them. */
export function negotiationMemory(): NegotiationMemory {
  return new Negotiated();
}
