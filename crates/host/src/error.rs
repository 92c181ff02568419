//! How a method fails on the wire.

use ahp_types::errors::json_rpc_error_codes::INTERNAL_ERROR;
use serde_json::{Value, json};
use thiserror::Error;

/// The error of a JSON-RPC response. Each room has errors of its own that become one of these.
#[derive(Debug, Clone, PartialEq, Error)]
#[error("{message} ({code})")]
pub struct MethodError {
    /// One of the codes of JSON-RPC or of AHP.
    pub code: i32,
    /// For people.
    pub message: String,
    /// For programs, as the code defines it.
    pub data: Option<Value>,
}

impl MethodError {
    /// An error without data.
    #[must_use]
    pub fn new(code: i32, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None }
    }

    /// The log has no room for what a client asked for: the same wherever a client meets it.
    pub(crate) fn log_full() -> Self {
        let why = "the disk of the host is full, so nothing was changed: free some space there, then try again";
        Self::new(INTERNAL_ERROR, why).with_data(json!({ "reason": "logFull" }))
    }

    /// With this for programs.
    #[must_use]
    pub fn with_data(mut self, data: Value) -> Self {
        self.data = Some(data);
        self
    }
}
