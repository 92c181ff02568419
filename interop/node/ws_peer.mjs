// A WebSocket peer on the `ws` package: does what each line of standard input says, and prints what happens.
//
// Commands: {"do":"listen"}, {"do":"connect","id","url","headers"?,"origin"?}, {"do":"send","id","text"},
// {"do":"close","id","code","reason"?}, {"do":"cut","id"}. A listener numbers its connections 1, 2, 3 ...
// Events: listening {port}, open {id}, message {id,text}, closed {id,code,reason}, refused {id,status}, failed {id,why}.
import { createInterface } from 'node:readline';
import { WebSocket, WebSocketServer } from 'ws';

const links = new Map();
let accepted = 0;

function say(event, rest) {
  process.stdout.write(`${JSON.stringify({ event, ...rest })}\n`);
}

function keep(id, link) {
  links.set(id, link);
  link.on('message', (data) => say('message', { id, text: data.toString() }));
  link.on('close', (code, reason) => say('closed', { id, code, reason: reason.toString() }));
  link.on('error', (error) => say('failed', { id, why: error.message }));
}

const deeds = {
  listen() {
    const server = new WebSocketServer({ host: '127.0.0.1', port: 0 });
    server.on('listening', () => say('listening', { port: server.address().port }));
    server.on('connection', (link) => {
      accepted += 1;
      keep(accepted, link);
      say('open', { id: accepted });
    });
  },
  connect({ id, url, headers = {}, origin }) {
    const link = new WebSocket(url, { headers, origin });
    keep(id, link);
    link.on('open', () => say('open', { id }));
    link.on('unexpected-response', (request, response) => {
      say('refused', { id, status: response.statusCode });
      request.destroy();
    });
  },
  send: ({ id, text }) => links.get(id).send(text),
  close: ({ id, code, reason = '' }) => links.get(id).close(code, reason),
  // Ends the TCP connection without a word.
  cut: ({ id }) => links.get(id).terminate(),
};

createInterface({ input: process.stdin })
  .on('line', (line) => {
    const deed = JSON.parse(line);
    deeds[deed.do](deed);
  })
  .on('close', () => process.exit(0));
