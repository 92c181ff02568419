//! One case written once and run with several values: `"each": [{"x": 1}, {"x": 1.0}]` stands for two cases.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;

#[derive(Deserialize)]
struct Header {
    #[serde(default)]
    each: Option<Vec<BTreeMap<String, Box<RawValue>>>>,
}

/// The cases that `text` stands for, each with a label that tells it from the others.
///
/// `"$x"` becomes the value of `x` exactly as it is written; `$x` inside a longer string becomes its text.
pub(super) fn expand(text: &str) -> Result<Vec<(String, String)>, String> {
    let header: Header = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let Some(each) = header.each else {
        return Ok(vec![(String::new(), text.to_owned())]);
    };
    if each.is_empty() {
        return Err(format!("each is empty in {text}"));
    }
    let labelled = |(n, values)| {
        substitute(text, values).map(|(label, case)| (format!("{} of {}: {label}", n + 1, each.len()), case))
    };
    each.iter().enumerate().map(labelled).collect()
}

fn substitute(text: &str, values: &BTreeMap<String, Box<RawValue>>) -> Result<(String, String), String> {
    let mut case = text.to_owned();
    let mut label = Vec::new();
    // The longest names first, so that `$x` does not eat the front of `$xs`.
    let mut names: Vec<_> = values.iter().collect();
    names.sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
    for (name, value) in names {
        let place = format!("${name}");
        if !case.contains(&place) {
            return Err(format!("{place} does not occur in {text}"));
        }
        let raw = value.get();
        let inside = raw.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(raw);
        case = case.replace(&format!("\"{place}\""), raw).replace(&place, inside);
        label.push(format!("{name} = {}", shortened(raw)));
    }
    if case.contains('$') {
        return Err(format!("a place is left over in {case}"));
    }
    Ok((label.join(", "), case))
}

fn shortened(raw: &str) -> String {
    if raw.chars().count() <= 48 { raw.to_owned() } else { raw.chars().take(48).chain(['…']).collect() }
}
