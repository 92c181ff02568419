//! The environment of an agent's program: a list of what it may see, not of what it may not.

use std::ffi::{OsStr, OsString};

/// What every program needs to find its files, its network and its language. A name that ends with `*` stands for all that
/// begin so. Keys and tokens are not among them: an adapter or the configuration names those that its program needs.
pub(crate) const USUAL: &[&str] = &[
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "TERM",
    "TMPDIR",
    "TZ",
    "LANG",
    "LANGUAGE",
    "LC_*",
    "XDG_*",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "no_proxy",
    "SSL_CERT_*",
    "NODE_EXTRA_CA_CERTS",
];

/// The variables of this process that a program may see: the usual ones, and these. Never our own.
pub(super) fn allowed(inherit: &[String]) -> impl Iterator<Item = (OsString, OsString)> {
    breakbulk::environment::inherited().filter(|(name, _)| is_allowed(name, inherit))
}

fn is_allowed(name: &OsStr, inherit: &[String]) -> bool {
    USUAL.iter().copied().chain(inherit.iter().map(String::as_str)).any(|pattern| match pattern.strip_suffix('*') {
        Some(start) => name.as_encoded_bytes().starts_with(start.as_bytes()),
        None => name == pattern,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_on_the_list_is_seen() {
        let inherit = ["ANTHROPIC_*".to_owned(), "MY_KEY".to_owned()];
        let is = |name: &str| is_allowed(OsStr::new(name), &inherit);
        for name in ["PATH", "LC_ALL", "XDG_CONFIG_HOME", "SSL_CERT_FILE", "ANTHROPIC_API_KEY", "MY_KEY"] {
            assert!(is(name), "{name}");
        }
        for name in ["AWS_SECRET_ACCESS_KEY", "MY_KEYS", "PATHS", "GITHUB_TOKEN", "LD_PRELOAD", ""] {
            assert!(!is(name), "{name}");
        }
    }

    #[test]
    fn our_own_variables_are_not_seen_even_if_somebody_names_them() {
        let names: Vec<OsString> = allowed(&["*".to_owned()]).map(|(name, _)| name).collect();
        assert!(!names.is_empty() && names.iter().all(|name| !breakbulk::environment::is_private(name)));
    }
}
