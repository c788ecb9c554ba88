//! The ports that Services have on this node's own addresses, updated with each change: NodePorts, and ports that the
//! node lends.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use lb_common::layout::FrontendKind;
use lb_network::snat_ports::PortSet;
use lb_rules::model::{Frontend, ServicePort, ServicePortKey};

#[derive(Default)]
pub struct NodePorts {
    /// Contains only service ports with such ports.
    ports: BTreeMap<ServicePortKey, BTreeSet<u16>>,
    /// Whether they have been returned once.
    known: bool,
}

impl NodePorts {
    /// Updates changed service ports; returns the ports of all if any of these changed, and the first time. `own`: this
    /// node's addresses.
    pub fn take_in(
        &mut self,
        changed: &BTreeMap<ServicePortKey, Option<Arc<ServicePort>>>,
        own: &BTreeSet<IpAddr>,
    ) -> Option<PortSet> {
        let mut has_changed = !std::mem::replace(&mut self.known, true);
        let is_on_node = |frontend: &&Frontend| match frontend.kind {
            FrontendKind::NodePort => true,
            FrontendKind::LoadBalancer => own.contains(&frontend.address),
            _ => false,
        };
        for (key, port) in changed {
            let frontends = port.iter().flat_map(|port| port.frontends.iter());
            let now: BTreeSet<u16> =
                frontends.filter(is_on_node).map(|frontend| frontend.port).collect();
            let before = match now.is_empty() {
                false => self.ports.insert(key.clone(), now.clone()),
                true => self.ports.remove(key),
            };
            has_changed |= before.unwrap_or_default() != now;
        }
        has_changed.then(|| self.ports.values().flatten().copied().collect())
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use lb_rules::model::{AddressFamily, Protocol, ServiceName};

    use super::*;

    fn port(node_port: Option<u16>) -> Option<Arc<ServicePort>> {
        let frontend =
            |port, kind| Frontend { address: IpAddr::V4(Ipv4Addr::UNSPECIFIED), port, kind };
        let node_port = node_port.map(|port| frontend(port, FrontendKind::NodePort));
        let frontends = [frontend(80, FrontendKind::ClusterIp)].into_iter().chain(node_port);
        Some(Arc::new(ServicePort { frontends: frontends.collect(), ..ServicePort::default() }))
    }

    #[test]
    fn only_changes_of_node_ports_are_returned() {
        let key = |name| ServicePortKey {
            service: ServiceName::new("default", name),
            port: String::new(),
            protocol: Protocol::Tcp,
            family: AddressFamily::V4,
        };
        let mut all = NodePorts::default();
        let mut change = |name, port| {
            let ports = all.take_in(&BTreeMap::from([(key(name), port)]), &BTreeSet::new());
            ports.map(|ports| ports.iter().collect::<Vec<_>>())
        };
        assert_eq!(change("web", port(None)), Some(vec![]), "known from now on");
        assert_eq!(change("web", port(None)), None);
        assert_eq!(change("web", port(Some(30080))), Some(vec![30080]));
        assert_eq!(change("web", port(Some(30080))), None);
        assert_eq!(change("dns", port(Some(30053))), Some(vec![30053, 30080]));
        assert_eq!(change("web", port(Some(30081))), Some(vec![30053, 30081]));
        assert_eq!(change("web", None), Some(vec![30053]));
        assert_eq!(change("web", None), None);
    }

    #[test]
    fn ports_that_the_node_lends_count_too() {
        let key = ServicePortKey {
            service: ServiceName::new("default", "web"),
            port: String::new(),
            protocol: Protocol::Tcp,
            family: AddressFamily::V4,
        };
        let own: IpAddr = "192.0.2.7".parse().unwrap();
        let mut all = NodePorts::default();
        let mut change = |address: &str, port| {
            let kind = FrontendKind::LoadBalancer;
            let frontend = Frontend { address: address.parse().unwrap(), port, kind };
            let frontends = BTreeSet::from([frontend]);
            let port = Arc::new(ServicePort { frontends, ..ServicePort::default() });
            let changed = BTreeMap::from([(key.clone(), Some(port))]);
            let ports = all.take_in(&changed, &BTreeSet::from([own]));
            ports.map(|ports| ports.iter().collect::<Vec<_>>())
        };
        assert_eq!(
            change("203.0.113.1", 8080),
            Some(vec![]),
            "a virtual address is no SNAT address"
        );
        assert_eq!(change("192.0.2.7", 8080), Some(vec![8080]));
        assert_eq!(change("203.0.113.1", 8080), Some(vec![]));
    }
}
