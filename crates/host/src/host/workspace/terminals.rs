//! Terminals for clients: who may have one, and how their actions are carried out.
//!
//! # Input is logged without its text
//!
//! `terminal/input` changes no state: the protocol's reducer ignores it, and its effect is output. But users type passwords
//! here, and the log is durable. So the action is logged with its origin and **without its text**: a client that has
//! applied it optimistically learns that it was accepted, like every other action. The text goes to the program alone, once
//! the action is logged.

use std::sync::Arc;

use ahp_types::ROOT_RESOURCE_URI;
use ahp_types::actions::{StateAction, TerminalExitedAction, TerminalInputAction};
use ahp_types::commands::{CreateTerminalParams, DisposeTerminalParams};
use ahp_types::errors::ahp_error_codes::{ALREADY_EXISTS, NOT_FOUND, PERMISSION_DENIED, SESSION_NOT_FOUND};
use ahp_types::state::{SnapshotState, TerminalClaim, TerminalInfo, TerminalLifecycleState};
use breakbulk_proto::Message;
use tracing::warn;

use super::{Workspace, run_to_end};
use crate::action_sink::ActionSink as _;
use crate::endpoint::{ClientInfo, DispatchError, Dispatched, RawParams};
use crate::error::MethodError;
use crate::gate;
use crate::host::dispatch::no_channel;
use crate::host::log_writer::{Transaction, append_error};
use crate::state::StateError;
use crate::terminal::{TerminalError, TerminalProgram, is_of_client};

impl Workspace {
    /// `createTerminal`. The name of a terminal that was disposed of is free again.
    pub(super) async fn create_terminal(
        self: &Arc<Self>,
        client: &ClientInfo,
        params: &RawParams,
    ) -> Result<Message, MethodError> {
        let params: CreateTerminalParams = params.parse()?;
        self.check_claim(client, &params.claim).await?;
        self.open_terminal(params, None, Some(Arc::clone(&client.id))).await?;
        Ok(Message::from("null"))
    }

    /// Opens the channel of a terminal, and runs this program on it, or the configured one. A client that has asked for it may
    /// be gone when it is done.
    pub(super) async fn open_terminal(
        self: &Arc<Self>,
        params: CreateTerminalParams,
        program: Option<TerminalProgram>,
        client: Option<Arc<str>>,
    ) -> Result<(), MethodError> {
        let this = Arc::clone(self);
        run_to_end(async move {
            let prepared = this.terminals.prepare_program(params, program).await?;
            let channel = prepared.channel().to_owned();
            let state = SnapshotState::Terminal(Box::new(prepared.state()));
            // A disposed terminal of this name may not be erased yet.
            this.erase_closed(&channel).await;
            // The name is reserved among the running terminals, but one whose channel could not be closed or erased may have it.
            if this.log_writer.has(&channel).await? {
                return Err(MethodError::new(ALREADY_EXISTS, format!("there is a terminal {channel} already")));
            }
            // The client will subscribe to it, so the state has to know it.
            this.log_writer.append_and_apply(Transaction::new().open(&channel, None, &state)).await?;
            if let Err(error) = prepared.start().await {
                this.close_terminal(&channel).await;
                return Err(error.into());
            }
            // A client may have subscribed before the terminal was started.
            this.terminals.set_watched(&channel, this.channel_followers.has(&channel));
            if let Some(client) = client {
                this.release_if_gone(&client);
            }
            Ok(())
        })
        .await
    }

    /// `disposeTerminal`. A terminal that another connected client has claimed cannot be disposed of.
    pub(super) async fn dispose_terminal(
        self: &Arc<Self>,
        client: &ClientInfo,
        params: &RawParams,
    ) -> Result<Message, MethodError> {
        let DisposeTerminalParams { channel, .. } = params.parse()?;
        if let Some(TerminalInfo { claim: TerminalClaim::Client(claim), .. }) = self.terminal(&channel)
            && claim.client_id != *client.id
            && self.connected_clients.of_same_principal(client, &claim.client_id).is_some()
        {
            return Err(MethodError::new(PERMISSION_DENIED, "the terminal is held by another client"));
        }
        self.end_terminal(channel).await?;
        Ok(Message::from("null"))
    }

