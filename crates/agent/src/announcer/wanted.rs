//! Which addresses are to be announced, and whether this node may announce them. The agent's loop
//! sends this to the thread that announces. Pure.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use lb_announce::CandidateRank;
use lb_common::layout::FrontendKind;
use lb_network::AnnouncingLink;
use lb_rules::ipam::{AnnouncementScope, Labels, Pools, find_announcement};
use lb_rules::model::{Node, ServiceName, ServicePort, TrafficPolicy};

/// All addresses of Services of type LoadBalancer that are in a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    pub addresses: BTreeMap<IpAddr, WantedAddress>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantedAddress {
    /// With their uids; several if they share it.
    pub services: BTreeMap<ServiceName, Box<str>>,
    pub rank: CandidateRank,
    /// Why this node is no candidate.
    pub why_not: Option<&'static str>,
    /// Where this node may announce it.
    pub scopes: Vec<AnnouncementScope>,
}

/// The facts about one Service that decide where its addresses are announced.
#[derive(Debug, PartialEq, Eq)]
struct OfService {
    uid: Box<str>,
    labels: Labels,
    /// Whether its addresses were assigned from pools, even if none contains them any more.
    is_assigned: bool,
    /// Whether this node can serve each address.
    addresses: BTreeMap<IpAddr, bool>,
}

/// The facts about each Service, collected as Services change.
#[derive(Debug)]
pub struct Announcing {
    services: BTreeMap<ServiceName, OfService>,
    changed: bool,
}

impl Default for Announcing {
    /// Changed: without any Service, too, an agent must give up addresses that an earlier one announced.
    fn default() -> Self {
        Self { services: BTreeMap::new(), changed: true }
    }
}

impl Announcing {
    /// Notes the service ports of a Service; none if it has been deleted.
    pub fn set<'a>(
        &mut self,
        name: &ServiceName,
        (uid, labels): (&str, Option<&Labels>),
        is_assigned: bool,
        ports: impl Iterator<Item = &'a Arc<ServicePort>>,
    ) {
        let mut addresses = BTreeMap::new();
        for port in ports {
            let serves = port.external_policy == TrafficPolicy::Cluster || !port.local.is_empty();
            let of_load_balancer = port
                .frontends
                .iter()
                .filter(|frontend| frontend.kind == FrontendKind::LoadBalancer);
            for frontend in of_load_balancer {
                *addresses.entry(frontend.address).or_default() |= serves;
            }
        }
        if addresses.is_empty() {
            self.changed |= self.services.remove(name).is_some();
            return;
        }
        let labels = labels.cloned().unwrap_or_default();
        let service = OfService { uid: uid.into(), labels, is_assigned, addresses };
        if self.services.get(name) != Some(&service) {
            self.services.insert(name.clone(), service);
            self.changed = true;
        }
    }

    /// Pools or this node have changed.
    pub fn note_change(&mut self) {
        self.changed = true;
    }

    /// What is wanted now, if that may have changed.
    pub fn take(&mut self, pools: &Pools, node: Option<&Node>) -> Option<Wanted> {
        std::mem::take(&mut self.changed).then(|| self.wanted(pools, node))
    }

    fn wanted(&self, pools: &Pools, node: Option<&Node>) -> Wanted {
        let labels = node.map(|node| node.labels.clone()).unwrap_or_default();
        let is_preferred = node.is_none_or(|node| node.announces);
        let mut wanted = Wanted::default();
        for (service, of_service) in &self.services {
            let OfService { uid, labels: of_labels, is_assigned, addresses } = of_service;
            for (&address, &serves) in addresses {
                let announcement = find_announcement(pools, *is_assigned, address);
                let Some(announcement) = announcement else { continue };
                let scopes: Vec<AnnouncementScope> =
                    announcement.of_node(&labels, of_labels).cloned().collect();
                let (rank, why_not) = match (scopes.is_empty(), serves, is_preferred) {
                    (true, _, _) => (
                        CandidateRank::None,
                        Some("the pool does not select this node, or not this Service"),
                    ),
                    (_, false, _) => {
                        let why = "no ready endpoint on this node (externalTrafficPolicy: Local)";
                        (CandidateRank::None, Some(why))
                    }
                    (_, _, false) => {
                        (CandidateRank::LastResort, Some("the node is excluded or cordoned"))
                    }
                    _ => (CandidateRank::Candidate, None),
                };
                let of_service = WantedAddress {
                    services: BTreeMap::from([(service.clone(), uid.clone())]),
                    rank,
                    why_not,
                    scopes,
                };
                match wanted.addresses.get_mut(&address) {
                    Some(shared) => shared.share(of_service),
                    None => drop(wanted.addresses.insert(address, of_service)),
                }
            }
        }
        wanted
    }
}

