//! The `breakbulk` program: agent messages of any size over links that cap them.
#![cfg_attr(test, expect(clippy::unwrap_used, reason = "a test may fail by panicking"))]

mod args;
mod bar;
mod cep22;
mod failure;
mod join;
mod lines;
mod plan;
mod size;
mod split;

use std::io::{self, BufWriter, ErrorKind, Write};
use std::process::ExitCode;

use clap::Parser;

use crate::args::{Args, Command};
use crate::bar::Bar;
use crate::failure::Error;
use crate::plan::Plan;

fn main() -> ExitCode {
    match run(Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever read our output has had enough.
        Err(Error::Output(error)) if error.kind() == ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(Error::Reported) => ExitCode::from(2),
        Err(error) => {
            // Nothing is left to tell it to when this fails too.
            let _ = writeln!(io::stderr(), "breakbulk: {error}");
            ExitCode::from(error.status())
        }
    }
}

fn run(args: Args) -> Result<(), Error> {
    let input = io::stdin().lock();
    let output = BufWriter::with_capacity(1 << 16, io::stdout().lock());
    match args.command {
        Command::Split(args) => split::run(&Plan::try_from(args)?, input, output, &Bar::of_message()),
        Command::Join(args) => join::run(&Plan::try_from(args)?, input, output, &Bar::of_input()),
    }
}
