//! Python's `websockets` as a client of the host: one that has never heard of segments, one that has read the RFC.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::place::Place;
use crate::peer::python;
use crate::program::file;

/// How long a script may run.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs a script; it asserts by itself, and says what it did.
fn run(script: &str, args: &[&str]) {
    let mut command: Command = python();
    command.arg(file(script)).args(args).stdin(Stdio::null());
    let (mut child, begin) = (command.spawn().unwrap(), Instant::now());
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if begin.elapsed() > PATIENCE {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("{script} {args:?} does not end");
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    assert!(status.success(), "{script} {args:?}: {status}");
}

#[test]
fn a_client_that_has_never_heard_of_segments_holds_a_session() {
    let place = Place::new("", &[]);
    run("python/ahp_plain.py", &["session", &place.url()]);
}

#[test]
fn a_client_that_has_never_heard_of_segments_pastes_20_mb_and_writes_30_mb() {
    let place = Place::new("", &[]);
    run("python/ahp_plain.py", &["long", &place.url()]);
}

#[test]
fn an_answer_beyond_what_a_plain_client_takes_ends_its_link_and_not_the_host() {
    let place = Place::new("", &[]);
    run("python/ahp_plain.py", &["beyond-client", &place.url()]);
}

#[test]
fn an_answer_beyond_the_cap_reaches_a_plain_client_by_reference_as_often_as_it_comes_back() {
    let place = Place::new("?cap=65536", &[]);
    run("python/ahp_plain.py", &["beyond-cap", &place.url()]);
}

#[test]
fn a_frame_beyond_what_the_host_takes_is_refused_by_name() {
    let place = Place::new("", &[]);
    run("python/ahp_plain.py", &["beyond-host", &place.url()]);
}

#[test]
fn a_client_made_from_the_rfc_alone_takes_and_sends_large_messages() {
    let place = Place::new("?cap=65536", &[]);
    run("python/ahp_segments.py", &["large", &place.url()]);
}

#[test]
fn a_client_made_from_the_rfc_alone_resumes_in_the_middle_of_a_group() {
    let place = Place::new("", &[]);
    run("python/ahp_segments.py", &["resume", &place.url()]);
}
