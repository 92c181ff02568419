//! Counts the content of a terminal, and keeps its last lines.

/// Counts a terminal's content and keeps its end.
#[derive(Debug)]
pub(super) struct Scrollback {
    max: usize,
    kept: usize,
    content: usize,
    /// All output since the content was last empty.
    total: usize,
    tail: String,
}

impl Scrollback {
    /// Content may grow to `max` bytes and is then cut to its last `kept` bytes, at most half of `max`.
    pub(super) fn new(max: usize, kept: usize) -> Self {
        Self { max, kept: kept.min(max / 2), content: 0, total: 0, tail: String::new() }
    }

    /// Adds output. If the content becomes too long, returns the new content: a line that says how much is gone, the last lines,
    /// and the output.
    pub(super) fn add(&mut self, text: &str) -> Option<String> {
        self.content = self.content.saturating_add(text.len());
        self.total = self.total.saturating_add(text.len());
        let again = (self.content > self.max).then(|| self.again(text));
        if let Some(again) = &again {
            self.content = again.len();
        }
        self.tail.push_str(text);
        // Cutting only at twice the length makes copies rare.
        if self.tail.len() > self.kept.saturating_mul(2) {
            self.tail.drain(..last(&self.tail, self.kept));
        }
        again
    }

    fn again(&self, text: &str) -> String {
        // If the output is too long by itself, only its end remains.
        let text = if text.len() > self.max { &text[last(text, self.kept)..] } else { text };
        let kept = self.kept.min(self.max.saturating_sub(text.len()));
        let before = &self.tail[last(&self.tail, kept)..];
        let gone = self.total.saturating_sub(before.len()).saturating_sub(text.len());
        format!("[… {gone} bytes of earlier output are gone]\r\n{before}{text}")
    }

    /// Notes that the content was cleared.
    pub(super) fn clear(&mut self) {
        (self.content, self.total) = (0, 0);
        self.tail.clear();
    }
}

/// Where the last lines of a text begin that are no more than `kept` bytes; inside of a line if that is longer than these.
fn last(text: &str, kept: usize) -> usize {
    let start = text.ceil_char_boundary(text.len().saturating_sub(kept));
    if start == 0 {
        return 0;
    }
    text[start..].find('\n').map_or(start, |newline| start + newline + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Splits off the line that says how many bytes of earlier output are gone. Returns that number and the rest.
    fn split(content: &str) -> (usize, &str) {
        let Some(rest) = content.strip_prefix("[… ") else { return (0, content) };
        let (gone, rest) = rest.split_once(" bytes of earlier output are gone]\r\n").unwrap_or_default();
        (gone.parse().unwrap_or_default(), rest)
    }

    #[test]
    fn content_stays_bounded_keeps_its_last_whole_lines_and_says_what_is_gone() {
        let mut scrollback = Scrollback::new(200, 80);
        let (mut content, mut total) = (String::new(), 0);
        for line in 0..1000 {
            let line = format!("line {line}\r\n");
            total += line.len();
            match scrollback.add(&line) {
                Some(again) => content = again,
                None => content.push_str(&line),
            }
            let (gone, lines) = split(&content);
            assert!(content.len() <= 200 + 60 && lines.ends_with(&line) && lines.starts_with("line "), "{content:?}");
            assert_eq!(gone + lines.len(), total);
        }
    }

    #[test]
    fn one_endless_line_is_cut_between_characters() {
        let mut scrollback = Scrollback::new(64, 32);
        let again = (0..100).fold(String::new(), |last, _| scrollback.add("€€€").unwrap_or(last));
        let (gone, line) = split(&again);
        assert!((1..=64).contains(&line.len()) && line.chars().all(|char| char == '€') && gone > 500, "{again}");
    }

    #[test]
    fn a_text_that_is_too_long_by_itself_is_cut() {
        let mut scrollback = Scrollback::new(1000, 500);
        let again = scrollback.add(&"1234567\r\n".repeat(1000)).unwrap_or_default();
        let (gone, lines) = split(&again);
        assert!(lines.len() <= 500 && lines.starts_with("1234567\r\n") && gone + lines.len() == 9000, "{again}");
    }

    #[test]
    fn cleared_content_begins_anew() {
        let mut scrollback = Scrollback::new(10, 5);
        assert_eq!(scrollback.add("12345678"), None);
        scrollback.clear();
        assert_eq!(scrollback.add("12345678"), None);
    }
}
