//! The lines that the program writes, read without copying.
//!
//! Every version of the program writes more than the one before, and some fields change their form. So a line is read in
//! two steps: first what all lines share, then what its type needs. A field that is only nice to have reads as absent when
//! it has an unknown form. Nothing is read into a tree: nesting of any depth is skipped by a loop, not by recursion.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// What all lines share. Most lines are deltas, and need no more than this.
#[derive(Debug, Deserialize)]
pub(super) struct Line<'a> {
    #[serde(rename = "type", borrow)]
    pub(super) kind: Word<'a>,
    #[serde(default, borrow)]
    pub(super) subtype: Word<'a>,
    #[serde(default, borrow)]
    pub(super) uuid: Word<'a>,
    #[serde(default, borrow)]
    pub(super) parent_tool_use_id: Word<'a>,
    #[serde(default, borrow)]
    pub(super) api_message_id: Word<'a>,
    #[serde(default, borrow)]
    pub(super) request_id: Word<'a>,
    #[serde(default, borrow)]
    pub(super) event: Option<&'a RawValue>,
    #[serde(default, borrow)]
    pub(super) message: Option<&'a RawValue>,
    #[serde(default, borrow)]
    pub(super) request: Option<&'a RawValue>,
    #[serde(default, borrow)]
    pub(super) response: Option<&'a RawValue>,
}

/// An event of the model's own stream.
#[derive(Debug, Deserialize)]
pub(super) struct StreamEvent<'a> {
    #[serde(rename = "type", borrow)]
    pub(super) kind: Word<'a>,
    #[serde(default)]
    pub(super) index: u64,
    #[serde(default, borrow)]
    pub(super) delta: Option<Delta<'a>>,
    #[serde(default, borrow)]
    pub(super) content_block: Option<&'a RawValue>,
    #[serde(default, borrow)]
    pub(super) message: Option<&'a RawValue>,
    #[serde(default)]
    pub(super) usage: Maybe<Tokens>,
}

/// More of a block.
#[derive(Debug, Deserialize)]
pub(super) struct Delta<'a> {
    #[serde(rename = "type", default, borrow)]
    pub(super) kind: Word<'a>,
    #[serde(default, borrow)]
    pub(super) text: Option<Text<'a>>,
    #[serde(default, borrow)]
    pub(super) thinking: Option<Text<'a>>,
    #[serde(default, borrow)]
    pub(super) partial_json: Option<Text<'a>>,
}

/// A message of the model or of the user.
#[derive(Debug, Deserialize)]
pub(super) struct ApiMessage<'a> {
    #[serde(default, borrow)]
    pub(super) id: Word<'a>,
    #[serde(default, borrow)]
    pub(super) model: Word<'a>,
    #[serde(default, borrow)]
    pub(super) content: Option<&'a RawValue>,
    #[serde(default)]
    pub(super) usage: Maybe<Tokens>,
}

/// A piece of a message, or of what a tool has produced.
#[derive(Debug, Deserialize)]
pub(super) struct ContentBlock<'a> {
    #[serde(rename = "type", default, borrow)]
    pub(super) kind: Word<'a>,
    #[serde(default, borrow)]
    pub(super) text: Option<Text<'a>>,
    #[serde(default, borrow)]
    pub(super) thinking: Option<Text<'a>>,
    #[serde(default, borrow)]
    pub(super) id: Word<'a>,
    #[serde(default, borrow)]
    pub(super) name: Word<'a>,
    #[serde(default, borrow)]
    pub(super) input: Option<&'a RawValue>,
    #[serde(default, borrow)]
    pub(super) tool_use_id: Word<'a>,
    #[serde(default, borrow)]
    pub(super) content: Option<&'a RawValue>,
    #[serde(default)]
    pub(super) is_error: Maybe<bool>,
    #[serde(default, borrow)]
    pub(super) source: Maybe<MediaSource<'a>>,
}

/// Where the bytes of an image or of a document are.
#[derive(Debug, Deserialize)]
pub(super) struct MediaSource<'a> {
    #[serde(default, borrow)]
    pub(super) media_type: Word<'a>,
    #[serde(default, borrow)]
    pub(super) data: Option<Text<'a>>,
    #[serde(default, borrow)]
    pub(super) url: Word<'a>,
}

/// Tokens of one message, or of one turn.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub(super) struct Tokens {
    #[serde(default)]
    pub(super) input_tokens: Maybe<u64>,
    #[serde(default)]
    pub(super) output_tokens: Maybe<u64>,
    #[serde(default)]
    pub(super) cache_creation_input_tokens: Maybe<u64>,
    #[serde(default)]
    pub(super) cache_read_input_tokens: Maybe<u64>,
}

/// What an `assistant` line has beside its message.
#[derive(Debug, Deserialize)]
pub(super) struct AssistantLine<'a> {
    #[serde(default, borrow)]
    pub(super) error: Word<'a>,
}

