// A WebSocket peer on the `ws` package: does what each line of standard input says, and prints what happens.
//
// Commands: {"do":"listen","tls"?,"limit"?,"code"?}, {"do":"connect","id","url","headers"?,"origin"?,"tls"?}, {"do":"send","id","text"},
// {"do":"close","id","code","reason"?}, {"do":"cut","id"}. A listener numbers its connections 1, 2, 3 ...
// Events: listening {port}, open {id}, message {id,text}, closed {id,code,reason}, refused {id,status}, failed {id,why}.
// `tls` names files: {"cert"?,"key"?,"ca"?}. A listener that has a `ca` lets in only those whom it signed. One with a `limit` reads
// longer texts too, and then ends the connection: with `code`, or without a word.
import { readFileSync } from 'node:fs';
import { createServer } from 'node:https';
import { createInterface } from 'node:readline';
import { WebSocket, WebSocketServer } from 'ws';

const links = new Map();
let accepted = 0;

function say(event, rest) {
  process.stdout.write(`${JSON.stringify({ event, ...rest })}\n`);
}

function keep(id, link, limit = Infinity, code = undefined) {
  links.set(id, link);
  link.on('message', (data) => {
    if (data.length <= limit) say('message', { id, text: data.toString() });
    else setImmediate(() => (code ? link.close(code) : link.terminate()));
  });
  link.on('close', (code, reason) => say('closed', { id, code, reason: reason.toString() }));
  link.on('error', (error) => say('failed', { id, why: error.message }));
}

// The files of `tls`, read; `more` only if there are any.
function secured(tls, more = {}) {
  const files = Object.entries(tls ?? {}).map(([name, file]) => [name, readFileSync(file)]);
  return tls ? { ...Object.fromEntries(files), ...more } : {};
}

const deeds = {
  listen({ tls, limit, code }) {
    const wanted = { requestCert: true, rejectUnauthorized: true };
    const http = tls && createServer(secured(tls, tls.ca ? wanted : {})).listen(0, '127.0.0.1');
    const server = new WebSocketServer(tls ? { server: http } : { host: '127.0.0.1', port: 0 });
    server.on('listening', () => say('listening', { port: server.address().port }));
    server.on('connection', (link) => {
      accepted += 1;
      keep(accepted, link, limit, code);
      say('open', { id: accepted });
    });
  },
  connect({ id, url, headers = {}, origin, tls }) {
    const link = new WebSocket(url, { headers, origin, ...secured(tls) });
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
