/**
 * The panel with terminals in the session's directory. They stay when the panel or the page is closed, until they are ended: the name of
 * a terminal says which session it is for, and the host lists them all.
 */

import { FitAddon, Terminal } from '../../vendor/lazy/xterm.js';
import { h, setText, show } from '../ui/dom.js';
import { icon } from '../ui/icons.js';
import { uriOf } from '../ui/format.js';
import { randomId } from '../ids.js';
import { styledDocument, useStyles, withStyles } from './terminal_styles.js';

/** @typedef {import('./ahp/client.js').AhpClient} AhpClient */

const ROOT = 'ahp-root://';
const THEME = { background: '#14181a', foreground: '#dfe5e5', cursor: '#58c4ba', selectionBackground: '#2f4a4a' };

/** @param {AhpClient} ahp @param {import('../v2/session.js').Session} session @param {string} parent @returns {Promise<import('../ui/drawer.js').Panel>} */
export async function terminalPanel(ahp, session, parent) {
  await useStyles();
  const prefix = `ahp-terminal:/${parent.replace(/^[^:]*:\/*/, '').replace(/[^\w-]/g, '-')}.`;
  const own = { kind: 'client', clientId: ahp.clientId };
  const state = h('span', { class: 'muted', role: 'status' });
  const tabs = h('div', { class: 'terminal-tabs', role: 'group', 'aria-label': 'Terminals' });
  const create = h('button', { type: 'button', class: 'quiet small', 'aria-label': 'New terminal', title: 'New terminal', click: () => void begin() }, icon('add'));
  const end = h('button', { type: 'button', class: 'small', click: () => void dispose() }, 'End');
  const place = h('div', { class: 'terminal-host' });
  const element = h('div', { class: 'panel fills' }, h('div', { class: 'panel-head' }, tabs, create, state, end), place);
  const terminal = new Terminal({ fontSize: 13, fontFamily: 'ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace', theme: THEME, scrollback: 5_000, screenReaderMode: true, documentOverride: styledDocument() });
  const fit = new FitAddon();
  terminal.loadAddon(fit);
  /** The terminals of this session, the oldest first. @type {string[]} */
  let channels = [];
  let channel = '';
  let isRunning = false;
  let leave = () => {};
  let leaveRoot = () => {};
  const sizes = new ResizeObserver(() => resize());
  terminal.onData((data) => channel && isRunning && ahp.dispatch(channel, { type: 'terminal/input', data }));
  show(end, false);
  // The panel is in the page only after this returns.
  const opening = requestAnimationFrame(() => {
    withStyles(() => terminal.open(place));
    sizes.observe(place);
    resize();
    leaveRoot = ahp.subscribe(ROOT, {
      snapshot: ({ terminals }) => {
        listed(terminals ?? []);
        const last = channels.at(-1);
        if (channel) return;
        if (last) follow(last);
        else void begin();
      },
      action: (action) => action.type === 'root/terminalsChanged' && listed(action.terminals),
    });
  });
  return {
    element,
    close: () => {
      cancelAnimationFrame(opening);
      leaveRoot();
      leave();
      sizes.disconnect();
      terminal.dispose();
    },
  };

  /** @param {{resource: string}[]} terminals */
  function listed(terminals) {
    const all = new Set(terminals.map(({ resource }) => resource).filter((name) => name.startsWith(prefix)));
    channels = [...channels.filter((name) => all.delete(name)), ...all];
    drawTabs();
  }

  function drawTabs() {
    tabs.replaceChildren(
      ...channels.map((name, at) => h('button', { type: 'button', class: 'quiet small', 'aria-pressed': String(name === channel), click: () => follow(name) }, icon('terminal'), `Terminal ${at + 1}`)),
    );
  }

  async function begin() {
    const name = prefix + randomId();
    const { cols, rows } = terminal;
    setText(state, '');
    try {
      await ahp.request('createTerminal', { channel: name, claim: own, cols, rows, cwd: uriOf(session.state.cwd ?? '/') });
      if (!channels.includes(name)) channels.push(name);
      follow(name);
    } catch (error) {
      setText(state, error instanceof Error ? error.message : String(error));
    }
  }

  /** @param {string} name */
  function follow(name) {
    leave();
    channel = name;
    isRunning = false;
    drawTabs();
    show(end, true);
    leave = ahp.subscribe(name, {
      snapshot: (now) => {
        terminal.reset();
        for (const part of now.content) terminal.write(part.value ?? part.output ?? '');
        told(now.lifecycle);
        if (isRunning) claimed(now.claim);
        terminal.focus();
      },
      action: (action) => {
        if (action.type === 'terminal/data') terminal.write(action.data);
        else if (action.type === 'terminal/cleared') terminal.clear();
        else if (action.type === 'terminal/claimed') claimed(action.claim);
        else if (action.type === 'terminal/exited') told({ status: 'exited', exitCode: action.exitCode });
      },
      gone: () => {
        gone(name);
        setText(state, 'This terminal is gone.');
      },
    });
  }

  /** A terminal that nobody holds is ours from now on. @param {{kind: string, clientId?: string}} claim */
  function claimed(claim) {
    const isFree = claim.kind === 'client' && claim.clientId === '';
    const isOurs = claim.kind === 'client' && claim.clientId === ahp.clientId;
    if (isFree) ahp.dispatch(channel, { type: 'terminal/claimed', claim: own });
    setText(state, isFree || isOurs ? '' : claim.kind === 'session' ? 'The agent types here.' : 'Another page types here.');
    if (isOurs) resize();
  }

  /** @param {{status: string, exitCode?: number}} lifecycle */
  function told(lifecycle) {
    isRunning = lifecycle.status !== 'exited';
    setText(state, isRunning ? '' : `Ended${lifecycle.exitCode === undefined ? '' : ` with ${lifecycle.exitCode}`}`);
  }

  /** @param {string} name */
  function gone(name) {
    leave();
    leave = () => {};
    channel = '';
    channels = channels.filter((one) => one !== name);
    show(end, false);
    terminal.reset();
    drawTabs();
  }

  async function dispose() {
    const name = channel;
    gone(name);
    const last = channels.at(-1);
    if (last) follow(last);
    else setText(state, 'No terminal is open.');
    await ahp.request('disposeTerminal', { channel: name }).catch(() => {});
  }

  function resize() {
    if (place.clientWidth === 0) return;
    fit.fit();
    if (channel && isRunning) ahp.dispatch(channel, { type: 'terminal/resized', cols: terminal.cols, rows: terminal.rows });
  }
}
