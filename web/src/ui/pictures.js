/** Pictures that go with a prompt: pasted, dropped or picked, and shown before they are sent. */

import { h, show } from './dom.js';
import { icon } from './icons.js';

/** As many as the protocol takes, and as large as a command may be after base64. */
const MOST = 32;
const MAX_BYTES = 20_000_000;

/** @typedef {{mediaType: string, data: string}} Image */

export class Pictures {
  /** @param {(problem: string) => void} complain */
  constructor(complain) {
    this.complain = complain;
    /** @type {{image: Image, element: HTMLElement, bytes: number}[]} */
    this.list = [];
    this.element = h('div', { class: 'pictures', role: 'list', 'aria-label': 'Pictures' });
    this.picker = h('input', { type: 'file', accept: 'image/*', multiple: true, hidden: true, change: () => this.#picked() });
    show(this.element, false);
  }

  /** @param {Iterable<File>} files */
  async add(files) {
    for (const file of files) {
      if (!file.type.startsWith('image/')) {
        this.complain(`${file.name || 'This'} is not a picture.`);
        continue;
      }
      const bytes = this.list.reduce((sum, one) => sum + one.bytes, file.size);
      if (this.list.length >= MOST || bytes > MAX_BYTES) {
        this.complain('These pictures are too many or too large to send together.');
        return;
      }
      const address = await dataUrl(file);
      this.#show(file, address);
    }
  }

  /** Gives the pictures away. @returns {Image[]} */
  take() {
    const images = this.list.map(({ image }) => image);
    this.list = [];
    this.element.replaceChildren();
    show(this.element, false);
    return images;
  }

  /** @param {File} file @param {string} address */
  #show(file, address) {
    const image = { mediaType: file.type, data: address.slice(address.indexOf(',') + 1) };
    const name = file.name || 'Picture';
    const remove = h('button', { type: 'button', class: 'quiet remove', 'aria-label': `Remove ${name}`, click: () => this.#remove(element) }, icon('close'));
    const element = h('div', { class: 'picture', role: 'listitem' }, h('img', { src: address, alt: name }), remove);
    this.list.push({ image, element, bytes: file.size });
    this.element.append(element);
    show(this.element, true);
  }

  /** @param {HTMLElement} element */
  #remove(element) {
    this.list = this.list.filter((one) => one.element !== element);
    element.remove();
    show(this.element, this.list.length > 0);
  }

  #picked() {
    void this.add([...(this.picker.files ?? [])]);
    this.picker.value = '';
  }
}

/** @param {File} file @returns {Promise<string>} */
function dataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(/** @type {string} */ (reader.result));
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}
