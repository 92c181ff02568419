//! A `Client` on a loopback WebSocket, and the host that sends to it.

use breakbulk::Dialect;
use breakbulk::client::{Client, Config, ConnectError, Event, Events};
use breakbulk_proto::ahp::Role;
use breakbulk_proto::{Lane, Message};

use crate::wire::{Peer, WELCOME, fresh_machine, limits, sockets, straight};

/// The channel on which the actions are.
const CHANNEL: &str = "ahp-chat:/1";

/// A client, and its host in a task of its own.
pub(crate) struct Followed {
    host: Peer,
    _client: Client,
    events: Events,
}

impl Followed {
    /// A client whose handshake is done, over frames of at most `cap`.
    pub(crate) async fn new(cap: u64) -> Self {
        let (client, host) = sockets(cap, straight).await;
        let mut host = Peer::new(host, fresh_machine(Dialect::Ahp, Role::Server, cap));
        let mut link = Some(client);
        let connect = move || {
            let link = link.take().ok_or_else(|| ConnectError::never("the link has ended"));
            async move { link }
        };
        let mut config = Config::new("bench");
        config.limits = limits(cap);
        let (client, events) = Client::start(connect, config);
        host.next().await;
        host.send(Message::from(WELCOME), Lane::Auto);
        let mut followed = Self { host, _client: client, events };
        // A short action, so that both know what the other takes.
        followed.carry(action(1, 100)).await;
        followed
    }

    /// Sends an action, and waits until the application has it.
    pub(crate) async fn carry(&mut self, action: Message) {
        let len = action.len();
        self.host.send(action, Lane::Auto);
        loop {
            match self.events.next().await.expect("the client lives") {
                Event::Action { envelope, .. } => {
                    assert!(envelope.len() + 100 > len, "all of it arrives");
                    return;
                }
                Event::Started { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }
}

/// An action of about `len` bytes.
pub(crate) fn action(seq: u64, len: usize) -> Message {
    let text = "pack ".repeat(len / 5);
    let action = format!(r#"{{"type":"chat/delta","turnId":"t","partId":"p","content":"{text}"}}"#);
    let params = format!(r#"{{"channel":"{CHANNEL}","serverSeq":{seq},"action":{action}}}"#);
    format!(r#"{{"jsonrpc":"2.0","method":"action","params":{params}}}"#).into()
}
