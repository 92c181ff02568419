//! Terminals with real programs on real ptys.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ahp::reducers::{apply_action_to_root, apply_action_to_terminal};
use ahp_types::ROOT_RESOURCE_URI;
use ahp_types::actions::{
    StateAction, TerminalClaimedAction, TerminalDataAction, TerminalInputAction, TerminalResizedAction,
    TerminalTitleChangedAction,
};
use ahp_types::commands::CreateTerminalParams;
use ahp_types::errors::{ahp_error_codes, json_rpc_error_codes};
use ahp_types::state::{
    RootState, TerminalClaim, TerminalClientClaim, TerminalContentPart, TerminalInfo, TerminalLifecycleState,
    TerminalState,
};
use breakbulk_host::MethodError;
use breakbulk_host::log::AppendError;
use breakbulk_host::test_support::changes::ChangesError;
use breakbulk_host::test_support::files::uri_of;
use breakbulk_host::test_support::terminal::{TerminalConfig, TerminalError, TerminalRejection, Terminals};
use serde_json::json;
use tempfile::TempDir;

use crate::sink::{LONG, Sink};

const CHANNEL: &str = "ahp-terminal:/1";

/// One terminal that runs a script.
struct Bench {
    dir: TempDir,
    sink: Arc<Sink>,
    terminals: Terminals,
    initial: TerminalState,
}

impl Bench {
    async fn run(script: &str) -> Self {
        Self::run_with(script, |_| {}).await
    }

    async fn run_with(script: &str, change: impl FnOnce(&mut TerminalConfig)) -> Self {
        let (dir, sink) = (tempfile::tempdir().unwrap(), Sink::new());
        let mut config = TerminalConfig::new(vec![dir.path().to_owned()]);
        config.command = ["/bin/sh", "-c", script].map(Into::into).to_vec();
        change(&mut config);
        let terminals = Terminals::new(sink.clone(), config);
        let prepared = terminals.prepare(params(CHANNEL)).await.unwrap();
        let initial = prepared.state();
        prepared.start().await.unwrap();
        terminals.set_watched(CHANNEL, true);
        Self { dir, sink, terminals, initial }
    }

    /// What a client makes of it.
    fn state(&self) -> TerminalState {
        let mut state = self.initial.clone();
        for action in self.sink.on(CHANNEL) {
            apply_action_to_terminal(&mut state, &action);
        }
        state
    }

    fn text(&self) -> String {
        text(&self.state())
    }

    fn listed(&self) -> Vec<TerminalInfo> {
        listed(&self.sink)
    }

    async fn until_text(&self, wanted: &str) {
        self.sink.until(|_| self.text().contains(wanted)).await;
    }

    async fn until_exit(&self) -> Option<i64> {
        self.sink.until(|sink| matches!(sink.last(CHANNEL), Some(StateAction::TerminalExited(_)))).await;
        exit(&self.state()).unwrap()
    }

    async fn dispatch(&self, who: &str, action: StateAction) -> Result<(), TerminalRejection> {
        let admitted = self.terminals.accept(who, CHANNEL, &action)?;
        admitted.perform().await.unwrap();
        Ok(())
    }

    /// The process whose number the program wrote after this word.
    fn process(&self, word: &str) -> u32 {
        let text = self.text();
        let rest = text.split(word).nth(1).unwrap().trim_start();
        rest.split(|char: char| !char.is_ascii_digit()).next().unwrap().parse().unwrap()
    }
}

fn params(channel: &str) -> CreateTerminalParams {
    CreateTerminalParams {
        channel: channel.into(),
        meta: None,
        claim: TerminalClaim::Client(TerminalClientClaim { client_id: "me".into() }),
        name: None,
        cwd: None,
        cols: None,
        rows: None,
    }
}

fn text(state: &TerminalState) -> String {
    let part = |part: &TerminalContentPart| match part {
        TerminalContentPart::Unclassified(part) => part.value.clone(),
        other => panic!("{other:?}"),
    };
    state.content.iter().map(part).collect()
}

