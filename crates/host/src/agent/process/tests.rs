//! Programs that die, hang, flood, grow, leave others behind, or do not listen.

use super::*;

/// Generous: nothing here should come near it.
const SOON: Duration = Duration::from_secs(60);

/// Limits that only what a test is about reaches.
fn limits() -> ProcessLimits {
    ProcessLimits { memory_interval: Duration::from_millis(50), ..ProcessLimits::default() }
}

/// A program that does this. A shell stands for it; no agent is run through one.
fn command(script: &str) -> ProcessCommand {
    ProcessCommand {
        program: "sh".into(),
        arguments: ["-c", script].map(OsString::from).to_vec(),
        directory: std::env::temp_dir(),
        inherit: Vec::new(),
        env: Vec::new(),
    }
}

async fn start(script: &str, limits: ProcessLimits) -> Process {
    Process::start(command(script), limits).await.unwrap()
}

async fn read(process: &mut Process) -> ProgramOutput {
    timeout(SOON, process.read()).await.unwrap()
}

async fn line(process: &mut Process) -> String {
    match read(process).await {
        ProgramOutput::Line(line) => String::from_utf8(line).unwrap(),
        other => panic!("{other:?}"),
    }
}

/// The end, after whatever comes before it.
async fn end(process: &mut Process) -> ProgramEnd {
    loop {
        if let ProgramOutput::Ended(end) = read(process).await {
            return end;
        }
    }
}

fn is_alive(pid: &str) -> bool {
    // A process that is dead and not yet reaped by its parent does no more harm.
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z')))
}

