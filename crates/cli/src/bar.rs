//! A progress bar, only where a person sees it and nothing else is printed.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use indicatif::{BinaryBytes, MultiProgress, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

/// Shorter messages are done too soon for a bar.
const WORTH_SHOWING: u64 = 1 << 20;

// With a word before it, this is never wider than 80 columns.
const LENGTH_KNOWN: &str = "{msg}{bar:32} {bytes}/{total_bytes} {rate}";
// In narrower terminals the bar takes the columns that the sizes leave.
const LENGTH_KNOWN_NARROW: &str = "{msg}{wide_bar} {bytes}/{total_bytes}";
const LENGTH_UNKNOWN: &str = "{msg}{bytes} {rate}";

/// Shows how far the work has come, or nothing.
#[derive(Debug)]
pub(crate) struct Bar(ProgressBar);

impl Bar {
    /// A bar for one message, whose length comes with [`Bar::expect`].
    pub(crate) fn of_message() -> Self {
        Self(bar(None))
    }

    /// Bars below each other, each with a word before it, for work that prints nothing before they are gone.
    pub(crate) fn pair(words: [&'static str; 2]) -> [Self; 2] {
        // It shows nothing where standard error is no terminal.
        Self::among(&MultiProgress::new(), words)
    }

    fn among(bars: &MultiProgress, words: [&'static str; 2]) -> [Self; 2] {
        let bar = || ProgressBar::no_length().with_style(style(LENGTH_UNKNOWN));
        words.map(|word| Self(bars.add(bar()).with_message(word)))
    }

    /// A bar with a word before it, for work that prints nothing before it is gone.
    pub(crate) fn alone(word: &'static str) -> Self {
        // It shows nothing where standard error is no terminal.
        Self(ProgressBar::no_length().with_style(style(LENGTH_UNKNOWN)).with_message(word))
    }

    /// A bar for standard input: its length is known when it is a file.
    pub(crate) fn of_input() -> Self {
        Self(bar(input_length()))
    }

    /// Sets the total number of bytes. The rate is measured from this call on.
    pub(crate) fn expect(&self, total: u64) {
        if total >= WORTH_SHOWING && self.0.length() != Some(total) {
            self.0.reset_elapsed();
            self.0.set_style(style(length_known(columns())));
            self.0.set_length(total);
        }
    }

    /// Sets how many bytes have passed. If the total is not known, the rate is measured from the first bytes on.
    pub(crate) fn reach(&self, done: u64) {
        if self.0.length().is_none() && self.0.position() == 0 {
            self.0.reset_elapsed();
        }
        if self.0.length().is_some() || done >= WORTH_SHOWING {
            self.0.set_position(done);
        }
    }

    /// How many bytes have passed.
    pub(crate) fn position(&self) -> u64 {
        self.0.position()
    }

    /// Prints a line to standard error, on a line of its own: the bar makes room for it.
    pub(crate) fn say(&self, text: impl fmt::Display) {
        self.say_to(io::stderr(), text);
    }

    fn say_to(&self, mut out: impl Write, text: impl fmt::Display) {
        // If standard error is closed, nobody can read it.
        self.0.suspend(|| drop(writeln!(out, "breakbulk: {text}")));
    }

    /// Says that all has passed.
    pub(crate) fn fill(&self) {
        if let Some(total) = self.0.length() {
            self.0.set_position(total);
            self.0.tick();
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
    bar.with_style(style(if length.is_some() { length_known(columns()) } else { LENGTH_UNKNOWN }))
}

/// How a bar looks in a terminal of this width.
const fn length_known(columns: u16) -> &'static str {
    if columns < 80 { LENGTH_KNOWN_NARROW } else { LENGTH_KNOWN }
}

/// How wide the terminal is.
fn columns() -> u16 {
    let (_, columns) = console::Term::stderr().size();
    columns
}

fn style(template: &str) -> ProgressStyle {
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    style.with_key("rate", |state: &ProgressState, out: &mut dyn fmt::Write| {
        // If it cannot be written, the bar has no rate.
        let _ = out.write_str(&rate(state.pos(), state.elapsed()));
    })
}

/// The average rate. Empty at first: bytes that were there at once would give a wrong rate.
fn rate(bytes: u64, elapsed: Duration) -> String {
    match elapsed.as_millis() {
        ..1000 => String::new(),
        millis => {
            let a_second = u128::from(bytes).saturating_mul(1000).checked_div(millis).unwrap_or(0);
            format!("{}/s", BinaryBytes(u64::try_from(a_second).unwrap_or(u64::MAX)))
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use indicatif::TermLike;
    use std::sync::{Arc, Mutex};

    /// A fake terminal that records everything that was written to it, and knows its last line.
    #[derive(Debug, Clone)]
    struct FakeTerminal(Arc<Mutex<Vec<String>>>, Arc<Mutex<String>>, u16);

    impl Default for FakeTerminal {
        fn default() -> Self {
            Self::of(80)
        }
    }

    impl TermLike for FakeTerminal {
        fn width(&self) -> u16 {
            self.2
        }

        fn move_cursor_up(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn move_cursor_down(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn move_cursor_right(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn move_cursor_left(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn write_line(&self, text: &str) -> io::Result<()> {
            self.write_str(text)
        }

        fn write_str(&self, text: &str) -> io::Result<()> {
            let text = text.trim_end();
            if !text.is_empty() {
                self.0.lock().unwrap().push(text.to_owned());
            }
            self.1.lock().unwrap().push_str(text);
            Ok(())
        }

        fn clear_line(&self) -> io::Result<()> {
            self.1.lock().unwrap().clear();
            Ok(())
        }

        fn flush(&self) -> io::Result<()> {
            Ok(())
        }
    }

    impl FakeTerminal {
        fn of(columns: u16) -> Self {
            Self(Arc::default(), Arc::default(), columns)
        }

        fn bars(&self) -> [Bar; 2] {
            let target = ProgressDrawTarget::term_like(Box::new(self.clone()));
            Bar::among(&MultiProgress::with_draw_target(target), ["sent      ", "received  "])
        }

        fn lines(&self) -> Vec<String> {
            self.0.lock().unwrap().clone()
        }
    }

    /// What a program prints beside the bar: each line must find an empty one.
    impl Write for FakeTerminal {
        fn write(&mut self, text: &[u8]) -> io::Result<usize> {
            let line = String::from_utf8_lossy(text);
            self.0.lock().unwrap().push(format!("{}{line}", self.1.lock().unwrap()));
            Ok(text.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_is_said_stands_on_a_line_of_its_own() {
        let terminal = FakeTerminal::default();
        let bar = ProgressBar::new(2 << 20).with_style(style(LENGTH_KNOWN));
        bar.set_draw_target(ProgressDrawTarget::term_like(Box::new(terminal.clone())));
        let bar = Bar(bar);
        bar.reach(1 << 20);
        assert!(terminal.1.lock().unwrap().contains("1.00 MiB/2.00 MiB"), "{terminal:?}");
        let mut said = io::LineWriter::new(terminal.clone());
        bar.say_to(&mut said, "line 3: a group begins twice");
        assert!(terminal.lines().contains(&"breakbulk: line 3: a group begins twice\n".to_owned()), "{terminal:?}");
        // The bar is drawn again.
        assert!(terminal.1.lock().unwrap().contains("1.00 MiB/2.00 MiB"), "{terminal:?}");
    }

    #[test]
    fn a_short_message_shows_nothing() {
        let terminal = FakeTerminal::default();
        let [there, back] = terminal.bars();
        for bar in [&there, &back] {
            bar.expect(WORTH_SHOWING - 1);
            bar.reach(1000);
            bar.fill();
        }
        drop((there, back));
        assert_eq!(terminal.lines(), Vec::<String>::new());
    }

    #[test]
    fn a_long_message_has_a_bar_from_the_start_that_fits_a_line_and_fills() {
        let terminal = FakeTerminal::default();
        let [there, _back] = terminal.bars();
        for done in [0, 900 << 10, 1000 << 10] {
            there.expect(1023 << 20);
            there.reach(done << 10);
        }
        there.fill();
        let lines = terminal.lines();
        let is_bar = |line: &String| line.starts_with("sent      ") && line.contains("/1023.00 MiB");
        assert!(!lines.is_empty() && lines.iter().all(|line| is_bar(line) && line.chars().count() <= 80), "{lines:?}");
        assert!(lines.last().unwrap().contains("1023.00 MiB/1023.00 MiB"), "{lines:?}");
    }

    #[test]
    fn a_bar_fits_a_narrow_terminal() {
        for columns in [40, 60, 79, 80] {
            let terminal = FakeTerminal::of(columns);
            let bar = ProgressBar::new(1023 << 20).with_style(style(length_known(columns)));
            bar.set_draw_target(ProgressDrawTarget::term_like(Box::new(terminal.clone())));
            let bar = Bar(bar.with_message("received  "));
            bar.0.set_elapsed(Duration::from_secs(2));
            bar.reach(1022 << 20);
            let lines = terminal.lines();
            let fits = |line: &String| line.contains("MiB/1023.00 MiB") && line.chars().count() <= columns.into();
            assert!(!lines.is_empty() && lines.iter().all(fits), "{columns}: {lines:?}");
        }
    }

    #[test]
    fn the_rate_is_that_of_the_whole_and_not_of_the_first_moment() {
        assert_eq!(rate(3 << 20, Duration::from_millis(999)), "");
        assert_eq!(rate(3 << 20, Duration::from_millis(1500)), "2.00 MiB/s");
    }
}
