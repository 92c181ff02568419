//! Listing, resolving, making directories.

use ahp_types::commands::ResourceType;
use breakbulk_host::test_support::files::FileError;

use crate::common::{Place, make_fifo};

fn entry(name: &str, kind: &str) -> (String, String) {
    (name.to_owned(), kind.to_owned())
}

#[tokio::test]
async fn a_list_says_what_each_entry_leads_to() {
    let place = Place::new();
    std::fs::create_dir(place.path("one/dir")).unwrap();
    place.put("one/file", "");
    make_fifo(&place.path("one/pipe"));
    place.link("dir", "one/to-dir");
    place.link(place.path("two"), "one/to-two");
    place.link("file", "one/to-file");
    place.link("../outside", "one/to-outside");
    place.link("nothing", "one/to-nothing");
    let want = [
        entry("dir", "directory"),
        entry("file", "file"),
        entry("pipe", "file"),
        entry("to-dir", "directory"),
        entry("to-file", "file"),
        entry("to-nothing", "file"),
        entry("to-outside", "file"),
        entry("to-two", "directory"),
    ];
    assert_eq!(place.list("one").await.unwrap(), want);
    assert_eq!(place.list("one/to-two").await.unwrap(), []);
}

#[tokio::test]
async fn only_a_directory_that_is_there_and_not_too_long_is_listed() {
    let place = Place::with(|config| config.max_list_entries = 2);
    place.put("one/a", "");
    place.put("one/b", "");
    assert_eq!(place.list("one").await.unwrap().len(), 2);
    place.put("one/c", "");
    assert_eq!(place.list("one").await, Err(FileError::TooMany { limit: 2 }));
    assert_eq!(place.list("one/a").await, Err(FileError::NotADirectory));
    assert_eq!(place.list("one/x").await, Err(FileError::NotFound));
    assert_eq!(place.list("outside").await, Err(FileError::Outside));
    assert_eq!(place.list(".").await, Err(FileError::Outside), "what is above a root is not listed either");
}

#[tokio::test]
async fn a_file_resolves_to_what_is_known_about_it() {
    let place = Place::new();
    place.put("one/a.json", "{}");
    let found = place.resolve("one/a.json", true).await.unwrap();
    assert_eq!((found.uri, found.r#type, found.size), (place.uri("one/a.json"), ResourceType::File, Some(2)));
    assert_eq!(found.content_type.as_deref(), Some("application/json"));
    let mtime = found.mtime.unwrap();
    assert!(mtime.starts_with("20") && mtime.ends_with('Z') && mtime.len() == 24, "{mtime}");
    assert!(found.etag.is_some());
}

#[tokio::test]
async fn a_directory_has_no_size_and_no_etag() {
    let place = Place::new();
    let found = place.resolve("one", true).await.unwrap();
    assert_eq!((found.r#type, found.size, found.etag), (ResourceType::Directory, None, None));
}

#[tokio::test]
async fn a_link_resolves_to_its_target_or_to_itself() {
    let place = Place::new();
    std::fs::create_dir(place.path("two/dir")).unwrap();
    place.put("two/dir/a", "abc");
    place.link("../two/dir", "one/link");
    let found = place.resolve("one/link/a", true).await.unwrap();
    assert_eq!((found.uri, found.size), (place.uri("two/dir/a"), Some(3)));
    let itself = place.resolve("one/link", false).await.unwrap();
    assert_eq!((itself.uri, itself.r#type), (place.uri("one/link"), ResourceType::Symlink));
    place.link("../outside", "one/out");
    assert_eq!(place.resolve("one/out", false).await.unwrap().r#type, ResourceType::Symlink);
    assert_eq!(place.resolve("one/out", true).await.unwrap_err(), FileError::Outside);
}

#[tokio::test]
async fn a_uri_that_meets_no_link_comes_back_as_it_was_written() {
    let place = Place::new();
    place.put("one/ab", "");
    let uri = place.uri("one/ab").replace("/ab", "/%61b");
    let params = ahp_types::commands::ResourceResolveParams {
        channel: crate::common::root(),
        meta: None,
        uri: uri.clone(),
        follow_symlinks: None,
    };
    assert_eq!(place.files.resolve(params).await.unwrap().uri, uri);
}

#[tokio::test]
async fn what_is_missing_does_not_resolve() {
    let place = Place::new();
    place.link("nothing", "one/dangling");
    assert_eq!(place.resolve("one/a", true).await.unwrap_err(), FileError::NotFound);
    assert_eq!(place.resolve("one/dangling", true).await.unwrap_err(), FileError::NotFound);
}

#[tokio::test]
async fn every_write_changes_the_etag_even_of_the_same_content() {
    let place = Place::new();
    let mut tags = std::collections::HashSet::new();
    for _ in 0..20 {
        place.write("one/a", "same").await.unwrap();
        assert!(tags.insert(place.resolve("one/a", true).await.unwrap().etag.unwrap()));
        // In place, by somebody else, as soon after that as can be.
        place.put("one/a", "smae");
        assert!(tags.insert(place.resolve("one/a", true).await.unwrap().etag.unwrap()));
    }
}

#[tokio::test]
async fn directories_are_made_with_those_above_them_and_twice_is_fine() {
    let place = Place::new();
    place.link("../two", "one/link");
    for _ in 0..2 {
        place.mkdir("one/a/b/c").await.unwrap();
        place.mkdir("one/link/x/y").await.unwrap();
        place.mkdir("one").await.unwrap();
        place.mkdir("one/link").await.unwrap();
    }
    assert!(place.path("one/a/b/c").is_dir() && place.path("two/x/y").is_dir());
}

#[tokio::test]
async fn no_directory_is_made_over_something_else_or_outside() {
    let place = Place::new();
    place.put("one/file", "");
    place.link("nothing", "one/dangling");
    place.link("../outside", "one/out");
    assert_eq!(place.mkdir("one/file").await, Err(FileError::AlreadyExists));
    assert_eq!(place.mkdir("one/file/x").await, Err(FileError::AlreadyExists));
    assert_eq!(place.mkdir("one/dangling").await, Err(FileError::AlreadyExists));
    assert_eq!(place.mkdir("one/dangling/x").await, Err(FileError::NotFound));
    assert_eq!(place.mkdir("one/out/x").await, Err(FileError::Outside));
    assert_eq!(place.mkdir("outside/x").await, Err(FileError::Outside));
    assert_eq!(place.mkdir("new").await, Err(FileError::Outside));
    assert_eq!(place.names("outside"), ["secret"]);
    assert!(!place.has("one/nothing"));
}

#[tokio::test]
async fn a_deep_path_is_walked_and_a_deep_tree_is_not_removed_beyond_the_limit() {
    let place = Place::with(|config| config.max_depth = 50);
    let deep = format!("one{}", "/d".repeat(300));
    place.mkdir(&deep).await.unwrap();
    assert_eq!(place.list(&deep).await.unwrap(), []);
    assert_eq!(place.delete("one/d", true).await, Err(FileError::TooDeep { limit: 50 }));
    let near_the_end = format!("one{}", "/d".repeat(260));
    place.delete(&near_the_end, true).await.unwrap();
    assert!(!place.has(&near_the_end));
}
