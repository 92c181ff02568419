//! The rules that the events of a projector keep, checked apart from it.

use std::collections::HashMap;

use breakbulk_lifecycle::v2::wire::{Body, Event, SnapshotBlock};
use breakbulk_lifecycle::{BlockType, Id};

/// Follows events and panics at the first rule that one breaks.
#[derive(Default)]
pub(crate) struct Grammar {
    last: Option<(u64, u64, u32, bool)>,
    /// Messages, each with whether it is open and whether a sub-agent says it.
    messages: HashMap<Id, (bool, bool)>,
    blocks: HashMap<(Id, Id), (BlockType, bool)>,
}

impl Grammar {
    /// For the events of a snapshot.
    pub(crate) fn of_snapshot() -> Self {
        Self::default()
    }

    pub(crate) fn check(&mut self, event: &Event) {
        if let Some((ts, seq, sub, more)) = self.last {
            assert!(event.ts >= ts, "ts goes back: {event:?}");
            assert!((event.seq, event.sub) > (seq, sub), "seq goes back: {event:?}");
            assert_eq!(more, event.seq == seq, "`more` is wrong before {event:?}");
        }
        self.last = Some((event.ts, event.seq, event.sub, event.more));
        match &event.body {
            Body::MessageStart { message_id, parent_tool_id } => {
                let is_nested = parent_tool_id.is_some();
                assert!(is_nested || self.open_main() == 0, "two messages at once: {event:?}");
                let before = self.messages.insert(message_id.clone(), (true, is_nested));
                assert!(before.is_none(), "a message starts twice: {event:?}");
            }
            Body::MessageSnapshot { message_id, blocks } => {
                assert_eq!(self.open_main(), 0, "two messages at once: {event:?}");
                assert!(self.messages.insert(message_id.clone(), (true, false)).is_none());
                self.hold(message_id, blocks);
            }
            Body::BlockStart { message_id, block_id, block_type, .. } => {
                assert!(self.messages[message_id].0, "a block in a message that is not open: {event:?}");
                let before = self.blocks.insert((message_id.clone(), block_id.clone()), (*block_type, true));
                assert!(before.is_none(), "a block starts twice: {event:?}");
            }
            Body::BlockDelta { message_id, block_id, block_type, .. } => {
                let (kind, is_open) = self.blocks[&(message_id.clone(), block_id.clone())];
                assert_eq!(kind, *block_type);
                assert!(is_open, "a delta after the end: {event:?}");
            }
            Body::BlockEnd { message_id, block_id, block_type, .. } => {
                let (kind, is_open) = self.blocks.get_mut(&(message_id.clone(), block_id.clone())).unwrap();
                assert_eq!(*kind, *block_type);
                assert!(*is_open || *kind == BlockType::ToolInput, "a block ends twice: {event:?}");
                *is_open = false;
            }
            Body::MessageEnd { message_id } => {
                let message = self.messages.get_mut(message_id).unwrap();
                assert!(message.0, "a message ends twice: {event:?}");
                message.0 = false;
                let mut open = self.blocks.iter().filter(|((of, _), (_, is_open))| of == message_id && *is_open);
                assert!(open.next().is_none(), "a message ends before its blocks: {event:?}");
            }
            Body::ToolResult { message_id, .. } => assert!(self.messages.contains_key(message_id)),
            Body::TurnEnd { .. } => assert_eq!(self.open_main(), 0, "a turn ends before its messages: {event:?}"),
            Body::SessionEnd {} => assert!(self.messages.values().all(|(is_open, _)| !is_open)),
            _ => {}
        }
    }

    fn hold(&mut self, holder: &Id, blocks: &[SnapshotBlock]) {
        for block in blocks {
            let message = block.message_id.as_ref().unwrap_or(holder);
            let before = self.blocks.insert((message.clone(), block.block_id.clone()), (block.block_type, !block.done));
            // The end of a message gives its blocks an end.
            assert!(before.is_none());
            if message != holder {
                self.messages.insert(message.clone(), (!block.done, true));
            }
            self.hold(holder, &block.blocks);
        }
    }

    fn open_main(&self) -> usize {
        self.messages.values().filter(|(is_open, is_nested)| *is_open && !*is_nested).count()
    }
}
