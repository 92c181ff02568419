//! What `git status --porcelain=v2 -z` and `git diff --numstat -z` say.

use std::collections::HashMap;

/// One changed file: paths from the top of the work tree, as bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Change {
    /// Before: its path and the name of its contents. None for a new file.
    pub(super) before: Option<(Vec<u8>, String)>,
    /// After: its path. None for a deleted file.
    pub(super) after: Option<Vec<u8>>,
    pub(super) kind: ChangeKind,
    pub(super) staged: Staged,
}

/// In one word, what happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ChangeKind {
    Added,
    Modified,
    Deleted,
    Renamed,
    Untracked,
    Conflicted,
}

impl ChangeKind {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Added => "added",
            Self::Modified => "modified",
            Self::Deleted => "deleted",
            Self::Renamed => "renamed",
            Self::Untracked => "untracked",
            Self::Conflicted => "conflicted",
        }
    }
}

/// How much of a change is in the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Staged {
    None,
    Part,
    All,
}

impl Staged {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Part => "part",
            Self::All => "all",
        }
    }

    fn of(xy: &str) -> Self {
        match xy.as_bytes() {
            [b'.', _] => Self::None,
            [_, b'.'] => Self::All,
            _ => Self::Part,
        }
    }
}

impl Change {
    /// Every path that it touches.
    pub(super) fn paths(&self) -> Vec<&[u8]> {
        let before = self.before.as_ref().map(|(path, _)| path.as_slice());
        let after = self.after.as_deref();
        before.into_iter().chain(after.filter(|after| Some(*after) != before)).collect()
    }
}

/// Lines of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Lines {
    pub(super) added: i64,
    pub(super) removed: i64,
}

/// Reads a status. Lines of a kind that is not known are left out; so are submodules.
pub(super) fn changes(status: &[u8]) -> Vec<Change> {
    let mut records = status.split(|&byte| byte == 0);
    let mut found = Vec::new();
    while let Some(record) = records.next() {
        let change = match record.first() {
            Some(b'1') => fields(record, 8).and_then(|(fields, path)| ordinary(&fields, path)),
            // A renamed file's old path is a record of its own, to be taken in any case.
            Some(b'2') => {
                let old = records.next();
                fields(record, 9).and_then(|(fields, path)| renamed(&fields, path, old?))
            }
            Some(b'u') => fields(record, 10).and_then(|(fields, path)| unmerged(&fields, path)),
            Some(b'?') => record.strip_prefix(b"? ").and_then(untracked),
            _ => None,
        };
        found.extend(change);
    }
    found
}

/// Line counts. Binary files have none.
#[derive(Debug, Default)]
pub(super) struct LineCounts {
    /// By path.
    pub(super) plain: HashMap<Vec<u8>, Lines>,
    /// Of renamed files, by old and new path.
    pub(super) renamed: HashMap<(Vec<u8>, Vec<u8>), Lines>,
}

/// Reads line counts.
pub(super) fn counts(numstat: &[u8]) -> LineCounts {
    let mut records = numstat.split(|&byte| byte == 0);
    let mut found = LineCounts::default();
    while let Some(record) = records.next() {
        let mut parts = record.splitn(3, |&byte| byte == b'\t');
        let (Some(added), Some(removed), Some(path)) = (parts.next(), parts.next(), parts.next()) else { continue };
        // An empty path is followed by the old and the new one.
        let renamed = if path.is_empty() { records.next().zip(records.next()) } else { None };
        let number = |digits: &[u8]| std::str::from_utf8(digits).ok()?.parse().ok();
        let (Some(added), Some(removed)) = (number(added), number(removed)) else { continue };
        let lines = Lines { added, removed };
        match renamed {
            Some((old, new)) => _ = found.renamed.insert((old.to_vec(), new.to_vec()), lines),
            None => _ = found.plain.insert(path.to_vec(), lines),
        }
    }
    found
}

/// The mode of nothing.
const NOTHING: &str = "000000";
/// The mode of a submodule.
const SUBMODULE: &str = "160000";

/// `count` fields with one space after each, and the rest.
fn fields(record: &[u8], count: usize) -> Option<(Vec<&str>, &[u8])> {
    let mut parts = record.splitn(count + 1, |&byte| byte == b' ');
    let fields: Option<Vec<_>> = parts.by_ref().take(count).map(|field| std::str::from_utf8(field).ok()).collect();
    Some((fields.filter(|fields| fields.len() == count)?, parts.next().filter(|path| !path.is_empty())?))
}

