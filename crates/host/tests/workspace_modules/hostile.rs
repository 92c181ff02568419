//! Repositories that want something run, and clients that change files while git looks.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use breakbulk_host::test_support::changes::{Changes, ChangesConfig, ChangesError};
use tempfile::TempDir;

use crate::changes::{Bench, facts, git, meta, repository, script, write};
use crate::sink::Sink;

/// A program that leaves a trace when it is run.
struct Trap {
    dir: TempDir,
}

impl Trap {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        script(&dir.path().join("trap"), &format!("touch '{}'; cat", dir.path().join("ran").display()));
        Self { dir }
    }

    fn path(&self) -> String {
        self.dir.path().join("trap").to_str().unwrap().to_owned()
    }

    fn has_run(&self) -> bool {
        self.dir.path().join("ran").exists()
    }

    /// A configuration in which everything that can be is the trap.
    fn config(&self) -> String {
        let trap = self.path();
        format!(
            "[core]\nrepositoryformatversion = 1\nfsmonitor = {trap}\nhooksPath = {hooks}\npager = {trap}\neditor = {trap}\n\
             sshCommand = {trap}\ngitProxy = {trap}\naskPass = {trap}\nalternateRefsCommand = {trap}\n\
             [filter \"evil\"]\nclean = {trap}\nsmudge = {trap}\nprocess = {trap}\nrequired = true\n\
             [diff]\nexternal = {trap}\n[diff \"evil\"]\ntextconv = {trap}\ncommand = {trap}\n\
             [merge \"evil\"]\ndriver = {trap}\n[credential]\nhelper = {trap}\n[gpg]\nprogram = {trap}\n\
             [alias]\nstatus = !{trap}\nadd = !{trap}\ndiff = !{trap}\n[interactive]\ndiffFilter = {trap}\n\
             [extensions]\npartialClone = far\nworktreeConfig = true\n\
             [remote \"far\"]\nurl = ext::{trap}\npromisor = true\nuploadpack = {trap}\n[protocol]\nallow = always\n",
            hooks = self.dir.path().join("hooks").display()
        )
    }

    /// Hooks, too.
    fn hooks(&self, dir: &Path) {
        for hook in ["post-index-change", "post-checkout", "pre-commit", "fsmonitor-watchman", "reference-transaction"]
        {
            script(&dir.join(hook), &format!("exec '{}' </dev/null", self.path()));
        }
    }
}

const ATTRIBUTES: &str = "* filter=evil diff=evil merge=evil\n";

/// A commit of some files, all changed since.
fn changed() -> TempDir {
    let dir = repository(&[("a", b"1\n"), ("b", b"1\n"), ("sub/c", b"1\n")]);
    for name in ["a", "b", "sub/c", "new"] {
        write(&dir.path().join(name), "2\n");
    }
    dir
}

