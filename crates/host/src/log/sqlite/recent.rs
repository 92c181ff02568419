//! The newest entries, with what readers have to know beside them: gaps, and the names of channels, which are numbers in the file.

use std::collections::HashMap;
use std::sync::Arc;

use super::super::gaps::Gaps;
use super::super::window::Window;
use super::reader::Outline;

/// What readers get from memory.
#[derive(Debug, Default)]
pub(super) struct RecentEntries {
    pub(super) window: Window,
    pub(super) gaps: Gaps,
    names: HashMap<i64, Arc<str>>,
}

impl RecentEntries {
    /// No entries, and no names.
    pub(super) fn new(max_bytes: usize) -> Self {
        Self { window: Window::new(max_bytes), gaps: Gaps::default(), names: HashMap::new() }
    }

    /// Removes everything: the log was opened.
    pub(super) fn reset(&mut self, outline: Outline) {
        let Outline { last, names, trims, gaps } = outline;
        self.window.reset(last, trims);
        self.gaps = gaps;
        self.names = names;
    }

    /// Adds the name of a channel.
    pub(super) fn name(&mut self, id: i64, channel: Arc<str>) {
        self.names.insert(id, channel);
    }

    pub(super) fn channel(&self, id: i64) -> Option<Arc<str>> {
        self.names.get(&id).cloned()
    }

    /// Forgets the names of erased channels.
    pub(super) fn forget(&mut self, channels: &[(i64, Arc<str>)]) {
        channels.iter().for_each(|(id, _)| drop(self.names.remove(id)));
    }
}
