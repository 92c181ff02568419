//! The environment of every process that we start, made in one place so that none inherits our secrets.
//!
//! A token (`BREAKBULK_TOKEN`), a header (`BREAKBULK_HEADER`) and all other settings may stand in variables that begin
//! with `BREAKBULK_`. A child has no use for them: an MCP server, an agent, a shell or git must not be able to read the
//! token of the program that started it. Whoever starts a process clears its environment and sets what [`inherited`]
//! or [`inherited_only`] returns.

use std::ffi::{OsStr, OsString};

/// The names of our own variables begin with this. No child sees any of them.
pub const PRIVATE_PREFIX: &str = "BREAKBULK_";

/// Whether a variable is our own, so that no child may see it. Case does not matter, as on systems that ignore it.
#[must_use]
pub fn is_private(name: &OsStr) -> bool {
    let start = name.as_encoded_bytes().get(..PRIVATE_PREFIX.len());
    start.is_some_and(|start| start.eq_ignore_ascii_case(PRIVATE_PREFIX.as_bytes()))
}

/// All variables of this process, without our own.
pub fn inherited() -> impl Iterator<Item = (OsString, OsString)> {
    without_private(std::env::vars_os())
}

/// Those of the named variables that are set in this process. Our own variables are left out.
pub fn inherited_only(names: &[&str]) -> impl Iterator<Item = (OsString, OsString)> {
    without_private(names.iter().filter_map(|name| Some((OsString::from(name), std::env::var_os(name)?))))
}

fn without_private(
    variables: impl Iterator<Item = (OsString, OsString)>,
) -> impl Iterator<Item = (OsString, OsString)> {
    variables.filter(|(name, _)| !is_private(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_variables_are_left_out_and_all_others_stay() {
        let all = ["BREAKBULK_TOKEN", "PATH", "breakbulk_header", "BREAKBULK", "BREAKBULK_", "MY_BREAKBULK_TOKEN"];
        let left = without_private(all.iter().map(|name| (name.into(), OsString::from("x"))));
        let left: Vec<_> = left.map(|(name, _)| name.into_string().unwrap()).collect();
        assert_eq!(left, ["PATH", "BREAKBULK", "MY_BREAKBULK_TOKEN"]);
    }

    #[test]
    fn only_named_variables_that_are_set_are_inherited() {
        let found: Vec<_> = inherited_only(&["PATH", "no such variable"]).map(|(name, _)| name).collect();
        assert_eq!(found, ["PATH"]);
    }
}
