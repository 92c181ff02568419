// A host of the built program, and a browser that opens its page.

import { spawn } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { execFileSync } from 'node:child_process';
import { createServer } from 'node:net';
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
    const args = ['serve', '--format', 'json', '--listen', `ws://127.0.0.1:${this.port}`, '--data', join(this.dir, 'data'), '--root', this.workspace, '--agent', 'demo', '--log-level', 'error', ...this.options];
    this.child = spawn(PROGRAM, args, { env: { ...process.env, BREAKBULK_TOKEN: TOKEN, SHELL: '/bin/sh' }, stdio: ['ignore', 'pipe', 'inherit'] });
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

let browser;

/** A page in a context of its own. What it complains about is kept. */
export async function openPage(address, options = {}) {
  browser ??= await chromium.launch({
    executablePath: CHROMIUM,
    args: ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync'],
  });
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, ...options });
  context.setDefaultTimeout(PATIENCE);
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

export async function closeBrowser() {
  await browser?.close();
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

/** What the agent has said in the conversation, as text. */
export async function said(page) {
  return page.locator('.message.agent').allInnerTexts();
}
