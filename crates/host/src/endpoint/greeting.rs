//! The handshake: `initialize` and `reconnect`, from params to a result and a feed that goes on where it ends.

use std::collections::HashSet;
use std::sync::Arc;

use ahp_types::PROTOCOL_VERSION;
use ahp_types::commands::{ClientCapabilities, Implementation, InitializeParams, ReconnectParams};
use ahp_types::errors::UnsupportedProtocolVersionErrorData;
use ahp_types::errors::ahp_error_codes::UNSUPPORTED_PROTOCOL_VERSION;
use ahp_types::errors::json_rpc_error_codes::{INTERNAL_ERROR, INVALID_PARAMS};
use ahp_types::version::{SUPPORTED_PROTOCOL_VERSIONS, negotiate_protocol_version};
use breakbulk_proto::Message;
use bytes::Bytes;
use serde_json::{Value, json};

use super::Shared;
use super::clients::Arrived;
use super::feed::{Feed, Subscription, Subscriptions};
use super::memory::{AnswerMemory, NoMemory};
use super::methods::RawParams;
use super::resume::{Replay, Shots, Taken};
use super::room::{Takes, wide};
use super::views::{Moved, Shot, View, ViewError};
use super::wire;
use crate::error::MethodError;
use crate::log::{Channels, ReadError, Seq};

/// The longest client id, and the longest of the other names that a client has for itself.
const MAX_ID: usize = 256;

/// A client that is welcome.
pub(super) struct Greeted {
    /// The answer.
    pub(super) result: Message,
    /// What goes right behind it.
    pub(super) notices: Vec<Message>,
    pub(super) feed: Feed,
    /// What is in the answer by reference.
    pub(super) moved: Moved,
    pub(super) introduced: Introduced,
    pub(super) arrived: Arrived,
    /// Whether it has told all of that, or comes back and has told it before.
    pub(super) is_new: bool,
}

/// What a client says of itself.
#[derive(Debug, Clone, Default)]
pub(super) struct Introduced {
    pub(super) id: Arc<str>,
    pub(super) version: String,
    pub(super) implementation: Option<Implementation>,
    pub(super) locale: Option<String>,
    pub(super) capabilities: Option<ClientCapabilities>,
}

