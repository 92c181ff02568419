//! MIME types of files, from their content and name.

use std::path::Path;

/// The MIME type: from the beginning of the content, else from the name, else from whether it is text.
pub(super) fn mime_type(path: &Path, bytes: &[u8], is_text: bool) -> &'static str {
    mime_by_start(bytes).or_else(|| mime_by_name(path)).unwrap_or(if is_text {
        "text/plain"
    } else {
        "application/octet-stream"
    })
}

/// The MIME type from the file name extension.
pub(super) fn mime_by_name(path: &Path) -> Option<&'static str> {
    let end = path.extension()?.to_str()?.to_ascii_lowercase();
    Some(match end.as_str() {
        "txt" | "log" | "rs" | "py" | "go" | "c" | "h" | "cc" | "cpp" | "hpp" | "java" | "rb" | "sh" | "toml"
        | "lock" | "ini" | "cfg" | "conf" => "text/plain",
        "md" | "markdown" => "text/markdown",
        "html" | "htm" => "text/html",
        "css" => "text/css",
        "csv" => "text/csv",
        "js" | "mjs" | "cjs" => "text/javascript",
        "ts" | "mts" | "cts" | "tsx" | "jsx" => "text/plain",
        "json" | "map" => "application/json",
        "yaml" | "yml" => "application/yaml",
        "xml" => "application/xml",
        "svg" => "image/svg+xml",
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "gif" => "image/gif",
        "webp" => "image/webp",
        "ico" => "image/x-icon",
        "pdf" => "application/pdf",
        "zip" => "application/zip",
        "gz" | "tgz" => "application/gzip",
        "wasm" => "application/wasm",
        "mp3" => "audio/mpeg",
        "wav" => "audio/wav",
        "mp4" => "video/mp4",
        "webm" => "video/webm",
        "woff2" => "font/woff2",
        _ => return None,
    })
}

fn mime_by_start(bytes: &[u8]) -> Option<&'static str> {
    const STARTS: [(&[u8], &str); 9] = [
        (b"\x89PNG\r\n\x1a\n", "image/png"),
        (b"\xff\xd8\xff", "image/jpeg"),
        (b"GIF87a", "image/gif"),
        (b"GIF89a", "image/gif"),
        (b"%PDF-", "application/pdf"),
        (b"PK\x03\x04", "application/zip"),
        (b"\x1f\x8b", "application/gzip"),
        (b"\0asm", "application/wasm"),
        (b"wOF2", "font/woff2"),
    ];
    if bytes.starts_with(b"RIFF") && bytes.get(8..12) == Some(b"WEBP") {
        return Some("image/webp");
    }
    STARTS.iter().find(|(start, _)| bytes.starts_with(start)).map(|(_, kind)| *kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_speaks_before_the_name_and_the_name_before_text() {
        assert_eq!(mime_type("a.txt".as_ref(), b"\x89PNG\r\n\x1a\n", false), "image/png");
        assert_eq!(mime_type("a.JSON".as_ref(), b"{}", true), "application/json");
        assert_eq!(mime_type("a".as_ref(), b"hello", true), "text/plain");
        assert_eq!(mime_type("a".as_ref(), b"\xff\xfe", false), "application/octet-stream");
        assert_eq!(mime_type("a".as_ref(), b"RIFF\0\0\0\0WEBP", false), "image/webp");
    }
}
