//! Writing.

use std::os::unix::fs::{MetadataExt, PermissionsExt};

use ahp_types::commands::{ContentEncoding, ResourceWriteMode, ResourceWriteParams};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use breakbulk_host::test_support::files::FileError;

use crate::common::{Place, write_params};

#[tokio::test]
async fn a_file_is_made_and_overwritten() {
    let place = Place::new();
    place.write("one/a", "first, longer").await.unwrap();
    assert_eq!(place.get("one/a"), "first, longer");
    place.write("one/a", "second").await.unwrap();
    assert_eq!(place.get("one/a"), "second");
    assert_eq!(place.names("one"), ["a"]);
}

#[tokio::test]
async fn each_mode_puts_the_data_where_its_definition_says() {
    use ResourceWriteMode::{Append, Insert, Truncate};
    let cases = [
        (Truncate, 0, "XY"),
        (Truncate, 2, "01XY"),
        (Truncate, 5, "01234XY"),
        (Append, 0, "01234XY"),
        (Append, 2, "012XY34"),
        (Append, 5, "XY01234"),
        (Insert, 0, "XY01234"),
        (Insert, 2, "01XY234"),
        (Insert, 5, "01234XY"),
    ];
    let place = Place::new();
    for (mode, position, want) in cases {
        place.put("one/a", "01234");
        place.write_at("one/a", "XY", mode, position).await.unwrap();
        assert_eq!(place.get("one/a"), want, "{mode:?} {position}");
    }
    for mode in [Truncate, Append, Insert] {
        place.write_at(&format!("one/{mode:?}"), "new", mode, 0).await.unwrap();
        assert_eq!(place.get(&format!("one/{mode:?}")), "new");
    }
    assert_eq!(place.names("one"), ["Append", "Insert", "Truncate", "a"]);
}

#[tokio::test]
async fn a_position_outside_of_the_file_is_refused_and_changes_nothing() {
    use ResourceWriteMode::{Append, Insert, Truncate};
    let place = Place::new();
    place.put("one/a", "01234");
    for mode in [Truncate, Append, Insert] {
        for position in [-1, 6, i64::MIN, i64::MAX] {
            let result = place.write_at("one/a", "X", mode, position).await;
            assert_eq!(result, Err(FileError::Position { position, size: 5 }));
        }
        assert_eq!(place.write_at("one/b", "X", mode, 1).await, Err(FileError::Position { position: 1, size: 0 }));
    }
    assert_eq!(place.get("one/a"), "01234");
    assert_eq!(place.names("one"), ["a"]);
}

