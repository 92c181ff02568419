//! Denies permissions that nobody has answered in time.
//!
//! A permission has a deadline once a v2 client was told of it: the client shows the deadline, so the host keeps it, also when
//! that client is gone. A permission in a session that no v2 client watches waits for ever.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ahp_types::actions::{ActionOrigin, ChatToolCallConfirmedAction, StateAction};
use ahp_types::common::JsonObject;
use ahp_types::state::{ChatState, ResponsePart, ToolCallCancellationReason, ToolCallState};
use breakbulk_lifecycle::v2::WaitingPermission;
use serde_json::{Value, json};
use tracing::{info, warn};

use crate::error::MethodError;
use crate::host::{LogWriter, Transaction, append_error};
use crate::lock::lock;
use crate::log::Seq;

/// How the log names who has denied the call: agents are told what somebody has decided, not what the host logs.
const ORIGIN: &str = "breakbulk:permission-timeout";

/// How long to wait before a denial is logged again that the log did not take.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The deadlines of permissions.
pub(super) struct PermissionTimers {
    log_writer: Arc<LogWriter>,
    /// The permissions for which a task waits.
    waiting: Mutex<HashSet<String>>,
}

/// The call that waits for a permission.
struct AskedCall {
    permission: String,
    session: Arc<str>,
    chat: String,
    turn: String,
    tool: String,
}

impl PermissionTimers {
    pub(super) fn new(log_writer: Arc<LogWriter>) -> Self {
        Self { log_writer, waiting: Mutex::default() }
    }

    /// Denies this permission at its deadline, if it still waits then.
    pub(super) fn expect(self: &Arc<Self>, session: &Arc<str>, permission: &WaitingPermission<'_>) {
        if !lock(&self.waiting).insert(permission.perm_id.to_string()) {
            return;
        }
        let call = AskedCall {
            permission: permission.perm_id.to_string(),
            session: Arc::clone(session),
            chat: permission.chat.to_owned(),
            turn: permission.turn.to_owned(),
            tool: permission.tool.to_owned(),
        };
        let (timers, left) = (Arc::downgrade(self), permission.expires_at.saturating_sub(now_ms()));
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(left)).await;
            while let Some(timers) = timers.upgrade() {
                match timers.deny(&call).await {
                    Ok(()) => {
                        lock(&timers.waiting).remove(&call.permission);
                        return;
                    }
                    Err(error) => warn!(session = %call.session, "a permission could not be denied: {}", error.message),
                }
                drop(timers);
                tokio::time::sleep(RETRY_AFTER).await;
            }
        });
    }

    async fn deny(&self, call: &AskedCall) -> Result<(), MethodError> {
        let origin = ActionOrigin { client_id: ORIGIN.to_owned(), client_seq: 0 };
        let make = || async {
            let read = |chat: &ChatState, seq: Seq| pending_meta(chat, call).map(|meta| (meta, seq));
            let found = self.log_writer.chat(&call.chat, read).await.map_err(MethodError::from)?;
            let (meta, seq) = found.flatten().ok_or(NotDenied::Answered)?;
            info!(session = %call.session, reason = "permission-timeout", "a permission was denied: nobody answered in time");
            let action = ChatToolCallConfirmedAction {
                turn_id: call.turn.clone(),
                tool_call_id: call.tool.clone(),
                meta: Some(timed_out(meta)),
                approved: false,
                confirmed: None,
                reason: Some(ToolCallCancellationReason::Denied),
                edited_tool_input: None,
                user_suggestion: None,
                reason_message: Some("Nobody answered in time.".to_owned().into()),
                selected_option_id: None,
            };
            let action = StateAction::ChatToolCallConfirmed(action);
            Ok(Transaction::new().expect(&call.chat, seq).dispatched(&call.chat, &action, &origin))
        };
        let refuse = |error| NotDenied::Failed(append_error(error));
        match self.log_writer.transact_on(&[&call.chat], make, refuse).await {
            Ok(_) | Err(NotDenied::Answered) => Ok(()),
            Err(NotDenied::Failed(error)) => Err(error),
        }
    }
}

/// Why a permission was not denied.
enum NotDenied {
    /// Somebody has answered, or the turn is over.
    Answered,
    Failed(MethodError),
}

impl From<MethodError> for NotDenied {
    fn from(error: MethodError) -> Self {
        Self::Failed(error)
    }
}

/// The `_meta` of a call that waits for an answer; `None` if it does not wait.
fn pending_meta(chat: &ChatState, call: &AskedCall) -> Option<Option<JsonObject>> {
    let turn = chat.active_turn.as_ref().filter(|turn| turn.id == call.turn)?;
    turn.response_parts.iter().find_map(|part| match part {
        ResponsePart::ToolCall(part) => match &part.tool_call {
            ToolCallState::PendingConfirmation(pending) if pending.tool_call_id == call.tool => {
                Some(pending.meta.clone())
            }
            _ => None,
        },
        _ => None,
    })
}

/// The same `_meta`, with the mark that says why the call was denied.
fn timed_out(meta: Option<JsonObject>) -> JsonObject {
    let mut meta = meta.unwrap_or_default();
    let ours = meta.entry("breakbulk".to_owned()).or_insert_with(|| json!({}));
    if let Value::Object(ours) = ours {
        ours.insert("timeout".to_owned(), Value::Bool(true));
    }
    meta
}

/// The time in milliseconds since 1970.
pub(super) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
