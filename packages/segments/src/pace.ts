// How fast the link takes our frames, from the times at which it asks for the next one.

/** The shortest busy time, and the fewest bytes, from which a rate is computed. In less, only buffers would be measured. */
const WINDOW = 2000;
const SAMPLE = 64 << 10;
/** How long a measured rate is used, on its link and on the next one to the same peer. */
const BELIEVED = 300_000;
/** What a link takes in the first moment, beyond its rate, lies in buffers. */
const FIRST_MOMENT = 100;

export interface Rate {
  /** Bytes a second. */
  bytes: number;
  measured: number;
  /** What the buffers of the link took at once. */
  buffered: number;
}

type Rates = [before: [rate: number, at: number] | null, last: [rate: number, at: number]];

const rateOf = (bytes: number, time: number): number => Math.max(1, Math.floor((bytes * 1000) / Math.max(time, 0.001)));

export class Pace {
  #remembered: Rate | null = null;
  #news = false;
  /** When the link got the last frame, and its length. */
  #last: [at: number, bytes: number] | null = null;
  #taken = 0;
  #time = 0;
  /** The frame that took longest: a peer that stops for a while is not slow. */
  #slowest: [bytes: number, time: number] = [0, 0];
  /** What the link has taken since it was last idle. */
  #run: { started: number; taken: number; atOnce: number } | null = null;
  /** The last two rates, and when they were measured. */
  #rates: Rates | null = null;
  #buffered = 0;

  /** The rate that is used, and for how much longer. */
  believed(now: number): { rate: Rate; left: number } | null {
    const rate = this.#measured() ?? this.#remembered;
    const left = rate ? BELIEVED - (now - rate.measured) : 0;
    return rate && left > 0 ? { rate, left } : null;
  }

  /** Sets the rate that was measured on an earlier link to this peer. */
  recall(rate: Rate | null): void {
    this.#remembered = rate ?? this.#remembered;
  }

  /** The rate, if a new one was measured since the last call. */
  news(): Rate | null {
    const rate = this.#news ? this.#measured() : null;
    this.#news = false;
    return rate;
  }

  /** The link asked for a frame, and gets one of so many bytes: it has taken the one before. */
  frame(bytes: number, now: number): void {
    this.#run ??= { started: now, taken: 0, atOnce: 0 };
    if (this.#last) {
      const [at, taken] = this.#last;
      this.#ran(taken, now);
      this.#taken += taken;
      this.#time += now - at;
      if (now - at > this.#slowest[1]) this.#slowest = [taken, now - at];
    }
    this.#last = [now, bytes];
    let [taken, time] = [this.#taken, this.#time];
    const [slowestBytes, slowestTime] = this.#slowest;
    if (slowestTime >= (time - slowestTime) * 4) [taken, time] = [taken - slowestBytes, time - slowestTime];
    if (time >= WINDOW && taken >= SAMPLE) {
      const measured = rateOf(taken, time);
      const atOnce = this.#run.atOnce - Math.floor((measured * FIRST_MOMENT) / 1000);
      this.#restart([this.#rates?.[1] ?? null, [measured, now]], Math.max(0, atOnce));
    }
    this.#noticeSpeed(now);
  }

  /** The link asked for a frame and there was none: it has taken the last one. */
  idle(now: number): void {
    if (this.#last) {
      this.#ran(this.#last[1], now);
      this.#noticeSpeed(now);
    }
    this.#last = this.#run = null;
    this.#taken = this.#time = 0;
    this.#slowest = [0, 0];
  }

  /** The higher of the last two rates. */
  #measured(): Rate | null {
    const [before, last] = this.#rates ?? [];
    return before && last ? { bytes: Math.max(before[0], last[0]), measured: last[1], buffered: this.#buffered } : null;
  }

  #ran(bytes: number, now: number): void {
    if (!this.#run) return;
    this.#run.taken += bytes;
    if (now - this.#run.started <= FIRST_MOMENT) this.#run.atOnce = this.#run.taken;
  }

  /** If the link has become much faster than the rate that is used, the new rate is used at once. */
  #noticeSpeed(now: number): void {
    const believed = this.believed(now)?.rate;
    if (!this.#run || !believed) return;
    const beyond = this.#run.taken - believed.buffered;
    if (beyond < Math.max(SAMPLE, believed.buffered / 2)) return;
    const measured = rateOf(beyond, now - this.#run.started);
    if (measured >= believed.bytes * 2) {
      this.#restart(
        [
          [measured, now],
          [measured, now],
        ],
        believed.buffered,
      );
    }
  }

  #restart(rates: Rates, buffered: number): void {
    this.#rates = rates;
    this.#buffered = buffered;
    this.#news = true;
    this.#taken = this.#time = 0;
    this.#slowest = [0, 0];
  }
}
