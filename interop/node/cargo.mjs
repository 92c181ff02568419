// Text that both ends can make: CJK, emoji, quotes and line ends, so that no cut or escape goes unseen.
import { createHash } from 'node:crypto';

const PIECE = '積荷を小分けにする 🚢👩🏽‍💻 "größe" \\ \n\t';

// About so many bytes of it.
export function cargo(bytes) {
  return PIECE.repeat(Math.ceil(bytes / Buffer.byteLength(PIECE)));
}

export function weigh(text) {
  return { bytes: Buffer.byteLength(text), sha256: createHash('sha256').update(text).digest('hex') };
}
