//! The validated settings of a host: where it listens, who may connect, and how much it may use.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use breakbulk::address::Size;
use breakbulk::{Address, AddressError, Dialect, Route, Transport};
use breakbulk_host::HostConfig;
use breakbulk_host::agent::ProcessLimits;
use breakbulk_host::agent::demo::DemoConfig;
use breakbulk_host::config::{MAX_AGENT_CANCEL, MAX_AGENT_START};
use breakbulk_host::log::RetentionPolicy;
use breakbulk_host::log::sqlite::Options;
use breakbulk_proto::ahp::Role;

use super::agents::AgentSettings;
use super::fleet::FleetSettings;
use super::kinds::{Count, Dir, Listen};
use super::proof::{Access, LinkSettings, connections, missing, towards_peer};
use super::value::{Bad, Value as _};
use super::{Configuration, HostSettings, Layers, SettingError, Settings};
use crate::span::Span;

/// Where a host listens if nobody says where.
pub(crate) const USUAL: &str = "ws://127.0.0.1:4140/ahp";

/// Connections of a host at once, if nobody says how many.
const MAX_CONNECTIONS: usize = 16_384;

/// The path of the AHP endpoint.
pub(crate) const PATH: &str = "/ahp";

/// Where clients of message protocol v2 connect.
pub(crate) const V2_PATH: &str = "/v2";

/// The validated settings of `serve`.
#[derive(Debug)]
pub(crate) struct ServeSettings {
    /// From the clients, by a WebSocket.
    pub(crate) route: Route,
    /// From the clients, through relays.
    pub(crate) via: Vec<Route>,
    pub(crate) access: Access,
    pub(crate) link: LinkSettings,
    /// Whether the user limited the length of frames. If not, a client that does not segment may send any message in
    /// one frame.
    pub(crate) is_capped: bool,
    pub(crate) max_connections: usize,
    /// Where the log is, if it is in a file.
    pub(crate) data: PathBuf,
    /// Where it is in a fleet.
    pub(crate) fleet: Option<FleetSettings>,
    /// At least one.
    pub(crate) agents: Vec<AgentSettings>,
    pub(crate) limits: HostLimits,
    /// How long connections may take to finish at the end.
    pub(crate) shutdown_timeout: Duration,
}

/// The limits of a host, of its log and of its agents.
#[derive(Debug, Clone)]
pub(crate) struct HostLimits {
    pub(crate) host: HostConfig,
    pub(crate) store: Options,
    pub(crate) demo: DemoConfig,
    /// Of each agent that is a program.
    pub(crate) process: ProcessLimits,
}

impl ServeSettings {
    pub(crate) fn prove(settings: Settings, configuration: &Configuration) -> Result<Self, SettingError> {
        let layers = &configuration.layers;
        let host = HostSettings::read(layers)?;
        let listen = match &settings.listen {
            Some(listen) => listen.0.clone(),
            None => USUAL.parse().map_err(|_| missing("listen"))?,
        };
        check_transport(&listen).map_err(|why| layers.refuse("listen", why))?;
        let (mut listen, capped_by) = towards_peer(listen, "listen", &settings);
        listen.dialect = Some(Dialect::Ahp);
        let via = host.via.iter().map(via_relay).collect::<Result<Vec<_>, _>>();
        let via = via.map_err(|why| layers.refuse("via", why))?;
        let roots = roots(&host.root).map_err(|why| layers.refuse("root", why))?;
        let mut limits = HostLimits::prove(&host, roots, layers)?;
        Shares::of(settings.memory.0).apply(&mut limits, &settings);
        let access = Access::prove(&settings, Some(&listen), layers)?;
        let fleet = FleetSettings::prove(&host, layers)?;
        if fleet.is_some() {
            FleetSettings::check_node(&access.key, &listen, !via.is_empty(), layers)?;
        }
        let shutdown_timeout = settings.shutdown_timeout.0;
        let max_connections = connections(&settings, MAX_CONNECTIONS);
        let is_capped = listen.cap.is_some() || settings.max_frame.is_some();
        let link = LinkSettings::prove(settings, layers, |memory| Shares::of(memory).incoming)?;
        let via = via.into_iter().map(|address| link.route(address, Role::Server));
        let via = via.collect::<Result<_, _>>().map_err(|why| layers.refuse("via", why))?;
        Ok(Self {
            route: link.route(listen, Role::Server).map_err(|why| layers.refuse(capped_by, why))?,
            via,
            access,
            link,
            is_capped,
            max_connections,
            data: if fleet.is_some() { data(configuration).unwrap_or_default() } else { data(configuration)? },
            fleet,
            agents: AgentSettings::prove(host.agent, &configuration.agents, &limits.process, layers)?,
            limits,
            shutdown_timeout,
        })
    }
}

