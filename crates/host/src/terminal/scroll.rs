//! How much output a terminal's content holds, and its last lines.

/// Counts a terminal's content and keeps its end.
#[derive(Debug)]
pub(super) struct Scroll {
    max: usize,
    kept: usize,
    content: usize,
    tail: String,
}

impl Scroll {
    /// Content grows to `max` bytes and is then cut to its last `kept`, which are at most half of it.
    pub(super) fn new(max: usize, kept: usize) -> Self {
        Self { max, kept: kept.min(max / 2), content: 0, tail: String::new() }
    }

    /// Adds output. If that is too much, returns what the content is to be: the last lines before it, and it.
    pub(super) fn add(&mut self, text: &str) -> Option<String> {
        self.content += text.len();
        let again = (self.content > self.max).then(|| [&self.tail[self.last()..], text].concat());
        if let Some(again) = &again {
            self.content = again.len();
        }
        self.tail.push_str(text);
        // Cutting at twice the length makes the copies rare.
        if self.tail.len() > self.kept * 2 {
            self.tail.drain(..self.last());
        }
        again
    }

    /// Somebody cleared the content.
    pub(super) fn clear(&mut self) {
        self.content = 0;
        self.tail.clear();
    }

    /// Where the last lines begin; inside of a line if that is longer than all that is kept.
    fn last(&self) -> usize {
        let start = self.tail.ceil_char_boundary(self.tail.len().saturating_sub(self.kept));
        if start == 0 {
            return 0;
        }
        self.tail[start..].find('\n').map_or(start, |newline| start + newline + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_stays_bounded_and_keeps_its_last_whole_lines() {
        let mut scroll = Scroll::new(100, 40);
        let mut content = String::new();
        for line in 0..1000 {
            let line = format!("line {line}\r\n");
            match scroll.add(&line) {
                Some(again) => content = again,
                None => content.push_str(&line),
            }
            assert!(content.len() <= 100 && content.ends_with(&line) && content.starts_with("line "), "{content:?}");
        }
    }

    #[test]
    fn one_endless_line_is_cut_between_characters() {
        let mut scroll = Scroll::new(64, 32);
        let again = (0..100).filter_map(|_| scroll.add("€€€")).next_back().unwrap_or_default();
        assert!((1..=64).contains(&again.len()) && again.chars().all(|char| char == '€'), "{again}");
    }

    #[test]
    fn cleared_content_begins_anew() {
        let mut scroll = Scroll::new(10, 5);
        assert_eq!(scroll.add("12345678"), None);
        scroll.clear();
        assert_eq!(scroll.add("12345678"), None);
    }
}
