// A client that has never heard of segments: requests, actions, one prompt at a time, over anything that looks like a WebSocket.

export class Client {
  actions = [];
  #ids = 0;
  #clientSeq = 0;
  #waiting = new Map();
  #listeners = new Set();

  constructor(socket) {
    this.socket = socket;
    this.opened = new Promise((done, failed) => {
      if (socket.readyState === 1) done();
      socket.addEventListener('open', () => done());
      socket.addEventListener('close', ({ code }) => failed(new Error(`closed with ${code}`)));
    });
    this.closed = new Promise((done) => socket.addEventListener('close', done));
    this.opened.catch(() => {});
    socket.addEventListener('message', ({ data }) => this.#got(JSON.parse(data)));
  }

  #got(message) {
    if (message.method === 'action') this.actions.push(message.params);
    else if (this.#waiting.has(message.id)) {
      const { done, failed } = this.#waiting.get(message.id);
      this.#waiting.delete(message.id);
      if (message.error) failed(new Error(JSON.stringify(message.error)));
      else done(message.result);
    }
    for (const listener of this.#listeners) listener();
  }

  notify(method, params) {
    this.socket.send(JSON.stringify({ jsonrpc: '2.0', method, params }));
  }

  ask(method, params = {}) {
    const id = ++this.#ids;
    this.socket.send(JSON.stringify({ jsonrpc: '2.0', id, method, params: { channel: 'ahp-root://', ...params } }));
    return new Promise((done, failed) => this.#waiting.set(id, { done, failed }));
  }

  async initialize(clientId) {
    await this.opened;
    return this.ask('initialize', { protocolVersions: ['1.0.0'], clientId });
  }

  /** Makes a session, and follows it and its chat; gives the chat. */
  async begin(session) {
    await this.ask('createSession', { channel: session });
    const { snapshot } = await this.ask('subscribe', { channel: session });
    await this.ask('subscribe', { channel: snapshot.state.defaultChat });
    return snapshot.state.defaultChat;
  }

  prompt(channel, turnId, text) {
    const message = { text, origin: { kind: 'user' } };
    const action = { type: 'chat/turnStarted', turnId, startedAt: '2026-01-01T00:00:00.000Z', message };
    this.notify('dispatchAction', { channel, clientSeq: ++this.#clientSeq, action });
  }

  /** Resolves when something is so. */
  async until(isSo) {
    for (;;) {
      const found = isSo();
      if (found) return found;
      await new Promise((done, failed) => {
        const listener = () => {
          this.#listeners.delete(listener);
          done();
        };
        this.#listeners.add(listener);
        this.closed.then(({ code, reason }) => failed(new Error(`closed with ${code}: ${reason}`)));
      });
    }
  }
}
