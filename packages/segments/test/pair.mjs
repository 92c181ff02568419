// Two ends of a link without a network, for the tests.

/** A link as two duplexes of strings. */
export function duplexes() {
  const one = new TransformStream();
  const two = new TransformStream();
  return [
    { readable: one.readable, writable: two.writable },
    { readable: two.readable, writable: one.writable },
  ];
}

/** A server of the npm `ws` package on a port of its own, and a client that is connected to it. */
export async function sockets(ws, options = {}) {
  const server = new ws.WebSocketServer({ host: '127.0.0.1', port: 0, maxPayload: 1 << 30, ...options });
  await new Promise((done) => server.on('listening', done));
  const accepted = new Promise((done) => server.on('connection', done));
  const client = new ws.WebSocket(`ws://127.0.0.1:${server.address().port}/ahp`, { maxPayload: 1 << 30 });
  const opened = new Promise((done, failed) => client.on('open', done).on('error', failed));
  const far = await accepted;
  await opened;
  return { near: client, far, end: () => (client.terminate(), server.close()) };
}

export const message = (type) => (socket) =>
  new Promise((done) => socket.addEventListener(type, done, { once: true }));

/** The next `count` messages. */
export function messages(socket, count) {
  const texts = [];
  return new Promise((done, failed) => {
    socket.addEventListener('message', ({ data }) => {
      if (texts.push(data) === count) done(texts);
    });
    socket.addEventListener('close', ({ code, reason }) => failed(new Error(`closed with ${code}: ${reason}`)));
  });
}

export const text = (value) => JSON.stringify({ jsonrpc: '2.0', ...value });
export const big = (length, more = {}) => text({ method: 'action', params: { channel: 'c', x: 'é\n"'.repeat(length / 4), ...more } });
