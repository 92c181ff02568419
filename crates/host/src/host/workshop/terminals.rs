//! Terminals for clients: who may have one, and what becomes of what they dispatch.
//!
//! # What is typed is not kept
//!
//! `terminal/input` changes no state: the protocol's reducer makes nothing of it, and what comes of it is output. But who
//! types a password types it here, and the log keeps what it gets. So the action is logged, with its origin, in its place
//! and **without its text**: a client that has it applied already learns that it was taken, as of every other action, and
//! nobody learns what it was. The text itself goes to the program, once the log has the action, and nowhere else.

use std::sync::Arc;

use ahp_types::ROOT_RESOURCE_URI;
use ahp_types::actions::{StateAction, TerminalExitedAction, TerminalInputAction};
use ahp_types::commands::{CreateTerminalParams, DisposeTerminalParams};
use ahp_types::errors::ahp_error_codes::{ALREADY_EXISTS, NOT_FOUND, PERMISSION_DENIED, SESSION_NOT_FOUND};
use ahp_types::state::{SnapshotState, TerminalClaim, TerminalInfo, TerminalLifecycleState};
use breakbulk_proto::Message;
use tracing::warn;

use super::viewers::is_passing;
use super::watches::is_watch;
use super::{Workshop, to_the_end};
use crate::act::Act as _;
use crate::endpoint::{ClientInfo, DispatchError, Dispatched, RawParams};
use crate::error::MethodError;
use crate::gate;
use crate::host::desk::{Sheet, not_kept};
use crate::host::dispatch::no_channel;
use crate::log::EntryKind;
use crate::state::StateError;
use crate::terminal::{Holder, TerminalError};

impl Workshop {
    /// `createTerminal`. The name of one that was disposed of is free again.
    pub(super) async fn create_terminal(
        self: &Arc<Self>,
        client: &ClientInfo,
        params: &RawParams,
    ) -> Result<Message, MethodError> {
        let params: CreateTerminalParams = params.parse()?;
        self.check_claim(client, &params.claim).await?;
        let (this, id) = (Arc::clone(self), Arc::clone(&client.id));
        to_the_end(async move {
            let prepared = this.terminals.prepare(params).await?;
            let channel = prepared.channel().to_owned();
            let state = SnapshotState::Terminal(Box::new(prepared.state()));
            // One that had this name before may be on its way out.
            this.erase_closed(&channel).await;
            // Its name is kept free for it, but may be that of one that ended in a former life of the host.
            if this.desk.has(&channel).await? {
                return Err(MethodError::new(ALREADY_EXISTS, format!("there is a terminal {channel} already")));
            }
            // Whoever asked for it will follow it.
            this.desk.put_seen(Sheet::new().open(&channel, None, &state)).await?;
            if let Err(error) = prepared.start().await {
                this.put_away(&channel).await;
                return Err(error.into());
            }
            // Somebody may have been faster.
            this.terminals.set_watched(&channel, this.viewers.any(&channel));
            this.release_if_gone(&id);
            Ok(Message::from("null"))
        })
        .await
    }

    /// `disposeTerminal`. One that another client holds is not for others to end, unless that client is not here any more.
    pub(super) async fn dispose_terminal(
        self: &Arc<Self>,
        client: &ClientInfo,
        params: &RawParams,
    ) -> Result<Message, MethodError> {
        let DisposeTerminalParams { channel, .. } = params.parse()?;
        if let Some(TerminalInfo { claim: TerminalClaim::Client(claim), .. }) = self.terminal(&channel)
            && claim.client_id != *client.id
            && self.people.beside(client, &claim.client_id).is_some()
        {
            return Err(MethodError::new(PERMISSION_DENIED, "the terminal is held by another client"));
        }
        let this = Arc::clone(self);
        to_the_end(async move {
            match this.terminals.dispose(&channel).await {
                // It ended in a former life of the host.
                Err(TerminalError::NotFound(_)) if this.is_buried(&channel).await => {}
                disposed => disposed?,
            }
            this.put_away(&channel).await;
            Ok(Message::from("null"))
        })
        .await
    }

    /// Takes an action of a client, or says why not.
    pub(super) async fn act_on_terminal(
        self: &Arc<Self>,
        client: &ClientInfo,
        dispatched: &Dispatched,
    ) -> Result<(), DispatchError> {
        let Dispatched { channel, action, .. } = dispatched;
        let is_input = matches!(action, StateAction::TerminalInput(_));
        // Input waits for nobody: it is in order with what the same client types, and with nothing else.
        let order = if is_input { None } else { Some(Arc::clone(&self.terminal_order).lock_owned().await) };
        let who = gate::Client { id: client.id.to_string() };
        let checked = self.desk.look(channel, |state, _| gate::check(&who, action, &gate::GateContext::of(state)));
        match checked.await {
            Err(StateError::NotFound) => return Err(no_channel(channel).into()),
            Err(error) => return Err(MethodError::from(error).into()),
            Ok(checked) => checked.map_err(MethodError::from)?,
        }
        if let StateAction::TerminalClaimed(claimed) = action {
            self.check_claim(client, &claimed.claim).await?;
        }
        // No seq is expected of the channel: the terminal itself is asked, and while its program writes without end no
        // action would ever be in time.
        let admitted =
            self.terminals.accept(&Holder::Client(client.id.to_string()), channel, action).map_err(refused)?;
        let kept = match action {
            StateAction::TerminalInput(_) => &StateAction::TerminalInput(TerminalInputAction { data: String::new() }),
            other => other,
        };
        let sheet = Sheet::new().dispatched(channel, kept, &dispatched.origin(client));
        let (this, id, channel) = (Arc::clone(self), Arc::clone(&client.id), channel.clone());
        // Once it is in the log it is carried out, whether the client is still here or not.
        let done = to_the_end(async move {
            let seqs = this.desk.put(sheet).await.map_err(not_kept)?;
            admitted.perform().await.map_err(not_kept)?;
            this.release_if_gone(&id);
            drop(order);
            if let Some(upto) = seqs.last().and_then(|seq| this.terminals.logged(&channel, *seq)) {
                this.desk.trim(&channel, upto).await;
            }
            Ok(())
        });
        Ok(done.await?)
    }

