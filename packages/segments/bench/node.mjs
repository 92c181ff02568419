// 10 MB from Rust to Node, each time with JSON.parse: in segments through this package (frame limit 900 KB), beside npm `ws` in one frame.
//
// Prints the ratio of the two: medians of interleaved rounds, in time and in processor time of this process. `npm run bench` builds the
// sender first.
import * as ws from 'ws';
import { segmented } from '../dist/segments.js';
import { Client } from '../test/client.mjs';
import { machineSocket } from '../test/programs.mjs';

const ROUNDS = 15;
const host = await machineSocket();
const open = async (wrap) => {
  const client = new Client(wrap(new ws.WebSocket(host.url, { maxPayload: 1 << 28, perMessageDeflate: false })));
  await client.initialize('bench');
  return client;
};
const ways = {
  plain: await open((socket) => socket),
  segments: await open((socket) => segmented(socket, { maxFrameBytes: 900_000 })),
};

const median = (list) => list.sort((a, b) => a - b)[list.length >> 1];
const fastest = (list) => Math.min(...list);
for (const kind of ['code', 'objects']) {
  const times = { plain: [], segments: [] };
  const cpu = { plain: [], segments: [] };
  for (let round = -3; round < ROUNDS; round++) {
    // In turns, so that neither always collects what the other has left.
    const order = Object.entries(ways);
    for (const [name, client] of round % 2 ? order.reverse() : order) {
      const [begin, used] = [performance.now(), process.cpuUsage()];
      const result = await client.ask('give', { length: 10e6, kind });
      const [time, { user, system }] = [performance.now() - begin, process.cpuUsage(used)];
      if (result.length < 1000) throw new Error('too little came');
      if (round >= 0) times[name].push(time), cpu[name].push((user + system) / 1000);
    }
  }
  for (const [what, of, pick] of [['time', times, median], ['fastest', times, fastest], ['processor', cpu, median]]) {
    const [plain, segments] = [pick(of.plain), pick(of.segments)];
    console.log(`${kind} ${what}: segments ${segments.toFixed(1)} ms, plain ${plain.toFixed(1)} ms: ${(segments / plain).toFixed(2)}`);
  }
}
host.end();
process.exit(0);
