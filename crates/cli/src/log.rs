//! The log, on standard error: for people one short line, for programs one object a line.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use tracing::{Level, Subscriber};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{self, FormatTime};

use crate::settings::{LogFormat, LogSettings};

/// How log lines look, once that is known.
static FORMAT: OnceLock<LogFormat> = OnceLock::new();

/// Prints to standard error, whatever the log level, what a person has to know: where we listen, or why we end.
/// For programs it is an object, like every other line there.
pub(crate) fn say(level: Level, text: &str) {
    let line = line(FORMAT.get().copied().unwrap_or(LogFormat::Text), level, text);
    // If this fails, nobody reads standard error.
    let _ = writeln!(io::stderr(), "{line}");
}

fn line(format: LogFormat, level: Level, text: &str) -> String {
    match format {
        LogFormat::Text => format!("breakbulk: {text}"),
        LogFormat::Json => {
            let line = serde_json::json!({
                "timestamp": timestamp(), "level": level.as_str(), "message": text, "target": "breakbulk",
            });
            line.to_string()
        }
    }
}

/// Now, as the log of programs has it.
fn timestamp() -> String {
    let mut text = String::new();
    // Writing to a text does not fail.
    let _ = time::SystemTime.format_time(&mut Writer::new(&mut text));
    text
}

/// Starts the log. Only the first start counts.
pub(crate) fn start(settings: &LogSettings) {
    let _ = FORMAT.set(settings.format);
    // It fails only if there is a log already.
    let _ = tracing::subscriber::set_global_default(subscriber(settings, is_colourful(), io::stderr));
}

fn subscriber<W>(settings: &LogSettings, colours: bool, writer: W) -> Box<dyn Subscriber + Send + Sync>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let log = tracing_subscriber::fmt()
        .with_env_filter(settings.level.filter())
        .with_writer(writer)
        // If standard error is closed, log lines are dropped; they must not cause a panic.
        .log_internal_errors(false)
        .with_ansi(colours && settings.format == LogFormat::Text);
    match settings.format {
        LogFormat::Text => Box::new(log.with_target(false).with_timer(Clock).compact().finish()),
        LogFormat::Json => Box::new(log.json().flatten_event(true).finish()),
    }
}

/// Colours are used in a terminal, unless NO_COLOR is set (no-color.org).
fn is_colourful() -> bool {
    io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// The time of day in UTC, without the date, to keep lines short.
struct Clock;

impl FormatTime for Clock {
    fn format_time(&self, writer: &mut Writer<'_>) -> fmt::Result {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        writer.write_str(&time_of_day(since.as_secs(), since.subsec_millis()))
    }
}

fn time_of_day(seconds: u64, millis: u32) -> String {
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::{Arc, Mutex};

    use tracing::subscriber::with_default;

    use super::*;
    use crate::settings::{LogFormat, LogLevel, Value};

    /// What is logged at `level` while `work` runs.
    pub(crate) fn logged(format: LogFormat, level: &str, colours: bool, work: impl FnOnce()) -> String {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let settings = LogSettings { format, level: LogLevel::parse(level).unwrap() };
        let writer = lines.clone();
        with_default(subscriber(&settings, colours, move || Lines(writer.clone())), work);
        let lines = lines.lock().unwrap().clone();
        String::from_utf8(lines).unwrap()
    }

    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn work() {
        tracing::info!(target: "breakbulk::gateway", bytes = 900_000, "a frame was refused");
        tracing::debug!(target: "breakbulk::gateway", "detail");
        tracing::info!(target: "hyper", "chatter");
        tracing::warn!(target: "hyper", "trouble");
    }

    #[test]
    fn a_line_for_people_has_time_level_message_and_fields() {
        let text = logged(LogFormat::Text, "info", false, work);
        let lines: Vec<&str> = text.lines().collect();
        let without_time: Vec<&str> = lines.iter().map(|line| &line["00:00:00.000Z".len()..]).collect();
        assert_eq!(without_time, ["  INFO a frame was refused bytes=900000", "  WARN trouble"]);
        assert!(lines.iter().all(|line| line.as_bytes()[12] == b'Z'), "{lines:?}");
    }

    #[test]
    fn a_line_for_programs_is_an_object() {
        let text = logged(LogFormat::Json, "debug", true, work);
        let lines: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 3);
        assert_eq!(lines[0]["message"], "a frame was refused");
        assert_eq!((&lines[0]["level"], &lines[0]["bytes"]), (&"INFO".into(), &900_000.into()));
        assert_eq!(lines[0]["target"], "breakbulk::gateway");
    }

    #[test]
    fn a_level_is_for_our_own_words_and_a_filter_for_any() {
        let count = |level| logged(LogFormat::Text, level, false, work).lines().count();
        let counts = ["off", "error", "warn", "info", "debug", "trace", "hyper=info"].map(count);
        assert_eq!(counts, [0, 0, 1, 2, 3, 4, 2]);
    }

    #[test]
    fn what_is_told_looks_like_the_log_of_programs_for_programs() {
        assert_eq!(line(LogFormat::Text, Level::INFO, "listening"), "breakbulk: listening");
        let object: serde_json::Value = line(LogFormat::Json, Level::ERROR, "a \"b\"").parse().unwrap();
        assert_eq!((&object["level"], &object["message"]), (&"ERROR".into(), &"a \"b\"".into()));
    }

    #[test]
    fn what_is_told_to_programs_has_the_time_that_the_log_has() {
        let logged: serde_json::Value = logged(LogFormat::Json, "hyper=warn", false, work).parse().unwrap();
        let told: serde_json::Value = line(LogFormat::Json, Level::INFO, "listening").parse().unwrap();
        let shape =
            |line: &serde_json::Value| line["timestamp"].as_str().unwrap().replace(|c: char| c.is_ascii_digit(), "0");
        assert_eq!((shape(&told), shape(&logged)), ("0000-00-00T00:00:00.000000Z".into(), shape(&told)));
        let keys = |line: &serde_json::Value| line.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        assert_eq!(keys(&told), keys(&logged));
    }

    #[test]
    fn colours_are_only_where_they_are_wanted() {
        assert!(logged(LogFormat::Text, "info", true, work).contains('\u{1b}'));
        assert!(!logged(LogFormat::Text, "info", false, work).contains('\u{1b}'));
        assert!(!logged(LogFormat::Json, "info", true, work).contains('\u{1b}'));
    }

    #[test]
    fn the_time_of_day_is_that_of_utc() {
        assert_eq!(time_of_day(0, 0), "00:00:00.000Z");
        assert_eq!(time_of_day(1_794_756_221, 7), "15:23:41.007Z");
    }
}
