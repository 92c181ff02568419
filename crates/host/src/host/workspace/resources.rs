//! The `resource*` methods. A resource is a file, the content of a changeset or of a reference, or published by a client.

use std::path::Path;
use std::sync::Arc;

use ahp_types::commands::{ResourceReadParams, ResourceRequestParams, ResourceRequestResult, ResourceResolveParams};
use ahp_types::errors::ahp_error_codes::PERMISSION_DENIED;
use ahp_types::errors::json_rpc_error_codes::{INTERNAL_ERROR, INVALID_PARAMS};
use breakbulk_proto::Message;
use serde::Deserialize;
use serde_json::json;

use super::byte_range::{ByteRange, ContentPart};
use super::connected_clients::{self, ClientConnection};
use super::{Workspace, json, large_json, parsed, run_to_end, session_scan};
use crate::content::ContentReader;
use crate::endpoint::{AnswerMemory, AskError, ClientInfo, RawParams, Reply};
use crate::error::MethodError;
use crate::files::{FileError, encoded};
use crate::size::to_u64;
use crate::state::{StateError, by_reference};

/// The methods that change files.
const CHANGING_METHODS: [&str; 5] =
    ["resourceWrite", "resourceCopy", "resourceDelete", "resourceMove", "resourceMkdir"];

/// How many bytes of a URI an error shows.
const MAX_SHOWN_URI: usize = 512;

/// The URIs in the params of these methods.
#[derive(Deserialize)]
struct ResourceParams {
    channel: String,
    uri: Option<String>,
    source: Option<String>,
    destination: Option<String>,
}

impl Workspace {
    /// Answers a `resource*` method; `None` if the method is another one.
    pub(super) async fn resource(
        self: &Arc<Self>,
        client: &ClientInfo,
        method: &str,
        params: &RawParams,
    ) -> Option<Result<Reply, MethodError>> {
        let is_one = [
            "resourceRead",
            "resourceWrite",
            "resourceList",
            "resourceCopy",
            "resourceDelete",
            "resourceMove",
            "resourceResolve",
            "resourceMkdir",
            "resourceRequest",
        ]
        .contains(&method);
        if !is_one {
            return None;
        }
        Some(match self.owner(client, params).await {
            Ok(Some(owner)) => ask(owner, method, params).await.map(Reply::from),
            Ok(None) => {
                let answer = self.resource_of_host(client, method, params).await;
                let answer = answer.map_err(|error| about(error, params));
                if CHANGING_METHODS.contains(&method) && answer.is_ok() {
                    self.note_changed_files(params).await;
                }
                answer
            }
            Err(error) => Err(error),
        })
    }

    /// The client that publishes the resources in the params; `None` if none does.
    async fn owner(&self, client: &ClientInfo, params: &RawParams) -> Result<Option<ClientConnection>, MethodError> {
        let named: ResourceParams = parsed(params).await?;
        let mut at = Vec::new();
        for uri in [named.uri, named.source, named.destination].into_iter().flatten() {
            at.push(self.publisher(client, &named.channel, &uri).await?);
        }
        let mut at = at.into_iter();
        let first = at.next().flatten();
        let place = first.as_ref().map(|owner| owner.connection);
        if at.any(|other| other.map(|owner| owner.connection) != place) {
            let why = "source and destination must both be files of the host, or both of one client";
            return Err(MethodError::new(INVALID_PARAMS, why));
        }
        Ok(first)
    }

    /// The client that publishes this resource, if one does.
    async fn publisher(
        &self,
        client: &ClientInfo,
        channel: &str,
        uri: &str,
    ) -> Result<Option<ClientConnection>, MethodError> {
        if !connected_clients::may_be_published(uri) {
            return Ok(None);
        }
        if let Some(owner) =
            connected_clients::authority(uri).and_then(|id| self.connected_clients.of_same_principal(client, id))
        {
            return Ok(Some(owner));
        }
        let Some(session) = self.session_of(channel).await? else { return Ok(None) };
        let id =
            self.session(&session, |session| connected_clients::contributor(session, uri).map(str::to_owned)).await?;
        Ok(id.flatten().and_then(|id| self.connected_clients.of_same_principal(client, &id)))
    }

