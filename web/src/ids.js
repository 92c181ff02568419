/** Random ids. `crypto.randomUUID` is missing on pages that came without TLS from another machine. */
export function randomId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('');
}

/**
 * An id of this tab that a reload keeps, so that the host knows the page again. A tab that is a copy of another one, which has all that is
 * stored for it, gets an id of its own.
 * @param {string} key
 */
export function tabId(key) {
  const [navigation] = /** @type {PerformanceNavigationTiming[]} */ (performance.getEntriesByType('navigation'));
  const kept = navigation?.type === 'reload' ? sessionStorage.getItem(key) : null;
  const id = kept ?? randomId();
  sessionStorage.setItem(key, id);
  return id;
}
