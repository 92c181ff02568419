//! The settings of a host: its directories, its agents, and each limit of each of its modules.
//!
//! A line that ends in `=> place` is a limit of the library's, and says which.

use std::path::PathBuf;

use breakbulk::Address;
use breakbulk::address::Size;
use breakbulk_host::fleet::NatsAddress;
use breakbulk_host::log::jetstream::HostName;

use super::agents::AgentChoice;
use super::kinds::{Count, Dir};
use super::serve::{HostLimits, Set};
use super::table::{Group, Setting, settings};
use super::value::Field;
use super::{Layers, SettingError};
use crate::span::Span;

/// Makes the table, the type, and a function that copies each limit into the host's configuration.
macro_rules! host_settings {
    ($($group:ident { $(
        $(#[doc = $doc:literal])+ $key:ident: $kind:ty = $default:literal $(=> $($place:ident).+)?;
    )+ })+) => {
        settings! { HostSettings: $($group { $($(#[doc = $doc])+ $key: $kind = $default;)+ })+ }

        impl HostSettings {
            /// Puts each limit into its place.
            pub(super) fn apply(&self, limits: &mut HostLimits, layers: &Layers) -> Result<(), SettingError> {
                $($($(
                    Set::set(&self.$key, &mut limits.$($place).+)
                        .map_err(|why| layers.refuse(stringify!($key), why))?;
                )?)+)+
                Ok(())
            }
        }
    };
}

host_settings! {
    Host {
        /// The directory of the host's log. Only one host at a time can use it.
        data: Option<Dir> = "$XDG_DATA_HOME/breakbulk";
        /// A directory in which agents, terminals and clients may work. May be given several times.
        ///
        /// A session that names no directory begins in the first. Clients can read and write files only in these directories,
        /// but terminals and approved commands have all the rights of this program.
        root: Vec<Dir> = "the current directory";
        /// An agent that answers: demo, claude, claude:COMMAND, acp:COMMAND, or the name of an [[agent]] of the file.
        ///
        /// demo follows a script and needs no account. claude is the Claude Code program. acp:COMMAND is any program that speaks
        /// the Agent Client Protocol. With NAME= before it, clients know it by that name. May be given several times; the first
        /// answers when a client names none. If none is named, a host has all [[agent]] tables of the file; without those, demo
        /// and what is found in PATH.
        agent: Vec<AgentChoice> = "demo, and what is found in PATH";
    }
    Fleet {
        /// Keep the log in NATS JetStream, for hosts that run on several nodes: nats://HOST:PORT[,HOST:PORT…], or tls://….
        ///
        /// Before the first host may be TOKEN@ or USER:PASSWORD@; the environment and the file keep these from other users of the
        /// machine. All nodes of a host need the same token. See docs/fleet.md.
        log: Option<NatsAddress> = "a file in the data directory";
        /// The name of the host in the fleet. Nodes with the same name serve the same host, one at a time.
        host: HostName = "main";
        /// On how many NATS servers everything is kept, when the host is made: 1, 3 or 5.
        replicas: Count = "1";
        /// The credentials file for the NATS servers.
        nats_credentials: Option<PathBuf> = "none";
        /// Trust these authorities for the NATS servers, beside those of this machine (PEM).
        nats_ca: Option<PathBuf> = "none";
        /// Where the other nodes reach this one: ws://HOST:PORT or wss://HOST:PORT.
        advertise: Option<Address> = "the listening address";
        /// How long a node that owns the host may be silent before another one takes over. From 1s to 5m.
        lease: Span = "3s";
    }
    Connections {
        /// A relay through which clients can also come. May be given several times.
        ///
        /// The form is webpubsub:'CONNECTION STRING'?hub=NAME; `breakbulk relay` prints a connection string. Whoever has the
        /// connection string, or a token for the hub, can use the host. Several hosts in one hub need names: &host=NAME.
        via: Vec<Address> = "none";
        /// How many bytes a client may send before its initialize or reconnect request is complete.
        max_hello: Size = "64KiB" => host.endpoint.max_hello_bytes;
        /// How long a client may take to send its initialize or reconnect request.
        hello_timeout: Span = "10s" => host.endpoint.hello_time;
        /// How many bytes may wait to be sent on a connection before reading the log for it pauses.
        send_buffer: Size = "1MiB" => host.endpoint.max_unsent_bytes;
        /// How many bytes of answers may wait to be sent on a connection before no new requests are processed.
        max_answers: Size = "64MiB" => host.endpoint.max_answer_bytes;
        /// How many missed actions are replayed at a reconnect. If there are more, snapshots are sent instead.
        max_replay: Count = "16384" => host.endpoint.max_replay;
        /// The message limit that is assumed for a client that advertises none.
        assumed_message: Size = "32MiB" => host.endpoint.assumed_message_bytes;
        /// How many turns of a chat are sent if its whole snapshot is over the client's message limit.
        window_turns: Count = "50" => host.endpoint.window_turns;
        /// How many channels a client may follow.
        max_subscriptions: Count = "1024" => host.endpoint.max_subscriptions;
        /// How many requests of a client may be in progress.
        max_calls: Count = "64" => host.endpoint.max_calls;
        /// How many actions of a client may wait for earlier ones.
        max_dispatches: Count = "256" => host.endpoint.max_dispatches;
        /// How many bytes of requests of a client may be in progress. Beyond that, nothing more is read from it.
        max_requests: Size = "64MiB" => host.endpoint.max_request_bytes;
        /// How many requests to a client may be in progress; more wait.
        max_asks: Count = "32" => host.endpoint.max_asks;
        /// How long a client may take to answer a request.
        ask_timeout: Span = "1m" => host.endpoint.ask_time;
        /// How long a client may read nothing while something waits for it.
        stall_timeout: Span = "1m" => host.endpoint.stall_time;
        /// How many actions a client may be behind the log. Beyond that, it is closed and gets a snapshot at its reconnect.
        max_lag: Count = "1000000" => host.endpoint.max_lag;
        /// The longest delay that a client may ask for to have small updates merged.
        max_latency: Span = "1s" => host.endpoint.max_latency;
    }
    Terminals {
        /// The program that runs in a terminal.
        shell: Option<PathBuf> = "$SHELL, or /bin/sh" => host.terminals.command;
        /// How many terminals may exist, including ended ones that are not disposed of. 0 allows none.
        max_terminals: u32 = "64" => host.terminals.max_terminals;
        /// How much output of a terminal may wait for the log; beyond that, its program waits.
        terminal_output: Size = "256KiB" => host.terminals.max_pending_bytes;
        /// How much input may wait for the program of a terminal; beyond that, input is refused.
        terminal_input: Size = "4MiB" => host.terminals.max_input_bytes;
        /// How much output of a terminal is logged per second while a client follows it; beyond that, its program waits.
        watched_rate: Size = "4MiB" => host.terminals.watched_rate;
        /// The same while no client follows it.
        unwatched_rate: Size = "64KiB" => host.terminals.unwatched_rate;
        /// How much output of a terminal is kept. Beyond that, old output is removed.
        scrollback: Size = "1MiB" => host.terminals.max_scrollback_bytes;
        /// How much output remains after such a removal.
        kept_scrollback: Size = "256KiB" => host.terminals.kept_scrollback_bytes;
        /// How long a program has between SIGHUP and SIGKILL when its terminal is disposed of.
        hangup_grace: Span = "500ms" => host.terminals.hangup_grace;
    }
    Files {
        /// The largest file that a client may read.
        max_read: Size = "64MiB" => host.files.max_read_bytes;
        /// The most bytes that a client may write at once.
        max_write: Size = "64MiB" => host.files.max_write_bytes;
        /// How many entries of a directory are listed.
        max_list: Count = "50000" => host.files.max_list_entries;
        /// How many bytes one copy may have, or a write may keep of the old file.
        max_copy: Size = "4GiB" => host.files.max_copy_bytes;
        /// How many files and directories one copy may have.
        max_copy_entries: Count = "100000" => host.files.max_copy_entries;
        /// The deepest tree that is copied, deleted or watched. Each level holds two files open.
        max_depth: Count = "100" => host.files.max_depth;
        /// How many file operations run at once; others wait.
        max_file_operations: Count = "8" => host.files.max_at_once;
        /// How many watches may exist. 0 allows none.
        max_watches: u32 = "128" => host.files.max_watches;
        /// How many files and directories one watch may cover.
        max_watch_entries: Count = "100000" => host.files.max_watch_entries;
        /// How many changes one action of a watch may have.
        max_watch_changes: Count = "1000" => host.files.max_watch_changes;
        /// How long a watch waits for more changes before it reports them.
        watch_quiet: Span = "100ms" => host.files.watch_quiet;
        /// How long a watch waits at most while changes go on.
        watch_longest: Span = "1s" => host.files.watch_longest;
        /// How long a disconnected client has to reconnect before it loses its watches, sessions and terminals.
        reconnect_grace: Span = "1m" => host.reconnect_grace;
    }
    Changes {
        /// The git program. It runs without a PATH.
        git: PathBuf = "git" => host.changes.git;
        /// How long one run of git may take.
        git_timeout: Span = "20s" => host.changes.timeout;
        /// How much one run of git may write.
        git_output: Size = "64MiB" => host.changes.max_output_bytes;
        /// How many files one changeset may have. With more, it lists none and says why.
        max_changed_files: Count = "10000" => host.changes.max_files;
        /// How many bytes of new files are read to count their lines.
        max_counted: Size = "32MiB" => host.changes.max_counted_bytes;
        /// The largest old version of a file that is read.
        max_blob: Size = "64MiB" => host.changes.max_blob_bytes;
        /// How many bytes are staged at once; they are copied to TMPDIR.
        max_staged: Size = "256MiB" => host.changes.max_staged_bytes;
    }
    Customizations {
        /// How deep in a working directory to search for customizations.
        customize_depth: Count = "8" => host.customize.max_depth;
        /// How many files and directories of a working directory to search for customizations.
        customize_entries: Count = "100000" => host.customize.max_entries;
        /// How many customizations a working directory may have.
        max_customizations: Count = "10000" => host.customize.max_found;
        /// How many bytes are read of one customization: its beginning, where it describes itself.
        customize_head: Size = "64KiB" => host.customize.max_head_bytes;
        /// The largest .mcp.json that is read.
        customize_manifest: Size = "1MiB" => host.customize.max_manifest_bytes;
    }
    Completions {
        /// How many completions one answer has.
        max_completions: Count = "50" => host.complete.max_items;
        /// How many files and directories of a working directory to search for completions.
        completion_entries: Count = "20000" => host.complete.max_entries;
        /// How deep in a working directory to search for completions.
        completion_depth: Count = "12" => host.complete.max_depth;
    }
    State {
        /// How many bytes channels in memory may take, about; never more than an eighth of memory.
        ///
        /// Beyond that, the least recently used channels are saved and evicted.
        state_memory: Size = "64MiB" => host.state.max_bytes;
        /// A channel is saved after this many bytes of new actions.
        save_after: Size = "4MiB" => host.state.save_after_bytes;
        /// How many bytes are read from the log at once.
        state_page: Size = "1MiB" => host.state.page_bytes;
        /// How many older turns one answer to fetchTurns has.
        turns_per_page: Count = "50" => host.state.turns_per_page;
        /// How many bytes these turns have in all, unless one alone has more.
        turns_page: Size = "4MiB" => host.state.turns_page_bytes;
        /// How many sessions one page of the session list has.
        sessions_per_page: Count = "500" => host.state.sessions_per_page;
    }
    Store {
        /// The largest batch of actions that the log accepts.
        store_batch: Size = "256MiB" => store.max_batch_bytes;
        /// How many bytes may wait for the disk; never more than a 32nd of memory. Beyond that, writers wait.
        store_queue: Size = "64MiB" => store.max_queued_bytes;
        /// How many bytes of the newest actions are kept in memory for all connections; never more than a 32nd of memory.
        store_recent: Size = "16MiB" => store.recent_bytes;
        /// The length of the write-ahead log. Shorter means more checkpoints.
        store_wal: Size = "8MiB" => store.wal_bytes;
        /// How many pages of older actions are read at the same time.
        store_readers: Count = "4" => store.readers;
    }
    Retention {
        /// Remove actions that are older than this, such as 30d. The content of sessions stays.
        keep_for: Option<Span> = "for ever" => host.retention.max_age;
        /// Remove the oldest actions until the log uses no more than this. The content of sessions stays.
        keep_bytes: Size = "4GiB" => host.retention.max_bytes;
        /// How long the id of a batch is remembered, to recognise a repeated one.
        keep_ids: Span = "1d" => host.retention.ids_for;
        /// How often to check for actions to remove.
        retain_every: Span = "10m" => host.retain_every;
    }
    Agents {
        /// How long an agent's program may take until it is ready. At most 10m.
        ///
        /// It is ready when it has written its first line, and with ACP when its session is open.
        agent_start_timeout: Span = "1m" => process.start;
        /// How long it may write nothing in the middle of a turn, unless it waits for an answer or runs a tool.
        agent_silence_timeout: Span = "10m" => process.silence;
        /// How long it may take to stop a turn that is cancelled. Then it is killed. At most 20s.
        agent_cancel_timeout: Span = "10s" => process.cancel;
        /// How long it may run without a turn. Then it is ended; the next prompt starts it again.
        agent_idle_timeout: Span = "30m" => process.idle;
        /// How much memory it and everything that it has started may use. Beyond that, it is killed.
        agent_memory: Size = "8GiB" => process.max_memory_bytes;
        /// The longest line that is read from it. Longer ones are skipped and logged.
        agent_max_line: Size = "32MiB" => process.max_line_bytes;
        /// How much may wait to be read by it, such as a prompt with images.
        agent_max_input: Size = "64MiB" => process.max_input_bytes;
        /// How long a permission request that a v2 client was told of waits for an answer. Then it is denied.
        permission_timeout: Span = "2m" => host.v2.permission_timeout;
    }
    Demo {
        /// The seed of the demo agent's random choices.
        demo_seed: u32 = "0" => demo.seed;
        /// How long the demo agent waits between two pieces of text.
        demo_pace: Span = "30ms" => demo.pace;
        /// The same with /slow.
        demo_slow_pace: Span = "500ms" => demo.slow_pace;
        /// The largest /big of the demo agent.
        demo_big: Size = "64MiB" => demo.max_big_bytes;
        /// How many calls its /tools may make.
        demo_tools: Count = "32" => demo.max_tools;
        /// How long a command of the demo agent may run.
        demo_command_time: Span = "1m" => demo.command_time;
        /// How much a command of the demo agent may write.
        demo_command_output: Size = "16MiB" => demo.command_bytes;
    }
}
