//! An agent's message to measure with, the same on every machine.

use std::fmt::Write;

use crate::dice::Dice;

/// The usual length: what a tool may well answer with.
pub(crate) const LEN: usize = 10_500_000;

/// A tool's answer with source files and logs: long strings with line breaks, quotes, indentation, CJK and emoji.
pub(crate) fn agent(len: usize) -> String {
    let mut dice = Dice(1);
    let mut out = String::with_capacity(len + (64 << 10));
    out.push_str(r#"{"jsonrpc":"2.0","id":7,"result":{"content":["#);
    let mut number = 0;
    while out.len() < len {
        let text = if dice.roll(4) == 0 { log(&mut dice) } else { source(&mut dice) };
        let comma = if number == 0 { "" } else { "," };
        let text = serde_json::to_string(&text).unwrap();
        let _ = write!(out, r#"{comma}{{"type":"text","path":"src/part_{number}.rs","text":{text}}}"#);
        number += 1;
    }
    out.push_str("]}}");
    out
}

/// About 30 KB of something that looks like a program.
fn source(dice: &mut Dice) -> String {
    let mut text = String::new();
    while text.len() < 30_000 {
        let (name, depth, value) = (dice.word(), 4 * (1 + dice.roll(3)), dice.roll(1_000_000));
        let _ = match dice.roll(8) {
            0 => writeln!(text, "\n/// Takes the {name} and gives back what is left of it, {value} at most."),
            1 => writeln!(text, "pub fn {name}_{value}(input: &str) -> Result<usize, Error> {{"),
            2 => writeln!(text, "{:depth$}println!(\"{name} is {{}}\\n\", input.len() + {value});", ""),
            3 => writeln!(text, "{:depth$}if let Some({name}) = self.{}.get(&{value}) {{", "", dice.word()),
            4 => writeln!(text, "{:depth$}let {name} = \"C:\\\\temp\\\\{value}\".to_owned();", ""),
            5 => writeln!(text, "{:depth$}// 漢字とかな: {name} の値は {value} です。 🚢", ""),
            6 => writeln!(text, "{:depth$}}}", ""),
            _ => writeln!(text, "{:depth$}self.{name}.push({value}); // {}", "", dice.word()),
        };
    }
    text
}

/// About 30 KB of something that looks like a log.
fn log(dice: &mut Dice) -> String {
    let mut text = String::new();
    while text.len() < 30_000 {
        let (minute, milli, what, value) = (dice.roll(60), dice.roll(60_000), dice.word(), dice.roll(1 << 30));
        let _ = match dice.roll(4) {
            0 => writeln!(text, "2026-03-01T12:{minute:02}:{milli:05} WARN {what}: retry in {value} ms"),
            1 => writeln!(text, "2026-03-01T12:{minute:02}:{milli:05} INFO request {{\"{what}\": {value}}}"),
            _ => writeln!(
                text,
                "2026-03-01T12:{minute:02}:{milli:05} DEBUG {what}={value:08x} path=/srv/{}",
                dice.word()
            ),
        };
    }
    text
}
