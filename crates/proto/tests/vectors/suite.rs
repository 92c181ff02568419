//! The vectors as loaded: every file of the folder, every case of every file.

mod build;
mod case;
mod compare;
mod drive;
mod each;
mod expect;
mod record;
mod scan;
mod step;
mod text;
mod wire;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::value::RawValue;

pub(crate) use self::case::{Case, Outcome};
pub(crate) use self::drive::Watch;

/// All cases, in the order of the files' names.
pub(crate) struct Suite(Vec<Case>);

impl Suite {
    /// Loads the folder. Anything that cannot be read whole, or holds nothing, is an error: a case that does not run
    /// proves nothing.
    pub(crate) fn load() -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../vectors");
        let mut files: Vec<PathBuf> = std::fs::read_dir(&folder)
            .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
            .map(|entry| entry.expect("the folder can be listed").path())
            .filter(|path| path.extension().is_none_or(|extension| extension != "md"))
            .collect();
        files.sort();
        assert!(!files.is_empty(), "{} has no vectors", folder.display());
        Self(files.iter().flat_map(|file| load(file)).collect())
    }

    pub(crate) fn cases(&self) -> &[Case] {
        &self.0
    }
}

/// One file: what all its cases share, and the cases.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    /// One line on what the file is about.
    about: String,
    dialect: case::Dialect,
    /// The setup of each case that does not say otherwise.
    #[serde(default)]
    setup: serde_json::Map<String, serde_json::Value>,
    cases: Vec<Box<RawValue>>,
}

fn load(path: &Path) -> Vec<Case> {
    let subject = path.file_stem().and_then(|stem| stem.to_str()).expect("a file has a name");
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{subject}: {error}"));
    read(subject, &text).unwrap_or_else(|error| panic!("{subject}: {error}"))
}

/// Reads the text of one file.
pub(crate) fn read(subject: &str, text: &str) -> Result<Vec<Case>, String> {
    let file: File = serde_json::from_str(text).map_err(|error| error.to_string())?;
    if file.about.is_empty() || file.cases.is_empty() {
        return Err("a file needs a line about it and at least one case".into());
    }
    let mut cases = Vec::new();
    let mut names = BTreeSet::new();
    for raw in &file.cases {
        for (label, text) in each::expand(raw.get())? {
            let case = Case::read(subject, file.dialect, &file.setup, &label, &text)
                .map_err(|error| format!("{error}\nin {text}"))?;
            if !names.insert(case.title()) {
                return Err(format!("two cases are called {:?}", case.title()));
            }
            cases.push(case);
        }
    }
    Ok(cases)
}
