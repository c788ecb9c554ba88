//! Which addresses this node advertises to BGP peers, and how: from Services and pools. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use lb_bgp::table::{Advertisement, Announcement, Policy as Rule, Ready};
use lb_common::layout::FrontendKind;

use crate::ipam::{Labels, Pools, advertised};
use crate::model::{Policy, ServiceName, ServicePort};

/// What Services advertise that may have changed; nothing: no longer anything.
pub type Routes = Vec<(ServiceName, Vec<Announcement>)>;

/// What matters of one Service.
#[derive(Debug, PartialEq, Eq)]
struct OfService {
    /// Whether its addresses were assigned from pools, even if none contains them any more.
    is_assigned: bool,
    /// The addresses that this node serves.
    addresses: BTreeSet<IpAddr>,
}

/// What the rules say about each Service, gathered as Services change.
#[derive(Debug, Default)]
pub struct Advertising {
    services: BTreeMap<ServiceName, OfService>,
    changed: BTreeSet<ServiceName>,
    /// Pools or this node have changed.
    all_changed: bool,
}

impl Advertising {
    /// Notes the service ports of a Service; none if it has been deleted.
    pub fn set<'a>(
        &mut self,
        name: &ServiceName,
        is_assigned: bool,
        ports: impl Iterator<Item = &'a Arc<ServicePort>>,
    ) {
        let mut addresses = BTreeSet::new();
        for port in ports.filter(|port| is_announced(port)) {
            let frontends = port.frontends.iter();
            let of_balancer =
                frontends.filter(|frontend| frontend.kind == FrontendKind::LoadBalancer);
            addresses.extend(of_balancer.map(|frontend| frontend.address));
        }
        let is_changed = match (addresses.is_empty(), self.services.get(name)) {
            (true, before) => before.is_some(),
            (false, before) => before.is_none_or(|before| {
                before.addresses != addresses || before.is_assigned != is_assigned
            }),
        };
        if is_changed {
            match addresses.is_empty() {
                true => self.services.remove(name),
                false => self.services.insert(name.clone(), OfService { is_assigned, addresses }),
            };
            self.changed.insert(name.clone());
        }
    }

    /// Pools or this node have changed.
    pub fn note_change(&mut self) {
        self.all_changed = true;
    }

    /// What may have changed since the last call.
    pub fn take(&mut self, pools: &Pools, node: Option<&Labels>) -> Routes {
        let mut changed = std::mem::take(&mut self.changed);
        if std::mem::take(&mut self.all_changed) {
            changed.extend(self.services.keys().cloned());
        }
        let none = Labels::new();
        let labels = node.unwrap_or(&none);
        changed.into_iter().map(|name| self.routes(name, pools, labels)).collect()
    }

    fn routes(
        &self,
        name: ServiceName,
        pools: &Pools,
        labels: &Labels,
    ) -> (ServiceName, Vec<Announcement>) {
        let Some(service) = self.services.get(&name) else { return (name, Vec::new()) };
        let announcement = |address: &IpAddr| {
            let by_node = advertised(pools, service.is_assigned, *address).iter();
            let by_node = by_node.filter(|advertised| advertised.is_by(labels));
            let advertisements: Vec<Arc<Advertisement>> =
                by_node.map(|advertised| Arc::clone(&advertised.advertisement)).collect();
            let address = *address;
            (!advertisements.is_empty()).then_some(Announcement {
                address,
                advertisements,
                bandwidth: None,
            })
        };
        let announcements = service.addresses.iter().filter_map(announcement).collect();
        (name, announcements)
    }
}

/// Whether this node attracts packets for the addresses of a service port.
fn is_announced(port: &ServicePort) -> bool {
    let rule = match port.external_policy {
        Policy::Cluster => Rule::Cluster,
        Policy::Local => Rule::Local,
    };
    let count = |backends: usize| u32::try_from(backends).unwrap_or(u32::MAX);
    let (anywhere, on_this_node) = (count(port.cluster.len()), count(port.local.len()));
    rule.announces(Ready { anywhere, on_this_node })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::model::{Backend, Frontend, Kind, Object};

    fn port(address: &str, policy: Policy, cluster: u8, local: u8) -> Arc<ServicePort> {
        let address = address.parse().unwrap();
        let backend = |number: u8| Backend {
            address: IpAddr::from([10, 0, 0, number]),
            port: 80,
            local: true,
            node: None,
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

    fn addresses(routes: &Routes) -> Vec<(String, usize)> {
        routes.iter().map(|(name, all)| (name.name.clone(), all.len())).collect()
    }

    #[test]
    fn addresses_are_advertised_while_this_node_may_serve_them() {
        let pools = pools(json!({}));
        let mut advertising = Advertising::default();
        let mut after = |port: Arc<ServicePort>| {
            advertising.set(&name("web"), false, [port].iter());
            addresses(&advertising.take(&pools, None))
        };
        let here = "192.0.2.1";
        let (one, none) = (vec![("web".to_owned(), 1)], vec![("web".to_owned(), 0)]);
        assert_eq!(after(port(here, Policy::Cluster, 0, 0)), []);
        assert_eq!(after(port(here, Policy::Cluster, 1, 0)), one);
        assert_eq!(after(port(here, Policy::Cluster, 2, 0)), [], "the same address");
        assert_eq!(after(port(here, Policy::Local, 2, 0)), none);
        assert_eq!(after(port(here, Policy::Local, 2, 1)), one);
        assert_eq!(after(port(here, Policy::Cluster, 0, 0)), none);
        assert_eq!(after(port("198.51.100.1", Policy::Cluster, 1, 0)), none, "of no pool");
    }

    #[test]
    fn pools_and_labels_select_nodes() {
        let of_rack =
            json!({"nodeSelector": {"matchLabels": {"rack": "1"}}, "ipv4PrefixLength": 24});
        let mut pools = pools(json!({"advertisements": [of_rack]}));
        let mut advertising = Advertising::default();
        advertising.set(&name("web"), false, [port("192.0.2.1", Policy::Cluster, 1, 0)].iter());
        let labels = |rack: &str| Labels::from([("rack".to_owned(), rack.to_owned())]);
        let routes = advertising.take(&pools, Some(&labels("1")));
        assert_eq!(routes[0].1[0].advertisements[0].ipv4_length, 24);
        advertising.note_change();
        assert_eq!(
            addresses(&advertising.take(&pools, Some(&labels("2")))),
            [("web".to_owned(), 0)]
        );
        apply(&mut pools, json!({"advertise": false}));
        advertising.note_change();
        assert_eq!(
            addresses(&advertising.take(&pools, Some(&labels("1")))),
            [("web".to_owned(), 0)]
        );
    }

    #[test]
    fn a_service_without_an_address_in_a_pool_is_advertised_if_it_was_assigned() {
        let pools = pools(json!({}));
        let mut advertising = Advertising::default();
        let outside = [port("198.51.100.1", Policy::Cluster, 1, 0)];
        advertising.set(&name("web"), true, outside.iter());
        assert_eq!(addresses(&advertising.take(&pools, None)), [("web".to_owned(), 1)]);
        advertising.set(&name("web"), true, [].iter());
        assert_eq!(addresses(&advertising.take(&pools, None)), [("web".to_owned(), 0)]);
    }
}
