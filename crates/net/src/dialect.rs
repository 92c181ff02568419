//! The wire forms, and the machine for each.

use std::task::Waker;
use std::time::Instant;

use breakbulk_proto::{Account, Counters, Event, Grant, Input, Limits, Machine, Transmit, ahp, cep22, plain, stdio};
use strum::{Display, EnumString, VariantNames};

use crate::private::{longest_within, sealed_len};

/// A wire form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Display, EnumString, VariantNames)]
#[strum(serialize_all = "lowercase")]
pub enum Dialect {
    /// Agent Host Protocol: `ahp/messageSegment` notifications.
    Ahp,
    /// ContextVM's CEP-22: oversized transfers in `notifications/progress`.
    Cep22,
    /// Chunked stdio, as SwiftAgentKit has it.
    Stdio,
    /// None: one frame is one message.
    Plain,
}

/// What a link reports about the frames that we send, and about their senders.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Feedback {
    /// Nothing.
    #[default]
    None,
    /// Whether each of our frames was [taken](crate::Arrival::Acked), and by the tags of frames what their senders
    /// [support](breakbulk_proto::Meta::supports_parts). As on Nostr.
    Full,
}

/// The settings of a machine.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Setup {
    /// The wire form.
    pub dialect: Dialect,
    /// Our role on this link. Towards a client we are the server.
    pub role: ahp::Role,
    /// What we accept.
    pub limits: Limits,
    /// What ends a frame on the link (plain).
    pub framing: plain::Framing,
    /// How much of a message that arrives is checked (plain).
    pub check: plain::Check,
    /// What earlier connections negotiated (`ahp`).
    pub negotiated: ahp::Negotiated,
    /// When ordered messages are delivered (`ahp`).
    pub delivery: ahp::Delivery,
    /// Whether chunking is hidden from the application even if it asks for it, because its own link takes no segments (`ahp`).
    pub hides_chunking: bool,
    /// Whether the longest frame that we accept is the cap of the address, and not a setting of its own. For log messages.
    pub is_capped: bool,
    /// How long a message that came in segments is charged to the machine's account (`ahp`).
    pub charge: ahp::Charge,
    /// What the link tells beside frames (`cep22`).
    pub feedback: Feedback,
    /// Whether the link is [private](crate::private), so that its frames are longer than what they carry.
    pub is_private: bool,
}

impl Setup {
    /// A setup without memory of earlier connections, with start-order delivery.
    #[must_use]
    pub fn new(dialect: Dialect, role: ahp::Role, limits: Limits) -> Self {
        Self {
            dialect,
            role,
            limits,
            framing: plain::Framing::default(),
            check: plain::Check::default(),
            negotiated: ahp::Negotiated::default(),
            delivery: ahp::Delivery::StartOrder,
            hides_chunking: false,
            is_capped: false,
            charge: ahp::Charge::default(),
            feedback: Feedback::None,
            is_private: false,
        }
    }

    /// The longest frame that is accepted. Where messages may come whole, that is the longest message; on a private link it is the longest
    /// whose sealed text is not longer than that, so that no more memory is needed.
    #[must_use]
    pub fn max_frame_bytes(&self) -> u64 {
        match self.dialect {
            Dialect::Ahp | Dialect::Cep22 => self.limits.max_frame_bytes,
            Dialect::Stdio | Dialect::Plain if self.is_private => longest_within(self.limits.max_message_bytes),
            Dialect::Stdio | Dialect::Plain => self.limits.max_message_bytes,
        }
    }

    /// The longest frame on the link: the same, sealed if the link is private.
    #[must_use]
    pub(crate) fn max_link_frame_bytes(&self) -> u64 {
        let longest = self.max_frame_bytes();
        if self.is_private { sealed_len(longest) } else { longest }
    }

