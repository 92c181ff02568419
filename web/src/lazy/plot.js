/** A small plot of the last minutes, the newest value at the right. */

import { h, setText } from '../ui/dom.js';

/** @param {string} label @param {(value: number) => string} format @param {string} colour the name of a property of the style sheet */
export function plot(label, format, colour) {
  const canvas = h('canvas', { class: 'plot', role: 'img' });
  const begin = h('span');
  const now = h('span');
  const element = h('div', {}, canvas, h('div', { class: 'plot-legend' }, begin, now));
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
    const text = known.length > 0 ? `now ${format(last)}, at most ${format(top)}` : 'nothing measured yet';
    setText(begin, `${Math.round(seconds / 60)} minutes ago`);
    setText(now, text);
    canvas.setAttribute('aria-label', `${label}: ${text}`);
    if (!context) return;
    const [line, grid] = [resolve(colour), resolve('--line')];
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, width, height);
    context.fillStyle = grid;
    // A line for each minute.
    for (let at = 60; at < seconds; at += 60) context.fillRect(Math.round(width - (at / seconds) * width), 0, 1, height);
    const points = values.flatMap((value, at) =>
      value === null ? [] : [[width - ((values.length - 1 - at) / seconds) * width, height - 4 - (value / top) * (height - 10)]],
    );
    const [first, end] = [points[0], points.at(-1)];
    if (!first || !end) return;
    const path = new Path2D();
    // One value alone is no line.
    if (points.length === 1) path.moveTo((first[0] ?? 0) - 1.5, first[1] ?? 0);
    points.forEach(([x = 0, y = 0], at) => (at > 0 || points.length === 1 ? path.lineTo(x, y) : path.moveTo(x, y)));
    context.strokeStyle = context.fillStyle = line;
    context.lineWidth = 1.5;
    context.stroke(path);
    path.lineTo(end[0] ?? 0, height);
    path.lineTo(first[0] ?? 0, height);
    context.globalAlpha = 0.15;
    context.fill(path);
    context.globalAlpha = 1;
  }

  /** @param {string} name */
  function resolve(name) {
    canvas.style.color = `var(${name})`;
    return getComputedStyle(canvas).color;
  }
}
