//! Which addresses this node advertises to BGP peers, and how: from Services and pools. Pure.
//!
//! Invariant: a peer gets an address of a load balancer only if a pool with the address selects the peer, or did so
//! last before the address left its pool; and another address only if its own object names the kind, and no pool has
//! the external IP.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use lb_bgp::table::{
    AddressAnnouncement, Advertisement, ExternalTrafficPolicy as Rule, ReadyEndpoints,
};
use lb_common::layout::FrontendKind;
use lb_common::maglev::DEFAULT_WEIGHT;
use lb_rules::ipam::{Advertised, Labels, Pools};
use lb_rules::model::{ServiceName, ServicePort, TrafficPolicy};

use super::service_advertisement::ServiceAdvertisement;

/// What Services advertise that may have changed; nothing: no longer anything.
pub type ServiceRoutes = Vec<(ServiceName, Vec<AddressAnnouncement>)>;

/// The bandwidth that is advertised for each ready endpoint with the default weight, in octets per second: 1 Gbit/s.
/// Routers use only the ratios.
const ENDPOINT_BANDWIDTH: f32 = 125e6;

/// What matters of one Service.
#[derive(Debug)]
struct AdvertisedService {
    labels: Labels,
    /// Whether its addresses were assigned from pools, even if none contains them any more.
    is_assigned: bool,
    /// All addresses.
    addresses: BTreeMap<IpAddr, ServedAddress>,
    /// Cluster IPs and external IPs that a peer may get.
    others: BTreeMap<IpAddr, OtherAddress>,
    /// How they were advertised when a pool contained them last.
    by_pool: BTreeMap<IpAddr, Vec<Advertised>>,
}

/// What this node does for an address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ServedAddress {
    /// This node serves the address.
    here: bool,
    /// The sum of its endpoints' weights, with the policy Local.
    weight: Option<u32>,
}

/// A cluster IP or external IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct OtherAddress {
    kind: FrontendKind,
    policy: TrafficPolicy,
    /// This node serves the address.
    here: bool,
}

/// What the rules say about each Service, gathered as Services change.
#[derive(Debug, Default)]
pub struct RouteAdvertiser {
    services: BTreeMap<ServiceName, AdvertisedService>,
    changed: BTreeSet<ServiceName>,
    /// Addresses that had left their pool before this process knew how they were advertised.
    unknown: BTreeMap<ServiceName, Vec<IpAddr>>,
    /// Pools or this node have changed.
    all_changed: bool,
    /// Which cluster IPs and external IPs are advertised.
    service_advertisements: Vec<ServiceAdvertisement>,
}

