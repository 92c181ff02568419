//! `breakbulk presets`: the services whose frame limits are known.

use std::io::Write;

use breakbulk::Preset;
use breakbulk::address::Size;
use serde::Serialize;

use crate::config::print_json;
use crate::failure::Error;

/// A line may be this long, unless one word is longer.
const WIDTH: usize = 80;

/// Prints a table for people: a preset's source, which is long, stands below what it is.
pub(crate) fn print_table(mut output: impl Write) -> Result<(), Error> {
    let name_width = Preset::ALL.iter().map(|preset| preset.name.len()).max().unwrap_or(0);
    let caps: Vec<String> = Preset::ALL.iter().map(|preset| Size(preset.cap).to_string()).collect();
    let cap_width = caps.iter().map(String::len).max().unwrap_or(0).max("CAP".len());
    let about_width = WIDTH.saturating_sub(name_width).saturating_sub(cap_width).saturating_sub(4);
    let mut line = |name: &str, cap: &str, about: &str| {
        writeln!(output, "{name:name_width$}  {cap:>cap_width$}  {about}").map_err(Error::Output)
    };
    line("NAME", "CAP", "ABOUT, SOURCE")?;
    for (preset, cap) in Preset::ALL.iter().zip(&caps) {
        let mut about = wrap(preset.about, about_width).into_iter();
        line(preset.name, cap, &about.next().unwrap_or_default())?;
        for more in about.chain([preset.source.to_owned()]) {
            line("", "", &more)?;
        }
    }
    output.flush().map_err(Error::Output)
}

/// The words of `text` on lines of at most `width` characters.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + word.chars().count() < width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Prints a list of objects for programs.
pub(crate) fn print_list(output: impl Write) -> Result<(), Error> {
    print_json(
        Preset::ALL.iter().map(|&Preset { name, cap, about, source, .. }| PresetObject { name, cap, about, source }),
        output,
    )
}

/// A preset for programs.
#[derive(Serialize)]
struct PresetObject {
    name: &'static str,
    cap: u64,
    about: &'static str,
    source: &'static str,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_as_long_as_they_may_be_and_no_longer() {
        assert_eq!(wrap("aa bb cc dd", 5), ["aa bb", "cc dd"]);
        assert_eq!(wrap("aa bb cc", 4), ["aa", "bb", "cc"]);
        assert_eq!(wrap("a-long-word b", 3), ["a-long-word", "b"]);
        assert_eq!(wrap("", 3), [""; 0]);
    }
}
