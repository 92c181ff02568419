//! Lines that a person types, or that a pipe brings: one when it is asked for.

use std::io::{self, BufRead, IsTerminal};
use std::thread;

use rustyline::error::ReadlineError;
use rustyline::history::MemHistory;
use rustyline::{Config, Editor, ExternalPrinter};
use tokio::sync::mpsc;

/// The outcome of reading a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TypedLine {
    Line(String),
    /// Ctrl-C while a line was typed.
    Interrupted,
    /// There will be no more.
    End,
}

/// Where lines come from. Reading is a thread of its own: nothing can take back the wish to read from a terminal.
pub(super) struct Input {
    ask: std::sync::mpsc::Sender<String>,
    typed: mpsc::Receiver<TypedLine>,
    is_asked: bool,
    pub(super) is_terminal: bool,
    printer: Option<Box<dyn ExternalPrinter + Send>>,
    /// The settings of the terminal before the editor changed them.
    #[cfg(unix)]
    before: Option<rustix::termios::Termios>,
}

impl Input {
    /// Opens standard input. It counts as a terminal if the output is for people and goes to a terminal, too; otherwise
    /// as a pipe.
    pub(super) fn open(is_for_people: bool) -> io::Result<Self> {
        let is_terminal = is_for_people && io::stdin().is_terminal() && io::stdout().is_terminal();
        let (ask, asked) = std::sync::mpsc::channel::<String>();
        let (say, typed) = mpsc::channel(1);
        let mut printer: Option<Box<dyn ExternalPrinter + Send>> = None;
        #[cfg(unix)]
        let before = if is_terminal { rustix::termios::tcgetattr(io::stdin()).ok() } else { None };
        let read: Box<dyn FnMut(&str) -> TypedLine + Send> = if is_terminal {
            let config = Config::builder().auto_add_history(true).build();
            let mut editor: Editor<(), _> =
                Editor::with_history(config, MemHistory::new()).map_err(io::Error::other)?;
            printer = editor.create_external_printer().ok().map(|printer| Box::new(printer) as _);
            Box::new(move |prompt| match editor.readline(prompt) {
                Ok(line) => TypedLine::Line(line),
                Err(ReadlineError::Interrupted) => TypedLine::Interrupted,
                Err(_) => TypedLine::End,
            })
        } else {
            Box::new(|_| {
                let mut line = String::new();
                match io::stdin().lock().read_line(&mut line) {
                    Ok(0) | Err(_) => TypedLine::End,
                    Ok(_) => TypedLine::Line(line.trim_end_matches(['\n', '\r']).to_owned()),
                }
            })
        };
        thread::Builder::new().name("chat-input".into()).spawn(move || serve(&asked, &say, read))?;
        Ok(Self {
            ask,
            typed,
            is_asked: false,
            is_terminal,
            printer,
            #[cfg(unix)]
            before,
        })
    }

    /// Asks for a line, unless one is asked for already.
    pub(super) fn ask(&mut self, prompt: &str) {
        if !self.is_asked {
            // Without the thread there is nothing to read either.
            self.is_asked = self.ask.send(prompt.to_owned()).is_ok();
        }
    }

    /// Whether a line is being read.
    pub(super) const fn is_asked(&self) -> bool {
        self.is_asked
    }

    /// Waits for the line that is being read; for ever if none is. Cancel-safe.
    pub(super) async fn next(&mut self) -> TypedLine {
        if !self.is_asked {
            return std::future::pending().await;
        }
        let typed = self.typed.recv().await.unwrap_or(TypedLine::End);
        self.is_asked = false;
        typed
    }

    /// Prints whole lines above the one that is being typed.
    pub(super) fn print_above(&mut self, text: &str) -> io::Result<()> {
        match &mut self.printer {
            Some(printer) => printer.print(text.to_owned()).map_err(io::Error::other),
            None => {
                print!("{text}");
                Ok(())
            }
        }
    }
}

impl Drop for Input {
    /// While a line is being read, the terminal has the editor's settings. This restores the earlier ones.
    fn drop(&mut self) {
        #[cfg(unix)]
        if let Some(before) = self.before.take().filter(|_| self.is_asked) {
            let _ = rustix::termios::tcsetattr(io::stdin(), rustix::termios::OptionalActions::Now, &before);
            println!();
        }
    }
}

fn serve(
    asked: &std::sync::mpsc::Receiver<String>,
    say: &mpsc::Sender<TypedLine>,
    mut read: Box<dyn FnMut(&str) -> TypedLine + Send>,
) {
    while let Ok(prompt) = asked.recv() {
        let typed = read(&prompt);
        if say.blocking_send(typed).is_err() {
            return;
        }
    }
}