impl RouteAdvertiser {
    /// Notes the service ports of a Service; none if it has been deleted.
    pub fn set_service<'a>(
        &mut self,
        name: &ServiceName,
        labels: Option<&Labels>,
        is_assigned: bool,
        ports: impl Iterator<Item = &'a Arc<ServicePort>>,
    ) {
        let mut addresses: BTreeMap<IpAddr, ServedAddress> = BTreeMap::new();
        let mut others: BTreeMap<IpAddr, OtherAddress> = BTreeMap::new();
        let none = Labels::new();
        let selecting = self.service_advertisements.iter();
        let selecting: Vec<&ServiceAdvertisement> =
            selecting.filter(|one| one.selects_service(name, labels.unwrap_or(&none))).collect();
        for port in ports {
            let here = is_announced(port, port.external_policy);
            let weight = sum_local_weights(port).filter(|_| here);
            let frontends = port.frontends.iter();
            for frontend in frontends.filter(|one| one.kind == FrontendKind::LoadBalancer) {
                let served = addresses.entry(frontend.address).or_default();
                served.here |= here;
                served.weight = served.weight.max(weight);
            }
            for frontend in &port.frontends {
                let (kind, address) = (frontend.kind, frontend.address);
                if !selecting.iter().any(|one| one.admits_address(kind, address)) {
                    continue;
                }
                let policy = match kind {
                    FrontendKind::ClusterIp => port.internal_policy,
                    _ => port.external_policy,
                };
                let other = OtherAddress { kind, policy, here: false };
                others.entry(address).or_insert(other).here |= is_announced(port, policy);
            }
        }
        let before = self.services.get(name);
        let is_same = before.map_or(addresses.is_empty() && others.is_empty(), |before| {
            before.addresses == addresses
                && before.others == others
                && before.is_assigned == is_assigned
                && labels.map_or(before.labels.is_empty(), |labels| before.labels == *labels)
        });
        if is_same {
            return;
        }
        self.changed.insert(name.clone());
        let before = self.services.remove(name);
        if !addresses.is_empty() || !others.is_empty() {
            let mut by_pool = before.map(|before| before.by_pool).unwrap_or_default();
            by_pool.retain(|address, _| addresses.contains_key(address));
            let labels = labels.cloned().unwrap_or_default();
            let service = AdvertisedService { labels, is_assigned, addresses, others, by_pool };
            self.services.insert(name.clone(), service);
        }
    }

    /// Replaces which cluster IPs and external IPs are advertised. Returns whether they are others than before: then all
    /// Services must be set anew, because only what may be advertised is held.
    pub fn set_service_advertisements(&mut self, wanted: Vec<ServiceAdvertisement>) -> bool {
        if self.service_advertisements == wanted {
            return false;
        }
        self.service_advertisements = wanted;
        self.note_change();
        true
    }

    /// Pools or this node have changed.
    pub fn note_change(&mut self) {
        self.all_changed = true;
    }

    /// What may have changed since the last call.
    pub fn take_routes(&mut self, pools: &Pools, node: Option<&Labels>) -> ServiceRoutes {
        let mut changed = std::mem::take(&mut self.changed);
        if std::mem::take(&mut self.all_changed) {
            changed.extend(self.services.keys().cloned());
        }
        let none = Labels::new();
        let labels = node.unwrap_or(&none);
        let mut routes = ServiceRoutes::new();
        for name in changed {
            self.unknown.remove(&name);
            let mut announcements = Vec::new();
            if let Some(service) = self.services.get_mut(&name) {
                announcements = service.announcements(pools, labels);
                let wanted = &self.service_advertisements;
                announcements.extend(service.announce_others(&name, wanted, pools));
                let unknown = service.unknown();
                if !unknown.is_empty() {
                    self.unknown.insert(name.clone(), unknown);
                }
            }
            routes.push((name, announcements));
        }
        routes
    }

    /// Addresses that are not advertised because no pool contains them, and none has since this
    /// process has started.
    pub fn unknown_addresses(&self) -> impl Iterator<Item = (&ServiceName, IpAddr)> {
        let all = self.unknown.iter();
        all.flat_map(|(name, addresses)| addresses.iter().map(move |address| (name, *address)))
    }
}

impl AdvertisedService {
    fn announcements(&mut self, pools: &Pools, labels: &Labels) -> Vec<AddressAnnouncement> {
        let mut announcements = Vec::new();
        for (&address, served) in &self.addresses {
            match pools.pool_of(address) {
                Some(pool) => drop(self.by_pool.insert(address, pool.advertised.clone())),
                // Another controller's: whatever it does, it is not known.
                None if !self.is_assigned => drop(self.by_pool.remove(&address)),
                None => {}
            }
            let by_node = self.by_pool.get(&address).into_iter().flatten();
            let by_node =
                by_node.filter(|advertised| served.here && advertised.is_by(labels, &self.labels));
            let advertisements: Vec<Arc<Advertisement>> =
                by_node.map(|advertised| Arc::clone(&advertised.advertisement)).collect();
            let is_weighted = advertisements.iter().any(|one| one.link_bandwidth);
            let endpoints = served.weight.filter(|_| is_weighted);
            let endpoints = endpoints.map(|weight| weight as f32 / f32::from(DEFAULT_WEIGHT.get()));
            let bandwidth = endpoints.map(|endpoints| endpoints * ENDPOINT_BANDWIDTH);
            if !advertisements.is_empty() {
                announcements.push(AddressAnnouncement { address, advertisements, bandwidth });
            }
        }
        announcements
    }

    /// Cluster IPs, and external IPs that no pool contains: another Service could name one that a pool has assigned.
    fn announce_others(
        &self,
        name: &ServiceName,
        wanted: &[ServiceAdvertisement],
        pools: &Pools,
    ) -> Vec<AddressAnnouncement> {
        let selecting: Vec<&ServiceAdvertisement> =
            wanted.iter().filter(|one| one.selects_service(name, &self.labels)).collect();
        let is_of_pool =
            |kind, address| kind == FrontendKind::ExternalIp && pools.pool_of(address).is_some();
        let here = self.others.iter().filter(|(_, other)| other.here);
        let here = here.filter(|(address, other)| !is_of_pool(other.kind, **address));
        let announced = here.map(|(&address, other)| {
            let admitting = selecting.iter().filter(|one| one.admits_address(other.kind, address));
            let advertisements =
                admitting.map(|one| Arc::clone(one.by_policy(other.policy))).collect();
            AddressAnnouncement { address, advertisements, bandwidth: None }
        });
        announced.filter(|announced| !announced.advertisements.is_empty()).collect()
    }

