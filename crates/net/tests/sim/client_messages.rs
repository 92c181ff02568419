//! The messages of the model client: its handshake, its requests, and its answers.

use serde_json::Value;

use crate::sim::ledger::Lane;
use crate::sim::line::Out;
use crate::sim::memory::{Ask, Client, Deed, Stage};
use crate::sim::model_host::ROOT;
use crate::sim::shared::Books;

impl Client {
    pub(super) fn connect(&mut self, books: &mut Books) -> Out {
        self.stage = Stage::Asking;
        if !self.known {
            return self.initialize(books);
        }
        books.tally.one("resumes");
        books.tally.add("resumes from before what was seen", self.is_ahead().into());
        let (name, channels, last) = (self.name.clone(), self.channels(), self.resume_from());
        let params = format!(
            r#""channel":"{ROOT}","clientId":"{name}","lastSeenServerSeq":{last},"subscriptions":[{channels}]"#
        );
        self.ask(Ask::Reconnect, "reconnect", &params, books)
    }

    pub(super) fn initialize(&mut self, books: &mut Books) -> Out {
        let (name, channels) = (self.name.clone(), self.channels());
        let params = format!(
            r#""channel":"{ROOT}","protocolVersions":["1.0.0"],"clientId":"{name}","initialSubscriptions":[{channels}]"#
        );
        self.ask(Ask::Initialize, "initialize", &params, books)
    }

    /// What is due as soon as the handshake is done.
    pub(super) fn due(&mut self, books: &mut Books) -> Vec<Out> {
        if !self.is_up() {
            return Vec::new();
        }
        let deeds: Vec<_> = self.todo.drain(..).collect();
        let mut outs: Vec<_> = deeds.into_iter().filter_map(|deed| self.act(deed, books)).collect();
        for channel in std::mem::take(&mut self.wanted) {
            let params = format!(r#""channel":"{channel}""#);
            outs.push(self.ask(Ask::Subscribe(channel), "subscribe", &params, books));
        }
        outs
    }

    fn act(&mut self, deed: Deed, books: &mut Books) -> Option<Out> {
        books.tally.one("client messages");
        let root = format!(r#""channel":"{ROOT}""#);
        match deed {
            Deed::Dispatch(channel, len) => {
                self.ids += 1;
                let (n, text) = (self.ids, self.rng.text(len));
                let params = format!(r#"{{"channel":"{channel}","n":{n},"text":"{text}"}}"#);
                let text = format!(r#"{{"jsonrpc":"2.0","method":"dispatchAction","params":{params}}}"#);
                Some(Out { text, lane: Lane::Named("fifo".into()) })
            }
            Deed::Write(len) => {
                let text = self.rng.text(len);
                Some(self.ask(Ask::Other, "resourceWrite", &format!(r#"{root},"data":"{text}""#), books))
            }
            Deed::Read(len) => Some(self.ask(Ask::Other, "resourceRead", &format!(r#"{root},"size":{len}"#), books)),
            Deed::Ping => Some(self.ask(Ask::Other, "ping", &root, books)),
            Deed::Subscribe(channel) => {
                let is_asked = self.pending.values().any(|ask| *ask == Ask::Subscribe(channel.clone()));
                if !is_asked && !self.follower.follows(&channel) && !self.wanted.contains(&channel) {
                    self.wanted.push(channel);
                }
                None
            }
        }
    }

    fn ask(&mut self, ask: Ask, method: &str, params: &str, books: &mut Books) -> Out {
        self.ids += 1;
        self.pending.insert(self.ids, ask);
        books.asked("requests of clients");
        let text = format!(r#"{{"jsonrpc":"2.0","id":{},"method":"{method}","params":{{{params}}}}}"#, self.ids);
        // A ping waits for nothing, and everything else waits for a handshake.
        let is_free = matches!(method, "ping" | "initialize" | "reconnect");
        Out { text, lane: if is_free { Lane::Free } else { Lane::Named("fifo".into()) } }
    }

    /// What the client answers when the host asks for a resource.
    pub(super) fn answer(&mut self, request: &Value) -> Out {
        let (id, size) = (&request["id"], request["params"]["size"].as_u64().unwrap_or(0));
        let data = self.rng.text(size as usize);
        let text = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"data":"{data}"}}}}"#);
        // An answer changes nothing at the host: it may pass what does.
        Out { text, lane: Lane::Free }
    }

    fn channels(&self) -> String {
        self.follower.channels().map(|channel| format!(r#""{channel}""#)).collect::<Vec<_>>().join(",")
    }
}
