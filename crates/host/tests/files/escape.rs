//! Ways out of the roots.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use breakbulk_host::test_support::files::{FileError, Files, FilesConfig, uri_of};

use crate::common::{Place, SECRET, read_params, write_params};

#[tokio::test]
async fn no_spelling_of_a_uri_leads_out() {
    let place = Place::new();
    let one = place.uri("one");
    let tails = [
        "/../outside/secret",
        "/%2e%2e/outside/secret",
        "/%2E./outside/secret",
        "/.%2e/outside/secret",
        "/x/../../outside/secret",
        "/./..//outside/secret",
        "/../../../../../../../../etc/passwd",
        "/../one/../outside/secret",
    ];
    for tail in tails {
        let uri = format!("{one}{tail}");
        assert_eq!(place.files.read(read_params(uri.clone(), None)).await, Err(FileError::Outside), "{uri}");
        assert_eq!(place.files.write(write_params(uri.clone(), "x")).await, Err(FileError::Outside), "{uri}");
    }
    for uri in ["file:///etc/passwd", "file:///", "file:/etc/passwd", "file:////etc/passwd", "FILE:///etc/passwd"] {
        assert_eq!(place.files.read(read_params(uri.to_owned(), None)).await, Err(FileError::Outside), "{uri}");
    }
    for tail in ["/%252e%252e/outside/secret", "/..%5coutside", "/…/outside/secret"] {
        let result = place.files.read(read_params(format!("{one}{tail}"), None)).await;
        assert_eq!(result, Err(FileError::NotFound), "{tail}");
    }
    for tail in ["/..%2foutside%2fsecret", "/a%00", "/%", "/?x", "/#x"] {
        let result = place.files.read(read_params(format!("{one}{tail}"), None)).await;
        assert!(matches!(result, Err(FileError::Uri(_))), "{tail}");
    }
    assert_eq!(place.get("outside/secret"), SECRET);
}

#[tokio::test]
async fn a_name_that_begins_like_a_root_is_not_in_it() {
    let place = Place::new();
    std::fs::create_dir(place.path("one-more")).unwrap();
    place.put("one-more/a", "");
    assert_eq!(place.text("one-more/a").await, Err(FileError::Outside));
    assert_eq!(place.text("on").await, Err(FileError::Outside));
}

#[tokio::test]
async fn links_that_stay_in_the_roots_work_and_others_are_denied() {
    let place = Place::new();
    std::fs::create_dir_all(place.path("one/a/b")).unwrap();
    place.put("one/file", "in one");
    place.put("two/file", "in two");
    let all = place.dir.path();
    let inside: [(&Path, &str, &str); 9] = [
        ("file".as_ref(), "one/l1", "in one"),
        ("../../file".as_ref(), "one/a/b/l2", "in one"),
        (&all.join("one/file"), "one/l3", "in one"),
        (&all.join("two/file"), "one/l4", "in two"),
        ("../two/file".as_ref(), "one/l5", "in two"),
        ("l5".as_ref(), "one/l6", "in two"),
        ("../../one/../two/file".as_ref(), "one/a/l7", "in two"),
        (&all.join("outside/../one/a/../file"), "one/l8", "in one"),
        ("a/b/../../../two/./file".as_ref(), "one/l9", "in two"),
    ];
    for (target, path, want) in inside {
        place.link(target, path);
        assert_eq!(place.text(path).await.as_deref(), Ok(want), "{path}");
    }
    let outside: [(&Path, &str); 6] = [
        ("../outside/secret".as_ref(), "one/o1"),
        (&all.join("outside/secret"), "one/o2"),
        ("/etc/passwd".as_ref(), "one/o3"),
        ("/".as_ref(), "one/o4"),
        ("..".as_ref(), "one/o5"),
        ("/proc/self/root".as_ref(), "one/o6"),
    ];
    for (target, path) in outside {
        place.link(target, path);
        assert_eq!(place.text(path).await, Err(FileError::Outside), "{path}");
        assert_eq!(place.write(path, "x").await, Err(FileError::Outside), "{path}");
        assert_eq!(place.list(path).await, Err(FileError::Outside), "{path}");
    }
    let through: [&str; 3] = ["one/o4/etc/passwd", "one/o5/outside/secret", "one/o6/etc/passwd"];
    for path in through {
        assert_eq!(place.text(path).await, Err(FileError::Outside), "{path}");
        assert_eq!(place.delete(path, true).await, Err(FileError::Outside), "{path}");
    }
    assert_eq!(place.text("one/o5/two/file").await.as_deref(), Ok("in two"), "out and in again is in");
    assert_eq!(place.get("outside/secret"), SECRET);
}

#[tokio::test]
async fn links_in_a_circle_end() {
    let place = Place::new();
    place.link("b", "one/a");
    place.link("a", "one/b");
    place.link("self/self", "one/self");
    for path in ["one/a", "one/a/x", "one/self", "one/self/x"] {
        assert_eq!(place.text(path).await, Err(FileError::Links), "{path}");
        assert_eq!(place.write(path, "").await, Err(FileError::Links), "{path}");
    }
}

#[tokio::test]
async fn a_root_that_is_a_link_can_be_named_both_ways_and_stays_what_it_was() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["real", "other"] {
        std::fs::create_dir(dir.path().join(name)).unwrap();
        std::fs::write(dir.path().join(name).join("a"), name).unwrap();
    }
    std::os::unix::fs::symlink("real", dir.path().join("link")).unwrap();
    let files = Files::new(FilesConfig::new([dir.path().join("link")])).unwrap();
    let place = Place { dir, files };
    assert_eq!(place.text("link/a").await.unwrap(), "real");
    assert_eq!(place.text("real/a").await.unwrap(), "real");
    std::fs::remove_file(place.path("link")).unwrap();
    place.link("other", "link");
    assert_eq!(place.text("link/a").await.unwrap(), "real");
    assert_eq!(place.text("other/a").await, Err(FileError::Outside));
}

