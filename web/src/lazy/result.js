/** The panel with the whole of a long result or prompt. */

import { h, setText } from '../ui/dom.js';
import { size } from '../ui/format.js';
import { readText } from './content.js';
import { TextViewer } from './text_viewer.js';

/** @param {string} title @param {string} url @param {string} token @returns {import('../ui/drawer.js').Panel} */
export function resultPanel(title, url, token) {
  const abort = new AbortController();
  const viewer = new TextViewer();
  const state = h('span', { class: 'muted', role: 'status' }, 'Loading…');
  const save = h('button', { type: 'button', class: 'small', disabled: true, click: () => void download() }, 'Save');
  const element = h('div', { class: 'panel fills' }, h('div', { class: 'panel-head' }, h('span', { class: 'panel-title' }, title), state, h('span', { class: 'grow' }), save), viewer.element);
  void load();
  return { element, close: () => abort.abort() };

  async function load() {
    try {
      await readText(url, token, abort.signal, (text, done, total) => {
        viewer.push(text);
        setText(state, done < total ? `${size(done)} of ${size(total)}` : size(done));
      });
      viewer.end();
      element.dataset.state = 'done';
      save.disabled = false;
    } catch (error) {
      if (abort.signal.aborted) return;
      setText(state, error instanceof Error ? error.message : String(error));
    }
  }

  function download() {
    const { lines } = viewer;
    const address = URL.createObjectURL(new Blob([lines.slice(0, lines.count).join('\n')], { type: 'text/plain' }));
    h('a', { href: address, download: `${title.replace(/\W+/g, '-')}.txt` }).click();
    setTimeout(() => URL.revokeObjectURL(address), 10_000);
  }
}