/// The exit code, in `Some` if there was an exit.
fn exit(state: &TerminalState) -> Option<Option<i64>> {
    match &state.lifecycle {
        TerminalLifecycleState::Exited(exited) => Some(exited.exit_code),
        TerminalLifecycleState::Running(_) => None,
    }
}

fn listed(sink: &Sink) -> Vec<TerminalInfo> {
    let mut root: RootState = serde_json::from_value(serde_json::json!({ "agents": [] })).unwrap();
    for action in sink.on(ROOT_RESOURCE_URI) {
        apply_action_to_root(&mut root, &action);
    }
    root.terminals.unwrap_or_default()
}

fn input(data: &str) -> StateAction {
    StateAction::TerminalInput(TerminalInputAction { data: data.into() })
}

/// Whether a process runs; one that has ended and was not waited for does not.
fn runs(process: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

async fn until_gone(process: u32) {
    let wait = async {
        while runs(process) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LONG, wait).await.expect("the process still runs");
}

#[tokio::test]
async fn what_a_program_writes_and_how_it_ends_is_in_the_state() {
    let bench = Bench::run("printf 'hello\\n'; exit 3").await;
    assert_eq!(bench.until_exit().await, Some(3));
    assert_eq!(bench.text(), "hello\r\n");
    let state = bench.state();
    assert_eq!((state.cols, state.rows, state.is_pty), (Some(80), Some(24), Some(true)));
    assert_eq!(state.cwd, Some(uri_of(&bench.dir.path().canonicalize().unwrap())));
    let listed = bench.listed();
    assert_eq!(listed.len(), 1);
    assert_eq!((&listed[0].resource[..], &listed[0].lifecycle), (CHANNEL, &state.lifecycle));
    assert_eq!(listed, bench.terminals.infos());
    assert_eq!(bench.dispatch("me", input("x")).await, Err(TerminalRejection::Exited));
}

#[tokio::test]
async fn a_killed_program_has_no_exit_code() {
    assert_eq!(Bench::run("kill -9 $$").await.until_exit().await, None);
}

#[tokio::test]
async fn what_the_holder_types_reaches_the_program() {
    let bench = Bench::run("read line; echo \"got $line\"").await;
    bench.dispatch("me", input("abc €\r")).await.unwrap();
    assert_eq!(bench.until_exit().await, Some(0));
    assert!(bench.text().ends_with("got abc €\r\n"), "{:?}", bench.text());
}

#[tokio::test]
async fn a_resize_reaches_the_program() {
    let bench = Bench::run("read line; stty size").await;
    let resize = |cols, rows| StateAction::TerminalResized(TerminalResizedAction { cols, rows });
    assert_eq!(bench.dispatch("me", resize(0, 40)).await, Err(TerminalRejection::BadSize { cols: 0, rows: 40 }));
    bench.dispatch("me", resize(100, 40)).await.unwrap();
    bench.dispatch("me", input("\r")).await.unwrap();
    bench.until_exit().await;
    assert!(bench.text().contains("40 100"), "{:?}", bench.text());
}

#[tokio::test]
async fn only_the_holder_types_until_it_gives_the_terminal_away() {
    let bench = Bench::run("read line; echo \"got $line\"").await;
    assert_eq!(bench.dispatch("you", input("x\r")).await, Err(TerminalRejection::NotHolder));
    let you = TerminalClaim::Client(TerminalClientClaim { client_id: "you".into() });
    let give = StateAction::TerminalClaimed(TerminalClaimedAction { claim: you.clone() });
    assert_eq!(bench.dispatch("you", give.clone()).await, Err(TerminalRejection::NotHolder));
    bench.dispatch("me", give).await.unwrap();
    assert_eq!(bench.listed()[0].claim, you);
    assert_eq!(bench.dispatch("me", input("x\r")).await, Err(TerminalRejection::NotHolder));
    let output = StateAction::TerminalData(TerminalDataAction { data: "no".into() });
    assert_eq!(bench.dispatch("you", output).await, Err(TerminalRejection::NotForClients));
    bench.dispatch("you", input("mine\r")).await.unwrap();
    bench.until_text("got mine").await;
}

#[tokio::test]
async fn anyone_may_rename_a_terminal() {
    let bench = Bench::run("sleep 1000").await;
    let rename = |title: String| StateAction::TerminalTitleChanged(TerminalTitleChangedAction { title });
    bench.dispatch("you", rename("build".into())).await.unwrap();
    for bad in ["a\x1bb".into(), "x".repeat(257)] {
        assert_eq!(bench.dispatch("you", rename(bad)).await, Err(TerminalRejection::BadTitle));
    }
    assert_eq!(bench.listed()[0].title, "build");
}

#[tokio::test]
async fn a_program_names_its_window_and_its_directory_is_followed() {
    let bench = Bench::run("printf '\\033]2;My Title\\007'; mkdir 'a b'; cd 'a b'; echo there; read line").await;
    bench.until_text("there").await;
    let there = uri_of(&bench.dir.path().canonicalize().unwrap().join("a b"));
    bench.sink.until(|_| bench.state().cwd.as_ref() == Some(&there)).await;
    assert_eq!((bench.state().title, &bench.listed()[0].title[..]), ("My Title".into(), "My Title"));
}

#[tokio::test]
async fn a_slow_log_makes_the_program_wait_and_loses_nothing() {
    const BYTES: usize = 4_000_000;
    let script = format!("read line; head -c {BYTES} /dev/zero | tr '\\0' x; touch done");
    let change = |config: &mut TerminalConfig| config.max_scrollback_bytes = usize::MAX;
    let bench = Bench::run_with(&script, change).await;
    bench.sink.hold(true).await;
    bench.dispatch("me", input("\r")).await.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!bench.dir.path().join("done").exists(), "4 MB went into a log that takes nothing");
    bench.sink.hold(false).await;
    bench.until_exit().await;
    let text = bench.text();
    assert_eq!(text.matches('x').count(), BYTES);
    let largest = bench.sink.on(CHANNEL).iter().map(size).max().unwrap();
    assert!((4096..(256 << 10) + (64 << 10)).contains(&largest), "{largest}");
}

