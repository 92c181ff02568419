//! Front matter: the few lines of YAML in which a Markdown file describes itself.

/// The fields of a front matter, as far as customizations use YAML: text on one line or in a block, and lists of text.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct FrontMatter {
    fields: Vec<(String, Vec<String>)>,
}

impl FrontMatter {
    /// Parses the text between the first two `---` lines; empty if there is no second one.
    pub(super) fn of(text: &str) -> Self {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let mut lines = text.lines().map(str::trim_end);
        if lines.next() != Some("---") {
            return Self::default();
        }
        let lines: Vec<&str> = lines.collect();
        let Some(end) = lines.iter().position(|line| *line == "---") else { return Self::default() };
        let mut rest = &lines[..end];
        let mut fields = Vec::new();
        while let Some((line, after)) = rest.split_first() {
            let block = after.iter().take_while(|line| line.is_empty() || line.starts_with([' ', '\t', '-'])).count();
            let (block, after) = after.split_at(block);
            if let Some((key, value)) = line.split_once(':').filter(|(key, _)| !key.starts_with([' ', '#', '-'])) {
                fields.push((key.trim().to_owned(), values(value.trim(), block)));
            }
            rest = after;
        }
        Self { fields }
    }

    /// A field's text.
    pub(super) fn text(&self, key: &str) -> Option<String> {
        self.list(key).first().cloned()
    }

    /// A field's items; none if there is no such field.
    pub(super) fn list(&self, key: &str) -> &[String] {
        self.fields.iter().find(|(name, _)| name == key).map_or(&[], |(_, values)| values)
    }

    /// Whether a field is `true`.
    pub(super) fn is(&self, key: &str) -> bool {
        self.text(key).is_some_and(|text| text.eq_ignore_ascii_case("true"))
    }
}

fn values(value: &str, block: &[&str]) -> Vec<String> {
    let lines = || block.iter().map(|line| line.trim()).filter(|line| !line.is_empty());
    let joined = |by: &str| lines().collect::<Vec<_>>().join(by);
    if let Some(items) = value.strip_prefix('[').and_then(|value| value.strip_suffix(']')) {
        return items.split(',').map(plain).filter(|item| !item.is_empty()).collect();
    }
    match value.as_bytes().first() {
        Some(b'|') => vec![joined("\n")],
        Some(b'>') => vec![joined(" ")],
        None if lines().next().is_some_and(|line| line.starts_with('-')) => {
            lines().filter_map(|line| line.strip_prefix('-')).map(plain).collect()
        }
        None if block.is_empty() => Vec::new(),
        // The text may continue in the lines below.
        _ => vec![plain([value, &joined(" ")].join(" ").trim())],
    }
}

/// Without quotes and comment.
fn plain(text: &str) -> String {
    let text = text.trim();
    for quote in ['"', '\''] {
        if let Some(inner) = text.strip_prefix(quote).and_then(|text| text.split(quote).next()) {
            return inner.to_owned();
        }
    }
    text.split(" #").next().unwrap_or(text).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn text_and_lists_are_read_in_each_way_of_writing_them() {
        let front_matter = FrontMatter::of(
            "---\nname: 'a: b' # c\ndescription: >\n  two\n  lines\nlong: one\n  two\nglobs: [\"*.rs\", src/**]\n\
             list:\n- x\n  - y\napplyTo: \"**/*.ts,**/*.js\"\ndisable-model-invocation: true\nempty:\n---\nname: no\n",
        );
        assert_eq!(front_matter.text("name").as_deref(), Some("a: b"));
        assert_eq!(front_matter.text("description").as_deref(), Some("two lines"));
        assert_eq!(front_matter.text("long").as_deref(), Some("one two"));
        assert_eq!(front_matter.list("globs"), ["*.rs", "src/**"]);
        assert_eq!(front_matter.list("list"), ["x", "y"]);
        assert_eq!(front_matter.text("applyTo").as_deref(), Some("**/*.ts,**/*.js"));
        assert!(front_matter.is("disable-model-invocation") && !front_matter.is("empty") && !front_matter.is("other"));
    }

    #[test]
    fn a_text_without_front_matter_has_no_fields() {
        for text in ["", "# Title\n---\nname: x\n---", "---\nname: x\n", "----\nname: x\n---"] {
            assert_eq!(FrontMatter::of(text), FrontMatter::default(), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(lines in prop::collection::vec("[-a: \\[\\]|>'\",#\\t]{0,8}", 0..20)) {
            let front_matter = FrontMatter::of(&format!("---\n{}\n---\n", lines.join("\n")));
            let _ = front_matter.text("a");
        }
    }
}
