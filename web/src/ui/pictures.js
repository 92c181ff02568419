/** Pictures that go with a prompt: pasted, dropped or picked, and shown before they are sent. */

import { h, show } from './dom.js';
import { icon } from './icons.js';

/** As many as the protocol takes, and as large as a command may be after base64. */
const MOST = 32;
const MAX_BYTES = 20_000_000;

/** @typedef {{mediaType: string, data: string}} Image */
/** @typedef {{name: string, address: string, bytes: number, image: Image}} Picture */

export class Pictures {
  /** @param {(problem: string) => void} complain @param {() => void} changed */
  constructor(complain, changed) {
    this.complain = complain;
    this.changed = changed;
    /** @type {Picture[]} */
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
      const image = { mediaType: file.type, data: address.slice(address.indexOf(',') + 1) };
      this.put([...this.list, { name: file.name || 'Picture', address, bytes: file.size, image }]);
    }
  }

  /** Gives the pictures away. */
  take() {
    const pictures = this.list;
    this.put([]);
    return pictures;
  }

  /** Shows these pictures, and no others. @param {Picture[]} pictures */
  put(pictures) {
    this.list = pictures;
    this.element.replaceChildren(...pictures.map((picture) => this.#thumbnail(picture)));
    show(this.element, pictures.length > 0);
    this.changed();
  }

  /** @param {Picture} picture */
  #thumbnail(picture) {
    const { name, address } = picture;
    const remove = h('button', { type: 'button', class: 'quiet remove', 'aria-label': `Remove ${name}`, click: () => this.put(this.list.filter((one) => one !== picture)) }, icon('close'));
    return h('div', { class: 'picture', role: 'listitem' }, h('img', { src: address, alt: name }), remove);
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
