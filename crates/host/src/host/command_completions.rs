//! Commands of an agent for a message that somebody is typing: `completions` at a slash that begins the message.

use std::path::PathBuf;

use ahp_types::commands::{CompletionItem, CompletionsParams, CompletionsResult};
use ahp_types::state::{MessageAttachment, SimpleMessageAttachment};

use super::services::Services;
use crate::agent::{AgentCommand, command_mark};
use crate::customize::{COMMAND_TRIGGER, typed_command};
use crate::error::MethodError;

/// The commands that begin as typed, of the agent of this session or chat; `None` if no command is being typed.
pub(super) async fn complete(
    services: &Services,
    params: &CompletionsParams,
) -> Result<Option<CompletionsResult>, MethodError> {
    let Some(typed) = typed_command(params) else { return Ok(None) };
    let Some(session) = services.log_writer.session_of(&params.channel).await? else { return Ok(None) };
    let Some(provider) = services.log_writer.session(&session, |session, _| session.provider.clone()).await? else {
        return Ok(None);
    };
    // The agent of an old session may not be configured any more.
    let Ok(agent) = services.agents.find(Some(&provider)) else { return Ok(None) };
    let Some(directory) = working_directory(services, &params.channel).await? else { return Ok(None) };
    let wanted = typed.to_lowercase();
    let commands = agent.commands(&directory).into_iter();
    let commands = commands.filter(|command| command.name.to_lowercase().starts_with(&wanted));
    let items = commands.take(services.workspace.max_completions()).map(|command| item(command, params.offset));
    Ok(Some(CompletionsResult { items: items.collect() }))
}

/// The first directory of a session or chat, as it really is.
async fn working_directory(services: &Services, channel: &str) -> Result<Option<PathBuf>, MethodError> {
    let named = services.workspace.directories_named(channel).await?;
    Ok(services.workspace.directories(named).await.into_iter().next())
}

fn item(command: AgentCommand, offset: i64) -> CompletionItem {
    let label = format!("{COMMAND_TRIGGER}{}", command.name);
    CompletionItem {
        insert_text: if command.argument_hint.is_some() { format!("{label} ") } else { label.clone() },
        range_start: Some(0),
        range_end: Some(offset),
        attachment: MessageAttachment::Simple(SimpleMessageAttachment {
            label,
            range: None,
            display_kind: Some("command".to_owned()),
            meta: Some(command_mark(&command)),
            model_representation: None,
        }),
    }
}
