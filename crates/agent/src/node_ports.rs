//! The NodePorts of all Services, updated with each change.

use std::collections::BTreeMap;
use std::sync::Arc;

use lb_common::layout::FrontendKind;
use lb_network::snat_ports::PortSet;
use lb_rules::model::{ServicePort, ServicePortKey};

#[derive(Default)]
pub struct NodePorts {
    /// Contains only service ports with a NodePort.
    ports: BTreeMap<ServicePortKey, u16>,
    /// Whether they have been returned once.
    known: bool,
}

impl NodePorts {
    /// Updates changed service ports; returns all NodePorts if any of these changed, and the first
    /// time.
    pub fn take_in(
        &mut self,
        changed: &BTreeMap<ServicePortKey, Option<Arc<ServicePort>>>,
    ) -> Option<PortSet> {
        let mut has_changed = !std::mem::replace(&mut self.known, true);
        for (key, port) in changed {
            let frontends = port.iter().flat_map(|port| port.frontends.iter());
            let mut node_ports =
                frontends.filter(|frontend| frontend.kind == FrontendKind::NodePort);
            let now = node_ports.next().map(|frontend| frontend.port);
            let before = match now {
                Some(port) => self.ports.insert(key.clone(), port),
                None => self.ports.remove(key),
            };
            has_changed |= before != now;
        }
        has_changed.then(|| self.ports.values().copied().collect())
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use lb_rules::model::{AddressFamily, Frontend, Protocol, ServiceName};

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
            let ports = all.take_in(&BTreeMap::from([(key(name), port)]));
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
}
