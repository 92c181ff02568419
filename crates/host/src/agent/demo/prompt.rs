//! Parses a prompt: which script it asks for.

use breakbulk::address::Size;

use super::DemoConfig;

/// A parsed prompt.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ParsedPrompt {
    pub(super) is_slow: bool,
    pub(super) script: Script,
}

/// What the demo can do.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Script {
    /// Say back what was said, and what else could be.
    Echo,
    /// Think at length.
    Think,
    /// Say what is remembered.
    Recall,
    /// Fail in the middle of a word.
    Fail,
    /// Call tools, that many at once.
    Tools(u32),
    /// Produce a result of so many bytes.
    Big(u64),
    /// Run a command.
    Run(Vec<String>),
    /// Write a file.
    Edit { file: String, text: String },
    /// Something that looks like one of these, but is not.
    Wrong(String),
}

/// What the demo says that it can do.
pub(super) const HELP: &str = "\
- `/run COMMAND …` runs a command in the workspace, after you allow it\n\
- `/edit FILE TEXT` writes a file in the workspace, after you allow it\n\
- `/tools 3` calls that many tools at once\n\
- `/big 5MB` gives a tool result of that size\n\
- `/think` thinks for longer\n\
- `/recall` says what I remember of this chat\n\
- `/fail` fails in the middle of an answer\n\
- `/slow …` does any of these slowly\n";

/// How many calls `/tools` makes when it is not told.
const SOME_TOOLS: u32 = 3;

/// How many bytes `/big` gives when it is not told.
const SOME_BYTES: u64 = 1_000_000;

impl ParsedPrompt {
    /// Parses a prompt. One that is no command is echoed.
    pub(super) fn read(prompt: &str, config: &DemoConfig) -> Self {
        let (mut word, mut rest) = first_word(prompt);
        let mut is_slow = false;
        while word == "/slow" {
            is_slow = true;
            (word, rest) = first_word(rest);
        }
        Self { is_slow, script: script(word, rest, config) }
    }
}

fn script(word: &str, rest: &str, config: &DemoConfig) -> Script {
    match word {
        "/think" => Script::Think,
        "/recall" => Script::Recall,
        "/fail" => Script::Fail,
        "/tools" if rest.is_empty() => Script::Tools(SOME_TOOLS.min(config.max_tools)),
        "/tools" => match rest.parse() {
            Ok(count) if (1..=config.max_tools).contains(&count) => Script::Tools(count),
            _ => Script::Wrong(format!("`/tools` takes a number from 1 to {}.", config.max_tools)),
        },
        "/big" if rest.is_empty() => Script::Big(SOME_BYTES.min(config.max_big_bytes)),
        "/big" => match size(rest) {
            Some(bytes) if bytes <= config.max_big_bytes => Script::Big(bytes),
            _ => Script::Wrong(format!("`/big` takes a size like 5MB, up to {} bytes.", config.max_big_bytes)),
        },
        "/run" => match arguments(rest) {
            Some(argv) if !argv.is_empty() => Script::Run(argv),
            _ => Script::Wrong("`/run` takes a command, with quotes closed.".to_owned()),
        },
        "/edit" => match first_word(rest) {
            ("", _) => Script::Wrong("`/edit` takes a file and a text.".to_owned()),
            (file, text) => Script::Edit { file: file.to_owned(), text: text.to_owned() },
        },
        _ => Script::Echo,
    }
}

fn first_word(text: &str) -> (&str, &str) {
    let text = text.trim();
    text.split_once(char::is_whitespace).map_or((text, ""), |(word, rest)| (word, rest.trim_start()))
}

/// A number of bytes, as people write it.
fn size(text: &str) -> Option<u64> {
    text.replace(' ', "").parse().ok().map(|Size(bytes)| bytes)
}

/// Splits a command at white space, except inside quotes. There is no shell, so nothing else has a meaning.
fn arguments(text: &str) -> Option<Vec<String>> {
    let mut arguments = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    for char in text.chars() {
        match quote {
            Some(open) if char == open => quote = None,
            Some(_) => word.get_or_insert_default().push(char),
            None if char == '\'' || char == '"' => {
                quote = Some(char);
                word.get_or_insert_default();
            }
            None if char.is_whitespace() => arguments.extend(word.take()),
            None => word.get_or_insert_default().push(char),
        }
    }
    arguments.extend(word);
    quote.is_none().then_some(arguments)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(prompt: &str) -> Script {
        ParsedPrompt::read(prompt, &DemoConfig::default()).script
    }

    #[test]
    fn sizes_are_read_as_people_write_them() {
        assert_eq!(read("/big 5MB"), Script::Big(5_000_000));
        assert_eq!(read("/big 2 KiB"), Script::Big(2_048));
        assert_eq!(read("/big 7"), Script::Big(7));
        assert_eq!(read("/big"), Script::Big(SOME_BYTES));
        for wrong in ["/big much", "/big 5XB", "/big 99999999999999999999MB", "/big 65MiB"] {
            assert!(matches!(read(wrong), Script::Wrong(_)), "{wrong}");
        }
    }

    #[test]
    fn slow_is_said_before_any_other_wish() {
        let parsed = ParsedPrompt::read("/slow /tools 2", &DemoConfig::default());
        assert_eq!(parsed, ParsedPrompt { is_slow: true, script: Script::Tools(2) });
        assert!(ParsedPrompt::read("/slow", &DemoConfig::default()).is_slow);
        let often = "/slow ".repeat(100_000);
        assert_eq!(
            ParsedPrompt::read(&often, &DemoConfig::default()),
            ParsedPrompt { is_slow: true, script: Script::Echo }
        );
        assert!(matches!(read("/tools 33"), Script::Wrong(_)));
        assert!(matches!(read("/tools 0"), Script::Wrong(_)));
    }

    #[test]
    fn a_command_is_split_at_white_space_outside_of_quotes() {
        let run = |argv: &[&str]| Script::Run(argv.iter().map(|word| (*word).to_owned()).collect());
        assert_eq!(read("/run git log -1"), run(&["git", "log", "-1"]));
        assert_eq!(
            read(r#"/run echo "a  b" 'c"d' e''f "" $HOME;"#),
            run(&["echo", "a  b", "c\"d", "ef", "", "$HOME;"])
        );
        assert!(matches!(read("/run"), Script::Wrong(_)));
        assert!(matches!(read("/run echo 'open"), Script::Wrong(_)));
    }

    #[test]
    fn an_edit_takes_all_that_follows_the_file() {
        let edit = Script::Edit { file: "a.txt".into(), text: "one\ntwo  three".into() };
        assert_eq!(read("/edit a.txt one\ntwo  three"), edit);
        assert_eq!(read("what is /edit?"), Script::Echo);
        assert_eq!(read("/unknown"), Script::Echo);
    }
}
