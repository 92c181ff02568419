// src/budget.ts
var STEP = 16 << 10;
var STANDSTILL = 3e4;
var ReadClock = class {
  #counted = 0;
  #since = null;
  #paused = false;
  /** The time on the clock. */
  read(now2) {
    if (!this.#paused) this.#since ??= now2;
    return this.#counted + (this.#since === null ? 0 : now2 - this.#since);
  }
  /** Stops the clock, or starts it again. */
  pause(paused, now2) {
    this.#counted = this.read(now2);
    this.#since = paused ? null : now2;
    this.#paused = paused;
  }
  /** When the clock will show `reading`, if it is not stopped before; `null` while it is stopped. */
  when(reading) {
    return this.#since === null ? null : this.#since + reading - this.#counted;
  }
};
var Budget = class {
  limits;
  #accounts = /* @__PURE__ */ new Set();
  #groups = /* @__PURE__ */ new Set();
  constructor(limits = {}) {
    this.limits = { process: 512 << 20, principal: 320 << 20, floor: 64 << 10, ...limits };
  }
  /** Bytes that all connections hold, floors counted. */
  held() {
    let sum = 0;
    for (const account of this.#accounts) sum += account.held;
    return sum;
  }
  /** The account of one connection. Without a principal there is only the floor. */
  account(principal) {
    return new Account(this, principal);
  }
  /** Bytes of a principal, or of all, beyond the floors. */
  #drawn(principal) {
    let sum = 0;
    for (const account of this.#accounts) {
      if (principal === void 0 || account.principal === principal) sum += this.#beyond(account.held);
    }
    return sum;
  }
  #beyond(held) {
    return Math.max(0, held - this.limits.floor);
  }
  /** Adds to what an account holds. Returns false if they are not available, and marks a group of another account for eviction. */
  hold(account, bytes, now2) {
    const held = account.held + bytes;
    const draw = this.#beyond(held) - this.#beyond(account.held);
    if (draw > 0) {
      const { principal } = account;
      if (principal === void 0 || this.#drawn(principal) + draw > this.limits.principal) return false;
      const missing = this.#drawn() + draw - this.limits.process;
      if (missing > 0) {
        this.#evict(account, missing, now2);
        return false;
      }
    }
    this.set(account, held);
    return true;
  }
  /** Sets what an account holds. */
  set(account, held) {
    account.held = held;
    if (held) this.#accounts.add(account);
    else this.#accounts.delete(account);
  }
  track(grant, isOpen) {
    if (isOpen) this.#groups.add(grant);
    else this.#groups.delete(grant);
  }
  /** Marks the group that has stood still longest, else the one furthest behind its schedule whose owner is over its fair part. */
  #evict(asking, missing, now2) {
    let going = 0;
    for (const grant of this.#groups) if (grant.evicted) going += grant.bytes;
    if (going >= missing) return;
    const owners = /* @__PURE__ */ new Set([asking.principal]);
    for (const account of this.#accounts) if (this.#beyond(account.held)) owners.add(account.principal);
    const fair = this.limits.process / owners.size;
    let worst = null;
    let most = 0;
    const consider = (grant, badness) => {
      if (badness > most) [worst, most] = [grant, badness];
    };
    const others = [...this.#groups].filter((grant) => !grant.evicted && grant.account !== asking);
    for (const grant of others) consider(grant, grant.standstill(now2));
    if (!worst) {
      for (const grant of others) {
        const { principal } = grant.account;
        if (principal !== void 0 && this.#drawn(principal) > fair) consider(grant, grant.behind(now2));
      }
    }
    worst?.evict();
  }
};
var Account = class {
  constructor(budget, principal) {
    this.budget = budget;
    this.principal = principal;
  }
  budget;
  principal;
  held = 0;
  clock = new ReadClock();
  /** Called when a group of this account is marked for eviction. */
  onevict = null;
  /** Reserves bytes for a group; `null` if they are not available. */
  reserve(bytes, schedule) {
    return this.budget.hold(this, bytes, schedule.started) ? new Grant(this, bytes, schedule) : null;
  }
  /** Whether bytes could be reserved if nobody held anything. */
  could(bytes) {
    const { process, principal, floor } = this.budget.limits;
    return bytes <= floor + (this.principal === void 0 ? 0 : Math.min(principal, process));
  }
};
var Grant = class {
  constructor(account, bytes, schedule) {
    this.account = account;
    this.bytes = bytes;
    this.schedule = schedule;
    this.#started = this.#progressAt = account.clock.read(schedule.started);
    this.#progress = 0;
    account.budget.track(this, true);
  }
  account;
  bytes;
  schedule;
  evicted = false;
  #received = 0;
  #progress;
  #progressAt;
  #started;
  /** Reports how much has arrived. */
  note(received, now2) {
    this.#received = received;
    if (received >= this.#progress + STEP) {
      this.#progress = received;
      this.#progressAt = this.account.clock.read(now2);
    }
  }
  /** Grows to so many bytes in all. Returns false if they are not available. */
  grow(bytes, now2) {
    if (bytes <= this.bytes) return true;
    if (!this.account.budget.hold(this.account, bytes - this.bytes, now2)) return false;
    this.bytes = bytes;
    return true;
  }
  /** The message is complete: what is reserved beyond `bytes` is given back, and the rest is never evicted. */
  complete(bytes = 0) {
    const { budget } = this.account;
    budget.track(this, false);
    if (bytes < this.bytes) {
      budget.set(this.account, this.account.held - this.bytes + bytes);
      this.bytes = bytes;
    }
  }
  evict() {
    this.evicted = true;
    this.account.onevict?.();
  }
  /** How long there was no progress, if that is too long, else 0. */
  standstill(now2) {
    const time = this.account.clock.read(now2) - this.#progressAt;
    return time >= STANDSTILL ? time : 0;
  }
  /** How many bytes are missing, compared with an even pace. Time in which the connection was not read counts half. */
  behind(now2) {
    const age = (this.account.clock.read(now2) - this.#started + now2 - this.schedule.started) / 2;
    const part = Math.min(1, age / Math.max(this.schedule.timeout, 1e-3));
    return Math.floor(this.bytes * part) - this.#received;
  }
};

// src/bytes.ts
var { Buffer } = globalThis;
var encoder = new TextEncoder();
var encode = (text) => encoder.encode(text);
var utf8Length = (text) => Buffer ? Buffer.byteLength(text) : encode(text).length;
var buffer = (bytes) => Buffer?.from(bytes.buffer, bytes.byteOffset, bytes.length);
function decode(bytes, stream = false) {
  const ascii = bytes.length > LONG && buffer(bytes)?.toString("latin1");
  if (ascii && utf8Length(ascii) === bytes.length) return ascii;
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes, { stream });
  } catch {
    return null;
  }
}
var LONG = 1 << 16;
var decodedLength = (data) => Math.ceil(data.length / 4) * 3 - (data.endsWith("==") ? 2 : data.endsWith("=") ? 1 : 0);
var allocate = (length) => Buffer?.allocUnsafe(length) ?? new Uint8Array(length);
function decodeBase64(data, into, at) {
  const length = decodedLength(data);
  const place = into.subarray(at, at + length);
  const end = data.slice(-4);
  try {
    if (data.length % 4 || btoa(atob(end)) !== end) return false;
    if (Buffer) return into.write(data, at, length, "base64") === length && !data.includes("-") && !data.includes("_");
    if (place.setFromBase64) return place.setFromBase64(data, { lastChunkHandling: "strict" }).written === length;
    const binary = atob(data);
    for (let n = 0; n < length; n++) place[n] = binary.charCodeAt(n);
    return binary.length === length;
  } catch {
    return false;
  }
}
function encodeBase64(bytes) {
  const own = buffer(bytes)?.toString("base64") ?? bytes.toBase64?.();
  if (own !== void 0) return own;
  let binary = "";
  for (let at = 0; at < bytes.length; at += 8192) binary += String.fromCharCode(...bytes.subarray(at, at + 8192));
  return btoa(binary);
}

// src/json.ts
var WANTED = new Set(
  "jsonrpc method id params result error params.groupId params.index params.total params.data params.channel params.serverSeq params.requestId params.id params.action params.action.type params.clientId params.protocolVersions result.protocolVersion params.capabilities params.capabilities.chunking result.capabilities result.capabilities.chunking".split(" ")
);
var WANTED_DEPTH = 4;
var LONGEST_KEY = 250;
var VALUE = 1;
var ELEMENT = 2;
var MEMBER = 3;
var KEY = 4;
var COLON = 5;
var AFTER_ELEMENT = 6;
var AFTER_MEMBER = 7;
var DONE = 8;
var ZERO = 9;
var DIGITS = 10;
var FRACTION = 11;
var EXPONENT = 12;
var MINUS = 13;
var POINT = 14;
var E = 15;
var SIGN = 16;
var TEXT = 17;
var KEY_TEXT = 23;
var WORDS = 29;
var BEGINS = 64;
var ENDS = 128;
var CLOSES = ENDS + 1;
var NEXT = new Uint8Array(40 << 8);
var rule = (states, bytes, next) => {
  for (const state of states) for (const byte of bytes) NEXT[state << 8 | byte.charCodeAt(0)] = next;
};
var NON_ZERO = "123456789";
var NUMERALS = `0${NON_ZERO}`;
for (let state = VALUE; state <= DONE; state++) rule([state], " \n\r	", state);
var BEGINNINGS = [VALUE, ELEMENT];
rule(BEGINNINGS, '"', BEGINS + TEXT);
rule(BEGINNINGS, "{", BEGINS + MEMBER);
rule(BEGINNINGS, "[", BEGINS + ELEMENT);
rule(BEGINNINGS, "-", BEGINS + MINUS);
rule(BEGINNINGS, "0", BEGINS + ZERO);
rule(BEGINNINGS, NON_ZERO, BEGINS + DIGITS);
var letter = WORDS;
for (const word of ["true", "false", "null"]) {
  rule(BEGINNINGS, word[0], BEGINS + letter);
  for (const next of word.slice(1, -1)) rule([letter], next, ++letter);
  rule([letter++], word.slice(-1), ENDS);
}
rule([ELEMENT, AFTER_ELEMENT], "]", CLOSES);
rule([MEMBER, AFTER_MEMBER], "}", CLOSES);
rule([MEMBER, KEY], '"', BEGINS + KEY_TEXT);
rule([COLON], ":", VALUE);
rule([AFTER_ELEMENT], ",", VALUE);
rule([AFTER_MEMBER], ",", KEY);
for (const text of [TEXT, KEY_TEXT]) {
  NEXT.fill(text, (text << 8) + 32, (text << 8) + 256);
  rule([text], '"', ENDS + (text === TEXT ? 0 : COLON));
  rule([text], "\\", text + 1);
  rule([text + 1], '"\\/bfnrt', text);
  rule([text + 1], "u", text + 2);
  for (let digit = 2; digit < 6; digit++) rule([text + digit], `${NUMERALS}abcdefABCDEF`, digit < 5 ? text + digit + 1 : text);
}
rule([MINUS], "0", ZERO);
rule([MINUS, DIGITS], NON_ZERO, DIGITS);
rule([DIGITS], "0", DIGITS);
rule([ZERO, DIGITS], ".", POINT);
rule([POINT, FRACTION], NUMERALS, FRACTION);
rule([ZERO, DIGITS, FRACTION], "eE", E);
rule([E], "+-", SIGN);
rule([E, SIGN, EXPONENT], NUMERALS, EXPONENT);
var PLAIN = NEXT.slice(TEXT << 8, TEXT + 1 << 8).map((next) => next === TEXT ? 1 : 0);
function plainEnd(bytes, at, length) {
  while (at < length - 3 && PLAIN[bytes[at]] & PLAIN[bytes[at + 1]] & PLAIN[bytes[at + 2]] & PLAIN[bytes[at + 3]]) at += 4;
  while (at < length && PLAIN[bytes[at]]) at++;
  return at;
}
function afterValue(nest, depth) {
  const level = depth - 1;
  return depth ? AFTER_ELEMENT + (nest[level >> 3] >> (level & 7) & 1) : DONE;
}
var isDigit = (byte) => byte >= 48 && byte <= 57;
var mayEnd = (state) => state >= ZERO && state <= EXPONENT;
var Scanner = class {
  constructor(maxDepth = Infinity) {
    this.maxDepth = maxDepth;
  }
  maxDepth;
  /** The first value of each member that was looked for; under an empty key, the whole text. */
  found = /* @__PURE__ */ new Map();
  /** Members that came more than once. */
  repeated = /* @__PURE__ */ new Set();
  /** What is wrong, as a sentence, and at which byte. */
  fault = "";
  isTooDeep = false;
  offset = 0;
  /** How deep it was nested at most. */
  deepest = 0;
  #state = VALUE;
  #depth = 0;
  /** A bit for each level: whether it is an object. */
  #nest = new Uint8Array(8);
  /** For the first levels, the member that we are in, if it is looked for. */
  #live = [""];
  #keyAt = 0;
  /** Checks the next piece: `bytes` is the text so far, of `length` bytes. Returns false if it is not JSON. */
  feed(bytes, length) {
    let at = this.offset;
    let state = this.#state;
    let depth = this.#depth;
    let nest = this.#nest;
    let after = afterValue(nest, depth);
    if (this.fault) return false;
    while (at < length) {
      if (state === TEXT) {
        at = plainEnd(bytes, at, length);
        if (at === length) break;
      }
      const next = NEXT[state << 8 | bytes[at]];
      if (next >= ENDS) {
        if (next === ENDS + COLON) {
          state = COLON;
          if (depth < WANTED_DEPTH) this.#endKey(bytes, at + 1, depth);
        } else {
          if (next === CLOSES) {
            depth--;
            after = afterValue(nest, depth);
          }
          state = after;
          if (depth < WANTED_DEPTH) this.#end(at + 1, depth);
        }
      } else if (next >= BEGINS) {
        state = next - BEGINS;
        if (state === KEY_TEXT) this.#keyAt = at;
        else {
          if (depth < WANTED_DEPTH) this.#begin(at, depth);
          if (state <= MEMBER) {
            if (depth >= this.maxDepth) {
              this.isTooDeep = true;
              return this.#fail("too deep", at);
            }
            if (depth >> 3 >= nest.length) {
              nest = new Uint8Array(depth >> 2);
              nest.set(this.#nest);
              this.#nest = nest;
            }
            const bit = 1 << (depth & 7);
            if (state === MEMBER) nest[depth >> 3] |= bit;
            else nest[depth >> 3] &= ~bit;
            if (++depth > this.deepest) this.deepest = depth;
            if (depth < WANTED_DEPTH) this.#live[depth] = null;
            after = afterValue(nest, depth);
          }
        }
      } else if (next) state = next;
      else if (mayEnd(state) && !(state === ZERO && isDigit(bytes[at]))) {
        state = after;
        if (depth < WANTED_DEPTH) this.#end(at, depth);
        continue;
      } else return this.#fail(state === DONE && NEXT[VALUE << 8 | bytes[at]] ? "a second JSON value" : "not JSON", at);
      at++;
    }
    this.#state = state;
    this.#depth = depth;
    this.offset = at;
    return true;
  }
  /** Whether exactly one value came. */
  finish() {
    if (this.fault) return false;
    const isDone = this.#state === DONE || !this.#depth && mayEnd(this.#state);
    return isDone || this.#fail("the JSON text ends too early", this.offset);
  }
  #fail(fault, at) {
    this.fault = fault;
    this.offset = at;
    return false;
  }
  #begin(start, depth) {
    const member = this.#live[depth];
    if (member == null) return;
    if (this.found.has(member)) this.repeated.add(member);
    else this.found.set(member, { start, end: 0 });
  }
  #end(end, depth) {
    const found = this.found.get(this.#live[depth]);
    if (found) found.end ||= end;
  }
  #endKey(bytes, end, depth) {
    const parent = this.#live[depth - 1];
    this.#live[depth] = null;
    if (parent === null || end - this.#keyAt > LONGEST_KEY) return;
    const key = JSON.parse(decode(bytes.subarray(this.#keyAt, end)) ?? "null");
    const path = parent ? `${parent}.${key}` : `${key}`;
    if (WANTED.has(path) && !`${key}`.includes(".")) this.#live[depth] = path;
  }
};
function readString(raw) {
  if (raw[0] !== '"') return null;
  try {
    const text = JSON.parse(raw);
    return /\p{Cs}/u.test(text) ? null : text;
  } catch {
    return null;
  }
}
function readNumber(raw) {
  const parts = /^(-?)(0|[1-9]\d*)(?:\.(\d+))?(?:[eE]([+-]?\d+))?$/.exec(raw);
  if (!parts) return null;
  const [, sign, whole, fraction = "", exponent = "0"] = parts;
  const digits = (whole + fraction).replace(/^0+/, "");
  let end = digits.length;
  while (end > 0 && digits[end - 1] === "0") end--;
  const significant = digits.slice(0, end);
  if (!significant) return 0n;
  const power = Number(exponent) - fraction.length + digits.length - significant.length;
  if (power < 0) return "fraction";
  if (significant.length + power > 38) return sign ? "huge_negative" : "huge";
  return BigInt(sign + significant + "0".repeat(power));
}

// src/message.ts
var Message = class {
  constructor(text, bytes, scan2) {
    this.text = text;
    this.bytes = bytes;
    this.scan = scan2;
    this.size = bytes.length;
    const id = this.sort("id");
    const isNamed = id === '"' || id === "0";
    this.method = this.string("method") ?? "";
    this.id = isNamed ? this.raw("id") : null;
    if (this.sort("method") === '"') this.kind = isNamed ? "request" : "notification";
    else this.kind = id && (this.#hasResult || this.isError) ? "response" : "other";
  }
  text;
  bytes;
  scan;
  kind;
  /** Empty if it has none. */
  method;
  /** The id as it is written; `null` when no answer is possible. */
  id;
  /** Its length as UTF-8. */
  size;
  /** The key of the envelope that comes twice, if any does. */
  get repeated() {
    return this.firstRepeated("jsonrpc", "method", "id", "params", "result", "error");
  }
  firstRepeated(...members) {
    return members.find((member) => this.scan.repeated.has(member));
  }
  /** Whether it is exactly one JSON-RPC 2.0 request, response or notification. */
  get isValid() {
    const { kind, isError } = this;
    const isWhole = kind === "response" ? this.#hasResult !== isError && (!isError || this.sort("error") === "{") : kind !== "other" && !this.#hasResult && !isError && /^[{[n]?$/.test(this.sort("params"));
    return isWhole && /^["0n]?$/.test(this.sort("id")) && this.string("jsonrpc") === "2.0";
  }
  /** The error member, unless it is `null`. */
  get isError() {
    return this.#isThere("error");
  }
  /** A member that is a string. */
  string(member) {
    return this.sort(member) === '"' ? readString(this.raw(member)) : null;
  }
  /** A member that is a number. */
  number(member) {
    return this.sort(member) === "0" ? readNumber(this.raw(member)) : null;
  }
  find(member) {
    return this.scan.found.get(member);
  }
  sort(member) {
    const found = this.find(member);
    const first2 = found ? String.fromCharCode(this.bytes[found.start]) : "";
    return /[-\d]/.test(first2) ? "0" : first2;
  }
  /** A member as it is written. */
  raw(member) {
    const { start, end } = this.find(member);
    return this.#isAscii ? this.text.slice(start, end) : decode(this.bytes.subarray(start, end)) ?? "";
  }
  /** Where a byte lies in the text. */
  at(offset) {
    return this.#isAscii ? offset : (decode(this.bytes.subarray(0, offset)) ?? "").length;
  }
  get #isAscii() {
    return this.text.length === this.size;
  }
  /** Whether there is a member, and it is not `null`, which many write for what is not there. */
  #isThere(member) {
    return /[^n]/.test(this.sort(member));
  }
  /** `null` is a result, unless there is an error or a method. */
  get #hasResult() {
    return this.#isThere("result") || !!this.sort("result") && !this.isError && !this.sort("method");
  }
};
function scan(bytes, maxDepth) {
  const scanner = new Scanner(maxDepth);
  if (scanner.feed(bytes, bytes.length)) scanner.finish();
  return scanner;
}
var jsonFault = ({ fault, offset }) => `${fault} at byte ${offset}`;
function idKey(raw) {
  const text = readString(raw);
  if (text !== null) return brief(`"${text}`);
  const number = readNumber(raw);
  return brief(typeof number === "bigint" ? String(number) : `?${raw}`);
}
function brief(text) {
  if (text.length <= 64) return text;
  let [one, two] = [2166136261, 461845907];
  for (let at = 0; at < text.length; at++) {
    one = Math.imul(one ^ text.charCodeAt(at), 16777619);
    two = Math.imul(two + text.charCodeAt(at), 2246822507) ^ two >>> 13;
  }
  return `#${text.length}.${one}.${two}`;
}

// src/handshake.ts
var Negotiated = class {
  #clients = /* @__PURE__ */ new Map();
  agreed(client) {
    return client !== null && this.#clients.get(client)?.agreed || null;
  }
  rate(client) {
    return client !== null && this.#clients.get(client)?.rate || null;
  }
  remember(client, what) {
    if (client === null) return;
    const before = this.#clients.get(client);
    this.#clients.delete(client);
    this.#clients.set(client, { ...before, ...what });
    if (this.#clients.size > 2048) for (const oldest of this.#clients.keys()) return void this.#clients.delete(oldest);
  }
};
var Agreement = class {
  constructor(role, ours, theirs, negotiated, count) {
    this.role = role;
    this.ours = ours;
    this.theirs = theirs;
    this.negotiated = negotiated;
    this.count = count;
    this.invitation = theirs ? "segments" : role === "server" ? "either" : "none";
  }
  role;
  ours;
  theirs;
  negotiated;
  count;
  invitation;
  #pending = null;
  #client = null;
  /** Whether the peer's limits are not known until the handshake is answered. */
  get isWaiting() {
    return this.#pending !== null && (this.role === "client" || this.#pending.isInitialize);
  }
  /** The rate of earlier links to this client. */
  get rate() {
    return this.negotiated.rate(this.#client);
  }
  noteRate(rate) {
    this.negotiated.remember(this.#client, { rate });
  }
  /** The handshake request could not be sent, so no answer will come. */
  withdraw() {
    this.#pending = null;
  }
  /** Looks at a message. Returns its text as it has to be, or `null` if it does not belong to the handshake. */
  pass(from, message) {
    const { method, id } = message;
    if (id === null) return null;
    if (from === "server") return method ? null : this.#response(message, idKey(id));
    return /^(initialize|reconnect)$/.test(method) ? this.#request(message, idKey(id)) : null;
  }
  #request(message, id) {
    const isInitialize = message.method === "initialize";
    const handshake = new Handshake(message, "params");
    const name = message.string("params.clientId");
    const client = this.#client = name === null ? null : brief(name);
    const remembered = isInitialize ? null : this.negotiated.agreed(client);
    const version = isInitialize ? handshake.offersVersion : remembered?.version ?? true;
    const known = remembered?.theirs ?? null;
    this.#pending = { id, isInitialize, client, offered: null, wanted: handshake.isThere, version };
    if (this.role === "client") {
      this.invitation = version ? "segments" : "none";
      this.theirs = known;
      return version ? handshake.with(this.ours) : handshake.without();
    }
    if (handshake.isInvalid) this.count("invalid-capability");
    this.#pending.offered = version ? handshake.theirs ?? known : null;
    this.theirs = isInitialize ? null : this.#pending.offered;
    return handshake.without();
  }
  #response(message, id) {
    const pending = this.#pending;
    if (pending?.id !== id) return null;
    this.#pending = null;
    if (message.isError) return null;
    const handshake = new Handshake(message, "result");
    const version = pending.version && (!pending.isInitialize || handshake.hasVersion);
    let text;
    if (this.role === "client") {
      if (handshake.isInvalid) this.count("invalid-capability");
      this.invitation = version ? "segments" : "none";
      this.theirs = version ? handshake.theirs ?? this.theirs : null;
      text = pending.wanted ? null : handshake.without();
    } else {
      this.theirs = version ? pending.offered : null;
      this.invitation = this.theirs ? "segments" : "none";
      text = this.theirs ? handshake.with(this.ours) : handshake.without();
    }
    this.negotiated.remember(pending.client, { agreed: { theirs: this.theirs, version } });
    return text;
  }
};
var LONGEST = 4096;
var Handshake = class {
  constructor(message, body) {
    this.message = message;
    this.body = body;
    this.#chunking = this.#find(".capabilities.chunking");
    this.theirs = parsed(this.#json(".capabilities.chunking"));
  }
  message;
  body;
  theirs;
  #chunking;
  get isThere() {
    return this.#chunking !== void 0;
  }
  /** Whether there is a capability that is not valid. */
  get isInvalid() {
    return !this.theirs && /[^n]/.test(this.#sort(".capabilities.chunking"));
  }
  /** Whether any version that the client offers has chunking. */
  get offersVersion() {
    const versions = this.#json(".protocolVersions");
    return Array.isArray(versions) && versions.some(hasChunking);
  }
  /** Whether the negotiated version has chunking. */
  get hasVersion() {
    return hasChunking(this.message.string("result.protocolVersion"));
  }
  /** The text with our capability in it. */
  with(ours) {
    const chunking = JSON.stringify({
      maxIncomingFrameBytes: ours.maxFrameBytes,
      maxIncomingMessageBytes: ours.maxMessageBytes,
      maxIncomingGroups: ours.maxGroups,
      groupTimeoutMs: ours.groupTimeoutMs,
      settledCursor: ours.settledCursor
    });
    if (this.#chunking) return this.#replace(this.#chunking, chunking);
    const capabilities = this.#find(".capabilities");
    const body = this.#find("");
    if (capabilities && this.#sort(".capabilities") === "{") return this.#insert(capabilities, `"chunking":${chunking}`);
    if (capabilities) return this.#replace(capabilities, `{"chunking":${chunking}}`);
    if (body && this.#sort("") === "{") return this.#insert(body, `"capabilities":{"chunking":${chunking}}`);
    return this.message.text;
  }
  /** The text without the capability, and without `capabilities` if nothing else is in it. */
  without() {
    if (!this.#chunking) return this.message.text;
    const own = this.#member(this.#chunking);
    const all = this.#find(".capabilities");
    const { start, end } = own.isOnly && all ? this.#member(all) : own;
    return this.message.text.slice(0, start) + this.message.text.slice(end);
  }
  #find(path) {
    return this.message.find(this.body + path);
  }
  #sort(path) {
    return this.message.sort(this.body + path);
  }
  #json(path) {
    const found = this.#find(path);
    return found && found.end - found.start <= LONGEST ? JSON.parse(this.message.raw(this.body + path)) : void 0;
  }
  #replace({ start, end }, text) {
    const whole = this.message.text;
    return whole.slice(0, this.message.at(start)) + text + whole.slice(this.message.at(end));
  }
  /** Adds a member at the front of an object. */
  #insert({ start }, member) {
    const { text } = this.message;
    const at = this.message.at(start) + 1;
    let next = at;
    while (/\s/.test(text[next])) next++;
    return `${text.slice(0, at)}${member}${text[next] === "}" ? "" : ","}${text.slice(at)}`;
  }
  /** A member by its value: its key, its value and one comma, if there is one. */
  #member(value) {
    const { text } = this.message;
    const back = (at) => {
      while (/\s/.test(text[at - 1])) at--;
      return at;
    };
    let end = this.message.at(value.end);
    const colon = back(this.message.at(value.start)) - 1;
    const quote = text.lastIndexOf('"', back(colon) - 2);
    let start = back(quote);
    let after = end;
    while (/\s/.test(text[after])) after++;
    if (text[start - 1] === ",") return { start: start - 1, end, isOnly: false };
    const isOnly = text[after] !== ",";
    start = quote;
    if (!isOnly) end = after + 1;
    return { start, end, isOnly };
  }
};
function parsed(value) {
  if (typeof value !== "object" || value === null) return null;
  const members = value;
  const positive = (key, otherwise = 0) => {
    const number = members[key] === void 0 ? otherwise : members[key];
    const most = Math.min(typeof number === "number" ? number : 0, 2 ** 64);
    return most > 0 && Number.isInteger(most) ? most : 0;
  };
  const chunking = {
    maxFrameBytes: positive("maxIncomingFrameBytes"),
    maxMessageBytes: positive("maxIncomingMessageBytes"),
    maxGroups: positive("maxIncomingGroups", 8),
    groupTimeoutMs: positive("groupTimeoutMs", 3e4),
    settledCursor: members.settledCursor === true
  };
  const { maxFrameBytes, maxMessageBytes, maxGroups, groupTimeoutMs } = chunking;
  return maxFrameBytes && maxGroups && groupTimeoutMs && maxMessageBytes >= maxFrameBytes ? chunking : null;
}
function hasChunking(version) {
  if (typeof version !== "string") return false;
  const [major, minor = 0] = version.split(/[.+-]/).map((part) => /^\d+$/.test(part) ? Number(part) : -1);
  return major > 0 || major === 0 && minor >= 3;
}

// src/arrivals.ts
var Arrivals = class {
  constructor(delivery, maxHeldBytes) {
    this.delivery = delivery;
    this.maxHeldBytes = maxHeldBytes;
  }
  delivery;
  maxHeldBytes;
  #next = 0;
  /** Messages that have begun and are not delivered, in order. */
  #open = /* @__PURE__ */ new Set();
  /** Messages that have begun and are not finished, in order. */
  #unfinished = /* @__PURE__ */ new Set();
  /** Messages that have finished, and wait for earlier ones. */
  #held = [];
  #heldBytes = 0;
  /** For each message that blocks others, the highest seq that was delivered after it. */
  #waiting = /* @__PURE__ */ new Map();
  /** The highest seq among settled messages. */
  cursor = null;
  /** A message begins. Returns its ordinal. */
  begin() {
    this.#open.add(this.#next);
    this.#unfinished.add(this.#next);
    return this.#next++;
  }
  /** The first ordinal that is not settled. */
  get settled() {
    return first(this.#open) ?? this.#next;
  }
  /** Whether a message has to wait for one that began before it. */
  mustHold(ordinal, isOrdered2) {
    return this.delivery === "start-order" && isOrdered2 && (first(this.#unfinished) ?? ordinal) < ordinal;
  }
  /** A message has finished. Returns those that may be delivered now, or how many bytes would be held if that is too much. */
  finish(message) {
    this.#unfinished.delete(message.ordinal);
    const ready = [];
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
  expire(ordinal) {
    this.#unfinished.delete(ordinal);
    return this.delivery === "start-order";
  }
  /** The application has this message. */
  delivered(ordinal, seq) {
    if (!this.#open.delete(ordinal)) return;
    const behind = this.#waiting.get(ordinal) ?? null;
    this.#waiting.delete(ordinal);
    this.note(ordinal, behind !== null && (seq === null || behind > seq) ? behind : seq);
  }
  /** A delivered message turns out to carry a seq. */
  note(ordinal, seq) {
    if (seq === null) return;
    let blocker = null;
    for (const open of this.#open) {
      if (open >= ordinal) break;
      blocker = open;
    }
    if (blocker === null) {
      if (this.cursor === null || seq > this.cursor) this.cursor = seq;
    } else if (seq > (this.#waiting.get(blocker) ?? -1n)) this.#waiting.set(blocker, seq);
  }
  /** Drops the messages that are held back. After a close they are not delivered. */
  clear() {
    for (const { grant } of this.#held) grant?.complete();
    this.#held = [];
    this.#heldBytes = 0;
  }
};
function first(ordinals) {
  for (const ordinal of ordinals) return ordinal;
  return void 0;
}

// src/order.ts
var isOrdered = (order) => order === "barrier" || order[0] === "=";
var MAX_REQUESTS = 4096;
var isCancel = (method) => method === "$/cancelRequest" || method === "notifications/cancelled";
var carriesState = (from, kind, method) => from === "client" ? kind === "notification" && method === "dispatchAction" : kind === "notification" ? method === "action" || method.startsWith("root/") : kind === "response" && /^(initialize|reconnect|subscribe|fetchTurns|listSessions)$/.test(method);
function orderOf(from, kind, method, channel) {
  if (method === "ping") return "urgent";
  if (kind === "notification" && isCancel(method)) return "free";
  if (from === "server" && kind === "response" && /^(initialize|reconnect)$/.test(method)) return "barrier";
  const inOrder = carriesState(from, kind, method) || kind === "notification" || from === "client" && kind === "request";
  return inOrder ? `=${brief(channel ?? "\0")}` : "free";
}
var PASSING = new Set(
  "chat/turnCancelled chat/toolCallConfirmed chat/toolCallResultConfirmed chat/toolCallComplete chat/inputAnswerChanged chat/inputCompleted automationRun/cancelRequested terminal/input terminal/resized".split(" ")
);
function mayPass(message) {
  const { method } = message;
  return method === "completions" || method === "dispatchAction" && PASSING.has(message.string("params.action.type") ?? "");
}
function cancelled(message) {
  if (message.kind !== "notification" || !isCancel(message.method)) return null;
  const member = message.method === "$/cancelRequest" ? "params.id" : "params.requestId";
  return message.find(member) ? idKey(message.raw(member)) : null;
}
var Requests = class {
  /** Who answers them. */
  constructor(answeredBy) {
    this.answeredBy = answeredBy;
  }
  answeredBy;
  #waiting = /* @__PURE__ */ new Map();
  /** Notes a request. Returns false if too many wait. */
  note(message) {
    if (message.id === null) return true;
    const order = orderOf(this.answeredBy, "response", message.method, message.string("params.channel"));
    if (order === "free") return true;
    const key = idKey(message.id);
    if (this.#waiting.size >= MAX_REQUESTS && !this.#waiting.has(key)) return false;
    this.#waiting.set(key, order);
    return true;
  }
  /** The order of the answer to a request, which waits no longer. */
  answer(id) {
    const key = id === null ? "" : idKey(id);
    const order = this.#waiting.get(key) ?? "free";
    this.#waiting.delete(key);
    return order;
  }
};

// src/reasons.ts
var Reason = class {
  constructor(name, code, because, text = because) {
    this.name = name;
    this.code = code;
    this.because = because;
    this.text = text.slice(0, 123);
  }
  name;
  code;
  because;
  text;
};
var violation = (name, because) => new Reason(name, 4400, because, `invalid messageSegment: ${name}`);
var invalid = (name, because, text = name) => new Reason(name, 4400, because, `invalid message: ${text}`);
var closing = (name, code, because) => new Reason(`close-${name}`, code, because);
var overBudget = (size) => closing("over-budget", 1013, `no memory for a message of ${size} bytes`);
var closedHere = (code, text) => closing(code === 1e3 ? "normal" : code === 1012 ? "restart" : "program", code, text);
var closedByPeer = (code) => closing("peer", code, code === 1006 ? "the link ended without a close" : `closed by the peer with code ${code}`);
var unsent = (name, because, limit, more = "") => ({
  name: `send-${name}`,
  because,
  limit,
  more
});
function errorResponse(id, size, { name, because, limit, more }) {
  const message = JSON.stringify(limit === void 0 || more ? because : "MessageTooLarge");
  const data = limit === void 0 ? `"${name}"}` : `"messageTooLarge","size":${size},"limit":${limit}${more}}`;
  return `{"jsonrpc":"2.0","id":${id},"error":{"code":${limit === void 0 ? -32603 : -32011},"message":${message},"data":{"reason":${data}}}`;
}

// src/limits.ts
var DAY = 864e5;
function checked(given, budget) {
  const limits = {
    maxFrameBytes: 4 << 20,
    maxMessageBytes: 32 << 20,
    maxDepth: 1e6,
    maxGroups: 8,
    groupTimeoutMs: 0,
    graceMs: 5e3,
    maxQueuedBytes: 128 << 20,
    maxHeldBytes: 64 << 20
  };
  for (const key of Object.keys(limits)) limits[key] = given[key] ?? limits[key];
  limits.groupTimeoutMs ||= Math.min(Math.max(Math.ceil(limits.maxMessageBytes / (64 << 10)) * 1e3, 3e4), 6e5);
  const largest = budget.floor + Math.min(budget.principal, budget.process);
  const range = (key, min, max) => {
    const value = limits[key];
    if (!(value >= min && value <= max)) throw new RangeError(`${key} is ${value}; it must be from ${min} to ${max}`);
  };
  range("maxFrameBytes", 512, 2 ** 32 - 1);
  range("maxMessageBytes", limits.maxFrameBytes, largest - Math.floor(largest / 4096) - 3072);
  range("maxDepth", 16, 1 << 24);
  range("maxGroups", 1, 1024);
  range("groupTimeoutMs", 1, DAY);
  range("graceMs", 0, DAY);
  range("maxQueuedBytes", 1, Infinity);
  range("maxHeldBytes", 1, Infinity);
  limits.maxGroups = Math.min(limits.maxGroups, Math.floor(largest / groupCost(limits.maxMessageBytes)));
  return limits;
}
var GROUP_COST = 2048;
var groupCost = (bytes) => bytes + Math.floor(bytes / 4096) + 1024 + GROUP_COST;
var timeFor = (limits, bytes) => Math.min(limits.groupTimeoutMs, limits.groupTimeoutMs * bytes / limits.maxMessageBytes);

// src/receive.ts
var SEGMENT = "ahp/messageSegment";
var Receiver = class {
  constructor(limits, account) {
    this.limits = limits;
    this.account = account;
  }
  limits;
  account;
  #groups = /* @__PURE__ */ new Map();
  /**
   * Takes a frame; throws a `Reason` if it breaks a rule. `null` if the budget has no memory for the group that it begins: then it
   * has to be passed in again later. `begin` gives an ordinal to a group.
   */
  frame(frame, invitation, now2, begin) {
    const { maxFrameBytes, maxMessageBytes, maxDepth } = this.limits;
    const limit = invitation === "segments" ? maxFrameBytes : maxMessageBytes;
    const isText = typeof frame === "string";
    let bytes = isText ? null : frame;
    if (frame.length <= limit) {
      const text = isText ? frame : textOf(frame);
      const segment = invitation === "none" ? null : recognise(text);
      if (segment) return this.#segment(segment, now2, begin);
      bytes ??= encode(text);
      if (bytes.length <= limit) {
        const scanner = scan(bytes, maxDepth);
        if (scanner.isTooDeep) throw tooDeep(maxDepth);
        if (scanner.fault) throw notJson(scanner);
        const message = new Message(text, bytes, scanner);
        if (message.sort("") !== "{") throw invalid("frame-not-object", NO_BATCH, NO_BATCH);
        checkKeys(message.repeated);
        if (message.method !== SEGMENT) return { message };
        if (invitation === "none") fail("uninvited-segment", "a segment came, but chunking was never advertised");
        return this.#segment(parse(message), now2, begin);
      }
    }
    const size = bytes ? bytes.length : encode(frame).length;
    throw new Reason("frame-too-large", 1009, `frame of ${size} bytes is over the limit of ${limit}`);
  }
  #segment(segment, now2, begin) {
    const { groupId, data } = segment;
    const { maxMessageBytes, maxGroups, maxDepth } = this.limits;
    const { account } = this;
    let group = this.#groups.get(groupId);
    if (group && segment.index === 0n) fail("group-in-flight", "a group begins twice");
    const [index, total] = numbers(segment);
    if (data === null) return fail("data-missing", "data is missing");
    const length = decodedLength(data);
    if (!group) {
      if (index) fail("group-unknown", `segment ${index} of a group that is not open`);
      const { size: open } = this.#groups;
      if (open >= maxGroups) fail("too-many-groups", `more than ${maxGroups} groups are open`);
      const declared = Math.min(length * total, maxMessageBytes);
      const cost2 = groupCost(declared);
      const grant2 = account.reserve(cost2, { started: now2, timeout: timeFor(this.limits, declared) });
      if (!grant2) {
        if (open || !account.could(cost2)) throw overBudget(cost2);
        return null;
      }
      group = {
        ordinal: begin(),
        total,
        firstLength: length,
        started: account.clock.read(now2),
        grant: grant2,
        scanner: new Scanner(maxDepth),
        next: 0,
        bytes: allocate(0),
        size: 0,
        expected: 0
      };
      this.#groups.set(groupId, group);
    }
    const { grant, scanner, firstLength } = group;
    if (total !== group.total) fail("total-changed", `total ${total} where the group has ${group.total}`);
    if (index !== group.next) fail("index-out-of-order", `index ${index} where ${group.next} was due`);
    const size = group.size + length;
    if (size > maxMessageBytes) fail("message-too-large", `message of at least ${size} bytes is over the limit of ${maxMessageBytes}`);
    const cost = size + (scanner.deepest >> 3) + GROUP_COST;
    if (!grant.grow(cost, now2)) throw overBudget(cost);
    const rest = (total - ++group.next) * firstLength;
    if (size > group.bytes.length) {
      const grown = allocate(Math.max(size, Math.min(size * 2, size + rest, maxMessageBytes)));
      grown.set(group.bytes.subarray(0, group.size));
      group.bytes = grown;
    }
    if (!decodeBase64(data, group.bytes, group.size)) fail("data-not-base64", "data is not canonical base64");
    group.size = size;
    group.expected = Math.min(size + rest, maxMessageBytes);
    grant.note(size, now2);
    const bytes = group.bytes.subarray(0, size);
    const isJson = scanner.feed(bytes, size);
    if (isJson && group.next < total) return { group };
    this.#groups.delete(groupId);
    try {
      const message = finished(bytes, scanner, isJson);
      grant.complete(size + GROUP_COST);
      return { message, grant, group };
    } catch (reason) {
      grant.complete();
      throw reason;
    }
  }
  /** Reserves memory for a whole message that has to wait. */
  hold(size, now2) {
    const bytes = size + GROUP_COST;
    const grant = this.account.reserve(bytes, { started: now2, timeout: timeFor(this.limits, bytes) });
    grant?.complete(bytes);
    return grant;
  }
  /** Drops and returns groups that took longer than allowed. */
  sweep(now2) {
    const reading = this.account.clock.read(now2);
    const old = [...this.#groups].filter(([, { started }]) => reading - started >= this.#sweepAfter);
    for (const [id, { grant }] of old) {
      this.#groups.delete(id);
      grant.complete();
    }
    return old.map(([, group]) => group);
  }
  /** Whether the budget has evicted a group. */
  get isEvicted() {
    return [...this.#groups.values()].some(({ grant }) => grant.evicted);
  }
  /** When the oldest group will be too old, if we go on reading until then. */
  get due() {
    const [oldest] = this.#groups.values();
    return oldest ? this.account.clock.when(oldest.started + this.#sweepAfter) : null;
  }
  /** Drops all groups. */
  clear() {
    for (const { grant } of this.#groups.values()) grant.complete();
    this.#groups.clear();
  }
  get #sweepAfter() {
    return this.limits.groupTimeoutMs + this.limits.graceMs;
  }
};
function finished(bytes, scanner, isJson) {
  const isWhole = isJson && scanner.finish();
  const text = decode(bytes, !isJson);
  if (text === null) return fail("message-not-utf8", "reassembled message is not UTF-8");
  if (scanner.isTooDeep) throw tooDeep(scanner.maxDepth);
  if (!isWhole) fail("message-not-json", `reassembled message is not JSON: ${jsonFault(scanner)}`);
  const message = new Message(text, bytes, scanner);
  if (message.sort("") === "{") checkKeys(message.repeated);
  if (!message.isValid) throw invalid("message-not-json-rpc", NOT_RPC, NOT_RPC);
  if (message.method === SEGMENT) fail("nested-segment", "reassembled message is a segment");
  return message;
}
var NOT_RPC = "not a JSON-RPC 2.0 request, response or notification";
var NO_BATCH = "a message is one JSON object; batches are not accepted";
var INTEGER = "(0|[1-9]\\d{0,9})";
var FRONT = new RegExp(
  `^{"jsonrpc":"2\\.0","method":"${SEGMENT}","params":{"groupId":"([ !#-[\\]-~]{1,128})","index":${INTEGER},"total":${INTEGER},"data":"`
);
var LONGEST_FRONT = 256;
function recognise(frame) {
  const front = FRONT.exec(frame.slice(0, LONGEST_FRONT));
  if (!front || !frame.endsWith('"}}')) return null;
  const [{ length }, groupId, index, total] = front;
  const data = frame.slice(length, -3);
  if (data.includes('"') || data.includes("\\")) return null;
  return { groupId, index: BigInt(index), total: BigInt(total), data };
}
function parse(message) {
  if (message.sort("id")) fail("segment-with-id", "segment with an id");
  if (message.string("jsonrpc") !== "2.0") fail("segment-not-json-rpc", 'segment without jsonrpc "2.0"');
  if (message.sort("params") !== "{") fail("segment-params-not-object", "segment params are not an object");
  checkKeys(message.firstRepeated("params.groupId", "params.index", "params.total", "params.data")?.slice(7));
  const groupId = message.string("params.groupId");
  if (groupId === null) return fail("group-id-missing", "groupId is missing");
  if (!groupId) fail("group-id-empty", "groupId is empty");
  const { length } = encode(groupId);
  if (length > 128) fail("group-id-too-long", `groupId of ${length} bytes is over 128`);
  const [index, total] = ["params.index", "params.total"].map((member) => message.number(member));
  return { groupId, index, total, data: message.string("params.data") };
}
function numbers({ index, total }) {
  if (typeof index !== "bigint" || index < 0n || index >= 1n << 31n) {
    return fail("index-invalid", "index is not a non-negative integer below 2^31");
  }
  if (total === null || total === "fraction") return fail("total-invalid", "total is not an integer");
  if (typeof total !== "bigint" || total < 1n || total >= 65536n) return fail("total-out-of-range", "total is not from 1 to 65,535");
  if (index >= total) fail("index-beyond-total", `index ${index} is not below total ${total}`);
  return [Number(index), Number(total)];
}
function fail(name, because) {
  throw violation(name, because);
}
function checkKeys(twice) {
  if (twice) throw invalid("duplicate-key", `key "${twice}" comes twice`);
}
function tooDeep(limit) {
  const because = `nested deeper than ${limit} levels (max_nesting)`;
  return invalid("too-deep", because, because);
}
var notJson = (scanner) => invalid("frame-not-json", `frame is not JSON: ${jsonFault(scanner)}`);
function textOf(frame) {
  const text = decode(frame);
  if (text !== null) return text;
  const scanner = decode(frame, true) === null ? null : scan(frame);
  throw scanner?.fault ? notJson(scanner) : invalid("frame-not-utf8", "frame is not UTF-8");
}

// src/pace.ts
var WINDOW = 2e3;
var SAMPLE = 64 << 10;
var BELIEVED = 3e5;
var FIRST_MOMENT = 100;
var rateOf = (bytes, time) => Math.max(1, Math.floor(bytes * 1e3 / Math.max(time, 1e-3)));
var Pace = class {
  #remembered = null;
  #news = false;
  /** When the link got the last frame, and its length. */
  #last = null;
  #taken = 0;
  #time = 0;
  /** The frame that took longest: a peer that stops for a while is not slow. */
  #slowest = [0, 0];
  /** What the link has taken since it was last idle. */
  #run = null;
  /** The last two rates, and when they were measured. */
  #rates = null;
  #buffered = 0;
  /** The rate that is used, and for how much longer. */
  believed(now2) {
    const rate = this.#measured() ?? this.#remembered;
    const left = rate ? BELIEVED - (now2 - rate.measured) : 0;
    return rate && left > 0 ? { rate, left } : null;
  }
  /** Sets the rate that was measured on an earlier link to this peer. */
  recall(rate) {
    this.#remembered = rate ?? this.#remembered;
  }
  /** The rate, if a new one was measured since the last call. */
  news() {
    const rate = this.#news ? this.#measured() : null;
    this.#news = false;
    return rate;
  }
  /** The link asked for a frame, and gets one of so many bytes: it has taken the one before. */
  frame(bytes, now2) {
    this.#run ??= { started: now2, taken: 0, atOnce: 0 };
    if (this.#last) {
      const [at, taken2] = this.#last;
      this.#ran(taken2, now2);
      this.#taken += taken2;
      this.#time += now2 - at;
      if (now2 - at > this.#slowest[1]) this.#slowest = [taken2, now2 - at];
    }
    this.#last = [now2, bytes];
    let [taken, time] = [this.#taken, this.#time];
    const [slowestBytes, slowestTime] = this.#slowest;
    if (slowestTime >= (time - slowestTime) * 4) [taken, time] = [taken - slowestBytes, time - slowestTime];
    if (time >= WINDOW && taken >= SAMPLE) {
      const measured = rateOf(taken, time);
      const atOnce = this.#run.atOnce - Math.floor(measured * FIRST_MOMENT / 1e3);
      this.#restart([this.#rates?.[1] ?? null, [measured, now2]], Math.max(0, atOnce));
    }
    this.#noticeSpeed(now2);
  }
  /** The link asked for a frame and there was none: it has taken the last one. */
  idle(now2) {
    if (this.#last) {
      this.#ran(this.#last[1], now2);
      this.#noticeSpeed(now2);
    }
    this.#last = this.#run = null;
    this.#taken = this.#time = 0;
    this.#slowest = [0, 0];
  }
  /** The higher of the last two rates. */
  #measured() {
    const [before, last] = this.#rates ?? [];
    return before && last ? { bytes: Math.max(before[0], last[0]), measured: last[1], buffered: this.#buffered } : null;
  }
  #ran(bytes, now2) {
    if (!this.#run) return;
    this.#run.taken += bytes;
    if (now2 - this.#run.started <= FIRST_MOMENT) this.#run.atOnce = this.#run.taken;
  }
  /** If the link has become much faster than the rate that is used, the new rate is used at once. */
  #noticeSpeed(now2) {
    const believed = this.believed(now2)?.rate;
    if (!this.#run || !believed) return;
    const beyond = this.#run.taken - believed.buffered;
    if (beyond < Math.max(SAMPLE, believed.buffered / 2)) return;
    const measured = rateOf(beyond, now2 - this.#run.started);
    if (measured >= believed.bytes * 2) {
      this.#restart(
        [
          [measured, now2],
          [measured, now2]
        ],
        believed.buffered
      );
    }
  }
  #restart(rates, buffered) {
    this.#rates = rates;
    this.#buffered = buffered;
    this.#news = true;
    this.#taken = this.#time = 0;
    this.#slowest = [0, 0];
  }
};

// src/queue.ts
var SMALL_RUN = 64 << 10;
var Queue = class {
  constructor(maxBytes) {
    this.maxBytes = maxBytes;
  }
  maxBytes;
  #urgent = [];
  #ordered = [];
  #free = [];
  #flights = [];
  #barriers = [];
  #requests = /* @__PURE__ */ new Map();
  #accepted = 0;
  #turns = 0;
  #smallRun = 0;
  queuedBytes = 0;
  /** Accepts a message. Returns false if the queue is full. Barriers are exempt: without them no connection comes up. */
  push(item, bytes, order, request, cancels) {
    if (this.queuedBytes + bytes > this.maxBytes && order !== "barrier") return false;
    this.queuedBytes += bytes;
    const after = cancels !== null && this.#requests.get(cancels) || null;
    const entry = { order, item, bytes, request, after, accepted: ++this.#accepted };
    if (request !== null) this.#requests.set(request, entry);
    if (order === "urgent") this.#urgent.push(entry);
    else if (order === "free") this.#free.push(entry);
    else this.#ordered.push(entry);
    if (order === "barrier") this.#barriers.push(entry);
    return true;
  }
  /** Accepts a handshake: ahead of all ordered messages, which wait for it, and exempt from the limit. */
  pushFirst(item, bytes, order) {
    this.queuedBytes += bytes;
    this.#ordered.unshift({ order, item, bytes, request: null, after: null, accepted: ++this.#accepted });
  }
  /** What is sent next: a message that starts, or a group that goes on. At most `slots` groups are in flight. */
  pick(now2, slots, inLanes, fit) {
    const urgent = this.#urgent.shift();
    if (urgent) {
      if (fit(urgent.item) === "frame") return { start: this.#taken(urgent, true) };
      this.#free.unshift(urgent);
    }
    const head = this.#head(inLanes);
    const headFit = head && fit(head.item);
    const oldest = (want) => {
      const ready = (entry) => this.#passesBarriers(entry) && fit(entry.item) === want && !(entry.after && this.#requests.get(entry.after.request ?? "") === entry.after);
      const free = this.#free.find(ready);
      if (!head || headFit !== want) return free ?? null;
      return free && free.accepted < head.accepted ? free : head;
    };
    const small = oldest("frame");
    if (!small || this.#smallRun >= SMALL_RUN) {
      this.#smallRun = 0;
      const late = this.#flights.filter((flight) => flight.lateAt <= now2);
      const first2 = (flights, by) => flights.reduce((least, flight) => flight[by] < least[by] ? flight : least);
      if (late.length) return { go: first2(late, "lateAt").group };
      const large = this.#flights.length < slots && oldest("group");
      if (large) return { start: this.#taken(this.#remove(large), false) };
      if (this.#flights.length) {
        const next = first2(this.#flights, "turn");
        next.turn = ++this.#turns;
        return { go: next.group };
      }
    }
    if (!small) return null;
    this.#smallRun += small.bytes;
    return { start: this.#taken(this.#remove(small), true) };
  }
  /** A message that was picked is now in flight as a group. */
  begin(entry, group, now2, timeout) {
    this.#flights.push({ entry, group, lateAt: now2 + timeout / 2, due: now2 + timeout, turn: ++this.#turns });
  }
  /** A group has sent its last segment. */
  finish(group) {
    const at = this.#flights.findIndex((flight2) => flight2.group === group);
    const [flight] = this.#flights.splice(at, 1);
    if (flight) this.settle(flight.entry);
  }
  /** A message that was picked is done: sent, or refused. */
  settle(entry) {
    if (entry.order === "barrier") this.#barriers = this.#barriers.filter((barrier) => barrier !== entry);
    if (entry.request !== null && this.#requests.get(entry.request) === entry) this.#requests.delete(entry.request);
  }
  /** Whether an ordered message of this order waits, or is in flight. */
  hasUnfinished(order) {
    return this.#ordered.some((entry) => entry.order === order) || this.#flights.some(({ entry }) => entry.order === order);
  }
  get hasWaiting() {
    return this.#ordered.length + this.#free.length + this.#urgent.length > 0;
  }
  get hasBarriers() {
    return this.#barriers.length > 0;
  }
  /** All groups in flight. */
  get groups() {
    return this.#flights.map(({ group }) => group);
  }
  /** All messages that wait, in the order of acceptance. */
  get waiting() {
    const entries = [...this.#urgent, ...this.#ordered, ...this.#free].sort((a, b) => a.accepted - b.accepted);
    return entries.map(({ item }) => item);
  }
  /** The earliest time at which a group in flight has to be finished. */
  get due() {
    return Math.min(...this.#flights.map(({ due }) => due));
  }
  clear() {
    this.#urgent = [];
    this.#ordered = [];
    this.#free = [];
    this.#flights = [];
    this.#barriers = [];
    this.#requests.clear();
    this.queuedBytes = 0;
  }
  #taken(entry, isWhole) {
    this.queuedBytes -= entry.bytes;
    if (isWhole) this.settle(entry);
    return entry;
  }
  #remove(entry) {
    if (this.#ordered[0] === entry) this.#ordered.shift();
    else this.#free.splice(this.#free.indexOf(entry), 1);
    return entry;
  }
  /** The first ordered message, if it may start. */
  #head(inLanes) {
    const head = this.#ordered[0];
    if (!head || !this.#passesBarriers(head)) return null;
    const blocks = ({ entry }) => inLanes ? entry.order === head.order : isOrdered(entry.order);
    return this.#flights.some(blocks) ? null : head;
  }
  #passesBarriers(entry) {
    const [barrier] = this.#barriers;
    return !barrier || entry.accepted <= barrier.accepted;
  }
};

// src/send.ts
var SEGMENTS_PER_SECOND = 20;
var SLOW_FRAME = 16 << 10;
var LONG_FRAME = 120 << 10;
var SHARED_FRAME = 64 << 10;
var LIVELY = 500;
var ANY_PEER = 512;
var MAX_ANSWERS = 64;
var HEAD = '{"jsonrpc":"2.0","method":"ahp/messageSegment","params":{"groupId":"';
var INDEX = '","index":';
var TOTAL = ',"total":';
var DATA = ',"data":"';
var TAIL = '"}}';
var FIXED = HEAD.length + 32 + INDEX.length + TOTAL.length + DATA.length + TAIL.length;
var QUOTES = 22;
function plan(length, frame) {
  for (let digits = 1; digits <= 5; digits++) {
    const size = Math.floor((frame - FIXED - digits * 2) / 4) * 3;
    const total = Math.max(1, Math.ceil(length / size));
    if (size > 0 && total < 65536 && String(total).length <= digits) return { size, total };
  }
  return null;
}
var longestFrame = ({ size, total }) => FIXED + String(total).length * 2 + Math.ceil(size / 3) * 4;
var Sender = class {
  constructor(role, limits) {
    this.role = role;
    this.#queue = new Queue(limits.maxQueuedBytes);
  }
  role;
  #queue;
  /** Error answers in place of responses that cannot be sent. They are sent before everything else. */
  answers = [];
  pace = new Pace();
  /** When the last two messages without segments were sent. */
  #short = [-Infinity, -Infinity];
  link = { cap: Infinity };
  get mayRead() {
    return this.answers.length < MAX_ANSWERS;
  }
  get queuedBytes() {
    return this.#queue.queuedBytes;
  }
  hasUnfinished(order) {
    return this.#queue.hasUnfinished(order);
  }
  /** Whether the segments of the groups in flight still fit the frame limits. They cannot be cut again. */
  canGoOn(theirs) {
    const { groups } = this.#queue;
    if (!groups.length) return true;
    const largest = this.#largest(theirs?.maxFrameBytes ?? Infinity);
    return groups.every((group) => longestFrame(group.plan) <= largest);
  }
  /** Whether a message fits one frame. */
  fits({ text, size }, theirs) {
    if (theirs && size > theirs.maxFrameBytes) return false;
    const { cap, overhead } = this.link;
    return size + (overhead ? overhead(size, utf8Length(JSON.stringify(text)) - 2) : 0) <= cap;
  }
  /** Accepts a message, or says why not. */
  push(out, order, request, cancels) {
    if (out.class === "handshake") {
      this.#queue.pushFirst(out, out.size, order);
      return null;
    }
    const isAccepted = this.#queue.push(out, out.size, order, request, cancels);
    return isAccepted ? null : unsent("queue-full", `message of ${out.size} bytes does not fit the send queue of ${this.#queue.maxBytes}`);
  }
  /** The next frame. `theirs` are the limits of the peer; `isWaiting` while the handshake that tells them is not answered. */
  poll(theirs, isWaiting, now2) {
    if (!this.#queue.hasBarriers) {
      const answer = this.answers.shift();
      if (answer) return this.#whole(answer, now2);
    }
    const spare = this.#spare(now2);
    const fit = (out2) => {
      const canWait = out2.class === "response" ? this.role === "server" : out2.class !== "handshake";
      if (isWaiting && canWait && out2.size > ANY_PEER) return "wait";
      if (this.fits(out2, theirs)) return "frame";
      return out2.size > spare ? "wait" : "group";
    };
    const inLanes = this.role === "server" && theirs?.settledCursor === true;
    const picked = this.#queue.pick(now2, theirs?.maxGroups ?? 1, inLanes, fit);
    if (!picked) {
      this.pace.idle(now2);
      return null;
    }
    if ("go" in picked) return this.#advance(picked.go, now2);
    const entry = picked.start;
    const out = entry.item;
    if (fit(out) === "frame") return this.#whole(out, now2);
    const cut = this.#plan(out, theirs, now2);
    if ("name" in cut) {
      this.#queue.settle(entry);
      return { out, order: entry.order, error: cut };
    }
    const group = { out, entry, bytes: encode(out.text), name: randomName(), plan: cut, index: 0 };
    out.text = "";
    this.#queue.begin(entry, group, now2, theirs?.groupTimeoutMs ?? 0);
    return this.#advance(group, now2);
  }
  /** Drops everything that was not sent whole, and returns it. */
  abandon() {
    this.answers.length = 0;
    const all = [...this.#queue.groups.map(({ out }) => out), ...this.#queue.waiting];
    this.#queue.clear();
    return all;
  }
  /** The longest segment frame that fits the peer's cap and the link's. */
  #largest(limit) {
    const { cap, overhead } = this.link;
    let high = Math.min(limit, cap, 2 ** 32);
    let low = 0;
    if (!overhead) return high;
    while (low < high) {
      const bytes = Math.ceil((low + high) / 2);
      if (bytes + overhead(bytes, bytes + QUOTES) <= cap) low = bytes;
      else high = bytes - 1;
    }
    return low;
  }
  #whole(out, now2) {
    this.pace.frame(out.size, now2);
    this.#short = [this.#short[1], now2];
    return { frame: out.text, out, done: out.size };
  }
  /** The next segment of a group. */
  #advance(group, now2) {
    const { out, bytes, name, plan: plan2, index } = group;
    const done = Math.min((index + 1) * plan2.size, out.size);
    const data = encodeBase64(bytes.subarray(index * plan2.size, done));
    const frame = `${HEAD}${name}${INDEX}${index}${TOTAL}${plan2.total}${DATA}${data}${TAIL}`;
    this.pace.frame(frame.length, now2);
    if (++group.index >= plan2.total) this.#queue.finish(group);
    return { frame, out, done };
  }
  /** How long a message may be that starts now, so that all groups in flight still finish in time. */
  #spare(now2) {
    const { groups, due } = this.#queue;
    const believed = this.pace.believed(now2);
    if (!believed || due === Infinity) return Infinity;
    const left = Math.floor(Math.max(0, due - now2) / 1e3);
    const underWay = groups.reduce((sum, { out, plan: plan2, index }) => sum + Math.max(0, out.size - index * plan2.size), 0);
    return Math.floor(believed.rate.bytes * left * 2 / 3) - underWay;
  }
  /** How a message that does not fit a frame is cut, or why it cannot be sent. */
  #plan(out, theirs, now2) {
    const { size } = out;
    if (!theirs || out.class === "segment") {
      const { cap } = this.link;
      return unsent("no-segments", `message of ${size} bytes does not fit a frame of ${cap}, and the peer takes no segments`, cap);
    }
    const { maxMessageBytes: most } = theirs;
    if (size > most) return unsent("too-large", `message of ${size} bytes is over the peer's limit of ${most}`, most);
    const largest = this.#largest(theirs.maxFrameBytes);
    const believed = this.pace.believed(now2);
    const isLively = now2 - this.#short[0] < LIVELY;
    const longest = isLively || this.#queue.hasWaiting ? SHARED_FRAME : LONG_FRAME;
    const slow = believed ? Math.max(SLOW_FRAME, Math.floor(believed.rate.bytes / SEGMENTS_PER_SECOND)) : longest;
    const cut = plan(size, Math.min(slow, longest, largest)) ?? plan(size, largest);
    if (!cut) return unsent("too-many-segments", `message of ${size} bytes would need more than 65535 segments at this frame cap`, 65535);
    if (believed) {
      const { rate, left } = believed;
      const needed = Math.floor(cut.total * longestFrame(cut) * 1e3 / rate.bytes);
      const limit = theirs.groupTimeoutMs;
      if (needed > limit) {
        return unsent(
          "too-slow",
          `message of ${size} bytes needs ${needed} ms at the measured ${rate.bytes} bytes/s, and the peer allows ${limit} ms (its groupTimeoutMs)`,
          Math.floor(rate.bytes * limit / 1e3),
          `,"bytesPerSecond":${rate.bytes},"neededMs":${needed},"limitMs":${limit},"retryAfterMs":${Math.floor(left)}`
        );
      }
    }
    return cut;
  }
};
function randomName() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

// src/connection.ts
var DISCONNECTED = unsent("disconnected", "disconnected");
var RETRY = 100;
var VOUCHED = 512;
var Connection = class {
  counters = /* @__PURE__ */ new Map();
  #role;
  #account;
  #maxDepth;
  #maxParkedBytes;
  #agreement;
  #receiver;
  #arrivals;
  #sender;
  #peerRequests;
  #ownRequests;
  #paused = false;
  /** Frames that wait for memory, or until answers of ours have left. */
  #parked = [];
  #parkedBytes = 0;
  #retryAt = null;
  #events = [];
  /** The newest progress of each message. */
  #progress = /* @__PURE__ */ new Map();
  /** Why it has closed, and who has yet to be told. */
  reason = null;
  #toTell = { link: false, application: false };
  constructor({ role, limits, delivery, negotiated, account, agreed }) {
    this.#role = role;
    this.#account = account;
    this.#maxDepth = limits.maxDepth;
    this.#maxParkedBytes = limits.maxMessageBytes;
    const { maxFrameBytes, maxMessageBytes, maxGroups, groupTimeoutMs } = limits;
    const ours = { maxFrameBytes, maxMessageBytes, maxGroups, groupTimeoutMs, settledCursor: true };
    this.#agreement = new Agreement(role, ours, agreed, negotiated, (name) => this.#count(name));
    this.#receiver = new Receiver(limits, account);
    this.#arrivals = new Arrivals(delivery, limits.maxHeldBytes);
    this.#sender = new Sender(role, limits);
    this.#peerRequests = new Requests(role);
    this.#ownRequests = new Requests(role === "client" ? "server" : "client");
  }
  /** What we take. */
  get ours() {
    return this.#agreement.ours;
  }
  /** What the peer takes; `null` while it takes no segments. */
  get peer() {
    return this.#agreement.theirs;
  }
  /** The first ordinal that is not settled. */
  get settled() {
    return this.#arrivals.settled;
  }
  /** The seq to resume from. */
  get cursor() {
    return this.#arrivals.cursor;
  }
  /** Notes that a delivered message brought the application up to a seq. */
  noteSeq(ordinal, seq) {
    this.#arrivals.note(ordinal, seq);
  }
  /** Whether frames should be read. Those that are passed in all the same wait, within a bound. */
  get wantsFrames() {
    return !this.#parked.length && this.#sender.mayRead;
  }
  /** Bytes of messages that wait to be sent. */
  get queuedBytes() {
    return this.#sender.queuedBytes;
  }
  /** Bytes a second that the link takes; `null` if that is not known. */
  rate(now2) {
    return this.#sender.pace.believed(now2)?.rate.bytes ?? null;
  }
  /** A frame has arrived. */
  frame(frame, now2) {
    if (this.reason || this.wantsFrames && this.#take(frame, now2)) return;
    this.#parkedBytes += frame.length + 64;
    if (this.#parked.length && this.#parkedBytes > this.#maxParkedBytes) {
      return this.close(closing("unwanted", 1013, `${this.#parkedBytes} bytes of frames came while there was no memory for them, the limit is ${this.#maxParkedBytes}`));
    }
    if (this.reason) return;
    this.#parked.push(frame);
    this.#retryAt ??= now2 + RETRY;
    this.#runClock(now2);
  }
  /** The link says how much it takes. */
  capacity(link) {
    this.#sender.link = link;
  }
  /** The driver has stopped reading, or reads again. */
  pause(paused, now2) {
    this.#paused = paused;
    this.#runClock(now2);
  }
  /** A timeout was due. */
  timeout(now2) {
    if (this.reason) return;
    if (this.#retryAt !== null && this.#retryAt <= now2) this.#retry(now2);
    if (this.#receiver.isEvicted) return this.close(closing("evicted", 1013, "a group was given up under memory pressure"));
    for (const { ordinal, size: received } of this.#receiver.sweep(now2)) {
      this.#count("group-expired");
      this.#push({ type: "expired", ordinal, received }, `in${ordinal}`);
      if (!this.#arrivals.expire(ordinal)) continue;
      const because = `a message was not finished within the time for a group (${this.ours.groupTimeoutMs} ms): ${received} bytes had come`;
      return this.close(closing("group-expired", 4408, because));
    }
  }
  /** The application sends a message; `isFree` if it may pass others, and they it. */
  send(ticket, text, isFree = false) {
    const bytes = encode(text);
    const scanner = scan(bytes);
    const size = bytes.length;
    const whole = scanner.fault ? null : new Message(text, bytes, scanner);
    const message = whole?.sort("") === "{" ? whole : null;
    const { kind = "other", id = null, method = "" } = message ?? {};
    const name = method === SEGMENT ? "segment" : /^(initialize|reconnect)$/.test(method) ? "handshake" : "ordinary";
    const called = message ? nameOf(message) : "an action";
    const out = { ticket, text, size, kind, id, called, class: method ? name : "response" };
    if (this.reason) return void this.#fail(out, DISCONNECTED);
    const isSound = message && !message.repeated && (size > VOUCHED || message.isValid);
    if (!isSound) return this.#giveUp(out, !isFree, unsent("not-json-rpc", "not a JSON-RPC message"));
    const natural = this.#orderOf(message);
    const request = kind === "request" && id !== null ? idKey(id) : null;
    const edited = this.#pass(this.#role, message);
    const order = isFree && natural !== "barrier" ? "free" : natural;
    const sent = edited === null ? out : { ...out, text: edited, size: utf8Length(edited) };
    const tooDeep2 = scanner.deepest > this.#maxDepth ? unsent("too-deep", `message is nested ${scanner.deepest} levels deep, the limit is ${this.#maxDepth}`) : null;
    const error = tooDeep2 ?? this.#sender.push(sent, order, request, cancelled(message));
    if (error) this.#refuse(sent, order, error);
  }
  /** Ends the connection. Nothing more is sent or delivered. The first reason stays. */
  close(reason) {
    if (this.reason) return;
    this.reason = reason;
    this.#toTell = { link: true, application: true };
    this.#count(reason.name);
    this.#receiver.clear();
    this.#arrivals.clear();
    this.#progress.clear();
    this.#parked = [];
    this.#retryAt = null;
    for (const out of this.#sender.abandon()) this.#fail(out, DISCONNECTED);
  }
  /** The next frame for the link, or the reason to close it. */
  pollTransmit(now2) {
    if (!this.reason && !this.#sender.canGoOn(this.peer)) this.close(closing("cap-shrank", 4413, "the frame cap shrank below a started group's segments"));
    while (!this.reason) {
      const couldRead = this.#sender.mayRead;
      const polled = this.#sender.poll(this.peer, this.#agreement.isWaiting, now2);
      const rate = this.#sender.pace.news();
      if (rate) this.#agreement.noteRate(rate);
      if (!couldRead && this.#sender.mayRead) this.#retry(now2);
      if (!polled) return this.#tellLink();
      if ("error" in polled) {
        this.#refuse(polled.out, polled.order, polled.error);
        continue;
      }
      const { frame, done, out } = polled;
      if (out.ticket !== null) {
        const { ticket: id, size: total } = out;
        if (done >= total) this.#push({ type: "sent", ticket: id }, `out${id}`);
        else this.#progress.set(`out${id}`, { type: "progress", direction: "out", id, done, total });
      }
      return { frame };
    }
    return this.#tellLink();
  }
  /** The next event: those that happened, in order, then progress, then the close. */
  pollEvent() {
    const next = this.#events.shift();
    if (next) {
      next.grant?.complete();
      if (next.event.type === "message") this.#arrivals.delivered(next.event.ordinal, next.event.seq);
      return next.event;
    }
    for (const [key, progress] of this.#progress) {
      this.#progress.delete(key);
      return progress;
    }
    if (!this.reason || !this.#toTell.application) return null;
    this.#toTell.application = false;
    return { type: "closed", reason: this.reason };
  }
  /** When `timeout` has to be called. */
  pollTimeout() {
    if (this.reason) return null;
    if (this.#receiver.isEvicted) return 0;
    const due = this.#receiver.due;
    return due === null || this.#retryAt === null ? due ?? this.#retryAt : Math.min(due, this.#retryAt);
  }
  /** Takes parked frames, as far as there is memory for them and the peer takes our answers. */
  #retry(now2) {
    while (this.#sender.mayRead && this.#parked.length) {
      const [frame] = this.#parked;
      if (!this.#take(frame, now2)) break;
      if (this.reason) return;
      this.#parked.shift();
      this.#parkedBytes -= frame.length + 64;
    }
    this.#retryAt = this.#parked.length ? now2 + RETRY : null;
    this.#runClock(now2);
  }
  #runClock(now2) {
    this.#account.clock.pause(this.#paused || this.#parked.length > 0, now2);
  }
  /** Takes a frame. Returns false if there is no memory for the group that it begins. */
  #take(frame, now2) {
    try {
      const received = this.#receiver.frame(frame, this.#agreement.invitation, now2, () => this.#arrivals.begin());
      if (!received) return false;
      const { message, grant = null, group } = received;
      if (group && !message) {
        const { ordinal: id, size: done, expected: total } = group;
        this.#progress.set(`in${id}`, { type: "progress", direction: "in", id, done, total });
      }
      if (message) this.#message(group?.ordinal ?? this.#arrivals.begin(), message, grant, now2);
    } catch (reason) {
      if (!(reason instanceof Reason)) throw reason;
      this.close(reason);
    }
    return true;
  }
  /** A message has arrived whole. */
  #message(ordinal, message, given, now2) {
    const { kind, method } = message;
    const from = this.#role === "client" ? "server" : "client";
    if (kind === "request" && !this.#peerRequests.note(message)) {
      given?.complete();
      return this.close(invalid("too-many-requests", `more than ${MAX_REQUESTS} requests wait for an answer`));
    }
    const isState = kind === "response" ? isOrdered(this.#ownRequests.answer(message.id)) : carriesState(from, kind, method);
    const isHeldBack = from === "server" && isState;
    const number = method === "action" ? message.number("params.serverSeq") : null;
    const seq = typeof number === "bigint" && number >= 0n && number < 1n << 64n ? number : null;
    const text = this.#pass(from, message) ?? message.text;
    let grant = given;
    if (!grant && this.#arrivals.mustHold(ordinal, isHeldBack)) {
      grant = this.#receiver.hold(message.size, now2);
      if (!grant) return this.close(overBudget(message.size));
    }
    const finished2 = { ordinal, text, size: message.size, seq, isOrdered: isHeldBack, grant };
    const ready = this.#arrivals.finish(finished2);
    if (typeof ready === "number") {
      grant?.complete();
      return this.close(closing("held-too-much", 1013, `${ready} bytes wait for an unfinished group, the limit is ${this.#arrivals.maxHeldBytes}`));
    }
    for (const { ordinal: id, text: text2, seq: seq2, grant: grant2 } of ready) {
      this.#push({ type: "message", text: text2, ordinal: id, seq: seq2 }, `in${id}`, grant2);
    }
  }
  #orderOf(message) {
    const { kind, method, id } = message;
    if (!method) return this.#peerRequests.answer(id);
    if (kind === "request") this.#ownRequests.note(message);
    const order = orderOf(this.#role, kind, method, message.string("params.channel"));
    if (this.#role === "server" || !mayPass(message) || this.#agreement.isWaiting) return order;
    return this.#sender.fits(message, this.peer) && !this.#sender.hasUnfinished(order) ? "free" : order;
  }
  #pass(from, message) {
    const edited = this.#agreement.pass(from, message);
    if (edited !== null) this.#sender.pace.recall(this.#agreement.rate);
    return edited;
  }
  /** A message that was queued cannot be sent. */
  #refuse(out, order, error) {
    if (out.class === "handshake") this.#agreement.withdraw();
    this.#giveUp(out, isOrdered(order), error);
  }
  /** A message cannot be sent. If it is one that a client's state depends on, the link closes. */
  #giveUp(out, inOrder, error) {
    this.#fail(out, error);
    const diverges = out.kind === "notification" || out.kind === "other" && out.id === null;
    if (this.#role !== "server" || !inOrder || !diverges) return;
    const { name, because } = error;
    this.close(closing("unsendable", /json|deep/.test(name) ? 4422 : 4413, `${out.called} cannot be sent: ${because}`));
  }
  /** A request fails here, and in place of a response the peer gets an error. */
  #fail(out, error) {
    const { ticket, kind, id, text } = out;
    this.#count(error.name);
    if (ticket === null) return;
    const answer = id === null ? null : errorResponse(id, out.size, error);
    const reply = kind === "request" ? answer : null;
    this.#push({ type: "failed", ticket, error, reply, text }, `out${ticket}`);
    if (answer === null || reply !== null || this.reason) return;
    const instead = { ...out, ticket: null, text: answer, size: utf8Length(answer) };
    if (this.#sender.fits(instead, this.peer)) this.#sender.answers.push(instead);
    else this.#count("answer-too-large");
  }
  #tellLink() {
    if (!this.reason || !this.#toTell.link) return null;
    this.#toTell.link = false;
    return { close: this.reason };
  }
  /** Adds an event that ends a message, whose progress is dropped. */
  #push(event, ends, grant = null) {
    this.#progress.delete(ends);
    this.#events.push({ event, grant });
  }
  #count(name) {
    this.counters.set(name, (this.counters.get(name) ?? 0) + 1);
  }
};
function nameOf(message) {
  const isName = (name) => /^[\w/$.-]{1,64}$/.test(name);
  const type = message.string("params.action.type") ?? "";
  if (isName(type)) return `the action ${type}`;
  return isName(message.method) && !/^(action|dispatchAction)$/.test(message.method) ? message.method : "an action";
}

// src/link.ts
var CONNECTING = 0;
var OPEN = 1;
var CLOSING = 2;
var CLOSED = 3;
function socketLink(socket, events) {
  const more = socket;
  socket.binaryType = "arraybuffer";
  socket.addEventListener(
    "message",
    ({ data }) => events.frame(typeof data === "string" ? data : new Uint8Array(data))
  );
  socket.addEventListener("open", () => events.opened());
  socket.addEventListener("error", (event) => events.failed(event));
  socket.addEventListener(
    "close",
    (event) => events.closed(event.code, event.reason, event.wasClean)
  );
  return {
    get readyState() {
      return socket.readyState;
    },
    get bufferedAmount() {
      return socket.bufferedAmount;
    },
    // The npm class calls back when a frame was written. Others ignore it.
    send: (frame) => more.send(frame, events.drained),
    close(code, reason) {
      try {
        socket.close(code, reason);
      } catch {
        socket.close(3e3 + code, reason);
      }
    },
    pause: (paused) => paused ? more.pause?.() : more.resume?.()
  };
}
function duplexLink({ readable, writable }, events) {
  const reader = readable.getReader();
  const writer = writable.getWriter();
  let state = OPEN;
  let waiting = 0;
  let resume = null;
  let paused = null;
  const end = (code, reason) => {
    if (state === CLOSED) return;
    state = CLOSED;
    events.closed(code, reason, code !== 1006);
  };
  const read = async () => {
    for (; ; ) {
      await paused;
      const { value, done } = await reader.read();
      if (done) return;
      events.frame(value);
    }
  };
  queueMicrotask(() => {
    events.opened();
    read().then(
      () => end(1e3, ""),
      () => end(1006, "")
    );
  });
  return {
    get readyState() {
      return state;
    },
    get bufferedAmount() {
      return waiting;
    },
    send(frame) {
      waiting += frame.length;
      writer.write(frame).then(
        () => {
          waiting -= frame.length;
          events.drained();
        },
        () => end(1006, "")
      );
    },
    close(code, reason) {
      if (state === OPEN) state = CLOSING;
      const closing2 = Promise.allSettled([writer.close(), reader.cancel()]);
      void closing2.then(() => end(code, reason));
    },
    pause(isPaused) {
      if (isPaused) paused ??= new Promise((done) => resume = done);
      else {
        resume?.();
        paused = resume = null;
      }
    }
  };
}

// src/socket.ts
var MOST_BUFFERED = 256 << 10;
var LEAST_BUFFERED = 16 << 10;
var POLL = 4;
var FLUSH = 1e4;
var LATE = 1e3;
var memories = /* @__PURE__ */ new Map();
function memoryOf(url) {
  const [address] = url.split(/[?#]/);
  const memory = memories.get(address) ?? new Negotiated();
  if (!address) return memory;
  memories.delete(address);
  memories.set(address, memory);
  if (memories.size > 64) for (const oldest of memories.keys()) return memories.delete(oldest), memory;
  return memory;
}
var Segmented = class extends EventTarget {
  CONNECTING = CONNECTING;
  OPEN = OPEN;
  CLOSING = CLOSING;
  CLOSED = CLOSED;
  binaryType = "blob";
  url;
  traffic = { framesIn: 0, charsIn: 0, framesOut: 0, charsOut: 0 };
  #socket;
  #link;
  #connection;
  #handlers = {};
  /** Listeners that were added with `on`, and what was registered for them. */
  #wrapped = /* @__PURE__ */ new Map();
  /** Who wants to know when a message was sent. */
  #callbacks = /* @__PURE__ */ new Map();
  /** Large messages of which progress was told. */
  #large = /* @__PURE__ */ new Set();
  #tickets = 0;
  /** The ordinal of the message that is being delivered. */
  #ordinal = 0;
  #isBusy = false;
  #isPaused = false;
  #poll = null;
  #timer = null;
  #due = null;
  /** The close that waits until everything is sent. */
  #closing = null;
  #flush = null;
  /** Whether the link has ended, and whether the application was told so. */
  #hasEnded = false;
  #isOver = false;
  constructor(socket, options) {
    super();
    const { role = "client", delivery = "start-order", agreed = null, link, principal = "" } = options;
    const isDuplex = "readable" in socket;
    this.#socket = isDuplex ? {} : socket;
    this.url = this.#socket.url ?? "";
    const budget = options.budget ?? new Budget();
    const account = budget.account(principal);
    account.onevict = () => queueMicrotask(() => this.#timeout());
    const negotiated = options.negotiated ?? memoryOf(this.url);
    const limits = checked(options, budget.limits);
    this.#connection = new Connection({ role, limits, delivery, agreed, negotiated, account });
    if (link) this.#connection.capacity(link);
    const events = {
      opened: () => {
        this.#dispatch(new Event("open"));
        this.#run();
      },
      frame: (frame) => {
        this.traffic.framesIn++;
        this.traffic.charsIn += frame.length;
        this.#connection.frame(frame, now());
        this.#run();
      },
      drained: () => this.#run(),
      failed: () => this.#dispatch(new Event("error")),
      closed: (code, reason, wasClean) => {
        this.#hasEnded = true;
        this.#connection.close(closedByPeer(code));
        this.#run();
        this.#end(code, reason, wasClean);
      }
    };
    this.#link = isDuplex ? duplexLink(socket, events) : socketLink(socket, events);
  }
  get readyState() {
    const state = this.#link.readyState;
    return this.#isOver ? CLOSED : state === OPEN && (this.#closing || this.#connection.reason) ? CLOSING : state;
  }
  get protocol() {
    return this.#socket.protocol ?? "";
  }
  get extensions() {
    return this.#socket.extensions ?? "";
  }
  get bufferedAmount() {
    return this.#connection.queuedBytes + this.#link.bufferedAmount;
  }
  get ours() {
    return this.#connection.ours;
  }
  get peer() {
    return this.#connection.peer;
  }
  get cursor() {
    const { cursor } = this.#connection;
    return cursor === null ? null : Number(cursor);
  }
  get counters() {
    return Object.fromEntries(this.#connection.counters);
  }
  get closeReason() {
    return this.#connection.reason;
  }
  get onopen() {
    return this.#handlers.open ?? null;
  }
  set onopen(handler) {
    this.#handle("open", handler);
  }
  get onmessage() {
    return this.#handlers.message ?? null;
  }
  set onmessage(handler) {
    this.#handle("message", handler);
  }
  get onerror() {
    return this.#handlers.error ?? null;
  }
  set onerror(handler) {
    this.#handle("error", handler);
  }
  get onclose() {
    return this.#handlers.close ?? null;
  }
  set onclose(handler) {
    this.#handle("close", handler);
  }
  send(message, options = {}, callback) {
    const isCallback = typeof options === "function";
    const done = isCallback ? options : callback;
    if (done) this.#callbacks.set(++this.#tickets, done);
    else this.#tickets++;
    this.#connection.send(this.#tickets, String(message), !isCallback && options.free === true);
    this.#run();
  }
  close(code = 1e3, reason = "") {
    if (this.#closing || this.#connection.reason) return;
    this.#closing = closedHere(code, reason);
    if (this.#link.readyState === CONNECTING) this.#connection.close(this.#closing);
    else this.#flush = setTimeout(() => this.#finish(), FLUSH);
    this.#run();
  }
  noteSeq(seq) {
    this.#connection.noteSeq(this.#ordinal, BigInt(seq));
  }
  on(type, listener) {
    return this.#on(type, listener, false);
  }
  once(type, listener) {
    return this.#on(type, listener, true);
  }
  off(type, listener) {
    super.removeEventListener(type, this.#wrapped.get(listener) ?? null);
    this.#wrapped.delete(listener);
    return this;
  }
  #on(type, listener, once) {
    const wrapped = (event) => {
      if (event instanceof MessageEvent) listener(event.data, false);
      else if (event instanceof CustomEvent) listener(event.detail);
      else if (type === "close") listener(event.code, event.reason);
      else listener(event);
    };
    this.#wrapped.set(listener, wrapped);
    super.addEventListener(type, wrapped, { once });
    return this;
  }
  #handle(type, handler) {
    const before = this.#handlers[type];
    if (before) super.removeEventListener(type, before);
    this.#handlers[type] = handler;
    if (handler) super.addEventListener(type, handler);
  }
  #dispatch(event) {
    this.dispatchEvent(event);
  }
  /** Gives the link what it takes and the application what there is. Listeners may send more meanwhile. */
  #run() {
    if (this.#isBusy) return;
    this.#isBusy = true;
    try {
      for (let hasMore = true; hasMore; ) {
        hasMore = this.#transmit();
        for (let event = this.#connection.pollEvent(); event; event = this.#connection.pollEvent()) {
          hasMore = true;
          this.#tell(event);
        }
      }
    } finally {
      this.#isBusy = false;
    }
    const isPaused = !this.#connection.wantsFrames && !this.#connection.reason;
    if (isPaused !== this.#isPaused) this.#link.pause(this.#isPaused = isPaused);
    this.#arm(0);
  }
  /** Sends as many frames as the link takes. Returns whether there may be events because of that. */
  #transmit() {
    let hasSent = false;
    while (this.#link.readyState === OPEN || this.#connection.reason) {
      const time = now();
      const rate = this.#connection.rate(time);
      const most = rate ? Math.max(LEAST_BUFFERED, Math.min(MOST_BUFFERED, rate / 20)) : MOST_BUFFERED;
      if (this.#link.bufferedAmount >= most && !this.#connection.reason) {
        this.#poll ??= setTimeout(() => {
          this.#poll = null;
          this.#run();
        }, POLL);
        break;
      }
      const transmit = this.#connection.pollTransmit(time);
      if (!transmit) {
        this.#finish();
        if (!this.#connection.reason) break;
        const last = this.#connection.pollTransmit(time);
        if (last && "close" in last) this.#closeLink(last.close);
        break;
      }
      hasSent = true;
      if ("close" in transmit) {
        this.#closeLink(transmit.close);
        break;
      }
      this.traffic.framesOut++;
      this.traffic.charsOut += transmit.frame.length;
      this.#link.send(transmit.frame);
    }
    return hasSent;
  }
  /** Everything was sent, or waited too long: the close that waits goes on. */
  #finish() {
    if (!this.#closing || this.#connection.reason) return;
    this.#connection.close(this.#closing);
    this.#run();
  }
  #closeLink({ code, text }) {
    if (this.#link.readyState < CLOSING) this.#link.close(code === 1006 ? 1e3 : code, text);
  }
  #tell(event) {
    const detail = (type, detail2) => this.#dispatch(new CustomEvent(type, { detail: detail2 }));
    const done = (direction, id) => {
      if (this.#large.delete(direction + id)) detail("done", { direction, id });
    };
    switch (event.type) {
      case "message":
        done("in", event.ordinal);
        this.#ordinal = event.ordinal;
        this.#dispatch(new MessageEvent("message", { data: event.text }));
        break;
      case "sent":
        done("out", event.ticket);
        this.#callBack(event.ticket);
        break;
      case "failed":
        this.#callBack(event.ticket, new Error(event.error.because));
        detail("sendfailed", { name: event.error.name, because: event.error.because, text: event.text });
        if (event.reply !== null) this.#dispatch(new MessageEvent("message", { data: event.reply }));
        break;
      case "expired":
        detail("expired", { id: event.ordinal, received: event.received });
        break;
      case "progress": {
        const { direction, id, done: done2, total } = event;
        this.#large.add(direction + id);
        detail("progress", { direction, id, done: done2, total });
        break;
      }
      case "closed":
        if (event.reason !== this.#closing && !this.#hasEnded) this.#end(event.reason.code, event.reason.text, false);
    }
  }
  #callBack(ticket, error) {
    const callback = this.#callbacks.get(ticket);
    this.#callbacks.delete(ticket);
    callback?.(error);
  }
  #end(code, reason, wasClean) {
    if (this.#isOver) return;
    this.#isOver = true;
    for (const timer of [this.#poll, this.#timer, this.#flush]) if (timer !== null) clearTimeout(timer);
    this.#dispatch(Object.assign(new Event("close"), { code, reason, wasClean }));
  }
  /** Sets the timer for the next timeout. */
  #arm(least) {
    const due = this.#isOver ? null : this.#connection.pollTimeout();
    if (due === this.#due && !least) return;
    this.#due = due;
    if (this.#timer !== null) clearTimeout(this.#timer);
    if (due === null) return;
    this.#timer = setTimeout(() => this.#timeout(), Math.max(least, due - now()));
    this.#timer.unref?.();
  }
  #timeout() {
    const time = now();
    const due = this.#due;
    this.#due = null;
    if (due && time - due > LATE) {
      this.#connection.pause(true, due);
      this.#connection.pause(this.#isPaused, time);
      return this.#arm(50);
    }
    this.#connection.timeout(time);
    this.#run();
  }
};
var now = () => performance.now();

// src/index.ts
function segmented(socket, options = {}) {
  return new Segmented(socket, options);
}
function sharedBudget(limits = {}) {
  return new Budget(limits);
}
function negotiationMemory() {
  return new Negotiated();
}
export {
  negotiationMemory,
  segmented,
  sharedBudget
};
