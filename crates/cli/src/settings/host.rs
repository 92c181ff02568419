//! The settings of a host: where it keeps what it knows, what it may use, and each limit of each of its rooms.
//!
//! A line that ends in `=> place` is a limit of the library's, and says which.

use std::path::PathBuf;

use breakbulk::address::Size;

use super::kinds::{Count, Dir};
use super::names::AgentName;
use super::serve::{Means, Set};
use super::table::{Group, Setting, settings};
use super::value::Field;
use super::{Layers, SettingError};
use crate::span::Span;

/// Makes the table, the type, and the way of each limit to its place.
macro_rules! host_settings {
    ($($group:ident { $(
        $(#[doc = $doc:literal])+ $key:ident: $kind:ty = $default:literal $(=> $($place:ident).+)?;
    )+ })+) => {
        settings! { HostSettings: $($group { $($(#[doc = $doc])+ $key: $kind = $default;)+ })+ }

        impl HostSettings {
            /// Puts each limit into its place.
            pub(super) fn apply(&self, means: &mut Means, layers: &Layers) -> Result<(), SettingError> {
                $($($(
                    Set::set(&self.$key, &mut means.$($place).+)
                        .map_err(|why| layers.refuse(stringify!($key), why))?;
                )?)+)+
                Ok(())
            }
        }
    };
}

host_settings! {
    Host {
        /// Where the host keeps its log. One host at a time.
        data: Option<Dir> = "$XDG_DATA_HOME/breakbulk";
        /// A directory in which agents, terminals and clients may work. May be given many times.
        ///
        /// The first is where a session begins that names none. Nothing outside of them is read or written for a client;
        /// terminals and approved commands run with the rights of this program.
        root: Vec<Dir> = "the current directory";
        /// The agent that answers. So far there is one, demo: a scripted one, to see everything without an account.
        ///
        /// Real agents come later. May be given many times; the first answers when a client names none.
        agent: Vec<AgentName> = "demo";
    }
    Connections {
        /// Connections at once. One more is told to come again later (1013).
        max_connections: Count = "16384";
        /// What may come in before a client has introduced itself.
        max_hello: Size = "64KiB" => host.endpoint.max_hello_bytes;
        /// How long a client may take to introduce itself.
        hello_timeout: Span = "10s" => host.endpoint.hello_time;
        /// What may wait to go out on a connection before the log is read on for it.
        send_room: Size = "1MiB" => host.endpoint.room_bytes;
        /// Bytes of answers that may wait to go out on a connection before no more are taken up.
        max_answers: Size = "64MiB" => host.endpoint.max_answer_bytes;
        /// Up to so many missed actions are replayed at a reconnect; more are replaced by snapshots.
        max_replay: Count = "16384" => host.endpoint.max_replay;
        /// What a client is thought to take in one message that does not say.
        assumed_message: Size = "32MiB" => host.endpoint.assumed_message_bytes;
        /// To how many turns a chat is cut whose whole snapshot is more than the client takes.
        window_turns: Count = "50" => host.endpoint.window_turns;
        /// Channels that a client may follow.
        max_subscriptions: Count = "1024" => host.endpoint.max_subscriptions;
        /// Requests of a client that may be under way.
        max_calls: Count = "64" => host.endpoint.max_calls;
        /// Actions of a client that may wait for those before them.
        max_dispatches: Count = "256" => host.endpoint.max_dispatches;
        /// Bytes of requests of a client that may be under way; past them nothing more is read.
        max_requests: Size = "64MiB" => host.endpoint.max_request_bytes;
        /// Requests to a client that may be under way; more wait.
        max_asks: Count = "32" => host.endpoint.max_asks;
        /// How long a client may take to answer a request.
        ask_timeout: Span = "1m" => host.endpoint.ask_time;
        /// How long a client may take nothing while something waits for it.
        stall_timeout: Span = "1m" => host.endpoint.stall_time;
        /// How far behind the log a client may be, in actions; past it, it is closed and gets a snapshot.
        max_lag: Count = "1000000" => host.endpoint.max_lag;
        /// The longest delay that a client may ask for, so that more becomes one.
        max_latency: Span = "1s" => host.endpoint.max_latency;
    }
    Terminals {
        /// The program that runs in a terminal.
        shell: Option<PathBuf> = "$SHELL, or /bin/sh" => host.terminals.command;
        /// Terminals at once, ended ones that nobody disposed of included. 0 allows none.
        max_terminals: u32 = "64" => host.terminals.max_terminals;
        /// Output of a terminal that waits for the log; beyond it the program waits.
        terminal_output: Size = "256KiB" => host.terminals.max_pending_bytes;
        /// Input that waits for the program of a terminal; beyond it input is refused.
        terminal_input: Size = "4MiB" => host.terminals.max_input_bytes;
        /// The content of a terminal at which old output is let go.
        scrollback: Size = "1MiB" => host.terminals.max_scrollback_bytes;
        /// How much of it stays then.
        kept_scrollback: Size = "256KiB" => host.terminals.kept_scrollback_bytes;
        /// What a program gets between the hangup and the kill when its terminal is disposed of.
        hangup_grace: Span = "500ms" => host.terminals.hangup_grace;
    }
    Files {
        /// The largest file that is read for a client.
        max_read: Size = "64MiB" => host.files.max_read_bytes;
        /// The most that one write carries.
        max_write: Size = "64MiB" => host.files.max_write_bytes;
        /// The most entries of a directory that are listed.
        max_list: Count = "50000" => host.files.max_list_entries;
        /// The most bytes that one copy makes, or that a write keeps of an old file.
        max_copy: Size = "4GiB" => host.files.max_copy_bytes;
        /// The most files and directories that one copy makes.
        max_copy_entries: Count = "100000" => host.files.max_copy_entries;
        /// The deepest tree that is copied, deleted or watched. Each level holds two files open.
        max_depth: Count = "100" => host.files.max_depth;
        /// Operations on files at once; others wait.
        max_file_operations: Count = "8" => host.files.max_at_once;
        /// Watches at once. 0 allows none.
        max_watches: u32 = "128" => host.files.max_watches;
        /// The most files and directories that one watch looks at.
        max_watch_entries: Count = "100000" => host.files.max_watch_entries;
        /// The most changes in one action of a watch.
        max_watch_changes: Count = "1000" => host.files.max_watch_changes;
        /// Changes are reported when there was none for this long.
        watch_quiet: Span = "100ms" => host.files.watch_quiet;
        /// And at the latest after this.
        watch_longest: Span = "1s" => host.files.watch_longest;
        /// How long a client that lost its link has to come back before its watches end and it is active in no session.
        watch_grace: Span = "1m" => host.files.watch_grace;
    }
    Changes {
        /// The git program.
        git: PathBuf = "git" => host.changes.git;
        /// How long one run of it may take.
        git_timeout: Span = "20s" => host.changes.timeout;
        /// What one run of it may write.
        git_output: Size = "64MiB" => host.changes.max_output_bytes;
        /// Files in one changeset. With more, it has none and says why.
        max_changed_files: Count = "10000" => host.changes.max_files;
        /// Bytes of new files that are read to count their lines.
        max_counted: Size = "32MiB" => host.changes.max_counted_bytes;
        /// The largest contents that are read from before a change.
        max_blob: Size = "64MiB" => host.changes.max_blob_bytes;
    }
    Customizations {
        /// How deep in a workspace customizations are looked for.
        customize_depth: Count = "8" => host.customize.max_depth;
        /// Files and directories that are looked at for them, of each working directory.
        customize_entries: Count = "100000" => host.customize.max_entries;
        /// Customizations of each working directory.
        max_customizations: Count = "10000" => host.customize.max_found;
        /// What is read of one customization: its beginning, where it describes itself.
        customize_head: Size = "64KiB" => host.customize.max_head_bytes;
        /// The largest .mcp.json that is read.
        customize_manifest: Size = "1MiB" => host.customize.max_manifest_bytes;
    }
    Completions {
        /// Items in an answer to a request for completions.
        max_completions: Count = "50" => host.complete.max_items;
        /// Files and directories that are looked at for it, of each working directory.
        completion_entries: Count = "20000" => host.complete.max_entries;
        /// How deep they may be.
        completion_depth: Count = "12" => host.complete.max_depth;
    }
    State {
        /// About what channels in memory may take. Past it, those not used for the longest time are saved and forgotten.
        state_memory: Size = "64MiB" => host.state.max_bytes;
        /// A channel is saved when its actions since the last time have this many bytes.
        save_after: Size = "4MiB" => host.state.save_after_bytes;
        /// What is taken from the log at once.
        state_page: Size = "1MiB" => host.state.page_bytes;
        /// How many older turns one request brings.
        turns_per_page: Count = "50" => host.state.turns_per_page;
        /// How many bytes these have, unless one alone has more.
        turns_page: Size = "4MiB" => host.state.turns_page_bytes;
        /// How many sessions one page of the list of sessions has.
        sessions_per_page: Count = "500" => host.state.sessions_per_page;
    }
    Store {
        /// The largest batch of actions that the log takes at once.
        store_batch: Size = "256MiB" => store.max_batch_bytes;
        /// What may wait for the disk; what comes beyond waits for room.
        store_queue: Size = "64MiB" => store.max_queued_bytes;
        /// What connections share of the newest actions, in memory.
        store_recent: Size = "16MiB" => store.recent_bytes;
        /// The length of the write-ahead log. Shorter means more checkpoints.
        store_wal: Size = "8MiB" => store.wal_bytes;
        /// How many pages of older actions are read at the same time.
        store_readers: Count = "4" => store.readers;
    }
    Retention {
        /// Let actions go that are older than this, such as 30d. What they made of a session stays.
        keep_for: Option<Span> = "for ever" => host.retention.max_age;
        /// Let the oldest actions go until the log uses no more than this.
        keep_bytes: Option<Size> = "any number" => host.retention.max_bytes;
        /// How long a batch that comes again is known.
        keep_ids: Span = "1d" => host.retention.ids_for;
        /// How often to look for what may go.
        retain_every: Span = "10m" => host.retain_every;
    }
    Demo {
        /// What the demo agent's chance depends on.
        demo_seed: u32 = "0" => demo.seed;
        /// What the demo agent waits between two pieces of text.
        demo_pace: Span = "30ms" => demo.pace;
        /// The same with /slow.
        demo_slow_pace: Span = "500ms" => demo.slow_pace;
        /// The largest /big of the demo agent.
        demo_big: Size = "64MiB" => demo.max_big_bytes;
        /// The most calls of its /tools.
        demo_tools: Count = "32" => demo.max_tools;
        /// How long a command of its may run.
        demo_command_time: Span = "1m" => demo.command_time;
        /// How much a command of its may write.
        demo_command_output: Size = "16MiB" => demo.command_bytes;
    }
}
