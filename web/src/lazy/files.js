/** The panel with the files of the session's directory. */

import { h, setText } from '../ui/dom.js';
import { icon } from '../ui/icons.js';
import { size, uriOf } from '../ui/format.js';
import { authorization } from '../v2/connection.js';
import { readText } from './content.js';
import { TextViewer } from './text_viewer.js';

const IMAGE = /\.(png|jpe?g|gif|webp|avif|svg|ico)$/i;
const MAX_IMAGE = 20_000_000;
/** A longer file is read piece by piece, over HTTP. */
const MAX_MESSAGE = 2_000_000;

/** @param {import('./ahp/client.js').AhpClient} ahp @param {import('../v2/session.js').Session} session @param {string} token @returns {import('../ui/drawer.js').Panel} */
export function filesPanel(ahp, session, token) {
  const root = session.state.cwd ?? '/';
  const crumbs = h('nav', { class: 'crumbs', 'aria-label': 'Path' });
  const state = h('span', { class: 'muted', role: 'status' });
  const body = h('div', { class: 'panel fills' });
  const element = h('div', { class: 'panel fills' }, h('div', { class: 'panel-head' }, crumbs, state), body);
  let abort = new AbortController();
  /** @type {string | null} */
  let image = null;
  void list(root);
  return { element, close: leave };

  function leave() {
    abort.abort();
    abort = new AbortController();
    if (image) URL.revokeObjectURL(image);
    image = null;
  }

  /** @param {string} path */
  async function list(path) {
    leave();
    const { signal } = abort;
    showPath(path);
    try {
      const { entries } = await ahp.request('resourceList', { channel: 'ahp-root://', uri: uriOf(path) });
      if (signal.aborted) return;
      const rank = (/** @type {any} */ { name, type }) => `${type === 'directory' ? 0 : 1}${name.toLowerCase()}`;
      entries.sort((/** @type {any} */ a, /** @type {any} */ b) => rank(a).localeCompare(rank(b)));
      const items = entries.map((/** @type {any} */ { name, type }) => {
        const isDirectory = type === 'directory';
        const go = () => void (isDirectory ? list(`${path}/${name}`) : open(`${path}/${name}`));
        return h('li', {}, h('button', { type: 'button', click: go }, icon(isDirectory ? 'folder' : 'file'), name));
      });
      body.replaceChildren(items.length ? h('ul', { class: 'entries' }, ...items) : h('p', { class: 'muted pad' }, 'Nothing is here.'));
    } catch (error) {
      if (!signal.aborted) complain(error);
    }
  }

  /** @param {string} path */
  async function open(path) {
    leave();
    const { signal } = abort;
    showPath(path);
    const url = `/content/file${path.split('/').map(encodeURIComponent).join('/')}`;
    try {
      if (IMAGE.test(path)) return await showImage(url, path, signal);
      const viewer = new TextViewer();
      setText(state, 'Loading…');
      body.replaceChildren(viewer.element);
      const take = (/** @type {string} */ text, /** @type {number} */ done) => {
        viewer.push(text);
        setText(state, size(done));
      };
      const answer = await fetch(url, { method: 'HEAD', headers: authorization(token), signal });
      const length = Number(answer.headers.get('content-length') ?? Infinity);
      if (answer.ok && length <= MAX_MESSAGE) {
        const { data, encoding } = await ahp.request('resourceRead', { channel: 'ahp-root://', uri: uriOf(path), encoding: 'utf-8' });
        if (signal.aborted) return;
        if (encoding === 'base64') throw new Error(`This file is no text. It has ${size(length)}.`);
        take(data, length);
      } else {
        await readText(url, token, signal, take);
      }
      viewer.end();
    } catch (error) {
      if (!signal.aborted) complain(error);
    }
  }

  /** @param {string} url @param {string} path @param {AbortSignal} signal */
  async function showImage(url, path, signal) {
    const answer = await fetch(url, { headers: authorization(token), signal });
    if (!answer.ok) throw new Error(`The host answers ${answer.status}.`);
    if (Number(answer.headers.get('content-length') ?? 0) > MAX_IMAGE) throw new Error('This picture is too large to show.');
    const blob = await answer.blob();
    if (signal.aborted) return;
    setText(state, size(blob.size));
    image = URL.createObjectURL(blob);
    body.replaceChildren(h('div', { class: 'viewer' }, h('img', { src: image, alt: path })));
  }

  /** @param {unknown} error */
  function complain(error) {
    setText(state, '');
    body.replaceChildren(h('p', { class: 'failure in-panel' }, error instanceof Error ? error.message : String(error)));
  }

  /** The way from the session's directory, each step a button. @param {string} path */
  function showPath(path) {
    setText(state, '');
    const below = path.slice(root.length).split('/').filter(Boolean);
    const steps = [root.split('/').filter(Boolean).at(-1) ?? '/', ...below];
    crumbs.replaceChildren(
      ...steps.flatMap((step, at) => {
        const isLast = at === steps.length - 1;
        const go = () => void list([root, ...below.slice(0, at)].join('/'));
        const button = h('button', { type: 'button', class: 'quiet', 'aria-current': isLast ? 'page' : null, click: isLast ? () => {} : go }, step);
        return isLast ? [button] : [button, h('span', { class: 'muted' }, '/')];
      }),
    );
  }
}
