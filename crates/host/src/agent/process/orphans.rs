//! Ends what a host has left behind that was killed: programs of its agents that nobody listens to any more, and that would go on
//! working beside the ones that take their place.
//!
//! Each program has in its environment which host it belongs to: the host's process, by its id and the time when it started, and the
//! namespace in which that id counts. So a host that starts can tell a program without a host from one whose host lives.

use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};

/// The variable that says to which host a program belongs.
pub(super) const OWNER: &str = "AGENT_HOST_ID";

/// Which process this is; `None` where there is no `/proc`.
pub(super) fn own_id() -> Option<String> {
    let namespace = namespace(Path::new("/proc/self"))?;
    let pid = std::process::id();
    Some(format!("{namespace}-{pid}-{}", started(pid)?))
}

/// Kills the programs of hosts that are gone; returns how many processes there were.
pub(crate) fn end_orphans() -> usize {
    let Some(here) = namespace(Path::new("/proc/self")) else { return 0 };
    let orphans = std::fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(|entry| {
        let number = entry.file_name().to_str()?.parse::<i32>().ok()?;
        // What belongs to other users cannot be read, and is none of ours.
        let environment = std::fs::read(entry.path().join("environ")).ok()?;
        let prefix = format!("{OWNER}=");
        let variables = environment.split(|byte| *byte == 0);
        let owner =
            variables.filter_map(|variable| std::str::from_utf8(variable).ok()?.strip_prefix(&prefix)).next()?;
        let is_here = namespace(&entry.path()).as_ref() == Some(&here);
        (is_here && is_gone(owner, &here)).then(|| Pid::from_raw(number)).flatten()
    });
    orphans.filter(|pid| kill_process(*pid, Signal::KILL).is_ok()).count()
}

/// Whether the host of this id was in this namespace, and is there no more.
fn is_gone(owner: &str, here: &str) -> bool {
    let mut parts = owner.split('-');
    let (Some(namespace), Some(pid), Some(time)) = (parts.next(), parts.next(), parts.next()) else { return false };
    let Ok(pid) = pid.parse() else { return false };
    namespace == here && started(pid).as_deref() != Some(time)
}

/// The namespace of process ids that a process is in.
fn namespace(process: &Path) -> Option<String> {
    let link = std::fs::read_link(process.join("ns/pid")).ok()?;
    let number: String = link.to_str()?.chars().filter(char::is_ascii_digit).collect();
    (!number.is_empty()).then_some(number)
}

/// When a process started, in the system's own units; `None` if there is no such process, or if it has ended and only its parent
/// has not asked yet how: in containers that may never happen.
fn started(pid: u32) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may have spaces and parentheses. Field 22 of all is the 20th behind it.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    let has_ended = matches!(fields.next()?, "Z" | "X");
    if has_ended { None } else { fields.nth(18).map(str::to_owned) }
}

#[cfg(test)]
#[cfg(target_os = "linux")]
#[expect(clippy::unwrap_used, reason = "a test may fail by panicking")]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    #[test]
    fn a_host_that_was_killed_is_gone_also_before_its_parent_asks() {
        let here = namespace(Path::new("/proc/self")).unwrap();
        let mut host = Command::new("sleep").arg("1000").spawn().unwrap();
        let owner = format!("{here}-{}-{}", host.id(), started(host.id()).unwrap());
        assert!(!is_gone(&owner, &here));
        host.kill().unwrap();
        // Waits until it has ended, and leaves it as it is.
        let stat = format!("/proc/{}/stat", host.id());
        while !std::fs::read_to_string(&stat).unwrap().contains(") Z ") {
            std::thread::yield_now();
        }
        assert!(is_gone(&owner, &here));
        host.wait().unwrap();
        assert!(is_gone(&owner, &here));
    }

    fn sleeper(owner: &str) -> Child {
        Command::new("sleep").arg("1000").env(OWNER, owner).spawn().unwrap()
    }

    #[test]
    fn a_program_is_ended_when_its_host_is_gone_and_not_before() {
        let own = own_id().unwrap();
        let here = namespace(Path::new("/proc/self")).unwrap();
        // The id of a process that lives, but started at another time.
        let gone = format!("{here}-{}-1", std::process::id());
        let elsewhere = format!("1-{}-1", std::process::id());
        let mut kept = [sleeper(&own), sleeper(&elsewhere), sleeper("nonsense")];
        let mut orphan = sleeper(&gone);
        assert!(end_orphans() >= 1);
        assert!(!orphan.wait().unwrap().success());
        for child in &mut kept {
            assert_eq!(child.try_wait().unwrap(), None);
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}
