//! A connected pair of each dialect.

use breakbulk_proto::{
    Account, Budget, BudgetConfig, Capacity, Input, Limits, LimitsConfig, Machine, Message, ahp, cep22, stdio,
};

use crate::pair::Pair;

/// A server that sends to a client, in frames of at most `cap`.
pub(crate) fn ahp(cap: u64) -> Pair<ahp::Connection> {
    let config = LimitsConfig { max_frame_bytes: cap, ..LimitsConfig::default() };
    let limits = Limits::prove(config, &BudgetConfig::default()).unwrap();
    let end = |role, seed| {
        let mut config = ahp::Config::new(role, limits, [seed; 32]);
        config.agreed = Some(ahp::Chunking::from(&limits));
        ahp::Connection::new(config, account())
    };
    Pair::new(end(ahp::Role::Server, 1), end(ahp::Role::Client, 2), None)
}

/// A server that answers a client's requests, in frames of at most `cap`.
pub(crate) fn cep22(cap: u64) -> Pair<cep22::Connection> {
    let config = cep22::Config { known_support: true, ..cep22::Config::default() };
    let end = || {
        let mut end = cep22::Connection::new(config.clone(), account());
        end.handle(Input::Capacity(Capacity::of(cap)), std::time::Instant::now());
        end
    };
    let ask = r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"t","_meta":{"progressToken":"t"}}}"#;
    Pair::new(end(), end(), Some(Message::from(ask)))
}

/// Two ends of a pipe.
pub(crate) fn stdio() -> Pair<stdio::Connection> {
    let end = |seed| stdio::Connection::new(stdio::Config::new(Limits::default(), [seed; 32]), account());
    Pair::new(end(1), end(2), None)
}

fn account() -> Account {
    Budget::default().account(Some("bench"))
}
