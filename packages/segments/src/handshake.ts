// Watches the handshake as it passes: adds our capability, learns the peer's, and hides both from an application that did not ask.

import type { Chunking } from './api.js';
import type { Found } from './json.js';
import { brief, idKey, type Message } from './message.js';
import type { Role } from './order.js';
import type { Rate } from './pace.js';

interface Remembered {
  theirs: Chunking | null;
  /** Whether the protocol version in use has chunking. */
  version: boolean;
}

/** What was negotiated on earlier connections, and the rates of their links, by the id of the client. The oldest are forgotten first. */
export class Negotiated {
  readonly #clients = new Map<string, { agreed?: Remembered; rate?: Rate }>();

  agreed(client: string | null): Remembered | null {
    return (client !== null && this.#clients.get(client)?.agreed) || null;
  }

  rate(client: string | null): Rate | null {
    return (client !== null && this.#clients.get(client)?.rate) || null;
  }

  remember(client: string | null, what: { agreed?: Remembered; rate?: Rate }): void {
    if (client === null) return;
    const before = this.#clients.get(client);
    this.#clients.delete(client);
    this.#clients.set(client, { ...before, ...what });
    if (this.#clients.size > 2048) for (const oldest of this.#clients.keys()) return void this.#clients.delete(oldest);
  }
}

/**
 * In which form the peer may send long messages: in one frame; in segments, because we told it that we take them; or in either, until a
 * server has answered the handshake.
 */
export type Invitation = 'none' | 'segments' | 'either';

/** A handshake request that was not answered yet. */
interface Pending {
  id: string;
  isInitialize: boolean;
  client: string | null;
  /** On the server: the limits of the client. */
  offered: Chunking | null;
  /** Whether the client's application itself wrote a capability. */
  wanted: boolean;
  /** Whether the client offered a protocol version that has chunking. */
  version: boolean;
}

/** What both sides have agreed on so far. */
export class Agreement {
  invitation: Invitation;
  #pending: Pending | null = null;
  #client: string | null = null;

  constructor(
    readonly role: Role,
    readonly ours: Chunking,
    /** What the peer takes; `null` while it takes no segments. */
    public theirs: Chunking | null,
    readonly negotiated: Negotiated,
    readonly count: (name: string) => void,
  ) {
    this.invitation = theirs ? 'segments' : role === 'server' ? 'either' : 'none';
  }

  /** Whether the peer's limits are not known until the handshake is answered. */
  get isWaiting(): boolean {
    return this.#pending !== null && (this.role === 'client' || this.#pending.isInitialize);
  }

  /** The rate of earlier links to this client. */
  get rate(): Rate | null {
    return this.negotiated.rate(this.#client);
  }

  noteRate(rate: Rate): void {
    this.negotiated.remember(this.#client, { rate });
  }

  /** The handshake request could not be sent, so no answer will come. */
  withdraw(): void {
    this.#pending = null;
  }

  /** Looks at a message. Returns its text as it has to be, or `null` if it does not belong to the handshake. */
  pass(from: Role, message: Message): string | null {
    const { method, id } = message;
    if (id === null) return null;
    if (from === 'server') return method ? null : this.#response(message, idKey(id));
    return /^(initialize|reconnect)$/.test(method) ? this.#request(message, idKey(id)) : null;
  }

  #request(message: Message, id: string): string {
    const isInitialize = message.method === 'initialize';
    const handshake = new Handshake(message, 'params');
    const name = message.string('params.clientId');
    const client = (this.#client = name === null ? null : brief(name));
    const remembered = isInitialize ? null : this.negotiated.agreed(client);
    // A `reconnect` names no version. If nothing is remembered of the client, the newest is assumed.
    const version = isInitialize ? handshake.offersVersion : (remembered?.version ?? true);
    const known = remembered?.theirs ?? null;
    this.#pending = { id, isInitialize, client, offered: null, wanted: handshake.isThere, version };
    if (this.role === 'client') {
      this.invitation = version ? 'segments' : 'none';
      this.theirs = known;
      return version ? handshake.with(this.ours) : handshake.without();
    }
    if (handshake.isInvalid) this.count('invalid-capability');
    this.#pending.offered = version ? (handshake.theirs ?? known) : null;
    // The result of a `reconnect` may be segmented at once. That of an `initialize` may not, because it tells the version.
    this.theirs = isInitialize ? null : this.#pending.offered;
    return handshake.without();
  }

  #response(message: Message, id: string): string | null {
    const pending = this.#pending;
    if (pending?.id !== id) return null;
    this.#pending = null;
    if (message.isError) return null;
    const handshake = new Handshake(message, 'result');
    const version = pending.version && (!pending.isInitialize || handshake.hasVersion);
    let text: string | null;
    if (this.role === 'client') {
      if (handshake.isInvalid) this.count('invalid-capability');
      this.invitation = version ? 'segments' : 'none';
      // If the server does not repeat its limits, the remembered ones still hold.
      this.theirs = version ? (handshake.theirs ?? this.theirs) : null;
      text = pending.wanted ? null : handshake.without();
    } else {
      this.theirs = version ? pending.offered : null;
      // Only a client that advertised chunking is told of ours.
      this.invitation = this.theirs ? 'segments' : 'none';
      text = this.theirs ? handshake.with(this.ours) : handshake.without();
    }
    this.negotiated.remember(pending.client, { agreed: { theirs: this.theirs, version } });
    return text;
  }
}

/** Longer capabilities and lists of versions than this are nobody's. */
const LONGEST = 4096;

/** What a handshake message offers, and where its capability is or would be. */
class Handshake {
  readonly theirs: Chunking | null;
  readonly #chunking: Found | undefined;

  constructor(
    readonly message: Message,
    readonly body: 'params' | 'result',
  ) {
    this.#chunking = this.#find('.capabilities.chunking');
    this.theirs = parsed(this.#json('.capabilities.chunking'));
  }

  get isThere(): boolean {
    return this.#chunking !== undefined;
  }

  /** Whether there is a capability that is not valid. */
  get isInvalid(): boolean {
    return !this.theirs && /[^n]/.test(this.#sort('.capabilities.chunking'));
  }

  /** Whether any version that the client offers has chunking. */
  get offersVersion(): boolean {
    const versions = this.#json('.protocolVersions');
    return Array.isArray(versions) && versions.some(hasChunking);
  }

  /** Whether the negotiated version has chunking. */
  get hasVersion(): boolean {
    return hasChunking(this.message.string('result.protocolVersion'));
  }

  /** The text with our capability in it. */
  with(ours: Chunking): string {
    const chunking = JSON.stringify({
      'maxIncomingFrameBytes': ours.maxFrameBytes,
      'maxIncomingMessageBytes': ours.maxMessageBytes,
      'maxIncomingGroups': ours.maxGroups,
      groupTimeoutMs: ours.groupTimeoutMs,
      settledCursor: ours.settledCursor,
    });
    if (this.#chunking) return this.#replace(this.#chunking, chunking);
    const capabilities = this.#find('.capabilities');
    const body = this.#find('');
    if (capabilities && this.#sort('.capabilities') === '{') return this.#insert(capabilities, `"chunking":${chunking}`);
    if (capabilities) return this.#replace(capabilities, `{"chunking":${chunking}}`);
    if (body && this.#sort('') === '{') return this.#insert(body, `"capabilities":{"chunking":${chunking}}`);
    return this.message.text;
  }

  /** The text without the capability, and without `capabilities` if nothing else is in it. */
  without(): string {
    if (!this.#chunking) return this.message.text;
    const own = this.#member(this.#chunking);
    const all = this.#find('.capabilities');
    const { start, end } = own.isOnly && all ? this.#member(all) : own;
    return this.message.text.slice(0, start) + this.message.text.slice(end);
  }

  #find(path: string): Found | undefined {
    return this.message.find(this.body + path);
  }

  #sort(path: string): string {
    return this.message.sort(this.body + path);
  }

  #json(path: string): unknown {
    const found = this.#find(path);
    return found && found.end - found.start <= LONGEST ? JSON.parse(this.message.raw(this.body + path)) : undefined;
  }

  #replace({ start, end }: Found, text: string): string {
    const whole = this.message.text;
    return whole.slice(0, this.message.at(start)) + text + whole.slice(this.message.at(end));
  }

  /** Adds a member at the front of an object. */
  #insert({ start }: Found, member: string): string {
    const { text } = this.message;
    const at = this.message.at(start) + 1;
    let next = at;
    while (/\s/.test(text[next])) next++;
    return `${text.slice(0, at)}${member}${text[next] === '}' ? '' : ','}${text.slice(at)}`;
  }

  /** A member by its value: its key, its value and one comma, if there is one. */
  #member(value: Found): { start: number; end: number; isOnly: boolean } {
    const { text } = this.message;
    const back = (at: number): number => {
      while (/\s/.test(text[at - 1])) at--;
      return at;
    };
    let end = this.message.at(value.end);
    const colon = back(this.message.at(value.start)) - 1;
    const quote = text.lastIndexOf('"', back(colon) - 2);
    let start = back(quote);
    let after = end;
    while (/\s/.test(text[after])) after++;
    if (text[start - 1] === ',') return { start: start - 1, end, isOnly: false };
    const isOnly = text[after] !== ',';
    start = quote;
    if (!isOnly) end = after + 1;
    return { start, end, isOnly };
  }
}

/** Reads `capabilities.chunking`; `null` if it is not valid. */
function parsed(value: unknown): Chunking | null {
  if (typeof value !== 'object' || value === null) return null;
  const members = value as Record<string, unknown>;
  const positive = (key: string, otherwise = 0): number => {
    const number = members[key] === undefined ? otherwise : members[key];
    const most = Math.min(typeof number === 'number' ? number : 0, 2 ** 64);
    return most > 0 && Number.isInteger(most) ? most : 0;
  };
  const chunking = {
    maxFrameBytes: positive('maxIncomingFrameBytes'),
    maxMessageBytes: positive('maxIncomingMessageBytes'),
    maxGroups: positive('maxIncomingGroups', 8),
    groupTimeoutMs: positive('groupTimeoutMs', 30_000),
    settledCursor: members.settledCursor === true,
  };
  const { maxFrameBytes, maxMessageBytes, maxGroups, groupTimeoutMs } = chunking;
  return maxFrameBytes && maxGroups && groupTimeoutMs && maxMessageBytes >= maxFrameBytes ? chunking : null;
}

/** Whether this protocol version has chunking: 0.3.0 or later. */
function hasChunking(version: unknown): boolean {
  if (typeof version !== 'string') return false;
  const [major, minor = 0] = version.split(/[.+-]/).map((part) => (/^\d+$/.test(part) ? Number(part) : -1));
  return major > 0 || (major === 0 && minor >= 3);
}