    fn unknown(&self) -> Vec<IpAddr> {
        let is_known = |address: &IpAddr| self.by_pool.contains_key(address);
        let unknown =
            self.addresses.keys().filter(|address| self.is_assigned && !is_known(address));
        unknown.copied().collect()
    }
}

/// The weight of the endpoints on this node, if others get no packets from it.
fn sum_local_weights(port: &ServicePort) -> Option<u32> {
    let weights = port.local.iter().map(|backend| u32::from(backend.weight.get()));
    let is_local = port.external_policy == TrafficPolicy::Local;
    is_local.then(|| weights.fold(0, u32::saturating_add))
}

/// Whether this node attracts packets for the addresses of a service port that have this policy.
fn is_announced(port: &ServicePort, policy: TrafficPolicy) -> bool {
    let rule = match policy {
        TrafficPolicy::Cluster => Rule::Cluster,
        TrafficPolicy::Local => Rule::Local,
    };
    let count = |backends: usize| u32::try_from(backends).unwrap_or(u32::MAX);
    let (anywhere, on_this_node) = (count(port.cluster.len()), count(port.local.len()));
    rule.announces(ReadyEndpoints { anywhere, on_this_node })
}

#[cfg(test)]
mod tests {
    use lb_bgp::table::AdvertisedPeers;
    use lb_rules::model::{Backend, Frontend, Kind, Object, ObjectRef};
    use serde_json::json;

    use super::*;

    fn port(address: &str, policy: TrafficPolicy, cluster: u8, local: u8) -> Arc<ServicePort> {
        let address = address.parse().unwrap();
        let backend = |number: u8| Backend {
            address: IpAddr::from([10, 0, 0, number]),
            port: 80,
            local: true,
            node: None,
            weight: DEFAULT_WEIGHT,
        };
        Arc::new(ServicePort {
            frontends: BTreeSet::from([
                Frontend { address, port: 80, kind: FrontendKind::LoadBalancer },
                Frontend {
                    address: "10.96.0.1".parse().unwrap(),
                    port: 80,
                    kind: FrontendKind::ClusterIp,
                },
            ]),
            cluster: (0..cluster).map(backend).collect(),
            local: (0..local).map(backend).collect(),
            external_policy: policy,
            ..ServicePort::default()
        })
    }

    fn pools(more: serde_json::Value) -> Pools {
        let mut pools = Pools::new(&[]);
        apply(&mut pools, more);
        pools
    }

    fn apply(pools: &mut Pools, more: serde_json::Value) {
        let mut pool = json!({"metadata": {"name": "a"}, "spec": {"addresses": ["192.0.2.0/24"]}});
        pool["spec"].as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        pools.apply(&Object::read(Kind::AddressPool, pool).unwrap());
    }

    fn name(name: &str) -> ServiceName {
        ServiceName::new("default", name)
    }

    fn addresses(routes: &ServiceRoutes) -> Vec<(String, usize)> {
        routes.iter().map(|(name, all)| (name.name.clone(), all.len())).collect()
    }

    #[test]
    fn addresses_are_advertised_while_this_node_may_serve_them() {
        let pools = pools(json!({}));
        let mut advertising = RouteAdvertiser::default();
        let mut after = |port: Arc<ServicePort>| {
            advertising.set_service(&name("web"), None, false, [port].iter());
            addresses(&advertising.take_routes(&pools, None))
        };
        let here = "192.0.2.1";
        let (one, none) = (vec![("web".to_owned(), 1)], vec![("web".to_owned(), 0)]);
        assert_eq!(after(port(here, TrafficPolicy::Cluster, 0, 0)), none);
        assert_eq!(after(port(here, TrafficPolicy::Cluster, 1, 0)), one);
        assert_eq!(after(port(here, TrafficPolicy::Cluster, 2, 0)), [], "the same address");
        assert_eq!(after(port(here, TrafficPolicy::Local, 2, 0)), none);
        assert_eq!(after(port(here, TrafficPolicy::Local, 2, 1)), one);
        assert_eq!(after(port(here, TrafficPolicy::Cluster, 0, 0)), none);
        assert_eq!(after(port("198.51.100.1", TrafficPolicy::Cluster, 1, 0)), none, "of no pool");
    }