/// Everything that can be done with a changeset. Whether it can be is not the question.
async fn everything(bench: &Bench) {
    drop(bench.changes.refresh(&bench.channel).await);
    for operation in ["stage", "unstage"] {
        drop(bench.invoke(operation, None).await);
    }
    for name in ["a", "new"] {
        drop(bench.invoke("stage", Some(name)).await);
        drop(bench.invoke("discard", Some(name)).await);
        write(&bench.path(name), "2\n");
    }
    if let Some(file) = bench.file("b")
        && let Some(before) = file.edit.before
    {
        drop(bench.changes.read(&before.content.uri).await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_configuration_that_changes_while_git_looks_runs_nothing() {
    let (dir, trap) = (changed(), Trap::new());
    trap.hooks(&trap.dir.path().join("hooks"));
    let honest = std::fs::read_to_string(dir.path().join(".git/config")).unwrap();
    let bench = Bench::of(dir).await;
    let is_over = Arc::new(AtomicBool::new(false));
    let swap = {
        let (is_over, top, own) = (is_over.clone(), bench.dir.path().to_owned(), trap.dir.path().to_owned());
        write(&own.join("evil"), trap.config());
        let include = format!("{honest}[include]\npath = {}\n", own.join("evil").display());
        let texts = [(honest, ""), (trap.config(), ATTRIBUTES), (include, ATTRIBUTES)];
        std::thread::spawn(move || {
            for (config, attributes) in texts.iter().cycle() {
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
                // As a client writes: beside its place, and renamed.
                for (name, text) in [(".git/config", config.as_str()), (".gitattributes", attributes)] {
                    std::fs::write(top.join(".git/swap"), text).unwrap();
                    std::fs::rename(top.join(".git/swap"), top.join(name)).unwrap();
                }
            }
        })
    };
    for _ in 0..8 {
        everything(&bench).await;
    }
    is_over.store(true, Ordering::Relaxed);
    swap.join().unwrap();
    assert!(!trap.has_run(), "something was run");
}

#[tokio::test]
async fn no_setting_hook_or_attribute_of_a_repository_runs_anything() {
    let (dir, trap) = (changed(), Trap::new());
    let top = dir.path().to_owned();
    write(&top.join(".git/config"), trap.config());
    write(&top.join(".git/config.worktree"), trap.config());
    trap.hooks(&top.join(".git/hooks"));
    trap.hooks(&trap.dir.path().join("hooks"));
    write(&top.join(".git/info/attributes"), "*.x filter=evil\n* diff=evil\n");
    write(&top.join("sub/.gitattributes"), ATTRIBUTES);
    let bench = Bench::of(dir).await;
    bench.refresh().await;
    assert_eq!(bench.state().files.len(), 5);
    everything(&bench).await;
    let refused = bench.invoke("stage", Some("sub/c")).await;
    assert!(matches!(refused, Err(ChangesError::Filtered(_))), "{refused:?}");
    assert!(!trap.has_run(), "something was run");
    // The trap is one: git on its own walks into it.
    drop(Command::new("git").current_dir(&top).arg("diff").output().unwrap());
    assert!(trap.has_run(), "the trap does not work");
}

#[tokio::test]
async fn an_included_configuration_runs_nothing() {
    let (dir, trap) = (changed(), Trap::new());
    write(&dir.path().join("evil"), trap.config());
    let include = "[include]\npath = ../evil\n[includeIf \"gitdir:/**\"]\npath = ../evil\n";
    write(&dir.path().join(".git/config"), include);
    write(&dir.path().join(".gitattributes"), ATTRIBUTES);
    everything(&Bench::of(dir).await).await;
    assert!(!trap.has_run(), "something was run");
}

#[tokio::test]
async fn no_git_is_started_in_a_submodule() {
    let (dir, trap) = (changed(), Trap::new());
    let inner = dir.path().join("inner");
    write(&inner.join("file"), "1\n");
    git(&inner, &["init", "-q"]);
    git(&inner, &["add", "-A"]);
    git(&inner, &["commit", "-q", "-m", "inner"]);
    git(dir.path(), &["add", "inner"]);
    git(dir.path(), &["commit", "-q", "-m", "with a submodule"]);
    write(&inner.join(".git/config"), trap.config());
    write(&inner.join(".gitattributes"), ATTRIBUTES);
    write(&inner.join("file"), "2\n");
    // In the index, it is a submodule in place of the file that the client asks for.
    let commit = git(&inner, &["-c", "core.fsmonitor=false", "rev-parse", "HEAD"]);
    let bench = Bench::of(dir).await;
    bench.refresh().await;
    let line = format!("160000 {} 0\ta\n", commit.trim());
    let is_over = Arc::new(AtomicBool::new(false));
    let swap = {
        let (is_over, top) = (is_over.clone(), bench.dir.path().to_owned());
        let index = std::fs::read(top.join(".git/index")).unwrap();
        let mut update = Command::new("git");
        update.current_dir(&top).args(["update-index", "--index-info"]).stdin(std::process::Stdio::piped());
        let mut update = update.spawn().unwrap();
        std::io::Write::write_all(update.stdin.as_mut().unwrap(), line.as_bytes()).unwrap();
        drop(update.stdin.take());
        assert!(update.wait().unwrap().success());
        let evil = std::fs::read(top.join(".git/index")).unwrap();
        assert_ne!(index, evil);
        std::thread::spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                for (index, is_module) in [(&index, false), (&evil, true)] {
                    std::fs::write(top.join(".git/swap"), index).unwrap();
                    std::fs::rename(top.join(".git/swap"), top.join(".git/index")).unwrap();
                    if is_module {
                        drop(std::fs::rename(top.join("a"), top.join("a.aside")));
                        drop(std::fs::rename(top.join("inner"), top.join("a")));
                    } else {
                        drop(std::fs::rename(top.join("a"), top.join("inner")));
                        drop(std::fs::rename(top.join("a.aside"), top.join("a")));
                    }
                }
            }
        })
    };
    for _ in 0..15 {
        drop(bench.invoke("stage", None).await);
        drop(bench.invoke("stage", Some("a")).await);
        drop(bench.invoke("unstage", None).await);
    }
    is_over.store(true, Ordering::Relaxed);
    swap.join().unwrap();
    assert!(!trap.has_run(), "something was run");
}

