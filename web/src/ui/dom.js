/** Makes elements. Text always becomes a text node: nothing here can turn it into markup. */

/** @typedef {Node | string | null | undefined | false} Child */

/**
 * An element with attributes and children. A function is a listener, `true` an attribute without a value; `null`, `undefined` and
 * `false` leave an attribute out.
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag @param {Record<string, any>} [attributes] @param {...Child} children
 * @returns {HTMLElementTagNameMap[K]}
 */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === 'function') element.addEventListener(name, value);
    else element.setAttribute(name, value === true ? '' : String(value));
  }
  element.append(...children.filter(isChild));
  return element;
}

/** @param {Child} child @returns {child is Node | string} */
function isChild(child) {
  return child !== null && child !== undefined && child !== false;
}

/** Sets a text only if it is another one, so that nothing is laid out for nothing. @param {Element} element @param {string} text */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Puts an element in only while it is wanted. @param {Element} element @param {boolean} isWanted */
export function show(element, isWanted) {
  element.toggleAttribute('hidden', !isWanted);
}

/**
 * Calls at most once a frame, however often it is asked to. In a page that is hidden it is called when the page is seen again.
 * @param {() => void} draw
 */
export function eachFrame(draw) {
  let isAsked = false;
  return () => {
    if (isAsked) return;
    isAsked = true;
    requestAnimationFrame(() => {
      isAsked = false;
      draw();
    });
  };
}

/** Calls when the page has nothing more urgent to do. @param {() => void} run */
export function requestIdle(run) {
  if (window.requestIdleCallback) window.requestIdleCallback(() => run());
  else setTimeout(run, 200);
}
