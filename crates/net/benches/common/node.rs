//! Two ends of Node's `ws` package on a loopback WebSocket, each in a thread of its own.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A Node process with both ends, and the message that they carry.
pub(crate) struct Node {
    child: Child,
    orders: ChildStdin,
    said: BufReader<ChildStdout>,
}

impl Node {
    /// Starts it; `None` where Node or the package is missing.
    pub(crate) fn start(text: &str) -> Option<Self> {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let package = here.join("../../interop/node/node_modules/ws");
        if !package.is_dir() {
            return None;
        }
        let script = here.join("benches/common/node.mjs");
        let mut command = Command::new("node");
        let mut child = command.arg(script).arg(package).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().ok()?;
        let (orders, said) = (child.stdin.take()?, BufReader::new(child.stdout.take()?));
        let mut node = Self { child, orders, said };
        node.ask(text);
        Some(node)
    }

    /// Sends the message from one end to the other, where it is parsed or left as it is.
    pub(crate) fn carry(&mut self, parses: bool) {
        self.ask(if parses { "parse" } else { "carry" });
    }

    /// Says a line, and waits for the answer.
    fn ask(&mut self, line: &str) {
        writeln!(self.orders, "{line}").expect("node lives");
        let mut answer = String::new();
        self.said.read_line(&mut answer).expect("node lives");
        assert_eq!(answer, "done\n", "node does what it is told");
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
