//! Settings as flags: one for each row of the table.

use std::ffi::OsStr;
use std::fmt;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, ValueHint};

use super::value::Arity;
use super::{Group, Setting, all};

/// Which settings a command uses.
pub(crate) trait Scope: fmt::Debug + Send + Sync + 'static {
    fn has(setting: &Setting) -> bool;
}

/// Makes scopes: a name, and which settings it has.
macro_rules! scopes {
    ($($(#[doc = $doc:literal])+ $name:ident => |$setting:ident| $has:expr;)+) => {$(
        $(#[doc = $doc])+
        #[derive(Debug)]
        pub(crate) enum $name {}

        impl Scope for $name {
            fn has($setting: &Setting) -> bool {
                $has
            }
        }
    )+};
}

scopes! {
    /// All.
    Everything => |_setting| true;
    /// Those of a bridge.
    Bridge => |setting| setting.group <= Group::Log;
    /// Those of who connects to a peer, and nothing else.
    Peer => |setting| Bridge::has(setting)
        && !matches!(setting.group, Group::Ends | Group::Listening)
        && setting.key != "max_connections";
    /// Those of who connects to a peer, and lets clients in.
    Tap => |setting| Bridge::has(setting) && setting.group != Group::Ends;
    /// Those of a host.
    Serve => |setting| match setting.group {
        Group::Ends => setting.key == "listen",
        Group::Frames => setting.key != "dialect",
        Group::Connecting => false,
        // A relay does not dial, and holds no messages back.
        Group::Limits | Group::Time => !matches!(setting.key, "connect_timeout" | "max_held"),
        _ => true,
    };
    /// Those of a relay.
    Relay => |setting| match setting.group {
        Group::Listening => setting.key == "bind_any" || setting.key.starts_with("tls_"),
        Group::Log => true,
        _ => matches!(setting.key, "listen" | "cap" | "memory" | "max_connections" | "ping_interval" | "idle_timeout"),
    };
    /// Those of who reads a host's data.
    Stored => |setting| setting.group == Group::Log
        || matches!(setting.key, "data" | "log" | "host" | "nats_credentials" | "nats_ca");
    /// Those of who looks at a fleet.
    FleetWide => |setting| setting.group == Group::Log
        || matches!(setting.key, "log" | "nats_credentials" | "nats_ca");
    /// Those of who copies a log.
    Copying => |setting| setting.group == Group::Log
        || matches!(setting.key, "host" | "replicas" | "nats_credentials" | "nats_ca");
    /// Those of who tidies it up.
    Upkeep => |setting| Stored::has(setting) || setting.group == Group::Retention && setting.key != "retain_every";
}

/// The flags of a command that uses settings.
#[derive(Debug, Args)]
pub(crate) struct SettingsArgs<S: Scope> {
    #[command(flatten)]
    flags: Flags<S>,

    /// Log more: -v like --log-level debug, -vv like trace.
    #[arg(short, long, action = ArgAction::Count, conflicts_with_all = ["quiet", "log_level"], help_heading = "Log")]
    verbose: u8,

    /// Log errors only.
    #[arg(short, long, conflicts_with = "log_level", help_heading = "Log")]
    quiet: bool,

    /// Read settings from this file (TOML).
    ///
    /// The default is the file that BREAKBULK_CONFIG names, else $XDG_CONFIG_HOME/breakbulk/config.toml if it exists.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    config: Option<PathBuf>,
}

impl<S: Scope> SettingsArgs<S> {
    /// The file to read, if one was named.
    pub(crate) fn config(&self) -> Option<&Path> {
        self.config.as_deref()
    }

    /// What was typed.
    pub(crate) fn typed(self) -> Vec<Typed> {
        let mut typed = self.flags.0;
        let level = |flag: &str, level: &str| Typed { key: "log_level", flag: flag.into(), texts: vec![level.into()] };
        match (self.verbose, self.quiet) {
            (0, false) => {}
            (0, true) => typed.push(level("-q", "error")),
            (1, _) => typed.push(level("-v", "debug")),
            (_, _) => typed.push(level("-vv", "trace")),
        }
        typed
    }
}

/// A flag that was typed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Typed {
    pub(crate) key: &'static str,
    /// The flag with its dashes.
    pub(crate) flag: String,
    pub(crate) texts: Vec<String>,
}

/// The flags that follow from the table. Their values are parsed together with all other settings, so that a wrong
/// value gets the same error wherever it comes from.
#[derive(Debug)]
struct Flags<S>(Vec<Typed>, PhantomData<S>);

impl<S: Scope> Flags<S> {
    fn settings() -> impl Iterator<Item = &'static Setting> {
        all().filter(|setting| S::has(setting))
    }
}

impl<S: Scope> Args for Flags<S> {
    fn augment_args(command: Command) -> Command {
        // Help shows them in this order, and what a host is comes before its limits.
        let (first, rest): (Vec<_>, Vec<_>) = Self::settings().partition(|setting| setting.group == Group::Host);
        first.into_iter().chain(rest).fold(command, |command, setting| command.arg(arg(setting)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<S: Scope> FromArgMatches for Flags<S> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut flags = Self(Vec::new(), PhantomData);
        flags.update_from_arg_matches(matches)?;
        Ok(flags)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        for setting in Self::settings() {
            if let Some(texts) = matches.get_many::<String>(setting.key) {
                let flag = format!("--{}", setting.flag());
                self.0.push(Typed { key: setting.key, flag, texts: texts.cloned().collect() });
            }
        }
        Ok(())
    }
}

/// Other names of flags.
const ALIASES: [(&str, &str); 2] = [("bind_any", "allow-remote"), ("max_frame", "max-frame-bytes")];

fn arg(setting: &'static Setting) -> Arg {
    let paragraphs = setting.paragraphs();
    let first = paragraphs.first().cloned().unwrap_or_default();
    let arg = Arg::new(setting.key)
        .long(setting.flag())
        .help_heading(setting.group.to_string())
        .value_name(setting.shape.name)
        .value_parser(AnyText((setting.shape.choices)()))
        .hide_possible_values(true);
    let arg = match ALIASES.iter().find(|(key, _)| *key == setting.key) {
        Some((_, alias)) => arg.visible_alias(alias),
        None => arg,
    };
    let arg = if setting.shape.is_path { arg.value_hint(ValueHint::FilePath) } else { arg };
    let arg = match setting.shape.arity {
        Arity::One | Arity::Optional => arg,
        Arity::Many { .. } => arg.action(ArgAction::Append),
        // `--no-auth=false` undoes what the file says.
        Arity::Switch => arg.num_args(0..=1).require_equals(true).default_missing_value("true"),
    };
    let (default, long_default) = match setting.shape.arity {
        Arity::One => (format!(" [{}]", setting.default), format!("\n\n[default: {}]", setting.default)),
        Arity::Optional | Arity::Many { .. } | Arity::Switch => (String::new(), String::new()),
    };
    arg.help(format!("{}{default}", first.trim_end_matches('.')))
        .long_help(format!("{}{long_default}", paragraphs.join("\n\n")))
}

/// Takes any text, and knows what a shell may offer.
#[derive(Debug, Clone)]
struct AnyText(Vec<&'static str>);

impl TypedValueParser for AnyText {
    type Value = String;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<String, clap::Error> {
        StringValueParser::new().parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let values = self.0.iter().map(|name| PossibleValue::new(*name));
        (!self.0.is_empty()).then(|| Box::new(values) as Box<dyn Iterator<Item = PossibleValue>>)
    }
}
