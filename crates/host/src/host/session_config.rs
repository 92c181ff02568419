//! The options of a session, as its agent defines them; and tokens for resources that agents need.

use ahp_types::commands::{
    AuthenticateParams, ResolveSessionConfigParams, ResolveSessionConfigResult, SessionConfigCompletionsParams,
    SessionConfigCompletionsResult, SessionConfigValueItem,
};
use ahp_types::common::JsonObject;
use ahp_types::errors::ahp_error_codes::AUTH_REQUIRED;
use ahp_types::errors::json_rpc_error_codes::INVALID_PARAMS;
use ahp_types::state::{SessionConfigPropertySchema, SessionConfigState};

use super::services::Services;
use crate::agent::Agent;
use crate::error::MethodError;

/// Answers `resolveSessionConfig`.
pub(super) fn resolve(
    services: &Services,
    params: ResolveSessionConfigParams,
) -> Result<ResolveSessionConfigResult, MethodError> {
    let agent = services.agents.find(params.provider.as_deref())?;
    let SessionConfigState { schema, values } = with_defaults(&**agent, params.config.unwrap_or_default())?;
    Ok(ResolveSessionConfigResult { schema, values })
}

/// Answers `sessionConfigCompletions`.
pub(super) async fn complete(
    services: &Services,
    params: SessionConfigCompletionsParams,
) -> Result<SessionConfigCompletionsResult, MethodError> {
    let agent = services.agents.find(params.provider.as_deref())?;
    let schema = agent.options(&params.config.unwrap_or_default());
    let unknown = || MethodError::new(INVALID_PARAMS, format!("the agent has no option {:?}", params.property));
    let option = schema.properties.get(&params.property).ok_or_else(unknown)?;
    let typed = params.query.unwrap_or_default();
    let items = if option.enum_dynamic == Some(true) {
        agent.complete(&params.property, &typed).await
    } else {
        matching_values(option, &typed)
    };
    Ok(SessionConfigCompletionsResult { items })
}

/// Answers `authenticate`. The token is passed to the agent that needs it, and is stored nowhere.
pub(super) async fn authenticate(services: &Services, params: AuthenticateParams) -> Result<(), MethodError> {
    if params.expires_in.is_some_and(|seconds| seconds <= 0 && !params.token.is_empty()) {
        return Err(MethodError::new(INVALID_PARAMS, "expiresIn must be positive"));
    }
    let asks = |agent: &&std::sync::Arc<dyn Agent>| {
        agent.info().protected_resources.iter().flatten().any(|protected| protected.resource == params.resource)
    };
    let unknown = || MethodError::new(INVALID_PARAMS, "no agent has asked for a token for this resource");
    let agent = services.agents.all().find(asks).ok_or_else(unknown)?;
    let token = Some(&*params.token).filter(|token| !token.is_empty());
    let taken = agent.authenticate(&params.resource, token).await;
    taken.map_err(|error| MethodError::new(AUTH_REQUIRED, error.to_string()))
}

/// The values that a client has chosen, with defaults for the other options.
pub(super) fn with_defaults(agent: &dyn Agent, mut values: JsonObject) -> Result<SessionConfigState, MethodError> {
    let schema = agent.options(&values);
    if !values.keys().all(|key| schema.properties.contains_key(key)) {
        return Err(MethodError::new(INVALID_PARAMS, "config has an option that the agent does not have"));
    }
    for (key, option) in &schema.properties {
        if let (false, Some(default)) = (values.contains_key(key), &option.default) {
            values.insert(key.clone(), default.clone());
        }
    }
    Ok(SessionConfigState { schema, values })
}

/// The values of an option that contain the typed text.
fn matching_values(option: &SessionConfigPropertySchema, typed: &str) -> Vec<SessionConfigValueItem> {
    let typed = typed.to_lowercase();
    let values = option.r#enum.iter().flatten().enumerate().filter_map(|(n, value)| {
        let value = value.as_str()?.to_owned();
        let of = |list: &Option<Vec<String>>| list.as_ref()?.get(n).cloned();
        let (label, description) = (of(&option.enum_labels), of(&option.enum_descriptions));
        Some(SessionConfigValueItem { label: label.unwrap_or_else(|| value.clone()), value, description })
    });
    values
        .filter(|item| item.label.to_lowercase().contains(&typed) || item.value.to_lowercase().contains(&typed))
        .collect()
}
