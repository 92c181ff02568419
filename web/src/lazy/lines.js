/** A long text as lines, which grows as its bytes arrive, and of which any part can be had at once. */

/** A line that is longer is cut into several: no line may cost more than the screen. */
const MAX_LINE = 2_000;

export class Lines {
  constructor() {
    /** Pieces of the text, and how many lines are before each. @type {{lines: string[], first: number}[]} */
    this.pieces = [];
    this.count = 0;
    this.longest = 0;
    /** The line that has no end yet. */
    this.rest = '';
  }

  /** @param {string} text */
  push(text) {
    const whole = (this.rest + text).split('\n');
    this.rest = whole.pop() ?? '';
    const lines = whole.flatMap(cut);
    while (this.rest.length > MAX_LINE) {
      lines.push(this.rest.slice(0, MAX_LINE));
      this.rest = this.rest.slice(MAX_LINE);
    }
    this.#add(lines);
  }

  /** The text is whole. */
  end() {
    if (this.rest) this.#add([this.rest]);
    this.rest = '';
  }

  /** @param {string[]} lines */
  #add(lines) {
    if (lines.length === 0) return;
    this.pieces.push({ lines, first: this.count });
    this.count += lines.length;
    for (const line of lines) if (line.length > this.longest) this.longest = line.length;
  }

  /** @param {number} from @param {number} to @returns {string[]} */
  slice(from, to) {
    const found = [];
    let at = this.pieces.findLastIndex(({ first }) => first <= from);
    for (; at >= 0 && at < this.pieces.length; at += 1) {
      const { lines, first } = /** @type {{lines: string[], first: number}} */ (this.pieces[at]);
      if (first >= to) break;
      found.push(...lines.slice(Math.max(0, from - first), to - first));
    }
    return found;
  }
}

/** @param {string} line @returns {string[]} */
function cut(line) {
  if (line.length <= MAX_LINE) return [line.endsWith('\r') ? line.slice(0, -1) : line];
  const parts = [];
  for (let at = 0; at < line.length; at += MAX_LINE) parts.push(line.slice(at, at + MAX_LINE));
  return parts;
}
