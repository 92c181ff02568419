//! The calls to JetStream: publish a group, read messages, keep long bytes, remove.
//!
//! What decides (whether a group is in the stream) is asked of the stream's leader. Everything else is read from any replica,
//! which may be behind: callers know how far the stream is, and ask again.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use async_nats::jetstream::consumer::{DeliverPolicy, pull};
use async_nats::jetstream::{self, stream};
use async_nats::{Client, HeaderMap, Message, StatusCode};
use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt, TryStreamExt};
use serde::Deserialize;
use serde_json::json;
use tokio::time::timeout;

use super::config::{InjectedFaults, JetStreamConfig};
use super::names::HostName;
use super::wire::{BlobRef, Outgoing, Stored};

/// How long one call may take.
const CALL: Duration = Duration::from_secs(5);
/// Bytes of one part of what is kept in the other stream.
pub(super) const PART: usize = 256 << 10;
/// How many parts are on their way at a time.
const PARTS_AT_A_TIME: usize = 16;
/// The bytes that a message must be allowed to have. It is the default of NATS.
const MIN_PAYLOAD: usize = 1 << 20;
/// Messages of one read.
const MAX_MESSAGES: u64 = 1_000;

/// Error codes of JetStream.
mod code {
    /// The stream does not end where the publisher expects.
    pub(super) const WRONG_LAST_SEQUENCE: u64 = 10_071;
    /// The same, of a message in a batch.
    pub(super) const WRONG_LAST_SEQUENCE_CONSTANT: u64 = 10_164;
    /// A limit of the stream or of the account is reached.
    pub(super) const FULL: [u64; 6] = [10_002, 10_023, 10_028, 10_047, 10_077, 10_122];
}

/// The streams of one host.
#[derive(Debug, Clone)]
pub(super) struct Store {
    client: Client,
    context: jetstream::Context,
    pub(super) host: HostName,
    entries: stream::Stream,
    data: stream::Stream,
    faults: InjectedFaults,
}

/// Why a group is not known to be in the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PublishError {
    /// The stream does not end where it should.
    WrongSequence,
    /// There is no room.
    Full,
    /// The stream refuses it for another reason.
    Refused(String),
    /// There was no answer.
    Unknown(String),
}

/// The store did not answer, or answered something else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StoreError(pub(super) String);

/// An answer of the JetStream API, or to a publish.
#[derive(Debug, Deserialize)]
struct Answer {
    error: Option<ApiError>,
    #[serde(default)]
    purged: u64,
}

#[derive(Debug, Deserialize)]
struct ApiError {
    #[serde(default)]
    err_code: u64,
    #[serde(default)]
    description: String,
}

/// What is read from the stream of entries.
#[derive(Debug)]
pub(super) struct Page {
    pub(super) messages: Vec<Stored>,
    /// How many messages follow.
    pub(super) pending: u64,
}

fn failed(error: impl std::fmt::Display) -> StoreError {
    StoreError(error.to_string())
}

impl Store {
    /// Finds the streams of a host. Only a writer makes them.
    pub(super) async fn open(
        client: Client,
        config: &JetStreamConfig,
        makes: bool,
    ) -> Result<Option<Self>, StoreError> {
        let (allowed, context) = (client.max_payload(), jetstream::new(client.clone()));
        if allowed < MIN_PAYLOAD {
            return Err(StoreError(format!(
                "max_payload of the NATS server is {allowed}: the log needs {MIN_PAYLOAD}"
            )));
        }
        let host = config.host.clone();
        let common = |name: String| stream::Config {
            name,
            storage: stream::StorageType::File,
            discard: stream::DiscardPolicy::New,
            num_replicas: config.replicas,
            allow_direct: true,
            ..stream::Config::default()
        };
        let entries = stream::Config {
            subjects: vec![host.control(), host.all_entries()],
            max_bytes: config.max_bytes,
            allow_atomic_publish: true,
            ..common(host.stream())
        };
        let data = stream::Config {
            subjects: vec![host.all_data(), host.checkpoint()],
            max_messages_per_subject: 1,
            // A new version of a row takes the place of the old one.
            discard: stream::DiscardPolicy::Old,
            ..common(host.data_stream())
        };
        let mut found = Vec::new();
        for config in [entries, data] {
            let name = config.name.clone();
            found.push(match context.get_stream(&name).await {
                Ok(stream) => stream,
                Err(error) if !is_missing(&error) => return Err(failed(error)),
                Err(_) if !makes => return Ok(None),
                Err(_) => context.create_stream(config).await.map_err(failed)?,
            });
        }
        let (Some(data), Some(entries)) = (found.pop(), found.pop()) else { return Ok(None) };
        if !entries.cached_info().config.allow_atomic_publish {
            return Err(StoreError(format!(
                "the stream {} does not allow atomic batches: it needs nats-server 2.12 or later",
                host.stream()
            )));
        }
        Ok(Some(Self { client, context, host, entries, data, faults: config.faults.clone() }))
    }

