// A Nostr relay on `@nostr-relay/core` and `@nostr-relay/validator`, with stored events in memory.
//
// node nostr_relay.mjs
// Prints {"port":N} when it listens.
import { EventRepository, EventUtils } from '@nostr-relay/common';
import { NostrRelay } from '@nostr-relay/core';
import { Validator } from '@nostr-relay/validator';
import { WebSocketServer } from 'ws';

class Memory extends EventRepository {
  events = new Map();
  isSearchSupported() {
    return false;
  }
  upsert(event) {
    const isDuplicate = this.events.has(event.id);
    if (!isDuplicate && event.kind >= 10000 && event.kind < 20000) {
      const replaced = [...this.events.values()].filter((old) => old.kind === event.kind && old.pubkey === event.pubkey);
      replaced.forEach((old) => this.events.delete(old.id));
    }
    this.events.set(event.id, event);
    return { isDuplicate };
  }
  find(filter) {
    if (filter.limit === 0) return [];
    return [...this.events.values()].filter((event) => EventUtils.isMatchingFilter(event, filter));
  }
  async destroy() {}
}

const relay = new NostrRelay(new Memory(), { logLevel: 3 });
const validator = new Validator({ maxContentLength: 1 << 20 });
const server = new WebSocketServer({ port: 0, host: '127.0.0.1' });
server.on('connection', (socket) => {
  relay.handleConnection(socket);
  socket.on('message', async (data) => {
    try {
      await relay.handleMessage(socket, await validator.validateIncomingMessage(data));
    } catch (error) {
      socket.send(JSON.stringify(['NOTICE', error.message]));
    }
  });
  socket.on('close', () => relay.handleDisconnect(socket));
  socket.on('error', () => {});
});
server.on('listening', () => console.log(JSON.stringify({ port: server.address().port })));
