//! `breakbulk completions` and `breakbulk man`: completion scripts and manual pages.

use std::io::Write;
use std::path::Path;

use clap::CommandFactory;
use clap_complete::Shell;
use clap_mangen::Man;

use crate::args::Args;
use crate::failure::Error;

/// Prints a script that completes our commands and flags in `shell`.
pub(crate) fn print_completions(shell: Shell, mut output: impl Write) -> Result<(), Error> {
    // Writing to memory first: a reader that goes away must not end in a panic there.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "breakbulk", &mut script);
    output.write_all(&script).and_then(|()| output.flush()).map_err(Error::Output)
}

/// Prints the main page.
pub(crate) fn print_page(mut output: impl Write) -> Result<(), Error> {
    // As in the written pages: `help` has no page of its own.
    let command = Args::command().disable_help_subcommand(true);
    Man::new(command).render(&mut output).and_then(|()| output.flush()).map_err(Error::Output)
}

/// Writes one page for each command into `dir`, which is made if need be.
pub(crate) fn write_pages(dir: &Path) -> Result<(), Error> {
    std::fs::create_dir_all(dir)
        .and_then(|()| clap_mangen::generate_to(Args::command(), dir))
        .map_err(|error| Error::Writing(dir.to_owned(), error))
}
