//! Which changes a client wants to hear of.

use std::path::Path;

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use serde_json::Value;

use crate::files::error::FileError;

/// Patterns of one list. A client has a handful.
const MAX_PATTERNS: usize = 200;

/// Bytes of one pattern: as long as a path can be.
const MAX_PATTERN_BYTES: usize = 4096;

/// `includes` and `excludes`. A pattern that names a directory stands for all that is in it.
#[derive(Debug)]
pub(super) struct Filter {
    includes: Option<GlobSet>,
    excludes: GlobSet,
}

impl Filter {
    pub(super) fn new(includes: Option<&Value>, excludes: Option<&Value>) -> Result<Self, FileError> {
        Ok(Self {
            includes: includes.filter(|value| !value.is_null()).map(set).transpose()?,
            excludes: excludes.filter(|value| !value.is_null()).map(set).transpose()?.unwrap_or_default(),
        })
    }

    /// Whether changes at this path are reported. The path is relative to the watched file or directory, whose own
    /// changes are always reported.
    pub(super) fn wants(&self, path: &Path) -> bool {
        let included = self.includes.as_ref().is_none_or(|includes| matches(includes, path));
        path.as_os_str().is_empty() || self.enters(path) && included
    }

    /// Whether there can be anything to report at this path or below.
    pub(super) fn enters(&self, path: &Path) -> bool {
        !matches(&self.excludes, path)
    }
}

fn matches(set: &GlobSet, path: &Path) -> bool {
    path.ancestors().any(|path| !path.as_os_str().is_empty() && set.is_match(path))
}

/// `{ "items": ["pattern", …] }`.
fn set(value: &Value) -> Result<GlobSet, FileError> {
    let items = value.get("items").and_then(Value::as_array).ok_or(FileError::BadPattern)?;
    if items.len() > MAX_PATTERNS {
        return Err(FileError::BadPattern);
    }
    let mut set = GlobSetBuilder::new();
    for item in items {
        let pattern = item.as_str().filter(|text| text.len() <= MAX_PATTERN_BYTES).ok_or(FileError::BadPattern)?;
        let pattern = pattern.strip_prefix("./").unwrap_or(pattern).trim_start_matches('/');
        // `directory/**` means all that is in the directory, so the pattern matches the directory itself, too. An
        // excluded directory need not be watched at all.
        let whole = pattern.trim_end_matches('/');
        let whole = whole.strip_suffix("/**").unwrap_or(whole);
        let glob = GlobBuilder::new(whole).literal_separator(true).backslash_escape(true).build();
        set.add(glob.map_err(|_| FileError::BadPattern)?);
    }
    set.build().map_err(|_| FileError::BadPattern)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn filter(includes: Value, excludes: Value) -> Filter {
        Filter::new(Some(&includes), Some(&excludes)).expect("good patterns")
    }

    #[test]
    fn a_directory_stands_for_all_that_is_in_it_however_it_is_written() {
        for pattern in ["node_modules", "node_modules/", "./node_modules", "/node_modules/**", "**/node_modules/**"] {
            let filter = filter(Value::Null, json!({ "items": [pattern] }));
            assert!(!filter.enters("node_modules".as_ref()), "{pattern}");
            assert!(!filter.wants("node_modules/a/b.js".as_ref()), "{pattern}");
            assert!(filter.wants("src/node.js".as_ref()), "{pattern}");
        }
    }

    #[test]
    fn a_star_stays_in_its_directory_and_two_do_not() {
        let filter = filter(json!({ "items": ["*.rs", "docs/**/*.md"] }), Value::Null);
        assert!(filter.wants("a.rs".as_ref()));
        assert!(!filter.wants("src/a.rs".as_ref()));
        assert!(filter.wants("docs/a/b/c.md".as_ref()));
        assert!(filter.wants("docs/c.md".as_ref()));
        assert!(filter.enters("src".as_ref()), "what is not included may have something below that is");
    }

    #[test]
    fn the_watched_thing_itself_is_always_reported() {
        assert!(filter(json!({ "items": ["x"] }), json!({ "items": ["**"] })).wants("".as_ref()));
    }

    #[test]
    fn what_is_no_list_of_globs_is_refused() {
        let many = json!({ "items": vec!["a"; MAX_PATTERNS + 1] });
        let long = json!({ "items": ["a".repeat(MAX_PATTERN_BYTES + 1)] });
        for bad in [json!(["a"]), json!("a"), json!({ "items": [1] }), json!({ "items": ["[a"] }), many, long] {
            assert_eq!(Filter::new(Some(&bad), None).err(), Some(FileError::BadPattern), "{bad}");
        }
    }
}
