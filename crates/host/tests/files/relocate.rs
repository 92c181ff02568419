//! Copying, moving, deleting.

use std::os::unix::fs::{MetadataExt, PermissionsExt};

use breakbulk_host::test_support::files::{FileError, Files, FilesConfig};

use crate::common::{Place, make_fifo};

/// `one/tree` with a file, a directory, and links in and out.
fn with_tree() -> Place {
    let place = Place::new();
    std::fs::create_dir_all(place.path("one/tree/sub")).unwrap();
    place.put("one/tree/a", "a");
    place.put("one/tree/sub/b", "b");
    place.link("../a", "one/tree/sub/in");
    place.link("../../../outside/secret", "one/tree/sub/out");
    place
}

fn assert_tree(place: &Place, path: &str) {
    assert_eq!(place.names(path), ["a", "sub"]);
    assert_eq!(place.names(&format!("{path}/sub")), ["b", "in", "out"]);
    assert_eq!(place.get(&format!("{path}/sub/b")), "b");
    assert!(place.path(&format!("{path}/sub/in")).is_symlink());
    assert!(place.path(&format!("{path}/sub/out")).is_symlink());
}

#[tokio::test]
async fn a_file_is_copied_with_its_permissions_over_another_and_to_another_root() {
    let place = Place::new();
    place.put("one/a", "new");
    std::fs::set_permissions(place.path("one/a"), std::fs::Permissions::from_mode(0o740)).unwrap();
    place.put("one/b", "old");
    place.copy("one/a", "one/b", false).await.unwrap();
    place.copy("one/a", "two/c", true).await.unwrap();
    assert_eq!(
        (place.get("one/a"), place.get("one/b"), place.get("two/c")),
        ("new".into(), "new".into(), "new".into())
    );
    assert_eq!(place.path("two/c").metadata().unwrap().mode() & 0o777, 0o740);
    assert_eq!(place.names("one"), ["a", "b"]);
}

#[tokio::test]
async fn a_tree_is_copied_and_moved_with_its_links_as_they_are() {
    let place = with_tree();
    place.copy("one/tree", "two/copy", false).await.unwrap();
    assert_tree(&place, "two/copy");
    assert_tree(&place, "one/tree");
    assert_eq!(place.text("two/copy/sub/in").await.unwrap(), "a");
    assert_eq!(place.text("two/copy/sub/out").await, Err(FileError::Outside));
    place.rename("one/tree", "two/moved", false).await.unwrap();
    assert_tree(&place, "two/moved");
    assert_eq!(place.names("one"), Vec::<String>::new());
}

#[tokio::test]
async fn a_tree_replaces_a_tree_as_a_whole() {
    let place = with_tree();
    for (n, moves) in [false, true].into_iter().enumerate() {
        let old = format!("two/old{n}");
        std::fs::create_dir_all(place.path(&old).join("kept-by-nobody")).unwrap();
        if moves {
            place.rename("one/tree", &old, false).await.unwrap();
        } else {
            place.copy("one/tree", &old, false).await.unwrap();
        }
        assert_tree(&place, &old);
    }
    assert_eq!(place.names("two"), ["old0", "old1"]);
}

#[tokio::test]
async fn what_exists_is_kept_if_the_caller_says_so() {
    let place = with_tree();
    place.put("two/a", "old");
    place.link("nothing", "two/dangling");
    std::fs::create_dir(place.path("two/empty")).unwrap();
    for to in ["two/a", "two/dangling", "two/empty", "two", "one/tree/a"] {
        assert_eq!(place.copy("one/tree/a", to, true).await, Err(FileError::AlreadyExists), "{to}");
        assert_eq!(place.rename("one/tree/a", to, true).await, Err(FileError::AlreadyExists), "{to}");
    }
    assert_eq!(place.copy("one/tree", "two/empty", true).await, Err(FileError::AlreadyExists));
    assert_eq!(place.rename("one/tree", "two/empty", true).await, Err(FileError::AlreadyExists));
    assert_eq!(place.get("two/a"), "old");
    assert_eq!(place.names("two"), ["a", "dangling", "empty"]);
}