/// `1 XY sub mH mI mW hH hI path`
fn ordinary(fields: &[&str], path: &[u8]) -> Option<Change> {
    let [_, xy, _, head, index, work, oid, _] = fields else { return None };
    if [head, index, work].contains(&&SUBMODULE) {
        return None;
    }
    let before = (*head != NOTHING).then(|| (path.to_vec(), (*oid).to_owned()));
    let after = (*work != NOTHING).then(|| path.to_vec());
    let kind = match (&before, &after) {
        (None, None) => return None,
        (None, _) => ChangeKind::Added,
        (_, None) => ChangeKind::Deleted,
        _ => ChangeKind::Modified,
    };
    Some(Change { before, after, kind, staged: Staged::of(xy) })
}

/// `2 XY sub mH mI mW hH hI Rscore path` and the old path
fn renamed(fields: &[&str], path: &[u8], old: &[u8]) -> Option<Change> {
    let [_, xy, _, _, _, work, oid, _, score] = fields else { return None };
    let (before, after) = ((old.to_vec(), (*oid).to_owned()), path.to_vec());
    // A renamed file may be gone from the work tree; of a copy the old one is still there.
    let change = match (*work == NOTHING, score.starts_with('C')) {
        (true, true) => return None,
        (true, false) => {
            Change { before: Some(before), after: None, kind: ChangeKind::Deleted, staged: Staged::of(xy) }
        }
        (false, true) => Change { before: None, after: Some(after), kind: ChangeKind::Added, staged: Staged::of(xy) },
        (false, false) => {
            Change { before: Some(before), after: Some(after), kind: ChangeKind::Renamed, staged: Staged::of(xy) }
        }
    };
    Some(change)
}

/// `u XY sub m1 m2 m3 mW h1 h2 h3 path`: before is our side.
fn unmerged(fields: &[&str], path: &[u8]) -> Option<Change> {
    let [_, _, _, _, ours, _, work, _, oid, _] = fields else { return None };
    let before = (*ours != NOTHING).then(|| (path.to_vec(), (*oid).to_owned()));
    let after = (*work != NOTHING).then(|| path.to_vec());
    (before.is_some() || after.is_some()).then_some(Change {
        before,
        after,
        kind: ChangeKind::Conflicted,
        staged: Staged::None,
    })
}

/// A path that ends with a slash is a repository inside of this one.
fn untracked(path: &[u8]) -> Option<Change> {
    let after = Some(path.to_vec()).filter(|path| !path.ends_with(b"/") && !path.is_empty());
    after.map(|after| Change { before: None, after: Some(after), kind: ChangeKind::Untracked, staged: Staged::None })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_kind_of_record_is_read_and_others_are_passed_over() {
        let status = b"# branch.oid abc\0\
            1 .M N... 100644 100644 100644 aa bb a b.txt\0\
            1 A. N... 000000 100644 100644 00 bb new\nline\0\
            1 .D N... 100644 100644 000000 aa aa gone\0\
            2 R. N... 100644 100644 100644 aa aa R100 to\0from\0\
            1 .M S.M. 160000 160000 160000 aa aa sub\0\
            u UU N... 100644 100644 100644 100644 h1 h2 h3 both\0\
            ? new file\0? nested/\0! ignored\0x\0";
        let found = changes(status);
        let kinds: Vec<_> = found.iter().map(|change| change.kind).collect();
        use ChangeKind::{Added, Conflicted, Deleted, Modified, Renamed, Untracked};
        assert_eq!(kinds, [Modified, Added, Deleted, Renamed, Conflicted, Untracked]);
        assert_eq!(found[0].before, Some((b"a b.txt".to_vec(), "aa".into())));
        assert_eq!((found[1].staged, found[0].staged), (Staged::All, Staged::None));
        assert_eq!(found[3].paths(), [&b"from"[..], b"to"]);
        assert_eq!(found[4].before, Some((b"both".to_vec(), "h2".into())));
    }

    #[test]
    fn line_counts_are_by_path_and_binary_files_have_none() {
        let found = counts(b"1\t2\ta b\0-\t-\timage\x003\t0\t\0old\0new\0");
        assert_eq!(found.plain, HashMap::from([(b"a b".to_vec(), Lines { added: 1, removed: 2 })]));
        let renamed = (b"old".to_vec(), b"new".to_vec());
        assert_eq!(found.renamed, HashMap::from([(renamed, Lines { added: 3, removed: 0 })]));
    }

    proptest! {
        #[test]
        fn no_output_makes_it_panic(bytes in prop::collection::vec(prop::sample::select(b"12u? \0\tAR.0x/".to_vec()), 0..200)) {
            let _ = (changes(&bytes), counts(&bytes));
        }
    }
}
