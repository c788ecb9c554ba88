//! How the addresses of a pool are advertised to BGP peers, and by which nodes.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use lb_bgp::Communities;
use lb_bgp::table::{AdvertisedPeers, Advertisement};

use super::problems::Problems;
use super::selector::{Labels, Selector, any_selects};
use crate::kinds::PoolAdvertisement;

/// By the nodes that one of the selectors selects, for the Services that one selects; without any, all.
#[derive(Clone, Debug, PartialEq)]
pub struct Advertised {
    pub nodes: Vec<Selector>,
    pub services: Vec<Selector>,
    pub advertisement: Arc<Advertisement>,
}

impl Advertised {
    /// Each address by itself, by all nodes, to all peers.
    pub fn everywhere() -> &'static [Self] {
        static EVERYWHERE: LazyLock<[Advertised; 1]> = LazyLock::new(|| {
            [Advertised { nodes: Vec::new(), services: Vec::new(), advertisement: Arc::default() }]
        });
        &*EVERYWHERE
    }

    pub fn is_by(&self, node: &Labels, service: &Labels) -> bool {
        any_selects(&self.nodes, node) && any_selects(&self.services, service)
    }

    /// `field`: of the advertisement, in its pool.
    pub(super) fn read(spec: &PoolAdvertisement, field: &str, problems: &mut Problems) -> Self {
        let nodes = problems.selectors(&format!("{field}.nodeSelector"), spec.node_selector.iter());
        let peers = (!spec.peers.is_empty()).then(|| spec.peers.iter().cloned().collect());
        let communities = read_communities(
            &spec.communities,
            &BTreeMap::new(),
            &format!("{field}.communities"),
            problems,
        );
        let default = Advertisement::default();
        let advertisement = Advertisement {
            ipv4_length: spec.ipv4_prefix_length.unwrap_or(default.ipv4_length),
            ipv6_length: spec.ipv6_prefix_length.unwrap_or(default.ipv6_length),
            local_preference: spec.local_preference,
            communities,
            link_bandwidth: spec.link_bandwidth,
            peers: peers.map_or(AdvertisedPeers::All, AdvertisedPeers::Named),
        };
        Self { nodes, services: Vec::new(), advertisement: Arc::new(advertisement) }
    }
}

/// The communities that can be read; others are problems.
pub(super) fn read_communities(
    texts: &[String],
    aliases: &BTreeMap<String, String>,
    field: &str,
    problems: &mut Problems,
) -> Communities {
    let mut communities = Communities::default();
    for text in texts {
        let meaning = aliases.get(text).unwrap_or(text);
        if let Err(error) = communities.add(meaning) {
            problems.add(field, format!("{error}; not used"));
        }
    }
    communities
}