#[test]
fn a_root_must_be_a_directory_that_is_there() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("file"), "").unwrap();
    for name in ["file", "nothing"] {
        let error = Files::new(FilesConfig::new([dir.path().join(name)])).unwrap_err();
        assert_eq!(error.path, dir.path().join(name));
    }
}

#[tokio::test]
async fn without_roots_everything_is_outside() {
    let files = Files::new(FilesConfig::new(Vec::<std::path::PathBuf>::new())).unwrap();
    let uri = uri_of(&std::env::temp_dir());
    assert_eq!(files.read(read_params(uri, None)).await, Err(FileError::Outside));
}

/// Swaps `name` between two things, as fast as it can, until dropped.
struct Swapper {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<u64>>,
}

impl Swapper {
    fn new(path: std::path::PathBuf, other: std::path::PathBuf) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            use rustix::fs::{CWD, RenameFlags, renameat_with};
            let mut swaps = 0;
            while !stopped.load(Ordering::Relaxed) {
                // One of them may be gone for a moment.
                swaps += u64::from(renameat_with(CWD, &path, CWD, &other, RenameFlags::EXCHANGE).is_ok());
            }
            swaps
        });
        Self { stop, thread: Some(thread) }
    }

    fn end(mut self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap()
    }
}

const RACE: Duration = Duration::from_secs(2);

/// On a machine with no time for us a race goes on until both have run.
const LONGEST_RACE: Duration = Duration::from_secs(20);

#[tokio::test]
async fn a_file_that_becomes_a_link_to_the_secret_and_back_never_shows_it() {
    let place = Place::new();
    place.put("one/a", "harmless");
    place.link("../outside/secret", "one/evil");
    let swapper = Swapper::new(place.path("one/a"), place.path("one/evil"));
    let (start, mut read, mut refused) = (Instant::now(), 0, 0);
    while start.elapsed() < RACE || (read == 0 || refused == 0) && start.elapsed() < LONGEST_RACE {
        match place.text("one/a").await {
            Ok(text) => {
                assert_eq!(text, "harmless");
                read += 1;
            }
            Err(FileError::Outside | FileError::Links) => refused += 1,
            Err(error) => panic!("{error}"),
        }
        let _ = place.write_at("one/a", "", ahp_types::commands::ResourceWriteMode::Append, 0).await;
    }
    let swaps = swapper.end();
    assert_eq!(place.get("outside/secret"), SECRET);
    assert!(read > 0 && refused > 0 && swaps > 0, "{read} {refused} {swaps}");
}

#[tokio::test]
async fn a_directory_that_becomes_a_link_out_and_back_never_leads_out() {
    let place = Place::new();
    std::fs::create_dir(place.path("one/dir")).unwrap();
    place.put("one/dir/secret", "harmless");
    place.link("../outside", "one/evil");
    let swapper = Swapper::new(place.path("one/dir"), place.path("one/evil"));
    let (start, mut read, mut refused) = (Instant::now(), 0, 0);
    while start.elapsed() < RACE || (read == 0 || refused == 0) && start.elapsed() < LONGEST_RACE {
        match place.text("one/dir/secret").await {
            Ok(text) => {
                assert_eq!(text, "harmless");
                read += 1;
            }
            Err(FileError::Outside | FileError::Links) => refused += 1,
            Err(error) => panic!("{error}"),
        }
        let _ = place.write("one/dir/secret", "harmless").await;
        let _ = place.write("one/dir/new", "x").await;
        let _ = place.mkdir("one/dir/made/deep").await;
        let _ = place.delete("one/dir/new", true).await;
        let _ = place.copy("one/dir/secret", "one/dir/copied", false).await;
        let _ = place.delete("one/dir/made", true).await;
    }
    let swaps = swapper.end();
    assert_eq!(place.names("outside"), ["secret"]);
    assert_eq!(place.get("outside/secret"), SECRET);
    assert!(read > 0 && refused > 0 && swaps > 0, "{read} {refused} {swaps}");
}

#[tokio::test]
async fn a_tree_whose_directories_become_links_while_it_is_removed_takes_nothing_else_along() {
    let place = Place::new();
    // Something that a removal which followed the link would find.
    std::fs::create_dir_all(place.path("outside/deep")).unwrap();
    place.put("outside/deep/kept", "kept");
    let (start, mut swaps) = (Instant::now(), 0);
    while start.elapsed() < RACE {
        std::fs::create_dir_all(place.path("one/tree/dir/deep")).unwrap();
        place.link(place.path("outside"), "one/evil");
        let swapper = Swapper::new(place.path("one/tree/dir"), place.path("one/evil"));
        let _ = place.delete("one/tree", true).await;
        swaps += swapper.end();
        assert_eq!(place.get("outside/deep/kept"), "kept");
        assert_eq!(place.get("outside/secret"), SECRET);
        // Whatever is left, and whichever of the two it is.
        for path in ["one/tree", "one/evil"] {
            place
                .delete(path, true)
                .await
                .or_else(|error| if error == FileError::NotFound { Ok(()) } else { Err(error) })
                .unwrap();
        }
    }
    assert!(swaps > 0);
}
