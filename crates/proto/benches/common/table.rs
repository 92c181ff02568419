//! Figures against their targets, as a Markdown table.

use std::ops::{Bound, RangeBounds};

/// Prints the head of a table.
pub(crate) fn head(title: &str) {
    println!("\n### {title}\n\n| measure | value | target | |\n|---|--:|--:|---|");
}

/// Prints one row. The target is `..=most`, `least..`, or `..` for a figure that is only to be known.
pub(crate) fn row(measure: &str, value: f64, target: impl RangeBounds<f64>) {
    let text = match (target.start_bound(), target.end_bound()) {
        (Bound::Included(least), _) => format!("≥ {least}"),
        (_, Bound::Included(most)) => format!("≤ {most}"),
        _ => return println!("| {measure} | {} | | |", figure(value)),
    };
    let verdict = if target.contains(&value) { "ok" } else { "MISSED" };
    println!("| {measure} | {} | {text} | {verdict} |", figure(value));
}

/// Three digits that mean something.
fn figure(value: f64) -> String {
    match value {
        value if value == value.trunc() || value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value => format!("{value:.2}"),
    }
}
