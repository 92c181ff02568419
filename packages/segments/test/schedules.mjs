// One seeded schedule: a host whose connection is the machine in Rust, a client whose connection is ours, and a network that delays and
// cuts. A ledger holds what was sent against what was applied, by direction, lane, number and SHA-256.
import { createHash } from 'node:crypto';
import { Budget } from '../build/budget.js';
import { Connection } from '../build/connection.js';
import { Negotiated } from '../build/handshake.js';
import { checked } from '../build/limits.js';
import { closedByPeer } from '../build/reasons.js';

/** Numbers that depend only on the seed. */
export function random(seed) {
  let state = (seed * 2654435761) >>> 0 || 1;
  const next = () => {
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    return (state >>> 0) / 2 ** 32;
  };
  for (let n = 0; n < 8; n++) next();
  return { below: (limit) => Math.floor(next() * limit), one: (list) => list[Math.floor(next() * list.length)], chance: (part) => next() < part };
}

const hash = (text) => createHash('sha256').update(text).digest('base64').slice(0, 16);
const CHANNELS = ['ahp-chat:/a', 'ahp-chat:/b', 'ahp-terminal:/c'];
const LETTERS = ['x', '"', '\\', '\n', 'é', '漢', '😀', 'plain text '];

/** What was found wrong, in four numbers. */
export const fault = () => ({ lost: 0, duplicated: 0, reordered: 0, altered: 0 });

/** Runs a schedule. A saboteur does one thing wrong, which the ledger has to show. */
export async function runSchedule(machine, seed, saboteur = null) {
  return new World(machine, seed, saboteur).run();
}

class World {
  ledger = fault();
  now = 1000;
  cuts = 0;
  large = 0;

  constructor(machine, seed, saboteur) {
    this.machine = machine;
    this.saboteur = saboteur;
    this.rng = random(seed);
    this.seed = seed;
    const { rng } = this;
    this.delivery = rng.one(['start-order', 'settled']);
    const limits = () => ({ frame: rng.one([512, 700, 1024, 4096]), message: 60_000, groups: 1 + rng.below(4), timeout: 60_000 });
    this.ours = limits();
    this.theirs = limits();
    this.cap = rng.one([Infinity, Infinity, 600, 2000]);
    this.negotiated = new Negotiated();
    /** The host's log: what a client that comes back gets again. */
    this.log = [];
    /** What the client has applied: the highest seq of each channel, and what it knew to be its cursor. */
    this.applied = new Map();
    this.got = [];
    this.cursor = 0;
    /** What the client dispatches, and what the host got of it. */
    this.dispatched = [];
    this.received = [];
    this.mustSendFrom = 0;
  }

  async run() {
    const { rng } = this;
    const [actions, dispatches] = [4 + rng.below(20), rng.below(8)];
    await this.connect(true);
    let idle = 0;
    for (let step = 0; step < 20_000; step++) {
      this.now += rng.one([0, 0, 1, 5, 50]);
      const isDone = this.log.length >= actions && this.dispatched.length >= dispatches;
      if (!isDone && rng.chance(0.3)) {
        if (this.log.length < actions && rng.chance(0.75)) await this.act();
        else if (this.dispatched.length < dispatches) this.dispatch();
      }
      const moved = await this.move();
      if (this.isClosed || (step < 2000 && this.cuts < 4 && rng.chance(0.012))) await this.cut();
      idle = moved ? 0 : idle + 1;
      if (isDone && idle > 3 && this.isSettled()) break;
    }
    this.compare();
    return { ledger: this.ledger, cuts: this.cuts, large: this.large, messages: this.got.length + this.received.length, delivery: this.delivery };
  }

  isSettled() {
    return this.got.length >= this.log.length && this.received.length >= this.dispatched.length;
  }

  async connect(isFirst) {
    const { ours, theirs, cap } = this;
    const step = { do: 'new', ...theirs, cap: cap === Infinity ? null : cap, forget: isFirst };
    await this.machine.step(step);
    const budget = new Budget();
    const limits = checked(
      { maxFrameBytes: ours.frame, maxMessageBytes: ours.message, maxGroups: ours.groups, groupTimeoutMs: ours.timeout },
      budget.limits,
    );
    const account = budget.account('host');
    this.client = new Connection({ role: 'client', limits, delivery: this.delivery, negotiated: this.negotiated, account, agreed: null });
    if (cap !== Infinity) this.client.capacity({ cap });
    this.isClosed = false;
    this.isOpen = false;
    this.hostSent = Infinity;
    /** Frames on their way. */
    this.toClient = [];
    this.toHost = [];
    this.tickets = 0;
    this.highest = this.cursor;
    const params = { channel: 'ahp-root://', clientId: 'c', protocolVersions: ['1.0.0'] };
    const message = isFirst
      ? { id: 1, method: 'initialize', params }
      : { id: 1, method: 'reconnect', params: { ...params, lastSeenServerSeq: this.cursor } };
    this.send({ jsonrpc: '2.0', ...message });
  }

  /** The host logs an action, and sends it if its client is there. */
  async act() {
    const { rng } = this;
    const channel = rng.one(CHANNELS);
    const serverSeq = (this.log.at(-1)?.seq ?? 0) + 1 + rng.below(3);
    const type = rng.one(['chat/delta', 'terminal/data']);
    const text = JSON.stringify({ jsonrpc: '2.0', method: 'action', params: { channel, serverSeq, action: { type, content: this.content() } } });
    this.log.push({ seq: serverSeq, channel, text });
    if (this.hostSent !== Infinity) await this.hostSend(text);
  }

  content() {
    const { rng } = this;
    const length = rng.one([0, 10, 200, 1500, 8000]);
    if (length > 1000) this.large++;
    return rng.one(LETTERS).repeat(Math.ceil(length / 3));
  }

