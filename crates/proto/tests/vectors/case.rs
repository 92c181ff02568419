//! One case: its setup, what happens in it and what it expects.

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value};

use super::build::Setup;
use super::drive::{self, Watch};
use super::expect::Expect;
use super::scan;
use super::step::Step;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Dialect {
    Ahp,
    Cep22,
    Stdio,
    Plain,
    /// The check of JSON texts.
    Json,
    /// The reading of numbers and strings.
    Scalar,
}

/// Whose rule a case is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Side {
    Receive,
    Send,
}

/// What became of a case.
pub(crate) enum Outcome {
    AsExpected,
    /// It fails, and says why that is known.
    KnownGap(String),
    /// It fails, or passes although it says that it does not.
    Wrong(String),
}

/// One case.
pub(crate) struct Case {
    subject: String,
    name: String,
    hostile: bool,
    known_gap: Option<String>,
    body: Body,
}

enum Body {
    Machine { dialect: Dialect, setup: Box<Setup>, steps: Vec<Step>, expect: Box<Expect> },
    Text(scan::TextCase),
    Scalar(scan::ScalarCase),
}

impl Case {
    pub(super) fn read(
        subject: &str,
        dialect: Dialect,
        shared: &Map<String, Value>,
        label: &str,
        text: &str,
    ) -> Result<Self, String> {
        let Titled { name, hostile, known_gap } = parse(text)?;
        if name.is_empty() {
            return Err("a case needs a name".into());
        }
        let body = match dialect {
            Dialect::Json => Body::Text(parse(text)?),
            Dialect::Scalar => Body::Scalar(parse(text)?),
            _ => Self::machine(dialect, shared, parse(text)?)?,
        };
        let name = if label.is_empty() { name } else { format!("{name} ({label})") };
        Ok(Self { subject: subject.to_owned(), name, hostile, known_gap, body })
    }

    fn machine(dialect: Dialect, shared: &Map<String, Value>, written: Written) -> Result<Body, String> {
        let Written { side, setup, steps, expect, .. } = written;
        let receives = |step: &Step| {
            matches!(
                step,
                Step::Frame(_) | Step::FrameFrom(_) | Step::Segment(..) | Step::Segments(_) | Step::Flood { .. }
            )
        };
        let sends =
            |step: &Step| matches!(step, Step::Send(_) | Step::SendFree(_) | Step::SendTo(_) | Step::SendMany { .. });
        let told = match side {
            Side::Receive => steps.iter().any(receives),
            Side::Send => steps.iter().any(sends),
        };
        if !told {
            return Err(format!("nothing in it is about the side {side:?}"));
        }
        let setup = Box::new(Setup::read(merged(shared.clone(), setup))?);
        Ok(Body::Machine { dialect, setup, steps, expect })
    }

    /// The file that it is in.
    pub(crate) fn subject(&self) -> &str {
        &self.subject
    }

    pub(crate) fn title(&self) -> String {
        format!("{}: {}", self.subject, self.name)
    }

    /// Whether a peer that means ill is in it.
    pub(crate) const fn is_hostile(&self) -> bool {
        self.hostile
    }

    pub(crate) fn run(&self) -> Outcome {
        match (self.verdict(&mut ()), &self.known_gap) {
            (Ok(()), None) => Outcome::AsExpected,
            (Err(_), Some(reason)) => Outcome::KnownGap(reason.clone()),
            (Err(how), None) => Outcome::Wrong(how),
            (Ok(()), Some(reason)) => Outcome::Wrong(format!("passes, though it is a known gap: {reason}")),
        }
    }

    /// Runs it while somebody looks on, whatever comes out: whether it is right is the question of [`run`](Self::run).
    pub(crate) fn watch(&self, watch: &mut dyn Watch) {
        let _ = self.verdict(watch);
    }

    fn verdict(&self, watch: &mut dyn Watch) -> Result<(), String> {
        match &self.body {
            Body::Machine { dialect, setup, steps, expect } => drive::run(*dialect, setup, steps, expect, watch),
            Body::Text(case) => case.run(),
            Body::Scalar(case) => case.run(),
        }
    }
}

/// What every case has.
#[derive(Deserialize)]
struct Titled {
    name: String,
    /// A peer that means ill is in it.
    #[serde(default)]
    hostile: bool,
    /// Why it fails today. Such a case is printed, and must go on failing until this is removed.
    #[serde(default)]
    known_gap: Option<String>,
}

/// A case of a machine, as written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "the fields of Titled are named here only because unknown ones are refused")]
struct Written {
    name: IgnoredAny,
    #[serde(default)]
    each: IgnoredAny,
    #[serde(default)]
    hostile: IgnoredAny,
    #[serde(default)]
    known_gap: IgnoredAny,
    side: Side,
    #[serde(default)]
    setup: Map<String, Value>,
    steps: Vec<Step>,
    expect: Box<Expect>,
}

fn parse<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, String> {
    serde_json::from_str(text).map_err(|error| error.to_string())
}

/// `over` laid over `base`, objects inside of them too.
fn merged(mut base: Map<String, Value>, over: Map<String, Value>) -> Map<String, Value> {
    for (key, value) in over {
        let value = match (base.remove(&key), value) {
            (Some(Value::Object(under)), Value::Object(over)) => Value::Object(merged(under, over)),
            (_, value) => value,
        };
        base.insert(key, value);
    }
    base
}
