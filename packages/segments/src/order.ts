// Which messages must stay in order.

import { brief, idKey, type Message, type MessageKind } from './message.js';

export type Role = 'client' | 'server';

/**
 * How a message is ordered among those of its sender: `urgent` waits for nothing, `free` passes others, `barrier` starts in the order
 * of acceptance and lets nothing later start before it has finished; a text that begins with `=` names a lane: it starts in the order of
 * acceptance.
 */
export type Order = 'urgent' | 'free' | 'barrier' | `=${string}`;

export const isOrdered = (order: Order): boolean => order === 'barrier' || order[0] === '=';

/** How many requests of interest may wait for their answers. */
export const MAX_REQUESTS = 4096;

export const isCancel = (method: string): boolean =>
  method === '$/cancelRequest' || method === 'notifications/cancelled';

/** Whether its receiver's state depends on a message; for a response, `method` is that of its request. */
export const carriesState = (from: Role, kind: MessageKind, method: string): boolean =>
  from === 'client'
    ? kind === 'notification' && method === 'dispatchAction'
    : kind === 'notification'
      ? method === 'action' || method.startsWith('root/')
      : kind === 'response' && /^(initialize|reconnect|subscribe|fetchTurns|listSessions)$/.test(method);

/** The order of a message; for a response, `method` is that of its request. */
export function orderOf(from: Role, kind: MessageKind, method: string, channel: string | null): Order {
  if (method === 'ping') return 'urgent';
  if (kind === 'notification' && isCancel(method)) return 'free';
  if (from === 'server' && kind === 'response' && /^(initialize|reconnect)$/.test(method)) return 'barrier';
  const inOrder =
    carriesState(from, kind, method) || kind === 'notification' || (from === 'client' && kind === 'request');
  return inOrder ? `=${brief(channel ?? '\0')}` : 'free';
}

/** What a client sends that may pass a long message for another channel: answers, cancels, and what somebody types. */
const PASSING = new Set(
  (
    'chat/turnCancelled chat/toolCallConfirmed chat/toolCallResultConfirmed chat/toolCallComplete chat/inputAnswerChanged ' +
    'chat/inputCompleted automationRun/cancelRequested terminal/input terminal/resized'
  ).split(' '),
);

/** Whether a client's message may pass a long one for another channel, if it fits one frame. */
export function mayPass(message: Message): boolean {
  const { method } = message;
  return method === 'completions' || (method === 'dispatchAction' && PASSING.has(message.string('params.action.type') ?? ''));
}

/** The id of the request that a message cancels, as it is written. */
export function cancelled(message: Message): string | null {
  if (message.kind !== 'notification' || !isCancel(message.method)) return null;
  const member = message.method === '$/cancelRequest' ? 'params.id' : 'params.requestId';
  return message.find(member) ? idKey(message.raw(member)) : null;
}

/** Requests that wait for an answer, as far as their method orders it. */
export class Requests {
  readonly #waiting = new Map<string, Order>();

  /** Who answers them. */
  constructor(readonly answeredBy: Role) {}

  /** Notes a request. Returns false if too many wait. */
  note(message: Message): boolean {
    if (message.id === null) return true;
    const order = orderOf(this.answeredBy, 'response', message.method, message.string('params.channel'));
    if (order === 'free') return true;
    const key = idKey(message.id);
    if (this.#waiting.size >= MAX_REQUESTS && !this.#waiting.has(key)) return false;
    this.#waiting.set(key, order);
    return true;
  }

  /** The order of the answer to a request, which waits no longer. */
  answer(id: string | null): Order {
    const key = id === null ? '' : idKey(id);
    const order = this.#waiting.get(key) ?? 'free';
    this.#waiting.delete(key);
    return order;
  }
}
