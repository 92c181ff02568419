//! Cases of the JSON reader: the same verdict however the text is cut, and scalars by their value.

use breakbulk_proto::json::{self, Fault, JsonError, Number, Scanner, Utf8};
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::text::Text;

/// A text and the verdict on it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "what every case has is named here only because unknown fields are refused")]
pub(super) struct TextCase {
    name: IgnoredAny,
    #[serde(default)]
    each: IgnoredAny,
    #[serde(default)]
    hostile: IgnoredAny,
    #[serde(default)]
    known_gap: IgnoredAny,
    text: Text,
    verdict: Verdict,
    /// Where the fault is.
    #[serde(default)]
    at: Option<u64>,
    /// How deep it may be nested.
    #[serde(default)]
    depth: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    Valid,
    Syntax,
    TooDeep,
    SecondValue,
    Unfinished,
    NotUtf8,
}

/// Texts up to this length are cut at every byte, longer ones at this many.
const CUTS: usize = 600;

impl TextCase {
    pub(super) fn run(&self) -> Result<(), String> {
        let text = &self.text.0;
        let want = (self.verdict, self.at);
        let check = |how: String, pieces: &[&[u8]]| match verdict(pieces, self.depth.unwrap_or(u32::MAX)) {
            got if got == want => Ok(()),
            got => Err(format!("{how}: got {got:?}, want {want:?}")),
        };
        check("whole".into(), &[text])?;
        let step = text.len().div_ceil(CUTS).max(1);
        for at in (0..=text.len()).step_by(step) {
            let (front, back) = text.split_at(at);
            check(format!("cut at {at}"), &[front, back])?;
            check(format!("cut at {at} and with an empty piece"), &[front, &[], back])?;
        }
        check("byte by byte".into(), &text.chunks(1).collect::<Vec<_>>())
    }
}

/// UTF-8 first, as the machines do: what is not text is not looked at as JSON.
fn verdict(pieces: &[&[u8]], max_depth: u32) -> (Verdict, Option<u64>) {
    let mut utf8 = Utf8::default();
    let mut scanner = Scanner::with_max_depth((), max_depth);
    let text = pieces.iter().try_for_each(|piece| utf8.feed(piece)).and_then(|()| utf8.finish());
    let value = || pieces.iter().try_for_each(|piece| scanner.feed(piece)).and_then(|()| scanner.finish().map(|_| ()));
    let Err(JsonError { fault, offset }) = text.and_then(|()| value()) else {
        return (Verdict::Valid, None);
    };
    match fault {
        Fault::Syntax => (Verdict::Syntax, Some(offset)),
        Fault::TooDeep => (Verdict::TooDeep, Some(offset)),
        Fault::SecondValue => (Verdict::SecondValue, Some(offset)),
        Fault::Unfinished => (Verdict::Unfinished, None),
        Fault::Utf8 => (Verdict::NotUtf8, Some(offset)),
    }
}

/// A scalar as it is written, and what it stands for.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "what every case has is named here only because unknown fields are refused")]
pub(super) struct ScalarCase {
    name: IgnoredAny,
    #[serde(default)]
    each: IgnoredAny,
    #[serde(default)]
    hostile: IgnoredAny,
    #[serde(default)]
    known_gap: IgnoredAny,
    /// The scalar, quotes included.
    raw: Text,
    is: Scalar,
}

#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Scalar {
    Integer(String),
    Fraction,
    /// An integer too large to tell.
    Huge,
    /// The same below zero.
    HugeNegative,
    String(String),
    /// Neither a number nor a string.
    Neither,
}

impl ScalarCase {
    pub(super) fn run(&self) -> Result<(), String> {
        let raw = &self.raw.0;
        let number = match json::number(raw) {
            Number::Int(value) => Some(Scalar::Integer(value.to_string())),
            Number::Fraction => Some(Scalar::Fraction),
            Number::Huge { negative: false } => Some(Scalar::Huge),
            Number::Huge { negative: true } => Some(Scalar::HugeNegative),
            Number::NotANumber => None,
        };
        let string = json::string(raw).map(|text| Scalar::String(text.into_owned()));
        if number.is_some() && string.is_some() {
            return Err("both a number and a string".into());
        }
        let got = number.or(string).unwrap_or(Scalar::Neither);
        if got != self.is {
            return Err(format!("got {got:?}, want {:?}", self.is));
        }
        let Scalar::String(text) = &got else { return Ok(()) };
        let mut escaped = vec![b'"'];
        json::escape_into(&mut escaped, text.as_bytes());
        escaped.push(b'"');
        let back = json::string(&escaped).is_some_and(|back| back == *text);
        let counted = json::escaped_len(text.as_bytes()) == escaped.len() as u64 - 2;
        if back && counted { Ok(()) } else { Err("escaping does not bring it back".into()) }
    }
}
