// Builds what is vendored, from the packages that package-lock.json names; with --check, compares instead of writing.

import { build } from 'esbuild';
import { mkdir, readFile, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = join(dirname(fileURLToPath(import.meta.url)), '..');

/** Each library: what the page uses of it, and the packages whose licenses it falls under. */
const libraries = [
  { file: 'marked.js', source: `export { lexer } from 'marked';`, packages: ['marked'] },
  { file: 'lazy/diff.js', source: `export { structuredPatch } from 'diff';`, packages: ['diff'] },
  {
    file: 'lazy/xterm.js',
    source: `export { Terminal } from '@xterm/xterm'; export { FitAddon } from '@xterm/addon-fit';`,
    packages: ['@xterm/xterm', '@xterm/addon-fit'],
  },
];

/** What the page knows of the types of each. Of `packages/segments`, `crates/cli/build.rs` takes the file itself. */
const types = {
  'marked.d.ts': `/** A token of Markdown; see the package \`marked\`. */
export interface Token { type: string; raw: string; [field: string]: any }
export function lexer(text: string, options?: { gfm?: boolean }): Token[];
`,
  'lazy/segments.d.ts': `export { segmented } from '../../../packages/segments/dist/segments.js';
export type { SegmentedSocket, Chunking } from '../../../packages/segments/dist/segments.js';
`,
  'lazy/diff.d.ts': `export interface Hunk { oldStart: number; oldLines: number; newStart: number; newLines: number; lines: string[] }
export function structuredPatch(
  oldName: string, newName: string, old: string, now: string, oldHeader?: string, newHeader?: string,
  options?: { context?: number; timeout?: number },
): { hunks: Hunk[] } | undefined;
`,
  'lazy/xterm.d.ts': `export { Terminal } from '@xterm/xterm';
export { FitAddon } from '@xterm/addon-fit';
`,
};

const made = new Map(Object.entries(types));
const licenses = [];
for (const { file, source, packages } of libraries) {
  const versions = [];
  for (const name of packages) {
    const at = join(root, 'node_modules', name);
    const { version, license } = JSON.parse(await readFile(join(at, 'package.json'), 'utf8'));
    versions.push(`${name} ${version}`);
    const text = await readFile(join(at, 'LICENSE'), 'utf8').catch(() => readFile(join(at, 'LICENSE.md'), 'utf8'));
    licenses.push(`${name} ${version} (${license})\n\n${text.trim()}\n`);
  }
  const result = await build({
    stdin: { contents: source, resolveDir: root },
    bundle: true,
    format: 'esm',
    minify: true,
    target: 'es2022',
    charset: 'utf8',
    legalComments: 'none',
    write: false,
    banner: { js: `/* ${versions.join(', ')}: see LICENSES.txt. Made by tools/vendor.mjs. */` },
  });
  made.set(file, result.outputFiles[0].text);
}
const css = await build({
  entryPoints: [join(root, 'node_modules/@xterm/xterm/css/xterm.css')],
  minify: true, legalComments: 'none', write: false,
});
made.set('lazy/xterm.css', css.outputFiles[0].text);
made.set('LICENSES.txt', licenses.join(`\n${'-'.repeat(80)}\n\n`));

let differing = 0;
for (const [name, text] of made) {
  const path = join(root, 'vendor', name);
  if (process.argv.includes('--check')) {
    const there = await readFile(path, 'utf8').catch(() => null);
    if (there !== text) {
      console.error(`vendor/${name} is not what its package makes: run \`npm run vendor\` in web/`);
      differing += 1;
    }
  } else {
    await mkdir(dirname(path), { recursive: true });
    await writeFile(path, text);
    console.log(`${name}: ${text.length} bytes`);
  }
}
if (differing === 0 && process.argv.includes('--check')) console.log(`${made.size} vendored files are what their packages make.`);
process.exitCode = differing === 0 ? 0 : 1;
