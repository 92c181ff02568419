// The order in which messages reach the application, and the seq from which it may resume.

import type { Grant } from './budget.js';

/**
 * When ordered messages are delivered. `start-order`: when all that began before them have finished, for applications whose cursor is the
 * highest seq that they saw. `settled`: as soon as they have finished, for applications that resume from the settled cursor.
 */
export type Delivery = 'start-order' | 'settled';

/** A message that has arrived whole. */
export interface Finished {
  readonly ordinal: number;
  readonly text: string;
  readonly size: number;
  /** Its place in its server's order, if it is an action. */
  readonly seq: bigint | null;
  readonly isOrdered: boolean;
  grant: Grant | null;
}

/**
 * Messages from their first frame until the application has them. Each gets an ordinal when its first frame arrives. Settled is
 * everything before the first that is not delivered; an expired one is never delivered, so nothing after it settles.
 */
export class Arrivals {
  #next = 0;
  /** Messages that have begun and are not delivered, in order. */
  readonly #open = new Set<number>();
  /** Messages that have begun and are not finished, in order. */
  readonly #unfinished = new Set<number>();
  /** Messages that have finished, and wait for earlier ones. */
  #held: Finished[] = [];
  #heldBytes = 0;
  /** For each message that blocks others, the highest seq that was delivered after it. */
  readonly #waiting = new Map<number, bigint>();
  /** The highest seq among settled messages. */
  cursor: bigint | null = null;

  constructor(
    readonly delivery: Delivery,
    readonly maxHeldBytes: number,
  ) {}

  /** A message begins. Returns its ordinal. */
  begin(): number {
    this.#open.add(this.#next);
    this.#unfinished.add(this.#next);
    return this.#next++;
  }

  /** The first ordinal that is not settled. */
  get settled(): number {
    return first(this.#open) ?? this.#next;
  }

  /** Whether a message has to wait for one that began before it. */
  mustHold(ordinal: number, isOrdered: boolean): boolean {
    return this.delivery === 'start-order' && isOrdered && (first(this.#unfinished) ?? ordinal) < ordinal;
  }

  /** A message has finished. Returns those that may be delivered now, or how many bytes would be held if that is too much. */
  finish(message: Finished): Finished[] | number {
    this.#unfinished.delete(message.ordinal);
    const ready: Finished[] = [];
    if (this.mustHold(message.ordinal, message.isOrdered)) {
      if (this.#heldBytes + message.size > this.maxHeldBytes) return this.#heldBytes + message.size;
      this.#heldBytes += message.size;
      this.#held.push(message);
    } else ready.push(message);
    const oldest = first(this.#unfinished) ?? Infinity;
    const released = this.#held.filter(({ ordinal }) => ordinal < oldest);
    if (released.length) {
      this.#held = this.#held.filter(({ ordinal }) => ordinal > oldest);
      for (const { size } of released) this.#heldBytes -= size;
      ready.push(...released.sort((a, b) => a.ordinal - b.ordinal));
    }
    return ready;
  }

  /** A message is given up. Returns whether the link has to close, because nothing could be delivered after it. */
  expire(ordinal: number): boolean {
    this.#unfinished.delete(ordinal);
    return this.delivery === 'start-order';
  }

  /** The application has this message. */
  delivered(ordinal: number, seq: bigint | null): void {
    if (!this.#open.delete(ordinal)) return;
    const behind = this.#waiting.get(ordinal) ?? null;
    this.#waiting.delete(ordinal);
    this.note(ordinal, behind !== null && (seq === null || behind > seq) ? behind : seq);
  }

  /** A delivered message turns out to carry a seq. */
  note(ordinal: number, seq: bigint | null): void {
    if (seq === null) return;
    let blocker: number | null = null;
    for (const open of this.#open) {
      if (open >= ordinal) break;
      blocker = open;
    }
    if (blocker === null) {
      if (this.cursor === null || seq > this.cursor) this.cursor = seq;
    } else if (seq > (this.#waiting.get(blocker) ?? -1n)) this.#waiting.set(blocker, seq);
  }

  /** Drops the messages that are held back. After a close they are not delivered. */
  clear(): void {
    for (const { grant } of this.#held) grant?.complete();
    this.#held = [];
    this.#heldBytes = 0;
  }
}

function first(ordinals: Set<number>): number | undefined {
  for (const ordinal of ordinals) return ordinal;
  return undefined;
}
