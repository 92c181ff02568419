/** Reads content of the host piece by piece, so that a long one never occupies the page for long. */

import { authorization } from '../v2/connection.js';

/** So much is taken at once: a few milliseconds of work. */
const PIECE = 256 * 1024;

/**
 * @param {string} url @param {string} token @param {AbortSignal} signal
 * @param {(text: string, done: number, total: number) => void} take
 */
export async function readText(url, token, signal, take) {
  const answer = await fetch(url, { headers: authorization(token), signal });
  if (!answer.ok || !answer.body) throw new Error(`The host answers ${answer.status}: ${(await answer.text()).trim()}`);
  const total = Number(answer.headers.get('content-length') ?? 0);
  const decoder = new TextDecoder();
  const reader = answer.body.getReader();
  let done = 0;
  for (;;) {
    const { value, done: isEnd } = await reader.read();
    if (isEnd) break;
    for (let at = 0; at < value.length; at += PIECE) {
      const piece = value.subarray(at, at + PIECE);
      done += piece.length;
      take(decoder.decode(piece, { stream: true }), done, total);
      await pause();
    }
  }
  take(decoder.decode(), done, total);
}

/** Lets the page draw and answer. @returns {Promise<void>} */
function pause() {
  return new Promise((resolve) => {
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => (port1.close(), resolve());
    port2.postMessage(null);
  });
}
