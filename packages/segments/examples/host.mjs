// Talks to a host: initializes, and prints what the host takes. `node examples/host.mjs ADDRESS`, with the address that
// `breakbulk serve` prints.
import { WebSocket } from 'ws';
import { segmented } from 'breakbulk-segments';

const address = new URL(process.argv[2]);
const token = new URLSearchParams(address.hash.slice(1)).get('token');
address.hash = '';

// The one line: from here on `socket` is used as a WebSocket.
const socket = segmented(new WebSocket(address, { headers: { Authorization: `Bearer ${token}` } }), { maxFrameBytes: 900_000 });

socket.onopen = () => {
  const params = { channel: 'ahp-root://', protocolVersions: ['1.0.0'], clientId: 'example' };
  socket.send(JSON.stringify({ jsonrpc: '2.0', id: 1, method: 'initialize', params }));
};
socket.onmessage = ({ data }) => {
  const { result } = JSON.parse(data);
  console.log(`protocol ${result.protocolVersion}; the host takes messages of ${socket.peer.maxMessageBytes} bytes`);
  socket.close();
};
socket.onclose = ({ code }) => console.log(`closed with ${code}`);
