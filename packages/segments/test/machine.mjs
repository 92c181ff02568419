// The machine in Rust as a child process: one step in, what came of it out.
import { spawn } from 'node:child_process';
import { existsSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

const here = (path) => fileURLToPath(new URL(path, import.meta.url));

/** A program of this tree. `cargo xtask segments` builds it first. */
export function program(name) {
  const path = process.env[`BREAKBULK_${name.toUpperCase().replace('-', '_')}`] ?? here(`../../../target/debug/${name}`);
  if (!existsSync(path)) throw new Error(`${path} is missing: run \`cargo xtask segments\`, which builds it`);
  return path;
}

/** The lines that a stream brings, one at a time. */
export async function* lines(stream) {
  let rest = '';
  for await (const piece of stream.setEncoding('utf8')) {
    const parts = (rest + piece).split('\n');
    rest = parts.pop();
    yield* parts;
  }
}

export class Machine {
  #child = spawn(program('ahp-machine'), ['stdio'], { stdio: ['pipe', 'pipe', 'inherit'] });
  #lines = lines(this.#child.stdout);

  async step(step) {
    this.#child.stdin.write(`${JSON.stringify(step)}\n`);
    const { value, done } = await this.#lines.next();
    if (done) throw new Error('the machine has ended');
    return JSON.parse(value);
  }

  end() {
    this.#child.stdin.end();
  }
}