impl HostLimits {
    /// The library's own limits, with what the settings say.
    pub(super) fn prove(host: &HostSettings, roots: Vec<PathBuf>, layers: &Layers) -> Result<Self, SettingError> {
        let mut limits = Self {
            host: HostConfig::new(roots),
            store: Options::default(),
            demo: DemoConfig::default(),
            process: ProcessLimits::default(),
        };
        host.apply(&mut limits, layers)?;
        // The host itself waits no longer for any agent.
        for (key, time, most) in [
            ("agent_start_timeout", limits.process.start, Span(MAX_AGENT_START)),
            ("agent_cancel_timeout", limits.process.cancel, Span(MAX_AGENT_CANCEL)),
        ] {
            if time > most.0 {
                return Err(layers.refuse(key, format!("allowed are up to {}", most.text())));
            }
        }
        let (kept, most) = (limits.host.terminals.kept_scrollback_bytes, limits.host.terminals.max_scrollback_bytes);
        if kept > most {
            return Err(
                layers.refuse("kept_scrollback", format!("allowed are up to {most} bytes, because of scrollback"))
            );
        }
        Ok(limits)
    }
}

/// How the memory of a host is divided. The shares add up to all of it.
struct Shares {
    /// Messages that are arriving, and requests until they are done: five eighths.
    incoming: u64,
    /// Answers, snapshots and actions until they are written: a 32nd less than a fifth.
    outgoing: u64,
    /// Frames that are arriving, newest entries of the log, and what waits for the disk: a 32nd each.
    small: u64,
    /// Sessions: an eighth.
    state: u64,
    /// Requests that are worked on at the same time, which are there in several copies then: a 16th.
    work: u64,
}

impl Shares {
    const fn of(memory: u64) -> Self {
        let part = memory >> 5;
        Self { incoming: part * 20, outgoing: part * 5, small: part, state: part * 4, work: part * 2 }
    }

    fn apply(&self, limits: &mut HostLimits, settings: &Settings) {
        let narrow = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        let memory = &mut limits.host.endpoint.memory;
        (memory.outgoing_bytes, memory.work_bytes, memory.frame_bytes) = (self.outgoing, self.work, self.small);
        memory.principal_bytes = settings.memory_per_token.0;
        memory.floor_bytes = settings.memory_per_connection.0;
        limits.host.state.max_bytes = limits.host.state.max_bytes.min(narrow(self.state));
        limits.store.recent_bytes = limits.store.recent_bytes.min(narrow(self.small));
        limits.store.max_queued_bytes = limits.store.max_queued_bytes.min(narrow(self.small));
        limits.host.v2.commands.max_bytes = narrow(settings.max_message.0);
    }
}

/// Where a host's data is.
pub(crate) fn data(configuration: &Configuration) -> Result<PathBuf, SettingError> {
    let named = HostSettings::read(&configuration.layers)?.data;
    named.map(|dir| dir.0).or_else(|| configuration.default_data.clone()).ok_or_else(|| missing("data"))
}

/// How long things are kept, for who tidies up.
pub(crate) fn retention(layers: &Layers) -> Result<RetentionPolicy, SettingError> {
    let host = HostSettings::read(layers)?;
    Ok(HostLimits::prove(&host, Vec::new(), layers)?.host.retention)
}

/// Refuses a listening address of an unknown scheme with what a host can do, which is less than a bridge can.
pub(crate) fn check_scheme(layers: &Layers) -> Result<(), SettingError> {
    let Some(text) = layers.text("listen") else { return Ok(()) };
    let Err(AddressError::UnknownScheme { scheme, likely }) = Listen::address(text) else { return Ok(()) };
    let likely = likely.filter(|likely| likely.starts_with("ws") || likely.starts_with(':'));
    let hint = likely.map(|likely| format!("did you mean {likely} ? ")).unwrap_or_default();
    let shown = Listen::may_show(text).then(|| text.to_owned());
    Err(layers.refused("listen", Bad { text: shown, why: format!("unknown scheme {scheme:?}; {hint}{SCHEMES}") }))
}

/// The addresses that a host can listen on.
const SCHEMES: &str = "allowed are ws://HOST:PORT and wss://HOST:PORT";