impl WantedAddress {
    /// With another Service: the node may announce it for either.
    fn share(&mut self, other: Self) {
        self.services.extend(other.services);
        for scope in other.scopes {
            if !self.scopes.contains(&scope) {
                self.scopes.push(scope);
            }
        }
        if other.rank > self.rank {
            self.rank = other.rank;
            self.why_not = other.why_not;
        }
    }
}

impl Wanted {
    /// What this node wants on an interface, which is one of `all` that can announce.
    pub fn on(
        &self,
        link: &AnnouncingLink,
        all: &[AnnouncingLink],
    ) -> BTreeMap<IpAddr, CandidateRank> {
        let is_routed = |address| !all.iter().any(|one| one.has_prefix_of(address));
        let is_there = |address: IpAddr, wanted: &WantedAddress| {
            let names = |scope: &AnnouncementScope| match scope.names_interfaces() {
                true => scope.names(&link.name),
                false => link.has_prefix_of(address) || scope.includes_routed && is_routed(address),
            };
            // An address that this node may announce nowhere is still listed on the interface
            // with its prefix, so that the reason can be shown there.
            wanted.scopes.iter().any(names)
                || wanted.scopes.is_empty() && link.has_prefix_of(address)
        };
        let here = self.addresses.iter().filter(|(address, wanted)| is_there(**address, wanted));
        // The kernel answers for an address of the interface itself, and no other node may.
        let rank = |address| {
            if link.has(address) { CandidateRank::None } else { self.addresses[&address].rank }
        };
        here.map(|(address, _)| (*address, rank(*address))).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use lb_common::maglev::DEFAULT_WEIGHT;
    use lb_rules::ipam::Range;
    use lb_rules::model::{Frontend, Kind, Object};
    use serde_json::json;

    use super::*;

    fn port(address: &str, policy: TrafficPolicy, local: usize) -> Arc<ServicePort> {
        let frontend = |kind| Frontend { address: address.parse().unwrap(), port: 80, kind };
        let backend = |number: usize| lb_rules::model::Backend {
            address: std::net::Ipv4Addr::from(number as u32).into(),
            port: 80,
            local: true,
            node: None,
            weight: DEFAULT_WEIGHT,
        };
        Arc::new(ServicePort {
            frontends: BTreeSet::from([
                frontend(FrontendKind::LoadBalancer),
                Frontend {
                    address: "10.96.0.1".parse().unwrap(),
                    ..frontend(FrontendKind::ClusterIp)
                },
            ]),
            local: (0..local).map(backend).collect(),
            external_policy: policy,
            ..ServicePort::default()
        })
    }

    fn link(name: &str, prefix: &str) -> AnnouncingLink {
        AnnouncingLink {
            index: 1,
            name: name.to_owned(),
            mac: [2; 6],
            running: true,
            prefixes: vec![prefix.parse().unwrap()],
            addresses: vec![prefix.parse::<ipnet::IpNet>().unwrap().addr()],
        }
    }

    /// On the only interface.
    fn wanted_on(wanted: &Wanted, link: AnnouncingLink) -> BTreeMap<IpAddr, CandidateRank> {
        wanted.on(&link, std::slice::from_ref(&link))
    }

    /// With a pool and an advertisement of MetalLB.
    fn pools_of_metallb(advertisement: serde_json::Value) -> Pools {
        let mut pools = Pools::new(&[]);
        let spec = json!({"addresses": ["192.0.2.0/28", "198.51.100.0/24"]});
        for (kind, spec) in [(Kind::IpAddressPool, spec), (Kind::L2Advertisement, advertisement)] {
            let metadata = json!({"name": "a", "namespace": "metallb-system"});
            pools.apply(&Object::read(kind, json!({"metadata": metadata, "spec": spec})).unwrap());
        }
        pools
    }

    #[test]
    fn without_interfaces_metallb_announces_a_routed_address_on_all() {
        let name = ServiceName::new("default", "web");
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        let all = [link("eth0", "192.0.2.0/24"), link("eth1", "203.0.113.0/24")];
        let on = |advertisement: serde_json::Value, own: &str| {
            let mut announcing = Announcing::default();
            announcing.set(&name, ("", None), true, [port(own, TrafficPolicy::Cluster, 0)].iter());
            let wanted = announcing.take(&pools_of_metallb(advertisement), None).unwrap();
            let names = all.iter().filter(|link| wanted.on(link, &all).contains_key(&address(own)));
            names.map(|link| link.name.clone()).collect::<Vec<_>>()
        };
        // No interface has its prefix: a router sends packets for it to the link.
        assert_eq!(on(json!({}), "198.51.100.1"), ["eth0", "eth1"]);
        assert_eq!(on(json!({}), "192.0.2.1"), ["eth0"]);
        assert_eq!(on(json!({"interfaces": ["eth1"]}), "198.51.100.1"), ["eth1"]);
        assert_eq!(on(json!({"interfaces": ["eth1"]}), "192.0.2.1"), ["eth1"]);
    }

    #[test]
    fn without_any_service_the_first_result_is_that_nothing_is_wanted() {
        let mut announcing = Announcing::default();
        assert_eq!(announcing.take(&pools(), None), Some(Wanted::default()));
        assert_eq!(announcing.take(&pools(), None), None);
    }

    #[test]
    fn an_advertisement_of_metallb_selects_services() {
        let name = ServiceName::new("default", "web");
        let selectors = json!({"serviceSelectors": [{"matchLabels": {"tier": "public"}}]});
        let pools = pools_of_metallb(selectors);
        let mut announcing = Announcing::default();
        let mut rank = |service: &ServiceName, tier: &str| {
            let labels = Labels::from([("tier".to_owned(), tier.to_owned())]);
            let ports = [port("192.0.2.1", TrafficPolicy::Cluster, 0)];
            announcing.set(service, ("", Some(&labels)), true, ports.iter());
            let wanted = announcing.take(&pools, None).unwrap();
            wanted_on(&wanted, link("eth0", "192.0.2.0/24")).into_values().collect::<Vec<_>>()
        };
        assert_eq!(rank(&name, "internal"), [CandidateRank::None]);
        assert_eq!(rank(&name, "public"), [CandidateRank::Candidate]);
        assert_eq!(rank(&name, "internal"), [CandidateRank::None]);
        // One of the Services that share the address is enough.
        assert_eq!(rank(&ServiceName::new("default", "api"), "public"), [CandidateRank::Candidate]);
    }

    fn pools() -> Pools {
        Pools::new(&[Range::parse("192.0.2.0/28").unwrap()])
    }

    #[test]
    fn addresses_of_pools_are_wanted_where_their_prefix_is() {
        let mut announcing = Announcing::default();
        let name = |name: &str| ServiceName::new("default", name);
        announcing.set(
            &name("a"),
            ("", None),
            false,
            [port("192.0.2.1", TrafficPolicy::Cluster, 0)].iter(),
        );
        announcing.set(
            &name("b"),
            ("", None),
            false,
            [port("192.0.2.2", TrafficPolicy::Local, 0)].iter(),
        );
        announcing.set(
            &name("c"),
            ("", None),
            false,
            [port("198.51.100.1", TrafficPolicy::Cluster, 0)].iter(),
        );
        // Of a pool that has lost the address.
        announcing.set(
            &name("d"),
            ("", None),
            true,
            [port("198.51.100.2", TrafficPolicy::Cluster, 0)].iter(),
        );
        let wanted = announcing.take(&pools(), None).unwrap();
        assert_eq!(announcing.take(&pools(), None), None);
        let here = wanted_on(&wanted, link("eth0", "192.0.2.0/24"));
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        let expected = [
            (address("192.0.2.1"), CandidateRank::Candidate),
            (address("192.0.2.2"), CandidateRank::None),
        ];
        assert_eq!(here, BTreeMap::from(expected));
        assert!(wanted_on(&wanted, link("eth1", "203.0.113.0/24")).is_empty());
        let own = wanted_on(&wanted, link("eth0", "192.0.2.1/24"));
        assert_eq!(own[&address("192.0.2.1")], CandidateRank::None, "the interface's own");
        let outside = BTreeMap::from([(address("198.51.100.2"), CandidateRank::Candidate)]);
        assert_eq!(wanted_on(&wanted, link("eth2", "198.51.100.0/24")), outside);

        announcing.set(
            &name("b"),
            ("", None),
            false,
            [port("192.0.2.2", TrafficPolicy::Local, 1)].iter(),
        );
        announcing.set(&name("a"), ("", None), false, [].iter());
        let wanted = announcing.take(&pools(), None).unwrap();
        let expected = [(address("192.0.2.2"), CandidateRank::Candidate)];
        assert_eq!(wanted_on(&wanted, link("eth0", "192.0.2.0/24")), BTreeMap::from(expected));
        // Nothing has changed that affects the announcements.
        announcing.set(
            &name("b"),
            ("", None),
            false,
            [port("192.0.2.2", TrafficPolicy::Local, 2)].iter(),
        );
        assert_eq!(announcing.take(&pools(), None), None);
    }
}
