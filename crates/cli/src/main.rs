//! The `breakbulk` program: agent messages of any size over links that cap them.
#![cfg_attr(test, expect(clippy::unwrap_used, reason = "a test may fail by panicking"))]

mod args;
mod bar;
mod bridge;
mod cep22;
mod chat;
mod config;
mod content;
mod external;
mod failure;
mod fleet;
mod join;
mod lines;
mod log;
mod manual;
mod open;
mod page;
mod pages;
mod pairing;
mod plan;
mod presets;
mod relay;
mod rpc;
mod runtime;
mod send;
mod serve;
mod settings;
mod shutdown;
mod span;
mod split;
mod store;
mod tap;
mod units;

use std::io::{self, BufWriter, ErrorKind, Write};
use std::process::ExitCode;

use tracing::Level;

use crate::args::{Args, ChatArgs, Command, RelayArgs, TapArgs};
use crate::bar::Bar;
use crate::chat::ChatSettings;
use crate::failure::Error;
use crate::plan::Plan;
use crate::send::SendSettings;
use crate::settings::{
    BridgeSettings, Configuration, LogSettings, Origin, RelaySettings, Scope, ServeSettings, Settings, SettingsArgs,
};
use crate::tap::TapSettings;

/// Gives large messages back to the system as soon as they are gone. The C library's allocator keeps up to 60 MB in each of its
/// arenas once it has seen one of 30 MB: many clients with one each then look as if `--memory` did not hold.
#[cfg(not(target_env = "msvc"))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    match run(Args::typed()) {
        Ok(()) => ExitCode::SUCCESS,
        // The reader of our output has closed it, such as `head`.
        Err(Error::Output(error)) if error.kind() == ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(Error::Reported) => ExitCode::from(2),
        Err(error) => {
            log::say(Level::ERROR, &error.to_string());
            ExitCode::from(error.status())
        }
    }
}

fn run(args: Args) -> Result<(), Error> {
    match args.command {
        Command::Serve(args) => {
            let configuration = Configuration::load(args.settings)?;
            settings::check_scheme(&configuration.layers)?;
            let settings = start(&configuration)?;
            serve::run(ServeSettings::prove(settings, &configuration)?, args.format, args.open)
        }
        Command::Log(args) => store::run(args.command),
        Command::Fleet(args) => fleet::run(args.command),
        Command::Bridge(args) => {
            let (settings, configuration) = prepare(args.settings)?;
            if configuration.bridges.is_empty() {
                return bridge::run(BridgeSettings::prove(settings, &configuration.layers)?);
            }
            bridge::run_all(bridge::prove_all(&configuration)?)
        }
        Command::Relay(RelayArgs { relay: options, settings }) => {
            let (settings, Configuration { layers, .. }) = prepare(settings)?;
            relay::run(options, RelaySettings::prove(&settings, &layers)?)
        }
        Command::Send(args) => {
            let (settings, Configuration { layers, .. }) = prepare(args.settings)?;
            send::run(SendSettings::prove(args.request, settings, layers)?)
        }
        Command::Tap(TapArgs { tap: args, settings }) => {
            let (settings, Configuration { layers, .. }) = prepare(settings)?;
            tap::run(TapSettings::prove(args, settings, layers)?)
        }
        Command::Chat(ChatArgs { chat: args, settings }) => {
            let mut configuration = Configuration::load(settings)?;
            // A log would be mixed into the conversation.
            if configuration.layers.origin("log_level") == Origin::Default {
                configuration.layers.put("log_level", "error", Origin::Default);
            }
            let settings = start(&configuration)?;
            chat::run(ChatSettings::prove(args, settings, configuration.layers)?)
        }
        Command::Split(args) => split::run(&Plan::try_from(args)?, io::stdin().lock(), output(), &Bar::of_message()),
        Command::Join(args) => join::run(&Plan::try_from(args)?, io::stdin().lock(), output(), &Bar::of_input()),
        Command::Presets(args) if args.json => presets::print_list(output()),
        Command::Presets(_) => presets::print_table(output()),
        Command::Config(args) => config::run(args, output()),
        Command::Completions(args) => manual::print_completions(args.shell, output()),
        Command::Man(args) => match args.dir {
            Some(dir) => manual::write_pages(&dir),
            None => manual::print_page(output()),
        },
    }
}

/// Reads all settings, and starts the log as they say.
fn prepare<S: Scope>(args: SettingsArgs<S>) -> Result<(Settings, Configuration), Error> {
    let configuration = Configuration::load(args)?;
    Ok((start(&configuration)?, configuration))
}

/// Checks all settings, and starts the log as they say.
fn start(configuration: &Configuration) -> Result<Settings, Error> {
    let settings = Settings::read(&configuration.layers)?;
    settings::check_files(&settings, &configuration.layers)?;
    log::start(&LogSettings::of(&settings));
    Ok(settings)
}

/// Standard output, locked only by those who print to it themselves.
fn output() -> impl Write {
    BufWriter::with_capacity(1 << 16, io::stdout().lock())
}
