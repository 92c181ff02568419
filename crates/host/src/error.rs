//! The error of a JSON-RPC response.

use ahp_types::errors::json_rpc_error_codes::INTERNAL_ERROR;
use serde_json::{Value, json};
use thiserror::Error;

/// The error of a JSON-RPC response. Each module of the host converts its own errors into this one.
#[derive(Debug, Clone, PartialEq, Error)]
#[error("{message} ({code})")]
pub struct MethodError {
    /// One of the codes of JSON-RPC or of AHP.
    pub code: i32,
    /// A text for people.
    pub message: String,
    /// Data for programs, as the code defines it.
    pub data: Option<Value>,
}

impl MethodError {
    /// An error without data.
    #[must_use]
    pub fn new(code: i32, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None }
    }

    /// The disk of the log is full. All methods fail with the same error then.
    pub(crate) fn log_full() -> Self {
        let why = "the disk of the host is full, so nothing was changed: free some space there, then try again";
        Self::new(INTERNAL_ERROR, why).with_data(json!({ "reason": "logFull" }))
    }

    /// Adds data for programs.
    #[must_use]
    pub fn with_data(mut self, data: Value) -> Self {
        self.data = Some(data);
        self
    }
}
