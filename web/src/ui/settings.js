/** What a person has chosen for this browser: colours and notifications. */

import { h, setText } from './dom.js';
import { icon } from './icons.js';

const THEMES = /** @type {const} */ ([['auto', 'Automatic'], ['light', 'Light'], ['dark', 'Dark']]);

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
    show(!isOn && !isAllowed);
  }

  /** @param {boolean} [isRefused] */
  function show(isRefused = false) {
    const label = THEMES.find(([name]) => name === chosenTheme())?.[1] ?? '';
    setText(/** @type {Element} */ (theme.lastChild), label);
    theme.title = `Colours: ${label}`;
    theme.setAttribute('aria-label', theme.title);
    const state = wantsNotifications() ? 'on' : isRefused ? 'blocked' : 'off';
    setText(/** @type {Element} */ (notify.lastChild), state === 'blocked' ? 'Blocked' : 'Notify');
    notify.title = state === 'blocked' ? 'The browser does not allow this page to notify' : `Notifications: ${state}`;
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
  const notification = new Notification(title, { body: text.slice(0, 200), tag: `${title}${text}` });
  notification.onclick = () => {
    window.focus();
    follow();
    notification.close();
  };
}
