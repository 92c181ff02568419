//! Converts values of agent events to those of AHP.

use ahp_types::state::{
    ConfirmationOption, ConfirmationOptionKind, ContentRef, FileEditDiffStats, FileEditSide, ToolCallResult,
    ToolResultContent, ToolResultEmbeddedResourceContent, ToolResultFileEditContent, ToolResultResourceContent,
    ToolResultTextContent, UsageInfo,
};
use breakbulk_lifecycle::{Choice, Content, ToolResult, Usage};
use serde_json::json;

pub(super) fn usage(usage: Usage) -> UsageInfo {
    UsageInfo {
        input_tokens: usage.input_tokens.map(number),
        output_tokens: usage.output_tokens.map(number),
        cache_read_tokens: usage.cache_read_tokens.map(number),
        model: usage.model,
        meta: usage.cost_micros.map(|cost| super::meta(&json!({ "costMicros": cost }))),
    }
}

pub(super) fn option(choice: Choice) -> ConfirmationOption {
    let kind = if choice.allows { ConfirmationOptionKind::Approve } else { ConfirmationOptionKind::Deny };
    ConfirmationOption { id: choice.id, label: choice.label, kind, group: None }
}

pub(super) fn result(result: ToolResult) -> ToolCallResult {
    let content: Vec<ToolResultContent> = result.content.into_iter().map(content).collect();
    ToolCallResult {
        success: result.success,
        past_tense_message: result.summary.into(),
        content: Some(content).filter(|content| !content.is_empty()),
        structured_content: None,
        error: result.error.map(|message| json!({ "message": message })),
    }
}

pub(super) fn content(content: Content) -> ToolResultContent {
    match content {
        Content::Text(text) => ToolResultContent::Text(ToolResultTextContent { text }),
        Content::Data { base64, mime } => {
            let data = ToolResultEmbeddedResourceContent { data: base64, content_type: mime };
            ToolResultContent::EmbeddedResource(data)
        }
        Content::Link { uri, mime } => ToolResultContent::Resource(ToolResultResourceContent {
            uri,
            size_hint: None,
            content_type: mime,
            nonce: None,
        }),
        Content::Edit { uri, added, removed } => {
            let content = ContentRef { uri: uri.clone(), size_hint: None, content_type: None, nonce: None };
            ToolResultContent::FileEdit(ToolResultFileEditContent {
                before: None,
                after: Some(FileEditSide { uri, content }),
                diff: Some(FileEditDiffStats { added: Some(number(added)), removed: Some(number(removed)) }),
            })
        }
    }
}

fn number(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
