/** The panel with the files that are changed in the session's work tree, each with its differences. */

import { h, setText } from '../ui/dom.js';
import { icon } from '../ui/icons.js';
import { count, pathOf } from '../ui/format.js';
import { diffView } from './diff.js';

/** So few files are unfolded at once. */
const MAX_OPEN = 3;
/** Longer files are not compared. */
const MAX_BYTES = 2_000_000;

/** @typedef {import('./ahp/client.js').AhpClient} AhpClient */
/** @typedef {{id: string, edit: {before?: Side, after?: Side, diff?: {added?: number, removed?: number}}}} Changed */
/** @typedef {{uri: string, content: {uri: string, sizeHint?: number}}} Side */

/** @param {AhpClient} ahp @param {import('../v2/session.js').Session} session @param {string} channel @returns {import('../ui/drawer.js').Panel} */
export function changesPanel(ahp, session, channel) {
  const state = h('span', { class: 'muted', role: 'status' }, 'Looking for changes…');
  const list = h('div');
  const element = h('div', { class: 'panel' }, h('div', { class: 'panel-head' }, state), list);
  /** @type {Map<string, Changed>} */
  let files = new Map();
  /** @type {Map<string, HTMLElement>} */
  const shown = new Map();
  let leaveChanges = () => {};
  let followed = '';
  const leaveSession = ahp.subscribe(channel, {
    snapshot: (now) => follow(now.changesets),
    action: (action) => action.type === 'session/changesetsChanged' && follow(action.changesets),
    gone: () => setText(state, 'This session has no changes to show.'),
  });
  return { element, close: () => (leaveSession(), leaveChanges()) };

  /** @param {{uriTemplate: string}[] | undefined} changesets */
  function follow(changesets) {
    const changeset = changesets?.[0]?.uriTemplate;
    if (!changeset) setText(state, 'The directory of this session is in no git work tree.');
    if (!changeset || changeset === followed) return;
    followed = changeset;
    leaveChanges();
    leaveChanges = ahp.subscribe(changeset, {
      snapshot: (now) => {
        files = new Map(now.files.map((/** @type {Changed} */ file) => [file.id, file]));
        draw(now.error?.message);
      },
      action: (action) => {
        if (action.type === 'changeset/fileSet') files.set(action.file.id, action.file);
        else if (action.type === 'changeset/fileRemoved') files.delete(action.fileId);
        else if (action.type === 'changeset/contentChanged') files = new Map(action.files.map((/** @type {Changed} */ file) => [file.id, file]));
        else if (action.type === 'changeset/cleared') files.clear();
        draw(action.error?.message);
      },
    });
  }

  /** @param {string} [problem] */
  function draw(problem) {
    setText(state, problem ?? (files.size === 0 ? 'Nothing is changed.' : count(files.size, 'changed file')));
    for (const [id, { dataset }] of shown) if (!files.has(id) || dataset.key !== keyOf(id)) (shown.get(id)?.remove(), shown.delete(id));
    for (const [at, file] of [...files.values()].sort((a, b) => nameOf(a).localeCompare(nameOf(b))).entries()) {
      let item = shown.get(file.id);
      if (!item) shown.set(file.id, (item = fileItem(ahp, session, file, keyOf(file.id), files.size <= MAX_OPEN)));
      if (list.children[at] !== item) list.insertBefore(item, list.children[at] ?? null);
    }
  }

  /** What tells whether a file has changed again. @param {string} id */
  function keyOf(id) {
    return JSON.stringify(files.get(id)?.edit ?? null);
  }
}

/** @param {Changed} file */
function nameOf({ edit }) {
  return pathOf((edit.after ?? edit.before)?.uri ?? '');
}

/** @param {AhpClient} ahp @param {import('../v2/session.js').Session} session @param {Changed} file @param {string} key @param {boolean} isOpen */
function fileItem(ahp, session, file, key, isOpen) {
  const { before, after, diff } = file.edit;
  const cwd = `${session.state.cwd ?? ''}/`;
  const path = nameOf(file);
  const kind = before ? (after ? null : 'deleted') : 'new';
  const body = h('div', {}, h('p', { class: 'muted pad' }, 'Loading…'));
  let isLoaded = false;
  const item = h(
    'details',
    { class: 'file-change', 'data-key': key, open: isOpen, toggle: () => item.open && !isLoaded && void load() },
    h(
      'summary',
      {},
      icon('chevron'),
      h('span', { class: 'file-name', title: path }, path.startsWith(cwd) ? path.slice(cwd.length) : path),
      kind && h('span', { class: 'muted' }, kind),
      diff?.added ? h('span', { class: 'added' }, `+${diff.added}`) : null,
      diff?.removed ? h('span', { class: 'removed' }, `−${diff.removed}`) : null,
    ),
    body,
  );
  if (isOpen) void load();
  return item;

  async function load() {
    isLoaded = true;
    try {
      const [old, now] = await Promise.all([contentOf(ahp, before), contentOf(ahp, after)]);
      body.replaceChildren(diffView(old, now));
    } catch (error) {
      body.replaceChildren(h('p', { class: 'failure in-panel' }, error instanceof Error ? error.message : String(error)));
    }
  }
}

/** @param {AhpClient} ahp @param {Side | undefined} side @returns {Promise<string>} */
async function contentOf(ahp, side) {
  if (!side) return '';
  if ((side.content.sizeHint ?? 0) > MAX_BYTES) throw new Error('This file is too long to compare here.');
  const { data, encoding } = await ahp.request('resourceRead', { channel: 'ahp-root://', uri: side.content.uri, encoding: 'utf-8' });
  if (encoding === 'base64') throw new Error('This file is no text.');
  return data;
}
