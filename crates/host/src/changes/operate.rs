//! What a client may do with changes: stage, unstage, discard.

use ahp_types::commands::ChangesetOperationTarget;
use ahp_types::common::Uri;
use ahp_types::state::{ChangesetOperation, ChangesetOperationScope, ChangesetOperationStatus};

use super::git::{Git, os};
use super::status::{Change, Kind, Staged};
use super::tree::{Found, Tree};
use super::{ChangesConfig, ChangesError};

/// An operation on the whole changeset or on one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    verb: Verb,
    resource: Option<Uri>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verb {
    Stage,
    Unstage,
    Discard,
}

impl Target {
    pub(super) const fn operation(&self) -> &'static str {
        self.verb.id()
    }
}

impl Verb {
    const ALL: [Self; 3] = [Self::Stage, Self::Unstage, Self::Discard];

    const fn id(self) -> &'static str {
        match self {
            Self::Stage => "stage",
            Self::Unstage => "unstage",
            Self::Discard => "discard",
        }
    }

    fn operation(self) -> ChangesetOperation {
        use ChangesetOperationScope::{Changeset, Resource};
        let (label, icon, scopes, confirmation) = match self {
            Self::Stage => ("Stage", "add", vec![Changeset, Resource], None),
            Self::Unstage => ("Unstage", "remove", vec![Changeset, Resource], None),
            // What was never committed is gone for good: one file at a time, and only after a question.
            Self::Discard => ("Discard", "discard", vec![Resource], Some("Discard all changes in this file?".into())),
        };
        ChangesetOperation {
            id: self.id().into(),
            label: label.into(),
            description: None,
            scopes,
            confirmation,
            icon: Some(icon.into()),
            group: None,
            status: ChangesetOperationStatus::Idle,
            error: None,
        }
    }
}

/// The operations that every changeset has.
pub(super) fn operations() -> Vec<ChangesetOperation> {
    Verb::ALL.into_iter().map(Verb::operation).collect()
}

/// What a request asks for, if there is such a thing.
pub(super) fn target(id: &str, target: Option<ChangesetOperationTarget>) -> Result<Target, ChangesError> {
    let verb = Verb::ALL.into_iter().find(|verb| verb.id() == id);
    let verb = verb.ok_or_else(|| ChangesError::NoOperation(id.to_owned()))?;
    let wrong = |target: &str| ChangesError::WrongTarget { operation: id.to_owned(), target: target.to_owned() };
    let resource = match target {
        None if verb == Verb::Discard => return Err(wrong("a whole changeset")),
        None => None,
        Some(ChangesetOperationTarget::Resource { resource, .. }) => Some(resource),
        Some(ChangesetOperationTarget::Range { .. }) => return Err(wrong("a range")),
        Some(ChangesetOperationTarget::Unknown(_)) => return Err(wrong("a target of unknown kind")),
    };
    Ok(Target { verb, resource })
}

/// The changes that it acts on. A file may be named by its URI before or after.
pub(super) fn choose(target: &Target, files: &[Found]) -> Result<Vec<Change>, ChangesError> {
    let Some(uri) = &target.resource else { return Ok(files.iter().map(|found| found.change.clone()).collect()) };
    let named = |found: &&Found| {
        let edit = &found.file.edit;
        [&edit.after, &edit.before].into_iter().flatten().any(|side| side.uri == *uri)
    };
    let found = files.iter().find(named).ok_or_else(|| ChangesError::NotFound(format!("change of {uri}")))?;
    Ok(vec![found.change.clone()])
}

pub(super) async fn run(
    target: &Target,
    tree: &Tree,
    config: &ChangesConfig,
    changes: &[Change],
) -> Result<(), ChangesError> {
    let git = tree.git(config).await?;
    let work = Work { tree, git };
    match target.verb {
        Verb::Stage => work.stage(changes).await,
        Verb::Unstage => work.unstage(changes).await,
        Verb::Discard => work.discard(changes).await,
    }
}

struct Work<'a> {
    tree: &'a Tree,
    git: Git,
}

impl Work<'_> {
    async fn stage(&self, changes: &[Change]) -> Result<(), ChangesError> {
        let changes = changes.iter().filter(|change| change.staged != Staged::All);
        // Of a renamed file the old path is in the index no more.
        let before = |change: &'_ Change| change.before.as_ref().map(|(path, _)| path.clone());
        let paths = self.paths(changes.filter_map(|change| change.after.clone().or_else(|| before(change))));
        self.unfiltered(&paths).await?;
        self.on(&["add", "-A"], paths).await
    }

    async fn unstage(&self, changes: &[Change]) -> Result<(), ChangesError> {
        let changes = changes.iter().filter(|change| change.staged != Staged::None);
        let paths = self.paths(changes.flat_map(Change::paths).map(<[u8]>::to_vec));
        self.on(&["reset", "-q"], paths).await
    }

    async fn discard(&self, changes: &[Change]) -> Result<(), ChangesError> {
        for change in changes {
            let paths = self.paths(change.paths().into_iter().map(<[u8]>::to_vec));
            self.unfiltered(&paths).await?;
            if change.kind == Kind::Untracked {
                let clean = ["clean", "-f", "-q", "--"].into_iter().map(Into::into);
                self.git.run(clean.chain(paths.into_iter().map(os))).await?;
            } else {
                self.on(&["restore", "--source=HEAD", "--staged", "--worktree"], paths).await?;
            }
        }
        Ok(())
    }

    /// Whole paths, so that it does not matter where git runs.
    fn paths(&self, paths: impl IntoIterator<Item = Vec<u8>>) -> Vec<Vec<u8>> {
        let whole = |path: Vec<u8>| self.tree.path(&path).into_os_string().into_encoded_bytes();
        paths.into_iter().map(whole).collect()
    }

    async fn on(&self, command: &[&str], paths: Vec<Vec<u8>>) -> Result<(), ChangesError> {
        // Without a path git would take all of them.
        if paths.is_empty() {
            return Ok(());
        }
        let arguments = command.iter().copied().chain(["--pathspec-from-file=-", "--pathspec-file-nul"]);
        self.git.run_with(arguments, paths.join(&0), MAX_ANSWER).await.map(drop)
    }

    /// Since no filter runs, a file that needs one would be stored, or restored, as something else.
    async fn unfiltered(&self, paths: &[Vec<u8>]) -> Result<(), ChangesError> {
        let most = paths.iter().map(|path| path.len() + MAX_ATTRIBUTE).sum();
        let told = self.git.run_with(["check-attr", "-z", "--stdin", "filter"], paths.join(&0), most).await?;
        let fields: Vec<_> = told.split(|&byte| byte == 0).collect();
        let filtered = fields.chunks_exact(3).find(|fields| fields[2] != b"unspecified" && fields[2] != b"unset");
        match filtered {
            Some(fields) => Err(ChangesError::Filtered(String::from_utf8_lossy(fields[0]).into_owned())),
            None => Ok(()),
        }
    }
}

/// These commands say nothing that matters.
const MAX_ANSWER: usize = 1 << 20;
/// The longest that an answer on one attribute is beside its path.
const MAX_ATTRIBUTE: usize = 1024;
