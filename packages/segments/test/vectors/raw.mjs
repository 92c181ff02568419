// A JSON reader that keeps each value as it is written, because in vectors the spelling matters.

/**
 * The value at the front of `text`, as `{ raw, kind, members, items }`. `kind` is its first character. The text is known to be JSON.
 */
export function read(text) {
  JSON.parse(text);
  let at = 0;
  const skip = () => {
    while (/\s/.test(text[at] ?? '')) at++;
  };
  const string = () => {
    const start = at++;
    while (text[at] !== '"') at += text[at] === '\\' ? 2 : 1;
    return text.slice(start, ++at);
  };
  const value = () => {
    skip();
    const start = at;
    const node = { raw: '', kind: text[at], members: new Map(), items: [] };
    if (node.kind === '"') string();
    else if (node.kind === '{' || node.kind === '[') {
      const end = node.kind === '{' ? '}' : ']';
      at++;
      for (skip(); text[at] !== end; skip()) {
        if (text[at] === ',') at++;
        skip();
        if (node.kind === '[') node.items.push(value());
        else {
          const key = JSON.parse(string());
          skip();
          at++;
          node.members.set(key, value());
        }
      }
      at++;
    } else while (at < text.length && !/[\s,\]}]/.test(text[at])) at++;
    node.raw = text.slice(start, at);
    return node;
  };
  return value();
}

/** What the value stands for, with its spelling lost. */
export const plain = (node) => (node === undefined ? undefined : JSON.parse(node.raw));
