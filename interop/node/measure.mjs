// Runs a command, passes its standard input and output through, and keeps the longest line of each in a file.
//
// node measure.mjs FILE COMMAND ARGUMENT...
import { spawn } from 'node:child_process';
import { writeFileSync } from 'node:fs';

const [file, command, ...args] = process.argv.slice(2);
const child = spawn(command, args, { stdio: ['pipe', 'pipe', 'inherit'] });
const longest = { in: 0, out: 0 };

function measure(side, from, to) {
  let length = 0;
  from.on('data', (bytes) => {
    let begin = 0;
    for (let end; (end = bytes.indexOf(10, begin)) >= 0; begin = end + 1) {
      length += end + 1 - begin;
      if (length > longest[side]) {
        longest[side] = length;
        writeFileSync(file, JSON.stringify(longest));
      }
      length = 0;
    }
    length += bytes.length - begin;
  });
  from.pipe(to);
}

measure('in', process.stdin, child.stdin);
measure('out', child.stdout, process.stdout);
child.on('close', (code) => {
  process.exitCode = code ?? 1;
  process.stdin.destroy();
});
