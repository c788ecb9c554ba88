//! Balancers in a world without a clock.

mod choice;
mod ejection;
mod hash;
mod slow_start;
mod updates;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Affinity, Balancer, BalancerSettings, Guard, Pick, RequestOutcome};
use crate::stable_hash::mix_hash;
use crate::upstream::{Upstream, UpstreamEndpoint};

fn address(number: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, (number >> 8) as u8, number as u8], 8080))
}

fn endpoints(numbers: impl IntoIterator<Item = u16>) -> Vec<UpstreamEndpoint> {
    numbers
        .into_iter()
        .map(|number| UpstreamEndpoint { address: address(number), is_local: false })
        .collect()
}

fn upstream(numbers: impl IntoIterator<Item = u16>) -> Upstream {
    Upstream { endpoints: endpoints(numbers), draining: Vec::new() }
}

/// A balancer with its own time and random numbers.
struct World {
    balancer: Balancer,
    now: Instant,
    random: u64,
}

impl World {
    fn new(numbers: impl IntoIterator<Item = u16>) -> Self {
        Self::with(BalancerSettings::default(), numbers)
    }

    fn with(settings: BalancerSettings, numbers: impl IntoIterator<Item = u16>) -> Self {
        let now = Instant::now();
        Self {
            balancer: Balancer::new(Arc::new(settings), &upstream(numbers), now),
            now,
            random: 0,
        }
    }

    fn update(&self, numbers: impl IntoIterator<Item = u16>) {
        self.balancer.update(&upstream(numbers), self.now);
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
    }

    fn pick(&mut self) -> Pick<'static> {
        self.random += 1;
        Pick {
            now: self.now,
            random: mix_hash(self.random),
            hash: None,
            affinity: None,
            tried: &[],
        }
    }

    fn choose(&mut self) -> Option<Guard> {
        let pick = self.pick();
        self.balancer.choose(&pick)
    }

    fn by_hash(&self, hash: u64) -> Option<SocketAddr> {
        let pick = Pick { now: self.now, random: 0, hash: Some(hash), affinity: None, tried: &[] };
        self.balancer.choose(&pick).map(|guard| guard.address())
    }

    fn by_affinity(&self, affinity: Affinity, tried: &[SocketAddr]) -> Option<SocketAddr> {
        let pick = Pick { now: self.now, random: 7, hash: None, affinity: Some(affinity), tried };
        self.balancer.choose(&pick).map(|guard| guard.address())
    }

    /// A request to this endpoint.
    fn request_to(&self, number: u16) -> Guard {
        let affinity = Affinity { token: self.token(number), keep_on_failure: true };
        let pick =
            Pick { now: self.now, random: 0, hash: None, affinity: Some(affinity), tried: &[] };
        let guard = self.balancer.choose(&pick).unwrap();
        assert_eq!(guard.address(), address(number));
        guard
    }

    fn token(&self, number: u16) -> crate::affinity::Token {
        BalancerSettings::default().affinity_keys.token(address(number))
    }

    /// Lets this many requests to the endpoint fail in a row.
    fn fail(&self, number: u16, times: u32) {
        for _ in 0..times {
            self.balancer.report(&self.request_to(number), RequestOutcome::Failure, self.now);
        }
    }

    fn succeed(&self, number: u16) {
        self.balancer.report(&self.request_to(number), RequestOutcome::Success, self.now);
    }

    /// Remaining time of ejection.
    fn ejected_for(&self, number: u16) -> Option<Duration> {
        let statuses = self.balancer.statuses(self.now);
        statuses.iter().find(|status| status.address == address(number)).unwrap().ejected_for
    }

    fn count_ejected(&self) -> usize {
        self.balancer
            .statuses(self.now)
            .iter()
            .filter(|status| status.ejected_for.is_some())
            .count()
    }

    /// How many of `count` requests, one after the other, each endpoint gets.
    fn spread(&mut self, count: usize) -> BTreeMap<SocketAddr, usize> {
        let mut spread = BTreeMap::new();
        for _ in 0..count {
            *spread.entry(self.choose().unwrap().address()).or_default() += 1;
        }
        spread
    }
}
