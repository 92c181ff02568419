//! Reads a resource of any size in parts, so that no answer is longer than this client or anything on the way takes.
//!
//! The protocol has no ranges. A host of this project takes them in the `_meta` of a `resourceRead`; any other ignores that,
//! and answers with the whole.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde_json::{Value, json};
use thiserror::Error;

use super::{Client, RequestError};

/// How much is asked for at once: in base64 and with what is around it, it fits a frame of 900,000 bytes.
const PART_BYTES: u64 = 512 << 10;

/// Reads a resource in parts. See [`Client::read_resource`].
#[derive(Debug)]
pub struct ResourceReader {
    client: Client,
    channel: String,
    uri: String,
    part_bytes: u64,
    offset: u64,
    /// Another one if the resource has changed.
    etag: Option<String>,
    is_over: bool,
}

/// Why a resource cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ReadResourceError {
    /// The request has no result.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The resource has changed since the first part was read.
    #[error("the resource has changed while it was read")]
    Changed,
    /// The host's answer is not one to this request.
    #[error("the host's answer to resourceRead is malformed")]
    Malformed,
}

impl Client {
    /// Reads a resource in parts of at most 512 KiB, however long it is. From a host that does not know parts it comes whole.
    #[must_use]
    pub fn read_resource(&self, channel: impl Into<String>, uri: impl Into<String>) -> ResourceReader {
        let (client, channel, uri) = (self.clone(), channel.into(), uri.into());
        ResourceReader { client, channel, uri, part_bytes: PART_BYTES, offset: 0, etag: None, is_over: false }
    }
}

impl ResourceReader {
    /// Asks for at most so many bytes at once.
    #[must_use]
    pub fn with_part_bytes(mut self, part_bytes: u64) -> Self {
        self.part_bytes = part_bytes.max(1);
        self
    }

    /// The next part; `None` at the end. After an error, the same part is asked for again.
    ///
    /// # Errors
    /// See [`ReadResourceError`].
    pub async fn next(&mut self) -> Result<Option<Bytes>, ReadResourceError> {
        if self.is_over {
            return Ok(None);
        }
        let range = json!({ "offset": self.offset, "length": self.part_bytes });
        let params = json!({ "channel": self.channel, "uri": self.uri, "_meta": { "breakbulk": { "range": range } } });
        let answer = self.client.request("resourceRead", params.to_string()).await?;
        let answer: Value =
            serde_json::from_slice(&answer.to_bytes()).map_err(|_not_json| ReadResourceError::Malformed)?;
        let data = answer["data"].as_str().ok_or(ReadResourceError::Malformed)?;
        let bytes = match answer["encoding"].as_str() {
            Some("utf-8") => Bytes::copy_from_slice(data.as_bytes()),
            Some("base64") => STANDARD.decode(data).map_err(|_not_base64| ReadResourceError::Malformed)?.into(),
            _ => return Err(ReadResourceError::Malformed),
        };
        let told = &answer["_meta"]["breakbulk"]["range"];
        if told.is_null() {
            // A host that knows no parts: this is the whole.
            self.is_over = true;
            return Ok(Some(bytes).filter(|bytes| !bytes.is_empty()));
        }
        let (offset, length) = (told["offset"].as_u64(), told["length"].as_u64());
        if length != u64::try_from(bytes.len()).ok() || offset.is_none_or(|offset| offset > self.offset) {
            return Err(ReadResourceError::Malformed);
        }
        let etag = told["etag"].as_str();
        if offset != Some(self.offset) || (self.offset > 0 && self.etag.as_deref() != etag) {
            return Err(ReadResourceError::Changed);
        }
        self.etag = etag.map(str::to_owned);
        self.offset = self.offset.saturating_add(length.unwrap_or(0));
        self.is_over = bytes.is_empty() || told["size"].as_u64().is_some_and(|size| self.offset >= size);
        Ok(Some(bytes).filter(|bytes| !bytes.is_empty()))
    }
}