    /// Ends a terminal: its program is killed, and its channel closed.
    pub(super) async fn end_terminal(self: &Arc<Self>, channel: String) -> Result<(), MethodError> {
        let this = Arc::clone(self);
        run_to_end(async move {
            match this.terminals.dispose(&channel).await {
                // It was disposed of before, but the log did not take that.
                Err(TerminalError::NotFound(_)) if this.is_unclosed_terminal(&channel).await => {}
                disposed => disposed?,
            }
            this.close_terminal(&channel).await;
            Ok(())
        })
        .await
    }

    /// Checks, logs and carries out an action of a client.
    pub(super) async fn act_on_terminal(
        self: &Arc<Self>,
        client: &ClientInfo,
        dispatched: &Dispatched,
    ) -> Result<(), DispatchError> {
        let Dispatched { channel, action, .. } = dispatched;
        let is_input = matches!(action, StateAction::TerminalInput(_));
        // Input does not wait for the lock: it is ordered only with the input of the same client.
        let order = if is_input { None } else { Some(Arc::clone(&self.terminal_order).lock_owned().await) };
        let who = gate::Client { id: client.id.to_string() };
        let checked =
            self.log_writer.read(channel, |state, _| gate::check(&who, action, &gate::GateContext::of(state)));
        match checked.await {
            Err(StateError::NotFound) => return Err(no_channel(channel).into()),
            Err(error) => return Err(MethodError::from(error).into()),
            Ok(checked) => checked.map_err(MethodError::from)?,
        }
        if let StateAction::TerminalClaimed(claimed) = action {
            self.check_claim(client, &claimed.claim).await?;
        }
        // No seq is expected of the channel: a program that writes without end would always be faster. The terminal itself
        // admits the action instead.
        let admitted = self.terminals.accept(&client.id, channel, action).map_err(refusal)?;
        let logged = match action {
            StateAction::TerminalInput(_) => &StateAction::TerminalInput(TerminalInputAction { data: String::new() }),
            other => other,
        };
        let transaction = Transaction::new().dispatched(channel, logged, &dispatched.origin(client));
        let (this, id, channel) = (Arc::clone(self), Arc::clone(&client.id), channel.clone());
        // Once it is logged it is carried out, also if the client disconnects.
        let done = run_to_end(async move {
            let seqs = this.log_writer.append(transaction).await.map_err(append_error)?;
            admitted.perform().await.map_err(append_error)?;
            this.release_if_gone(&id);
            drop(order);
            if let Some(upto) = seqs.last().and_then(|seq| this.terminals.logged(&channel, *seq)) {
                this.log_writer.trim(&channel, upto).await;
            }
            Ok(())
        });
        Ok(done.await?)
    }

    /// Releases the terminals of a client that is not connected and does not come back in time. Returns at once.
    pub(super) fn release_if_gone(self: &Arc<Self>, id: &Arc<str>) {
        if self.connected_clients.has(id) || !self.terminals.infos().iter().any(|info| is_of_client(&info.claim, id)) {
            return;
        }
        let (this, id, grace) = (Arc::downgrade(self), Arc::clone(id), self.grace);
        self.tasks.spawn(async move {
            loop {
                tokio::time::sleep(grace).await;
                let Some(this) = this.upgrade() else { return };
                if this.connected_clients.has(&id) {
                    return;
                }
                // Like a claim, it is checked, logged and carried out before the next one.
                let _order = this.terminal_order.lock().await;
                match this.terminals.release(&id).await {
                    Ok(()) => return,
                    Err(error) => warn!(%error, "a client that is gone still holds a terminal; the host tries again"),
                }
            }
        });
    }

