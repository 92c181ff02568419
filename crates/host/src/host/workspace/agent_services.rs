//! Files and terminals for the agent of a chat. Its terminals belong to its session, so clients see them.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use ahp_types::commands::{
    ContentEncoding, CreateTerminalParams, ResourceMkdirParams, ResourceReadParams, ResourceWriteParams,
};
use ahp_types::errors::ahp_error_codes::{NOT_FOUND, PERMISSION_DENIED};
use ahp_types::state::{
    SnapshotState, TerminalClaim, TerminalContentPart, TerminalLifecycleState, TerminalSessionClaim, TerminalState,
};

use super::Workspace;
use crate::agent::{AgentServices, HostServices, ServiceError, TerminalCommand, TerminalExit, TerminalOutput};
use crate::error::MethodError;
use crate::files::uri_of;
use crate::lock::lock;
use crate::log::{BatchId, BoxFuture};
use crate::terminal::TerminalProgram;

/// What the workspace does for the agent of one chat.
struct ChatServices {
    workspace: Arc<Workspace>,
    session: String,
    chat: String,
    directory: Option<PathBuf>,
    /// The terminals that this agent has created: it may use no others.
    terminals: Mutex<HashSet<String>>,
}

impl Workspace {
    /// What the host does for the agent of a chat whose working directory is this.
    pub(in crate::host) fn services(
        self: &Arc<Self>,
        session: &str,
        chat: &str,
        directory: Option<PathBuf>,
    ) -> HostServices {
        HostServices::new(ChatServices {
            workspace: Arc::clone(self),
            session: session.to_owned(),
            chat: chat.to_owned(),
            directory,
            terminals: Mutex::default(),
        })
    }
}

impl ChatServices {
    fn own(&self, terminal: &str) -> Result<(), ServiceError> {
        let is_own = lock(&self.terminals).contains(terminal);
        is_own.then_some(()).ok_or_else(|| ServiceError::NotFound(format!("this agent has no terminal {terminal}")))
    }

    async fn shown(&self, terminal: &str) -> Result<TerminalOutput, ServiceError> {
        let read = |state: &SnapshotState, _| match state {
            SnapshotState::Terminal(state) => Some(TerminalOutput { text: text(state), exit: exit(state) }),
            _ => None,
        };
        let log_writer = &self.workspace.log_writer;
        // What the terminal has shown is in the log, but perhaps not in the state yet: an exit without its status, or half of an output.
        log_writer.state().catch_up().await.map_err(MethodError::from)?;
        let shown = log_writer.read(terminal, read).await.map_err(MethodError::from)?;
        shown.ok_or_else(|| ServiceError::NotFound(format!("there is no terminal {terminal}")))
    }
}

impl AgentServices for ChatServices {
    fn read_file(&self, path: PathBuf) -> BoxFuture<'_, Result<String, ServiceError>> {
        Box::pin(async move {
            let (channel, encoding) = (self.session.clone(), Some(ContentEncoding::Utf8));
            let read = ResourceReadParams { channel, meta: None, uri: uri_of(&path), encoding };
            let read = self.workspace.files.read(read).await.map_err(MethodError::from)?;
            match read.encoding {
                ContentEncoding::Utf8 => Ok(read.data),
                _ => Err(ServiceError::Failed(format!("{} is not a text file", path.display()))),
            }
        })
    }

    fn write_file(&self, path: PathBuf, text: String) -> BoxFuture<'_, Result<(), ServiceError>> {
        Box::pin(async move {
            let uri = uri_of(&path);
            if let Some(parent) = path.parent() {
                let make = ResourceMkdirParams { channel: self.session.clone(), meta: None, uri: uri_of(parent) };
                self.workspace.files.mkdir(make).await.map_err(MethodError::from)?;
            }
            let write = ResourceWriteParams {
                channel: self.session.clone(),
                meta: None,
                uri: uri.clone(),
                data: text,
                encoding: ContentEncoding::Utf8,
                content_type: None,
                create_only: None,
                mode: None,
                position: None,
                if_match: None,
            };
            self.workspace.files.write(write).await.map_err(MethodError::from)?;
            self.workspace.files_changed(vec![uri]).await;
            Ok(())
        })
    }

    fn create_terminal(&self, command: TerminalCommand) -> BoxFuture<'_, Result<String, ServiceError>> {
        Box::pin(async move {
            let channel = format!("ahp-terminal:/{}", BatchId::new());
            let name = command.command.first().map(|program| program.to_string_lossy().chars().take(64).collect());
            let (session, chat) = (self.session.clone(), self.chat.clone());
            let params = CreateTerminalParams {
                channel: channel.clone(),
                meta: None,
                claim: TerminalClaim::Session(TerminalSessionClaim {
                    session,
                    chat,
                    turn_id: None,
                    tool_call_id: None,
                }),
                name,
                cwd: command.directory.or_else(|| self.directory.clone()).map(|directory| uri_of(&directory)),
                cols: None,
                rows: None,
            };
            let program = TerminalProgram { command: command.command, env: command.env };
            self.workspace.open_terminal(params, Some(program), None).await?;
            lock(&self.terminals).insert(channel.clone());
            Ok(channel)
        })
    }

    fn terminal_output<'a>(&'a self, terminal: &'a str) -> BoxFuture<'a, Result<TerminalOutput, ServiceError>> {
        Box::pin(async move {
            self.own(terminal)?;
            self.shown(terminal).await
        })
    }

    fn wait_for_exit<'a>(&'a self, terminal: &'a str) -> BoxFuture<'a, Result<TerminalExit, ServiceError>> {
        Box::pin(async move {
            self.own(terminal)?;
            self.workspace.terminals.exited(terminal).await;
            Ok(self.shown(terminal).await?.exit.unwrap_or_default())
        })
    }

    fn kill_terminal<'a>(&'a self, terminal: &'a str) -> BoxFuture<'a, Result<(), ServiceError>> {
        Box::pin(async move {
            self.own(terminal)?;
            self.workspace.terminals.kill(terminal);
            Ok(())
        })
    }

    fn release_terminal<'a>(&'a self, terminal: &'a str) -> BoxFuture<'a, Result<(), ServiceError>> {
        Box::pin(async move {
            self.own(terminal)?;
            lock(&self.terminals).remove(terminal);
            self.workspace.end_terminal(terminal.to_owned()).await?;
            Ok(())
        })
    }
}

fn text(state: &TerminalState) -> String {
    let parts = state.content.iter().map(|part| match part {
        TerminalContentPart::Unclassified(part) => part.value.as_str(),
        TerminalContentPart::Command(part) => part.output.as_str(),
        TerminalContentPart::Unknown(_) => "",
    });
    parts.collect()
}

const fn exit(state: &TerminalState) -> Option<TerminalExit> {
    match &state.lifecycle {
        TerminalLifecycleState::Exited(exited) => Some(TerminalExit { code: exited.exit_code }),
        _ => None,
    }
}

impl From<MethodError> for ServiceError {
    fn from(error: MethodError) -> Self {
        let text = error.to_string();
        match error.code {
            NOT_FOUND => Self::NotFound(text),
            PERMISSION_DENIED => Self::Denied(text),
            _ => Self::Failed(text),
        }
    }
}
