/** What a person has chosen for this browser: colours and notifications. */

import { h, setText } from './dom.js';
import { icon } from './icons.js';

const THEMES = /** @type {const} */ ([['auto', 'Auto'], ['light', 'Light'], ['dark', 'Dark']]);

/** @param {() => void} openWire */
export function settings(openWire) {
  const theme = h('button', { type: 'button', class: 'quiet', click: next }, icon('sun'), h('span'));
  const notify = h('button', { type: 'button', class: 'quiet', click: () => void toggle() }, icon('bell'), h('span'));
  const wire = h('button', { type: 'button', class: 'quiet', click: openWire }, icon('wire'), h('span', {}, 'Wire'));
  applyTheme();
  show();
  return h('footer', { class: 'settings' }, theme, notify, wire);

  function next() {
    const at = THEMES.findIndex(([name]) => name === chosenTheme());
    localStorage.setItem('breakbulk.theme', THEMES[(at + 1) % THEMES.length]?.[0] ?? 'auto');
    applyTheme();
    show();
  }

  async function toggle() {
    const isOn = wantsNotifications();
    const isAllowed = !isOn && 'Notification' in window && (await Notification.requestPermission()) === 'granted';
    localStorage.setItem('breakbulk.notify', isAllowed ? 'on' : 'off');
    // Some browsers, those of phones, allow it and then cannot do it from a page.
    if (isAllowed && !tell('Notifications are on', 'You are told when an approval is wanted, and when a turn has ended.')) localStorage.setItem('breakbulk.notify', 'off');
    show(!isOn && !wantsNotifications());
  }

  /** @param {boolean} [isRefused] */
  function show(isRefused = false) {
    const label = THEMES.find(([name]) => name === chosenTheme())?.[1] ?? '';
    setText(/** @type {Element} */ (theme.lastChild), `Theme: ${label.toLowerCase()}`);
    theme.title = `Theme: ${label.toLowerCase()}`;
    theme.setAttribute('aria-label', theme.title);
    const state = wantsNotifications() ? 'on' : isRefused ? 'blocked' : 'off';
    setText(/** @type {Element} */ (notify.lastChild), state === 'blocked' ? 'Blocked' : 'Notify');
    notify.title = state === 'blocked' ? 'The browser does not let this page notify. Most do so only on https and on this machine.' : `Notifications: ${state}`;
    notify.setAttribute('aria-pressed', String(state === 'on'));
  }
}

function chosenTheme() {
  return localStorage.getItem('breakbulk.theme') ?? 'auto';
}

function applyTheme() {
  document.documentElement.dataset.theme = chosenTheme();
}

/** Whether a person wants to be told of approvals and ends of turns. */
export function wantsNotifications() {
  return localStorage.getItem('breakbulk.notify') === 'on' && 'Notification' in window && Notification.permission === 'granted';
}

/** Tells a person who looks elsewhere. @param {string} title @param {string} text @param {() => void} follow */
export function notify(title, text, follow) {
  if (!wantsNotifications() || (document.visibilityState === 'visible' && document.hasFocus())) return;
  tell(title, text, follow);
}

/** Shows a notification. Returns false if this browser cannot. @param {string} title @param {string} text @param {() => void} [follow] */
function tell(title, text, follow) {
  try {
    const notification = new Notification(title, { body: text.slice(0, 200), tag: `${title}${text}` });
    notification.onclick = () => {
      window.focus();
      follow?.();
      notification.close();
    };
    return true;
  } catch {
    return false;
  }
}