/// Follows the work tree in which `d` is a directory, a link out of it, and a directory again, as fast as that can be.
fn swap_out(top: PathBuf, outside: PathBuf, is_over: Arc<AtomicBool>) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        symlink(outside, top.join("link")).unwrap();
        while !is_over.load(Ordering::Relaxed) {
            for (from, to) in [("d", "aside"), ("link", "d"), ("d", "link"), ("aside", "d")] {
                drop(std::fs::rename(top.join(from), top.join(to)));
            }
        }
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_staged_or_discarded_stays_in_the_work_tree_though_links_come_and_go() {
    let (dir, outside) = (repository(&[("d/file", b"committed\n"), ("d/gone", b"committed\n")]), tempfile::tempdir());
    let outside = outside.unwrap();
    write(&outside.path().join("file"), "secret outside\n");
    write(&dir.path().join("d/file"), "changed\n");
    std::fs::remove_file(dir.path().join("d/gone")).unwrap();
    let bench = Bench::of(dir).await;
    bench.refresh().await;
    let secret = git(outside.path(), &["hash-object", "file"]);
    let is_over = Arc::new(AtomicBool::new(false));
    let swap = swap_out(bench.path(""), outside.path().to_owned(), is_over.clone());
    for _ in 0..15 {
        drop(bench.invoke("stage", None).await);
        drop(bench.invoke("unstage", None).await);
        for name in ["d/gone", "d/file"] {
            drop(bench.invoke("discard", Some(name)).await);
        }
        for (name, text) in [("d/file", Some("changed\n")), ("d/gone", None)] {
            let (path, aside) = (bench.path(name), bench.path(&name.replace('d', "aside")));
            if let Some(text) = text {
                drop(std::fs::write(aside, text));
            } else {
                drop(std::fs::remove_file(aside));
            }
            assert!(!path.starts_with(outside.path()));
        }
    }
    is_over.store(true, Ordering::Relaxed);
    swap.join().unwrap();
    assert_eq!(std::fs::read_to_string(outside.path().join("file")).unwrap(), "secret outside\n");
    let there: Vec<_> = std::fs::read_dir(outside.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(there, ["file"], "something was written outside");
    let stored = Command::new("git").current_dir(bench.dir.path()).args(["cat-file", "-e", secret.trim()]).output();
    assert!(!stored.unwrap().status.success(), "what is outside was stored in the repository");
}

#[tokio::test]
async fn an_index_that_is_a_link_is_not_written_through() {
    let (bench, outside) = (Bench::of(changed()).await, tempfile::tempdir().unwrap());
    let target = outside.path().join("authorized_keys");
    std::fs::copy(bench.path(".git/index"), &target).unwrap();
    let before = std::fs::read(&target).unwrap();
    std::fs::remove_file(bench.path(".git/index")).unwrap();
    symlink(&target, bench.path(".git/index")).unwrap();
    drop(bench.invoke("stage", None).await);
    assert_eq!(std::fs::read(&target).unwrap(), before);
}

#[tokio::test]
async fn work_trees_submodules_and_separate_repositories_have_changesets() {
    let dir = changed();
    let (top, aside) = (dir.path(), tempfile::tempdir().unwrap());
    let linked = aside.path().join("linked");
    git(top, &["worktree", "add", "-q", linked.to_str().unwrap()]);
    git(top, &["config", "core.bare", "true"]);
    write(&linked.join("b"), "3\n4\n");
    let separate = aside.path().join("separate");
    std::fs::create_dir(&separate).unwrap();
    let data = aside.path().join("data");
    git(&separate, &["init", "-q", "--separate-git-dir", data.to_str().unwrap()]);
    write(&separate.join("b"), "3\n4\n");
    git(&separate, &["add", "b"]);
    let modules = top.join(".git/modules/sub");
    let sub = aside.path().join("sub");
    std::fs::create_dir_all(&modules).unwrap();
    std::fs::create_dir(&sub).unwrap();
    git(&sub, &["init", "-q", "--separate-git-dir", modules.to_str().unwrap()]);
    git(&modules, &["config", "core.worktree", sub.to_str().unwrap()]);
    write(&sub.join("b"), "3\n4\n");
    let changes = Changes::new(Sink::new(), ChangesConfig::default());
    for (nth, place) in [linked, separate, sub].iter().enumerate() {
        let opened = changes.open("ahp-session:/1", nth, place).await.unwrap().unwrap();
        let summary = changes.refresh(&opened.channel).await.unwrap();
        assert_eq!((summary.files, summary.additions), (Some(1), Some(2)), "{}", place.display());
    }
    assert_eq!(changes.open("ahp-session:/1", 9, top).await, Ok(None), "it says that it is bare");
}

#[tokio::test]
async fn repositories_of_other_forms_have_changesets_and_operations() {
    for form in ["sha256", "packed", "split index", "detached"] {
        let dir = match form {
            "sha256" => {
                let dir = tempfile::tempdir().unwrap();
                git(dir.path(), &["init", "-q", "--object-format=sha256"]);
                write(&dir.path().join("a"), "1\n");
                git(dir.path(), &["add", "-A"]);
                git(dir.path(), &["commit", "-q", "-m", "first"]);
                dir
            }
            _ => repository(&[("a", b"1\n")]),
        };
        match form {
            "packed" => drop(git(dir.path(), &["gc", "-q"])),
            "split index" => drop(git(dir.path(), &["update-index", "--split-index"])),
            "detached" => drop(git(dir.path(), &["checkout", "-q", "--detach"])),
            _ => {}
        }
        let bench = Bench::of(dir).await;
        write(&bench.path("a"), "2\n3\n");
        write(&bench.path("new"), "1\n");
        bench.refresh().await;
        assert_eq!(facts(bench.file("a")).1, Some((2, 1)), "{form}");
        bench.invoke("stage", None).await.unwrap();
        assert_eq!(git(bench.dir.path(), &["status", "--porcelain"]), "M  a\nA  new\n", "{form}");
        assert_eq!(git(bench.dir.path(), &["fsck", "--strict", "--no-dangling"]), "", "{form}");
        bench.invoke("discard", Some("a")).await.unwrap();
        bench.invoke("unstage", Some("new")).await.unwrap();
        assert_eq!(git(bench.dir.path(), &["status", "--porcelain"]), "?? new\n", "{form}");
    }
}

#[tokio::test]
async fn settings_of_how_files_are_compared_hold() {
    let dir = repository(&[("crlf", b"1\n"), ("run", b"1\n"), ("kept", b"1\r\n")]);
    git(dir.path(), &["config", "core.autocrlf", "input"]);
    write(&dir.path().join(".git/info/exclude"), "ignored\n");
    let bench = Bench::of(dir).await;
    write(&bench.path("ignored"), "");
    write(&bench.path("crlf"), "1\r\n2\r\n");
    write(&bench.path("kept"), "1\r\n2\r\n");
    script(&bench.path("script"), "true");
    symlink("crlf", bench.path("link")).unwrap();
    bench.refresh().await;
    assert_eq!(bench.file("ignored"), None);
    assert_eq!(facts(bench.file("crlf")).1, Some((1, 0)));
    bench.invoke("stage", None).await.unwrap();
    let show = |name: &str| git(bench.dir.path(), &["cat-file", "blob", &format!(":{name}")]);
    assert_eq!((show("crlf").as_str(), show("kept").as_str()), ("1\n2\n", "1\r\n2\r\n"));
    let modes = git(bench.dir.path(), &["ls-files", "-s", "link", "script"]);
    assert!(modes.contains("120000") && modes.contains("100755"), "{modes}");
    assert_eq!(meta(&bench.file("script").unwrap(), "staged"), "all");
    assert_eq!(
        git(bench.dir.path(), &["status", "--porcelain"]).lines().filter(|line| line.starts_with(' ')).count(),
        0
    );
}

#[tokio::test]
async fn a_change_within_the_second_of_an_operation_is_seen() {
    let bench = Bench::of(repository(&[("a", b"1\n"), ("b", b"1\n"), ("c", b"1\n")])).await;
    for round in 2..8 {
        // As long as before, and in no other second than the index.
        git(bench.dir.path(), &["add", "-A"]);
        for name in ["a", "b", "c"] {
            write(&bench.path(name), format!("{round}\n"));
        }
        bench.invoke("stage", Some("a")).await.unwrap();
        let status = git(bench.dir.path(), &["status", "--porcelain", "b", "c"]);
        assert!(status.lines().all(|line| line.as_bytes()[1] == b'M') && status.lines().count() == 2, "{status}");
    }
}

/// A repository outside of the roots, with one committed file; and a root beside it.
fn outside_and_root() -> (TempDir, TempDir) {
    (repository(&[("secret", b"outside\n")]), tempfile::tempdir().unwrap())
}

fn config_with_root(root: &Path) -> ChangesConfig {
    ChangesConfig { roots: vec![root.to_owned()], ..ChangesConfig::default() }
}

#[tokio::test]
async fn no_file_that_a_client_can_write_leads_to_a_repository_outside_of_the_roots() {
    let (outside, root) = outside_and_root();
    let data = outside.path().join(".git");
    let by_file = root.path().join("by-file");
    write(&by_file.join(".git"), format!("gitdir: {}\n", data.display()));
    let by_common = root.path().join("by-common");
    write(&by_common.join(".git/HEAD"), "ref: refs/heads/main\n");
    write(&by_common.join(".git/commondir"), format!("{}\n", data.display()));
    let changes = Changes::new(Sink::new(), config_with_root(root.path()));
    for (nth, place) in [by_file, by_common].iter().enumerate() {
        assert_eq!(changes.open("ahp-session:/1", nth, place).await, Ok(None), "{}", place.display());
    }
}

#[tokio::test]
async fn objects_of_a_repository_outside_of_the_roots_are_not_read_through_alternates() {
    let (outside, root) = outside_and_root();
    let commit = git(outside.path(), &["rev-parse", "HEAD"]);
    let top = root.path().join("borrower");
    write(&top.join(".git/HEAD"), commit);
    std::fs::create_dir_all(top.join(".git/refs")).unwrap();
    let objects = outside.path().join(".git/objects");
    write(&top.join(".git/objects/info/alternates"), format!("{}\n", objects.display()));
    let changes = Changes::new(Sink::new(), config_with_root(root.path()));
    let opened = changes.open("ahp-session:/1", 0, &top).await.unwrap().unwrap();
    assert!(matches!(changes.refresh(&opened.channel).await, Err(ChangesError::Failed(_))), "the commit is not found");
    // A repository inside of the roots may be borrowed from, and one outside may borrow from anywhere.
    let lender = root.path().join("lender");
    git(root.path(), &["clone", "-q", outside.path().to_str().unwrap(), "lender"]);
    write(&top.join(".git/objects/info/alternates"), format!("{}\n", lender.join(".git/objects").display()));
    let summary = changes.refresh(&opened.channel).await.unwrap();
    assert_eq!((summary.files, summary.deletions), (Some(1), Some(1)), "the file is not in the work tree");
}

#[tokio::test]
async fn a_work_tree_of_a_repository_outside_of_the_roots_has_a_changeset_if_the_repository_names_it() {
    let (outside, root) = outside_and_root();
    let linked = root.path().join("linked");
    git(outside.path(), &["worktree", "add", "-q", linked.to_str().unwrap()]);
    write(&linked.join("secret"), "3\n4\n");
    let modules = outside.path().join(".git/modules/sub");
    let sub = root.path().join("sub");
    std::fs::create_dir_all(&modules).unwrap();
    std::fs::create_dir(&sub).unwrap();
    git(&sub, &["init", "-q", "--separate-git-dir", modules.to_str().unwrap()]);
    git(&modules, &["config", "core.worktree", sub.to_str().unwrap()]);
    write(&sub.join("new"), "3\n4\n");
    let inner = outside.path().join("inner");
    write(&inner.join("new"), "3\n4\n");
    let config = ChangesConfig { roots: vec![root.path().to_owned(), inner.clone()], ..ChangesConfig::default() };
    let changes = Changes::new(Sink::new(), config);
    for (nth, place) in [linked, sub, inner].iter().enumerate() {
        let opened = changes.open("ahp-session:/1", nth, place).await.unwrap().unwrap();
        let summary = changes.refresh(&opened.channel).await.unwrap();
        assert_eq!((summary.files, summary.additions), (Some(1), Some(2)), "{}", place.display());
    }
}

#[tokio::test]
async fn files_of_git_are_private_and_those_of_a_host_that_was_killed_are_removed() {
    let place = tempfile::tempdir().unwrap();
    // No process has this id: it is beyond what Linux gives out.
    let abandoned = place.path().join("breakbulk-git-2147483646-x");
    write(&abandoned.join("work/secret"), "secret\n");
    let used = place.path().join(format!("breakbulk-git-{}-x", std::process::id()));
    std::fs::create_dir(&used).unwrap();
    // A git that shows the mode of the directory that it works in.
    let shows = place.path().join("shows-mode");
    script(&shows, "/usr/bin/stat -c %a \"$GIT_DIR\" >&2; exit 1");
    let config = ChangesConfig {
        scratch: vec![place.path().to_owned()],
        git: shows.into_os_string(),
        ..ChangesConfig::default()
    };
    let changes = Changes::new(Sink::new(), config);
    assert!(!abandoned.exists() && used.exists());
    let dir = changed();
    let opened = changes.open("ahp-session:/1", 0, dir.path()).await;
    assert_eq!(opened, Err(ChangesError::Failed("700".into())));
}
