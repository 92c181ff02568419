//! Changesets of real repositories.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use ahp::reducers::apply_action_to_changeset;
use ahp_types::actions::StateAction;
use ahp_types::commands::{ChangesetOperationTarget, InvokeChangesetOperationParams};
use ahp_types::errors::{ahp_error_codes, json_rpc_error_codes};
use ahp_types::state::{ChangesetFile, ChangesetState, ChangesetStatus, TextPosition, TextRange};
use breakbulk_host::test_support::changes::{Changes, ChangesConfig, ChangesError};
use breakbulk_host::test_support::files::uri_of;
use tempfile::TempDir;

use crate::sink::Sink;

/// A repository with a changeset.
pub(crate) struct Bench {
    pub(crate) dir: TempDir,
    sink: Arc<Sink>,
    pub(crate) changes: Changes,
    pub(crate) channel: String,
    initial: ChangesetState,
}

/// A repository with one commit of these files.
pub(crate) fn repository(files: &[(&str, &[u8])]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    git(dir.path(), &["init", "-q"]);
    for (name, contents) in files {
        write(&dir.path().join(name), contents);
    }
    if !files.is_empty() {
        git(dir.path(), &["add", "-A"]);
        git(dir.path(), &["commit", "-q", "-m", "first"]);
    }
    dir
}

pub(crate) fn git(dir: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new("git");
    command.current_dir(dir).args(["-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false"]);
    command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
    let done = command.args(arguments).output().unwrap();
    assert!(done.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap()
}

pub(crate) fn write(path: &Path, contents: impl AsRef<[u8]>) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, contents).unwrap();
}

