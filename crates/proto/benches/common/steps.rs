//! The steps that no implementation can leave out, each alone, over a whole message.

use base64::Engine;
use base64::engine::Simd;
use base64::engine::general_purpose::PAD;
use breakbulk_proto::json::Scanner;

/// The engine that `ahp` uses.
pub(crate) fn engine() -> Simd {
    Simd::standard(PAD)
}

/// Encodes into `out`, which is large enough.
pub(crate) fn encode(engine: &impl Engine, bytes: &[u8], out: &mut [u8]) -> usize {
    engine.encode_slice(bytes, out).unwrap()
}

/// Decodes into `out`, which is large enough.
pub(crate) fn decode(engine: &impl Engine, text: &[u8], out: &mut [u8]) -> usize {
    engine.decode_slice(text, out).unwrap()
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
