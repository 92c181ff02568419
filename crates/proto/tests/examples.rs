//! The examples run, and what they print is true: they check what has passed.

#[path = "../examples/machine.rs"]
mod machine;

#[test]
fn the_bare_machines_pass_three_megabytes_in_frames_of_64_kib() {
    machine::main();
}
