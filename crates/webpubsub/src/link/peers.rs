//! The peers of a hub connection: what comes from each, what goes to each, and when one is given up.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::task::Context;
use std::time::Duration;

use breakbulk_proto::Message;
use bytes::Bytes;
use tokio::time::Instant;

use super::credit::{Credit, FLOOR, Overdrawn, PeerId, cost};
use super::escape::{escaped_parts, unescaped};
use super::hub_connection::{About, Act, HubConnection, Outgoing};
use super::peer::{Bell, Peer, PeerEnd, Wish};
use super::presence::{Control, Payload, frame_prefix};
use super::{PEER_TIMEOUT, SIGN_OF_LIFE};
use crate::wire;

/// How often [`Peers::tick`] has to be called.
pub(super) const TICK: Duration = Duration::from_secs(5);
/// The close code of a link whose peer is gone without one.
pub(super) const ABNORMAL: u16 = 1006;

/// All peers of a hub connection.
#[derive(Default)]
pub(super) struct Peers {
    pub(super) bell: Arc<Bell>,
    entries: BTreeMap<PeerId, Entry>,
    /// Peers that were told that their link ends, until the service has acknowledged that.
    closing: BTreeMap<PeerId, (Arc<Peer>, PeerEnd)>,
    credit: Credit,
    /// Peers that may have a frame to send.
    ready: VecDeque<PeerId>,
    next_id: PeerId,
    /// The last close of a peer, with its code and text.
    pub(super) last_close: Option<(u16, String)>,
    /// Peers that have ended, for whom the owner has something to do.
    ended: Vec<PeerId>,
}

/// What is known about a peer.
struct Entry {
    peer: Arc<Peer>,
    /// The quoted name of the group in which it listens.
    out_group: Arc<str>,
    /// The number of the next frame to it, and of the next one from it.
    next_out: u64,
    next_in: u64,
    /// What it has granted us, and what we have used of that.
    granted: u64,
    used: u64,
    /// What we have used at the last tick.
    used_before: u64,
    /// What we have asked for.
    asked: u64,
    heard_at: Instant,
    said_at: Instant,
    /// Whether we show that we are there, and not only answer.
    is_alive_shown: bool,
}

impl Peers {
    /// Adds a peer that listens in this group. Returns what it is granted.
    pub(super) fn add(&mut self, out_group: &str, granted: u64, is_alive_shown: bool) -> (Arc<Peer>, u64) {
        let id = self.next_id;
        self.next_id += 1;
        let peer = Arc::new(Peer::new(id, Arc::clone(&self.bell)));
        let now = Instant::now();
        let entry = Entry {
            peer: Arc::clone(&peer),
            out_group: wire::quoted(out_group).into(),
            next_out: 0,
            next_in: 0,
            granted,
            used: 0,
            used_before: 0,
            asked: 0,
            heard_at: now,
            said_at: now,
            is_alive_shown,
        };
        self.entries.insert(id, entry);
        (peer, self.credit.add(id))
    }

    /// What the peer has granted, when that is known only later.
    pub(super) fn set_granted(&mut self, id: PeerId, granted: u64) {
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.granted = granted;
            self.bell.ring(id);
        }
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// All peers.
    pub(super) fn ids(&self) -> Vec<PeerId> {
        self.entries.keys().copied().collect()
    }

    /// Peers that have ended since the last call.
    pub(super) fn take_ended(&mut self) -> Vec<PeerId> {
        std::mem::take(&mut self.ended)
    }

    /// Ends a peer, and tells it why if there is still somebody to tell.
    pub(super) fn end(&mut self, hub: &mut HubConnection, id: PeerId, end: PeerEnd) {
        let said = match &end {
            PeerEnd::Closed { .. } | PeerEnd::Lost => None,
            PeerEnd::Silent(_) => Some("the peer was silent for too long".to_owned()),
            PeerEnd::Broken(why) => Some(why.clone()),
        };
        if let Some(text) = said {
            self.say(hub, id, &Control::Close { code: ABNORMAL, text });
        }
        self.forget(id, end);
    }