    /// The sequence of the last message, as the leader has it, and the bytes of both streams.
    pub(super) async fn end(&self) -> Result<(u64, u64), StoreError> {
        let entries = self.entries.get_info().await.map_err(failed)?.state;
        let data = self.data.get_info().await.map_err(failed)?.state;
        Ok((entries.last_sequence, entries.bytes.saturating_add(data.bytes)))
    }

    /// Publishes messages, all or none, if the stream ends with `expected`.
    pub(super) async fn publish(
        &self,
        expected: u64,
        messages: &[Outgoing],
        batch_id: &str,
    ) -> Result<(), PublishError> {
        let Some((last, before)) = messages.split_last() else { return Ok(()) };
        if self.faults.lose_publish.swap(false, Relaxed) {
            return Err(PublishError::Unknown("a test has lost it".into()));
        }
        for (at, message) in before.iter().enumerate() {
            let mut headers = batch_headers(message, batch_id, at + 1);
            if at == 0 {
                headers.insert("Nats-Expected-Last-Sequence", expected.to_string());
            }
            let published = self.client.publish_with_headers(message.subject.clone(), headers, message.payload.clone());
            published.await.map_err(|error| PublishError::Unknown(error.to_string()))?;
        }
        let mut headers = match before.is_empty() {
            true => last.headers(),
            false => batch_headers(last, batch_id, messages.len()),
        };
        match before.is_empty() {
            true => headers.insert("Nats-Expected-Last-Sequence", expected.to_string()),
            false => headers.insert("Nats-Batch-Commit", "1"),
        }
        let sent = self.client.request_with_headers(last.subject.clone(), headers, last.payload.clone());
        let answer = match timeout(CALL, sent).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => return Err(PublishError::Unknown(error.to_string())),
            Err(_) => return Err(PublishError::Unknown("no answer from JetStream".into())),
        };
        let answer = serde_json::from_slice::<Answer>(&answer.payload);
        match answer.map_err(|error| PublishError::Unknown(error.to_string()))?.error {
            None if self.faults.lose_answer.swap(false, Relaxed) => {
                Err(PublishError::Unknown("a test has lost the answer".into()))
            }
            None => Ok(()),
            Some(error) => Err(match error.err_code {
                code::WRONG_LAST_SEQUENCE | code::WRONG_LAST_SEQUENCE_CONSTANT => PublishError::WrongSequence,
                full if code::FULL.contains(&full) => PublishError::Full,
                _ => PublishError::Refused(format!("{} ({})", error.description, error.err_code)),
            }),
        }
    }

    /// The message with this sequence, as the leader has it.
    pub(super) async fn at(&self, position: u64) -> Result<Option<Stored>, StoreError> {
        match timeout(CALL, self.entries.get_raw_message(position)).await.map_err(failed)? {
            Ok(message) => Ok(Some(Stored::new(message.sequence, Some(&message.headers), message.payload))),
            Err(error) if is_no_message(&error) => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }

    /// The sequence of the newest message of these subjects, as the leader has it.
    pub(super) async fn newest(&self, subject: &str) -> Result<Option<u64>, StoreError> {
        match timeout(CALL, self.entries.get_last_raw_message_by_subject(subject)).await.map_err(failed)? {
            Ok(message) => Ok(Some(message.sequence)),
            Err(error) if is_no_message(&error) => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }

    /// Messages from a sequence on, of subjects that this filter contains: as many as have about `max_bytes`, but at least one if
    /// there is any.
    pub(super) async fn read(&self, from: u64, filter: &str, max_bytes: usize) -> Result<Page, StoreError> {
        let inbox = self.client.new_inbox();
        let mut answers = self.client.subscribe(inbox.clone()).await.map_err(failed)?;
        let request = json!({
            "seq": from.max(1), "next_by_subj": filter, "batch": MAX_MESSAGES, "max_bytes": max_bytes.max(1),
        });
        let subject = format!("$JS.API.DIRECT.GET.{}", self.host.stream());
        let sent = self.client.publish_with_reply(subject, inbox, request.to_string().into());
        sent.await.map_err(failed)?;
        let mut messages = Vec::new();
        loop {
            let answer = timeout(CALL, answers.next()).await.map_err(failed)?;
            let Some(message) = answer else { return Err(StoreError("the connection to NATS is closed".into())) };
            match message.status {
                None => messages.push(stored(message)?),
                Some(status) if status == StatusCode::NO_RESPONDERS => {
                    return Err(StoreError("no JetStream server has the stream".into()));
                }
                Some(_) => {
                    let pending = message.headers.as_ref().and_then(|headers| number(headers, "Nats-Num-Pending"));
                    return Ok(Page { messages, pending: pending.unwrap_or(0) });
                }
            }
        }
    }

    /// Calls `each` with the heads of messages of these subjects, up to a sequence or until it breaks. Their payloads are not read.
    pub(super) async fn scan(
        &self,
        filters: Vec<String>,
        upto: u64,
        each: impl FnMut(Stored) -> ControlFlow<()> + Send,
    ) -> Result<(), StoreError> {
        Self::scan_stream(&self.entries, filters, upto, each).await
    }

    async fn scan_stream(
        stream: &stream::Stream,
        filters: Vec<String>,
        upto: u64,
        mut each: impl FnMut(Stored) -> ControlFlow<()> + Send,
    ) -> Result<(), StoreError> {
        let config = pull::OrderedConfig {
            filter_subjects: filters,
            deliver_policy: DeliverPolicy::All,
            headers_only: true,
            ..pull::OrderedConfig::default()
        };
        let mut consumer = stream.create_consumer(config).await.map_err(failed)?;
        let info = consumer.info().await.map_err(failed)?;
        let mut left = info.num_pending;
        let mut messages = consumer.messages().await.map_err(failed)?;
        while left > 0 {
            let next = timeout(CALL, messages.next()).await.map_err(failed)?;
            let Some(message) = next else { return Err(StoreError("the consumer has ended".into())) };
            let message = message.map_err(failed)?;
            let position = message.info().map_err(failed)?.stream_sequence;
            if position > upto {
                break;
            }
            left -= 1;
            if each(Stored::new(position, message.message.headers.as_ref(), Bytes::new())).is_break() {
                break;
            }
        }
        Ok(())
    }

    /// Follows all messages after a sequence, until the connection breaks.
    pub(super) async fn follow(
        &self,
        after: u64,
    ) -> Result<impl futures_util::Stream<Item = Result<Stored, StoreError>> + Send + use<>, StoreError> {
        let config = jetstream::consumer::push::OrderedConfig {
            deliver_subject: self.client.new_inbox(),
            filter_subject: self.host.all(),
            deliver_policy: DeliverPolicy::ByStartSequence { start_sequence: after.saturating_add(1) },
            ..jetstream::consumer::push::OrderedConfig::default()
        };
        let consumer = self.entries.create_consumer(config).await.map_err(failed)?;
        let messages = consumer.messages().await.map_err(failed)?;
        Ok(messages.map(|message| {
            let message = message.map_err(failed)?;
            let position = message.info().map_err(failed)?.stream_sequence;
            let message = message.message;
            Ok(Stored::new(position, message.headers.as_ref(), message.payload))
        }))
    }

    /// Removes the entries of subjects before a sequence.
    pub(super) async fn purge_entries(&self, filter: &str, before: u64) -> Result<u64, StoreError> {
        // JetStream takes 0 for no bound, and removes everything.
        if before <= 1 {
            return Ok(0);
        }
        self.purge(&self.host.stream(), &json!({ "filter": filter, "seq": before })).await
    }

    /// Overwrites and removes the entries of subjects up to a sequence. A purge would leave their bytes in the server's files.
    pub(super) async fn erase_entries(&self, filter: String, upto: u64) -> Result<(), StoreError> {
        Self::erase(&self.entries, filter, upto).await
    }

    /// Overwrites and removes all bytes on these subjects.
    pub(super) async fn erase_data(&self, filter: String) -> Result<(), StoreError> {
        Self::erase(&self.data, filter, u64::MAX).await
    }

    async fn erase(stream: &stream::Stream, filter: String, upto: u64) -> Result<(), StoreError> {
        let mut positions = Vec::new();
        let scanned = Self::scan_stream(stream, vec![filter], upto, |stored| {
            positions.push(stored.position);
            ControlFlow::Continue(())
        });
        scanned.await?;
        let erased = futures_util::stream::iter(positions).map(|position| async move {
            match timeout(CALL, stream.delete_message(position)).await.map_err(failed)? {
                Ok(_) => Ok(()),
                Err(error) => match stream.get_raw_message(position).await {
                    // Somebody else has erased it meanwhile.
                    Err(gone) if is_no_message(&gone) => Ok(()),
                    Ok(_) | Err(_) => Err(failed(error)),
                },
            }
        });
        erased.buffer_unordered(PARTS_AT_A_TIME).try_collect::<()>().await
    }

    /// Removes all bytes on these subjects.
    pub(super) async fn purge_data(&self, filter: &str) -> Result<u64, StoreError> {
        self.purge(&self.host.data_stream(), &json!({ "filter": filter })).await
    }

    async fn purge(&self, stream: &str, request: &serde_json::Value) -> Result<u64, StoreError> {
        let subject = format!("$JS.API.STREAM.PURGE.{stream}");
        let answer = self.client.request(subject, request.to_string().into());
        let answer = timeout(CALL * 6, answer).await.map_err(failed)?.map_err(failed)?;
        let answer: Answer = serde_json::from_slice(&answer.payload).map_err(failed)?;
        answer.error.map_or(Ok(answer.purged), |error| Err(StoreError(error.description)))
    }

    /// Keeps bytes on subjects that begin with this one. They are there when this returns.
    pub(super) async fn put(&self, subject: Arc<str>, bytes: Bytes) -> Result<BlobRef, PublishError> {
        let (length, sum) = (bytes.len() as u64, crc32c::crc32c(&bytes));
        let count = bytes.len().div_ceil(PART).max(1);
        let mut headers = HeaderMap::new();
        headers.insert("Breakbulk-Length", length.to_string());
        headers.insert("Breakbulk-Sum", sum.to_string());
        let parts = futures_util::stream::iter(0..count).map(|at| {
            let part = bytes.slice((at * PART).min(bytes.len())..((at + 1) * PART).min(bytes.len()));
            self.put_part(format!("{subject}.{at}"), headers.clone(), part)
        });
        parts.buffer_unordered(PARTS_AT_A_TIME).try_collect::<()>().await?;
        Ok(BlobRef { subject, length, sum })
    }

    async fn put_part(&self, subject: String, headers: HeaderMap, part: Bytes) -> Result<(), PublishError> {
        let unknown = |error: &dyn std::fmt::Display| PublishError::Unknown(error.to_string());
        let answer = self.client.request_with_headers(subject, headers, part);
        let answer = timeout(CALL, answer).await.map_err(|error| unknown(&error))?.map_err(|error| unknown(&error))?;
        let answer: Answer = serde_json::from_slice(&answer.payload).map_err(|error| unknown(&error))?;
        match answer.error {
            None => Ok(()),
            Some(error) if code::FULL.contains(&error.err_code) => Err(PublishError::Full),
            Some(error) => Err(PublishError::Refused(error.description)),
        }
    }

    /// All bytes that were kept, or `None` if they are not there.
    pub(super) async fn get(&self, blob: &BlobRef) -> Result<Option<Bytes>, StoreError> {
        let length = usize::try_from(blob.length).map_err(failed)?;
        self.get_range(&blob.subject, length, 0..length).await
    }

    /// Some of the bytes that were kept.
    pub(super) async fn get_range(
        &self,
        subject: &str,
        length: usize,
        range: Range<usize>,
    ) -> Result<Option<Bytes>, StoreError> {
        let (start, end) = (range.start.min(length), range.end.min(length).max(range.start.min(length)));
        let parts = start / PART..end.div_ceil(PART).max(start / PART + usize::from(length == 0));
        let first = parts.start;
        if parts.len() == 1 {
            let part = self.part(subject, first).await?;
            return Ok(part.and_then(|(_, part)| {
                let bytes = start - first * PART..end - first * PART;
                (bytes.end <= part.len()).then(|| part.slice(bytes))
            }));
        }
        let mut read = futures_util::stream::iter(parts).map(|at| self.part(subject, at)).buffered(PARTS_AT_A_TIME);
        let mut joined = BytesMut::with_capacity(end - start);
        let mut at = first * PART;
        while let Some(part) = read.next().await {
            let Some((_, part)) = part? else { return Ok(None) };
            let wanted = start.max(at) - at..end.min(at + part.len()).saturating_sub(at);
            let Some(bytes) = part.get(wanted) else { return Ok(None) };
            joined.extend_from_slice(bytes);
            at += PART;
        }
        Ok((joined.len() == end - start).then(|| joined.freeze()))
    }

    /// What is kept on subjects that begin with this one, found by its first part.
    pub(super) async fn find(&self, subject: &str) -> Result<Option<BlobRef>, StoreError> {
        let Some((headers, _)) = self.part(subject, 0).await? else { return Ok(None) };
        let (length, sum) = (number(&headers, "Breakbulk-Length"), number(&headers, "Breakbulk-Sum"));
        let sum = sum.and_then(|sum| u32::try_from(sum).ok());
        Ok(length.zip(sum).map(|(length, sum)| BlobRef { subject: subject.into(), length, sum }))
    }

    async fn part(&self, subject: &str, at: usize) -> Result<Option<(HeaderMap, Bytes)>, StoreError> {
        self.last_data(&format!("{subject}.{at}")).await.map(|found| found.map(|(_, headers, bytes)| (headers, bytes)))
    }

    /// The message on a subject of the other stream, with its sequence. A replica may be behind, so what it lacks is asked of the
    /// leader.
    pub(super) async fn last_data(&self, subject: &str) -> Result<Option<(u64, HeaderMap, Bytes)>, StoreError> {
        let direct = format!("$JS.API.DIRECT.GET.{}.{subject}", self.host.data_stream());
        let answer = timeout(CALL, self.client.request(direct, Bytes::new())).await.map_err(failed)?.map_err(failed)?;
        if answer.status.is_none() {
            let headers = answer.headers.unwrap_or_default();
            let position = number(&headers, "Nats-Sequence").unwrap_or(0);
            return Ok(Some((position, headers, answer.payload)));
        }
        match self.data.get_last_raw_message_by_subject(subject).await {
            Ok(message) => Ok(Some((message.sequence, message.headers, message.payload))),
            Err(error) if is_no_message(&error) => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }

    /// Replaces the message on the subject of checkpoints, if the one there has this sequence.
    pub(super) async fn replace_checkpoint(&self, expected: u64, payload: Bytes) -> Result<(), PublishError> {
        let mut headers = HeaderMap::new();
        headers.insert("Nats-Expected-Last-Subject-Sequence", expected.to_string());
        self.put_part(self.host.checkpoint(), headers, payload).await
    }

    /// Removes both streams.
    pub(super) async fn delete(&self) -> Result<(), StoreError> {
        for stream in [self.host.stream(), self.host.data_stream()] {
            self.context.delete_stream(stream).await.map_err(failed)?;
        }
        Ok(())
    }
}

fn batch_headers(message: &Outgoing, batch_id: &str, number: usize) -> HeaderMap {
    let mut headers = message.headers();
    headers.insert("Nats-Batch-Id", batch_id);
    headers.insert("Nats-Batch-Sequence", number.to_string());
    headers
}

fn stored(message: Message) -> Result<Stored, StoreError> {
    let position = message.headers.as_ref().and_then(|headers| number(headers, "Nats-Sequence"));
    let position = position.ok_or_else(|| StoreError("a message without a sequence".into()))?;
    Ok(Stored::new(position, message.headers.as_ref(), message.payload))
}

fn number(headers: &HeaderMap, name: &str) -> Option<u64> {
    headers.get(name)?.as_str().parse().ok()
}

fn is_missing(error: &jetstream::context::GetStreamError) -> bool {
    let kind = error.kind();
    matches!(kind, jetstream::context::GetStreamErrorKind::JetStream(error) if error.error_code() == jetstream::ErrorCode::STREAM_NOT_FOUND)
}

fn is_no_message(error: &stream::LastRawMessageError) -> bool {
    matches!(error.kind(), stream::LastRawMessageErrorKind::NoMessageFound)
}
