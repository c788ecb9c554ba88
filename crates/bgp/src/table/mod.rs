//! What this node announces: from the addresses of Services to the prefixes for each peer.
//!
//! Invariants:
//! - Pure. The result depends on the announcements that are set, not on the order in which they were.
//! - [`AdvertisementTable::set_announcements`] returns all prefixes whose announcement may have changed, and only those of the Service.
//! - A prefix is announced while one of its addresses is.

mod advertisement;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

pub use advertisement::{AdvertisedPeers, Advertisement, ExternalTrafficPolicy, ReadyEndpoints};

use crate::community::{Communities, TooManyCommunities};
use crate::route::RouteAttributes;
use crate::session::RouteChange;

/// An address of a Service that this node announces.
#[derive(Clone, Debug, PartialEq)]
pub struct AddressAnnouncement {
    pub address: IpAddr,
    /// Advertisements of the address's pool. Without any, it is not announced.
    pub advertisements: Vec<Arc<Advertisement>>,
    /// For routers that weight next hops by the link-bandwidth community.
    pub bandwidth: Option<f32>,
}

/// `Owner` names a Service. Several Services may share an address.
#[derive(Debug)]
pub struct AdvertisementTable<Owner> {
    announcements: BTreeMap<Owner, Vec<AddressAnnouncement>>,
    /// The owners of announcements of a prefix.
    prefixes: BTreeMap<IpNet, BTreeSet<Owner>>,
}

impl<Owner> Default for AdvertisementTable<Owner> {
    fn default() -> Self {
        Self { announcements: BTreeMap::new(), prefixes: BTreeMap::new() }
    }
}

/// Equal attributes are shared, so that one UPDATE can announce many prefixes.
type SharedAttributes = BTreeMap<(Option<u32>, Communities, Option<u32>), Arc<RouteAttributes>>;

impl<Owner: Clone + Ord> AdvertisementTable<Owner> {
    /// Replaces what a Service announces; nothing, if it has no ready endpoints.
    pub fn set_announcements(
        &mut self,
        owner: Owner,
        announcements: Vec<AddressAnnouncement>,
    ) -> BTreeSet<IpNet> {
        let before = self.announcements.get(&owner).map_or(&[][..], Vec::as_slice);
        if before == announcements {
            return BTreeSet::new();
        }
        let (before, after) = (prefixes_of(before), prefixes_of(&announcements));
        for prefix in before.difference(&after) {
            if let Some(owners) = self.prefixes.get_mut(prefix) {
                owners.remove(&owner);
                if owners.is_empty() {
                    self.prefixes.remove(prefix);
                }
            }
        }
        for prefix in &after {
            self.prefixes.entry(*prefix).or_default().insert(owner.clone());
        }
        match announcements.is_empty() {
            true => self.announcements.remove(&owner),
            false => self.announcements.insert(owner, announcements),
        };
        &before | &after
    }

    /// What each Service announces.
    pub fn announcements(&self) -> impl Iterator<Item = (&Owner, &[AddressAnnouncement])> {
        self.announcements.iter().map(|(owner, announced)| (owner, announced.as_slice()))
    }

    /// What a peer gets about these prefixes.
    pub fn list_changes(&self, peer: &str, prefixes: &BTreeSet<IpNet>) -> Vec<RouteChange> {
        let mut shared = SharedAttributes::new();
        let change = |prefix: &IpNet| (*prefix, self.merge_attributes(peer, prefix, &mut shared));
        prefixes.iter().map(change).collect()
    }

    /// All that a new peer gets.
    pub fn list_all_routes(&self, peer: &str) -> Vec<RouteChange> {
        let prefixes = self.prefixes.keys().copied().collect();
        let mut changes = self.list_changes(peer, &prefixes);
        changes.retain(|(_, attributes)| attributes.is_some());
        changes
    }

    /// Communities add up, and the highest local preference counts. The bandwidth is the sum of all addresses.
    fn merge_attributes(
        &self,
        peer: &str,
        prefix: &IpNet,
        shared: &mut SharedAttributes,
    ) -> Option<Arc<RouteAttributes>> {
        let mut sum = RouteAttributes::default();
        let mut bandwidths: BTreeMap<IpAddr, f32> = BTreeMap::new();
        let mut announced = false;
        for owner in self.prefixes.get(prefix)? {
            for announcement in self.announcements.get(owner).into_iter().flatten() {
                for advertisement in &announcement.advertisements {
                    if advertisement.prefix(announcement.address) != *prefix
                        || !advertisement.peers.include(peer)
                    {
                        continue;
                    }
                    announced = true;
                    sum.local_preference = sum.local_preference.max(advertisement.local_preference);
                    add_communities(&mut sum.communities, &advertisement.communities);
                    // Of Services that share the address, each counts the same endpoints, or the larger part.
                    if let Some(bandwidth) =
                        announcement.bandwidth.filter(|_| advertisement.link_bandwidth)
                    {
                        let sum = bandwidths.entry(announcement.address).or_default();
                        *sum = sum.max(bandwidth);
                    }
                }
            }
        }
        sum.bandwidth = (!bandwidths.is_empty()).then(|| bandwidths.values().sum());
        let bits = sum.bandwidth.map(f32::to_bits);
        let key = (sum.local_preference, sum.communities.clone(), bits);
        announced.then(|| shared.entry(key).or_insert_with(|| Arc::new(sum)).clone())
    }
}

fn prefixes_of(announcements: &[AddressAnnouncement]) -> BTreeSet<IpNet> {
    let prefixes = announcements.iter().flat_map(|announcement| {
        let advertisements = announcement.advertisements.iter();
        advertisements.map(|advertisement| advertisement.prefix(announcement.address))
    });
    prefixes.collect()
}

/// As many as fit: the lowest of what the advertisements of one prefix have together.
fn add_communities(sum: &mut Communities, more: &Communities) {
    let all = sum.standard() | more.standard();
    let large = sum.large() | more.large();
    *sum = Communities::default();
    let _: Result<(), TooManyCommunities> = all.into_iter().try_for_each(|each| sum.insert(each));
    let _: Result<(), TooManyCommunities> =
        large.into_iter().try_for_each(|each| sum.insert_large(each));
}
