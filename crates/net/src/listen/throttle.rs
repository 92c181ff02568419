//! Slows down clients that guess tokens: each wrong token from an address delays the answer more.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use tokio::time::Instant;

/// How many wrong tokens from an address are answered at once.
const FREE_MISTAKES: u32 = 4;
/// The delay for the first wrong token after those. It doubles with each further one.
const FIRST_DELAY: Duration = Duration::from_millis(100);
/// The longest delay. Shorter than the timeout of a handshake, so that the answer still arrives.
const MAX_DELAY: Duration = Duration::from_secs(5);
/// After this long without a wrong token, an address is forgotten.
const FORGET_AFTER: Duration = Duration::from_secs(60);
/// How many addresses are remembered. When there are more, the one whose last wrong token is oldest is forgotten.
const MAX_ADDRESSES: usize = 1024;

/// The wrong tokens from each address.
#[derive(Debug, Default)]
pub(super) struct Throttle(HashMap<IpAddr, Mistakes>);

#[derive(Debug)]
struct Mistakes {
    count: u32,
    last: Instant,
}

impl Throttle {
    /// Notes a wrong token. Returns how long its answer has to be delayed. A right token is never delayed, even if others guess from the
    /// same address.
    pub(super) fn note_mistake(&mut self, from: IpAddr, now: Instant) -> Duration {
        self.0.retain(|_, mistakes| now.saturating_duration_since(mistakes.last) < FORGET_AFTER);
        let from = one_household(from);
        if self.0.len() >= MAX_ADDRESSES && !self.0.contains_key(&from) {
            let quietest = self.0.iter().min_by_key(|(_, mistakes)| mistakes.last).map(|(address, _)| *address);
            quietest.map(|address| self.0.remove(&address));
        }
        let mistakes = self.0.entry(from).or_insert(Mistakes { count: 0, last: now });
        mistakes.count = mistakes.count.saturating_add(1);
        mistakes.last = now;
        match mistakes.count.checked_sub(FREE_MISTAKES + 1) {
            None => Duration::ZERO,
            Some(beyond) => FIRST_DELAY.saturating_mul(2u32.saturating_pow(beyond)).min(MAX_DELAY),
        }
    }
}

/// The address, or for IPv6 its /64 network, which a single household usually has.
fn one_household(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into(),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn answers_come_later_and_later_up_to_a_bound_and_time_heals() {
        let (mut throttle, now) = (Throttle::default(), Instant::now());
        let from: IpAddr = "10.0.0.1".parse().unwrap();
        let mut delays: Vec<_> = (0..20).map(|_| throttle.note_mistake(from, now).as_millis()).collect();
        assert_eq!(delays[..8], [0, 0, 0, 0, 100, 200, 400, 800]);
        assert!(delays.is_sorted());
        assert_eq!(delays.pop(), Some(5000));
        assert_eq!(throttle.note_mistake("10.0.0.2".parse().unwrap(), now), Duration::ZERO);
        assert_eq!(throttle.note_mistake(from, now + FORGET_AFTER), Duration::ZERO);
    }

    #[tokio::test]
    async fn any_number_of_addresses_takes_bounded_memory() {
        let (mut throttle, now) = (Throttle::default(), Instant::now());
        for n in 0..5000u32 {
            throttle.note_mistake(IpAddr::from(n.to_be_bytes()), now + Duration::from_millis(n.into()));
        }
        assert_eq!(throttle.0.len(), MAX_ADDRESSES);
    }

    #[tokio::test]
    async fn addresses_of_one_ipv6_network_count_as_one() {
        let (mut throttle, now) = (Throttle::default(), Instant::now());
        let delays = (0..9u128).map(|n| throttle.note_mistake(Ipv6Addr::from_bits(0xfd << 120 | n).into(), now));
        assert_eq!(delays.last().unwrap().as_millis(), 1600);
        assert_eq!(throttle.0.len(), 1);
    }
}
