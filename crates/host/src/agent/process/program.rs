//! Finds programs, as the system does when it starts one.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Where a program is: at its path, or in one of the directories of `PATH`. `None` if it cannot be started.
#[must_use]
pub fn find_program(program: &OsStr) -> Option<PathBuf> {
    find_in(program, &std::env::var_os("PATH").unwrap_or_default())
}

fn find_in(program: &OsStr, path: &OsStr) -> Option<PathBuf> {
    let named = Path::new(program);
    if named.components().count() > 1 {
        return is_program(named).then(|| named.to_owned());
    }
    std::env::split_paths(path).map(|directory| directory.join(named)).find(|file| is_program(file))
}

fn is_program(file: &Path) -> bool {
    file.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may fail by panicking")]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_a_file_that_may_be_run() {
        let directory = tempfile::tempdir().unwrap();
        let (program, text) = (directory.path().join("program"), directory.path().join("text"));
        for (file, mode) in [(&program, 0o755), (&text, 0o644)] {
            std::fs::write(file, "").unwrap();
            std::fs::set_permissions(file, std::fs::Permissions::from_mode(mode)).unwrap();
        }
        let path = directory.path().as_os_str();
        assert_eq!(find_in(OsStr::new("program"), path), Some(program.clone()));
        assert_eq!(find_in(program.as_os_str(), OsStr::new("")), Some(program));
        assert_eq!(find_in(OsStr::new("text"), path), None);
        assert_eq!(find_in(OsStr::new("nothing"), path), None);
        assert_eq!(find_in(path, path), None);
    }
}