#[tokio::test]
async fn a_file_never_replaces_a_directory_nor_a_directory_a_file() {
    let place = with_tree();
    place.put("one/file", "file");
    std::fs::create_dir(place.path("one/empty")).unwrap();
    for dir in ["one/tree", "one/empty"] {
        assert_eq!(place.copy("one/file", dir, false).await, Err(FileError::IsDirectory));
        assert_eq!(place.rename("one/file", dir, false).await, Err(FileError::IsDirectory));
        assert_eq!(place.copy(dir, "one/file", false).await, Err(FileError::NotADirectory));
        assert_eq!(place.rename(dir, "one/file", false).await, Err(FileError::NotADirectory));
    }
    assert_tree(&place, "one/tree");
    assert_eq!(place.get("one/file"), "file");
}

#[tokio::test]
async fn nothing_goes_into_itself_or_over_what_contains_it() {
    let place = with_tree();
    for (from, to) in [("one/tree", "one/tree/sub/x"), ("one/tree/sub", "one/tree"), ("one/tree/a", "one/tree")] {
        assert_eq!(place.copy(from, to, false).await, Err(FileError::Overlap), "{from} {to}");
        assert_eq!(place.rename(from, to, false).await, Err(FileError::Overlap), "{from} {to}");
    }
    place.copy("one/tree", "one/tree", false).await.unwrap();
    place.rename("one/tree/a", "one/tree/sub/../a", false).await.unwrap();
    assert_tree(&place, "one/tree");
}

#[tokio::test]
async fn what_is_missing_is_not_copied_and_what_is_outside_is_not_touched() {
    let place = with_tree();
    for (from, to, want) in [
        ("one/x", "one/y", FileError::NotFound),
        ("one/tree/a", "one/x/y", FileError::NotFound),
        ("outside/secret", "one/y", FileError::Outside),
        ("one/tree/a", "outside/y", FileError::Outside),
    ] {
        assert_eq!(place.copy(from, to, false).await, Err(want.clone()), "{from} {to}");
        assert_eq!(place.rename(from, to, false).await, Err(want), "{from} {to}");
    }
    assert_eq!(place.copy("one/tree/sub/out", "one/y", false).await, Err(FileError::Outside));
    assert_eq!(place.names("outside"), ["secret"]);
    assert_eq!(place.names("one"), ["tree"]);
}

#[tokio::test]
async fn a_copy_over_its_limits_leaves_nothing_behind() {
    let place = Place::with(|config| {
        config.max_copy_bytes = 10;
        config.max_copy_entries = 3;
        config.max_depth = 2;
    });
    std::fs::create_dir_all(place.path("one/deep/b/c")).unwrap();
    std::fs::create_dir(place.path("one/many")).unwrap();
    std::fs::create_dir(place.path("one/large")).unwrap();
    for n in 0..3 {
        place.put(&format!("one/many/{n}"), "");
    }
    place.put("one/large/1", "123456");
    place.put("one/large/2", "123456");
    assert_eq!(place.copy("one/large", "two/a", false).await, Err(FileError::TooLarge { size: 12, limit: 10 }));
    assert_eq!(place.copy("one/many", "two/a", false).await, Err(FileError::TooMany { limit: 3 }));
    assert_eq!(place.copy("one/deep", "two/a", false).await, Err(FileError::TooDeep { limit: 2 }));
    make_fifo(&place.path("one/deep/pipe"));
    std::fs::remove_dir_all(place.path("one/deep/b")).unwrap();
    assert_eq!(place.copy("one/deep", "two/a", false).await, Err(FileError::Special));
    assert_eq!(place.names("two"), Vec::<String>::new());
}

#[tokio::test]
async fn a_moved_link_is_the_link() {
    let place = Place::new();
    place.put("one/a", "a");
    place.put("one/b", "b");
    place.link("a", "one/link");
    place.link("../outside/secret", "one/out");
    place.rename("one/link", "one/link2", false).await.unwrap();
    place.rename("one/out", "one/out2", false).await.unwrap();
    assert!(place.path("one/link2").is_symlink() && place.path("one/out2").is_symlink());
    place.rename("one/b", "one/link2", false).await.unwrap();
    assert_eq!((place.get("one/a"), place.get("one/link2")), ("a".into(), "b".into()), "the link was replaced");
}

#[tokio::test]
async fn a_delete_takes_a_link_and_leaves_what_it_leads_to() {
    let place = with_tree();
    place.link("../outside", "one/tree/dir-out");
    place.link("tree", "one/to-tree");
    place.delete("one/to-tree", true).await.unwrap();
    assert!(place.has("one/tree/a"));
    place.delete("one/tree/sub/out", false).await.unwrap();
    place.link("../../../outside", "one/tree/sub/out");
    place.delete("one/tree", true).await.unwrap();
    assert_eq!(place.names("one"), Vec::<String>::new());
    assert_eq!(place.get("outside/secret"), crate::common::SECRET);
}

