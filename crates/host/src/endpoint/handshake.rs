//! The handshake: `initialize` and `reconnect`, from their params to a result and a log reader that continues where it ends.

use std::collections::HashSet;
use std::sync::Arc;

use ahp_types::PROTOCOL_VERSION;
use ahp_types::commands::{InitializeParams, ReconnectParams};
use ahp_types::errors::UnsupportedProtocolVersionErrorData;
use ahp_types::errors::ahp_error_codes::UNSUPPORTED_PROTOCOL_VERSION;
use ahp_types::errors::json_rpc_error_codes::{INTERNAL_ERROR, INVALID_PARAMS};
use ahp_types::version::{SUPPORTED_PROTOCOL_VERSIONS, negotiate_protocol_version};
use breakbulk_proto::Message;
use bytes::Bytes;
use serde_json::{Value, json};

use super::EndpointInner;
use super::clients::ClientLease;
use super::log_reader::{LogReader, Subscription, Subscriptions};
use super::memory::{AnswerMemory, NoMemory};
use super::message_limit::MessageLimits;
use super::methods::RawParams;
use super::resume::{Replay, SnapshotSet, TakenSnapshot};
use super::snapshot_source::{ChannelSnapshot, ReferenceStats, SnapshotError, View};
use super::wire;
use crate::error::MethodError;
use crate::log::{Channels, ReadError, Seq};
use crate::size::to_u64;

/// The longest client id, name, version and locale of a client.
const MAX_ID: usize = 256;

/// The two kinds of handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HandshakeMethod {
    Initialize,
    Reconnect,
}

/// A handshake that succeeded.
pub(super) struct HandshakeResult {
    /// The answer.
    pub(super) result: Message,
    /// Notifications that follow the answer directly.
    pub(super) notices: Vec<Message>,
    pub(super) reader: LogReader,
    /// What the answer contains by reference.
    pub(super) references: ReferenceStats,
    pub(super) identity: ClientIdentity,
    pub(super) lease: ClientLease,
    /// A reconnecting client does not repeat its identity.
    pub(super) method: HandshakeMethod,
}

/// What a client says of itself.
#[derive(Debug, Clone, Default)]
pub(super) struct ClientIdentity {
    pub(super) id: Arc<str>,
    pub(super) version: String,
}