    /// Tells changesets that the files in these params have changed.
    async fn note_changed_files(self: &Arc<Self>, params: &RawParams) {
        if let Ok(ResourceParams { uri, source, destination, .. }) = parsed(params).await {
            self.files_changed([uri, source, destination].into_iter().flatten().collect()).await;
        }
    }

    async fn resource_of_host(
        self: &Arc<Self>,
        client: &ClientInfo,
        method: &str,
        params: &RawParams,
    ) -> Result<Reply, MethodError> {
        let files = self.files.clone();
        let result = match method {
            "resourceRead" => return self.read(&client.memory, params.parse()?).await,
            "resourceList" => large_json(files.list(params.parse()?).await?).await,
            "resourceResolve" => json(&files.resolve(params.parse()?).await?),
            "resourceRequest" => self.request(params.parse()?).await,
            // These run to their end, also if the client disconnects.
            "resourceWrite" => json(&files.write(parsed(params).await?).await?),
            "resourceCopy" => json(&files.copy(params.parse()?).await?),
            "resourceDelete" => json(&files.delete(params.parse()?).await?),
            "resourceMove" => json(&files.rename(params.parse()?).await?),
            _ => json(&files.mkdir(params.parse()?).await?),
        };
        result.map(Reply::from)
    }

    /// `resourceRead`. Memory is reserved for the content and the answer before anything is read. A read runs to its end: its
    /// thread does not stop when the client disconnects, so the reservation must last as long.
    async fn read(self: &Arc<Self>, memory: &AnswerMemory, params: ResourceReadParams) -> Result<Reply, MethodError> {
        let this = Arc::clone(self);
        let range = ByteRange::of(params.meta.as_ref())?;
        let most = self.files.max_read_bytes();
        if params.uri.starts_with(by_reference::SCHEME) {
            // Content is found only if its length is the one in the reference.
            let version = by_reference::Reference::read(&params.uri).map(|reference| reference.version);
            let size = version.map_or(0, |version| version.map_or(u64::MAX, |version| version.bytes as u64));
            let payment = memory.reserve(read_cost(size)).await?;
            return run_to_end(async move {
                let content = this.log_writer.state().content(&params.uri).await.map_err(|error| match error {
                    StateError::NotFound => FileError::NotFound.into(),
                    error => MethodError::from(error),
                })?;
                let encoding = params.encoding;
                let answer = super::blocking(move || match range {
                    None => json(&content.encoded(encoding.as_ref())),
                    Some(range) => {
                        let (bytes, content_type) = content.into_bytes();
                        json(&ContentPart::of(&bytes, range, most, content_type).answer(encoding.as_ref()))
                    }
                });
                Ok(Reply::reserved(&answer.await?, payment))
            })
            .await;
        }
        if let Some(session) = session_scan::of_changeset(&params.uri) {
            self.ensure_scanned(session).await?;
        }
        if self.changes.knows(&params.uri) {
            // The length is known only after reading, so this reserves as much as possible: one such read at a time.
            let payment = memory.reserve(usize::MAX).await?;
            return run_to_end(async move {
                let bytes = this.changes.read(&params.uri).await?;
                let encode = move || match range {
                    None => json(&encoded(Path::new(""), bytes.into(), params.encoding.as_ref())),
                    Some(range) => {
                        let content_type = "application/octet-stream".to_owned();
                        json(&ContentPart::of(&bytes, range, most, content_type).answer(params.encoding.as_ref()))
                    }
                };
                Ok(Reply::reserved(&super::blocking(encode).await?, payment))
            })
            .await;
        }
        if let Some(range) = range {
            return self.read_range(memory, params, range).await;
        }
        loop {
            let size = self.files.size_of(params.uri.clone()).await?;
            let payment = memory.reserve(read_cost(size)).await?;
            let (files, params) = (self.files.clone(), params.clone());
            let read = run_to_end(async move {
                match files.read_within(params, size).await {
                    Ok(read) => Ok(Some(Reply::reserved(&large_json(read).await?, payment))),
                    // The file has grown meanwhile.
                    Err(FileError::TooLarge { limit, .. }) if limit == size => Ok(None),
                    Err(error) => Err(error.into()),
                }
            });
            if let Some(reply) = read.await? {
                return Ok(reply);
            }
        }
    }

