// Runs the steps of a case as a driver would, and holds what came out against what the case expects.
import { Budget } from '../../build/budget.js';
import { Connection } from '../../build/connection.js';
import { Negotiated } from '../../build/handshake.js';
import { checked } from '../../build/limits.js';
import { closedByPeer, closedHere } from '../../build/reasons.js';
import { plain } from './raw.mjs';
import { known } from './suite.mjs';
import { numbered, sha256, shown, textOf } from './text.mjs';
import { messages, segment, trace } from './wire.mjs';

/** Runs a case. Returns what differs. With `asBytes`, all frames come as binary frames. */
export function run({ node, setup }, asBytes = false) {
  known(node, ['name', 'each', 'hostile', 'known_gap', 'side', 'setup', 'steps', 'expect']);
  const driver = new Driver(setup, asBytes);
  try {
    for (const [n, step] of node.members.get('steps').items.entries()) driver.step(step, n + 1);
    if (setup.hold) driver.take(Infinity);
    driver.settle();
    driver.check(node.members.get('expect'), 'at the end');
  } catch (error) {
    driver.differ(error.stack);
  }
  driver.uncrowd();
  driver.connection.close(closedHere(1000, 'normal'));
  while (driver.connection.pollEvent());
  if (driver.budget.held()) driver.differ(`after the connection is gone, ${driver.budget.held()} bytes are held`);
  return driver.differences;
}

const fresh = () => ({ messages: [], frames: [], sent: [], progress: [], failed: [], expired: [], closed: null });

class Driver {
  differences = [];
  now = 1000;
  negotiated = new Negotiated();
  crowd = [];
  record = fresh();

  constructor(setup, asBytes) {
    known({ members: new Map(Object.entries(setup)), raw: 'setup' }, ['role', 'limits', 'budget', 'anonymous', 'delivery', 'agreed', 'hold']);
    this.setup = setup;
    this.asBytes = asBytes;
    this.budget = new Budget(setup.budget);
    this.connect();
  }

  connect() {
    const { role = 'client', limits = {}, anonymous, delivery = 'settled', agreed } = this.setup;
    const given = {
      maxFrameBytes: limits.frame,
      maxMessageBytes: limits.message,
      maxDepth: limits.depth,
      maxGroups: limits.groups,
      groupTimeoutMs: limits.timeout,
      graceMs: limits.grace,
      maxQueuedBytes: limits.queued,
      maxHeldBytes: limits.held,
    };
    this.connection = new Connection({
      role,
      limits: checked(given, this.budget.limits),
      delivery: delivery === 'start_order' ? 'start-order' : delivery,
      negotiated: this.negotiated,
      account: this.budget.account(anonymous ? undefined : 'someone'),
      agreed: agreed ? chunking(agreed) : null,
    });
    this.sends = [];
    this.ended = new Map();
    this.link = null;
    this.told = { link: null, application: null };
  }

  differ(how) {
    this.differences.push(how);
  }

  step(node, n) {
    const [[name, value], ...more] = node.members;
    if (!STEPS[name] || more.length) throw new Error(`step ${n} is unknown: ${node.raw}`);
    const before = this.differences.length;
    STEPS[name](this, value);
    for (let at = before; at < this.differences.length; at++) this.differences[at] = `at step ${n}: ${this.differences[at]}`;
  }

  frame(bytes) {
    const text = bytes.toString();
    const isText = Buffer.from(text).equals(bytes);
    this.connection.frame(isText && !this.asBytes ? text : new Uint8Array(bytes), this.now);
    this.handled();
  }

  send(bytes, isFree = false) {
    this.sends.push(bytes);
    this.connection.send(this.sends.length, bytes.toString(), isFree);
    this.handled();
  }

  handled() {
    if (!this.setup.hold || this.told.link) this.take(Infinity);
    this.settle();
  }

  take(count) {
    for (let n = 0; n < count; n++) {
      const transmit = this.connection.pollTransmit(this.now);
      if (!transmit) return;
      if (this.told.link) this.differ('something is transmitted after the close');
      if ('close' in transmit) this.told.link = transmit.close;
      else this.taken(Buffer.from(transmit.frame));
    }
  }

  /** No frame is longer than the link and the peer take. */
  taken(frame) {
    this.record.frames.push(frame);
    const { peer } = this.connection;
    if (peer && frame.length > peer.maxFrameBytes) this.differ(`a frame of ${frame.length} bytes goes to a peer that takes ${peer.maxFrameBytes}`);
    if (!this.link) return;
    const { cap, fixed = 0, escapes } = this.link;
    const wire = fixed + (escapes ? Buffer.byteLength(JSON.stringify(frame.toString())) - 2 : frame.length);
    if (wire > cap) this.differ(`a frame takes ${wire} bytes on a link of ${cap}`);
  }