/// Answers `initialize`.
pub(super) async fn initialize(
    shared: &EndpointInner,
    principal: Option<Arc<str>>,
    params: RawParams,
    message_limits: MessageLimits,
    memory: &AnswerMemory,
) -> Result<HandshakeResult, MethodError> {
    let params: InitializeParams = params.parse()?;
    let offered = negotiate_protocol_version(&params.protocol_versions);
    let version =
        offered.map_err(|_| MethodError::new(INVALID_PARAMS, "protocolVersions: each must be MAJOR.MINOR.PATCH"))?;
    let version = version.ok_or_else(unsupported)?.to_owned();
    let channels = distinct(params.initial_subscriptions.unwrap_or_default());
    let (count, limit) = (channels.len(), shared.config.max_subscriptions);
    if count > limit {
        // The result of `initialize` has no member for channels that are left out.
        let why = format!("initialSubscriptions names {count} channels, and a client may follow {limit} at most");
        return Err(MethodError::new(INVALID_PARAMS, why));
    }
    if let Some(info) = &params.client_info {
        let names = [Some(&info.name), info.version.as_ref(), info.title.as_ref()];
        names.into_iter().flatten().try_for_each(|name| short("clientInfo", name))?;
    }
    params.locale.iter().try_for_each(|locale| short("locale", locale))?;
    let identity = ClientIdentity { id: client_id(&params.client_id)?, version };
    let lease = shared.clients.acquire_lease(principal, identity.id.clone()).await;
    let at = shared.log.bounds().await.map_err(|error| unreadable(&error))?.last;
    let snapshots = SnapshotSet::take(shared, memory, &channels, at, message_limits.assumed).await?;
    let (reader, seq) = follow(shared, &snapshots, at);
    let front = format!(r#"{{"protocolVersion":{},"serverSeq":{seq},"snapshots":"#, Value::from(&*identity.version));
    let result = joined(front, bodies(&snapshots), welcome(shared));
    Ok(HandshakeResult {
        result,
        notices: Vec::new(),
        reader,
        references: snapshots.references,
        identity,
        lease,
        method: HandshakeMethod::Initialize,
    })
}

/// Answers `reconnect`: with everything that the client missed, if that is at most half of its message limit; else with
/// snapshots.
pub(super) async fn reconnect(
    shared: &EndpointInner,
    principal: Option<Arc<str>>,
    params: RawParams,
    message_limits: MessageLimits,
    memory: &AnswerMemory,
) -> Result<HandshakeResult, MethodError> {
    let params: ReconnectParams = params.parse()?;
    let (id, version) = (client_id(&params.client_id)?, PROTOCOL_VERSION.to_owned());
    let identity = ClientIdentity { id, version };
    let lease = shared.clients.acquire_lease(principal, identity.id.clone()).await;
    let at = shared.log.bounds().await.map_err(|error| unreadable(&error))?.last;
    let channels: Vec<Arc<str>> = params.subscriptions.into_iter().map(Into::into).collect();
    // A seq that was never the end of the log comes from another log, or from entries that a restored backup does not have.
    let after = Seq::try_from(params.last_seen_server_seq).ok().filter(|after| shared.log.lag(*after).is_some());
    let replayed = match after {
        Some(after) => replay(shared, memory, after, &channels, message_limits).await?,
        None => None,
    };
    let Resumed { result, notices, reader, references } = match replayed {
        Some(replayed) => replayed,
        None => snapshots(shared, memory, &channels, at, message_limits.assumed).await?,
    };
    Ok(HandshakeResult { result, notices, reader, references, identity, lease, method: HandshakeMethod::Reconnect })
}

/// The answer to a client that reconnects.
struct Resumed {
    result: Message,
    notices: Vec<Message>,
    reader: LogReader,
    references: ReferenceStats,
}

async fn replay(
    shared: &EndpointInner,
    memory: &AnswerMemory,
    after: Seq,
    channels: &[Arc<str>],
    message_limits: MessageLimits,
) -> Result<Option<Resumed>, NoMemory> {
    let (mut there, mut missing) = (Vec::new(), Vec::new());
    for channel in channels {
        match shared.snapshot_source.size_of(channel, View::FULL).await {
            Ok(_) if there.len() < shared.config.max_subscriptions => there.push(channel.clone()),
            Ok(_) | Err(SnapshotError::NotFound) => missing.push(channel.clone()),
            // A channel without a snapshot may still be replayed.
            Err(SnapshotError::Failed(_) | SnapshotError::NoMemory(_)) => there.push(channel.clone()),
        }
    }
    let read = Replay::read(shared, memory, after, &there, message_limits).await?;
    let Some(Replay { actions, notices, references, tail, reservation }) = read else { return Ok(None) };
    shared.counts.add("endpoint-replay", 1);
    shared.traffic.replayed.observe(to_u64(actions.len()));
    let result = joined(r#"{"type":"replay","actions":"#.to_owned(), actions.finish(), end(&missing));
    let result = match reservation {
        Some(reservation) => reservation.attach(&result),
        None => result,
    };
    shared.traffic.replay_bytes.observe(to_u64(result.len()));
    // It is no longer known which turns the client has.
    let known = |channel| (channel, Subscription { known: after, is_windowed: true, ..Subscription::default() });
    let reader = LogReader::new(tail, there.into_iter().map(known).collect());
    Ok(Some(Resumed { result, notices, reader, references }))
}

/// The official types have no `missing` beside snapshots: official clients take channels without a snapshot as missing, and
/// our client reads the member.
async fn snapshots(
    shared: &EndpointInner,
    memory: &AnswerMemory,
    channels: &[Arc<str>],
    at: Seq,
    limit: u64,
) -> Result<Resumed, NoMemory> {
    shared.counts.add("endpoint-snapshots", 1);
    let snapshots = SnapshotSet::take(shared, memory, channels, at, limit).await?;
    let (reader, _) = follow(shared, &snapshots, at);
    let result = joined(r#"{"type":"snapshot","snapshots":"#.to_owned(), bodies(&snapshots), end(&snapshots.missing));
    shared.traffic.snapshot_bytes.observe(to_u64(result.len()));
    Ok(Resumed { result, notices: Vec::new(), reader, references: snapshots.references })
}

/// A log reader that continues after the snapshots, each of which contains everything up to `at` at least; and the seq up to
/// which all of them do.
fn follow(shared: &EndpointInner, snapshots: &SnapshotSet, at: Seq) -> (LogReader, Seq) {
    let known = |snapshot: &ChannelSnapshot| snapshot.from_seq.max(at);
    let seq = snapshots.taken.iter().map(|taken| known(&taken.snapshot)).min().unwrap_or(at);
    let subscriptions: Subscriptions = snapshots
        .taken
        .iter()
        .map(|TakenSnapshot { channel, snapshot, is_windowed }| {
            let known = known(snapshot);
            (channel.clone(), Subscription { known, is_windowed: *is_windowed, ..Subscription::default() })
        })
        .collect();
    let tail = shared.log.tail(seq, Channels::only(subscriptions.keys().cloned()));
    (LogReader::new(tail, subscriptions), seq)
}

/// The end of an object, with the channels that are missing.
fn end(missing: &[Arc<str>]) -> String {
    let names: Vec<&str> = missing.iter().map(|name| &**name).collect();
    format!(r#","missing":{}}}"#, json!(names))
}

fn bodies(snapshots: &SnapshotSet) -> Vec<Bytes> {
    wire::list(snapshots.taken.iter().map(|taken| taken.snapshot.body.parts().to_vec()))
}

fn joined(front: String, middle: Vec<Bytes>, end: String) -> Message {
    [Bytes::from(front)].into_iter().chain(middle).chain([Bytes::from(end)]).collect()
}

/// The endpoint's description of itself, as the end of an object.
fn welcome(shared: &EndpointInner) -> String {
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

/// Refuses long names: the identity of a client is remembered after the client is gone.
fn short(field: &str, text: &str) -> Result<(), MethodError> {
    if text.len() <= MAX_ID {
        return Ok(());
    }
    let why = format!("{field} has {} bytes, the limit is {MAX_ID}", text.len());
    Err(MethodError::new(INVALID_PARAMS, why))
}

/// The names without duplicates, in their order.
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
