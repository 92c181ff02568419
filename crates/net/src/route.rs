//! An address together with the settings of the machine for it.

use breakbulk_proto::ahp::Role;
use breakbulk_proto::plain::Framing;
use breakbulk_proto::{BudgetConfig, Limits, LimitsConfig, LimitsError};

use crate::address::{Address, Transport};
use crate::dialect::{Dialect, Feedback, Setup};
use crate::private::longest_within;

/// An address, and the settings of the machine for it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Route {
    /// The address.
    pub address: Address,
    /// The settings of its machines.
    pub setup: Setup,
}

impl Route {
    /// Proves that `limits` hold on the transport of `address`. The peer is not told that it may send frames which are too long for that transport.
    ///
    /// # Errors
    /// The cap is out of bounds, or over the longest message.
    pub fn prove(address: Address, role: Role, limits: Limits, budget: &BudgetConfig) -> Result<Self, LimitsError> {
        let dialect = address.effective_dialect();
        let feedback = match &address.transport {
            Transport::External { scheme, .. } => scheme.feedback,
            _ => Feedback::None,
        };
        let mut limits = limits;
        if let Some(cap) = address.effective_cap() {
            let cap = if address.private.is_some() { longest_within(cap) } else { cap };
            let max_frame_bytes = cap.min(limits.max_message_bytes);
            let capped = Limits::prove(LimitsConfig { max_frame_bytes, ..*limits }, budget)?;
            // In other dialects whole messages are accepted, whatever the cap for frames that we send. So they are on links whose peers
            // choose the length of their frames by what the relays take.
            let is_told = dialect == Dialect::Ahp || dialect == Dialect::Cep22 && feedback == Feedback::None;
            limits = if is_told { capped } else { limits };
        }
        let mut setup = Setup::new(dialect, role, limits);
        setup.feedback = feedback;
        setup.is_private = address.private.is_some();
        setup.is_capped = address.effective_cap().is_some_and(|cap| cap <= limits.max_message_bytes);
        if !address.transport.carries_frames() {
            setup.framing = Framing::Lines;
        }
        Ok(Self { address, setup })
    }

    /// The longest frame that we accept there.
    #[must_use]
    pub fn max_frame_bytes(&self) -> u64 {
        self.setup.max_frame_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(address: &str) -> Result<Route, LimitsError> {
        Route::prove(address.parse().unwrap(), Role::Client, Limits::default(), &BudgetConfig::default())
    }

    #[test]
    fn a_cap_is_also_what_we_ask_of_the_peer() {
        let capped = route("ws://h/?cap=900000").unwrap();
        assert_eq!((capped.setup.dialect, capped.max_frame_bytes()), (Dialect::Ahp, 900_000));
        assert_eq!(capped.setup.max_frame_setting(), "the cap of its address");
        assert_eq!(route("ws://h/?dialect=ahp").unwrap().setup.max_frame_setting(), "max_frame");
        assert_eq!(route("ws://h/?cap=1GiB").unwrap().setup.max_frame_setting(), "max_message");
        assert_eq!(route("ws://h/?dialect=plain&cap=900000").unwrap().setup.max_frame_setting(), "max_message");
        let plain = route("ws://h/").unwrap();
        assert_eq!((plain.setup.dialect, plain.max_frame_bytes()), (Dialect::Plain, 32 << 20));
        assert_eq!(plain.setup.framing, Framing::Frames);
        assert_eq!(route("stdio:").unwrap().setup.framing, Framing::Lines);
        assert_eq!(route("stdio:?dialect=stdio&cap=9000").unwrap().max_frame_bytes(), 32 << 20);
    }

    #[test]
    fn a_cap_is_one_of_sealed_frames_where_links_are_private() {
        let private = route("ws://h/?cap=900000&private=host.key").unwrap();
        assert_eq!(private.max_frame_bytes(), longest_within(900_000));
        assert!(private.setup.max_link_frame_bytes() <= 900_000);
        let plain = route("ws://h/?private=host.key").unwrap();
        assert_eq!(plain.max_frame_bytes(), longest_within(32 << 20));
        assert!(plain.setup.max_link_frame_bytes() <= 32 << 20);
        assert_eq!(route("ws://h/?dialect=ahp&private=k").unwrap().max_frame_bytes(), 4 << 20);
    }

    #[test]
    fn a_cap_that_nothing_fits_is_refused_in_every_dialect() {
        for address in
            ["ws://h/?cap=100", "ws://h/?cap=100&dialect=plain", "stdio:?cap=5", "exec:?dialect=stdio&cap=9 x"]
        {
            assert_eq!(route(address).unwrap_err().key, "max_frame_bytes", "{address}");
        }
    }
}
