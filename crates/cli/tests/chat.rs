//! A person, or a script in their place, talks to the demo agent of a real host.
#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

fn breakbulk(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_breakbulk"));
    command.args(args).current_dir(dir).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command
}

/// A program that says where it listens, until it is dropped.
struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn start(dir: &Path, args: &[&str]) -> Self {
        let mut child = breakbulk(dir, args).spawn().unwrap();
        let mut errors = BufReader::new(child.stderr.take().unwrap());
        let address = loop {
            let mut line = String::new();
            assert!(errors.read_line(&mut line).unwrap() > 0, "it has ended");
            if let Some(address) = line.trim().strip_prefix("breakbulk: listening on ") {
                break address.to_owned();
            }
        };
        // What it logs is read, or it would wait.
        std::thread::spawn(move || drop(std::io::copy(&mut errors, &mut std::io::sink())));
        Self { child, address }
    }

    /// A host whose root is `root`, with a demo that hurries.
    fn host(dir: &Path, more: &[&str]) -> Self {
        std::fs::create_dir_all(dir.join("root")).unwrap();
        let args = ["serve", "--data", "data", "--root", "root", "--listen", ":0", "--demo-pace", "1ms"];
        Self::start(dir, &[&args[..], more].concat())
    }

    fn kill(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A conversation of which all lines are known before.
fn chat(dir: &Path, address: &str, more: &[&str], lines: &str) -> Output {
    let mut child = breakbulk(dir, &[&["chat", address], more].concat()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn place() -> TempDir {
    tempfile::tempdir().unwrap()
}

#[test]
fn lines_of_a_pipe_are_prompts_and_answers_are_printed() {
    let dir = place();
    let host = Server::host(dir.path(), &[]);
    let output = chat(dir.path(), &host.address, &[], "Hello there\n\nAnd again\n");
    let printed = text(&output);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let (first, second) = (printed.find("Hello there"), printed.find("And again"));
    assert!(first.is_some() && first < second, "{printed}");
    assert!(printed.starts_with("I am the **demo** agent") && printed.ends_with('\n'), "{printed}");
    // What is no answer is on the other side.
    let notes = String::from_utf8(output.stderr).unwrap();
    assert!(notes.starts_with("breakbulk: New session ahp-session:/"), "{notes}");
}

#[test]
fn calls_are_shown_and_run_only_if_they_are_allowed() {
    let dir = place();
    let host = Server::host(dir.path(), &[]);
    let output = chat(
        dir.path(),
        &host.address,
        &[],
        "/run touch allowed\nyes\n/run touch denied\nno\n/run touch unanswered\nHi\n",
    );
    let printed = text(&output);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let made = |name: &str| dir.path().join("root").join(name).exists();
    assert!(made("allowed") && !made("denied") && !made("unanswered"), "{printed}");
    assert_eq!(printed.matches("? Demo: run a command").count(), 3, "{printed}");
    assert!(printed.contains("✓ Ran ") && printed.contains("✗ "), "{printed}");
    // A line that is no answer is the next prompt.
    assert!(printed.contains("Hi"), "{printed}");
    let unasked = chat(dir.path(), &host.address, &[], "/run touch at-the-end\n");
    assert!(unasked.status.success() && !made("at-the-end"), "{unasked:?}");
}

#[test]
fn a_session_goes_on_where_it_was_and_a_failed_turn_is_a_failure() {
    let dir = place();
    let host = Server::host(dir.path(), &[]);
    assert!(chat(dir.path(), &host.address, &[], "My name is Ada\n").status.success());
    let recalled = text(&chat(dir.path(), &host.address, &["--session", "last"], "/recall\n"));
    assert!(recalled.contains("My name is Ada"), "{recalled}");
    let fresh = text(&chat(dir.path(), &host.address, &["--new"], "/recall\n"));
    assert!(!fresh.contains("My name is Ada"), "{fresh}");
    let failed = chat(dir.path(), &host.address, &[], "/fail\n");
    assert_eq!((failed.status.code(), text(&failed).contains("(failed: ")), (Some(1), true), "{failed:?}");
    let why = String::from_utf8_lossy(&failed.stderr).into_owned();
    assert!(why.contains("breakbulk: the turn failed: "), "{why}");
    let unknown = chat(dir.path(), &host.address, &["--session", "nothing-like-it"], "");
    assert_eq!(unknown.status.code(), Some(2), "{unknown:?}");
    let agent = chat(dir.path(), &host.address, &["--agent", "nobody"], "Hi\n");
    assert_eq!(agent.status.code(), Some(1), "{agent:?}");
    let errors = String::from_utf8_lossy(&agent.stderr).into_owned();
    assert!(errors.ends_with("breakbulk: --agent \"nobody\": the host has: demo\n"), "{errors}");
}

#[test]
fn programs_get_objects() {
    let dir = place();
    let host = Server::host(dir.path(), &[]);
    let output = chat(dir.path(), &host.address, &["--format", "json"], "/edit a.txt hello\ny\n");
    assert!(output.status.success(), "{output:?}");
    let objects: Vec<Value> = text(&output).lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    let kinds: Vec<&str> = objects.iter().map(|object| object["type"].as_str().unwrap()).collect();
    let begun = &objects[0];
    assert!(begun["session"].as_str().unwrap().starts_with("ahp-session:/") && begun["agent"] == "demo", "{begun}");
    assert_eq!((kinds[0], kinds[1], kinds[kinds.len() - 1]), ("session", "turn", "end"), "{kinds:?}");
    let confirm = objects.iter().find(|object| object["type"] == "confirm").unwrap();
    assert!(confirm["text"].as_str().unwrap().contains("write 6 bytes to a.txt"), "{confirm}");
    let tool = objects.iter().find(|object| object["status"] == "completed").unwrap();
    assert_eq!(tool["call"], confirm["call"]);
    assert_eq!(objects.last().unwrap()["state"], "complete");
    let empty = objects.iter().find(|object| object["content"] == "");
    assert_eq!(empty, None);
    assert_eq!(std::fs::read_to_string(dir.path().join("root/a.txt")).unwrap(), "hello\n");
}

/// How long something that has to be printed may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a program prints, as it comes.
struct Printed {
    bytes: mpsc::Receiver<u8>,
    /// All of it.
    seen: Vec<u8>,
    /// How much of that was looked for already.
    passed: usize,
}

impl Printed {
    fn by(mut out: impl Read + Send + 'static) -> Self {
        let (say, bytes) = mpsc::channel();
        std::thread::spawn(move || {
            let mut byte = [0];
            // The end of a terminal is an error.
            while out.read(&mut byte).is_ok_and(|read| read > 0) && say.send(byte[0]).is_ok() {}
        });
        Self { bytes, seen: Vec::new(), passed: 0 }
    }

    /// Reads on until something was printed that was not looked for before.
    fn until(&mut self, want: &str) {
        while !String::from_utf8_lossy(&self.seen[self.passed..]).contains(want) {
            match self.bytes.recv_timeout(PATIENCE) {
                Ok(byte) => self.seen.push(byte),
                Err(error) => panic!("{error} before {want:?}: {}", self.text()),
            }
        }
        self.passed = self.seen.len();
    }

    /// Reads to the end.
    fn finish(&mut self) -> String {
        self.seen.extend(self.bytes.iter());
        self.text()
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.seen).into_owned()
    }
}

/// A conversation that goes on while it is looked at.
struct Live {
    child: Child,
    out: Printed,
    notes: Printed,
}

impl Live {
    fn start(dir: &Path, address: &str) -> Self {
        let mut child = breakbulk(dir, &["chat", address]).spawn().unwrap();
        let out = Printed::by(child.stdout.take().unwrap());
        let notes = Printed::by(child.stderr.take().unwrap());
        Self { child, out, notes }
    }

    fn say(&mut self, line: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    fn interrupt(&self) {
        assert!(Command::new("kill").args(["-s", "INT", &self.child.id().to_string()]).status().unwrap().success());
    }

    /// Says nothing more; everything that was printed, what was said aside, and the status.
    fn end(mut self) -> (String, String, Option<i32>) {
        drop(self.child.stdin.take());
        let printed = self.out.finish();
        (printed, self.notes.finish(), self.child.wait().unwrap().code())
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[test]
fn one_interrupt_ends_the_turn_and_a_second_one_the_conversation() {
    let dir = place();
    let host = Server::host(dir.path(), &["--demo-slow-pace", "1s"]);
    let mut live = Live::start(dir.path(), &host.address);
    live.say("/slow Never to be finished");
    live.out.until("I");
    live.interrupt();
    live.out.until("(interrupted)");
    live.say("Short");
    live.out.until("Short");
    let (_, _, status) = live.end();
    assert_eq!(status, Some(0));

    let mut live = Live::start(dir.path(), &host.address);
    live.say("/run sleep 1000");
    live.out.until("? Demo: run a command");
    live.interrupt();
    live.out.until("(interrupted)");
    live.interrupt();
    // Its input is still open.
    assert_eq!(live.child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_drop_in_the_middle_of_an_answer_is_told_and_nothing_of_it_is_lost_or_repeated() {
    let dir = place();
    let host = Server::host(dir.path(), &["--demo-slow-pace", "150ms"]);
    let prompt = "/slow One two three four five six seven eight nine ten";
    let whole = text(&chat(dir.path(), &host.address, &[], &format!("{prompt}\n")));
    let bridge = |listen: &str| {
        Server::start(dir.path(), &["bridge", "-q", "--no-auth", "--listen", listen, "--connect", &host.address])
    };
    let mut first = bridge(":0");
    let address = first.address.clone();
    let mut live = Live::start(dir.path(), &address);
    live.say(prompt);
    live.out.until("demo");
    first.kill();
    live.notes.until("breakbulk: Disconnected; reconnecting …\n");
    live.notes.until("refused the connection: nobody listens there; trying again\n");
    let _second = bridge(address.strip_prefix("ws://").unwrap());
    let (printed, notes, status) = live.end();
    assert_eq!(status, Some(0), "{notes}");
    assert_eq!(printed, whole);
    assert!(notes.contains("breakbulk: Connected again.\n"), "{notes}");
    // Each cause is told once, however often it is the cause.
    assert_eq!(notes.matches("Cannot connect: ").count(), 1, "{notes}");
}

#[test]
fn who_cannot_connect_is_told_why_at_once() {
    let dir = place();
    let host = Server::host(dir.path(), &[]);
    let bare = host.address.split('#').next().unwrap();
    let refused = chat(dir.path(), bare, &[], "Hi\n");
    let errors = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!((refused.status.code(), errors.contains("401")), (Some(1), true), "{errors}");
    assert!(
        errors.contains("the host needs its token: use the address that `serve` printed, with #token="),
        "{errors}"
    );
    let sent = breakbulk(dir.path(), &["send", bare, "--method", "ping"]).output().unwrap();
    let errors = String::from_utf8_lossy(&sent.stderr).into_owned();
    assert!(errors.contains("the peer needs its token: ") && !errors.contains("BREAKBULK_TOKEN"), "{errors}");
    let plain = chat(dir.path(), &format!("{bare}?dialect=plain"), &[], "");
    assert_eq!(plain.status.code(), Some(2), "{plain:?}");
}

#[test]
fn an_address_without_scheme_or_path_is_that_of_a_host() {
    let dir = place();
    let host = Server::host(dir.path(), &[]);
    let (bare, token) = host.address.split_once("/ahp#").unwrap();
    let place = bare.strip_prefix("ws://").unwrap();
    for address in [format!("{place}#{token}"), format!("{bare}#{token}"), format!("{place}/ahp#{token}")] {
        let output = chat(dir.path(), &address, &["--new"], "Hello\n");
        assert!(output.status.success(), "{address}: {output:?}");
    }
    let sent = breakbulk(dir.path(), &["send", &format!("{place}/ahp#{token}"), "--method", "ping"]).output().unwrap();
    assert!(sent.status.success(), "{sent:?}");
    let lost = breakbulk(dir.path(), &["send", &format!("{place}#{token}"), "--method", "ping"]).output().unwrap();
    let errors = String::from_utf8_lossy(&lost.stderr).into_owned();
    assert!(errors.contains("There is no WebSocket at this path. It is at /ahp and /v2."), "{errors}");
    let wrong = breakbulk(dir.path(), &["chat", "foo"]).output().unwrap();
    let errors = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert!(errors.starts_with("breakbulk: URL is \"foo\" (argument): unknown scheme"), "{errors}");
}

#[test]
fn a_shell_that_is_not_there_is_told_at_the_start() {
    let dir = place();
    std::fs::create_dir_all(dir.path().join("root")).unwrap();
    let args = ["serve", "--data", "data", "--root", "root", "--listen", ":0", "--shell", "/nonexistent/shell"];
    let mut child = breakbulk(dir.path(), &args).spawn().unwrap();
    let mut errors = Printed::by(child.stderr.take().unwrap());
    errors.until("there is no file /nonexistent/shell: terminals cannot be started; see --shell");
    drop(child.kill());
    drop(child.wait());
}

/// What a host that is not there does with its clients.
#[derive(Clone, Copy)]
enum Pretence {
    /// It says nothing.
    Silent,
    /// It answers the first request with an error.
    Refuses,
    /// It hangs up.
    HangsUp,
}

/// Something that takes connections and is no host. Every line is a message there.
fn pretend(dir: &Path, pretence: Pretence) -> String {
    let path = dir.join("pretence.sock");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    std::thread::spawn(move || {
        let mut open = Vec::new();
        while let Ok((mut stream, _)) = listener.accept() {
            match pretence {
                Pretence::HangsUp => continue,
                Pretence::Silent => {}
                Pretence::Refuses => {
                    let mut line = String::new();
                    BufReader::new(stream.try_clone().unwrap()).read_line(&mut line).unwrap();
                    let id = serde_json::from_str::<Value>(&line).unwrap()["id"].clone();
                    let error = serde_json::json!({"code": -32000, "message": "closed for lunch"});
                    let answer = serde_json::json!({"jsonrpc": "2.0", "id": id, "error": error});
                    writeln!(stream, "{answer}").unwrap();
                }
            }
            open.push(stream);
        }
    });
    format!("unix:{}", path.display())
}

#[test]
fn a_script_is_told_at_once_why_the_first_handshake_failed() {
    for (pretence, want) in [
        (Pretence::Silent, "cannot connect: the handshake was not answered within 1 s"),
        (Pretence::Refuses, "cannot connect: the host refused to begin: closed for lunch (-32000)"),
        (Pretence::HangsUp, "cannot connect: "),
    ] {
        let dir = place();
        let address = pretend(dir.path(), pretence);
        let output = chat(dir.path(), &address, &["--new", "--connect-timeout", "1s"], "Hi\n");
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), errors.contains(want)), (Some(1), true), "{errors}");
        assert_eq!(errors.lines().count(), 1, "{errors}");
    }
}

#[test]
fn a_person_is_told_why_the_first_handshake_failed_while_it_is_tried_again() {
    let dir = place();
    let address = pretend(dir.path(), Pretence::Refuses);
    let mut person = Person::sit_down(dir.path(), &address);
    let why = "Cannot connect: the host refused to begin: closed for lunch (-32000); trying again";
    person.screen.until(why);
    std::fs::remove_file(dir.path().join("pretence.sock")).unwrap();
    // It is tried again, and there is another cause now.
    person.screen.until("cannot be reached");
    assert_eq!(person.screen.text().matches(why).count(), 1, "{}", person.screen.text());
}

#[test]
fn a_question_that_somebody_else_answered_is_withdrawn() {
    let dir = place();
    let host = Server::host(dir.path(), &[]);
    let mut asking = Person::sit_down(dir.path(), &host.address);
    asking.screen.until("> ");
    let mut other = Person::start(dir.path(), &host.address, &["--session", "last"]);
    other.screen.until("> ");
    for (answer, said, made) in [("y\r", "allowed", true), ("n\r", "denied", false)] {
        asking.press(&format!("/run touch {said}\r"));
        asking.screen.until("Allow it? [y/n]");
        other.screen.until("? Demo: run a command");
        other.press(answer);
        asking.screen.until(&format!("Another client {said} it: the question is withdrawn."));
        // Too late, and no prompt either.
        asking.press("y\r");
        asking.screen.until("your answer was not sent");
        asking.screen.until("> ");
        assert_eq!(dir.path().join("root").join(said).exists(), made);
    }
    let recalled = text(&chat(dir.path(), &host.address, &["--session", "last"], "/recall\n"));
    assert!(recalled.contains("touch denied") && !recalled.contains("\"y\""), "{recalled}");
}

#[test]
fn whose_session_is_gone_chooses_another_and_a_script_ends() {
    let dir = place();
    let mut host = Server::host(dir.path(), &["--token", "0123456789abcdef"]);
    let address = format!("{}#token=0123456789abcdef", host.address);
    let mut person = Person::sit_down(dir.path(), &address);
    person.screen.until("> ");
    let mut live = Live::start(dir.path(), &address);
    live.say("Hello");
    live.out.until("Hello");
    host.kill();
    std::fs::remove_dir_all(dir.path().join("data")).unwrap();
    let listen = host.address.strip_prefix("ws://").unwrap().to_owned();
    let args = ["serve", "--data", "data", "--root", "root", "--token", "0123456789abcdef", "--listen"];
    let _host = Server::start(dir.path(), &[&args[..], &[&listen]].concat());
    live.notes.until("is gone");
    let (_, notes, status) = live.end();
    assert_eq!(status, Some(1), "{notes}");
    person.screen.until("Connected again.");
    person.screen.until("is gone.");
    person.screen.until("New session");
    person.press("Still there?\r");
    person.screen.until("I am the");
}

#[test]
fn that_another_client_disposes_of_the_session_is_said_when_it_happens() {
    let dir = place();
    let host = Server::host(dir.path(), &[]);
    let mut live = Live::start(dir.path(), &host.address);
    live.say("Hello");
    live.out.until("Hello");
    let send = |method: &str, params: &str| {
        let sent =
            breakbulk(dir.path(), &["send", &host.address, "--method", method, "--params", params]).output().unwrap();
        assert!(sent.status.success(), "{sent:?}");
        serde_json::from_slice::<Value>(&sent.stdout).unwrap_or_default()
    };
    let mut person = Person::start(dir.path(), &host.address, &["--session", "last"]);
    person.screen.until("> ");
    let listed = send("listSessions", r#"{"channel":"ahp-root://"}"#);
    let session = listed["items"][0]["resource"].as_str().expect("a session");
    send("disposeSession", &format!(r#"{{"channel":"{session}"}}"#));
    live.notes.until("is gone");
    let (_, notes, status) = live.end();
    assert_eq!(status, Some(1), "{notes}");
    person.screen.until("is gone.");
}

/// A terminal that is read in a thread of its own.
struct Terminal(Arc<pty_process::blocking::Pty>);

impl Read for Terminal {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        (&*self.0).read(buffer)
    }
}

/// A person at a terminal.
struct Person {
    child: Child,
    terminal: Arc<pty_process::blocking::Pty>,
    screen: Printed,
}

impl Person {
    fn sit_down(dir: &Path, address: &str) -> Self {
        Self::start(dir, address, &["--new"])
    }

    fn start(dir: &Path, address: &str, more: &[&str]) -> Self {
        let (terminal, other_end) = pty_process::blocking::open().unwrap();
        terminal.resize(pty_process::Size::new(40, 100)).unwrap();
        let command = pty_process::blocking::Command::new(env!("CARGO_BIN_EXE_breakbulk"));
        let command =
            command.args([&["chat", address], more].concat()).current_dir(dir).env_clear().env("TERM", "xterm");
        let child = command.spawn(other_end).unwrap();
        let terminal = Arc::new(terminal);
        let screen = Printed::by(Terminal(Arc::clone(&terminal)));
        Self { child, terminal, screen }
    }

    fn press(&mut self, keys: &str) {
        (&*self.terminal).write_all(keys.as_bytes()).unwrap();
    }
}

impl Drop for Person {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[test]
fn at_a_terminal_one_is_asked_interrupts_and_sees_what_others_do_in_whole_lines() {
    let dir = place();
    let host = Server::host(dir.path(), &["--demo-slow-pace", "1s"]);
    let mut person = Person::sit_down(dir.path(), &host.address);
    person.screen.until("> ");
    person.press("/run touch made\r");
    person.screen.until("Allow it? [y/n]");
    person.press("perhaps\r");
    person.screen.until("Please say y");
    person.press("y\r");
    person.screen.until("It is done.");
    assert!(dir.path().join("root/made").exists(), "{}", person.screen.text());
    person.screen.until("> ");
    person.press("/slow One\r");
    // In the answer, not in the line that was typed.
    person.screen.until("demo");
    person.press("\u{3}");
    person.screen.until("(interrupted)");
    person.screen.until("> ");
    let output = chat(dir.path(), &host.address, &["--session", "last"], "/recall\n");
    assert!(output.status.success(), "{output:?}");
    let answer = text(&output);
    let line = answer.lines().max_by_key(|line| line.len()).unwrap();
    person.screen.until(line);
    // Nobody is answering: this leaves.
    person.press("\u{3}");
    assert_eq!(person.child.wait().unwrap().code(), Some(0), "{}", person.screen.text());
}