/// A host serves WebSockets, all at one path.
fn check_transport(listen: &Address) -> Result<(), String> {
    match &listen.transport {
        Transport::WebSocket { .. } if listen.dialect.is_some_and(|dialect| dialect != Dialect::Ahp) => {
            Err("allowed is the dialect ahp, or none".to_owned())
        }
        Transport::WebSocket { target, .. } => {
            check_query(target)?;
            if matches!(target.as_str(), "/" | PATH) {
                Ok(())
            } else {
                Err("allowed is the path /ahp, or none".to_owned())
            }
        }
        _ => Err(SCHEMES.to_owned()),
    }
}

/// An address of a relay, in the wire form that a host speaks.
fn via_relay(address: &Address) -> Result<Address, String> {
    match &address.transport {
        Transport::External { scheme, .. } if scheme.name == "webpubsub" => {}
        _ => return Err("allowed is webpubsub:'CONNECTION STRING'?hub=NAME".to_owned()),
    }
    if address.dialect.is_some_and(|dialect| dialect != Dialect::Ahp) {
        return Err("allowed is the dialect ahp, or none".to_owned());
    }
    let mut address = address.clone();
    address.dialect = Some(Dialect::Ahp);
    Ok(address)
}

/// Whether the query of a listening address has nothing but our options, which are taken out of it already.
pub(super) fn check_query(target: &str) -> Result<(), String> {
    match target.split_once('?') {
        Some((_, query)) => {
            let name = query.split(['&', '=']).find(|part| !part.is_empty()).unwrap_or_default();
            Err(AddressError::unknown_option(name).to_string())
        }
        None => Ok(()),
    }
}

/// The directories that may be used: those that were named, or the one that we are in.
fn roots(named: &[Dir]) -> Result<Vec<PathBuf>, String> {
    let real = |path: &Path| {
        let real = path.canonicalize().map_err(|error| format!("{}: {error}", path.display()))?;
        if real.is_dir() { Ok(real) } else { Err(format!("{} is not a directory", path.display())) }
    };
    if named.is_empty() { Ok(vec![real(Path::new("."))?]) } else { named.iter().map(|dir| real(&dir.0)).collect() }
}

/// A setting that is a limit of the library's.
pub(super) trait Set<T> {
    /// Writes the value to `place`; the error says what is allowed.
    fn set(&self, place: &mut T) -> Result<(), String>;
}

/// Numbers that may be more than their place takes.
macro_rules! numbers {
    ($($from:ty => $($to:ty),+;)+) => {$($(
        impl Set<$to> for $from {
            fn set(&self, place: &mut $to) -> Result<(), String> {
                *place = <$to>::try_from(self.0).map_err(|_| format!("allowed are up to {}", <$to>::MAX))?;
                Ok(())
            }
        }
    )+)+};
}

numbers! {
    Size => u32, u64, usize;
    Count => u32, u64, usize;
}

/// Kinds that fit as they are.
macro_rules! fits {
    ($($from:ty => $to:ty, |$value:ident| $made:expr;)+) => {$(
        impl Set<$to> for $from {
            fn set(&self, place: &mut $to) -> Result<(), String> {
                let $value = self;
                *place = $made;
                Ok(())
            }
        }
    )+};
}

fits! {
    u32 => usize, |value| usize::try_from(*value).unwrap_or(usize::MAX);
    u32 => u64, |value| u64::from(*value);
    Span => Duration, |value| value.0;
    Option<Span> => Option<Duration>, |value| value.map(|value| value.0);
    Size => Option<u64>, |value| Some(value.0);
    PathBuf => OsString, |value| value.clone().into_os_string();
}