fn size(action: &StateAction) -> usize {
    if let StateAction::TerminalData(data) = action { data.data.len() } else { 0 }
}

#[tokio::test]
async fn characters_arrive_whole_however_many_there_are() {
    let change = |config: &mut TerminalConfig| config.max_scrollback_bytes = usize::MAX;
    let bench = Bench::run_with("i=0; while [ $i -lt 2000 ]; do printf '€𝄞é€𝄞é€𝄞é€𝄞é'; i=$((i+1)); done", change).await;
    bench.until_exit().await;
    assert_eq!(bench.text(), "€𝄞é".repeat(8000));
}

#[tokio::test]
async fn content_is_bounded_and_ends_with_the_last_lines() {
    let change = |config: &mut TerminalConfig| {
        (config.max_scrollback_bytes, config.kept_scrollback_bytes) = (20_000, 4_000);
        config.max_pending_bytes = 4_000;
    };
    let bench = Bench::run_with("seq 1 50000", change).await;
    bench.until_exit().await;
    let text = bench.text();
    assert!(text.len() < 40_000, "{}", text.len());
    let (gone, lines) = text.split_once("\r\n").unwrap();
    let gone: usize =
        gone.strip_prefix("[… ").unwrap().strip_suffix(" bytes of earlier output are gone]").unwrap().parse().unwrap();
    let all: usize = (1..=50_000_u32).map(|line| line.to_string().len() + 2).sum();
    assert_eq!(gone + lines.len(), all);
    let lines: Vec<u32> = lines.lines().map(|line| line.parse().unwrap()).collect();
    assert!(lines.len() > 100 && lines.windows(2).all(|two| two[0] + 1 == two[1]), "{lines:?}");
    assert_eq!(lines.last(), Some(&50_000));
}