#[tokio::test]
async fn thirty_megabytes_are_written_as_text_and_as_base64() {
    let place = Place::new();
    let text = "0123456789abcdé\n".repeat(30_000_000 / 17 + 1);
    place.write("one/text", &text).await.unwrap();
    assert!(place.get("one/text") == text);
    let bytes: Vec<u8> = (0..30_000_000u32).map(|n| n.wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect();
    let data = STANDARD.encode(&bytes);
    let params =
        ResourceWriteParams { encoding: ContentEncoding::Base64, ..write_params(place.uri("one/bytes"), &data) };
    place.files.write(params).await.unwrap();
    assert!(std::fs::read(place.path("one/bytes")).unwrap() == bytes);
}

#[tokio::test]
async fn data_over_the_limit_or_not_base64_is_refused() {
    let place = Place::with(|config| config.max_write_bytes = 4);
    let base64 =
        |data| ResourceWriteParams { encoding: ContentEncoding::Base64, ..write_params(place.uri("one/a"), data) };
    assert_eq!(place.write("one/a", "12345").await, Err(FileError::TooLarge { size: 5, limit: 4 }));
    assert_eq!(place.files.write(base64("MTIzNDU=")).await, Err(FileError::TooLarge { size: 5, limit: 4 }));
    for bad in ["MTI", "M===", "MT I=", "MTJ=", "-_=="] {
        assert_eq!(place.files.write(base64(bad)).await, Err(FileError::BadBase64), "{bad}");
    }
    assert_eq!(place.names("one"), Vec::<String>::new());
    place.files.write(base64("MTIzNA==")).await.unwrap();
    assert_eq!(place.get("one/a"), "1234");
}

#[tokio::test]
async fn create_only_makes_new_files_and_nothing_else() {
    let place = Place::new();
    place.put("one/a", "old");
    place.link("nothing", "one/dangling");
    for mode in [None, Some(ResourceWriteMode::Append), Some(ResourceWriteMode::Insert)] {
        let create = async |path| {
            let params = ResourceWriteParams { create_only: Some(true), mode, ..write_params(place.uri(path), "new") };
            place.files.write(params).await.map(|_| ())
        };
        for path in ["one/a", "one/dangling", "one"] {
            assert_eq!(create(path).await, Err(FileError::AlreadyExists), "{path} {mode:?}");
        }
        create("one/b").await.unwrap();
        assert_eq!(place.get("one/b"), "new");
        std::fs::remove_file(place.path("one/b")).unwrap();
    }
    assert_eq!(place.get("one/a"), "old");
    assert!(!place.has("one/nothing"));
}

#[tokio::test]
async fn of_many_who_create_the_same_file_one_succeeds() {
    let place = Place::new();
    let tasks: Vec<_> = (0..16)
        .map(|n| {
            let uri = place.uri("one/a");
            let files = place.files.clone();
            let params = ResourceWriteParams { create_only: Some(true), ..write_params(uri, &n.to_string()) };
            tokio::spawn(async move { files.write(params).await })
        })
        .collect();
    let mut made = 0;
    for task in tasks {
        match task.await.unwrap() {
            Ok(_) => made += 1,
            Err(error) => assert_eq!(error, FileError::AlreadyExists),
        }
    }
    assert_eq!(made, 1);
}

#[tokio::test]
async fn if_match_lets_only_the_version_through_that_was_seen() {
    let place = Place::new();
    let write = async |path, tag: Option<String>| {
        let params = ResourceWriteParams { if_match: tag, ..write_params(place.uri(path), "new") };
        place.files.write(params).await.map(|_| ())
    };
    place.put("one/a", "old");
    let tag = place.resolve("one/a", true).await.unwrap().etag;
    write("one/a", tag.clone()).await.unwrap();
    assert_eq!(write("one/a", tag.clone()).await, Err(FileError::Conflict), "it was changed by the first write");
    assert_eq!(write("one/b", tag).await, Err(FileError::Conflict), "what is missing has no version");
    assert_eq!(write("one/a", Some("*".to_owned())).await, Err(FileError::Conflict));
    let tag = place.resolve("one/a", true).await.unwrap().etag;
    place.put("one/a", "wen");
    assert_eq!(write("one/a", tag).await, Err(FileError::Conflict));
    assert_eq!(place.get("one/a"), "wen");
    assert!(!place.has("one/b"));
}

#[tokio::test]
async fn of_many_who_write_the_version_they_saw_one_succeeds() {
    let place = Place::new();
    place.put("one/a", "old");
    let tag = place.resolve("one/a", true).await.unwrap().etag;
    let tasks: Vec<_> = (0..16)
        .map(|n| {
            let files = place.files.clone();
            let params =
                ResourceWriteParams { if_match: tag.clone(), ..write_params(place.uri("one/a"), &n.to_string()) };
            tokio::spawn(async move { files.write(params).await.is_ok() })
        })
        .collect();
    let mut made = 0;
    for task in tasks {
        made += usize::from(task.await.unwrap());
    }
    assert_eq!(made, 1);
}

#[tokio::test]
async fn nothing_is_lost_among_many_who_append() {
    let place = Place::new();
    let outside = std::fs::OpenOptions::new().append(true).create(true).open(place.path("one/log")).unwrap();
    let other = std::thread::spawn(move || {
        use std::io::Write;
        for _ in 0..100 {
            (&outside).write_all(b"by another program\n").unwrap();
        }
    });
    let tasks: Vec<_> = (0..64)
        .map(|n| {
            let files = place.files.clone();
            let mode = Some(ResourceWriteMode::Append);
            let params = ResourceWriteParams { mode, ..write_params(place.uri("one/log"), &format!("line {n}\n")) };
            tokio::spawn(async move { files.write(params).await })
        })
        .collect();
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    other.join().unwrap();
    let text = place.get("one/log");
    assert_eq!(text.lines().count(), 164);
    assert!((0..64).all(|n| text.lines().any(|line| line == format!("line {n}"))));
}

#[tokio::test]
async fn permissions_and_owner_stay_and_a_new_file_is_not_secret() {
    let place = Place::new();
    place.put("one/a", "old");
    std::fs::set_permissions(place.path("one/a"), std::fs::Permissions::from_mode(0o751)).unwrap();
    let is_superuser = rustix::process::geteuid().is_root();
    if is_superuser {
        std::os::unix::fs::chown(place.path("one/a"), Some(1234), Some(2345)).unwrap();
    }
    let before = place.path("one/a").metadata().unwrap();
    place.write("one/a", "new").await.unwrap();
    let after = place.path("one/a").metadata().unwrap();
    assert_eq!(after.mode(), before.mode());
    assert_eq!((after.uid(), after.gid()), (before.uid(), before.gid()));
    assert_ne!(after.ino(), before.ino(), "it is another file with the same name");
    place.write("one/b", "").await.unwrap();
    std::fs::write(place.path("one/c"), "").unwrap();
    assert_eq!(place.path("one/b").metadata().unwrap().mode(), place.path("one/c").metadata().unwrap().mode());
}

#[tokio::test]
async fn a_reader_sees_the_old_content_or_the_new_and_nothing_between() {
    let place = Place::new();
    let (old, new) = ("a".repeat(1 << 20), "b".repeat(3 << 20));
    place.put("one/a", &old);
    let path = place.path("one/a");
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let seen_by = std::sync::Arc::clone(&stop);
    let (one, other) = (old.clone(), new.clone());
    let reader = std::thread::spawn(move || {
        let mut reads = 0;
        while !seen_by.load(std::sync::atomic::Ordering::Relaxed) {
            let text = std::fs::read_to_string(&path).unwrap();
            assert!(text == one || text == other, "torn: {} bytes", text.len());
            reads += 1;
        }
        reads
    });
    for n in 0..20 {
        place.write("one/a", if n % 2 == 0 { &new } else { &old }).await.unwrap();
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    assert!(reader.join().unwrap() > 0);
}

#[tokio::test]
async fn a_write_through_a_link_changes_what_it_leads_to_and_keeps_the_link() {
    let place = Place::new();
    place.put("two/a", "old");
    place.link("../two/a", "one/link");
    place.link("new", "one/dangling");
    place.write("one/link", "new").await.unwrap();
    place.write("one/dangling", "made").await.unwrap();
    assert_eq!((place.get("two/a"), place.get("one/new")), ("new".to_owned(), "made".to_owned()));
    assert!(place.path("one/link").is_symlink() && place.path("one/dangling").is_symlink());
}

#[tokio::test]
async fn another_name_of_a_replaced_file_keeps_the_old_content() {
    let place = Place::new();
    std::fs::hard_link(place.path("outside/secret"), place.path("one/a")).unwrap();
    place.write("one/a", "new").await.unwrap();
    assert_eq!(place.get("outside/secret"), crate::common::SECRET);
}

#[tokio::test]
async fn no_file_is_made_without_its_directory_or_over_one() {
    let place = Place::new();
    place.put("one/file", "");
    assert_eq!(place.write("one/x/a", "").await, Err(FileError::NotFound));
    assert_eq!(place.write("one/file/a", "").await, Err(FileError::NotFound));
    assert_eq!(place.write("one", "").await, Err(FileError::IsDirectory));
    assert_eq!(place.write("outside/a", "").await, Err(FileError::Outside));
    assert_eq!(place.names("one"), ["file"]);
}