    /// The name of the setting that limits the frames we accept, for logs.
    #[must_use]
    pub fn max_frame_setting(&self) -> &'static str {
        match self.dialect {
            Dialect::Stdio | Dialect::Plain => "max_message",
            Dialect::Ahp | Dialect::Cep22 if self.is_capped => "the cap of its address",
            // No frame may be longer than a message.
            Dialect::Ahp | Dialect::Cep22 if self.limits.max_frame_bytes >= self.limits.max_message_bytes => {
                "max_message"
            }
            Dialect::Ahp | Dialect::Cep22 => "max_frame",
        }
    }

    /// The machine. What it holds is charged to `account`.
    ///
    /// # Errors
    /// The system gave no random bytes.
    pub fn machine(&self, account: Account) -> Result<AnyMachine, getrandom::Error> {
        let mut seed = [0; 32];
        getrandom::fill(&mut seed)?;
        Ok(match self.dialect {
            Dialect::Ahp => {
                let mut config = ahp::Config::new(self.role, self.limits, seed);
                config.negotiated = self.negotiated.clone();
                config.delivery = self.delivery;
                config.hides_chunking = self.hides_chunking;
                config.charge = self.charge;
                AnyMachine::Ahp(Box::new(ahp::Connection::new(config, account)))
            }
            Dialect::Cep22 => {
                let config = cep22::Config {
                    limits: self.limits,
                    // On links without tags, choosing this dialect means that the peer takes transfers.
                    known_support: self.feedback == Feedback::None,
                    acks: self.feedback == Feedback::Full,
                    // The application may know nothing of tokens. A host sends requests, too.
                    inject_tokens: true,
                    seed: seed.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes)),
                    ..cep22::Config::default()
                };
                AnyMachine::Cep22(Box::new(cep22::Connection::new(config, account)))
            }
            Dialect::Stdio => {
                AnyMachine::Stdio(Box::new(stdio::Connection::new(stdio::Config::new(self.limits, seed), account)))
            }
            Dialect::Plain => {
                let Self { limits, framing, check, .. } = *self;
                let config = plain::Config { limits, framing, check };
                AnyMachine::Plain(Box::new(plain::Connection::new(config)))
            }
        })
    }
}

/// A machine of any dialect.
#[derive(Debug)]
pub enum AnyMachine {
    /// [`Dialect::Ahp`].
    Ahp(Box<ahp::Connection>),
    /// [`Dialect::Cep22`].
    Cep22(Box<cep22::Connection>),
    /// [`Dialect::Stdio`].
    Stdio(Box<stdio::Connection>),
    /// [`Dialect::Plain`].
    Plain(Box<plain::Connection>),
}

impl AnyMachine {
    /// Whether a message that does not fit one frame can be sent in several, as far as is known of the peer.
    pub(crate) fn splits(&self) -> bool {
        match self {
            Self::Ahp(machine) => machine.peer().is_some(),
            Self::Cep22(_) | Self::Stdio(_) => true,
            Self::Plain(_) => false,
        }
    }

    /// Takes over the memory of the message that was polled last, if the machine can hand it over.
    pub(crate) fn take_grant(&mut self) -> Option<Grant> {
        match self {
            Self::Ahp(machine) => machine.take_grant(),
            Self::Cep22(_) | Self::Stdio(_) | Self::Plain(_) => None,
        }
    }

    fn machine(&self) -> &dyn Machine {
        match self {
            Self::Ahp(machine) => &**machine,
            Self::Cep22(machine) => &**machine,
            Self::Stdio(machine) => &**machine,
            Self::Plain(machine) => &**machine,
        }
    }

    fn machine_mut(&mut self) -> &mut dyn Machine {
        match self {
            Self::Ahp(machine) => &mut **machine,
            Self::Cep22(machine) => &mut **machine,
            Self::Stdio(machine) => &mut **machine,
            Self::Plain(machine) => &mut **machine,
        }
    }
}

impl Machine for AnyMachine {
    fn handle(&mut self, input: Input, now: Instant) {
        self.machine_mut().handle(input, now);
    }

    fn poll_transmit(&mut self, now: Instant) -> Option<Transmit> {
        self.machine_mut().poll_transmit(now)
    }

    fn poll_event(&mut self) -> Option<Event> {
        self.machine_mut().poll_event()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.machine().poll_timeout()
    }

    fn wake_with(&mut self, waker: &Waker) {
        self.machine_mut().wake_with(waker);
    }

    fn wants_frames(&self) -> bool {
        self.machine().wants_frames()
    }

    fn counters(&self) -> &Counters {
        self.machine().counters()
    }
}
