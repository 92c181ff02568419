//! How many lines of code `crates/proto` has, without tests, comments and blank lines. A core that one person can read
//! has a bound.

use std::fs;
use std::path::Path;

use crate::run::{Failure, root};

/// What it must not grow past: what a careful reader gets through in a day or two.
const MOST: usize = 6_000;

pub(crate) fn run() -> Result<(), Failure> {
    let dir = root().join("crates/proto/src");
    let count = in_dir(&dir).map_err(|error| Failure::Failed(format!("cannot read {}: {error}", dir.display())))?;
    let Count { lines, code } = count;
    println!("crates/proto/src has {lines} lines without tests, {code} of them code; the bound on code is {MOST}");
    if code < MOST {
        return Ok(());
    }
    Err(Failure::Failed(format!("crates/proto has {code} lines of code without tests, not under {MOST}")))
}

#[derive(Default, Debug, PartialEq, Eq)]
struct Count {
    lines: usize,
    /// Neither blank nor only a comment.
    code: usize,
}

impl std::ops::AddAssign for Count {
    fn add_assign(&mut self, more: Self) {
        self.lines += more.lines;
        self.code += more.code;
    }
}

fn in_dir(dir: &Path) -> std::io::Result<Count> {
    let mut count = Count::default();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        // `tests.rs`, and what is in the folder beside it.
        if path.file_stem().is_some_and(|stem| stem == "tests") {
            continue;
        }
        if path.is_dir() {
            count += in_dir(&path)?;
        } else if path.extension().is_some_and(|ext| ext == "rs") {
            count += without_tests(&fs::read_to_string(&path)?);
        }
    }
    Ok(count)
}

/// Counts what stands before the `#[cfg(test)]` of a test module that is written out in the file, and all but the two lines
/// for one that is not.
fn without_tests(text: &str) -> Count {
    let text = text.replace("#[cfg(test)]\nmod tests;\n", "");
    let lines: Vec<&str> = text.lines().collect();
    let tests = lines.iter().position(|line| line.starts_with("mod tests {"));
    let gate = tests.and_then(|tests| lines[..tests].iter().rposition(|line| *line == "#[cfg(test)]"));
    let own = &lines[..gate.unwrap_or(lines.len())];
    let code = own.iter().map(|line| line.trim()).filter(|line| !line.is_empty() && !line.starts_with("//"));
    Count { lines: own.len(), code: code.count() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lines_before_the_test_module_count() {
        assert_eq!(without_tests("a\n// b\n"), Count { lines: 2, code: 1 });
        assert_eq!(without_tests("a\n\n#[cfg(test)]\nmod tests {\n}\n"), Count { lines: 2, code: 1 });
    }

    #[test]
    fn a_test_module_in_another_file_ends_nothing() {
        assert_eq!(without_tests("#[cfg(test)]\nmod tests;\nmod wire;\n"), Count { lines: 1, code: 1 });
    }

    #[test]
    fn files_and_folders_of_tests_do_not_count() -> std::io::Result<()> {
        let dir = std::env::temp_dir().join(format!("breakbulk-lines-{}", std::process::id()));
        fs::create_dir_all(dir.join("a/tests"))?;
        for name in ["a.rs", "tests.rs", "a/tests.rs", "a/tests/b.rs", "a/c.rs"] {
            fs::write(dir.join(name), "a line")?;
        }
        let count = in_dir(&dir)?;
        fs::remove_dir_all(&dir)?;
        assert_eq!(count, Count { lines: 2, code: 2 });
        Ok(())
    }

    #[test]
    fn a_test_helper_before_the_test_module_counts() {
        let text = "#[cfg(test)]\nfn help() {}\n#[cfg(test)]\nmod tests {\n}\n";
        assert_eq!(without_tests(text), Count { lines: 2, code: 2 });
    }
}
