//! How much memory a process and everything that it has started use, where there is a `/proc`.
//!
//! A limit that the system enforces would be simpler, but does not fit: programs on Node reserve far more addresses than they use,
//! and a cgroup of one's own needs rights that few users have.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::lock::lock;

/// All processes, as they were a moment ago: many agents look at the same list.
static RECENT: Mutex<Option<(Instant, Arc<Vec<ProcessInfo>>)>> = Mutex::new(None);

/// How old that list may be.
const RECENT_FOR: Duration = Duration::from_secs(1);

/// What is known of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ProcessInfo {
    id: i32,
    parent: i32,
    group: i32,
    pages: u64,
}

/// Bytes in memory of the leader's group, and of all that they have started. Memory that is shared counts several times.
pub(super) fn used_by(leader: i32) -> u64 {
    let page = u64::try_from(rustix::param::page_size()).unwrap_or(4096);
    pages_of(&recent(), leader).saturating_mul(page)
}

fn recent() -> Arc<Vec<ProcessInfo>> {
    let mut recent = lock(&RECENT);
    match &*recent {
        Some((at, list)) if at.elapsed() < RECENT_FOR => Arc::clone(list),
        _ => {
            let list = Arc::new(all());
            *recent = Some((Instant::now(), Arc::clone(&list)));
            list
        }
    }
}

fn all() -> Vec<ProcessInfo> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbered = entries.filter(|entry| entry.file_name().to_str().is_some_and(|name| name.parse::<u32>().is_ok()));
    numbered.filter_map(|entry| read(&std::fs::read_to_string(entry.path().join("stat")).ok()?)).collect()
}

/// From a line of `/proc/PID/stat`: `pid (any name) state parent group …`, of which the 24th is the resident pages.
fn read(stat: &str) -> Option<ProcessInfo> {
    let (start, rest) = (stat.split_once(' ')?.0, stat.rsplit_once(')')?.1);
    let mut fields = rest.split_ascii_whitespace().skip(1);
    let (parent, group) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some(ProcessInfo { id: start.parse().ok()?, parent, group, pages: fields.nth(18)?.parse().ok()? })
}

fn pages_of(list: &[ProcessInfo], leader: i32) -> u64 {
    let mut known: HashSet<i32> = HashSet::from([leader]);
    loop {
        let before = known.len();
        for process in list {
            if process.group == leader || known.contains(&process.parent) {
                known.insert(process.id);
            }
        }
        if known.len() == before {
            break;
        }
    }
    list.iter().filter(|process| known.contains(&process.id)).map(|process| process.pages).sum()
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may fail by panicking")]
mod tests {
    use super::*;

    #[test]
    fn a_process_may_have_any_name() {
        let stat = "12 (a) 9 (b) S 1 34 56 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 99 1000 777 18446744073709551615";
        assert_eq!(read(stat), Some(ProcessInfo { id: 12, parent: 1, group: 34, pages: 777 }));
        assert_eq!(read("12 (a) S"), None);
    }

    #[test]
    fn what_a_descendant_started_counts_whatever_its_group() {
        let process = |id, parent, group| ProcessInfo { id, parent, group, pages: 1 };
        // 4 has left the group, 5 has lost its parent, 6 and 1 are strangers.
        let list = [
            process(4, 3, 4),
            process(3, 2, 2),
            process(2, 1, 2),
            process(5, 1, 2),
            process(6, 1, 6),
            process(1, 0, 1),
        ];
        assert_eq!(pages_of(&list, 2), 4);
    }

    #[test]
    fn this_process_uses_memory() {
        if std::path::Path::new("/proc/self/stat").exists() {
            let own = i32::try_from(std::process::id()).unwrap();
            assert!(used_by(own) > 0);
        }
    }
}
