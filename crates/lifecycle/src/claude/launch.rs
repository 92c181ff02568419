//! The arguments with which the program is started.

/// How the program is to be started.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Launch {
    /// The token of an earlier [`Event::Resumable`](crate::Event::Resumable): the conversation to go on with.
    pub resume: Option<String>,
    /// The model, by any name that the program knows.
    pub model: Option<String>,
    /// The permission mode: `default`, `acceptEdits`, `plan`, `bypassPermissions`, or what else the program knows.
    pub permission_mode: Option<String>,
}

/// A value that the program would not take for a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the value of {option} is empty, begins with \"-\" or has a control character")]
pub struct InvalidArgument {
    /// The option whose value it is.
    pub option: &'static str,
}

impl Launch {
    /// The arguments, without the program's own name. They are for the operating system, never for a shell.
    ///
    /// # Errors
    /// A value could be taken for an option: a client that chooses a model must not choose how the program runs.
    pub fn arguments(&self) -> Result<Vec<String>, InvalidArgument> {
        let fixed = [
            "-p",
            "--input-format",
            "stream-json",
            "--output-format",
            "stream-json",
            "--verbose",
            "--include-partial-messages",
            "--permission-prompt-tool",
            "stdio",
        ];
        let mut arguments: Vec<String> = fixed.into_iter().map(str::to_owned).collect();
        let chosen =
            [("--resume", &self.resume), ("--model", &self.model), ("--permission-mode", &self.permission_mode)];
        for (option, value) in chosen {
            let Some(value) = value else { continue };
            if value.is_empty() || value.starts_with('-') || value.chars().any(char::is_control) {
                return Err(InvalidArgument { option });
            }
            arguments.extend([option.to_owned(), value.clone()]);
        }
        Ok(arguments)
    }
}