/// A program without arguments. If none is set, `place` stays as it is.
impl Set<Vec<OsString>> for Option<PathBuf> {
    fn set(&self, place: &mut Vec<OsString>) -> Result<(), String> {
        if let Some(program) = self {
            *place = vec![program.clone().into_os_string()];
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::file::File;
    use super::super::layers::{Environment, Origin};
    use super::*;

    fn configuration(text: &str) -> Configuration {
        let environment = Environment::new([("XDG_DATA_HOME".into(), "/d".into())]).unwrap();
        let file = File::parse("b.toml".into(), text).unwrap();
        let agents = file.agents.clone();
        let layers = Layers::new(Vec::new(), &environment, file);
        let default_data = environment.default_data();
        let (bridges, unknown_variables) = (Vec::new(), Vec::new());
        let (file, file_origin) = (None, Origin::Default);
        Configuration { layers, bridges, agents, default_data, file, file_origin, unknown_variables }
    }

    fn serve(text: &str) -> Result<ServeSettings, String> {
        let configuration = configuration(text);
        let settings = Settings::read(&configuration.layers).map_err(|error| error.to_string())?;
        ServeSettings::prove(settings, &configuration).map_err(|error| error.to_string())
    }

    #[test]
    fn the_defaults_are_those_of_the_library() {
        let layers = configuration("").layers;
        let limits = HostLimits::prove(&HostSettings::read(&layers).unwrap(), vec!["/r".into()], &layers).unwrap();
        assert_eq!(format!("{:?}", limits.host), format!("{:?}", HostConfig::new(["/r"])));
        assert_eq!(format!("{:?}", limits.store), format!("{:?}", Options::default()));
        assert_eq!(format!("{:?}", limits.demo), format!("{:?}", DemoConfig::default()));
        assert_eq!(limits.process, ProcessLimits::default());
    }

    #[test]
    fn a_host_listens_on_loopback_at_one_path_and_works_here() {
        let serve = serve("").unwrap();
        assert_eq!(serve.route.address.to_string(), format!("{USUAL}?dialect=ahp"));
        assert_eq!(serve.data, Path::new("/d/breakbulk"));
        assert_eq!(serve.agents.first(), Some(&AgentSettings::Demo));
        assert_eq!(serve.limits.host.files.roots, [std::env::current_dir().unwrap().canonicalize().unwrap()]);
        assert_eq!((serve.max_connections, serve.is_capped), (16_384, false));
    }

    #[test]
    fn limits_reach_their_places() {
        let text = "max_hello = '1KiB'\nkeep_for = '30d'\nkeep_bytes = '1G'\nshell = '/bin/zsh'\ngit = '/opt/git'\n\
                    agent_memory = '1G'\nagent_idle_timeout = '5m'\npermission_timeout = '1h'\n\
                    store_readers = 2\ndemo_big = '5M'\nterminal_input = '1M'\ncap = '64KiB'\nmax_terminals = 0";
        let serve = serve(text).unwrap();
        let HostLimits { host, store, demo, process } = serve.limits;
        assert_eq!((host.endpoint.max_hello_bytes, store.readers, demo.max_big_bytes), (1024, 2, 5_000_000));
        assert_eq!(host.retention.max_age, Some(Duration::from_secs(30 * 86_400)));
        assert_eq!((host.retention.max_bytes, host.terminals.max_input_bytes), (Some(1_000_000_000), 1_000_000));
        assert_eq!((host.terminals.command, host.changes.git), (vec!["/bin/zsh".into()], "/opt/git".into()));
        assert_eq!((serve.route.address.cap, host.terminals.max_terminals), (Some(65_536), 0));
        assert_eq!((process.max_memory_bytes, process.idle), (1_000_000_000, Duration::from_secs(300)));
        assert_eq!(host.v2.permission_timeout, Duration::from_secs(3600));
        let agents = ["[[agent]]\nkind = 'claude'", "[[agent]]\nkind = 'acp'\ncommand = 'x'"];
        for agent in agents {
            let limited = self::serve(&format!("agent_memory = '1G'\n{agent}")).unwrap().agents;
            let memory = limited[0].program().map(|program| program.process.max_memory_bytes);
            assert_eq!(memory, Some(1_000_000_000), "{agent}");
        }
    }

    #[test]
    fn agents_come_from_the_tables_of_the_file_and_are_chosen_by_name() {
        let tables = "[[agent]]\nname = 'work'\nkind = 'claude'\ncommand = ['/opt/claude', '--x']\ncwd = '/w'\nmode = 'plan'\n\
                      model = 'opus'\ninherit = ['AWS_*']\nenv = { A = 'b' }\n[[agent]]\nkind = 'demo'\n";
        let agents = serve(tables).unwrap().agents;
        assert_eq!(agents.iter().map(AgentSettings::name).collect::<Vec<_>>(), ["work", "demo"]);
        assert!(matches!(agents[0], AgentSettings::Claude(_)), "{agents:?}");
        let config = agents[0].program().unwrap();
        assert_eq!(config.command, ["/opt/claude", "--x"]);
        assert_eq!((config.directory.as_deref(), config.mode.as_deref()), (Some(Path::new("/w")), Some("plan")));
        assert_eq!((config.model.as_deref(), &config.inherit[..]), (Some("opus"), &["AWS_*".to_owned()][..]));
        assert_eq!(config.env, [("A".to_owned(), "b".to_owned())]);
        let acp = serve("[[agent]]\nkind = 'acp'\ncommand = 'opencode acp'\nauth_method = 'key'").unwrap().agents;
        let AgentSettings::Acp(config) = &acp[0] else { panic!("{acp:?}") };
        assert_eq!((&*config.program.name, config.auth_method.as_deref()), ("opencode", Some("key")));
        assert_eq!(config.program.command, ["opencode", "acp"]);
        for (text, want) in [
            ("[[agent]]\nname = 'a'", "agent is \"a\" (file b.toml:1): it needs a kind: demo, claude or acp"),
            ("[[agent]]\nkind = 'gpt'", "kind is \"gpt\" (file b.toml:2): allowed are demo, claude, acp"),
            ("[[agent]]\nkind = 1", "kind is of type integer (file b.toml:2): allowed is a string"),
            ("[[agent]]\nkindd = 'demo'", "unknown key \"kindd\" (file b.toml:2); did you mean kind?"),
        ] {
            assert_eq!(File::parse("b.toml".into(), text).unwrap_err().to_string(), want);
        }
        let two = "[[agent]]\nkind = 'claude'\n[[agent]]\nkind = 'claude'";
        assert!(serve(two).unwrap_err().contains("two agents are called \"claude\""));
    }

    #[test]
    fn who_says_how_long_frames_may_be_says_it_for_all_clients() {
        for text in
            ["cap = '64KiB'", "preset = 'web-pubsub'", "listen = 'ws://127.0.0.1:1?cap=9000'", "max_frame = '1M'"]
        {
            assert!(serve(text).unwrap().is_capped, "{text}");
        }
        assert!(!serve("max_message = '1M'").unwrap().is_capped);
    }

    #[test]
    fn what_a_host_cannot_do_is_refused() {
        for (text, want) in [
            (
                "listen = 'ws://127.0.0.1:0?capp=1'",
                "listen (file b.toml:1) is invalid: unknown option \"capp\" in the address; did you mean cap? allowed are \
                 cap, dialect, preset and private",
            ),
            (
                "listen = 'ws://127.0.0.1:0?x=1'",
                "listen is \"ws://127.0.0.1:0/?x=1\" (file b.toml:1): unknown option \"x\" in the address; allowed are cap, \
                 dialect, preset and private",
            ),
            (
                "memory = '40MiB'",
                "memory is \"40MiB\" (file b.toml:1): it needs at least 52MiB, because max_message is 32MiB: raise memory, or \
                 lower max_message",
            ),
            (
                "listen = 'stdio:'",
                "listen is \"stdio:\" (file b.toml:1): allowed are ws://HOST:PORT and wss://HOST:PORT",
            ),
            ("listen = 'ws://h:1/x'", "listen is \"ws://h:1/x\" (file b.toml:1): allowed is the path /ahp, or none"),
            ("cap = 100", "cap is \"100\" (file b.toml:1): allowed as a cap are 512 to 4294967295 bytes"),
            (
                "agent = ['gpt']",
                "agent is \"gpt\" (file b.toml:1): allowed are demo, claude, claude:COMMAND, acp:COMMAND, each with NAME= before \
                 it, and the name of an [[agent]] of the file",
            ),
            (
                "agent = ['claude', 'claude:other']",
                "agent is \"claude, claude:other\" (file b.toml:1): two agents are called \"claude\": write NAME= before one of \
                 them",
            ),
            ("max_calls = 0", "max_calls is \"0\" (file b.toml:1): allowed is a whole number of 1 or more"),
            ("max_hello = '0'", "max_hello is \"0\" (file b.toml:1): at least 1 byte is needed"),
            ("terminal_input = '4GiB'", "terminal_input is \"4GiB\" (file b.toml:1): allowed are up to 4294967295"),
            ("agent_start_timeout = '11m'", "agent_start_timeout is \"11m\" (file b.toml:1): allowed are up to 10m"),
            ("agent_cancel_timeout = '21s'", "agent_cancel_timeout is \"21s\" (file b.toml:1): allowed are up to 20s"),
            (
                "scrollback = '1k'",
                "kept_scrollback is \"256KiB\" (default): allowed are up to 1000 bytes, because of scrollback",
            ),
        ] {
            assert_eq!(serve(text).unwrap_err(), want);
        }
        let nowhere = serve("root = ['/nowhere/at/all']").unwrap_err();
        assert!(nowhere.starts_with("root is \"/nowhere/at/all\" (file b.toml:1): /nowhere/at/all: "), "{nowhere}");
    }
}