  /** The application takes every event. */
  settle() {
    for (let event = this.connection.pollEvent(); event; event = this.connection.pollEvent()) {
      const isLate = event.type === 'failed' && event.error.name === 'send-disconnected';
      if (this.told.application && !isLate) this.differ(`an event comes after the close: ${event.type}`);
      RECORD[event.type](this, event);
    }
  }

  end(ticket, how) {
    if (this.ended.has(ticket)) this.differ(`message ${ticket} is ${how}, but it was ${this.ended.get(ticket)} already`);
    this.ended.set(ticket, how);
  }

  sleep(until) {
    for (let due = this.due(); due !== null && due <= until; due = this.due()) {
      this.now = Math.max(due, this.now);
      this.connection.timeout(this.now);
      this.handled();
      const next = this.due();
      if (next !== null && next <= this.now) {
        this.differ('a timeout is due again at once');
        break;
      }
    }
    this.now = until;
  }

  due() {
    return this.connection.pollTimeout();
  }

  hold(principal, bytes) {
    const account = this.budget.account(principal);
    const grant = account.reserve(bytes, { started: this.now, timeout: 30_000 });
    if (grant) this.crowd.push(grant);
  }

  uncrowd() {
    for (const grant of this.crowd.splice(0)) grant.complete();
  }

  check(node, where) {
    const differ = (what, got, want) => {
      if (got !== want) this.differ(`${where}: ${what}: got ${got}, want ${want}`);
    };
    if (this.told.link !== this.told.application) this.differ('the link and the application are told of different closes');
    const { members: expect } = node;
    for (const key of expect.keys()) if (!EXPECTED.has(key)) throw new Error(`unknown expectation ${key}`);
    const { record, connection } = this;
    const json = (value) => JSON.stringify(value);
    const texts = (nodes) => nodes.map((text) => shown(textOf(text))).join(' | ');
    const listed = (key) => expect.get(key)?.items ?? [];
    const value = (key) => plain(expect.get(key));
    const mentioned = (key, got) => expect.has(key) && differ(key, json(got), json(value(key)));

    if (expect.has('message_count')) mentioned('message_count', record.messages.length);
    else differ('messages', record.messages.map(({ text }) => shown(text)).join(' | '), texts(listed('messages')));
    const failed = record.failed.map(({ ticket, error, reply }) => [ticket, error.name, reply]);
    const wanted = listed('failed').map(({ members }) => {
      const reply = members.get('reply');
      return [plain(members.get('ticket')), plain(members.get('error')), reply ? textOf(reply).toString() : null];
    });
    differ('failed', json(failed), json(wanted));
    differ('expired', json(record.expired), json(value('expired') ?? []));
    const { closed: why } = record;
    differ('closed', json(why && [why.name, why.code]), json(value('closed') ?? null));
    if (expect.has('because')) differ('because', why?.because ?? '', value('because'));
    differ('stopped', String(!connection.wantsFrames), String(value('stopped') ?? false));
    if (expect.has('frames_like')) this.like(expect.get('frames_like').members, differ);
    else differ('frames', record.frames.map(shown).join(' | '), texts(listed('frames')));

    mentioned('ordinals', record.messages.map(({ ordinal }) => ordinal));
    mentioned('sent', record.sent);
    mentioned('progress', record.progress);
    const counters = Object.fromEntries([...connection.counters].sort(([a], [b]) => (a < b ? -1 : 1)));
    const counts = value('counters');
    if (counts) differ('counters', json(counters), json(Object.fromEntries(Object.entries(counts).sort(([a], [b]) => (a < b ? -1 : 1)))));
    const due = this.due();
    mentioned('timeout', due === null ? null : Math.max(0, due - this.now));
    mentioned('held', this.budget.held());
    mentioned('settled', connection.settled);
    // Compared as written: a seq may be larger than what a number of JavaScript can hold.
    if (expect.has('cursor')) differ('cursor', String(connection.cursor), expect.get('cursor').raw);
    const peer = value('peer');
    if (peer !== undefined) differ('peer', json(connection.peer), json(peer && chunking(peer)));
    for (const name of [...record.failed.map(({ error }) => error.name), ...(why ? [why.name] : [])]) {
      if (!connection.counters.get(name)) this.differ(`${name} happened and is not counted`);
    }
    this.record = fresh();
  }

  like(like, differ) {
    const { frames } = this.record;
    known({ members: like, raw: 'frames_like' }, ['count', 'longest', 'at_most', 'messages', 'trace', 'contain']);
    const longest = Math.max(0, ...frames.map(({ length }) => length));
    const want = (key) => plain(like.get(key));
    if (like.has('count')) differ("frames' count", frames.length, want('count'));
    if (like.has('longest')) differ("frames' longest", longest, want('longest'));
    if (like.has('at_most')) differ("frames' at_most", Math.max(longest, want('at_most')), want('at_most'));
    if (like.has('messages')) {
      const texts = like.get('messages').items.map((text) => sha256(textOf(text)));
      differ("frames' messages", messages(frames).map(sha256).join(), texts.join());
    }
    if (like.has('trace')) differ("frames' trace", JSON.stringify(trace(this.sends, frames)), JSON.stringify(want('trace')));
    if (like.has('contain')) {
      const text = textOf(like.get('contain'));
      differ("frames' contain", frames.every((frame) => frame.includes(text)), true);
    }
  }
}

