//! A message that is all structure, the same on every machine.

use std::fmt::Write;

use crate::dice::Dice;

/// A table's rows: nothing but tiny objects.
pub(crate) fn rows(len: usize) -> String {
    let mut dice = Dice(2);
    let mut out = String::with_capacity(len + 128);
    out.push_str(r#"{"jsonrpc":"2.0","id":7,"result":{"rows":[{"id":0}"#);
    let mut id = 1;
    while out.len() < len {
        let (x, y, ok, tag) = (dice.roll(10_000), dice.roll(100), dice.roll(2) == 0, dice.roll(500));
        let _ = write!(out, r#",{{"id":{id},"x":{x}.{y:02},"ok":{ok},"tag":"t{tag}","at":[{y},{x}],"by":null}}"#);
        id += 1;
    }
    out.push_str("]}}");
    out
}
