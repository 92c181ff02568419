//! The examples run, and what they print is true: they check what has passed.

#[path = "../examples/gateway.rs"]
mod gateway;

#[test]
fn the_gateway_passes_three_megabytes_each_way_to_a_client_with_a_cap() -> Result<(), Box<dyn std::error::Error>> {
    gateway::main()
}