/// What a `user` line has beside its message.
#[derive(Debug, Deserialize)]
pub(super) struct UserLine<'a> {
    #[serde(rename = "isReplay", default)]
    pub(super) is_replay: Maybe<bool>,
    #[serde(default, borrow)]
    pub(super) tool_use_result: Maybe<Structured<'a>>,
    #[serde(default, borrow)]
    pub(super) tool_result_meta: Maybe<Vec<ResultMeta<'a>>>,
}

/// What a built-in tool says about its result for programs.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Structured<'a> {
    #[serde(default, borrow)]
    pub(super) status: Word<'a>,
    #[serde(rename = "agentId", default, borrow)]
    pub(super) agent_id: Word<'a>,
    #[serde(rename = "type", default, borrow)]
    pub(super) kind: Word<'a>,
    #[serde(rename = "filePath", default, borrow)]
    pub(super) file_path: Word<'a>,
    #[serde(default, borrow)]
    pub(super) content: Maybe<Text<'a>>,
    #[serde(rename = "structuredPatch", default, borrow)]
    pub(super) patch: Maybe<Vec<Hunk<'a>>>,
}

/// A part of a file that was changed.
#[derive(Debug, Deserialize)]
pub(super) struct Hunk<'a> {
    #[serde(default, borrow)]
    pub(super) lines: Vec<Text<'a>>,
}

/// Whether a call ran at all.
#[derive(Debug, Deserialize)]
pub(super) struct ResultMeta<'a> {
    #[serde(default, borrow)]
    pub(super) id: Word<'a>,
    #[serde(default, borrow)]
    pub(super) non_execution_kind: Word<'a>,
}

/// A `system` line.
#[derive(Debug, Deserialize)]
pub(super) struct SystemLine<'a> {
    #[serde(default, borrow)]
    pub(super) session_id: Word<'a>,
    #[serde(default, borrow)]
    pub(super) model: Word<'a>,
    #[serde(rename = "permissionMode", default, borrow)]
    pub(super) permission_mode: Word<'a>,
    #[serde(default, borrow)]
    pub(super) claude_code_version: Word<'a>,
    #[serde(default, borrow)]
    pub(super) tools: Maybe<Vec<Text<'a>>>,
    #[serde(default, borrow)]
    pub(super) slash_commands: Maybe<Vec<Text<'a>>>,
    #[serde(default, borrow)]
    pub(super) agents: Maybe<Vec<Text<'a>>>,
    #[serde(default, borrow)]
    pub(super) task_id: Word<'a>,
    #[serde(default, borrow)]
    pub(super) tool_use_id: Word<'a>,
    #[serde(default, borrow)]
    pub(super) subagent_type: Word<'a>,
    #[serde(default, borrow)]
    pub(super) status: Word<'a>,
    #[serde(default, borrow)]
    pub(super) summary: Maybe<Text<'a>>,
    #[serde(default)]
    pub(super) attempt: Maybe<u64>,
    #[serde(default)]
    pub(super) max_retries: Maybe<u64>,
    #[serde(default)]
    pub(super) error_status: Maybe<u64>,
}

/// A `result` line: the end of a turn.
#[derive(Debug, Deserialize)]
pub(super) struct ResultLine<'a> {
    #[serde(default, borrow)]
    pub(super) session_id: Word<'a>,
    #[serde(default)]
    pub(super) is_error: Maybe<bool>,
    #[serde(default, borrow)]
    pub(super) terminal_reason: Word<'a>,
    #[serde(default, borrow)]
    pub(super) result: Maybe<Text<'a>>,
    #[serde(default, borrow)]
    pub(super) errors: Maybe<Vec<Text<'a>>>,
    #[serde(default)]
    pub(super) usage: Maybe<Tokens>,
    #[serde(default)]
    pub(super) total_cost_usd: Maybe<f64>,
    #[serde(rename = "model_usage_since_last_result", default)]
    pub(super) models: Maybe<HashMap<String, ModelUsage>>,
    #[serde(default)]
    pub(super) num_turns: Maybe<u64>,
    #[serde(default, borrow)]
    pub(super) api_error_type: Word<'a>,
    #[serde(default, borrow)]
    pub(super) permission_denials: Maybe<Vec<PermissionDenial<'a>>>,
    #[serde(default, borrow)]
    pub(super) user_message_uuids: Maybe<Vec<Text<'a>>>,
}

/// What one model has cost in a turn.
#[derive(Debug, Deserialize)]
pub(super) struct ModelUsage {
    #[serde(rename = "costUSD", default)]
    pub(super) cost_usd: Maybe<f64>,
}

/// A call that was not allowed.
#[derive(Debug, Deserialize)]
pub(super) struct PermissionDenial<'a> {
    #[serde(default, borrow)]
    pub(super) tool_name: Word<'a>,
    #[serde(default, borrow)]
    pub(super) tool_use_id: Word<'a>,
}

