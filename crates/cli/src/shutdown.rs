//! Shutdown signals: the first one asks for an orderly shutdown, a second one ends the program at once.

use std::fmt;
use std::future::Future;
use std::io;

/// The exit status after a second signal: what shells give for SIGINT.
const INTERRUPTED: i32 = 130;

/// The signal that asked for a shutdown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Signal {
    /// SIGINT, or Ctrl-C.
    Interrupt,
    /// SIGTERM.
    Terminate,
    /// SIGHUP.
    Hangup,
}

impl Signal {
    /// The exit status of a program that it cut short, as shells give it.
    pub(crate) const fn status(self) -> u8 {
        match self {
            Self::Hangup => 129,
            Self::Interrupt => 130,
            Self::Terminate => 143,
        }
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Interrupt if cfg!(unix) => "SIGINT",
            Self::Interrupt => "Ctrl-C",
            Self::Terminate => "SIGTERM",
            Self::Hangup => "SIGHUP",
        })
    }
}

/// Waits for SIGINT, SIGTERM or SIGHUP, and gives the name of what came. A second one of the first two ends the program
/// there and then, with all child processes.
///
/// Signals count from this call on, not only while the future is polled. It must be called inside a runtime.
///
/// # Errors
/// The system does not let us listen.
pub(crate) fn requested() -> io::Result<impl Future<Output = Signal> + Send + 'static> {
    let mut signals = Signals::new()?;
    let first = tokio::spawn(async move {
        let name = signals.next().await;
        tokio::spawn(async move {
            signals.again().await;
            breakbulk::link::kill_children();
            std::process::exit(INTERRUPTED);
        });
        name
    });
    // The task ends without a signal only if its runtime ends.
    Ok(async move { first.await.unwrap_or(Signal::Terminate) })
}

/// The signals that end a program, one after the other.
#[cfg(unix)]
pub(crate) struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
    /// None if we were started to outlive the terminal.
    hangup: Option<tokio::signal::unix::Signal>,
}

#[cfg(unix)]
impl Signals {
    pub(crate) fn new() -> io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};

        let hangup = if ignores_hangup() { None } else { Some(signal(SignalKind::hangup())?) };
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())?, hangup })
    }

    /// The next signal. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Signal {
        let hangup = async {
            match &mut self.hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.interrupt.recv() => Signal::Interrupt,
            _ = self.terminate.recv() => Signal::Terminate,
            _ = hangup => Signal::Hangup,
        }
    }

    /// A terminal that is closed may send SIGHUP twice, so SIGHUP never counts as the second signal.
    async fn again(&mut self) {
        while self.next().await == Signal::Hangup {}
    }
}

/// Whether SIGHUP was ignored when we were started, as by `nohup`. If that cannot be found out, it was not.
#[cfg(unix)]
fn ignores_hangup() -> bool {
    const HANGUP: u64 = 1;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & HANGUP != 0)
}

/// The signals that end a program, one after the other.
#[cfg(not(unix))]
pub(crate) struct Signals;

#[cfg(not(unix))]
impl Signals {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self)
    }

    /// The next signal. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Signal {
        match tokio::signal::ctrl_c().await {
            Ok(()) => Signal::Interrupt,
            Err(_) => std::future::pending().await,
        }
    }

    async fn again(&mut self) {
        self.next().await;
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Child, ChildStdout, Command, Stdio};

    use super::*;

    /// Set in the copy of this test program that gets the signals.
    const CHILD: &str = "SHUTDOWN_TEST_CHILD";

    #[test]
    #[ignore = "the test below runs it, in a process of its own"]
    fn child_that_waits_for_signals() {
        assert!(std::env::var_os(CHILD).is_some(), "it waits for signals that nobody sends");
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let requested = requested().unwrap();
            println!("ready");
            io::stdout().flush().unwrap();
            let name = requested.await;
            println!("got {name}");
            io::stdout().flush().unwrap();
            // Longer than any test waits: only a second signal ends it.
            tokio::time::sleep(std::time::Duration::from_secs(60)).await;
        });
    }

    struct Waiting {
        child: Child,
        output: BufReader<ChildStdout>,
    }

    impl Waiting {
        fn start() -> Self {
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "shutdown::tests::child_that_waits_for_signals", "--ignored", "--nocapture"])
                .env(CHILD, "1")
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let output = BufReader::new(child.stdout.take().unwrap());
            let mut waiting = Self { child, output };
            waiting.read_until("ready");
            waiting
        }

        fn signal(&self, name: &str) {
            let status = Command::new("kill").args(["-s", name, &self.child.id().to_string()]).status().unwrap();
            assert!(status.success());
        }

        fn read_until(&mut self, want: &str) {
            let mut line = String::new();
            while !line.trim_end().ends_with(want) {
                line.clear();
                assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "the child ended before {want:?}");
            }
        }
    }

    impl Drop for Waiting {
        fn drop(&mut self) {
            drop(self.child.kill());
            drop(self.child.wait());
        }
    }

    #[test]
    fn the_first_signal_asks_and_the_second_ends() {
        for (first, second) in [("TERM", "INT"), ("INT", "TERM")] {
            let mut waiting = Waiting::start();
            waiting.signal(first);
            waiting.read_until(&format!("got SIG{first}"));
            assert_eq!(waiting.child.try_wait().unwrap(), None);
            waiting.signal(second);
            assert_eq!(waiting.child.wait().unwrap().code(), Some(INTERRUPTED));
        }
    }
}
