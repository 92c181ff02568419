//! Reading.

use std::time::Duration;

use ahp_types::commands::ContentEncoding;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use breakbulk_host::test_support::files::FileError;

use crate::common::{Place, make_fifo, read_params};

#[tokio::test]
async fn text_comes_as_text_and_other_bytes_as_base64() {
    let place = Place::new();
    place.put("one/a.md", "# é");
    place.put("one/b", [0xff, 0xfe]);
    place.put("one/c", "text\0with NUL");
    let text = place.read("one/a.md").await.unwrap();
    assert_eq!((text.data.as_str(), text.encoding), ("# é", ContentEncoding::Utf8));
    assert_eq!(text.content_type.as_deref(), Some("text/markdown"));
    let bytes = place.read("one/b").await.unwrap();
    assert_eq!((bytes.data.as_str(), bytes.encoding), ("//4=", ContentEncoding::Base64));
    assert_eq!(bytes.content_type.as_deref(), Some("application/octet-stream"));
    assert_eq!(place.read("one/c").await.unwrap().encoding, ContentEncoding::Base64);
}

#[tokio::test]
async fn the_encoding_asked_for_is_used_and_what_is_not_text_falls_back_to_base64() {
    let place = Place::new();
    place.put("one/a", "abc");
    place.put("one/b", [0xff]);
    place.put("one/c", "a\0");
    let read = async |path, encoding| {
        let read = place.files.read(read_params(place.uri(path), Some(encoding))).await.unwrap();
        (read.data, read.encoding)
    };
    assert_eq!(read("one/a", ContentEncoding::Base64).await, ("YWJj".to_owned(), ContentEncoding::Base64));
    assert_eq!(read("one/a", ContentEncoding::Utf8).await, ("abc".to_owned(), ContentEncoding::Utf8));
    assert_eq!(read("one/b", ContentEncoding::Utf8).await, ("/w==".to_owned(), ContentEncoding::Base64));
    assert_eq!(read("one/c", ContentEncoding::Utf8).await, ("a\0".to_owned(), ContentEncoding::Utf8));
}

#[tokio::test]
async fn thirty_megabytes_come_whole_as_text_and_as_base64() {
    let place = Place::new();
    let text = "0123456789abcdé\n".repeat(30_000_000 / 17 + 1);
    place.put("one/text", &text);
    assert!(place.text("one/text").await.unwrap() == text);
    let bytes: Vec<u8> = (0..30_000_000u32).map(|n| n.wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect();
    place.put("one/bytes", &bytes);
    let read = place.read("one/bytes").await.unwrap();
    assert_eq!(read.encoding, ContentEncoding::Base64);
    assert!(STANDARD.decode(read.data).unwrap() == bytes);
}

#[tokio::test]
async fn a_file_over_the_limit_is_refused_with_both_sizes() {
    let place = Place::with(|config| config.max_read_bytes = 4);
    place.put("one/a", "1234");
    place.put("one/b", "12345");
    assert_eq!(place.text("one/a").await.unwrap(), "1234");
    let error = place.text("one/b").await.unwrap_err();
    assert_eq!(error, FileError::TooLarge { size: 5, limit: 4 });
    assert_eq!(error.data(), serde_json::json!({ "reason": "tooLarge", "size": 5, "limit": 4 }));
}

#[tokio::test]
async fn what_is_missing_is_not_found_also_below_a_file() {
    let place = Place::new();
    place.put("one/a", "");
    for path in ["one/b", "one/b/c", "one/a/c", "one/%2e%2e/outside/secret"] {
        assert_eq!(place.text(path).await, Err(FileError::NotFound), "{path}");
    }
    let long = format!("one/{}", "x".repeat(300));
    assert_eq!(place.text(&long).await, Err(FileError::NotFound));
}

#[tokio::test]
async fn a_directory_is_not_read() {
    let place = Place::new();
    assert_eq!(place.text("one").await, Err(FileError::IsDirectory));
}

#[tokio::test]
async fn pipes_and_devices_are_refused_at_once() {
    let place = Place::with(|config| config.roots.push("/dev".into()));
    make_fifo(&place.path("one/pipe"));
    place.link("pipe", "one/to-pipe");
    let all = async {
        for path in ["one/pipe", "one/to-pipe"] {
            assert_eq!(place.text(path).await, Err(FileError::Special));
            assert_eq!(place.write(path, "x").await, Err(FileError::Special));
            assert_eq!(
                place.write_at(path, "x", ahp_types::commands::ResourceWriteMode::Append, 0).await,
                Err(FileError::Special)
            );
            assert_eq!(place.copy(path, "one/copy", false).await, Err(FileError::Special));
            assert_eq!(place.resolve(path, true).await.unwrap_err(), FileError::Special);
        }
        let zero = place.files.read(read_params("file:///dev/zero".to_owned(), None)).await;
        assert_eq!(zero, Err(FileError::Special));
    };
    tokio::time::timeout(Duration::from_secs(20), all).await.expect("nothing blocks");
    assert!(!place.has("one/copy"));
}

#[tokio::test]
async fn codes_are_those_of_the_protocol() {
    use breakbulk_host::MethodError;
    let place = Place::new();
    place.put("one/a", "");
    let code = |error: FileError| MethodError::from(error).code;
    assert_eq!(code(place.text("one/b").await.unwrap_err()), -32008);
    assert_eq!(code(place.text("outside/secret").await.unwrap_err()), -32009);
    assert_eq!(code(place.copy("one/a", "two/../one/a", true).await.unwrap_err()), -32010);
    let other = place.files.read(read_params("ahp-session:/1".to_owned(), None)).await.unwrap_err();
    assert_eq!(code(other), -32008);
    let broken = place.files.read(read_params("file://host/a".to_owned(), None)).await.unwrap_err();
    assert_eq!(code(broken), -32602);
}
