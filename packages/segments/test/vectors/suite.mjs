// The vectors as loaded: every file of the folder that is about AHP or JSON, every case of every file.
import { readdirSync, readFileSync } from 'node:fs';
import { plain, read } from './raw.mjs';

const FOLDER = new URL('../../../../vectors/', import.meta.url);

/** All cases: `{ subject, dialect, name, hostile, knownGap, setup, node }`. */
export function load(dialects) {
  const files = readdirSync(FOLDER).filter((name) => name.endsWith('.json')).sort();
  return files.flatMap((name) => {
    const file = read(readFileSync(new URL(name, FOLDER), 'utf8'));
    const dialect = plain(file.members.get('dialect'));
    if (!dialects.includes(dialect)) return [];
    known(file, ['about', 'dialect', 'setup', 'cases']);
    const shared = plain(file.members.get('setup')) ?? {};
    return file.members.get('cases').items.flatMap(({ raw }) =>
      expanded(raw).map(({ label, text }) => {
        const node = read(text);
        const member = (key) => plain(node.members.get(key));
        return {
          subject: name.replace('.json', ''),
          dialect,
          name: label ? `${member('name')} (${label})` : member('name'),
          hostile: member('hostile') ?? false,
          knownGap: member('known_gap'),
          setup: merged(shared, member('setup') ?? {}),
          node,
        };
      }),
    );
  });
}

/** Throws if an object has other members: a mistyped one would be left out. */
export function known(node, keys) {
  for (const key of node.members.keys()) if (!keys.includes(key)) throw new Error(`unknown member ${key} in ${node.raw}`);
}

/** The cases that a text stands for: one for each set of values in `each`. */
function expanded(raw) {
  const each = read(raw).members.get('each');
  if (!each) return [{ label: '', text: raw }];
  return each.items.map(({ members }, n) => {
    let text = raw;
    const label = [];
    // The longest names first, so that `$x` does not take the front of `$xs`.
    for (const [name, { raw: value }] of [...members].sort(([a], [b]) => b.length - a.length)) {
      if (!text.includes(`$${name}`)) throw new Error(`$${name} does not occur in ${raw}`);
      const inside = value.startsWith('"') ? value.slice(1, -1) : value;
      text = text.replaceAll(`"$${name}"`, () => value).replaceAll(`$${name}`, () => inside);
      label.push(`${name} = ${value.slice(0, 48)}`);
    }
    if (text.includes('$')) throw new Error(`a place is left over in ${text}`);
    return { label: `${n + 1} of ${each.items.length}: ${label.join(', ')}`, text };
  });
}

/** `over` laid over `base`, objects inside of them too. */
function merged(base, over) {
  const isObject = (value) => typeof value === 'object' && value !== null && !Array.isArray(value);
  const result = { ...base };
  for (const [key, value] of Object.entries(over)) {
    result[key] = isObject(base[key]) && isObject(value) ? merged(base[key], value) : value;
  }
  return result;
}
