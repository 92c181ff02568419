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

use super::{Workshop, to_the_end};
use crate::endpoint::{ClientInfo, Dispatched, RawParams, Refusal};
use crate::error::MethodError;
use crate::gate;
use crate::host::desk::{Sheet, not_kept};
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
        let this = Arc::clone(self);
        to_the_end(async move {
            let prepared = this.terminals.prepare(params).await?;
            let channel = prepared.channel().to_owned();
            let state = SnapshotState::Terminal(Box::new(prepared.state()));
            // Its name is kept free for it, but may be that of one that ended in a former life of the host.
            if this.desk.has(&channel).await? {
                return Err(MethodError::new(ALREADY_EXISTS, format!("{channel} is there already")));
            }
            // Whoever asked for it will follow it.
            this.desk.put_seen(Sheet::new().open(&channel, None, &state)).await?;
            if let Err(error) = prepared.start().await {
                this.put_away(&channel).await;
                return Err(error.into());
            }
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

    /// Takes an action of a client. One on a channel that does not exist is passed over, as the protocol says.
    pub(super) async fn act_on_terminal(&self, client: &ClientInfo, dispatched: &Dispatched) -> Result<(), Refusal> {
        let Dispatched { channel, action, .. } = dispatched;
        let is_input = matches!(action, StateAction::TerminalInput(_));
        // Input waits for nobody: it is in order with what the same client types, and with nothing else.
        let order = if is_input { None } else { Some(Arc::clone(&self.terminal_order).lock_owned().await) };
        let who = gate::Client { id: client.id.to_string() };
        let checked = self.desk.look(channel, |state, _| gate::check(&who, action, &gate::Facts::of(state)));
        match checked.await {
            Err(StateError::NotFound) => return Ok(()),
            Err(error) => return Err(Refusal::new(error.to_string())),
            Ok(checked) => checked.map_err(refused)?,
        }
        if let StateAction::TerminalClaimed(claimed) = action {
            self.check_claim(client, &claimed.claim).await.map_err(|error| Refusal::new(error.message))?;
        }
        // No seq is expected of the channel: the terminal itself is asked, and while its program writes without end no
        // action would ever be in time.
        let admitted =
            self.terminals.admit(&Holder::Client(client.id.to_string()), channel, action).map_err(refused)?;
        let kept = match action {
            StateAction::TerminalInput(_) => &StateAction::TerminalInput(TerminalInputAction { data: String::new() }),
            other => other,
        };
        let sheet = Sheet::new().dispatched(channel, kept, &dispatched.origin(client));
        let desk = Arc::clone(&self.desk);
        // Once it is in the log it is carried out, whether the client is still here or not.
        let done = to_the_end(async move {
            let _order = order;
            desk.put(sheet).await.map_err(not_kept)?;
            admitted.perform().await.map_err(not_kept)
        });
        done.await.map_err(|error| Refusal::new(error.message))
    }

    /// The terminals of the host's last life are gone: says so on their channels, and in the list.
    pub(super) async fn bury_terminals(&self) -> Result<(), MethodError> {
        self.desk.put(Sheet::new().ensure(ROOT_RESOURCE_URI)).await.map_err(not_kept)?;
        for info in self.desk.log().channels(None).await.map_err(StateError::from)? {
            // Most have ended or were disposed of long ago, and their last entry says so: their state need not be loaded.
            let is_terminal = info.channel.starts_with("ahp-terminal:");
            if is_terminal && !self.ended_last(&info.channel, info.last).await {
                self.bury(&info.channel).await;
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
    pub(super) async fn dispose_terminals_of(&self, session: &str) {
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
            TerminalClaim::Client(_) => {
                Err(MethodError::new(PERMISSION_DENIED, "a client claims for itself or for a session"))
            }
            TerminalClaim::Session(claim) => {
                let has = self
                    .session(&claim.session, |session| session.chats.iter().any(|chat| chat.resource == claim.chat));
                match has.await? {
                    Some(true) => Ok(()),
                    Some(false) => Err(MethodError::new(NOT_FOUND, "the session has no such chat")),
                    None => Err(MethodError::new(SESSION_NOT_FOUND, "there is no such session")),
                }
            }
        }
    }

    fn terminal(&self, channel: &str) -> Option<TerminalInfo> {
        self.terminals.infos().into_iter().find(|info| info.resource == channel)
    }

    /// Whether the last entry of a channel is a terminal's end, or the channel's.
    async fn ended_last(&self, channel: &str, last: u64) -> bool {
        let read = self.desk.log().read(channel, last..last.saturating_add(1), 1).await.unwrap_or_default();
        let said = |body: &[u8]| serde_json::from_slice::<Said>(body).ok();
        let is_end = |said: Said| said.closed || said.action.is_some_and(|action| action.kind == "terminal/exited");
        read.last().and_then(|entry| said(&entry.body)).is_some_and(is_end)
    }

    /// Whether there is a terminal without a program.
    async fn is_buried(&self, channel: &str) -> bool {
        let look = |state: &SnapshotState, _| matches!(state, SnapshotState::Terminal(_));
        self.terminal(channel).is_none() && self.desk.look(channel, look).await.unwrap_or(false)
    }

    /// Those who follow a terminal hear that it has ended, and then there is none.
    async fn put_away(&self, channel: &str) {
        self.bury(channel).await;
        if let Err(error) = self.desk.put(Sheet::new().close(channel)).await {
            warn!(%error, "the channel of a terminal that is disposed of stays");
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
            warn!(%error, "a terminal that is gone looks as if it ran");
        }
    }
}

fn refused(refusal: impl std::fmt::Display) -> Refusal {
    Refusal::new(refusal.to_string())
}

/// As much of an entry as is needed.
#[derive(serde::Deserialize)]
struct Said {
    action: Option<Kind>,
    #[serde(default)]
    closed: bool,
}

#[derive(serde::Deserialize)]
struct Kind {
    #[serde(rename = "type")]
    kind: String,
}
