//! The endpoints at one moment.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::endpoint::{EndpointState, Ticks};
use super::settings::Status;
use crate::affinity::{AffinityTokenKey, Token};
use crate::upstream::{Upstream, UpstreamEndpoint};

#[derive(Default)]
pub(super) struct EndpointSet {
    /// For new requests, in the order of their addresses.
    pub endpoints: Box<[Arc<EndpointState>]>,
    /// Their identities in consistent hashing, side by side: each request by hash reads all of them.
    pub seeds: Box<[u64]>,
    draining: Box<[Arc<EndpointState>]>,
    /// The names of both kinds of endpoints in cookies, by each key, in order.
    by_token: Box<[(Token, Arc<EndpointState>)]>,
    /// The keys of `by_token`.
    pub keys: Arc<Vec<AffinityTokenKey>>,
}

impl EndpointSet {
    /// The next set. An endpoint that is new starts slowly if it joins one that stays: if there is none, it would
    /// only leave requests to others that start slowly too.
    pub fn replace(
        &self,
        upstream: &Upstream,
        keys: Arc<Vec<AffinityTokenKey>>,
        now: Ticks,
    ) -> Self {
        let addresses = |endpoints: &[UpstreamEndpoint]| -> BTreeSet<SocketAddr> {
            endpoints.iter().map(|endpoint| endpoint.address).collect()
        };
        let ready = addresses(&upstream.endpoints);
        let draining = &addresses(&upstream.draining) - &ready;

        let known: HashMap<_, _> =
            self.all().map(|endpoint| (endpoint.address, endpoint)).collect();
        let joins = self.endpoints.iter().any(|endpoint| ready.contains(&endpoint.address));
        let ready_from = joins.then_some(now);
        let keep = |address: SocketAddr| match known.get(&address) {
            Some(endpoint) => Arc::clone(endpoint),
            None => Arc::new(EndpointState::new(address, ready_from)),
        };
        let ready = ready.into_iter().map(keep).collect();
        Self::new(ready, draining.into_iter().map(keep).collect(), keys)
    }

    /// This set's endpoints under other keys.
    pub(crate) fn named_by(&self, keys: Arc<Vec<AffinityTokenKey>>) -> Self {
        Self::new(self.endpoints.clone(), self.draining.clone(), keys)
    }

    fn new(
        endpoints: Box<[Arc<EndpointState>]>,
        draining: Box<[Arc<EndpointState>]>,
        keys: Arc<Vec<AffinityTokenKey>>,
    ) -> Self {
        let seeds = endpoints.iter().map(|endpoint| endpoint.seed).collect();
        let mut set = Self { endpoints, seeds, draining, by_token: Box::default(), keys };
        let names = |endpoint: &Arc<EndpointState>| {
            let names = set.keys.iter().map(|key| key.token(endpoint.address));
            names.map(|name| (name, Arc::clone(endpoint))).collect::<Vec<_>>()
        };
        let mut by_token: Box<[_]> = set.all().flat_map(names).collect();
        by_token.sort_by_key(|(token, _)| *token);
        set.by_token = by_token;
        set
    }

    fn all(&self) -> impl Iterator<Item = &Arc<EndpointState>> {
        self.endpoints.iter().chain(&self.draining)
    }

    pub fn find(&self, token: Token) -> Option<&Arc<EndpointState>> {
        let position = self.by_token.binary_search_by_key(&token, |(name, _)| *name).ok()?;
        Some(&self.by_token[position].1)
    }

    /// Whether one more endpoint can be ejected, and this one is in use and not ejected.
    pub(crate) fn may_eject(&self, endpoint: &Arc<EndpointState>, now: Ticks) -> bool {
        let is_used = || self.endpoints.iter().any(|used| Arc::ptr_eq(used, endpoint));
        !endpoint.is_ejected(now)
            && (self.count_ejected(now) + 1) * 2 <= self.endpoints.len()
            && is_used()
    }

    fn count_ejected(&self, now: Ticks) -> usize {
        self.endpoints.iter().filter(|endpoint| endpoint.is_ejected(now)).count()
    }

    /// Ends ejections, those first that would end first, until at most half of the endpoints are ejected.
    pub(crate) fn bound_ejections(&self, now: Ticks) {
        let mut ejected: Vec<_> =
            self.endpoints.iter().filter(|endpoint| endpoint.is_ejected(now)).collect();
        ejected.sort_by_key(|endpoint| endpoint.ready_from());
        let excess = ejected.len().saturating_sub(self.endpoints.len() / 2);
        for endpoint in &ejected[..excess] {
            endpoint.end_ejection(now);
        }
    }

    pub fn statuses(&self, now: Ticks) -> Vec<Status> {
        let draining: HashSet<_> = self.draining.iter().map(|endpoint| endpoint.address).collect();
        let status = |endpoint: &Arc<EndpointState>| Status {
            address: endpoint.address,
            in_flight: endpoint.in_flight(),
            is_draining: draining.contains(&endpoint.address),
            ejected_for: endpoint
                .is_ejected(now)
                .then(|| Duration::from_micros((endpoint.ready_from() - now) as u64)),
        };
        self.all().map(status).collect()
    }
}