    /// If a client is not here, and does not come back in time, nobody holds its terminals any more. Returns at once.
    pub(super) fn release_if_gone(self: &Arc<Self>, id: &Arc<str>) {
        let holder = Holder::Client(id.to_string());
        if self.people.has(id) || !self.terminals.infos().iter().any(|info| holder.holds(&info.claim)) {
            return;
        }
        let (this, id, grace) = (Arc::downgrade(self), Arc::clone(id), self.grace);
        self.tasks.spawn(async move {
            loop {
                tokio::time::sleep(grace).await;
                let Some(this) = this.upgrade() else { return };
                if this.people.has(&id) {
                    return;
                }
                // As for a claim: checked, logged and carried out before the next.
                let _order = this.terminal_order.lock().await;
                match this.terminals.release(&holder).await {
                    Ok(()) => return,
                    Err(error) => warn!(%error, "a client that is gone still holds a terminal; the host tries again"),
                }
            }
        });
    }

    /// The terminals of the host's last life are gone: says so on their channels, and in the list.
    pub(super) async fn bury_terminals(self: &Arc<Self>) -> Result<(), MethodError> {
        self.desk.put(Sheet::new().ensure(ROOT_RESOURCE_URI)).await.map_err(not_kept)?;
        for info in self.desk.log().channels(None).await.map_err(StateError::from)? {
            if !is_passing(&info.channel) {
                continue;
            }
            // Most have ended, and their last entry says so: their state need not be loaded.
            match self.said_last(&info.channel, info.last).await {
                // The host ended before it was erased.
                Last::Closed => self.erase_soon(&info.channel),
                Last::Exited => {}
                Last::Other if is_watch(&info.channel) => {}
                Last::Other => self.bury(&info.channel).await,
            }
        }
        let listed = self.desk.look(ROOT_RESOURCE_URI, |state, _| match state {
            SnapshotState::Root(root) => root.terminals.as_ref().is_some_and(|terminals| !terminals.is_empty()),
            _ => false,
        });
        if listed.await? {
            self.terminals.announce().await?;
        }
        Ok(())
    }

    /// Ends the terminals that a session holds.
    pub(super) async fn dispose_terminals_of(self: &Arc<Self>, session: &str) {
        for info in self.terminals.infos() {
            if !matches!(&info.claim, TerminalClaim::Session(claim) if claim.session == session) {
                continue;
            }
            if let Err(error) = self.terminals.dispose(&info.resource).await {
                warn!(%error, "a terminal of a session that is gone was not disposed of");
            }
            self.put_away(&info.resource).await;
        }
    }

    /// A client holds a terminal for itself, or gives it to a chat of a session.
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
                    None => Err(MethodError::new(SESSION_NOT_FOUND, "there is no such session")),
                }
            }
        }
    }

    fn terminal(&self, channel: &str) -> Option<TerminalInfo> {
        self.terminals.infos().into_iter().find(|info| info.resource == channel)
    }

    /// What the last entry of a channel says.
    async fn said_last(&self, channel: &str, last: u64) -> Last {
        let read = self.desk.log().read(channel, last..last.saturating_add(1), 1).await.unwrap_or_default();
        match read.last() {
            Some(entry) if entry.kind == EntryKind::Closed => Last::Closed,
            Some(entry) if entry.action_type().as_deref() == Some("terminal/exited") => Last::Exited,
            _ => Last::Other,
        }
    }

    /// Whether there is a terminal without a program.
    async fn is_buried(&self, channel: &str) -> bool {
        let look = |state: &SnapshotState, _| matches!(state, SnapshotState::Terminal(_));
        self.terminal(channel).is_none() && self.desk.look(channel, look).await.unwrap_or(false)
    }

    /// Those who follow a terminal hear that it has ended, and then there is none, and nothing of it in the log.
    async fn put_away(self: &Arc<Self>, channel: &str) {
        self.bury(channel).await;
        match self.desk.put(Sheet::new().close(channel)).await {
            Ok(_) => self.erase_soon(channel),
            Err(error) => warn!(%error, "the log could not be told that a terminal was disposed of"),
        }
    }

    /// Says of a terminal without a program that it has none, if that is not known.
    async fn bury(&self, channel: &str) {
        let is_running = |state: &SnapshotState| matches!(state, SnapshotState::Terminal(state) if !matches!(state.lifecycle, TerminalLifecycleState::Exited(_)));
        let exited = StateAction::TerminalExited(TerminalExitedAction { exit_code: None });
        let make = || async {
            let (is_running, seq) = self.desk.look(channel, |state, seq| (is_running(state), seq)).await?;
            let sheet = Sheet::new().expect(channel, seq);
            Ok(if is_running { sheet.action(channel, &exited) } else { sheet })
        };
        let decided: Result<_, MethodError> = self.desk.decide(make, not_kept).await;
        // Of one that was disposed of there is nothing to say.
        if let Err(error) = decided
            && error.code != NOT_FOUND
        {
            warn!(%error, "the log could not be told that a terminal has ended");
        }
    }
}

fn refused(refusal: impl std::fmt::Display) -> DispatchError {
    DispatchError::new(refusal.to_string())
}

/// How a channel ends for now.
enum Last {
    /// It is no more.
    Closed,
    /// A terminal's program has ended.
    Exited,
    Other,
}
