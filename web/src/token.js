/** The token of the host: taken from the address once, and kept for this tab only. */

const KEY = 'breakbulk.token';

/** Takes the token out of the address bar, where it came as `#token=…`. What else the fragment says stays there. */
export function takeToken() {
  const fragment = new URLSearchParams(location.hash.slice(1));
  const token = fragment.get('token');
  if (token !== null) {
    keepToken(token);
    fragment.delete('token');
    const rest = fragment.toString();
    history.replaceState(null, '', location.pathname + location.search + (rest && `#${rest}`));
  }
  return sessionStorage.getItem(KEY) ?? '';
}

/** @param {string} token */
export function keepToken(token) {
  sessionStorage.setItem(KEY, token);
}

/** The token in what a person has pasted: an address with a token, or the token itself. @param {string} text */
export function tokenIn(text) {
  const found = /[#?&]token=([^&\s]+)/.exec(text);
  return found?.[1] ? decodeURIComponent(found[1]) : text.trim();
}
