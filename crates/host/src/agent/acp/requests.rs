//! What an ACP agent asks of its host: files and terminals, done with the host's own.

use agent_client_protocol_schema::v1::{
    CreateTerminalRequest, CreateTerminalResponse, KillTerminalResponse, ReadTextFileRequest, ReadTextFileResponse,
    ReleaseTerminalResponse, TerminalExitStatus, TerminalOutputResponse, WaitForTerminalExitResponse,
    WriteTextFileResponse,
};
use breakbulk_lifecycle::acp::{HostRequest, RpcError};
use serde::Serialize;
use serde_json::Value;

use crate::agent::{HostServices, ServiceError, TerminalCommand, TerminalExit};

/// ACP's code for something that is not there.
const RESOURCE_NOT_FOUND: i64 = -32_002;

/// Does what the agent asks for. May take as long as a command of a terminal runs.
pub(super) async fn perform(services: HostServices, wanted: HostRequest) -> Result<Value, RpcError> {
    match wanted {
        HostRequest::ReadFile(request) => read(&services, request).await,
        HostRequest::WriteFile(request) => {
            services.write_file(request.path, request.content).await.map_err(error)?;
            answer(&WriteTextFileResponse::default())
        }
        HostRequest::CreateTerminal(request) => {
            let terminal = services.create_terminal(command(request)).await.map_err(error)?;
            answer(&CreateTerminalResponse::new(terminal))
        }
        HostRequest::TerminalOutput(request) => {
            let output = services.terminal_output(&request.terminal_id.0).await.map_err(error)?;
            let response = TerminalOutputResponse::new(output.text, false);
            answer(&response.exit_status(output.exit.map(status)))
        }
        HostRequest::WaitForTerminalExit(request) => {
            let exit = services.wait_for_exit(&request.terminal_id.0).await.map_err(error)?;
            answer(&WaitForTerminalExitResponse::new(status(exit)))
        }
        HostRequest::KillTerminal(request) => {
            services.kill_terminal(&request.terminal_id.0).await.map_err(error)?;
            answer(&KillTerminalResponse::default())
        }
        HostRequest::ReleaseTerminal(request) => {
            services.release_terminal(&request.terminal_id.0).await.map_err(error)?;
            answer(&ReleaseTerminalResponse::default())
        }
    }
}

async fn read(services: &HostServices, request: ReadTextFileRequest) -> Result<Value, RpcError> {
    let text = services.read_file(request.path).await.map_err(error)?;
    answer(&ReadTextFileResponse::new(lines(&text, request.line, request.limit)))
}

/// So many lines of a text, from this one on; the first is 1.
fn lines(text: &str, first: Option<u32>, limit: Option<u32>) -> String {
    if first.is_none() && limit.is_none() {
        return text.to_owned();
    }
    let skipped = first.unwrap_or(1).saturating_sub(1) as usize;
    let most = limit.map_or(usize::MAX, |limit| limit as usize);
    text.split_inclusive('\n').skip(skipped).take(most).collect()
}

fn command(request: CreateTerminalRequest) -> TerminalCommand {
    let arguments = request.args.into_iter().map(Into::into);
    TerminalCommand {
        command: std::iter::once(request.command.into()).chain(arguments).collect(),
        env: request.env.into_iter().map(|variable| (variable.name.into(), variable.value.into())).collect(),
        directory: request.cwd,
    }
}

fn status(exit: TerminalExit) -> TerminalExitStatus {
    TerminalExitStatus::new().exit_code(exit.code.and_then(|code| u32::try_from(code).ok()))
}

fn answer(response: &impl Serialize) -> Result<Value, RpcError> {
    serde_json::to_value(response).map_err(|error| RpcError::internal(error.to_string()))
}

fn error(error: ServiceError) -> RpcError {
    match error {
        ServiceError::NotFound(message) => RpcError { code: RESOURCE_NOT_FOUND, message },
        ServiceError::Denied(message) => RpcError::invalid(message),
        ServiceError::Failed(message) => RpcError::internal(message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_counted_from_one() {
        let text = "a\nb\nc";
        assert_eq!(lines(text, None, None), text);
        assert_eq!(lines(text, Some(2), None), "b\nc");
        assert_eq!(lines(text, Some(2), Some(1)), "b\n");
        assert_eq!(lines(text, None, Some(1)), "a\n");
        assert_eq!(lines(text, Some(9), Some(1)), "");
    }
}
