//! Failed attempts by source address: who fails too often waits.
//!
//! Invariants: what is held is bounded however many addresses there are; an address that stopped failing is forgotten after
//! one period; who succeeds is never asked.
//! Read first: `an_address_that_fails_too_often_waits_for_its_period_to_end`.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Mutex, PoisonError},
};

/// Failures remembered of each address.
#[derive(Debug)]
pub struct Attempts {
    /// Failures allowed in one period.
    max: u32,
    known: Mutex<HashMap<IpAddr, Failures>>,
}

#[derive(Clone, Copy, Debug)]
struct Failures {
    /// Seconds since 1970.
    since: u64,
    count: u32,
}

impl Attempts {
    /// None so far; `max` are allowed in each period of [`PERIOD`] seconds.
    pub fn new(max: u32) -> Self {
        Self { max, known: Mutex::default() }
    }

    /// Counts a failure at `now`. When there were too many, returns how many seconds are left of the period.
    pub fn fail(&self, source: IpAddr, now: u64) -> Option<u64> {
        let source = network_of(source);
        // A count is sound whatever happened to who held it.
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if !known.contains_key(&source) && known.len() >= SOURCES_MAX {
            known.retain(|_, failures| now < failures.since.saturating_add(PERIOD));
            // Still full: somebody fails from more addresses than we count. Begin anew rather than grow.
            if known.len() >= SOURCES_MAX {
                known.clear();
            }
        }
        let failures = known.entry(source).or_insert(Failures { since: now, count: 0 });
        let left = failures.since.saturating_add(PERIOD).saturating_sub(now);
        // A clock that was put back begins a new period as well.
        if left == 0 || left > PERIOD {
            *failures = Failures { since: now, count: 0 };
        }
        failures.count = failures.count.saturating_add(1);
        (failures.count > self.max).then_some(left.clamp(1, PERIOD))
    }
}

/// One machine of version 6 has a network of 64 bits to itself.
fn network_of(source: IpAddr) -> IpAddr {
    match source.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            IpAddr::from([a, b, c, d, 0, 0, 0, 0])
        }
        v4 @ IpAddr::V4(_) => v4,
    }
}

/// Seconds in which failures are counted together.
pub const PERIOD: u64 = 60;
/// Addresses that are remembered: about 2 MB.
const SOURCES_MAX: usize = 32_768;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_fails_too_often_waits_for_its_period_to_end() {
        let attempts = Attempts::new(3);
        let (one, other) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        assert!((0..3).all(|_| attempts.fail(one, 1000).is_none()));
        assert_eq!(attempts.fail(one, 1010), Some(50));
        assert_eq!(attempts.fail(other, 1010), None);
        assert_eq!(attempts.fail(one, 1059), Some(1));
        assert!((0..3).all(|_| attempts.fail(one, 1060).is_none()));
        assert!(attempts.fail(one, 1060).is_some());
        assert_eq!(attempts.fail(one, 10), None, "the clock was put back");
    }

    #[test]
    fn addresses_of_one_network_count_together() {
        let attempts = Attempts::new(1);
        let host = |last| IpAddr::from([0x2001, 0xdb8, 0, 1, 0, 0, 0, last]);
        assert_eq!(attempts.fail(host(1), 0), None);
        assert!(attempts.fail(host(2), 0).is_some());
        let mapped: IpAddr = "::ffff:10.0.0.1".parse().unwrap();
        assert_eq!(attempts.fail(mapped, 0), None);
        assert!(attempts.fail(IpAddr::from([10, 0, 0, 1]), 0).is_some());
    }

    #[test]
    fn memory_is_bounded_however_many_addresses_fail() {
        let attempts = Attempts::new(1);
        for number in 0..(SOURCES_MAX as u32 + 100) {
            attempts.fail(IpAddr::from(number.to_be_bytes()), 5);
        }
        assert!(attempts.known.lock().unwrap().len() <= SOURCES_MAX);
    }
}
