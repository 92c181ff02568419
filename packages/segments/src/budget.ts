// The memory that connections may hold: a private floor for each, a quota for each principal, and one budget for them all.

import type { BudgetLimits } from './api.js';

/** A group that has brought less than this in the time below, while its connection was read, makes no progress. */
const STEP = 16 << 10;
const STANDSTILL = 30_000;

/** A clock for the timeouts of a peer. It stands still while we do not read, because the peer cannot make progress then. */
export class ReadClock {
  #counted = 0;
  #since: number | null = null;
  #paused = false;

  /** The time on the clock. */
  read(now: number): number {
    if (!this.#paused) this.#since ??= now;
    return this.#counted + (this.#since === null ? 0 : now - this.#since);
  }

  /** Stops the clock, or starts it again. */
  pause(paused: boolean, now: number): void {
    this.#counted = this.read(now);
    this.#since = paused ? null : now;
    this.#paused = paused;
  }

  /** When the clock will show `reading`, if it is not stopped before; `null` while it is stopped. */
  when(reading: number): number | null {
    return this.#since === null ? null : this.#since + reading - this.#counted;
  }
}

/** When a group began, and how long it may take. */
export interface Schedule {
  started: number;
  timeout: number;
}

/** What several connections may hold together. */
export class Budget {
  readonly limits: BudgetLimits;
  readonly #accounts = new Set<Account>();
  readonly #groups = new Set<Grant>();

  constructor(limits: Partial<BudgetLimits> = {}) {
    this.limits = { process: 512 << 20, principal: 320 << 20, floor: 64 << 10, ...limits };
  }

  /** Bytes that all connections hold, floors counted. */
  held(): number {
    let sum = 0;
    for (const account of this.#accounts) sum += account.held;
    return sum;
  }

  /** The account of one connection. Without a principal there is only the floor. */
  account(principal?: string): Account {
    return new Account(this, principal);
  }

  /** Bytes of a principal, or of all, beyond the floors. */
  #drawn(principal?: string): number {
    let sum = 0;
    for (const account of this.#accounts) {
      if (principal === undefined || account.principal === principal) sum += this.#beyond(account.held);
    }
    return sum;
  }

  #beyond(held: number): number {
    return Math.max(0, held - this.limits.floor);
  }

  /** Adds to what an account holds. Returns false if they are not available, and marks a group of another account for eviction. */
  hold(account: Account, bytes: number, now: number): boolean {
    const held = account.held + bytes;
    const draw = this.#beyond(held) - this.#beyond(account.held);
    if (draw > 0) {
      const { principal } = account;
      if (principal === undefined || this.#drawn(principal) + draw > this.limits.principal) return false;
      const missing = this.#drawn() + draw - this.limits.process;
      if (missing > 0) {
        this.#evict(account, missing, now);
        return false;
      }
    }
    this.set(account, held);
    return true;
  }

  /** Sets what an account holds. */
  set(account: Account, held: number): void {
    account.held = held;
    if (held) this.#accounts.add(account);
    else this.#accounts.delete(account);
  }

  track(grant: Grant, isOpen: boolean): void {
    if (isOpen) this.#groups.add(grant);
    else this.#groups.delete(grant);
  }

  /** Marks the group that has stood still longest, else the one furthest behind its schedule whose owner is over its fair part. */
  #evict(asking: Account, missing: number, now: number): void {
    let going = 0;
    for (const grant of this.#groups) if (grant.evicted) going += grant.bytes;
    if (going >= missing) return;
    const owners = new Set<string | undefined>([asking.principal]);
    for (const account of this.#accounts) if (this.#beyond(account.held)) owners.add(account.principal);
    const fair = this.limits.process / owners.size;
    let worst: Grant | null = null;
    let most = 0;
    const consider = (grant: Grant, badness: number): void => {
      if (badness > most) [worst, most] = [grant, badness];
    };
    const others = [...this.#groups].filter((grant) => !grant.evicted && grant.account !== asking);
    for (const grant of others) consider(grant, grant.standstill(now));
    if (!worst) {
      for (const grant of others) {
        const { principal } = grant.account;
        if (principal !== undefined && this.#drawn(principal) > fair) consider(grant, grant.behind(now));
      }
    }
    (worst as Grant | null)?.evict();
  }
}

/** What one connection holds. */
export class Account {
  held = 0;
  readonly clock = new ReadClock();
  /** Called when a group of this account is marked for eviction. */
  onevict: (() => void) | null = null;

  constructor(
    readonly budget: Budget,
    readonly principal?: string,
  ) {}

  /** Reserves bytes for a group; `null` if they are not available. */
  reserve(bytes: number, schedule: Schedule): Grant | null {
    return this.budget.hold(this, bytes, schedule.started) ? new Grant(this, bytes, schedule) : null;
  }

  /** Whether bytes could be reserved if nobody held anything. */
  could(bytes: number): boolean {
    const { process, principal, floor } = this.budget.limits;
    return bytes <= floor + (this.principal === undefined ? 0 : Math.min(principal, process));
  }
}

/** Bytes that are reserved for one message. */
export class Grant {
  evicted = false;
  #received = 0;
  #progress: number;
  #progressAt: number;
  readonly #started: number;

  constructor(
    readonly account: Account,
    public bytes: number,
    readonly schedule: Schedule,
  ) {
    this.#started = this.#progressAt = account.clock.read(schedule.started);
    this.#progress = 0;
    account.budget.track(this, true);
  }

  /** Reports how much has arrived. */
  note(received: number, now: number): void {
    this.#received = received;
    if (received >= this.#progress + STEP) {
      this.#progress = received;
      this.#progressAt = this.account.clock.read(now);
    }
  }

  /** Grows to so many bytes in all. Returns false if they are not available. */
  grow(bytes: number, now: number): boolean {
    if (bytes <= this.bytes) return true;
    if (!this.account.budget.hold(this.account, bytes - this.bytes, now)) return false;
    this.bytes = bytes;
    return true;
  }

  /** The message is complete: what is reserved beyond `bytes` is given back, and the rest is never evicted. */
  complete(bytes = 0): void {
    const { budget } = this.account;
    budget.track(this, false);
    if (bytes < this.bytes) {
      budget.set(this.account, this.account.held - this.bytes + bytes);
      this.bytes = bytes;
    }
  }

  evict(): void {
    this.evicted = true;
    this.account.onevict?.();
  }

  /** How long there was no progress, if that is too long, else 0. */
  standstill(now: number): number {
    const time = this.account.clock.read(now) - this.#progressAt;
    return time >= STANDSTILL ? time : 0;
  }

  /** How many bytes are missing, compared with an even pace. Time in which the connection was not read counts half. */
  behind(now: number): number {
    const age = (this.account.clock.read(now) - this.#started + now - this.schedule.started) / 2;
    const part = Math.min(1, age / Math.max(this.schedule.timeout, 0.001));
    return Math.floor(this.bytes * part) - this.#received;
  }
}
