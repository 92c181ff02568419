//! What happens, step by step, for whoever looks into one seed: set `BREAKBULK_SIM_TRACE`.

use std::sync::OnceLock;

pub(crate) fn trace(what: impl FnOnce() -> String) {
    static ON: OnceLock<bool> = OnceLock::new();
    if *ON.get_or_init(|| std::env::var_os("BREAKBULK_SIM_TRACE").is_some()) {
        println!("{}", what());
    }
}

/// The beginning of a frame or a message.
pub(crate) fn front(text: &[u8]) -> String {
    let front: String = String::from_utf8_lossy(text).chars().take(150).collect();
    format!("{} bytes {front}", text.len())
}