    #[test]
    fn endpoints_on_this_node_are_weights_with_the_policy_local() {
        let pools = pools(json!({"advertisements": [{"linkBandwidth": true}]}));
        let mut advertising = RouteAdvertiser::default();
        let mut bandwidth = |policy, local| {
            advertising.set_service(
                &name("web"),
                None,
                false,
                [port("192.0.2.1", policy, 9, local)].iter(),
            );
            let routes = advertising.take_routes(&pools, None);
            let announcement = &routes[0].1[0];
            assert!(announcement.advertisements[0].link_bandwidth);
            announcement.bandwidth
        };
        assert_eq!(bandwidth(TrafficPolicy::Local, 1), Some(125e6));
        assert_eq!(bandwidth(TrafficPolicy::Local, 3), Some(375e6));
        assert_eq!(bandwidth(TrafficPolicy::Cluster, 3), None);

        let mut heavy = ServicePort::clone(&port("192.0.2.1", TrafficPolicy::Local, 9, 1));
        let weight = DEFAULT_WEIGHT.saturating_add(150);
        heavy.local = heavy.local.into_iter().map(|one| Backend { weight, ..one }).collect();
        advertising.set_service(&name("web"), None, false, [Arc::new(heavy)].iter());
        assert_eq!(advertising.take_routes(&pools, None)[0].1[0].bandwidth, Some(312.5e6));
    }

    #[test]
    fn pools_and_labels_select_nodes() {
        let of_rack =
            json!({"nodeSelector": {"matchLabels": {"rack": "1"}}, "ipv4PrefixLength": 24});
        let mut pools = pools(json!({"advertisements": [of_rack]}));
        let mut advertising = RouteAdvertiser::default();
        advertising.set_service(
            &name("web"),
            None,
            false,
            [port("192.0.2.1", TrafficPolicy::Cluster, 1, 0)].iter(),
        );
        let labels = |rack: &str| Labels::from([("rack".to_owned(), rack.to_owned())]);
        let routes = advertising.take_routes(&pools, Some(&labels("1")));
        assert_eq!(routes[0].1[0].advertisements[0].ipv4_length, 24);
        advertising.note_change();
        assert_eq!(
            addresses(&advertising.take_routes(&pools, Some(&labels("2")))),
            [("web".to_owned(), 0)]
        );
        apply(&mut pools, json!({"advertise": false}));
        advertising.note_change();
        assert_eq!(
            addresses(&advertising.take_routes(&pools, Some(&labels("1")))),
            [("web".to_owned(), 0)]
        );
    }

    #[test]
    fn an_advertisement_of_metallb_selects_services() {
        let of_metallb = |kind, name: &str, spec: serde_json::Value| {
            let metadata = json!({"name": name, "namespace": "metallb-system"});
            Object::read(kind, json!({"metadata": metadata, "spec": spec})).unwrap()
        };
        let mut pools = Pools::new(&[]);
        let addresses_of_pool = json!({"addresses": ["192.0.2.0/24"]});
        pools.apply(&of_metallb(Kind::IpAddressPool, "public", addresses_of_pool));
        let selectors = json!({"serviceSelectors": [{"matchLabels": {"tier": "public"}}]});
        pools.apply(&of_metallb(Kind::BgpAdvertisement, "some", selectors));
        let mut advertising = RouteAdvertiser::default();
        let mut advertised = |labels: Option<&str>| {
            let labels = labels.map(|tier| Labels::from([("tier".to_owned(), tier.to_owned())]));
            let ports = [port("192.0.2.1", TrafficPolicy::Cluster, 1, 0)];
            advertising.set_service(&name("web"), labels.as_ref(), false, ports.iter());
            addresses(&advertising.take_routes(&pools, None))
        };
        assert_eq!(advertised(None), [("web".to_owned(), 0)]);
        assert_eq!(advertised(Some("public")), [("web".to_owned(), 1)]);
        assert_eq!(advertised(Some("public")), []);
        assert_eq!(advertised(Some("internal")), [("web".to_owned(), 0)]);
    }

    fn advertisements_of(spec: serde_json::Value) -> Vec<ServiceAdvertisement> {
        vec![ServiceAdvertisement::read("tor", &serde_json::from_value(spec).unwrap()).0]
    }

