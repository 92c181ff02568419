//! A host in a process of its own, so that its memory is nobody else's. The process is this bench again.

use std::io::{BufRead, BufReader, Lines, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::runtime::Runtime;

use crate::host::Host;

/// By this word the bench knows that it is to be the host.
const WORD: &str = "--as-host";

/// A host in another process.
pub(crate) struct Other {
    process: Child,
    ask: Option<ChildStdin>,
    answers: Lines<BufReader<ChildStdout>>,
    pub(crate) address: SocketAddr,
}

/// What a process has in memory, in bytes.
#[derive(Clone, Copy)]
pub(crate) struct Memory {
    /// Now.
    pub(crate) resident: f64,
    /// At most so far.
    pub(crate) peak: f64,
}

impl Other {
    /// Starts a host on the log in this directory.
    pub(crate) fn start(dir: &Path) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args([WORD.as_ref(), dir.as_os_str()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (ask, answers) = (process.stdin.take(), BufReader::new(process.stdout.take().unwrap()));
        let mut answers = answers.lines();
        let address = answers.next().unwrap().unwrap().parse().unwrap();
        Self { process, ask, answers, address }
    }

    /// What it has in memory.
    pub(crate) fn memory(&mut self) -> Memory {
        writeln!(self.ask.as_mut().unwrap(), "memory").unwrap();
        let line = self.answers.next().unwrap().unwrap();
        let mut figures = line.split(' ').map(|figure| figure.parse().unwrap());
        Memory { resident: figures.next().unwrap(), peak: figures.next().unwrap() }
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        // It ends with its input.
        drop(self.ask.take());
        self.process.wait().unwrap();
    }
}

/// Is the host, if that is what this process was started for; whether it was.
pub(crate) fn is_host(runtime: &Runtime) -> bool {
    let mut arguments = std::env::args_os().skip_while(|argument| argument != WORD).skip(1);
    let Some(dir) = arguments.next() else { return false };
    raise_file_limit();
    let host = runtime.block_on(Host::open(dir.as_ref()));
    println!("{}", host.address);
    for _ in std::io::stdin().lines() {
        let Memory { resident, peak } = here();
        println!("{resident} {peak}");
    }
    true
}

/// As many open files as the system allows this process; how many that is.
pub(crate) fn raise_file_limit() -> u64 {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Whoever may not raise it has what there is.
    let _ = setrlimit(Resource::Nofile, limit);
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// What this process has in memory.
fn here() -> Memory {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let figure = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.split_whitespace().next().unwrap().parse::<f64>().unwrap() * 1024.0
    };
    Memory { resident: figure("VmRSS:"), peak: figure("VmHWM:") }
}
