//! Makes the table of the page's files, with a hash and a compressed copy of each. `crates/cli/src/page.rs` serves them.

use std::collections::hash_map::DefaultHasher;
use std::fmt::Write as _;
use std::hash::Hasher;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::{env, fs};

use flate2::Compression;
use flate2::write::GzEncoder;

/// What the page consists of, in `web/`.
const PARTS: [&str; 4] = ["index.html", "icon.svg", "src", "vendor"];

/// Our own package of segments for AHP, as it is published, and its place among the libraries of the page.
const SEGMENTS: (&str, &str) = ("../packages/segments/dist/segments.js", "vendor/lazy/segments.js");

/// Where the page names the directory of its files.
const PLACEHOLDER: &str = "{{files}}";

/// Where the page names the modules that a browser fetches before it has read the first one.
const PRELOADS: &str = "<!-- {{preloads}} -->";

fn main() -> io::Result<()> {
    let web = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../web");
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or_else(|| io::Error::other("cargo sets OUT_DIR"))?);
    let mut files = Vec::new();
    for (part, name) in PARTS.map(|part| (part, part)).into_iter().chain([SEGMENTS]) {
        println!("cargo::rerun-if-changed={}", web.join(part).display());
        collect(&web.join(part), name, &mut files)?;
    }
    files.sort();
    let mut all = DefaultHasher::new();
    for (path, content) in &files {
        all.write(path.as_bytes());
        all.write(content);
    }
    let directory = format!("/page/{:016x}/", all.finish());
    let mut table = format!("const DIRECTORY: &str = {directory:?};\nconst FILES: &[PageFile] = &[\n");
    let preloads = preloads(&files, &directory);
    for (number, (path, mut content)) in files.into_iter().enumerate() {
        if path == "index.html" {
            let text = String::from_utf8(content).map_err(io::Error::other)?;
            content = text.replace(PRELOADS, &preloads).replace(PLACEHOLDER, &directory).into_bytes();
        }
        let mut hasher = DefaultHasher::new();
        hasher.write(&content);
        let (plain, gzip) = (out.join(format!("{number}.plain")), out.join(format!("{number}.gz")));
        fs::write(&gzip, compressed(&content)?)?;
        fs::write(&plain, content)?;
        writeln!(
            table,
            "    PageFile {{ path: {path:?}, content_type: {:?}, etag: \"\\\"{:016x}\\\"\", plain: include_bytes!({plain:?}), \
             gzip: include_bytes!({gzip:?}) }},",
            content_type(&path)?,
            hasher.finish()
        )
        .map_err(io::Error::other)?;
    }
    table += "];\n";
    fs::write(out.join("page.rs"), table)
}

fn collect(place: &Path, name: &str, files: &mut Vec<(String, Vec<u8>)>) -> io::Result<()> {
    if !place.is_dir() {
        files.push((name.to_owned(), fs::read(place)?));
        return Ok(());
    }
    for entry in fs::read_dir(place)? {
        let entry = entry?;
        let own = entry.file_name().into_string().map_err(|_| io::Error::other("a name that is not UTF-8"))?;
        // Licenses and types stay beside what they are for, and are not served.
        if entry.file_type()?.is_dir() || [".js", ".css", ".svg"].iter().any(|end| own.ends_with(end)) {
            collect(&entry.path(), &format!("{name}/{own}"), files)?;
        }
    }
    Ok(())
}

/// Links to the modules that are always needed: all but those below `lazy/`, and those libraries that only they need.
fn preloads(files: &[(String, Vec<u8>)], directory: &str) -> String {
    let is_needed = |path: &&String| path.ends_with(".js") && !path.contains("/lazy/");
    let links = files.iter().map(|(path, _)| path).filter(is_needed);
    links
        .map(|path| format!("<link rel=\"modulepreload\" href=\"{directory}{path}\">"))
        .collect::<Vec<_>>()
        .join("\n    ")
}

fn compressed(content: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(content)?;
    encoder.finish()
}

fn content_type(path: &str) -> io::Result<&'static str> {
    match path.rsplit_once('.').map(|(_, end)| end) {
        Some("html") => Ok("text/html; charset=utf-8"),
        Some("js") => Ok("text/javascript; charset=utf-8"),
        Some("css") => Ok("text/css; charset=utf-8"),
        Some("svg") => Ok("image/svg+xml"),
        _ => Err(io::Error::other(format!("{path}: a file of the page is of a kind that has no content type"))),
    }
}
