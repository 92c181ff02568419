// What must compile for users of the package: never run.
import { type CloseReason, negotiationMemory, segmented, sharedBudget } from '../dist/segments.js';

/** What a client library may ask of its socket. */
interface ClientSocket {
  readonly OPEN: number;
  readonly readyState: number;
  readonly bufferedAmount: number;
  binaryType: string;
  send(data: string): void;
  close(): void;
  addEventListener(type: 'message', listener: (event: { data: unknown }) => void): void;
  addEventListener(type: 'error', listener: () => void): void;
  addEventListener(type: 'close', listener: (event: { code: number; reason: string; wasClean: boolean }) => void): void;
}

const socket = segmented(new WebSocket('ws://localhost/'), { maxFrameBytes: 900_000, delivery: 'settled', budget: sharedBudget() });
export const forClient: ClientSocket = socket;
export const reason: CloseReason | null = socket.closeReason;
socket.onmessage = ({ data }) => data.length;
socket.addEventListener('progress', ({ detail }) => detail.done / detail.total);
socket.on('message', (data) => data).once('close', (code) => code);
socket.send('{}', { free: true }, (error) => error?.message);

const { readable, writable } = new TransformStream<string, string>();
segmented({ readable, writable }, { negotiated: negotiationMemory(), link: { cap: 1_000_000, overhead: (bytes) => bytes / 10 } });

// @ts-expect-error: a limit is a number
segmented(new WebSocket('ws://localhost/'), { maxFrameBytes: '900' });
