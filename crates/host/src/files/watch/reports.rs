//! The paths that the operating system has reported since the last look.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Mutex;

use crate::lock::lock;
use notify::{Event, EventKind};
use tokio::sync::Notify;

/// The most paths that are kept. With more, everything is checked.
const MAX_PATHS: usize = 10_000;

/// Collects reports until the next look.
#[derive(Debug)]
pub(super) struct ReportQueue {
    /// The watched path. Other paths are ignored.
    real: PathBuf,
    touched: Mutex<ReportedPaths>,
    changed: Notify,
}

/// The paths to check.
#[derive(Debug, Default)]
pub(super) struct ReportedPaths {
    /// Something was created, removed or renamed here.
    pub(super) paths: BTreeSet<PathBuf>,
    /// Content or attributes changed here.
    pub(super) modified: BTreeSet<PathBuf>,
    /// Whether everything has to be checked, because reports were lost.
    pub(super) all: bool,
}

impl ReportQueue {
    pub(super) fn new(real: PathBuf) -> Self {
        Self { real, touched: Mutex::default(), changed: Notify::new() }
    }

    /// Whether an event is about something that is watched.
    pub(super) fn is_for(&self, event: &Event) -> bool {
        event.paths.iter().any(|path| path.starts_with(&self.real))
    }

    /// Adds a report. Never blocks.
    pub(super) fn put(&self, report: notify::Result<Event>) {
        let mut touched = lock(&self.touched);
        match report {
            Ok(event) if event.need_rescan() => touched.all = true,
            Ok(event) if matches!(event.kind, EventKind::Access(_)) => return,
            Ok(event) => {
                let modified = matches!(event.kind, EventKind::Modify(kind) if !is_rename(kind));
                let is_ours: Vec<_> = event.paths.into_iter().filter(|path| path.starts_with(&self.real)).collect();
                if is_ours.is_empty() {
                    return;
                }
                if modified {
                    touched.modified.extend(is_ours);
                } else {
                    touched.paths.extend(is_ours);
                }
            }
            Err(_) => touched.all = true,
        }
        if touched.all || touched.paths.len() + touched.modified.len() > MAX_PATHS {
            *touched = ReportedPaths { all: true, ..ReportedPaths::default() };
        }
        drop(touched);
        self.wake();
    }

    pub(super) fn is_empty(&self) -> bool {
        let touched = lock(&self.touched);
        !touched.all && touched.paths.is_empty() && touched.modified.is_empty()
    }

    pub(super) fn take(&self) -> ReportedPaths {
        std::mem::take(&mut *lock(&self.touched))
    }

    /// Resolves when there was a report or a wake since it last resolved.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    pub(super) fn wake(&self) {
        self.changed.notify_one();
    }
}

fn is_rename(kind: notify::event::ModifyKind) -> bool {
    matches!(kind, notify::event::ModifyKind::Name(_))
}

#[cfg(test)]
mod tests {
    use notify::event::{AccessKind, CreateKind};

    use super::*;

    fn created(path: &str) -> notify::Result<Event> {
        Ok(Event::new(EventKind::Create(CreateKind::Any)).add_path(path.into()))
    }

    #[test]
    fn too_many_paths_become_everything_in_bounded_memory() {
        let reports = ReportQueue::new("/r".into());
        for n in 0..=MAX_PATHS {
            reports.put(created(&format!("/r/{n}")));
        }
        let touched = reports.take();
        assert!(touched.all && touched.paths.is_empty());
        assert!(reports.is_empty());
    }

    #[test]
    fn what_is_elsewhere_or_was_only_read_is_no_change() {
        let reports = ReportQueue::new("/r".into());
        reports.put(created("/rr"));
        reports.put(Ok(Event::new(EventKind::Access(AccessKind::Any)).add_path("/r/a".into())));
        assert!(reports.is_empty());
        reports.put(created("/r"));
        assert!(!reports.is_empty());
    }

    #[test]
    fn a_lost_report_means_look_everywhere() {
        let reports = ReportQueue::new("/r".into());
        reports.put(Err(notify::Error::generic("lost")));
        assert!(reports.take().all);
        reports.put(Ok(Event::new(EventKind::Other).set_flag(notify::event::Flag::Rescan)));
        assert!(reports.take().all);
    }
}
