// What carries frames: a WebSocket of any make, or a duplex of strings.

import type { TextDuplex, WebSocketLike } from './api.js';

/** What a link tells. */
export interface LinkEvents {
  opened(): void;
  frame(frame: string | Uint8Array): void;
  /** The link may take more. */
  drained(): void;
  failed(event: Event): void;
  closed(code: number, reason: string, wasClean: boolean): void;
}

export interface Link {
  readonly readyState: number;
  readonly bufferedAmount: number;
  send(frame: string): void;
  close(code: number, reason: string): void;
  /** Stops or starts reading, if the link can. */
  pause(paused: boolean): void;
}

export const CONNECTING = 0;
export const OPEN = 1;
export const CLOSING = 2;
export const CLOSED = 3;

/** What only the npm class has. */
interface WsSocket {
  pause?(): void;
  resume?(): void;
  send(data: string, drained: () => void): void;
}

/** A WebSocket. */
export function socketLink(socket: WebSocketLike, events: LinkEvents): Link {
  const more = socket as unknown as WsSocket;
  socket.binaryType = 'arraybuffer';
  socket.addEventListener('message', ({ data }: { data: string | ArrayBuffer }) =>
    events.frame(typeof data === 'string' ? data : new Uint8Array(data)),
  );
  socket.addEventListener('open', () => events.opened());
  socket.addEventListener('error', (event: Event) => events.failed(event));
  socket.addEventListener('close', (event: { code: number; reason: string; wasClean: boolean }) =>
    events.closed(event.code, event.reason, event.wasClean),
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
        // Pages may not use the codes below 3000, except 1000.
        socket.close(3000 + code, reason);
      }
    },
    pause: (paused) => (paused ? more.pause?.() : more.resume?.()),
  };
}

/** A duplex of strings. */
export function duplexLink({ readable, writable }: TextDuplex, events: LinkEvents): Link {
  const reader = readable.getReader();
  const writer = writable.getWriter();
  let state = OPEN;
  let waiting = 0;
  let resume: (() => void) | null = null;
  let paused: Promise<void> | null = null;
  const end = (code: number, reason: string): void => {
    if (state === CLOSED) return;
    state = CLOSED;
    events.closed(code, reason, code !== 1006);
  };
  const read = async (): Promise<void> => {
    for (;;) {
      await paused;
      const { value, done } = await reader.read();
      if (done) return;
      events.frame(value);
    }
  };
  queueMicrotask(() => {
    events.opened();
    read().then(
      () => end(1000, ''),
      () => end(1006, ''),
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
        () => end(1006, ''),
      );
    },
    close(code, reason) {
      if (state === OPEN) state = CLOSING;
      const closing = Promise.allSettled([writer.close(), reader.cancel()]);
      void closing.then(() => end(code, reason));
    },
    pause(isPaused) {
      if (isPaused) paused ??= new Promise((done) => (resume = done));
      else {
        resume?.();
        paused = resume = null;
      }
    },
  };
}
