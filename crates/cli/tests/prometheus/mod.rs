//! Reads the text format of Prometheus, and refuses what is not quite that.

use std::collections::BTreeMap;

/// The families of a page, by name.
#[derive(Debug, Default)]
pub(crate) struct Page(pub(crate) BTreeMap<String, Family>);

/// Names and values, in order.
type Labels = Vec<(String, String)>;

#[derive(Debug)]
pub(crate) struct Family {
    pub(crate) kind: String,
    /// The name, the labels and the value of each sample.
    pub(crate) samples: Vec<(String, Labels, f64)>,
}

impl Page {
    /// Each family begins with its help and its type, comes once, and has no samples of others below it.
    pub(crate) fn parse(text: &str) -> Self {
        assert!(text.ends_with('\n'), "the last line has an end");
        let (mut page, mut lines) = (Self::default(), text.lines().peekable());
        while let Some(line) = lines.next() {
            let (name, help) = line.strip_prefix("# HELP ").expect(line).split_once(' ').expect(line);
            assert!(is_name(name) && help.ends_with('.'), "{line}");
            let kind = lines.next().unwrap().strip_prefix(&format!("# TYPE {name} ")).expect(name).to_owned();
            assert!(["counter", "gauge", "histogram"].contains(&kind.as_str()), "{name} is a {kind}");
            let mut samples = Vec::new();
            while let Some(line) = lines.next_if(|line| !line.starts_with('#')) {
                samples.push(sample(line));
            }
            let family = Family { kind, samples };
            family.check(name);
            assert!(page.0.insert(name.to_owned(), family).is_none(), "{name} comes twice");
        }
        page
    }

    /// The value of the only sample with these labels.
    pub(crate) fn value(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let is_same = |found: &[(String, String)]| {
            found.iter().map(|(name, value)| (name.as_str(), value.as_str())).eq(labels.iter().copied())
        };
        let samples = &self.0.get(name).expect(name).samples;
        samples.iter().find(|(_, found, _)| is_same(found)).map(|(_, _, value)| *value)
    }
}

impl Family {
    fn check(&self, family: &str) {
        let mut seen = Vec::new();
        for (name, labels, value) in &self.samples {
            let rest = name.strip_prefix(family).expect(name);
            assert!(if self.kind == "histogram" {
                ["_bucket", "_sum", "_count"].contains(&rest)
            } else {
                rest.is_empty()
            });
            assert!(self.kind == "gauge" || *value >= 0.0, "{name} counts");
            assert!(self.kind != "counter" || family.ends_with("_total"), "{name} is a counter");
            assert!(!seen.contains(&(name, labels)), "{name} {labels:?} comes twice");
            seen.push((name, labels));
        }
        if self.kind == "histogram" {
            self.check_buckets(family);
        }
    }

    /// Limits ascend, counts do not shrink, and the last bucket has all.
    fn check_buckets(&self, family: &str) {
        let of = |suffix: &str| {
            let name = format!("{family}{suffix}");
            self.samples.iter().filter(move |(sample, ..)| *sample == name)
        };
        let limit = |labels: &[(String, String)]| match labels {
            [(name, value)] if name == "le" => value.replace("+Inf", "inf").parse::<f64>().unwrap(),
            other => panic!("{family}: {other:?}"),
        };
        let buckets: Vec<(f64, f64)> = of("_bucket").map(|(_, labels, count)| (limit(labels), *count)).collect();
        assert!(buckets.is_sorted_by(|one, two| one.0 < two.0 && one.1 <= two.1), "{family}: {buckets:?}");
        let (most, all) = *buckets.last().unwrap();
        let counts: Vec<f64> = of("_count").map(|(_, _, count)| *count).collect();
        assert!(most.is_infinite() && counts == [all] && of("_sum").count() == 1, "{family}: {all} of {counts:?}");
    }
}

fn sample(line: &str) -> (String, Labels, f64) {
    let end = line.find(['{', ' ']).expect(line);
    let (name, mut rest) = line.split_at(end);
    let mut labels = Vec::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        loop {
            let (label, value) = rest.split_once("=\"").expect(line);
            let (value, after) = quoted(value);
            assert!(is_name(label) && !label.contains(':'), "{line}");
            labels.push((label.to_owned(), value));
            match after.strip_prefix(',') {
                Some(more) => rest = more,
                None => break rest = after.strip_prefix('}').expect(line),
            }
        }
    }
    assert!(is_name(name), "{line}");
    let value = rest.strip_prefix(' ').expect(line);
    (name.to_owned(), labels, value.parse().expect(line))
}

/// A text up to its closing quote, and what is behind it.
fn quoted(text: &str) -> (String, &str) {
    let (mut value, mut chars) = (String::new(), text.char_indices());
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return (value, &text[at + 1..]),
            '\\' => value.push(match chars.next().unwrap().1 {
                'n' => '\n',
                c @ ('"' | '\\') => c,
                other => panic!("\\{other} means nothing"),
            }),
            c => value.push(c),
        }
    }
    panic!("no closing quote: {text}");
}

fn is_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == ':')
}
