//! How ids and kinds of blocks are written.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{BlockType, Id};

impl Serialize for Id {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self)
    }
}

impl<'de> Deserialize<'de> for Id {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self::from)
    }
}

/// A kind of block, by the name that v2 gives it.
pub(super) mod block_type {
    use super::{BlockType, Deserialize, Deserializer, Error, Serializer};

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
    pub(in super::super) fn serialize<S: Serializer>(kind: &BlockType, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(match kind {
            BlockType::Text => "text",
            BlockType::Thinking => "thinking",
            BlockType::Redacted => "redacted_thinking",
            BlockType::ToolInput => "tool_use",
        })
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BlockType, D::Error> {
        let name = String::deserialize(deserializer)?;
        match name.as_str() {
            "text" => Ok(BlockType::Text),
            "thinking" => Ok(BlockType::Thinking),
            "redacted_thinking" => Ok(BlockType::Redacted),
            "tool_use" => Ok(BlockType::ToolInput),
            _ => Err(D::Error::custom("unknown blockType")),
        }
    }
}

/// Whether a flag is left out.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
pub(super) const fn is_false(flag: &bool) -> bool {
    !*flag
}

/// Whether a number is left out.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
pub(super) const fn is_zero(number: &u32) -> bool {
    *number == 0
}