    /// The prefixes that a peer gets, and with them whether another one gets any.
    fn prefixes(routes: ServiceRoutes) -> Vec<String> {
        let mut table = lb_bgp::table::AdvertisementTable::default();
        for (name, announcements) in routes {
            table.set_announcements(name, announcements);
        }
        assert!(table.list_all_routes("another").is_empty());
        table.list_all_routes("tor").iter().map(|(prefix, _)| prefix.to_string()).collect()
    }

    /// A cluster IP, external IPs inside and outside of 203.0.113.0/24, and endpoints on all nodes and this one.
    fn service_port(
        external: TrafficPolicy,
        internal: TrafficPolicy,
        cluster: u8,
        local: u8,
    ) -> Arc<ServicePort> {
        let mut port = ServicePort::clone(&port("192.0.2.1", external, cluster, local));
        port.internal_policy = internal;
        let frontends = port.frontends.into_iter();
        let inner = frontends.filter(|one| one.kind == FrontendKind::ClusterIp);
        let outer = ["203.0.113.77", "198.51.100.1"].map(|address| Frontend {
            address: address.parse().unwrap(),
            port: 80,
            kind: FrontendKind::ExternalIp,
        });
        port.frontends = inner.chain(outer).collect();
        Arc::new(port)
    }

    #[test]
    fn other_addresses_are_advertised_if_a_peer_names_them_and_as_their_policy_says() {
        use TrafficPolicy::{Cluster, Local};
        let pools = Pools::new(&[]);
        let both = json!({"clusterIPs": true, "externalIPs": ["203.0.113.0/24"]});
        let aggregated = json!({"clusterIPs": true, "externalIPs": ["203.0.0.0/16"],
            "ipv4PrefixLength": 16});
        let advertised = |spec: &serde_json::Value, port: Arc<ServicePort>| {
            let mut advertising = RouteAdvertiser::default();
            assert!(advertising.set_service_advertisements(advertisements_of(spec.clone())));
            assert!(!advertising.set_service_advertisements(advertisements_of(spec.clone())));
            advertising.set_service(&name("web"), None, false, [port].iter());
            prefixes(advertising.take_routes(&pools, None))
        };
        let nothing: [&str; 0] = [];
        let (inner, outer) = ("10.96.0.1/32", "203.0.113.77/32");
        assert_eq!(advertised(&json!({}), service_port(Cluster, Cluster, 2, 1)), nothing);
        assert_eq!(advertised(&both, service_port(Cluster, Cluster, 2, 1)), [inner, outer]);
        assert_eq!(advertised(&both, service_port(Cluster, Cluster, 0, 0)), nothing);
        assert_eq!(advertised(&both, service_port(Local, Cluster, 2, 0)), [inner]);
        assert_eq!(advertised(&both, service_port(Cluster, Local, 2, 0)), [outer]);
        assert_eq!(advertised(&both, service_port(Local, Local, 2, 1)), [inner, outer]);
        let shorter = ["10.96.0.0/16", "203.0.0.0/16"];
        assert_eq!(advertised(&aggregated, service_port(Cluster, Cluster, 2, 0)), shorter);
        let mixed = ["10.96.0.0/16", outer];
        assert_eq!(advertised(&aggregated, service_port(Local, Cluster, 2, 1)), mixed);
    }

    /// Whoever may write Services could otherwise have all nodes advertise another Service's address.
    #[test]
    fn an_external_ip_that_a_pool_contains_is_advertised_only_by_the_pool() {
        let mut pools = pools(json!({"addresses": ["203.0.113.0/24"], "advertise": false}));
        let mut advertising = RouteAdvertiser::default();
        let both = json!({"clusterIPs": true, "externalIPs": ["203.0.113.0/24"]});
        advertising.set_service_advertisements(advertisements_of(both));
        let served = [service_port(TrafficPolicy::Cluster, TrafficPolicy::Cluster, 1, 0)];
        advertising.set_service(&name("web"), None, false, served.iter());
        assert_eq!(prefixes(advertising.take_routes(&pools, None)), ["10.96.0.1/32"]);
        pools.delete(&ObjectRef::new(Kind::AddressPool, None, Some("a")));
        advertising.note_change();
        let free = ["10.96.0.1/32", "203.0.113.77/32"];
        assert_eq!(prefixes(advertising.take_routes(&pools, None)), free);
    }