/// A job of its own group that does not hear a hangup, under a program that does not either.
const STUBBORN: &str = "trap '' HUP; set -m; sleep 1000 & echo job $!; echo program $$; echo up; wait";

#[tokio::test]
async fn disposing_kills_everything_on_the_terminal() {
    let bench = Bench::run(STUBBORN).await;
    bench.until_text("up").await;
    let (job, program) = (bench.process("job"), bench.process("program"));
    assert!(runs(job) && runs(program));
    bench.terminals.dispose(CHANNEL).await.unwrap();
    until_gone(job).await;
    until_gone(program).await;
    assert_eq!(bench.listed(), []);
    assert_eq!(bench.terminals.dispose(CHANNEL).await.unwrap_err().code(), ahp_error_codes::NOT_FOUND);
    assert_eq!(bench.dispatch("me", input("x")).await, Err(TerminalRejection::NoTerminal));
    // The name is free again.
    bench.terminals.prepare(params(CHANNEL)).await.unwrap().start().await.unwrap();
}

#[tokio::test]
async fn a_hangup_is_heard_before_the_kill() {
    // Nobody is between fork and exec when the hangup comes: a shell may lose a signal at that moment.
    let script = "trap 'echo bye > bye; exit' HUP; (trap - HUP; echo up; exec sleep 1000) & wait";
    let change = |config: &mut TerminalConfig| config.hangup_grace = LONG;
    let bench = Bench::run_with(script, change).await;
    bench.until_text("up").await;
    bench.terminals.dispose(CHANNEL).await.unwrap();
    assert_eq!(std::fs::read_to_string(bench.dir.path().join("bye")).unwrap(), "bye\n");
}

#[tokio::test]
async fn when_the_host_stops_everything_is_killed() {
    for dropped in [false, true] {
        let bench = Bench::run(STUBBORN).await;
        bench.until_text("up").await;
        let (job, program) = (bench.process("job"), bench.process("program"));
        if dropped {
            drop(bench)
        } else {
            bench.terminals.stop().await
        }
        until_gone(job).await;
        until_gone(program).await;
    }
}

#[tokio::test]
async fn a_program_is_killed_when_its_output_can_never_be_logged() {
    let bench = Bench::run("echo program $$; echo up; read line; while :; do echo more; sleep 0.05; done").await;
    bench.until_text("up").await;
    bench.sink.refuse(Some(AppendError::Fenced));
    bench.dispatch("me", input("\r")).await.unwrap();
    until_gone(bench.process("program")).await;
}

#[tokio::test]
async fn a_full_log_is_tried_again() {
    let bench = Bench::run("read line; echo all is here").await;
    bench.sink.refuse(Some(AppendError::Full));
    bench.dispatch("me", input("\r")).await.unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    bench.sink.refuse(None);
    bench.until_exit().await;
    assert!(bench.text().contains("all is here"));
}

#[tokio::test]
async fn input_that_the_program_does_not_read_is_bounded() {
    let change = |config: &mut TerminalConfig| config.max_input_bytes = 150_000;
    let bench = Bench::run_with("stty raw -echo; echo up; sleep 1000", change).await;
    bench.until_text("up").await;
    bench.dispatch("me", input(&"x".repeat(100_000))).await.unwrap();
    let refused = bench.dispatch("me", input(&"x".repeat(100_000))).await;
    assert_eq!(refused, Err(TerminalRejection::InputFull { waiting: 200_000, limit: 150_000 }));
    // What is not performed takes nothing.
    for _ in 0..10 {
        let action = input(&"x".repeat(40_000));
        drop(bench.terminals.accept("me", CHANNEL, &action).unwrap());
    }
}

#[tokio::test]
async fn a_large_paste_arrives_whole() {
    let bench = Bench::run(
        "stty raw -echo; echo up; head -c 1000000 | cksum; stty sane; printf '%1000000s' | tr ' ' x | cksum",
    )
    .await;
    bench.until_text("up").await;
    bench.dispatch("me", input(&"x".repeat(1_000_000))).await.unwrap();
    bench.until_exit().await;
    let text = bench.text();
    let sums: Vec<&str> = text.lines().filter(|line| line.contains("1000000")).map(str::trim).collect();
    assert!(sums.len() == 2 && sums[0] == sums[1], "{text:?}");
}

