/** A small plot of the last minutes, the newest value at the right. */

import { h, setText } from '../ui/dom.js';

/** @param {string} label @param {(value: number) => string} format @param {string} colour the name of a property of the style sheet */
export function plot(label, format, colour) {
  const canvas = h('canvas', { class: 'plot', role: 'img' });
  const now = h('span');
  const most = h('span');
  const element = h('div', {}, canvas, h('div', { class: 'plot-legend' }, now, most));
  return { element, draw };

  /** @param {(number | null)[]} values one a second @param {number} seconds how many there is room for */
  function draw(values, seconds) {
    const scale = window.devicePixelRatio || 1;
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    if (canvas.width !== Math.round(width * scale)) [canvas.width, canvas.height] = [Math.round(width * scale), Math.round(height * scale)];
    const context = canvas.getContext('2d');
    const known = values.filter((value) => value !== null);
    const top = Math.max(...known, 1);
    const last = known.at(-1) ?? 0;
    setText(now, `now ${format(last)}`);
    setText(most, `at most ${format(known.length ? top : 0)}`);
    canvas.setAttribute('aria-label', `${label}: now ${format(last)}, at most ${format(known.length ? top : 0)}`);
    if (!context) return;
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, width, height);
    context.strokeStyle = resolve(colour);
    context.lineWidth = 1.5;
    context.beginPath();
    let isDown = false;
    values.forEach((value, at) => {
      if (value === null) return;
      const x = width - ((values.length - 1 - at) / seconds) * width;
      const y = height - 3 - (value / top) * (height - 8);
      if (isDown) context.lineTo(x, y);
      else context.moveTo(x, y);
      isDown = true;
    });
    context.stroke();
  }

  /** @param {string} name */
  function resolve(name) {
    canvas.style.color = `var(${name})`;
    return getComputedStyle(canvas).color;
  }
}
