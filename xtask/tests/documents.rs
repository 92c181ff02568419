//! Documents name only what exists: every link leads to a file and a heading, every path leads to a file, and the README's
//! test command is the one that CI runs. The map names every source file.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

/// What ends the name of a file that documents may mention.
const FILE_ENDINGS: [&str; 8] = [".rs", ".md", ".toml", ".json", ".txt", ".service", ".yml", "/"];
/// Documents that tell of the past, and may name what is gone.
const HISTORY: [&str; 1] = ["CHANGELOG.md"];
/// Directories of the repository that hold no documents of ours.
const SKIPPED: [&str; 3] = ["target", "node_modules", ".git"];

#[test]
fn every_link_in_a_document_leads_to_a_file_and_a_heading() {
    let root = root();
    let mut broken = Vec::new();
    let mut links = 0;
    for document in documents(&root) {
        let text = read(&root.join(&document));
        for target in link_targets(&text) {
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            links += 1;
            let (path, heading) = target.split_once('#').unwrap_or((&target, ""));
            let linked = if path.is_empty() { document.clone() } else { beside(&document, path) };
            if !root.join(&linked).exists() {
                broken.push(format!("{}: {target} does not exist", document.display()));
            } else if !heading.is_empty() && !headings(&read(&root.join(&linked))).contains(heading) {
                broken.push(format!("{}: {target} names no heading", document.display()));
            }
        }
    }
    assert!(broken.is_empty(), "broken links:\n{}", broken.join("\n"));
    assert!(links > 20, "only {links} links were found: is the check broken?");
}

#[test]
fn every_path_that_the_map_and_the_design_pages_name_exists() {
    let root = root();
    let mut missing = Vec::new();
    let mut paths = 0;
    for document in documents(&root).into_iter().filter(|document| names_source_files(document)) {
        let text = read(&root.join(&document));
        // A design page is about one crate; the map has a heading for each.
        let mut base = crate_of_design_page(&document);
        for line in lines_outside_code(&text) {
            if line.starts_with('#') {
                base = code_spans(line).map(PathBuf::from).find(|path| path.starts_with("crates")).or(base);
            }
            for path in code_spans(line).filter(|span| is_path(span)) {
                paths += 1;
                let is_there =
                    root.join(path).exists() || base.as_ref().is_some_and(|base| root.join(base).join(path).exists());
                if !is_there {
                    missing.push(format!("{}: {path}", document.display()));
                }
            }
        }
    }
    assert!(missing.is_empty(), "paths that do not exist (were files renamed?):\n{}", missing.join("\n"));
    assert!(paths > 100, "only {paths} paths were found: is the check broken?");
}

#[test]
fn every_source_file_has_a_row_in_the_map_or_is_in_a_directory_that_has_one() {
    let root = root();
    let (mut named, mut base) = (BTreeSet::new(), None);
    for line in read(&root.join("ARCHITECTURE.md")).lines() {
        if line.starts_with("## ") {
            base = code_spans(line).map(PathBuf::from).find(|path| path.starts_with("crates"));
        }
        if let (Some(base), Some(row)) = (&base, line.strip_prefix('|')) {
            let files = row.split('|').next().unwrap_or_default();
            named.extend(code_spans(files).filter(|span| is_path(span)).map(|path| base.join(path)));
        }
    }
    // The unit tests of a module belong to its row.
    let sources = rust_files(&root.join("crates")).into_iter().filter_map(|file| {
        let file = file.strip_prefix(&root).expect("in the workspace").to_owned();
        let has = |name: &str| file.components().any(|component| component.as_os_str() == name);
        (has("src") && !has("tests") && !has("tests.rs")).then_some(file)
    });
    // A crate's own directory is no row: it would cover everything. A path with a slash at its end is the same as without.
    let is_named =
        |file: &Path| file.ancestors().take_while(|path| !path.ends_with("src")).any(|path| named.contains(path));
    let (found, missing): (Vec<_>, Vec<_>) = sources.partition(|file| is_named(file));
    let list: Vec<_> = missing.iter().map(|file| file.display().to_string()).collect();
    assert!(missing.is_empty(), "ARCHITECTURE.md has no row for:\n{}", list.join("\n"));
    assert!(found.len() > 300, "only {} files were found: is the check broken?", found.len());
}

