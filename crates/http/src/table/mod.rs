//! The routing table: which route a request takes.
//!
//! Invariants:
//! - The most specific host that matches owns a request. A path that none of its rules matches is not looked for under
//!   less specific hosts.
//! - Of the rules of a host, the first of these wins: an equal path; the longest text of a prefix or expression,
//!   prefixes first; [`PathPattern::Default`].
//! - The time of a lookup depends neither on the number of hosts nor, but for its logarithm, on the number of exact
//!   paths and prefixes of the host. Expressions are tried in order, and limited in number.
//! - A copy of the table shares all hosts with it. Replacing a host copies one shard, not the table.

mod explain;
mod host_rules;
mod prefixes;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt::{self, Debug};
use std::hash::{BuildHasher, RandomState};
use std::iter;
use std::sync::Arc;

use crate::host::{self, HostPattern};
use crate::path::{self, PathPattern, Slashes};
use crate::route::Route;

pub use explain::{Explanation, Lost, MatchReason};
pub use host_rules::{HostRules, MOST_EXPRESSION_OCTETS, MOST_EXPRESSIONS, Shadowed, WhyShadowed};

#[derive(Clone)]
pub struct IngressTable {
    hasher: RandomState,
    shards: Box<[Arc<Shard>]>,
    any: Option<Arc<HostRules>>,
    slashes: Slashes,
}

/// The hosts whose names have the same hash, in its lowest bits.
#[derive(Clone)]
struct Shard {
    exact: HashMap<Arc<str>, Arc<HostRules>, RandomState>,
    /// By suffix.
    wildcard: HashMap<Arc<str>, Arc<HostRules>, RandomState>,
}

/// With 30,000 hosts, replacing one copies about as many shards as hosts of a shard.
const SHARDS: usize = 256;

/// The rule that a request takes.
#[derive(Clone, Copy, Debug)]
pub struct MatchedRule<'t> {
    pub host: &'t HostPattern,
    pub path: &'t PathPattern,
    pub route: &'t Arc<Route>,
}

impl Default for IngressTable {
    fn default() -> Self {
        Self::new(Slashes::default())
    }
}

impl Debug for IngressTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map()
            .entries(
                self.iter()
                    .map(|rule| ((rule.host.to_string(), rule.path.to_string()), rule.route)),
            )
            .finish()
    }
}

impl IngressTable {
    pub fn new(slashes: Slashes) -> Self {
        let hasher = RandomState::new();
        let shard = Shard {
            exact: HashMap::with_hasher(hasher.clone()),
            wildcard: HashMap::with_hasher(hasher.clone()),
        };
        let shard = Arc::new(shard);
        Self { hasher, shards: vec![shard; SHARDS].into(), any: None, slashes }
    }

    /// Replaces all rules of a host. Of rules with equal patterns, the first is served. Without rules, the host is
    /// removed. Returns the rules that are never served.
    pub fn set_host(
        &mut self,
        host: HostPattern,
        rules: Vec<(PathPattern, Arc<Route>)>,
    ) -> Vec<Shadowed> {
        let key = match &host {
            HostPattern::Exact(name) | HostPattern::Wildcard(name) => Some(name.clone()),
            HostPattern::Any => None,
        };
        let is_wildcard = matches!(host, HostPattern::Wildcard(_));
        let rules =
            (!rules.is_empty()).then(|| Arc::new(HostRules::new(host, rules, self.slashes)));
        let shadowed = rules.as_ref().map(|rules| rules.shadowed().to_vec()).unwrap_or_default();
        let Some(key) = key else {
            self.any = rules;
            return shadowed;
        };
        let number = self.shard_number(&key);
        let shard = Arc::make_mut(&mut self.shards[number]);
        let hosts = if is_wildcard { &mut shard.wildcard } else { &mut shard.exact };
        match rules {
            Some(rules) => hosts.insert(key, rules),
            None => hosts.remove(&key),
        };
        shadowed
    }

    /// The rule for a request. `host` and `path` are normalized; a request without host takes only rules for any.
    pub fn find(&self, host: Option<&str>, path: &str) -> Option<MatchedRule<'_>> {
        let rules = self.candidates(host).next()?;
        let comparable = path::comparable_path(path, self.slashes);
        rules.matching(&comparable).next()
    }

    /// The patterns that match a host, the most specific first: it owns the host's requests.
    fn candidates<'t, 'h>(
        &'t self,
        host: Option<&'h str>,
    ) -> impl Iterator<Item = &'t Arc<HostRules>> + use<'t, 'h> {
        let exact = move || self.shard(host?).exact.get(host?);
        let wildcard = move || {
            let suffix = host::parent_domain(host?)?;
            self.shard(suffix).wildcard.get(suffix)
        };
        // Each is looked up only if the one before is not enough.
        iter::once_with(exact)
            .chain(iter::once_with(wildcard))
            .chain(iter::once(self.any.as_ref()))
            .flatten()
    }

    /// All rules that can be served, hosts in no particular order, and the rules of each in the order of the patterns.
    pub fn iter(&self) -> impl Iterator<Item = MatchedRule<'_>> {
        let named = self
            .shards
            .iter()
            .flat_map(|shard| shard.exact.values().chain(shard.wildcard.values()));
        named.chain(&self.any).flat_map(|rules| rules.iter())
    }

    fn shard(&self, name: &str) -> &Shard {
        &self.shards[self.shard_number(name)]
    }

    fn shard_number(&self, name: &str) -> usize {
        // Another seed than in the maps: there, the lowest bits of all names of a shard would be equal.
        self.hasher.hash_one((SHARDS, name)) as usize % SHARDS
    }
}
