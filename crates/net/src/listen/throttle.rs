//! Slows down whoever guesses: each wrong token from one address makes the next answer to it come later.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use tokio::time::Instant;

/// Mistakes that cost nothing.
const FREE_MISTAKES: u32 = 4;
/// What the first mistake beyond those costs; each further one costs twice as much.
const FIRST_DELAY: Duration = Duration::from_millis(100);
/// The most that one costs. Less than a handshake may take, so that the answer still comes.
const MAX_DELAY: Duration = Duration::from_secs(5);
/// After so long without a mistake, all is forgotten.
const FORGET_AFTER: Duration = Duration::from_secs(60);
/// Addresses that are remembered. Past it, the one that has been quiet the longest is forgotten.
const MAX_ADDRESSES: usize = 1024;

/// Who made how many mistakes, and when the last.
#[derive(Debug, Default)]
pub(super) struct Throttle(HashMap<IpAddr, Mistakes>);

#[derive(Debug)]
struct Mistakes {
    count: u32,
    last: Instant,
}

impl Throttle {
    /// Notes a wrong token; says how long its answer must wait. A right token never waits, whoever else guesses from the
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

/// One address; of IPv6, the network that a single household usually has.
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
