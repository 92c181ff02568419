// 10 MB from Rust to a page in chromium, each time with JSON.parse: in segments (frame limit 900 KB), beside one plain frame.
// Prints the ratio of the two: medians of interleaved rounds. `npm run bench` builds the sender first.
import { openPage } from '../test/browser.mjs';
import { machineSocket } from '../test/programs.mjs';

const [host, { page, end }] = await Promise.all([machineSocket(), openPage()]);
const times = await page.evaluate(async (url) => {
  const { segmented } = await import('/segments.js');
  const { Client } = await import('/client.mjs');
  const clients = { plain: new Client(new WebSocket(url)), segments: new Client(segmented(new WebSocket(url), { maxFrameBytes: 900_000 })) };
  for (const client of Object.values(clients)) await client.initialize('bench');
  const times = {};
  for (const kind of ['code', 'objects']) {
    times[kind] = { plain: [], segments: [] };
    for (let round = -3; round < 15; round++) {
      // In turns, so that neither always collects what the other has left.
      const order = Object.entries(clients);
      for (const [name, client] of round % 2 ? order.reverse() : order) {
        const begin = performance.now();
        await client.ask('give', { length: 10e6, kind });
        if (round >= 0) times[kind][name].push(performance.now() - begin);
      }
    }
  }
  return times;
}, host.url);
const median = (list) => list.sort((a, b) => a - b)[list.length >> 1];
const fastest = (list) => Math.min(...list);
for (const [kind, of] of Object.entries(times)) {
  for (const [what, pick] of [['median', median], ['fastest', fastest]]) {
    const [plain, segments] = [pick(of.plain), pick(of.segments)];
    console.log(`chromium, ${kind}, ${what}: segments ${segments.toFixed(1)} ms, plain ${plain.toFixed(1)} ms: ${(segments / plain).toFixed(2)}`);
  }
}
await end();
host.end();
