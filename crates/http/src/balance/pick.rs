//! The choice for one request. It does not allocate, and looks at few endpoints.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::endpoint::{EndpointState, Ticks};
use super::set::EndpointSet;
use crate::affinity::Token;
use crate::stable_hash::mix_hash;

/// What decides about the endpoint of a request.
#[derive(Clone, Copy, Debug)]
pub struct Pick<'a> {
    pub now: Instant,
    /// A random number, all bits of it.
    pub random: u64,
    /// Of [`crate::policy::HashKey::hash`]: the key of a request that is balanced by hash.
    pub hash: Option<u64>,
    pub affinity: Option<Affinity>,
    /// Endpoints that failed to serve the request.
    pub tried: &'a [SocketAddr],
}

/// The endpoint that the request's cookie names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Affinity {
    pub token: Token,
    /// Whether the client returns to it even while it is ejected.
    pub keep_on_failure: bool,
}

/// Random endpoints that are looked at before all are searched. At most half of the endpoints are ejected, so eight
/// of them contain none that is usable in one of 256 cases.
const DRAWS: usize = 8;

impl Pick<'_> {
    pub(super) fn find<'s>(
        &self,
        set: &'s EndpointSet,
        now: Ticks,
        slow_start: Duration,
    ) -> Option<&'s Arc<EndpointState>> {
        if let Some(endpoint) = self.by_affinity(set, now) {
            return Some(endpoint);
        }
        let usable = match self.hash {
            Some(hash) => self.by_hash(set, hash, now),
            None => self.least_of_two(set, now, slow_start),
        };
        // An ejected endpoint may serve the request. That is better than nothing.
        usable.or_else(|| {
            let start = Random(self.random).draw(set.endpoints.len()).position;
            self.walk(set, start, |_| true).map(|(_, endpoint)| endpoint)
        })
    }

    fn by_affinity<'s>(&self, set: &'s EndpointSet, now: Ticks) -> Option<&'s Arc<EndpointState>> {
        let affinity = self.affinity?;
        let endpoint = set.find(affinity.token)?;
        let is_usable = affinity.keep_on_failure || !endpoint.is_ejected(now);
        (is_usable && !self.was_tried(endpoint)).then_some(endpoint)
    }

    /// Rendezvous hashing: the endpoint with the highest score for the key. An endpoint that is added takes keys from
    /// all others alike, and one that is removed or unusable leaves its keys to all others alike; no other key moves.
    fn by_hash<'s>(
        &self,
        set: &'s EndpointSet,
        hash: u64,
        now: Ticks,
    ) -> Option<&'s Arc<EndpointState>> {
        let score = |position: &usize| mix_hash(set.seeds[*position] ^ hash);
        let best = &set.endpoints[(0..set.seeds.len()).max_by_key(score)?];
        if self.is_usable(best, now) {
            return Some(best);
        }
        let usable =
            (0..set.seeds.len()).filter(|&position| self.is_usable(&set.endpoints[position], now));
        usable.max_by_key(score).map(|position| &set.endpoints[position])
    }

    fn least_of_two<'s>(
        &self,
        set: &'s EndpointSet,
        now: Ticks,
        slow_start: Duration,
    ) -> Option<&'s Arc<EndpointState>> {
        let mut random = Random(self.random);
        let (position, first) = self.draw_first(set, &mut random, now, slow_start)?;
        Some(match self.draw_second(set, &mut random, position, now, slow_start) {
            Some(second) if second.in_flight() < first.in_flight() => second,
            _ => first,
        })
    }

    /// A random usable endpoint. One that starts slowly is taken with the probability of its share.
    fn draw_first<'s>(
        &self,
        set: &'s EndpointSet,
        random: &mut Random,
        now: Ticks,
        slow_start: Duration,
    ) -> Option<(usize, &'s Arc<EndpointState>)> {
        if set.endpoints.is_empty() {
            return None;
        }
        let mut start = 0;
        for _ in 0..DRAWS {
            let draw = random.draw(set.endpoints.len());
            let endpoint = &set.endpoints[draw.position];
            if u64::from(draw.bits) < endpoint.share(now, slow_start) && !self.was_tried(endpoint) {
                return Some((draw.position, endpoint));
            }
            start = draw.position;
        }
        self.walk(set, start, |endpoint| !endpoint.is_ejected(now))
    }

    /// Another one. `None`: there is none, or it starts slowly and gets no request this time, even if it has the least.
    fn draw_second<'s>(
        &self,
        set: &'s EndpointSet,
        random: &mut Random,
        first: usize,
        now: Ticks,
        slow_start: Duration,
    ) -> Option<&'s Arc<EndpointState>> {
        let others = set.endpoints.len() - 1;
        if others == 0 {
            return None;
        }
        for _ in 0..DRAWS {
            let draw = random.draw(others);
            let endpoint = &set.endpoints[draw.position + usize::from(draw.position >= first)];
            let share = endpoint.share(now, slow_start);
            if share > 0 && !self.was_tried(endpoint) {
                return (u64::from(draw.bits) < share).then_some(endpoint);
            }
        }
        None
    }

    /// The first endpoint from `start` on that was not tried and is `allowed`.
    fn walk<'s>(
        &self,
        set: &'s EndpointSet,
        start: usize,
        allowed: impl Fn(&EndpointState) -> bool,
    ) -> Option<(usize, &'s Arc<EndpointState>)> {
        let positions = (start..set.endpoints.len()).chain(0..start);
        let mut endpoints = positions.map(|position| (position, &set.endpoints[position]));
        endpoints.find(|(_, endpoint)| !self.was_tried(endpoint) && allowed(endpoint))
    }

    fn is_usable(&self, endpoint: &Arc<EndpointState>, now: Ticks) -> bool {
        !endpoint.is_ejected(now) && !self.was_tried(endpoint)
    }

    fn was_tried(&self, endpoint: &Arc<EndpointState>) -> bool {
        self.tried.contains(&endpoint.address)
    }
}

/// Random numbers of one choice, made from one.
struct Random(u64);

struct Draw {
    position: usize,
    bits: u32,
}

impl Random {
    /// A position below `count`, which is less than 2^32, and independent bits.
    fn draw(&mut self, count: usize) -> Draw {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let value = mix_hash(self.0);
        Draw { position: (((value >> 32) * count as u64) >> 32) as usize, bits: value as u32 }
    }
}
