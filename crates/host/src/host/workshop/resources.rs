//! The `resource*` methods, wherever the resource is: a file, the past of a changed file, or with a client.

use std::path::Path;
use std::sync::Arc;

use ahp_types::commands::{ResourceReadParams, ResourceRequestParams, ResourceRequestResult, ResourceResolveParams};
use ahp_types::errors::ahp_error_codes::PERMISSION_DENIED;
use ahp_types::errors::json_rpc_error_codes::{INTERNAL_ERROR, INVALID_PARAMS};
use breakbulk_proto::Message;
use serde::Deserialize;
use serde_json::json;

use super::people::{self, Person};
use super::{Workshop, json, large, parsed, session, to_the_end};
use crate::endpoint::{AnswerMemory, AskError, ClientInfo, RawParams, Reply};
use crate::error::MethodError;
use crate::files::{FileError, encoded};
use crate::state::by_reference;

/// Those that change files.
const CHANGING: [&str; 5] = ["resourceWrite", "resourceCopy", "resourceDelete", "resourceMove", "resourceMkdir"];

/// What the params of all these methods have in common.
#[derive(Deserialize)]
struct Named {
    channel: String,
    uri: Option<String>,
    source: Option<String>,
    destination: Option<String>,
}

impl Workshop {
    /// Answers a `resource*` method; `None` if it is none.
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
        Some(match self.with_client(client, params).await {
            Ok(Some(person)) => ask(person, method, params).await.map(Reply::from),
            Ok(None) => {
                let answer = self.resource_here(client, method, params).await;
                if CHANGING.contains(&method) && answer.is_ok() {
                    self.note_touched(params).await;
                }
                answer
            }
            Err(error) => Err(error),
        })
    }

    /// The client that has what the params name; `None` if it is here, or nowhere.
    async fn with_client(&self, client: &ClientInfo, params: &RawParams) -> Result<Option<Person>, MethodError> {
        let named: Named = parsed(params).await?;
        let mut at = Vec::new();
        for uri in [named.uri, named.source, named.destination].into_iter().flatten() {
            at.push(self.publisher(client, &named.channel, &uri).await?);
        }
        let mut at = at.into_iter();
        let first = at.next().flatten();
        let place = first.as_ref().map(|person| person.connection);
        if at.any(|other| other.map(|person| person.connection) != place) {
            let why = "source and destination must both be files of the host, or both of one client";
            return Err(MethodError::new(INVALID_PARAMS, why));
        }
        Ok(first)
    }

    /// The client that has this resource, if one has.
    async fn publisher(&self, client: &ClientInfo, channel: &str, uri: &str) -> Result<Option<Person>, MethodError> {
        if !people::may_be_published(uri) {
            return Ok(None);
        }
        if let Some(person) = people::authority(uri).and_then(|id| self.people.beside(client, id)) {
            return Ok(Some(person));
        }
        let Some(session) = self.session_of(channel).await? else { return Ok(None) };
        let id = self.session(&session, |session| people::contributor(session, uri).map(str::to_owned)).await?;
        Ok(id.flatten().and_then(|id| self.people.beside(client, &id)))
    }

    /// What these params name has changed.
    async fn note_touched(self: &Arc<Self>, params: &RawParams) {
        if let Ok(Named { uri, source, destination, .. }) = parsed(params).await {
            self.touched([uri, source, destination].into_iter().flatten().collect()).await;
        }
    }

    async fn resource_here(
        self: &Arc<Self>,
        client: &ClientInfo,
        method: &str,
        params: &RawParams,
    ) -> Result<Reply, MethodError> {
        let files = self.files.clone();
        let result = match method {
            "resourceRead" => return self.read(&client.memory, params.parse()?).await,
            "resourceList" => large(files.list(params.parse()?).await?).await,
            "resourceResolve" => json(&files.resolve(params.parse()?).await?),
            "resourceRequest" => self.request(params.parse()?).await,
            // What these have begun to do they do to the end, also where nobody waits for it any more.
            "resourceWrite" => json(&files.write(parsed(params).await?).await?),
            "resourceCopy" => json(&files.copy(params.parse()?).await?),
            "resourceDelete" => json(&files.delete(params.parse()?).await?),
            "resourceMove" => json(&files.rename(params.parse()?).await?),
            _ => json(&files.mkdir(params.parse()?).await?),
        };
        result.map(Reply::from)
    }

    /// `resourceRead`. Nothing is read before there is memory for it and for the answer that is made of it. What has begun is
    /// done to the end: a thread that reads does not stop when its client goes, and the memory is not free before.
    async fn read(self: &Arc<Self>, memory: &AnswerMemory, params: ResourceReadParams) -> Result<Reply, MethodError> {
        let this = Arc::clone(self);
        if params.uri.starts_with(by_reference::SCHEME) {
            // A content of another length than its reference says is not found.
            let version = by_reference::Reference::read(&params.uri).map(|reference| reference.version);
            let size = version.map_or(0, |version| version.map_or(u64::MAX, |version| version.bytes as u64));
            let payment = memory.reserve(cost(size)).await?;
            return to_the_end(async move {
                let content = this.desk.state().content(&params.uri).await?;
                let answer = super::blocking(move || json(&content.encoded(params.encoding.as_ref()))).await?;
                Ok(Reply::reserved(&answer, payment))
            })
            .await;
        }
        if let Some(session) = session::of_changeset(&params.uri) {
            self.looked(session).await?;
        }
        if self.changes.knows(&params.uri) {
            // How long the past of a file is, is known when it was read. One at a time, then.
            let payment = memory.reserve(usize::MAX).await?;
            return to_the_end(async move {
                let bytes = this.changes.read(&params.uri).await?;
                let encode = move || json(&encoded(Path::new(""), bytes.into(), params.encoding.as_ref()));
                Ok(Reply::reserved(&super::blocking(encode).await?, payment))
            })
            .await;
        }
        loop {
            let size = self.files.size_of(params.uri.clone()).await?;
            let payment = memory.reserve(cost(size)).await?;
            let (files, params) = (self.files.clone(), params.clone());
            let read = to_the_end(async move {
                match files.read_within(params, size).await {
                    Ok(read) => Ok(Some(Reply::reserved(&large(read).await?, payment))),
                    // It has grown meanwhile.
                    Err(FileError::TooLarge { limit, .. }) if limit == size => Ok(None),
                    Err(error) => Err(error.into()),
                }
            });
            if let Some(reply) = read.await? {
                return Ok(reply);
            }
        }
    }

    /// `resourceRequest`: what is inside of the roots is granted already, and what is outside never is.
    async fn request(self: &Arc<Self>, params: ResourceRequestParams) -> Result<Message, MethodError> {
        if let Some(session) = session::of_changeset(&params.uri) {
            self.looked(session).await?;
        }
        let granted = || json(&ResourceRequestResult {});
        if self.changes.knows(&params.uri) || params.uri.starts_with(by_reference::SCHEME) {
            let error = || MethodError::new(PERMISSION_DENIED, "the content of a changeset can only be read");
            return if params.write == Some(true) { Err(error()) } else { granted() };
        }
        let ResourceRequestParams { channel, uri, .. } = params;
        let resolve = ResourceResolveParams { channel, meta: None, uri, follow_symlinks: None };
        match self.files.resolve(resolve).await {
            // What is not there yet may be made.
            Ok(_) | Err(FileError::NotFound) => granted(),
            Err(error) => Err(error.into()),
        }
    }
}

/// What it takes to read so many bytes and to make an answer of them: in base64 they are a third more, and those are there
/// twice while the answer is made.
fn cost(size: u64) -> usize {
    usize::try_from(size.saturating_mul(8).div_ceil(3)).unwrap_or(usize::MAX)
}

/// Asks a client in the words of the one that asks us.
async fn ask(person: Person, method: &str, params: &RawParams) -> Result<Message, MethodError> {
    let asked = person.handle.ask_raw(method, Message::from(params.text().clone())).await;
    asked.map(Message::from).map_err(|error| match error {
        AskError::Refused(error) => error,
        error => {
            let reason = if matches!(error, AskError::TimedOut(_)) { "clientTimeout" } else { "clientGone" };
            MethodError::new(INTERNAL_ERROR, error.to_string()).with_data(json!({ "reason": reason }))
        }
    })
}