    /// Empties the root's list of terminals if an earlier run of the host left some in it.
    pub(super) async fn clear_terminal_list(&self) -> Result<(), MethodError> {
        self.log_writer.append(Transaction::new().ensure_open(ROOT_RESOURCE_URI)).await.map_err(append_error)?;
        let listed = self.log_writer.read(ROOT_RESOURCE_URI, |state, _| match state {
            SnapshotState::Root(root) => root.terminals.as_ref().is_some_and(|terminals| !terminals.is_empty()),
            _ => false,
        });
        if listed.await? {
            self.terminals.announce().await?;
        }
        Ok(())
    }

    /// Disposes of the terminals that a session has claimed.
    pub(super) async fn dispose_terminals_of(self: &Arc<Self>, session: &str) {
        for info in self.terminals.infos() {
            if !matches!(&info.claim, TerminalClaim::Session(claim) if claim.session == session) {
                continue;
            }
            if let Err(error) = self.terminals.dispose(&info.resource).await {
                warn!(%error, "a terminal of a session that is gone was not disposed of");
            }
            self.close_terminal(&info.resource).await;
        }
    }

    /// A client may claim a terminal for itself, or for a chat of a session.
    async fn check_claim(&self, client: &ClientInfo, claim: &TerminalClaim) -> Result<(), MethodError> {
        match claim {
            TerminalClaim::Client(claim) if claim.client_id == *client.id => Ok(()),
            TerminalClaim::Client(_) => Err(MethodError::new(
                PERMISSION_DENIED,
                "claim.clientId must be that of this client: claim a terminal for yourself or for a session",
            )),
            TerminalClaim::Session(claim) => {
                let has = self
                    .session(&claim.session, |session| session.chats.iter().any(|chat| chat.resource == claim.chat));
                match has.await? {
                    Some(true) => Ok(()),
                    Some(false) => Err(MethodError::new(NOT_FOUND, "claim.chat is not a chat of claim.session")),
                    None => {
                        let why = format!("claim.session: there is no session {:?}", claim.session);
                        Err(MethodError::new(SESSION_NOT_FOUND, why))
                    }
                }
            }
        }
    }

    fn terminal(&self, channel: &str) -> Option<TerminalInfo> {
        self.terminals.infos().into_iter().find(|info| info.resource == channel)
    }

    /// Whether this is a terminal without a program, whose channel could not be closed when it was disposed of.
    async fn is_unclosed_terminal(&self, channel: &str) -> bool {
        let is_terminal = |state: &SnapshotState, _| matches!(state, SnapshotState::Terminal(_));
        self.terminal(channel).is_none() && self.log_writer.read(channel, is_terminal).await.unwrap_or(false)
    }

    /// Logs that a terminal has exited, closes its channel, and erases it when its followers have been told.
    async fn close_terminal(self: &Arc<Self>, channel: &str) {
        self.mark_exited(channel).await;
        match self.log_writer.append(Transaction::new().close(channel)).await {
            Ok(_) => self.erase_soon(channel),
            Err(error) => warn!(%error, "the channel of a disposed terminal could not be closed"),
        }
    }

    /// Logs that a terminal without a program has exited, if its state does not say so.
    async fn mark_exited(&self, channel: &str) {
        let is_running = |state: &SnapshotState| matches!(state, SnapshotState::Terminal(state) if !matches!(state.lifecycle, TerminalLifecycleState::Exited(_)));
        let exited = StateAction::TerminalExited(TerminalExitedAction { exit_code: None });
        let make = || async {
            let (is_running, seq) = self.log_writer.read(channel, |state, seq| (is_running(state), seq)).await?;
            let transaction = Transaction::new().expect(channel, seq);
            Ok(if is_running { transaction.action(channel, &exited) } else { transaction })
        };
        let decided: Result<_, MethodError> = self.log_writer.transact(make, append_error).await;
        // A terminal that was disposed of needs no such entry.
        if let Err(error) = decided
            && error.code != NOT_FOUND
        {
            warn!(%error, "the exit of a terminal could not be logged");
        }
    }
}

fn refusal(reason: impl std::fmt::Display) -> DispatchError {
    DispatchError::new(reason.to_string())
}
