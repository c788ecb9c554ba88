//! The state of the BGP speaker, as commands and metrics show it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::Arc;

use ipnet::IpNet;
use jiff::Timestamp;
use lb_bgp::RouteAttributes;
use lb_bgp::session::BgpSessionState;
use lb_bgp::table::AdvertisementTable;
use lb_rules::model::ServiceName;
use serde::{Deserialize, Serialize};

use crate::bfd::BfdView;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BgpView {
    pub peers: Vec<PeerView>,
    /// What is advertised, or will be once a session is established.
    pub routes: Vec<RouteView>,
    /// Sessions of BFD, by the names of peers.
    #[serde(default)]
    pub bfd: Vec<BfdView>,
    /// Packets to the ports of BFD that belong to none of them.
    #[serde(default)]
    pub bfd_packets_refused: u64,
    /// The peers that each Service is advertised to; `None`: not known yet. Not for people.
    #[serde(skip)]
    pub services: Option<Arc<ServicePeers>>,
}

/// The names of the peers that each Service is advertised to. Equal sets are shared.
pub type ServicePeers = BTreeMap<ServiceName, Arc<BTreeSet<String>>>;

/// A peer and the session with it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PeerView {
    pub name: String,
    /// The configured address or interface.
    pub peer: String,
    /// The address of the router on the interface, and this node's, while there is a connection.
    pub peer_address: Option<String>,
    pub local_address: Option<String>,
    /// As it was found, or is configured.
    #[serde(rename = "peerASN")]
    pub peer_asn: Option<u32>,
    #[serde(rename = "localASN")]
    pub local_asn: u32,
    /// The peer's BGP identifier.
    pub identifier: Option<Ipv4Addr>,
    pub local_identifier: Option<Ipv4Addr>,
    pub state: String,
    /// Since when the session is established, or is not.
    pub since: Timestamp,
    /// Families of both sides that routes can be advertised in.
    pub families: Vec<String>,
    pub hold_time_seconds: Option<u64>,
    pub graceful_restart: bool,
    pub authenticated: bool,
    /// Prefixes that the peer has.
    pub prefixes_advertised: usize,
    /// Nothing waits to be sent.
    pub complete: bool,
    /// The peer is asked to prefer other nodes (RFC 8326).
    pub draining: bool,
    /// The state of the path to the peer, if it is watched by BFD.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bfd: Option<String>,
    pub messages_sent: u64,
    pub messages_received: u64,
    /// How often the session was established, and how often it ended.
    pub established: u64,
    pub ended: u64,
    /// Prefixes that the peer announced. They are discarded.
    pub prefixes_discarded: u64,
    pub malformed_updates: u64,
    pub last_failure: Option<String>,
}

impl PeerView {
    pub fn is_established(&self) -> bool {
        self.state == name_state(BgpSessionState::Established)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RouteView {
    pub prefix: IpNet,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local_preference: Option<u32>,
    pub communities: Vec<String>,
    /// Names of the peers that get it.
    pub peers: BTreeSet<String>,
}

impl RouteView {
    /// What these peers get.
    pub fn all<'a>(
        table: &AdvertisementTable<ServiceName>,
        peers: impl Iterator<Item = &'a String>,
    ) -> Vec<Self> {
        let mut routes: Vec<Self> = Vec::new();
        for name in peers {
            for (prefix, attributes) in table.list_all_routes(name) {
                let Some(attributes) = attributes else { continue };
                routes.push(Self::new(prefix, &attributes, name));
            }
        }
        // Peers mostly get the same.
        let key = |route: &Self| (route.prefix, route.local_preference, route.communities.clone());
        routes.sort_by_cached_key(key);
        routes.dedup_by(|later, first| {
            let is_same = key(later) == key(first);
            if is_same {
                first.peers.append(&mut later.peers);
            }
            is_same
        });
        routes
    }

    fn new(prefix: IpNet, attributes: &RouteAttributes, peer: &str) -> Self {
        let communities = &attributes.communities;
        let standard = communities.standard().iter().map(ToString::to_string);
        let large = communities.large().iter().map(ToString::to_string);
        // In Mbit/s.
        let bandwidth = attributes.bandwidth.map(|octets| f64::from(octets) * 8e-6);
        let bandwidth = bandwidth.map(|bandwidth| format!("link-bandwidth:{bandwidth:.0}"));
        Self {
            prefix,
            local_preference: attributes.local_preference,
            communities: standard.chain(large).chain(bandwidth).collect(),
            peers: BTreeSet::from([peer.to_owned()]),
        }
    }
}

/// Which of these peers each Service is advertised to.
pub(crate) fn list_service_peers<'a>(
    table: &AdvertisementTable<ServiceName>,
    peers: impl Iterator<Item = &'a String> + Clone,
) -> ServicePeers {
    let mut shared: BTreeSet<Arc<BTreeSet<String>>> = BTreeSet::new();
    let mut services = ServicePeers::new();
    for (service, announcements) in table.announcements() {
        let advertisements = announcements.iter().flat_map(|one| &one.advertisements);
        let is_included = |peer: &&String| {
            advertisements.clone().any(|advertisement| advertisement.peers.include(peer))
        };
        let included: BTreeSet<String> = peers.clone().filter(is_included).cloned().collect();
        if included.is_empty() {
            continue;
        }
        let included = shared.get(&included).cloned().unwrap_or_else(|| {
            let included = Arc::new(included);
            shared.insert(Arc::clone(&included));
            included
        });
        services.insert(service.clone(), included);
    }
    services
}

/// As RFC 4271 calls them.
pub(crate) fn name_state(state: BgpSessionState) -> &'static str {
    match state {
        BgpSessionState::Idle => "Idle",
        BgpSessionState::Connect => "Connect",
        BgpSessionState::Active => "Active",
        BgpSessionState::OpenSent => "OpenSent",
        BgpSessionState::OpenConfirm => "OpenConfirm",
        BgpSessionState::Established => "Established",
    }
}

#[cfg(test)]
mod tests {
    use lb_bgp::table::{AddressAnnouncement, AdvertisedPeers, Advertisement};

    use super::*;

    #[test]
    fn the_peers_of_a_service_are_those_of_any_of_its_advertisements() {
        let names = |names: &[&str]| -> BTreeSet<String> {
            names.iter().map(|&name| name.to_owned()).collect()
        };
        let mut table = AdvertisementTable::default();
        let mut announce = |service: &str, peers: &[AdvertisedPeers]| {
            let advertisements = peers.iter().map(|peers| {
                Arc::new(Advertisement { peers: peers.clone(), ..Advertisement::default() })
            });
            let announcement = AddressAnnouncement {
                address: "192.0.2.1".parse().unwrap(),
                advertisements: advertisements.collect(),
                bandwidth: None,
            };
            table.set_announcements(ServiceName::new("shop", service), vec![announcement]);
        };
        announce("all", &[AdvertisedPeers::All]);
        let named = [&["tor-a", "removed"][..], &["tor-b"]].map(names).map(AdvertisedPeers::Named);
        announce("named", &named);
        announce("none", &[AdvertisedPeers::Named(names(&["removed"]))]);
        let peers = names(&["tor-a", "tor-b", "tor-c"]);
        let services = list_service_peers(&table, peers.iter());
        let shown: Vec<_> =
            services.iter().map(|(service, peers)| (&*service.name, (**peers).clone())).collect();
        assert_eq!(shown, [("all", peers), ("named", names(&["tor-a", "tor-b"]))]);
    }
}