    #[test]
    fn selectors_of_a_peer_choose_the_services() {
        let pools = Pools::new(&[]);
        let mut advertising = RouteAdvertiser::default();
        let of_edge = json!({"clusterIPs": true, "namespaces": ["default"],
            "serviceSelector": {"matchLabels": {"millrace.io/advertise": "edge"}}});
        let labels =
            |value: &str| Labels::from([("millrace.io/advertise".to_owned(), value.to_owned())]);
        let set = |advertising: &mut RouteAdvertiser, namespace: &str, value: &str| {
            let port = service_port(TrafficPolicy::Cluster, TrafficPolicy::Cluster, 1, 0);
            let service = ServiceName::new(namespace, "web");
            advertising.set_service(&service, Some(&labels(value)), false, [port].iter());
            prefixes(advertising.take_routes(&pools, None))
        };
        advertising.set_service_advertisements(advertisements_of(of_edge));
        let nothing: [&str; 0] = [];
        assert_eq!(set(&mut advertising, "default", "edge"), ["10.96.0.1/32"]);
        assert_eq!(set(&mut advertising, "default", "inner"), nothing);
        assert_eq!(set(&mut advertising, "other", "edge"), nothing);
        assert_eq!(set(&mut advertising, "default", "edge"), ["10.96.0.1/32"]);
        assert!(advertising.set_service_advertisements(Vec::new()));
        assert_eq!(prefixes(advertising.take_routes(&pools, None)), nothing);
    }

    /// The peers of the only address.
    fn peers(routes: &ServiceRoutes) -> Option<&AdvertisedPeers> {
        routes[0].1.first().map(|announcement| &announcement.advertisements[0].peers)
    }

    #[test]
    fn an_address_that_has_left_its_pool_stays_with_the_peers_that_it_had() {
        let inner = |more: bool| {
            let peers = if more { json!(["inner", "more"]) } else { json!(["inner"]) };
            json!({"advertisements": [{"peers": peers}]})
        };
        let mut pools = pools(inner(false));
        let mut advertising = RouteAdvertiser::default();
        let served = [port("192.0.2.1", TrafficPolicy::Cluster, 1, 0)];
        advertising.set_service(&name("web"), None, true, served.iter());
        let expected = |names: &[&str]| {
            AdvertisedPeers::Named(names.iter().map(|name| (*name).to_owned()).collect())
        };
        assert_eq!(peers(&advertising.take_routes(&pools, None)), Some(&expected(&["inner"])));
        // What the pool says last counts, also while there is no endpoint.
        advertising.set_service(
            &name("web"),
            None,
            true,
            [port("192.0.2.1", TrafficPolicy::Cluster, 0, 0)].iter(),
        );
        apply(&mut pools, inner(true));
        advertising.note_change();
        assert_eq!(peers(&advertising.take_routes(&pools, None)), None);
        pools.delete(&ObjectRef::new(Kind::AddressPool, None, Some("a")));
        advertising.note_change();
        advertising.set_service(&name("web"), None, true, served.iter());
        assert_eq!(
            peers(&advertising.take_routes(&pools, None)),
            Some(&expected(&["inner", "more"]))
        );
        assert_eq!(advertising.unknown_addresses().count(), 0);
        // Not of another controller.
        advertising.set_service(&name("web"), None, false, served.iter());
        assert_eq!(peers(&advertising.take_routes(&pools, None)), None);
        // Nor of the Service that has the name next.
        advertising.set_service(&name("web"), None, true, [].iter());
        advertising.take_routes(&pools, None);
        advertising.set_service(&name("web"), None, true, served.iter());
        assert_eq!(peers(&advertising.take_routes(&pools, None)), None);
    }

    #[test]
    fn no_peer_gets_an_address_whose_pool_this_process_has_never_seen() {
        let mut pools = pools(json!({}));
        let mut advertising = RouteAdvertiser::default();
        let outside = [port("198.51.100.1", TrafficPolicy::Cluster, 1, 0)];
        advertising.set_service(&name("web"), None, true, outside.iter());
        assert_eq!(addresses(&advertising.take_routes(&pools, None)), [("web".to_owned(), 0)]);
        let address: IpAddr = "198.51.100.1".parse().unwrap();
        assert_eq!(advertising.unknown_addresses().collect::<Vec<_>>(), [(&name("web"), address)]);
        // Until a pool contains it again.
        apply(&mut pools, json!({"addresses": ["198.51.100.0/24"]}));
        advertising.note_change();
        assert_eq!(addresses(&advertising.take_routes(&pools, None)), [("web".to_owned(), 1)]);
        assert_eq!(advertising.unknown_addresses().count(), 0);
    }
}
