/** Numbers, sizes and times as people read them. */

/** @param {number} bytes */
export function size(bytes) {
  if (bytes < 1000) return `${bytes} B`;
  if (bytes < 1e6) return `${(bytes / 1e3).toFixed(bytes < 1e4 ? 1 : 0)} kB`;
  if (bytes < 1e9) return `${(bytes / 1e6).toFixed(bytes < 1e7 ? 1 : 0)} MB`;
  return `${(bytes / 1e9).toFixed(1)} GB`;
}

const clock = new Intl.DateTimeFormat(undefined, { hour: 'numeric', minute: '2-digit' });
const day = new Intl.DateTimeFormat(undefined, { day: 'numeric', month: 'short' });

/** When something was, short: the time today, else the day. @param {string} rfc3339 */
export function when(rfc3339) {
  const date = new Date(rfc3339);
  if (Number.isNaN(date.getTime())) return '';
  return date.toDateString() === new Date().toDateString() ? clock.format(date) : day.format(date);
}

/** A directory as people write it, shortened at its beginning. @param {string} path @param {number} [most] */
export function shortPath(path, most = 40) {
  return path.length <= most ? path : `…${path.slice(path.length - most + 1)}`;
}

/** @param {number} count @param {string} one @param {string} [many] */
export function count(count, one, many = `${one}s`) {
  return `${count.toLocaleString()} ${count === 1 ? one : many}`;
}

/** The path that a `file:` URI names. @param {string} uri */
export function pathOf(uri) {
  try {
    const url = new URL(uri);
    return url.protocol === 'file:' ? decodeURIComponent(url.pathname) : uri;
  } catch {
    return uri;
  }
}

/** The `file:` URI of an absolute path. @param {string} path */
export function uriOf(path) {
  return `file://${path.split('/').map(encodeURIComponent).join('/')}`;
}
