//! A progress bar, only where a person sees it and nothing else is printed.

use std::io::{self, IsTerminal};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Below this there is nothing to wait for.
const WORTH_SHOWING: u64 = 1 << 20;

const LENGTH_KNOWN: &str = "{msg}{bar:40} {bytes}/{total_bytes} {bytes_per_sec}";
const LENGTH_UNKNOWN: &str = "{msg}{bytes} {bytes_per_sec}";

/// Shows how far the work has come, or nothing.
#[derive(Debug)]
pub(crate) struct Bar(ProgressBar);

impl Bar {
    /// A bar for one message, whose length comes with [`Bar::expect`].
    pub(crate) fn of_message() -> Self {
        Self(bar(None))
    }

    /// Bars below each other, each with a word before it.
    pub(crate) fn pair(words: [&'static str; 2]) -> [Self; 2] {
        let bars = MultiProgress::new();
        words.map(|word| Self(bars.add(bar(None)).with_message(word)))
    }

    /// A bar for standard input: its length is known when it is a file.
    pub(crate) fn of_input() -> Self {
        Self(bar(input_length()))
    }

    /// Says how many bytes are to come in all.
    pub(crate) fn expect(&self, total: u64) {
        if total >= WORTH_SHOWING {
            self.0.set_length(total);
            self.0.set_style(style(LENGTH_KNOWN));
        }
    }

    /// Says how many bytes have passed.
    pub(crate) fn reach(&self, done: u64) {
        if self.0.length().is_some() || done >= WORTH_SHOWING {
            self.0.set_position(done);
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

fn bar(length: Option<u64>) -> ProgressBar {
    let seen = io::stderr().is_terminal() && !io::stdout().is_terminal();
    if !seen || length.is_some_and(|length| length < WORTH_SHOWING) {
        return ProgressBar::hidden();
    }
    let bar = length.map_or_else(ProgressBar::no_length, ProgressBar::new);
    bar.set_draw_target(ProgressDrawTarget::stderr());
    bar.with_style(style(if length.is_some() { LENGTH_KNOWN } else { LENGTH_UNKNOWN }))
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

#[cfg(unix)]
fn input_length() -> Option<u64> {
    use std::os::fd::AsFd;

    let input = std::fs::File::from(io::stdin().as_fd().try_clone_to_owned().ok()?);
    input.metadata().ok().filter(|meta| meta.is_file()).map(|meta| meta.len())
}

#[cfg(not(unix))]
const fn input_length() -> Option<u64> {
    None
}