  dispatch() {
    const { rng } = this;
    const clientSeq = this.dispatched.length + 1;
    const params = { channel: rng.one(CHANNELS), clientSeq, action: { type: 'chat/turnStarted', text: this.content() } };
    const message = { jsonrpc: '2.0', method: 'dispatchAction', params };
    this.dispatched.push(JSON.stringify(message));
    if (this.isOpen) this.send(message);
  }

  send(message) {
    this.client.send(++this.tickets, JSON.stringify(message));
    this.drain();
  }

  async hostSend(text) {
    await this.outcome(await this.machine.step({ do: 'send', now: this.now, ticket: ++this.tickets, text }));
  }

  /** One thing happens on the network. Returns whether anything did. */
  async move() {
    const { rng } = this;
    const what = rng.below(4);
    let moved = false;
    if (what === 0) {
      const count = 1 + rng.below(4);
      for (let n = 0; n < count; n++) {
        const transmit = this.client.pollTransmit(this.now);
        if (!transmit) break;
        moved = true;
        if ('frame' in transmit) this.toHost.push(transmit.frame);
        else this.isClosed = true;
      }
      this.drain();
    } else if (what === 1) {
      const outcome = await this.machine.step({ do: 'take', now: this.now, count: 1 + rng.below(4) });
      moved = outcome.frames.length > 0;
      await this.outcome(outcome);
    } else if (what === 2 && this.toClient.length) {
      moved = true;
      this.client.frame(this.toClient.shift(), this.now);
      this.drain();
    } else if (what === 3 && this.toHost.length) {
      moved = true;
      await this.outcome(await this.machine.step({ do: 'frame', now: this.now, text: this.toHost.shift() }));
    }
    // Nothing may be left out while something could move.
    return moved || this.toClient.length > 0 || this.toHost.length > 0;
  }

  async outcome({ frames, messages, closed: why }) {
    this.toClient.push(...frames);
    if (why && !this.isClosed) {
      this.unexpected ??= why;
      this.isClosed = true;
    }
    for (const text of messages) await this.hostGot(text);
  }

  /** A message reached the host. */
  async hostGot(text) {
    const { id, method, params } = JSON.parse(text);
    if (method === 'dispatchAction') {
      if (params.clientSeq <= this.received.length) return void this.ledger.duplicated++;
      this.received.push({ seq: params.clientSeq, text });
      return;
    }
    const seen = method === 'reconnect' ? params.lastSeenServerSeq : 0;
    const result = { protocolVersion: '1.0.0', serverSeq: 0, lastClientSeq: this.received.length };
    this.hostSent = seen;
    await this.hostSend(JSON.stringify({ jsonrpc: '2.0', id, result }));
    for (const { seq, text: action } of this.log) if (seq > seen) await this.hostSend(action);
  }

  /** What the client's connection reports. */
  drain() {
    for (let event = this.client.pollEvent(); event; event = this.client.pollEvent()) {
      if (event.type === 'closed') this.isClosed = true;
      else if (event.type === 'failed' && event.error.name !== 'send-disconnected') this.unexpected ??= event.error.name;
      else if (event.type === 'message') this.clientGot(event.text);
    }
  }

  clientGot(text) {
    const message = JSON.parse(text);
    if (message.method !== 'action') {
      this.isOpen = true;
      for (const one of this.dispatched.slice(message.result.lastClientSeq)) {
        this.client.send(++this.tickets, one);
      }
      return;
    }
    const { channel, serverSeq } = message.params;
    this.highest = Math.max(this.highest, serverSeq);
    if (serverSeq <= (this.applied.get(channel) ?? 0) && this.saboteur !== 'actions applied twice') return;
    this.applied.set(channel, serverSeq);
    if (this.saboteur === 'a byte changed' && text.length > 1000) return void this.got.push({ seq: serverSeq, channel, text: `${text} ` });
    if (this.saboteur === 'a message overtaken' && this.got.length % 5 === 4) this.got.splice(-1, 0, { seq: serverSeq, channel, text });
    else this.got.push({ seq: serverSeq, channel, text });
  }

  /** The link is lost, with everything on its way. */
  async cut() {
    this.cuts++;
    // A client with a settled cursor resumes there; one that knows nothing of it, from the highest seq that it saw.
    const settled = this.client.cursor === null ? this.cursor : Number(this.client.cursor);
    const isSettled = this.delivery === 'settled' && this.saboteur !== 'a cursor that passes the unfinished';
    this.cursor = isSettled ? Math.max(settled, this.cursor) : this.highest;
    this.client.close(closedByPeer(1006));
    while (this.client.pollEvent());
    await this.connect(false);
  }

  compare() {
    const { ledger } = this;
    const sum = (list) => list.map(({ text }) => hash(text));
    for (const channel of CHANNELS) {
      const of = (list) => list.filter((one) => one.channel === channel);
      this.same(of(this.log), of(this.got), sum);
    }
    this.same(
      this.dispatched.map((text, n) => ({ seq: n + 1, text })),
      this.received,
      sum,
    );
    if (this.unexpected) throw new Error(`seed ${this.seed}: ${this.unexpected}`);
    return ledger;
  }

  same(want, got, sum) {
    const { ledger } = this;
    const seqs = got.map(({ seq }) => seq);
    const known = new Map(want.map(({ seq }, n) => [seq, sum(want)[n]]));
    ledger.duplicated += seqs.length - new Set(seqs).size;
    ledger.lost += want.filter(({ seq }) => !seqs.includes(seq)).length;
    ledger.reordered += seqs.filter((seq, n) => n > 0 && seq < seqs[n - 1]).length;
    ledger.altered += sum(got).filter((one, n) => known.get(got[n].seq) !== one).length;
  }
}
