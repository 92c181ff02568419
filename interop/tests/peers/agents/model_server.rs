//! A fake of a model's service, in Node, for agents that need a model.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};

use crate::peer::node;
use crate::program::file;

/// A service that runs. Dropping it ends the process.
pub(super) struct ModelServer {
    child: Child,
    /// Where it listens, such as `http://127.0.0.1:40000`.
    pub(super) url: String,
}

impl ModelServer {
    /// Starts the one in this script, and waits until it listens.
    pub(super) fn start(script: &str) -> Self {
        let mut child = node().arg(file(script)).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut url = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut url).unwrap();
        assert!(url.starts_with("http://"), "{script} says {url:?}");
        Self { child, url: url.trim().to_owned() }
    }
}

impl Drop for ModelServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