    /// A part of a file, however long the file is. No more of it is in memory.
    async fn read_range(
        self: &Arc<Self>,
        memory: &AnswerMemory,
        params: ResourceReadParams,
        range: ByteRange,
    ) -> Result<Reply, MethodError> {
        let content = ContentReader::of_file(self.files.open(params.uri).await?);
        let wanted = range.within(content.size(), self.files.max_read_bytes());
        let payment = memory.reserve(read_cost(wanted.end.saturating_sub(wanted.start))).await?;
        run_to_end(async move {
            let (mut bytes, mut at) = (Vec::new(), wanted.start);
            while at < wanted.end {
                let piece = content.read(at..wanted.end).await.map_err(FileError::from)?;
                if piece.is_empty() {
                    // The file has become shorter.
                    break;
                }
                at = at.saturating_add(to_u64(piece.len()));
                bytes.extend_from_slice(&piece);
            }
            let (etag, content_type) = (Some(content.etag().to_owned()), content.content_type().to_owned());
            let part = ContentPart { offset: wanted.start, bytes, size: content.size(), etag, content_type };
            let encoding = params.encoding;
            let answer = super::blocking(move || json(&part.answer(encoding.as_ref()))).await?;
            Ok(Reply::reserved(&answer, payment))
        })
        .await
    }

    /// `resourceRequest`: access inside of the roots is always granted, and outside of them never.
    async fn request(self: &Arc<Self>, params: ResourceRequestParams) -> Result<Message, MethodError> {
        if let Some(session) = session_scan::of_changeset(&params.uri) {
            self.ensure_scanned(session).await?;
        }
        let granted = || json(&ResourceRequestResult {});
        if self.changes.knows(&params.uri) || params.uri.starts_with(by_reference::SCHEME) {
            let error = || MethodError::new(PERMISSION_DENIED, "the content of a changeset can only be read");
            return if params.write == Some(true) { Err(error()) } else { granted() };
        }
        let ResourceRequestParams { channel, uri, .. } = params;
        let resolve = ResourceResolveParams { channel, meta: None, uri, follow_symlinks: None };
        match self.files.resolve(resolve).await {
            // A file that does not exist may be created.
            Ok(_) | Err(FileError::NotFound) => granted(),
            Err(error) => Err(error.into()),
        }
    }
}

/// The error, with the URIs that it is about.
fn about(error: MethodError, params: &RawParams) -> MethodError {
    let Ok(ResourceParams { uri, source, destination, .. }) = params.parse() else { return error };
    let mut message = error.message;
    for (name, uri) in [("", uri), ("source ", source), ("destination ", destination)] {
        let Some(uri) = uri.filter(|uri| !message.contains(uri.as_str())) else { continue };
        let shown = uri.get(..uri.floor_char_boundary(MAX_SHOWN_URI)).unwrap_or_default();
        let rest = if shown.len() < uri.len() { "…" } else { "" };
        let separator = if name == "destination " { ", " } else { ": " };
        message.push_str(&format!("{separator}{name}{}{rest}", shown.escape_debug()));
    }
    MethodError { message, ..error }
}

/// The memory for reading so many bytes and answering with them: base64 is a third longer, and is in memory twice while
/// the answer is written.
fn read_cost(size: u64) -> usize {
    usize::try_from(size.saturating_mul(8).div_ceil(3)).unwrap_or(usize::MAX)
}

/// Forwards a request to the client that publishes the resource.
async fn ask(owner: ClientConnection, method: &str, params: &RawParams) -> Result<Message, MethodError> {
    let asked = owner.handle.ask_raw(method, Message::from(params.text().clone())).await;
    asked.map(Message::from).map_err(|error| match error {
        AskError::Refused(error) => error,
        error => {
            let reason = if matches!(error, AskError::TimedOut(_)) { "clientTimeout" } else { "clientGone" };
            MethodError::new(INTERNAL_ERROR, error.to_string()).with_data(json!({ "reason": reason }))
        }
    })
}