    fn forget(&mut self, id: PeerId, end: PeerEnd) {
        if let Some(entry) = self.entries.remove(&id) {
            entry.peer.end(end);
            self.credit.remove(id);
            self.ended.push(id);
        }
    }

    /// The service has taken the close of this peer's link.
    pub(super) fn note_closed(&mut self, id: PeerId) {
        if let Some((peer, end)) = self.closing.remove(&id) {
            peer.end(end);
        }
    }

    /// Ends all peers, since the connection to the hub is gone.
    pub(super) fn lose_all(&mut self) {
        for (peer, _) in std::mem::take(&mut self.closing).into_values() {
            peer.end(PeerEnd::Lost);
        }
        for id in self.ids() {
            self.forget(id, PeerEnd::Lost);
        }
    }

    /// Says something to a peer.
    pub(super) fn say(&mut self, hub: &mut HubConnection, id: PeerId, control: &Control) {
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.said_at = Instant::now();
            hub.request(About::Peer(id), Act::Send(Arc::clone(&entry.out_group), inside(control)));
        }
    }

    /// Reads what came from a peer. Returns what the owner has to do about it.
    pub(super) fn receive(&mut self, hub: &mut HubConnection, id: PeerId, data: &Bytes) -> Option<Control> {
        let entry = self.entries.get_mut(&id)?;
        entry.heard_at = Instant::now();
        let inside = data.get(1..data.len().saturating_sub(1)).unwrap_or_default();
        match Payload::parse(inside)? {
            Payload::Frame { number, .. } if number < entry.next_in => None,
            Payload::Frame { number, .. } if number > entry.next_in => {
                let missing = number - entry.next_in;
                self.end(hub, id, PeerEnd::Broken(format!("{missing} frames were lost on the way")));
                None
            }
            Payload::Frame { frame, .. } => {
                entry.next_in += 1;
                let Some(frame) = unescaped(data, frame) else {
                    self.end(hub, id, PeerEnd::Broken("a frame is not a text".to_owned()));
                    return None;
                };
                let bytes = u64::try_from(frame.len()).unwrap_or(u64::MAX);
                if let Err(Overdrawn) = self.credit.receive(id, bytes) {
                    self.end(hub, id, PeerEnd::Broken("the peer sent more than it was granted".to_owned()));
                    return None;
                }
                entry.peer.push_in(frame);
                None
            }
            Payload::Control(Control::Grant { bytes }) => {
                entry.granted = entry.granted.max(bytes);
                self.bell.ring(id);
                None
            }
            Payload::Control(Control::Need { bytes }) => {
                self.credit.ask(id, bytes);
                None
            }
            Payload::Control(Control::GiveBack { bytes }) => {
                self.credit.give_back(id, bytes);
                None
            }
            Payload::Control(Control::Ping) => {
                self.say(hub, id, &Control::Pong);
                None
            }
            Payload::Control(Control::Pong) => None,
            Payload::Control(Control::Close { code, text }) => {
                self.last_close = Some((code, text.clone()));
                let end = if code == ABNORMAL { PeerEnd::Lost } else { PeerEnd::Closed { code, text } };
                self.end(hub, id, end);
                None
            }
            Payload::Control(control @ (Control::Hello { .. } | Control::Welcome { .. })) => Some(control),
        }
    }

    /// Does what links have rung for, and grants what can be granted.
    pub(super) fn work(&mut self, hub: &mut HubConnection, cx: &Context<'_>) {
        for id in self.bell.take(cx) {
            let Some(entry) = self.entries.get(&id) else { continue };
            self.credit.take_cost(id, entry.peer.taken());
            if !self.ready.contains(&id) {
                self.ready.push_back(id);
            }
        }
        self.ready.retain(|id| self.entries.contains_key(id));
        for id in self.ready.iter().copied().collect::<Vec<_>>() {
            self.attend(hub, id);
        }
        for (id, bytes) in self.credit.poll() {
            self.say(hub, id, &Control::Grant { bytes });
        }
    }

    /// Asks for credit, or closes the link, if that is what comes next for a peer.
    fn attend(&mut self, hub: &mut HubConnection, id: PeerId) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        if let Some(len) = entry.peer.next_out() {
            let needed = entry.used.saturating_add(cost(u64::try_from(len).unwrap_or(u64::MAX)));
            if needed > entry.granted && entry.asked != needed {
                entry.asked = needed;
                self.say(hub, id, &Control::Need { bytes: needed });
            }
        }
        let Some(entry) = self.entries.get(&id) else { return };
        let wish = entry.peer.lock().wish.clone();
        match wish {
            Wish::Open => {}
            Wish::Dropped => {
                self.say(hub, id, &Control::Close { code: ABNORMAL, text: String::new() });
                self.forget(id, PeerEnd::Lost);
            }
            Wish::Close { code, text } => {
                if entry.peer.next_out().is_none()
                    && let Some(entry) = self.entries.remove(&id)
                {
                    let said = inside(&Control::Close { code, text });
                    hub.request(About::Closing(id), Act::Send(entry.out_group, said));
                    self.closing.insert(id, (entry.peer, PeerEnd::Closed { code, text: String::new() }));
                    self.credit.remove(id);
                    self.ended.push(id);
                }
            }
        }
    }

    /// The next frame for any peer, each in its turn.
    pub(super) fn next_frame(&mut self) -> Option<Outgoing> {
        for _ in 0..self.ready.len() {
            let id = self.ready.pop_front()?;
            let Some(entry) = self.entries.get_mut(&id) else { continue };
            let Some(len) = entry.peer.next_out() else { continue };
            let needed = entry.used.saturating_add(cost(u64::try_from(len).unwrap_or(u64::MAX)));
            self.ready.push_back(id);
            if needed > entry.granted {
                continue;
            }
            let Some(frame) = entry.peer.pop_out() else { continue };
            entry.used = needed;
            entry.said_at = Instant::now();
            let number = entry.next_out;
            entry.next_out += 1;
            return Some(Outgoing {
                about: About::Peer(id),
                act: Act::Send(Arc::clone(&entry.out_group), numbered(number, &frame)),
            });
        }
        None
    }

    /// Shows peers that we are there, gives back what we do not use, and gives up who is silent.
    pub(super) fn tick(&mut self, hub: &mut HubConnection) {
        let now = Instant::now();
        for id in self.credit.tick() {
            let why = "the peer keeps credit that it does not use, and others wait".to_owned();
            self.end(hub, id, PeerEnd::Broken(why));
        }
        for id in self.ids() {
            let Some(entry) = self.entries.get_mut(&id) else { continue };
            if now.duration_since(entry.heard_at) >= PEER_TIMEOUT {
                self.end(hub, id, PeerEnd::Silent(PEER_TIMEOUT));
                continue;
            }
            let is_idle = entry.used == entry.used_before && entry.peer.next_out().is_none();
            entry.used_before = entry.used;
            let kept = entry.used.saturating_add(FLOOR);
            if is_idle && entry.granted > kept {
                entry.granted = kept;
                self.say(hub, id, &Control::GiveBack { bytes: kept });
                continue;
            }
            if entry.is_alive_shown && now.duration_since(entry.said_at) >= SIGN_OF_LIFE {
                self.say(hub, id, &Control::Ping);
            }
        }
    }

    /// The connection was recovered: nobody could be heard meanwhile.
    pub(super) fn forgive_silence(&mut self) {
        let now = Instant::now();
        self.entries.values_mut().for_each(|entry| entry.heard_at = now);
    }
}

/// What is said, as the inside of a JSON string.
pub(super) fn inside(control: &Control) -> Vec<Bytes> {
    escaped_parts(&Message::from(control.text()))
}

/// A frame with its number, likewise.
fn numbered(number: u64, frame: &Message) -> Vec<Bytes> {
    let mut parts = escaped_parts(frame);
    parts.insert(0, frame_prefix(number));
    parts
}
