//! How MetalLB's objects advertise the addresses of its pools to BGP peers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use lb_bgp::Communities;
use lb_bgp::table::{AdvertisedPeers, Advertisement};

use super::advertisement::{Advertised, read_communities};
use super::pool::{IpamPool, PoolName};
use super::problems::Problems;
use super::selector::Selector;
use crate::kinds::BGPAdvertisement;
use crate::model::ObjectRef;

/// A BGPAdvertisement of MetalLB.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MetallbAdvertisement {
    namespace: String,
    pools: BTreeSet<String>,
    pool_selectors: Vec<Selector>,
    nodes: Vec<Selector>,
    services: Vec<Selector>,
    /// Otherwise it may be meant to advertise less.
    is_understood: bool,
    /// Without its communities, which may be names.
    advertisement: Advertisement,
    communities: Vec<String>,
}

impl MetallbAdvertisement {
    pub fn read(object: &BGPAdvertisement) -> (Self, Vec<(String, String)>) {
        let spec = &object.spec;
        let namespace = object.metadata.namespace.clone().unwrap_or_default();
        let mut problems = Problems::default();
        let pools = spec.ip_address_pool_selectors.iter();
        let pool_selectors = problems.selectors("spec.ipAddressPoolSelectors", pools);
        let nodes = problems.selectors("spec.nodeSelectors", spec.node_selectors.iter());
        let services = problems.selectors("spec.serviceSelectors", spec.service_selectors.iter());
        let is_understood =
            problems.understands("spec", &spec.unknown, "nothing is advertised by it");
        // Peers of this namespace are called by it, too.
        let named: BTreeSet<String> =
            spec.peers.iter().map(|peer| format!("{namespace}/{peer}")).collect();
        let default = Advertisement::default();
        let advertisement = Advertisement {
            ipv4_length: spec.aggregation_length.unwrap_or(default.ipv4_length),
            ipv6_length: spec.aggregation_length_v6.unwrap_or(default.ipv6_length),
            local_preference: spec.local_pref,
            communities: Communities::default(),
            link_bandwidth: false,
            peers: if named.is_empty() {
                AdvertisedPeers::All
            } else {
                AdvertisedPeers::Named(named)
            },
        };
        let read = Self {
            namespace,
            pools: spec.ip_address_pools.iter().cloned().collect(),
            pool_selectors,
            nodes,
            services,
            is_understood,
            advertisement,
            communities: spec.communities.clone(),
        };
        (read, problems.into_list())
    }

    pub(super) fn concerns(&self, pool: &IpamPool) -> bool {
        let PoolName::Object(name) = &pool.name else { return false };
        let concerns_all = self.pools.is_empty() && self.pool_selectors.is_empty();
        self.is_understood
            && name.namespace == self.namespace
            && (concerns_all
                || self.pools.contains(&name.name)
                || self.pool_selectors.iter().any(|selector| selector.selects(&pool.labels)))
    }

    /// With its communities, of which `aliases` are names.
    pub(super) fn advertised(
        &self,
        aliases: &BTreeMap<String, String>,
    ) -> (Advertised, Vec<(String, String)>) {
        let mut problems = Problems::default();
        let communities =
            read_communities(&self.communities, aliases, "spec.communities", &mut problems);
        let advertisement = Advertisement { communities, ..self.advertisement.clone() };
        let advertisement = Arc::new(advertisement);
        let (nodes, services) = (self.nodes.clone(), self.services.clone());
        (Advertised { nodes, services, advertisement }, problems.into_list())
    }

    /// How the addresses of a pool of MetalLB are advertised; nothing: not at all.
    pub(super) fn of_pool(
        all: &BTreeMap<ObjectRef, (Self, Advertised)>,
        pool: &IpamPool,
    ) -> Vec<Advertised> {
        let concerned = all.values().filter(|(advertisement, _)| advertisement.concerns(pool));
        concerned.map(|(_, advertised)| advertised.clone()).collect()
    }
}
