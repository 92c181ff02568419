// What carries frames: a WebSocket of any make, or a duplex of strings.

import type { TextDuplex, WebSocketLike } from './api.js';

/** What a link tells. */
export interface LinkEvents {
  opened(): void;
  frame(frame: string | Uint8Array): void;
  /** The link may take more. */
  drained(): void;
  failed(): void;
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
  const listen = socket.addEventListener.bind(socket);
  socket.binaryType = 'arraybuffer';
  listen('message', ({ data }: { data: string | ArrayBuffer }) => events.frame(typeof data === 'string' ? data : new Uint8Array(data)));
  listen('open', events.opened);
  listen('error', events.failed);
  listen('close', ({ code, reason, wasClean }: { code: number; reason: string; wasClean: boolean }) => events.closed(code, reason, wasClean));
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
  let resume: (() => void) | undefined;
  let paused: Promise<void> | undefined;
  const link = {
    readyState: OPEN,
    bufferedAmount: 0,
    send(frame: string) {
      link.bufferedAmount += frame.length;
      writer.write(frame).then(() => {
        link.bufferedAmount -= frame.length;
        events.drained();
      }, lost);
    },
    close(code: number, reason: string) {
      if (link.readyState === OPEN) link.readyState = CLOSING;
      void Promise.allSettled([writer.close(), reader.cancel()]).then(() => end(code, reason));
    },
    pause(isPaused: boolean) {
      resume?.();
      paused = isPaused ? new Promise((done) => (resume = done)) : undefined;
    },
  };
  const end = (code: number, reason: string): void => {
    if (link.readyState === CLOSED) return;
    link.readyState = CLOSED;
    events.closed(code, reason, code !== 1006);
  };
  const lost = (): void => end(1006, '');
  const read = async (): Promise<void> => {
    for (;;) {
      await paused;
      const { value, done } = await reader.read();
      if (done) return end(1000, '');
      events.frame(value);
    }
  };
  queueMicrotask(() => {
    events.opened();
    read().catch(lost);
  });
  return link;
}
