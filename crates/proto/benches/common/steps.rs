//! The steps that no implementation can leave out, each alone, over a whole message.

use base64_turbo::STANDARD;
use breakbulk_proto::json::Scanner;

/// Bytes coded at once, as `ahp` does it: they stay in the first-level cache.
const PIECE: usize = 12 << 10;
const CODED_PIECE: usize = 16 << 10;

/// Encodes into `out`, which is large enough.
pub(crate) fn encode(bytes: &[u8], out: &mut [u8]) -> usize {
    let pieces = bytes.chunks(PIECE).zip(out.chunks_mut(CODED_PIECE));
    pieces.map(|(piece, out)| STANDARD.encode_slice(piece, out).unwrap()).sum()
}

/// Decodes into `out`, which is large enough.
pub(crate) fn decode(text: &[u8], out: &mut [u8]) -> usize {
    let pieces = text.chunks(CODED_PIECE).zip(out.chunks_mut(PIECE));
    pieces.map(|(piece, out)| STANDARD.decode_slice(piece, out).unwrap()).sum()
}

/// Checks that the bytes are UTF-8.
pub(crate) fn check_utf8(bytes: &[u8]) -> usize {
    simdutf8::basic::from_utf8(bytes).unwrap().len()
}

/// Checks that the bytes are one JSON value, in pieces of `piece` bytes.
pub(crate) fn check_json(bytes: &[u8], piece: usize) -> u64 {
    let mut scanner = Scanner::new(());
    bytes.chunks(piece).for_each(|piece| scanner.feed(piece).unwrap());
    let len = scanner.offset();
    scanner.finish().unwrap();
    len
}

/// Copies the bytes.
pub(crate) fn copy(bytes: &[u8], out: &mut [u8]) -> usize {
    out[..bytes.len()].copy_from_slice(bytes);
    bytes.len()
}
