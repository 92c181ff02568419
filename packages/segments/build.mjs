// Builds the package: `dist/`, which is committed and published, and `build/`, whose modules the tests use one by one.
//
// With `--check` it writes nothing into `dist/`, and fails if what is there is not what comes out of the sources.
import { execFileSync } from 'node:child_process';
import { mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { build } from 'esbuild';

const here = (path) => fileURLToPath(new URL(path, import.meta.url));
const isCheck = process.argv.includes('--check');

/** What of the platform has members that the package may use. */
const PLATFORM =
  'Array ArrayBuffer Buffer DataView Event EventTarget Function JSON Map Math MessageEvent Number Object Promise ReadableStream ReadableStreamDefaultReader ' +
  'RegExp Set String TextDecoder TextEncoder Uint8Array WritableStream WritableStreamDefaultWriter crypto performance';

rmSync(here('build'), { recursive: true, force: true });
// Checks the types, and writes the declarations.
execFileSync(process.execPath, [here('node_modules/typescript/bin/tsc'), '--emitDeclarationOnly', '-p', here('.')], { stdio: 'inherit' });
const shared = { absWorkingDir: here('.'), format: 'esm', target: 'es2022', logLevel: 'warning' };
const modules = readdirSync(here('src')).map((name) => `src/${name}`);
await build({ ...shared, entryPoints: modules, outdir: 'build' });
const bundled = await build({
  ...shared,
  entryPoints: ['src/index.ts'],
  bundle: true,
  minify: true,
  // Names that only this package uses are made short, in `dist/` only.
  mangleProps: /^[a-z]\w*$/,
  reserveProps: new RegExp(`^(${[...keptNames()].join('|')})$`),
  write: false,
  outfile: 'dist/segments.js',
});

const dist = {
  'segments.js': bundled.outputFiles[0].text,
  'segments.d.ts': declarations(),
};
mkdirSync(here('dist'), { recursive: true });
for (const [name, text] of Object.entries(dist)) {
  const path = here(`dist/${name}`);
  if (!isCheck) writeFileSync(path, text);
  else if (readFileSync(path, 'utf8') !== text) {
    console.error(`dist/${name} is not what the sources make. Run \`npm run build\` in packages/segments, and commit the result.`);
    process.exitCode = 1;
  }
}

/** Names of members that keep their names: those of the package's users, and those of the platform. */
function keptNames() {
  const declared = readFileSync(here('build/api.d.ts'), 'utf8').replace(/\/\*[^]*?\*\/|\/\/.*/g, '');
  const kept = new Set(declared.match(/\b[a-z]\w*/gi));
  // Members of what only some platforms have, and of options.
  for (const name of ['pause', 'resume', 'setFromBase64', 'toBase64', 'written', 'lastChunkHandling', 'fatal', 'ignoreBOM', 'detail', 'unref', 'done', 'value']) kept.add(name);
  const keep = (value) => Object.getOwnPropertyNames(value).forEach((name) => kept.add(name));
  for (const name of PLATFORM.split(' ')) {
    const value = globalThis[name];
    keep(value);
    keep(value.prototype ?? Object.getPrototypeOf(value));
  }
  keep(Object.getPrototypeOf(Uint8Array.prototype));
  return [...kept].filter((name) => /^[a-z]\w*$/i.test(name));
}

/** The types of `api.ts`, and the functions of `index.ts`, without their imports from it. */
function declarations() {
  const api = readFileSync(here('build/api.d.ts'), 'utf8');
  const index = readFileSync(here('build/index.d.ts'), 'utf8');
  const own = index.replace(/^import .*;\n/gm, '').replace(/^export type \* .*;\n/m, '');
  return `${api}\n${own}`;
}