/// Answers `initialize`.
pub(super) async fn initialize(
    shared: &Shared,
    principal: Option<Arc<str>>,
    params: RawParams,
    takes: Takes,
    memory: &AnswerMemory,
) -> Result<Greeted, MethodError> {
    let params: InitializeParams = params.parse()?;
    let offered = negotiate_protocol_version(&params.protocol_versions);
    let version =
        offered.map_err(|_| MethodError::new(INVALID_PARAMS, "protocolVersions: each must be MAJOR.MINOR.PATCH"))?;
    let version = version.ok_or_else(unsupported)?.to_owned();
    let channels = distinct(params.initial_subscriptions.unwrap_or_default());
    let (count, limit) = (channels.len(), shared.config.max_subscriptions);
    if count > limit {
        // The result has no place for those that would be left out.
        let why = format!("initialSubscriptions names {count} channels, and a client may follow {limit} at most");
        return Err(MethodError::new(INVALID_PARAMS, why));
    }
    if let Some(info) = &params.client_info {
        let names = [Some(&info.name), info.version.as_ref(), info.title.as_ref()];
        names.into_iter().flatten().try_for_each(|name| short("clientInfo", name))?;
    }
    params.locale.iter().try_for_each(|locale| short("locale", locale))?;
    let introduced = Introduced {
        id: client_id(&params.client_id)?,
        version,
        implementation: params.client_info,
        locale: params.locale,
        capabilities: params.capabilities,
    };
    let arrived = shared.clients.arrive(principal, introduced.id.clone()).await;
    let at = shared.log.bounds().await.map_err(|error| unreadable(&error))?.last;
    let shots = Shots::take(shared, memory, &channels, at, takes.likely).await?;
    let (feed, seq) = follow(shared, &shots, at);
    let front = format!(r#"{{"protocolVersion":{},"serverSeq":{seq},"snapshots":"#, Value::from(&*introduced.version));
    let result = joined(front, bodies(&shots), welcome(shared));
    Ok(Greeted { result, notices: Vec::new(), feed, moved: shots.moved, introduced, arrived, is_new: true })
}

/// Answers `reconnect`: with all that was missed, if that is at most half of what the client takes in one message; else
/// with snapshots.
pub(super) async fn reconnect(
    shared: &Shared,
    principal: Option<Arc<str>>,
    params: RawParams,
    takes: Takes,
    memory: &AnswerMemory,
) -> Result<Greeted, MethodError> {
    let params: ReconnectParams = params.parse()?;
    let (id, version) = (client_id(&params.client_id)?, PROTOCOL_VERSION.to_owned());
    let introduced = Introduced { id, version, ..Introduced::default() };
    let arrived = shared.clients.arrive(principal, introduced.id.clone()).await;
    let at = shared.log.bounds().await.map_err(|error| unreadable(&error))?.last;
    let channels: Vec<Arc<str>> = params.subscriptions.into_iter().map(Into::into).collect();
    // A seq that was never the log's end comes from another log, or from a life of this one that a backup has undone.
    let after = Seq::try_from(params.last_seen_server_seq).ok().filter(|after| shared.log.lag(*after).is_some());
    let replayed = match after {
        Some(after) => replay(shared, memory, after, &channels, takes).await?,
        None => None,
    };
    let Resumed { result, notices, feed, moved } = match replayed {
        Some(replayed) => replayed,
        None => snapshots(shared, memory, &channels, at, takes.likely).await?,
    };
    Ok(Greeted { result, notices, feed, moved, introduced, arrived, is_new: false })
}

/// The answer to a client that comes back.
struct Resumed {
    result: Message,
    notices: Vec<Message>,
    feed: Feed,
    moved: Moved,
}

async fn replay(
    shared: &Shared,
    memory: &AnswerMemory,
    after: Seq,
    channels: &[Arc<str>],
    takes: Takes,
) -> Result<Option<Resumed>, NoMemory> {
    let (mut there, mut missing) = (Vec::new(), Vec::new());
    for channel in channels {
        match shared.views.size_of(channel, View::FULL).await {
            Ok(_) if there.len() < shared.config.max_subscriptions => there.push(channel.clone()),
            Ok(_) | Err(ViewError::NotFound) => missing.push(channel.clone()),
            // What cannot be shown may still be replayed.
            Err(ViewError::Failed(_) | ViewError::NoMemory(_)) => there.push(channel.clone()),
        }
    }
    let read = Replay::read(shared, memory, after, &there, takes).await?;
    let Some(Replay { actions, notices, moved, tail, payment }) = read else { return Ok(None) };
    shared.counts.add("endpoint-replay", 1);
    shared.traffic.replayed.observe(wide(actions.len()));
    let result = joined(r#"{"type":"replay","actions":"#.to_owned(), actions.finish(), end(&missing));
    let result = match payment {
        Some(payment) => payment.attach(&result),
        None => result,
    };
    shared.traffic.replay_bytes.observe(wide(result.len()));
    // Which turns the client has is not known any more.
    let known = |channel| (channel, Subscription { known: after, is_windowed: true, ..Subscription::default() });
    let feed = Feed::new(tail, there.into_iter().map(known).collect());
    Ok(Some(Resumed { result, notices, feed, moved }))
}

/// The types have no `missing` beside snapshots; clients take what is not shown for missing, and ours reads the field.
async fn snapshots(
    shared: &Shared,
    memory: &AnswerMemory,
    channels: &[Arc<str>],
    at: Seq,
    limit: u64,
) -> Result<Resumed, NoMemory> {
    shared.counts.add("endpoint-snapshots", 1);
    let shots = Shots::take(shared, memory, channels, at, limit).await?;
    let (feed, _) = follow(shared, &shots, at);
    let result = joined(r#"{"type":"snapshot","snapshots":"#.to_owned(), bodies(&shots), end(&shots.missing));
    shared.traffic.snapshot_bytes.observe(wide(result.len()));
    Ok(Resumed { result, notices: Vec::new(), feed, moved: shots.moved })
}

/// A feed that goes on behind snapshots, each of which knows everything up to `at` at least; and the seq up to which all of
/// them do.
fn follow(shared: &Shared, shots: &Shots, at: Seq) -> (Feed, Seq) {
    let known = |shot: &Shot| shot.from_seq.max(at);
    let seq = shots.taken.iter().map(|taken| known(&taken.shot)).min().unwrap_or(at);
    let subscriptions: Subscriptions = shots
        .taken
        .iter()
        .map(|Taken { channel, shot, is_windowed }| {
            let known = known(shot);
            (channel.clone(), Subscription { known, is_windowed: *is_windowed, ..Subscription::default() })
        })
        .collect();
    let tail = shared.log.tail(seq, Channels::only(subscriptions.keys().cloned()));
    (Feed::new(tail, subscriptions), seq)
}

/// The end of an object, with what cannot be followed.
fn end(missing: &[Arc<str>]) -> String {
    let names: Vec<&str> = missing.iter().map(|name| &**name).collect();
    format!(r#","missing":{}}}"#, json!(names))
}

fn bodies(shots: &Shots) -> Vec<Bytes> {
    wire::list(shots.taken.iter().map(|taken| taken.shot.body.parts().to_vec()))
}

fn joined(front: String, middle: Vec<Bytes>, end: String) -> Message {
    [Bytes::from(front)].into_iter().chain(middle).chain([Bytes::from(end)]).collect()
}

/// What the endpoint says of itself, as the end of an object.
fn welcome(shared: &Shared) -> String {
    let text = serde_json::to_string(&shared.config.welcome).unwrap_or_default();
    match text.strip_prefix('{') {
        Some("}") | None => "}".to_owned(),
        Some(fields) => format!(",{fields}"),
    }
}

fn client_id(id: &str) -> Result<Arc<str>, MethodError> {
    if id.is_empty() {
        return Err(MethodError::new(INVALID_PARAMS, "clientId is empty"));
    }
    short("clientId", id)?;
    Ok(id.into())
}

/// Whether what a client says of itself is as short as that is: it is remembered when the client is gone.
fn short(field: &str, text: &str) -> Result<(), MethodError> {
    if text.len() <= MAX_ID {
        return Ok(());
    }
    let why = format!("{field} has {} bytes, the limit is {MAX_ID}", text.len());
    Err(MethodError::new(INVALID_PARAMS, why))
}

/// The names without repetitions, in their order.
fn distinct(names: Vec<String>) -> Vec<Arc<str>> {
    let mut seen = HashSet::new();
    names.into_iter().map(Arc::from).filter(|name: &Arc<str>| seen.insert(Arc::clone(name))).collect()
}

fn unsupported() -> MethodError {
    let versions = SUPPORTED_PROTOCOL_VERSIONS.iter().map(|version| format!("^{version}"));
    let data = UnsupportedProtocolVersionErrorData { supported_versions: versions.collect() };
    let error = MethodError::new(
        UNSUPPORTED_PROTOCOL_VERSION,
        "none of the protocolVersions is spoken here: data.supportedVersions has those that are",
    );
    error.with_data(json!(data))
}

fn unreadable(error: &ReadError) -> MethodError {
    MethodError::new(INTERNAL_ERROR, error.to_string())
}