#[tokio::test]
async fn the_program_does_not_see_what_is_hidden() {
    let script = "echo ${CARGO_MANIFEST_DIR-none} $EXTRA $TERM";
    let bench = Bench::run_with(script, |config| {
        config.hidden_env.push("CARGO_".into());
        config.env.push(("EXTRA".into(), "extra".into()));
    });
    let bench = bench.await;
    bench.until_exit().await;
    assert_eq!(bench.text(), "none extra xterm-256color\r\n");
}

#[tokio::test]
async fn each_bad_request_has_its_code() {
    let bench = Bench::run_with("sleep 1000", |config| config.max_terminals = 2).await;
    let outside = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(outside.path(), bench.dir.path().join("link")).unwrap();
    std::fs::write(bench.dir.path().join("file"), "").unwrap();
    let cwd = |path: PathBuf| CreateTerminalParams { cwd: Some(uri_of(&path)), ..params("ahp-terminal:/2") };
    let within = |name: &str| bench.dir.path().join(name);
    let cases = [
        (params(CHANNEL), ahp_error_codes::ALREADY_EXISTS),
        (params("ahp-session:/1"), json_rpc_error_codes::INVALID_PARAMS),
        (params("ahp-terminal:/a b"), json_rpc_error_codes::INVALID_PARAMS),
        (cwd(outside.path().to_owned()), ahp_error_codes::PERMISSION_DENIED),
        (cwd(outside.path().join("not there")), ahp_error_codes::PERMISSION_DENIED),
        (cwd(within("link")), ahp_error_codes::PERMISSION_DENIED),
        (cwd(within("not there")), ahp_error_codes::NOT_FOUND),
        (cwd(within("file")), ahp_error_codes::NOT_FOUND),
        (
            CreateTerminalParams { cwd: Some("http://x/".into()), ..params("ahp-terminal:/2") },
            json_rpc_error_codes::INVALID_PARAMS,
        ),
        (CreateTerminalParams { cols: Some(-1), ..params("ahp-terminal:/2") }, json_rpc_error_codes::INVALID_PARAMS),
        (
            CreateTerminalParams { rows: Some(1 << 40), ..params("ahp-terminal:/2") },
            json_rpc_error_codes::INVALID_PARAMS,
        ),
    ];
    for (params, code) in cases {
        let said = format!("{params:?}");
        assert_eq!(bench.terminals.prepare(params).await.err().map(|error| error.code()), Some(code), "{said}");
    }
    let second = bench.terminals.prepare(params("ahp-terminal:/2")).await.unwrap();
    assert!(bench.terminals.prepare(params("ahp-terminal:/3")).await.is_err());
    drop(second);
    bench.terminals.prepare(params("ahp-terminal:/3")).await.unwrap().start().await.unwrap();
    assert_eq!(bench.listed().len(), 2);
}

#[test]
fn a_full_log_is_the_same_error_for_terminals_and_changesets_as_elsewhere() {
    let full = Some(json!({"reason": "logFull"}));
    assert_eq!(MethodError::from(TerminalError::Log(AppendError::Full)).data, full);
    assert_eq!(MethodError::from(ChangesError::Log(AppendError::Full)).data, full);
}

#[tokio::test]
async fn a_program_that_is_not_there_leaves_no_terminal() {
    let (dir, sink) = (tempfile::tempdir().unwrap(), Sink::new());
    let mut config = TerminalConfig::new(vec![dir.path().to_owned()]);
    config.command = vec![Path::new("/not/there").into()];
    let terminals = Terminals::new(sink.clone(), config);
    for _ in 0..2 {
        terminals.prepare(params(CHANNEL)).await.unwrap().start().await.unwrap_err();
    }
    assert_eq!((terminals.infos(), listed(&sink)), (vec![], vec![]));
}
