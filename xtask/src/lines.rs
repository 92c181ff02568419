//! How many lines `crates/proto` has without its tests. A core that one person can read has a bound.

use std::fs;
use std::path::Path;

use crate::run::{Failure, root};

/// What a careful reader gets through in a day or two.
const MOST: usize = 6_000;

pub(crate) fn run() -> Result<(), Failure> {
    let dir = root().join("crates/proto/src");
    let lines = in_dir(&dir).map_err(|error| Failure::Failed(format!("cannot read {}: {error}", dir.display())))?;
    println!("crates/proto/src has {lines} lines without tests; the bound is {MOST}");
    if lines < MOST {
        Ok(())
    } else {
        Err(Failure::Failed(format!("crates/proto has {lines} lines, not under {MOST}")))
    }
}

fn in_dir(dir: &Path) -> std::io::Result<usize> {
    let mut lines = 0;
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            lines += in_dir(&path)?;
        } else if path.extension().is_some_and(|ext| ext == "rs")
            && path.file_name().is_some_and(|name| name != "tests.rs")
        {
            lines += without_tests(&fs::read_to_string(&path)?);
        }
    }
    Ok(lines)
}

/// Lines before the `#[cfg(test)]` that a `mod tests` stands under.
fn without_tests(text: &str) -> usize {
    let lines: Vec<&str> = text.lines().collect();
    let tests = lines.iter().position(|line| line.starts_with("mod tests"));
    let gate = tests.and_then(|tests| lines[..tests].iter().rposition(|line| line.trim() == "#[cfg(test)]"));
    gate.unwrap_or(lines.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lines_before_the_test_module_count() {
        assert_eq!(without_tests("a\nb\n"), 2);
        assert_eq!(without_tests("a\n\n#[cfg(test)]\nmod tests {\n}\n"), 2);
        assert_eq!(without_tests("a\n#[cfg(test)]\n#[path = \"t.rs\"]\nmod tests;\n"), 1);
    }

    #[test]
    fn a_test_helper_before_the_test_module_counts() {
        assert_eq!(without_tests("#[cfg(test)]\nfn help() {}\n#[cfg(test)]\nmod tests {}\n"), 2);
    }
}
