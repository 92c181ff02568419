// `breakbulk serve` and `breakbulk bridge` of this tree, as child processes.
import { spawn } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { lines, program } from './machine.mjs';

function start(args, { cwd } = {}) {
  const env = { PATH: process.env.PATH };
  return spawn(program('breakbulk'), args, { cwd, env, stdio: ['ignore', 'pipe', 'pipe'] });
}

async function firstLine(stream, matches) {
  for await (const line of lines(stream)) {
    const found = matches(line);
    if (found) return found;
  }
  throw new Error('the program has ended');
}

/** A host with the demo agent, whose listener caps frames. */
export async function serve(query) {
  const dir = mkdtempSync(join(tmpdir(), 'segments-'));
  mkdirSync(join(dir, 'work'));
  const args = ['serve', '--data', 'data', '--root', 'work', '--agent', 'demo', '--demo-pace', '2ms', '--format', 'json'];
  const child = start([...args, '--listen', `ws://127.0.0.1:0${query}`], { cwd: dir });
  child.stderr.resume();
  const { ahp, token } = await firstLine(child.stdout, (line) => JSON.parse(line));
  return {
    url: ahp,
    token,
    end() {
      child.kill('SIGKILL');
      rmSync(dir, { recursive: true, force: true, maxRetries: 5 });
    },
  };
}

/** A bridge in front of a host. */
export async function bridge(listen, connect) {
  const child = start(['bridge', '--listen', listen, '--connect', connect, '--allow-host', '127.0.0.1', '--no-auth']);
  child.stdout.resume();
  const url = await firstLine(child.stderr, (line) => line.split('breakbulk: listening on ')[1]);
  child.stderr.resume();
  return { url, end: () => child.kill('SIGKILL') };
}

/** The machine in Rust behind a WebSocket of its own: it answers `give` with so many bytes. */
export async function machineSocket() {
  const child = spawn(program('ahp-machine'), ['ws'], { stdio: ['ignore', 'pipe', 'inherit'] });
  const port = await firstLine(child.stdout, Number);
  child.stdout.resume();
  return { url: `ws://127.0.0.1:${port}/`, end: () => child.kill('SIGKILL') };
}