async fn gone(pid: &str) {
    let wait = async {
        while is_alive(pid) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(SOON, wait).await.unwrap();
}

#[tokio::test]
async fn lines_go_both_ways_and_an_exit_has_its_status_and_its_last_words() {
    let mut process = start("read x; echo \"got $x\"; echo why >&2; exit 3", limits()).await;
    process.write(b"this\n".to_vec()).unwrap();
    assert_eq!(line(&mut process).await, "got this");
    let end = end(&mut process).await;
    assert_eq!(end, ProgramEnd::Exited(3));
    let failure = end.failure(&process.stderr().await);
    assert_eq!(failure.kind, "agentExited");
    let want = "The agent's program exited with status 3. The end of its standard error:\nwhy";
    assert_eq!(failure.message, want);
}

#[tokio::test]
async fn a_program_that_is_not_there_is_an_error() {
    let missing = ProcessCommand { program: "no-such-program-here".into(), ..command("") };
    assert!(Process::start(missing, limits()).await.is_err());
    let nowhere = ProcessCommand { directory: "/no/such/directory".into(), ..command("") };
    assert!(Process::start(nowhere, limits()).await.is_err());
}

#[tokio::test]
async fn a_killed_program_is_told_from_one_that_exited() {
    let mut process = start("kill -9 $$", limits()).await;
    assert_eq!(end(&mut process).await, ProgramEnd::Killed(9));
}

#[tokio::test]
async fn silence_ends_a_program_only_while_something_is_expected() {
    let short = Duration::from_millis(100);
    let silent = ProcessLimits { start: short, silence: short, cancel: short, idle: short, ..limits() };
    for (expectation, want) in [
        (Expectation::Start, ProgramEnd::NotStarted(short)),
        (Expectation::Output, ProgramEnd::Silent(short)),
        (Expectation::Cancelled, ProgramEnd::NotCancelled(short)),
        (Expectation::Idle, ProgramEnd::Idle(short)),
    ] {
        let mut process = start("exec sleep 1000", silent.clone()).await;
        process.expect(expectation);
        assert_eq!(end(&mut process).await, want);
    }
    let mut process = start("read x; echo later; read y", silent).await;
    process.expect(Expectation::Nothing);
    assert!(timeout(short * 5, process.read()).await.is_err());
    process.write(b"\n".to_vec()).unwrap();
    assert_eq!(line(&mut process).await, "later");
}

#[tokio::test]
async fn a_program_that_writes_only_noise_is_killed() {
    let tight = ProcessLimits { max_line_bytes: 100, max_noise_bytes: 100_000, ..limits() };
    // One endless line, and endless lines.
    for script in ["exec tr '\\0' x < /dev/zero", "exec yes"] {
        let mut process = start(script, tight.clone()).await;
        assert!(matches!(end(&mut process).await, ProgramEnd::Flooded { bytes } if bytes > 100_000));
    }
    // What is understood is no noise, however much it is.
    let mut process = start("exec yes", tight).await;
    for _ in 0..200_000 {
        assert_eq!(line(&mut process).await, "y");
        process.understood();
    }
}

#[tokio::test]
async fn a_line_over_the_limit_is_skipped_and_told() {
    let tight = ProcessLimits { max_line_bytes: 5, ..limits() };
    let mut process = start("echo 12345; echo 123456; echo ok", tight).await;
    assert_eq!(line(&mut process).await, "12345");
    assert_eq!(read(&mut process).await, ProgramOutput::Skipped { bytes: 7 });
    assert_eq!(line(&mut process).await, "ok");
}

#[tokio::test]
async fn memory_counts_for_everything_that_was_started() {
    let small = ProcessLimits { max_memory_bytes: 64 << 20, ..limits() };
    // A grandchild holds it, in a session of its own.
    let script = "setsid sh -c 'x=$(head -c 200000000 /dev/zero | tr \"\\0\" x); sleep 1000' & wait";
    let mut process = start(script, small).await;
    process.expect(Expectation::Nothing);
    assert!(matches!(end(&mut process).await, ProgramEnd::TooMuchMemory { bytes, limit } if bytes > limit));
}

#[tokio::test]
async fn nothing_that_was_started_stays_behind_however_the_program_ends() {
    // One in the group, one in a session of its own, and one of which the parent has ended.
    let others = "sleep 1000 & a=$!; setsid sleep 1001 & b=$!; c=$(setsid sh -c 'sleep 1002 >&- 2>&- & echo $!'); \
                  echo $a $b $c; ";
    for ending in ["read x", "exit 0", "kill -9 $$", "trap '' TERM; while true; do sleep 1; done"] {
        let mut process = start(&format!("{others}{ending}"), limits()).await;
        let pids = line(&mut process).await;
        match ending {
            "read x" => drop(process),
            "exit 0" => assert_eq!(end(&mut process).await, ProgramEnd::Exited(0)),
            "kill -9 $$" => assert_eq!(end(&mut process).await, ProgramEnd::Killed(9)),
            _ => timeout(SOON, process.stop()).await.unwrap(),
        }
        for pid in pids.split(' ') {
            gone(pid).await;
        }
    }
}

#[tokio::test]
async fn what_a_deaf_program_is_told_is_bounded() {
    let tight = ProcessLimits { max_input_bytes: 1_000_000, ..limits() };
    let mut process = start("echo up; exec sleep 1000", tight).await;
    assert_eq!(line(&mut process).await, "up");
    // One of any length fits.
    process.write(vec![b'x'; 2_000_000]).unwrap();
    assert_eq!(process.write(vec![b'x'; 10]), Err(InputFull));
    process.kill(ProgramEnd::Deaf);
    assert_eq!(end(&mut process).await, ProgramEnd::Deaf);
}

#[tokio::test]
async fn a_program_sees_what_is_set_for_it_and_nothing_that_is_not_allowed() {
    let command = ProcessCommand { env: vec![("GIVEN".to_owned(), "a b".to_owned())], ..command("env; echo .") };
    let mut process = Process::start(command, limits()).await.unwrap();
    let mut names = Vec::new();
    loop {
        match line(&mut process).await.as_str() {
            "." => break,
            variable => names.extend(variable.split_once('=').map(|(name, _)| name.to_owned())),
        }
    }
    assert!(names.iter().any(|name| name == "GIVEN") && names.iter().any(|name| name == "PATH"), "{names:?}");
    // Cargo sets many that are on no list.
    assert!(!names.iter().any(|name| name.starts_with("CARGO")), "{names:?}");
}

#[tokio::test]
async fn an_output_that_a_stranger_holds_open_does_not_keep_the_end_away() {
    // It has no mark, because it has cleared its environment, and no group.
    let mut process = start("setsid env -i sleep 30 & echo $!; exit 0", limits()).await;
    let pid = line(&mut process).await;
    assert_eq!(end(&mut process).await, ProgramEnd::Exited(0));
    let _ = std::process::Command::new("kill").arg(&pid).status();
}

#[tokio::test]
async fn lines_that_come_before_a_program_is_ready_do_not_set_its_clock_back() {
    let limits = ProcessLimits { start: Duration::from_millis(300), ..limits() };
    let mut process = start("while sleep 0.05; do echo not yet; done", limits).await;
    assert_eq!(end(&mut process).await, ProgramEnd::NotStarted(Duration::from_millis(300)));
}

#[test]
fn a_turn_that_was_to_stop_has_stopped_however_its_program_was_ended() {
    let time = Duration::from_secs(1);
    for end in [ProgramEnd::NotCancelled(time), ProgramEnd::Idle(time)] {
        assert_eq!(end.reason("words"), ExitReason::Stopped);
    }
    assert!(
        matches!(ProgramEnd::Killed(9).reason("words"), ExitReason::Failed(failure) if failure.message.contains("words"))
    );
}
