//! Services for test cases.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use lb_common::layout::{Forwarding, FrontendKind};
use lb_common::maglev::{DEFAULT_WEIGHT, Weight};
use lb_rules::model::{
    AddressFamily, Backend, Frontend, Protocol, ServiceName, ServicePort, ServicePortKey,
    TrafficPolicy,
};

/// A service port for [`super::Conversation::set`].
#[derive(Clone, Debug)]
pub struct Service {
    pub key: ServicePortKey,
    pub port: ServicePort,
}

/// A service port with a ClusterIP, written as `10.96.0.10:80/TCP`.
pub fn service(frontend: &str) -> Service {
    let (address, protocol) = frontend.split_once('/').unwrap_or((frontend, "TCP"));
    let address: SocketAddr = address.parse().unwrap_or_else(|_| panic!("{frontend}"));
    let protocol = Protocol::parse(Some(protocol)).unwrap_or_else(|| panic!("{frontend}"));
    let key = ServicePortKey {
        service: ServiceName::new("default", frontend),
        port: String::new(),
        protocol,
        family: AddressFamily::of(&address.ip()),
    };
    let service = Service { key, port: ServicePort::default() };
    service.frontend(FrontendKind::ClusterIp, address)
}

impl Service {
    fn frontend(mut self, kind: FrontendKind, address: SocketAddr) -> Self {
        let frontend = Frontend { address: address.ip(), port: address.port(), kind };
        self.port.frontends.insert(frontend);
        self
    }

    pub fn load_balancer(self, address: &str) -> Self {
        let address = address.parse().unwrap_or_else(|_| panic!("{address}"));
        self.frontend(FrontendKind::LoadBalancer, address)
    }

    pub fn node_port(self, port: u16) -> Self {
        let any = SocketAddr::new(self.key.family.unspecified(), port);
        self.frontend(FrontendKind::NodePort, any)
    }

    /// Backends for policy `Cluster`, all of them on this node.
    pub fn backends(mut self, backends: &[&str]) -> Self {
        self.port.cluster = members(backends, true);
        self.populated(!backends.is_empty())
    }

    /// Backends for policy `Cluster`, on other nodes.
    pub fn remote_backends(mut self, backends: &[&str]) -> Self {
        self.port.cluster = members(backends, false);
        self.populated(!backends.is_empty())
    }

    /// Backends on this node, for policy `Local`.
    pub fn local_backends(mut self, backends: &[&str]) -> Self {
        self.port.local = members(backends, true);
        self.populated(!backends.is_empty())
    }

    /// Draining endpoints on this node, which are in no pool.
    pub fn draining(mut self, backends: &[&str]) -> Self {
        self.port.draining = members(backends, true);
        self
    }

    fn populated(mut self, populated: bool) -> Self {
        self.port.populated |= populated;
        self
    }

    /// Sets session affinity with a timeout in seconds.
    pub fn affinity(mut self, seconds: u64) -> Self {
        self.port.affinity = Some(Duration::from_secs(seconds));
        self
    }

    /// Sources that can use load balancer addresses.
    pub fn source_ranges(mut self, ranges: &[&str]) -> Self {
        let parse = |text: &&str| text.parse().unwrap_or_else(|_| panic!("{text}"));
        self.port.source_ranges = ranges.iter().map(parse).collect();
        self
    }

    /// How packets of clients outside reach backends on other nodes.
    pub fn forwarding(mut self, forwarding: Forwarding) -> Self {
        self.port.forwarding = forwarding;
        self
    }

    /// All backends are on the node with this address.
    pub fn on_node(mut self, node: &str) -> Self {
        let node = Some(node.parse().unwrap_or_else(|_| panic!("{node}")));
        let there = |backend: Backend| Backend { node, ..backend };
        self.port.cluster = self.port.cluster.into_iter().map(there).collect();
        self
    }

    /// All backends have this weight.
    pub fn weight(mut self, weight: u16) -> Self {
        let weight = Weight::new(weight).expect("a weight above 0");
        let weighted = |backend: Backend| Backend { weight, ..backend };
        self.port.cluster = self.port.cluster.into_iter().map(weighted).collect();
        self
    }

    /// Millrace assigned its load balancer addresses.
    pub fn assigned(mut self) -> Self {
        let of_load_balancer =
            self.port.frontends.iter().filter(|it| it.kind == FrontendKind::LoadBalancer);
        self.port.assigned = of_load_balancer.map(|frontend| frontend.address).collect();
        self
    }

    pub fn external_local(mut self) -> Self {
        self.port.external_policy = TrafficPolicy::Local;
        self
    }
}

fn members(backends: &[&str], local: bool) -> BTreeSet<Backend> {
    let member = |text: &&str| {
        let end: SocketAddr = text.parse().unwrap_or_else(|_| panic!("{text}"));
        Backend { address: end.ip(), port: end.port(), local, node: None, weight: DEFAULT_WEIGHT }
    };
    backends.iter().map(member).collect()
}