pub(crate) fn script(path: &Path, text: &str) {
    write(path, format!("#!/bin/sh\n{text}\n"));
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

impl Bench {
    pub(crate) async fn of(dir: TempDir) -> Self {
        Self::with(dir, ChangesConfig::default()).await
    }

    pub(crate) async fn with(dir: TempDir, config: ChangesConfig) -> Self {
        let sink = Sink::new();
        let changes = Changes::new(sink.clone(), config);
        let opened = changes.open("ahp-session:/1", 0, dir.path()).await.unwrap().unwrap();
        assert_eq!(opened.channel, opened.entry.uri_template);
        Self { dir, sink, changes, channel: opened.channel, initial: opened.state }
    }

    pub(crate) async fn refresh(&self) {
        self.changes.refresh(&self.channel).await.unwrap();
    }

    /// What a client makes of it.
    pub(crate) fn state(&self) -> ChangesetState {
        let mut state = self.initial.clone();
        for action in self.sink.on(&self.channel) {
            apply_action_to_changeset(&mut state, &action);
        }
        state
    }

    /// The file of this name, after or before.
    pub(crate) fn file(&self, name: &str) -> Option<ChangesetFile> {
        let uri = uri_of(&self.path(name));
        self.state().files.into_iter().find(|file| file.id == uri)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().canonicalize().unwrap().join(name)
    }

    pub(crate) async fn invoke(&self, operation: &str, name: Option<&str>) -> Result<(), ChangesError> {
        let resource = |name| ChangesetOperationTarget::Resource { resource: uri_of(&self.path(name)), side: None };
        self.invoke_on(operation, name.map(resource)).await
    }

    async fn invoke_on(&self, operation: &str, target: Option<ChangesetOperationTarget>) -> Result<(), ChangesError> {
        let (channel, operation_id) = (self.channel.clone(), operation.to_owned());
        let params = InvokeChangesetOperationParams { channel, meta: None, operation_id, target };
        self.changes.invoke(params).await.map(drop)
    }
}

pub(crate) fn meta(file: &ChangesetFile, key: &str) -> String {
    file.meta.as_ref().unwrap()[key].as_str().unwrap().to_owned()
}

/// Status, lines added and removed, before and after.
pub(crate) fn facts(file: Option<ChangesetFile>) -> (String, Option<(i64, i64)>, bool, bool) {
    let file = file.unwrap();
    let lines = file.edit.diff.as_ref().map(|diff| (diff.added.unwrap(), diff.removed.unwrap()));
    (meta(&file, "status"), lines, file.edit.before.is_some(), file.edit.after.is_some())
}

#[tokio::test]
async fn a_directory_without_a_repository_has_no_changeset() {
    let dir = tempfile::tempdir().unwrap();
    let changes = Changes::new(Sink::new(), ChangesConfig::default());
    assert_eq!(changes.open("ahp-session:/1", 0, dir.path()).await, Ok(None));
    assert_eq!(changes.open("ahp-session:/1", 0, &dir.path().join("not there")).await, Ok(None));
    assert_eq!(
        changes.refresh("ahp-session:/1/changes/uncommitted").await.unwrap_err().code(),
        ahp_error_codes::NOT_FOUND
    );
}

#[tokio::test]
async fn every_kind_of_change_is_listed_with_its_lines() {
    let dir = repository(&[
        ("edited", b"1\n2\n3\n"),
        ("gone", b"1\n"),
        ("old name", b"1\n2\n3\n4\n5\n"),
        ("image", b"\0one"),
        ("same", b"1\n"),
    ]);
    let bench = Bench::of(dir).await;
    assert_eq!(bench.state().status, ChangesetStatus::Computing);
    write(&bench.path("edited"), "1\nzwei\n3\n4\n");
    std::fs::remove_file(bench.path("gone")).unwrap();
    git(bench.dir.path(), &["mv", "old name", "new name"]);
    write(&bench.path("image"), b"\0two");
    write(&bench.path("staged"), "1\n2\n");
    git(bench.dir.path(), &["add", "staged"]);
    write(&bench.path("dir/odd\nname €"), "1\n2");
    write(&bench.path("new image"), b"\0");
    write(&bench.path("empty"), "");
    std::os::unix::fs::symlink("/etc/passwd", bench.path("link")).unwrap();
    let summary = bench.changes.refresh(&bench.channel).await.unwrap();
    let said = |status: &str, lines, before, after| (status.to_owned(), lines, before, after);
    assert_eq!(facts(bench.file("edited")), said("modified", Some((2, 1)), true, true));
    assert_eq!(facts(bench.file("gone")), said("deleted", Some((0, 1)), true, false));
    assert_eq!(facts(bench.file("new name")), said("renamed", Some((0, 0)), true, true));
    assert_eq!(facts(bench.file("image")), said("modified", None, true, true));
    assert_eq!(facts(bench.file("staged")), said("added", Some((2, 0)), false, true));
    assert_eq!(facts(bench.file("dir/odd\nname €")), said("untracked", Some((2, 0)), false, true));
    assert_eq!(facts(bench.file("new image")), said("untracked", None, false, true));
    assert_eq!(facts(bench.file("empty")), said("untracked", Some((0, 0)), false, true));
    assert_eq!(facts(bench.file("link")), said("untracked", None, false, true));
    assert_eq!((bench.file("same"), bench.file("old name")), (None, None));
    assert_eq!(meta(&bench.file("staged").unwrap(), "staged"), "all");
    let renamed = bench.file("new name").unwrap().edit;
    assert_eq!(renamed.before.unwrap().uri, uri_of(&bench.path("old name")));
    assert_eq!(renamed.after.unwrap().content.uri, uri_of(&bench.path("new name")));
    assert_eq!((summary.files, summary.additions, summary.deletions), (Some(9), Some(6), Some(2)));
    let state = bench.state();
    assert_eq!((state.status, state.files.len()), (ChangesetStatus::Ready, 9));
}

#[tokio::test]
async fn contents_before_a_change_are_read_by_reference_and_no_others() {
    let bench = Bench::of(repository(&[("a", b"before\n"), ("secret", b"secret\n")])).await;
    write(&bench.path("a"), "after\n");
    bench.refresh().await;
    let before = bench.file("a").unwrap().edit.before.unwrap().content;
    assert_eq!(before.size_hint, Some(7));
    assert!(bench.changes.knows(&before.uri) && !bench.changes.knows(&uri_of(&bench.path("a"))));
    assert_eq!(bench.changes.read(&before.uri).await.unwrap(), "before\n");
    let secret = git(bench.dir.path(), &["rev-parse", "HEAD:secret"]);
    for name in [secret.trim(), "HEAD:secret", "--help", ""] {
        let error = bench.changes.read(&format!("{}/blob/{name}", bench.channel)).await.unwrap_err();
        assert_eq!(error.code(), ahp_error_codes::NOT_FOUND, "{name}");
    }
}

#[tokio::test]
async fn only_what_is_new_is_logged() {
    let bench = Bench::of(repository(&[("a", b"1\n"), ("b", b"1\n")])).await;
    write(&bench.path("a"), "2\n");
    bench.refresh().await;
    let first = bench.sink.on(&bench.channel).len();
    bench.refresh().await;
    assert_eq!(bench.sink.on(&bench.channel).len(), first);
    write(&bench.path("b"), "2\n3\n");
    write(&bench.path("a"), "1\n");
    bench.refresh().await;
    let news = bench.sink.on(&bench.channel).split_off(first);
    assert!(matches!(&news[..], [StateAction::ChangesetFileRemoved(_), StateAction::ChangesetFileSet(_)]), "{news:?}");
    assert_eq!((bench.file("a"), facts(bench.file("b")).1), (None, Some((2, 1))));
}

#[tokio::test]
async fn many_files_come_as_one_list_of_any_size() {
    let bench = Bench::of(repository(&[("a", b"1\n")])).await;
    bench.refresh().await;
    let long = "x".repeat(180);
    for number in 0..3000 {
        write(&bench.path(&format!("d{}/{number}-{long}", number % 10)), format!("{number}\n"));
    }
    bench.refresh().await;
    let actions = bench.sink.on(&bench.channel);
    assert!(matches!(actions.last(), Some(StateAction::ChangesetContentChanged(_))), "{}", actions.len());
    assert_eq!(bench.state().files.len(), 3000);
    let size = serde_json::to_vec(actions.last().unwrap()).unwrap().len();
    assert!(size > 2_000_000, "{size}");
}

#[tokio::test]
async fn too_many_files_are_an_error_that_goes_away() {
    let config = ChangesConfig { max_files: 5, ..ChangesConfig::default() };
    let bench = Bench::with(repository(&[("a", b"1\n")]), config).await;
    for number in 0..6 {
        write(&bench.path(&number.to_string()), "");
    }
    let error = ChangesError::TooMany { files: 6, limit: 5 };
    assert_eq!(bench.changes.refresh(&bench.channel).await, Err(error.clone()));
    let state = bench.state();
    assert_eq!((state.status, state.error), (ChangesetStatus::Error, Some(error.info())));
    std::fs::remove_file(bench.path("0")).unwrap();
    bench.refresh().await;
    let state = bench.state();
    assert_eq!((state.status, state.error, state.files.len()), (ChangesetStatus::Ready, None, 5));
}

#[tokio::test]
async fn a_repository_without_commits_has_changes_too() {
    let bench = Bench::of(repository(&[])).await;
    write(&bench.path("staged"), "1\n");
    git(bench.dir.path(), &["add", "staged"]);
    write(&bench.path("new"), "1\n2\n");
    bench.refresh().await;
    assert_eq!(facts(bench.file("staged")).1, Some((1, 0)));
    assert_eq!(facts(bench.file("new")).1, Some((2, 0)));
    bench.invoke("unstage", Some("staged")).await.unwrap();
    assert_eq!(facts(bench.file("staged")).0, "untracked");
}

#[tokio::test]
async fn only_what_is_below_the_working_directory_is_listed() {
    let dir = repository(&[("sub/a", b"1\n"), ("b", b"1\n"), ("sub*/c", b"1\n")]);
    for name in ["sub/a", "b", "sub*/c", "sub/new", "new"] {
        write(&dir.path().join(name), "2\n");
    }
    let sink = Sink::new();
    let changes = Changes::new(sink.clone(), ChangesConfig::default());
    let opened = changes.open("ahp-session:/1", 1, &dir.path().join("sub")).await.unwrap().unwrap();
    assert_eq!(opened.channel, "ahp-session:/1/changes/uncommitted/1");
    assert_eq!(changes.refresh(&opened.channel).await.unwrap().files, Some(2));
    let params = |operation: &str| InvokeChangesetOperationParams {
        channel: opened.channel.clone(),
        meta: None,
        operation_id: operation.into(),
        target: None,
    };
    changes.invoke(params("stage")).await.unwrap();
    let status = git(dir.path(), &["status", "--porcelain"]);
    assert!(status.contains("M  sub/a") && status.contains("A  sub/new") && status.contains(" M b"), "{status}");
}

#[tokio::test]
async fn a_work_tree_that_is_said_to_be_elsewhere_is_no_changeset() {
    let (dir, elsewhere) = (repository(&[("a", b"1\n")]), tempfile::tempdir().unwrap());
    git(dir.path(), &["config", "core.worktree", elsewhere.path().to_str().unwrap()]);
    let opened = Changes::new(Sink::new(), ChangesConfig::default()).open("ahp-session:/1", 0, dir.path()).await;
    assert!(!matches!(opened, Ok(Some(_))), "{opened:?}");
}

#[tokio::test]
async fn nothing_that_a_repository_names_is_run() {
    let dir = repository(&[("a", b"1\n"), ("b.evil", b"1\n"), ("c.other", b"1\n"), ("d.text", b"1\n")]);
    let (top, ran) = (dir.path().to_owned(), tempfile::tempdir().unwrap());
    let trap = ran.path().join("trap");
    script(&trap, &format!("touch '{}/ran'; cat", ran.path().display()));
    let trap = trap.to_str().unwrap();
    for key in ["core.fsmonitor", "diff.external", "filter.evil.clean", "filter.evil.smudge", "filter.a=b.c.process"] {
        git(&top, &["config", key, trap]);
    }
    for key in ["diff.text.textconv", "diff.text.command", "core.pager", "core.editor", "core.sshCommand"] {
        git(&top, &["config", key, trap]);
    }
    git(&top, &["config", "filter.evil.required", "true"]);
    for hook in ["post-index-change", "post-checkout", "pre-commit"] {
        script(&top.join(".git/hooks").join(hook), &format!("exec '{trap}' </dev/null"));
    }
    write(&top.join(".gitattributes"), "*.evil filter=evil\n*.other filter=a=b.c\n*.text diff=text\n");
    for name in ["a", "b.evil", "c.other", "d.text", "new.evil"] {
        write(&top.join(name), "2\n");
    }
    let bench = Bench::of(dir).await;
    bench.refresh().await;
    assert_eq!(bench.state().files.len(), 6);
    for operation in ["stage", "unstage"] {
        bench.invoke(operation, Some("a")).await.unwrap();
        bench.invoke(operation, Some("d.text")).await.unwrap();
    }
    bench.invoke("discard", Some("a")).await.unwrap();
    for operation in ["stage", "discard"] {
        let refused = bench.invoke(operation, Some("b.evil")).await;
        assert!(matches!(refused, Err(ChangesError::Filtered(_))), "{refused:?}");
    }
    assert!(!ran.path().join("ran").exists(), "something was run");
    // The trap is one: git on its own walks into it.
    drop(Command::new("git").current_dir(&top).arg("status").output().unwrap());
    assert!(ran.path().join("ran").exists(), "the trap does not work");
}

#[tokio::test]
async fn files_are_staged_unstaged_and_discarded() {
    let bench = Bench::of(repository(&[("a", b"1\n"), ("gone", b"1\n"), ("from", b"1\n2\n3\n")])).await;
    write(&bench.path("a"), "2\n");
    std::fs::remove_file(bench.path("gone")).unwrap();
    git(bench.dir.path(), &["mv", "from", "to"]);
    write(&bench.path("-new *"), "quite another text\n");
    bench.invoke("stage", None).await.unwrap();
    let staged =
        |bench: &Bench| -> Vec<String> { bench.state().files.iter().map(|file| meta(file, "staged")).collect() };
    assert_eq!(staged(&bench), ["all"; 4]);
    bench.invoke("unstage", Some("a")).await.unwrap();
    assert_eq!(meta(&bench.file("a").unwrap(), "staged"), "none");
    bench.invoke("unstage", Some("-new *")).await.unwrap();
    assert_eq!(facts(bench.file("-new *")).0, "untracked");
    for name in ["a", "gone", "to", "-new *"] {
        bench.invoke("discard", Some(name)).await.unwrap();
        assert_eq!(bench.file(name), None, "{name}");
    }
    assert_eq!(std::fs::read_to_string(bench.path("a")).unwrap(), "1\n");
    assert!(bench.path("gone").exists() && bench.path("from").exists());
    assert!(!bench.path("to").exists() && !bench.path("-new *").exists());
    let state = bench.state();
    assert_eq!(state.files, []);
    assert!(state.operations.unwrap().iter().all(|operation| operation.error.is_none()));
}

#[tokio::test]
async fn an_operation_on_the_wrong_thing_is_refused() {
    let bench = Bench::of(repository(&[("a", b"1\n"), ("same", b"1\n")])).await;
    write(&bench.path("a"), "2\n");
    let code = |outcome: Result<(), ChangesError>| outcome.unwrap_err().code();
    assert_eq!(code(bench.invoke("discard", None).await), json_rpc_error_codes::INVALID_PARAMS);
    assert_eq!(code(bench.invoke("push", None).await), json_rpc_error_codes::INVALID_PARAMS);
    assert_eq!(code(bench.invoke("discard", Some("same")).await), ahp_error_codes::NOT_FOUND);
    assert_eq!(code(bench.invoke("stage", Some("../../etc/passwd")).await), ahp_error_codes::NOT_FOUND);
    let at = || TextPosition { line: 0, character: 0 };
    let range = TextRange { start: at(), end: at() };
    let target = ChangesetOperationTarget::Range { resource: uri_of(&bench.path("a")), side: None, range };
    assert_eq!(code(bench.invoke_on("stage", Some(target)).await), json_rpc_error_codes::INVALID_PARAMS);
    let state = bench.state();
    assert!(state.operations.unwrap().iter().all(|operation| operation.error.is_none()));
}

#[tokio::test]
async fn a_failed_operation_shows_on_it_until_it_succeeds() {
    let bench = Bench::of(repository(&[("a", b"1\n")])).await;
    write(&bench.path("a"), "2\n");
    write(&bench.path(".git/index.lock"), "");
    let error = bench.invoke("stage", Some("a")).await.unwrap_err();
    let shown = |bench: &Bench| bench.state().operations.unwrap()[0].error.clone();
    assert_eq!(shown(&bench), Some(error.info()));
    std::fs::remove_file(bench.path(".git/index.lock")).unwrap();
    bench.invoke("stage", Some("a")).await.unwrap();
    assert_eq!(shown(&bench), None);
}

#[tokio::test]
async fn a_git_that_hangs_or_never_stops_writing_is_killed() {
    let tools = tempfile::tempdir().unwrap();
    let pid = tools.path().join("pid");
    script(
        &tools.path().join("hangs"),
        &format!("PATH=/usr/bin:/bin; sleep 1000 & echo $! > '{}'; wait", pid.display()),
    );
    script(&tools.path().join("writes"), "PATH=/usr/bin:/bin; exec yes");
    let config = |name: &str| ChangesConfig {
        git: tools.path().join(name).into(),
        timeout: Duration::from_secs(2),
        max_output_bytes: 1 << 20,
        ..ChangesConfig::default()
    };
    let dir = repository(&[("a", b"1\n")]);
    let open = async |name: &str| {
        Changes::new(Sink::new(), config(name)).open("ahp-session:/1", 0, dir.path()).await.unwrap_err()
    };
    assert_eq!(open("writes").await, ChangesError::TooLarge { limit: 1 << 20 });
    assert_eq!(open("hangs").await, ChangesError::Slow(Duration::from_secs(2)));
    assert!(matches!(open("not there").await, ChangesError::NoGit(_)));
    let process = std::fs::read_to_string(pid).unwrap();
    let stat = || std::fs::read_to_string(format!("/proc/{}/stat", process.trim())).unwrap_or_default();
    let mut waited = 0;
    while stat().rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X'])) {
        assert!(waited < 1000, "what git started still runs");
        waited += 1;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
