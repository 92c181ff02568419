/** Small drawings, 16 by 16, in the colour of the text around them. */

const PATHS = {
  add: 'M8 3v10M3 8h10',
  send: 'M8 13V3M4 7l4-4 4 4',
  stop: 'M5 5h6v6H5z',
  attach: 'M13 7.5 8 12.5a3 3 0 0 1-4.2-4.2l5.4-5.4a2 2 0 0 1 2.8 2.8L6.7 11a1 1 0 0 1-1.4-1.4L10 5',
  close: 'M4 4l8 8M12 4l-8 8',
  menu: 'M2.5 4.5h11M2.5 8h11M2.5 11.5h11',
  check: 'M3 8.5l3.2 3L13 4.5',
  cross: 'M4.5 4.5l7 7M11.5 4.5l-7 7',
  chevron: 'M6 4l4 4-4 4',
  down: 'M8 3v10M4 9l4 4 4-4',
  tool: 'M10.5 2.5a3 3 0 0 0-2.8 4L2.8 11.4a1.2 1.2 0 1 0 1.8 1.8l4.9-4.9a3 3 0 0 0 3.9-3.9l-1.8 1.8-1.6-.4-.4-1.6z',
  terminal: 'M3 5l3 3-3 3M8 11.5h5',
  file: 'M4 2.5h5l3 3v8H4zM9 2.5v3h3',
  folder: 'M2.5 4h4l1.5 1.5h5.5V12h-11z',
  changes: 'M8 3v6M5 6h6M5 12.5h6',
  wire: 'M2 8h3l1.5-4 3 8L11 8h3',
  fork: 'M5 3v4a2 2 0 0 0 2 2h2a2 2 0 0 1 2 2v2M5 7v6M3.5 3.5 5 2l1.5 1.5M9.5 12 11 13.5l1.5-1.5',
  side: 'M2.5 3.5h11v7h-6l-3 2.5v-2.5h-2z',
  copy: 'M5.5 5.5V3h7.5v7.5h-2.5M3 5.5h7.5V13H3z',
  sun: 'M8 5.2a2.8 2.8 0 1 1 0 5.6 2.8 2.8 0 0 1 0-5.6M8 1.5v1.3M8 13.2v1.3M1.5 8h1.3M13.2 8h1.3M3.4 3.4l.9.9M11.7 11.7l.9.9M3.4 12.6l.9-.9M11.7 4.3l.9-.9',
  bell: 'M4 11V7a4 4 0 0 1 8 0v4l1 1H3zM7 14h2',
  back: 'M10 3.5 5.5 8l4.5 4.5',
  more: 'M3.5 8h.01M8 8h.01M12.5 8h.01',
  shield: 'M8 2l5 2v4c0 3-2.2 5-5 6-2.8-1-5-3-5-6V4z',
};

/** @param {keyof typeof PATHS} name */
export function icon(name) {
  const svg = document.createElementNS('http://www.w3.org/2000/svg', 'svg');
  svg.setAttribute('viewBox', '0 0 16 16');
  svg.setAttribute('class', 'icon');
  svg.setAttribute('aria-hidden', 'true');
  const path = document.createElementNS(svg.namespaceURI, 'path');
  path.setAttribute('d', PATHS[name]);
  svg.append(path);
  return svg;
}