/// A `command_lifecycle` line: where a prompt is.
#[derive(Debug, Deserialize)]
pub(super) struct LifecycleLine<'a> {
    #[serde(default, borrow)]
    pub(super) command_uuid: Word<'a>,
    #[serde(default, borrow)]
    pub(super) state: Word<'a>,
}

/// A `tool_progress` line: a call runs.
#[derive(Debug, Deserialize)]
pub(super) struct ProgressLine<'a> {
    #[serde(default, borrow)]
    pub(super) tool_use_id: Word<'a>,
}

/// What the program asks of us.
#[derive(Debug, Deserialize)]
pub(super) struct ControlRequest<'a> {
    #[serde(default, borrow)]
    pub(super) subtype: Word<'a>,
    #[serde(default, borrow)]
    pub(super) tool_name: Word<'a>,
    #[serde(default, borrow)]
    pub(super) display_name: Word<'a>,
    #[serde(default, borrow)]
    pub(super) title: Maybe<Text<'a>>,
    #[serde(default, borrow)]
    pub(super) description: Maybe<Text<'a>>,
    #[serde(default, borrow)]
    pub(super) decision_reason: Maybe<Text<'a>>,
    #[serde(default, borrow)]
    pub(super) blocked_path: Maybe<Text<'a>>,
    #[serde(default, borrow)]
    pub(super) tool_use_id: Word<'a>,
    #[serde(default, borrow)]
    pub(super) input: Option<&'a RawValue>,
    #[serde(default, borrow)]
    pub(super) permission_suggestions: Maybe<Vec<&'a RawValue>>,
}

/// What the program answers to us.
#[derive(Debug, Deserialize)]
pub(super) struct ControlResponse<'a> {
    #[serde(default, borrow)]
    pub(super) subtype: Word<'a>,
    #[serde(default, borrow)]
    pub(super) request_id: Word<'a>,
    #[serde(default, borrow)]
    pub(super) error: Maybe<Text<'a>>,
    #[serde(default, borrow)]
    pub(super) response: Option<&'a RawValue>,
}

/// Reads a part of a line.
pub(super) fn parse<'a, T: Deserialize<'a>>(raw: &'a RawValue) -> Option<T> {
    serde_json::from_str(raw.get()).ok()
}

/// The blocks of a message or of a result: a list, one block, or a plain text.
pub(super) enum Blocks<'a> {
    /// A plain text.
    Text(Text<'a>),
    /// Blocks, each still to be read: one of an unknown form does not spoil the others.
    List(Vec<&'a RawValue>),
}

impl<'a> Blocks<'a> {
    pub(super) fn read(raw: &'a RawValue) -> Option<Self> {
        match raw.get().as_bytes().first()? {
            b'"' => parse(raw).map(Self::Text),
            b'[' => parse(raw).map(Self::List),
            b'{' => Some(Self::List(vec![raw])),
            _ => None,
        }
    }
}

/// A name: of a type, of a call, of a message. Absent if it is no string.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Word<'a>(Option<Cow<'a, str>>);

impl Word<'_> {
    /// The name, if there is one.
    pub(super) fn get(&self) -> Option<&str> {
        self.0.as_deref().filter(|word| !word.is_empty())
    }

    /// The name; empty if there is none.
    pub(super) fn as_str(&self) -> &str {
        self.0.as_deref().unwrap_or_default()
    }

    /// A copy of the name, if there is one.
    pub(super) fn to_owned(&self) -> Option<String> {
        self.get().map(str::to_owned)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Word<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(WordVisitor)
    }
}

struct WordVisitor;

impl<'de> Visitor<'de> for WordVisitor {
    type Value = Word<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Word(Some(Cow::Borrowed(text))))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Word(Some(Cow::Owned(text.to_owned()))))
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(Word(None))
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Self::Value, E> {
        Ok(Word(None))
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<Self::Value, E> {
        Ok(Word(None))
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<Self::Value, E> {
        Ok(Word(None))
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Self::Value, E> {
        Ok(Word(None))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Word(None))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Word(None))
    }
}

/// Text of any kind. The program cuts long output at UTF-16 units and may leave half of a surrogate pair; that half
/// becomes U+FFFD, and the rest of the line is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Text<'a>(pub(super) Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_bytes(TextVisitor)
    }
}

struct TextVisitor;

impl<'de> Visitor<'de> for TextVisitor {
    type Value = Text<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text")
    }

    fn visit_borrowed_bytes<E: Error>(self, bytes: &'de [u8]) -> Result<Self::Value, E> {
        Ok(Text(String::from_utf8_lossy(bytes)))
    }

    fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Self::Value, E> {
        Ok(Text(Cow::Owned(String::from_utf8_lossy(bytes).into_owned())))
    }
}

/// A field that is as good as absent when it has an unknown form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Maybe<T>(pub(super) Option<T>);

impl<T> Default for Maybe<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Maybe<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = <&'de RawValue>::deserialize(deserializer)?;
        Ok(Self(serde_json::from_str(raw.get()).ok()))
    }
}