#[tokio::test]
async fn only_an_empty_directory_goes_without_recursive() {
    let place = with_tree();
    assert_eq!(place.delete("one/tree", false).await, Err(FileError::NotEmpty));
    assert_eq!(place.delete("one/x", false).await, Err(FileError::NotFound));
    assert_eq!(place.delete("one/x", true).await, Err(FileError::NotFound));
    assert_eq!(place.delete("outside/secret", true).await, Err(FileError::Outside));
    std::fs::create_dir(place.path("one/empty")).unwrap();
    place.delete("one/empty", false).await.unwrap();
    place.delete("one/tree/a", false).await.unwrap();
    assert_eq!(place.names("one/tree"), ["sub"]);
}

#[tokio::test]
async fn a_directory_of_thousands_goes_whole() {
    let place = Place::new();
    std::fs::create_dir(place.path("one/many")).unwrap();
    for n in 0..3_000 {
        place.put(&format!("one/many/{n}"), "");
    }
    place.delete("one/many", true).await.unwrap();
    assert!(!place.has("one/many"));
}

#[tokio::test]
async fn a_root_and_what_holds_one_stay_where_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let inner = dir.path().join("a/b/root");
    std::fs::create_dir_all(&inner).unwrap();
    let files = Files::new(FilesConfig::new([dir.path(), &inner])).unwrap();
    let place = Place { dir, files };
    place.put("file", "");
    for path in [".", "a", "a/b", "a/b/root"] {
        assert_eq!(place.delete(path, true).await, Err(FileError::IsRoot), "{path}");
        assert_eq!(place.rename(path, "moved", false).await, Err(FileError::IsRoot), "{path}");
        assert_eq!(place.copy("file", path, false).await, Err(FileError::IsRoot), "{path}");
        assert_eq!(place.rename("file", path, false).await, Err(FileError::IsRoot), "{path}");
    }
    place.put("a/b/root/x", "");
    place.delete("a/b/root/x", false).await.unwrap();
    assert!(inner.is_dir());
}

/// A root on another file system than the temporary directory, where this machine has one.
fn elsewhere() -> Option<tempfile::TempDir> {
    let here = std::env::temp_dir().metadata().ok()?.dev();
    let there = std::path::Path::new("/dev/shm");
    (there.metadata().ok()?.dev() != here).then(|| tempfile::tempdir_in(there).ok()).flatten()
}

#[tokio::test]
async fn a_move_to_another_file_system_keeps_everything() {
    let Some(other) = elsewhere() else { return eprintln!("only one file system here: not tested") };
    let place = with_tree();
    let files = Files::new(FilesConfig::new([place.path("one"), other.path().to_owned()])).unwrap();
    let before = place.path("one/tree/a").metadata().unwrap();
    let rename = async |source, destination, fail_if_exists| {
        let params = ahp_types::commands::ResourceMoveParams {
            channel: crate::common::root(),
            meta: None,
            source,
            destination,
            fail_if_exists: Some(fail_if_exists),
        };
        files.rename(params).await.map(|_| ())
    };
    let there = |name| breakbulk_host::test_support::files::uri_of(&other.path().join(name));
    std::fs::create_dir_all(other.path().join("tree/old")).unwrap();
    assert_eq!(rename(place.uri("one/tree"), there("tree"), true).await, Err(FileError::AlreadyExists));
    rename(place.uri("one/tree"), there("tree"), false).await.unwrap();
    assert!(!place.has("one/tree"));
    let after = other.path().join("tree/a").metadata().unwrap();
    assert_eq!((after.mode(), after.uid(), after.mtime()), (before.mode(), before.uid(), before.mtime()));
    let mut names: Vec<_> = std::fs::read_dir(other.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["tree"]);
    assert!(other.path().join("tree/sub/out").is_symlink() && !other.path().join("tree/old").exists());
    rename(there("tree/a"), place.uri("one/a"), true).await.unwrap();
    assert_eq!(place.get("one/a"), "a");
    rename(there("tree"), place.uri("one/tree"), true).await.unwrap();
    assert_eq!(std::fs::read_dir(other.path()).unwrap().count(), 0);
}