#[test]
fn ci_runs_the_test_command_of_the_readme() {
    let root = root();
    let script = read(&root.join(".ci/run"));
    let command = script.lines().last().unwrap_or_default();
    let readme = read(&root.join("README.md"));
    assert!(code_lines(&readme).any(|line| line == command), "README.md has no line {command:?} in a code block");
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").to_owned()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// All Markdown files of the repository, relative to its root.
fn documents(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut directories = vec![PathBuf::new()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(root.join(&directory)).expect("a directory") {
            let entry = entry.expect("an entry");
            let path = directory.join(entry.file_name());
            let name = entry.file_name().to_string_lossy().into_owned();
            if entry.file_type().expect("a type").is_dir() {
                if !SKIPPED.contains(&name.as_str()) {
                    directories.push(path);
                }
            } else if name.ends_with(".md") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// All Rust files below a directory, in their order.
fn rust_files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).expect("a directory") {
        let entry = entry.expect("an entry");
        if entry.file_type().expect("a type").is_dir() {
            found.extend(rust_files(&entry.path()));
        } else if entry.path().extension().is_some_and(|extension| extension == "rs") {
            found.push(entry.path());
        }
    }
    found.sort();
    found
}

/// Whether a document is about source files. What users read names files of their own.
fn names_source_files(document: &Path) -> bool {
    let is_history = HISTORY.iter().any(|name| document == Path::new(name));
    let is_at_root = document.components().count() == 1;
    (is_at_root && !is_history) || document.starts_with("docs/design")
}

/// The sources that a page such as `docs/design/net.md` is about.
fn crate_of_design_page(document: &Path) -> Option<PathBuf> {
    let name = document.strip_prefix("docs/design").ok()?.file_stem()?;
    Some(Path::new("crates").join(name).join("src"))
}

/// Where a link in `document` leads, relative to the root.
fn beside(document: &Path, link: &str) -> PathBuf {
    let mut path = document.parent().unwrap_or(Path::new("")).to_owned();
    for component in Path::new(link).components() {
        match component {
            Component::ParentDir => {
                path.pop();
            }
            other => path.push(other),
        }
    }
    path
}

/// The targets of `[text](target)`.
fn link_targets(text: &str) -> Vec<String> {
    let mut targets = Vec::new();
    for line in lines_outside_code(text) {
        for (at, _) in line.match_indices("](") {
            let rest = line.get(at + 2..).unwrap_or_default();
            if let Some((target, _)) = rest.split_once(')') {
                targets.push(target.to_owned());
            }
        }
    }
    targets
}

/// The anchors that GitHub gives to the headings of a document.
fn headings(text: &str) -> BTreeSet<String> {
    let mut seen = BTreeMap::<String, usize>::new();
    let mut anchors = BTreeSet::new();
    for line in lines_outside_code(text).filter(|line| line.starts_with('#')) {
        let title = line.trim_start_matches('#').trim().to_lowercase();
        let kept = title.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        let anchor = kept.collect::<String>().replace(' ', "-");
        let repeated = seen.entry(anchor.clone()).or_default();
        anchors.insert(if *repeated == 0 { anchor } else { format!("{anchor}-{repeated}") });
        *repeated += 1;
    }
    anchors
}

fn lines_outside_code(text: &str) -> impl Iterator<Item = &str> {
    fenced(text).filter_map(|(is_code, line)| (!is_code).then_some(line))
}

fn code_lines(text: &str) -> impl Iterator<Item = &str> {
    fenced(text).filter_map(|(is_code, line)| is_code.then_some(line))
}

/// Each line, and whether it is in a fenced code block. Fences count as code.
fn fenced(text: &str) -> impl Iterator<Item = (bool, &str)> {
    let mut is_open = false;
    text.lines().map(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_open ^= is_fence;
        (is_open || is_fence, line)
    })
}

/// The texts between backticks in a line.
fn code_spans(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// Whether a code span is the path of a file or a directory, and not a pattern, a command or an address.
fn is_path(span: &str) -> bool {
    let is_plain = span.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '_' | '-'));
    let is_file = FILE_ENDINGS.iter().any(|ending| span.ends_with(ending));
    is_plain && is_file && !span.starts_with('/') && !span.split('/').any(is_placeholder)
}

/// Whether part of a path stands for any name, such as `TARGET` or `NAME.rs`.
fn is_placeholder(part: &str) -> bool {
    let stem = part.split('.').next().unwrap_or_default();
    !stem.is_empty() && stem.chars().all(|c| c.is_ascii_uppercase()) && !part.ends_with(".md")
}

#[test]
fn paths_are_told_from_other_code() {
    for path in ["crates/net/src/link.rs", "driver.rs", "link/ws/", "Cargo.toml", "docs/serve.md", "README.md"] {
        assert!(is_path(path), "{path}");
    }
    for other in
        ["terminal/input", "/healthz", "fuzz/artifacts/TARGET/", "NAME.rs", "Machine", "exec:my-server", "…/a.rs"]
    {
        assert!(!is_path(other), "{other}");
    }
    assert_eq!(beside(Path::new("docs/design/net.md"), "../../SECURITY.md"), Path::new("SECURITY.md"));
    assert!(headings("## What `a` is, and why\n").contains("what-a-is-and-why"));
}
