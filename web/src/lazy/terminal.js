/** The panel with terminals in the session's directory. They stay when the panel is closed, until they are ended. */

import { FitAddon, Terminal } from '../../vendor/lazy/xterm.js';
import { h, setText, show } from '../ui/dom.js';
import { icon } from '../ui/icons.js';
import { uriOf } from '../ui/format.js';
import { randomId } from '../ids.js';
import { styledDocument, useStyles, withStyles } from './terminal_styles.js';

/** @typedef {import('./ahp/client.js').AhpClient} AhpClient */

/** Terminals that this page has opened, by session. @type {Map<string, string[]>} */
const opened = new Map();

const THEME = { background: '#14181a', foreground: '#dfe5e5', cursor: '#58c4ba', selectionBackground: '#2f4a4a' };

/** @param {AhpClient} ahp @param {import('../v2/session.js').Session} session @returns {Promise<import('../ui/drawer.js').Panel>} */
export async function terminalPanel(ahp, session) {
  await useStyles();
  const channels = opened.get(session.id) ?? [];
  opened.set(session.id, channels);
  const state = h('span', { class: 'muted', role: 'status' });
  const again = h('button', { type: 'button', class: 'small', click: () => void begin() }, 'New terminal');
  const end = h('button', { type: 'button', class: 'quiet small', click: () => void dispose() }, 'End');
  const place = h('div', { class: 'terminal-host' });
  const element = h('div', { class: 'panel fills' }, h('div', { class: 'panel-head' }, icon('terminal'), state, h('span', { class: 'grow' }), again, end), place);
  const terminal = new Terminal({ fontSize: 13, fontFamily: 'ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace', theme: THEME, scrollback: 5_000, screenReaderMode: true, documentOverride: styledDocument() });
  const fit = new FitAddon();
  terminal.loadAddon(fit);
  let channel = '';
  let leave = () => {};
  const sizes = new ResizeObserver(() => resize());
  terminal.onData((data) => channel && ahp.dispatch(channel, { type: 'terminal/input', data }));
  // The panel is in the page only after this returns.
  requestAnimationFrame(() => {
    withStyles(() => terminal.open(place));
    sizes.observe(place);
    resize();
    const last = channels.at(-1);
    if (last) follow(last);
    else void begin();
  });
  return {
    element,
    close: () => {
      leave();
      sizes.disconnect();
      terminal.dispose();
    },
  };

  async function begin() {
    const name = `ahp-terminal:/${randomId()}`;
    const { cols, rows } = terminal;
    try {
      const claim = { kind: 'client', clientId: ahp.clientId };
      await ahp.request('createTerminal', { channel: name, claim, cols, rows, cwd: uriOf(session.state.cwd ?? '/') });
      channels.push(name);
      follow(name);
    } catch (error) {
      setText(state, error instanceof Error ? error.message : String(error));
    }
  }

  /** @param {string} name */
  function follow(name) {
    leave();
    channel = name;
    show(end, true);
    leave = ahp.subscribe(name, {
      snapshot: (now) => {
        terminal.reset();
        for (const part of now.content) terminal.write(part.value ?? part.output ?? '');
        told(now.title, now.lifecycle);
        resize();
        terminal.focus();
      },
      action: (action) => {
        if (action.type === 'terminal/data') terminal.write(action.data);
        else if (action.type === 'terminal/cleared') terminal.clear();
        else if (action.type === 'terminal/titleChanged') setText(state, action.title);
        else if (action.type === 'terminal/exited') told('', { status: 'exited', exitCode: action.exitCode });
      },
      gone: () => {
        channels.splice(channels.indexOf(name), 1);
        channel = '';
        setText(state, 'This terminal is gone.');
        show(end, false);
      },
    });
  }

  /** @param {string} title @param {{status: string, exitCode?: number}} lifecycle */
  function told(title, lifecycle) {
    setText(state, lifecycle.status === 'exited' ? `Ended${lifecycle.exitCode === undefined ? '' : ` with ${lifecycle.exitCode}`}` : title);
  }

  async function dispose() {
    const name = channel;
    leave();
    leave = () => {};
    channel = '';
    channels.splice(channels.indexOf(name), 1);
    show(end, false);
    terminal.reset();
    setText(state, 'Ended');
    await ahp.request('disposeTerminal', { channel: name }).catch(() => {});
  }

  function resize() {
    if (place.clientWidth === 0) return;
    fit.fit();
    if (channel) ahp.dispatch(channel, { type: 'terminal/resized', cols: terminal.cols, rows: terminal.rows });
  }
}
