// What is published: its size, its types, and what is in the package.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { gzipSync } from 'node:zlib';
import { transform } from 'esbuild';

const here = (path) => fileURLToPath(new URL(path, import.meta.url));

test('a bundler makes less than 42 KB of it, and less than 17 KB compressed', async () => {
  const { code } = await transform(readFileSync(here('../dist/segments.js'), 'utf8'), { minify: true, target: 'es2022' });
  const compressed = gzipSync(code, { level: 9 }).length;
  console.log(`segments: ${code.length} bytes minified, ${compressed} compressed`);
  assert.ok(code.length < 42_000 && compressed < 17_000, `${code.length} and ${compressed} bytes`);
});

test('its types fit what clients ask of a socket', () => {
  const options = '--noEmit --strict --target es2022 --module es2022 --moduleResolution bundler --lib es2022,dom,dom.iterable --types'.split(' ');
  execFileSync(process.execPath, [here('../node_modules/typescript/bin/tsc'), ...options, '', '--ignoreConfig', here('types.ts')], { stdio: 'inherit' });
});

test('it imports nothing', () => {
  assert.doesNotMatch(readFileSync(here('../dist/segments.js'), 'utf8'), /^import |\bimport\(|\brequire\(/m);
});

test('the package has the module, its types, its licenses and its README', () => {
  const packed = execFileSync('npm', ['pack', '--dry-run', '--json', '--ignore-scripts'], { cwd: here('..'), stdio: ['ignore', 'pipe', 'ignore'] });
  // Newer versions of npm print an object by name, older ones a list.
  const [{ files }] = Object.values(JSON.parse(packed));
  assert.deepEqual(files.map(({ path }) => path).sort(), [
    'LICENSE-APACHE',
    'LICENSE-MIT',
    'README.md',
    'dist/segments.d.ts',
    'dist/segments.js',
    'package.json',
  ]);
});
