//! How fast.
fn main() {}
