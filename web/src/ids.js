/** Random ids. `crypto.randomUUID` is missing on pages that came without TLS from another machine. */
export function randomId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('');
}
