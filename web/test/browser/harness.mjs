// A host of the built program, and a browser that opens its page.

import assert from 'node:assert/strict';
import { execFileSync, spawn } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { connect, createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { chromium } from 'playwright-core';

const root = fileURLToPath(new URL('../../../', import.meta.url));

/** The program under test. `cargo xtask test` says where it is. */
const PROGRAM = process.env.BREAKBULK ?? join(root, 'target/debug/breakbulk');
const CHROMIUM = process.env.CHROMIUM ?? '/usr/bin/chromium';
/** No test may wait longer for anything. */
const PATIENCE = 20_000;
/** With `BREAKBULK_PAGE=files` the page is what lies in `web/` now, and not what the program was built with. */
const FROM_FILES = process.env.BREAKBULK_PAGE === 'files';

const shots = join(root, 'target/page');
mkdirSync(shots, { recursive: true });

export const TOKEN = 'a-token-for-the-tests-of-the-page';

/** A free port of this machine. */
function freePort() {
  return new Promise((resolve, reject) => {
    const server = createServer();
    server.once('error', reject);
    server.listen(0, '127.0.0.1', () => {
      const { port } = /** @type {import('node:net').AddressInfo} */ (server.address());
      server.close(() => resolve(port));
    });
  });
}

/** A host with a git work tree of its own. */
export class Host {
  /** @param {string[]} [options] */
  static async start(options = []) {
    const host = new Host();
    host.options = options;
    host.dir = mkdtempSync(join(tmpdir(), 'breakbulk-page-'));
    host.workspace = join(host.dir, 'project');
    mkdirSync(join(host.workspace, 'src'), { recursive: true });
    writeFileSync(join(host.workspace, 'README.md'), '# A project\n\nIts first line.\n');
    writeFileSync(join(host.workspace, 'src/main.rs'), 'fn main() {\n    println!("one");\n}\n');
    const git = (...args) => execFileSync('git', ['-c', 'user.name=T', '-c', 'user.email=t@example.org', ...args], { cwd: host.workspace, stdio: 'ignore' });
    git('init', '--quiet', '--initial-branch=main');
    git('add', '.');
    git('commit', '--quiet', '--message', 'Begin');
    host.port = await freePort();
    await host.run();
    return host;
  }

  /** Starts the program, also again after it was killed. */
  async run() {
    const agents = this.options.includes('--config') ? [] : ['--agent', 'demo'];
    const args = ['serve', '--format', 'json', '--listen', `ws://127.0.0.1:${this.port}`, '--data', join(this.dir, 'data'), '--root', this.workspace, ...agents, '--log-level', 'error', '--allow-host', '127.0.0.1', ...this.options];
    this.child = spawn(PROGRAM, args, { cwd: this.dir, env: { ...process.env, BREAKBULK_TOKEN: TOKEN, SHELL: '/bin/sh' }, stdio: ['ignore', 'pipe', 'inherit'] });
    const ended = new Promise((_, reject) => this.child.once('exit', (code) => reject(new Error(`the host has ended with ${code}`))));
    const line = new Promise((resolve) => createInterface({ input: this.child.stdout }).once('line', resolve));
    this.ready = JSON.parse(await Promise.race([line, ended]));
    ended.catch(() => {});
    return this;
  }

  async kill(signal = 'SIGKILL') {
    const gone = new Promise((resolve) => this.child.once('exit', resolve));
    this.child.kill(signal);
    await gone;
  }

  async stop() {
    await this.kill('SIGTERM');
    rmSync(this.dir, { recursive: true, force: true });
  }
}

/** A network between a page and a host, which can stop to carry anything without a word, as it does for a phone that sleeps. */
export class Network {
  /** @param {Host} host @param {number} [port] */
  static async before(host, port = 0) {
    const network = new Network();
    network.sockets = new Set();
    network.server = createServer((near) => {
      const far = connect(host.port, '127.0.0.1');
      for (const socket of [near, far]) {
        network.sockets.add(socket);
        socket.on('error', () => {}).on('close', () => network.sockets.delete(socket));
      }
      near.pipe(far).pipe(near);
    });
    await new Promise((resolve) => network.server.listen(port, '127.0.0.1', resolve));
    const address = /** @type {import('node:net').AddressInfo} */ (network.server.address());
    network.page = host.ready.page.replace(`:${host.port}`, `:${address.port}`);
    return network;
  }

  /** Carries nothing any more on the connections that are there. They stay open. New ones are carried. */
  lose() {
    for (const socket of this.sockets) socket.unpipe().pause();
  }

  stop() {
    for (const socket of this.sockets) socket.destroy();
    this.server.close();
  }
}

const ARGUMENTS = ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync'];

let browser;
/** A browser that keeps pages for the back button, which one that is driven by tests does not do otherwise. */
let keeping;

/** A page in a context of its own. What it complains about is kept. */
export async function openPage(address, { keepsPages = false, ...options } = {}) {
  if (keepsPages) keeping ??= await chromium.launch({ executablePath: CHROMIUM, args: ARGUMENTS, ignoreDefaultArgs: ['--disable-back-forward-cache'] });
  else browser ??= await chromium.launch({ executablePath: CHROMIUM, args: ARGUMENTS });
  const context = await (keepsPages ? keeping : browser).newContext({ viewport: { width: 1280, height: 800 }, ...options });
  context.setDefaultTimeout(PATIENCE);
  if (FROM_FILES) await context.route(/\/page\/[0-9a-f]+\//, fromFiles);
  const page = await context.newPage();
  page.complaints = [];
  page.on('console', (message) => {
    // A WebSocket that could not connect is what some tests are about.
    if (['error', 'warning'].includes(message.type()) && !/WebSocket connection|Failed to load resource/.test(message.text())) page.complaints.push(message.text());
  });
  page.on('pageerror', (error) => page.complaints.push(String(error)));
  if (address) await page.goto(address);
  return page;
}

/** Answers with the file as it is now. */
async function fromFiles(route) {
  const path = new URL(route.request().url()).pathname.replace(/^\/page\/[0-9a-f]+\//, '');
  const file = join(root, path === 'vendor/lazy/segments.js' ? 'packages/segments/dist/segments.js' : `web/${path}`);
  if (existsSync(file)) await route.fulfill({ headers: { 'content-type': path.endsWith('.css') ? 'text/css' : 'text/javascript' }, body: readFileSync(file) });
  else await route.continue();
}

export async function closeBrowser() {
  await Promise.all([browser?.close(), keeping?.close()]);
}

const axe = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');

/** Fails if a rule for accessibility is broken in a way that keeps people out. */
export async function assertAccessible(page) {
  // The script is run by the test and not by the page, whose policy would not allow it.
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() => window.axe.run(document, { resultTypes: ['violations'] }));
  const serious = violations.filter(({ impact }) => impact === 'serious' || impact === 'critical');
  assert.deepEqual(serious.map(({ id, nodes }) => `${id}: ${nodes.map(({ target }) => target).join(' ')}`), []);
}

/** Compares what a page shows with what a page shows that has just come. */
export async function assertComplete(host, page) {
  const fresh = await openPage(host.ready.page);
  await fresh.goto(new URL(new URL(page.url()).hash, host.ready.page).href);
  await fresh.locator('.message').first().waitFor();
  await turns(fresh, await page.locator('.turn-end').count());
  assert.deepEqual(await said(page), await said(fresh));
  await fresh.context().close();
}

/** A picture of the page, for people. */
export async function shot(page, name) {
  await page.screenshot({ path: join(shots, `${name}.png`), animations: 'disabled' });
}

/** Begins a session in the dialog. */
export async function begin(page) {
  await page.getByRole('button', { name: 'New session' }).first().click();
  await page.getByRole('button', { name: 'Begin' }).click();
  await page.locator('.dialog').waitFor({ state: 'hidden' });
  await message(page).waitFor();
}

export function message(page) {
  return page.getByRole('textbox', { name: 'Message', exact: true });
}

export async function say(page, text) {
  await message(page).fill(text);
  await message(page).press('Enter');
}

/** Waits until so many turns have ended. */
export async function turns(page, count) {
  await page.waitForFunction((wanted) => document.querySelectorAll('.turn-end').length >= wanted && document.querySelector('.working').hidden, count);
}

/** Waits until a chat of the session is shown, by its place among the tabs. A tab may be there before its chat is shown. */
export async function chatShown(page, place) {
  await page.locator('.chat-tabs button').nth(place).and(page.locator('[aria-current=page]')).waitFor();
}

/** Waits until the message field holds something. */
export async function written(page, text) {
  await page.waitForFunction(({ field, wanted }) => field.value === wanted, { field: await message(page).elementHandle(), wanted: text });
}

/** Scrolls a text to its end, again while more of it comes, until its last line is shown. */
export async function scrollToEnd(page, last) {
  await page.waitForFunction((wanted) => {
    const viewer = document.querySelector('.viewer');
    viewer?.scrollTo(0, viewer.scrollHeight);
    return document.querySelector('.viewer-lines')?.textContent.trimEnd().endsWith(wanted);
  }, last);
}

/** What the agent has said in the conversation, as text. */
export async function said(page) {
  return page.locator('.message.agent').allInnerTexts();
}