const RECORD = {
  message: ({ record }, { text, ordinal }) => record.messages.push({ text: Buffer.from(text), ordinal }),
  sent: (driver, { ticket }) => {
    driver.end(ticket, 'sent');
    driver.record.sent.push(ticket);
  },
  failed: (driver, event) => {
    driver.end(event.ticket, 'failed');
    driver.record.failed.push(event);
  },
  expired: ({ record }, { ordinal, received }) => record.expired.push([ordinal, received]),
  progress: (driver, { direction, id, done, total }) => {
    if (done > total) driver.differ(`more is done than there is: ${done} of ${total}`);
    driver.record.progress.push(`${direction === 'in' ? 'their' : 'our'} ${id}: ${done} of ${total}`);
  },
  closed: (driver, { reason }) => {
    driver.record.closed = driver.told.application = reason;
  },
};

const EXPECTED = new Set(
  ('messages message_count frames frames_like closed failed expired stopped because ordinals sent progress counters settled ' +
    'cursor peer timeout held').split(' '),
);

const STEPS = {
  frame: (driver, node) => driver.frame(textOf(node)),
  segment: (driver, { items: [group, index, total, text] }) =>
    driver.frame(segment(plain(group), plain(index), plain(total), textOf(text))),
  segments: (driver, node) => segments(node).forEach((frame) => driver.frame(frame)),
  flood: (driver, { members }) => {
    const text = textOf(members.get('frame'));
    const from = plain(members.get('from')) ?? 0;
    for (let n = 0; n < plain(members.get('count')); n++) driver.frame(numbered(text, from + n));
  },
  send: (driver, node) => driver.send(textOf(node)),
  send_free: (driver, node) => driver.send(textOf(node), true),
  send_many: (driver, { members }) => {
    const text = textOf(members.get('text'));
    for (let n = 0; n < plain(members.get('count')); n++) driver.send(numbered(text, n));
  },
  capacity: (driver, node) => {
    driver.link = plain(node);
    const { cap, fixed = 0, escapes } = driver.link;
    const overhead = (bytes, escaped) => fixed + (escapes ? escaped - bytes : 0);
    driver.connection.capacity({ cap, overhead: fixed || escapes ? overhead : undefined });
    driver.handled();
  },
  wait: (driver, node) => {
    driver.now += plain(node);
  },
  sleep: (driver, node) => driver.sleep(driver.now + plain(node)),
  timeout: (driver) => {
    driver.connection.timeout(driver.now);
    driver.handled();
  },
  pause: (driver, node) => {
    driver.connection.pause(plain(node), driver.now);
    driver.handled();
  },
  close: (driver, node) => {
    const why = plain(node);
    if (why === 'normal') driver.connection.close(closedHere(1000, 'normal'));
    else if (why === 'restart') driver.connection.close(closedHere(1012, 'restarting'));
    else driver.connection.close(closedByPeer(why.peer));
    driver.handled();
  },
  take: (driver, node) => {
    driver.take(plain(node));
    driver.settle();
  },
  crowd: (driver, node) => driver.hold('another', plain(node)),
  crowd_self: (driver, node) => driver.hold('someone', plain(node)),
  uncrowd: (driver) => driver.uncrowd(),
  note_seq: (driver, node) => driver.connection.noteSeq(plain(node)[0], BigInt(plain(node)[1])),
  reconnect: (driver) => {
    driver.connection.close(closedByPeer(1006));
    while (driver.connection.pollEvent());
    driver.record = fresh();
    driver.connect();
  },
  expect: (driver, node) => driver.check(node, 'so far'),
};

/** The frames of a message that is cut at given lengths. */
function segments({ members }) {
  const [group, each, cuts, only] = ['group', 'each', 'cuts', 'only'].map((key) => plain(members.get(key)));
  const text = textOf(members.get('of'));
  const total = each ? Math.ceil(text.length / each) : cuts.length + 1;
  const cut = (index) => (each ? Math.min(each * index, text.length) : index === 0 ? 0 : (cuts[index - 1] ?? text.length));
  const [from, to] = only ?? [0, total];
  if (from >= to || to > total) throw new Error(`there are ${total} segments`);
  return Array.from({ length: to - from }, (_, n) => segment(group, from + n, total, text.subarray(cut(from + n), cut(from + n + 1))));
}

const chunking = ({ frame, message, groups = 8, timeout = 30_000, settled_cursor: settledCursor = false }) => ({
  maxFrameBytes: frame,
  maxMessageBytes: message,
  maxGroups: groups,
  groupTimeoutMs: timeout,
  settledCursor,
});
