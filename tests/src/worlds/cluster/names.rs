//! What is called how: plugins, nodes, addresses and ports.

/// How a network plugin connects pods to their node, and nodes to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plugin {
    /// Pods' interfaces are ports of a bridge; between nodes vxlan: flannel.
    BridgeAndVxlan,
    /// Pods' interfaces have no address on the node; nodes route to each other: Calico, cloud networks.
    Routed,
    /// Pods' interfaces have the gateway's address; routes lead through a second network card: kindnet.
    GatewayAndSecondCard,
    /// As [`Self::Routed`], but through a device without link-layer headers: ipip for IPv4, wireguard for IPv6.
    RawTunnel,
    /// Pods in the node's own network namespace.
    HostNetwork,
}

impl Plugin {
    pub const ALL: [Self; 5] = [
        Self::BridgeAndVxlan,
        Self::Routed,
        Self::GatewayAndSecondCard,
        Self::RawTunnel,
        Self::HostNetwork,
    ];
    pub const WITH_PODS: [Self; 4] =
        [Self::BridgeAndVxlan, Self::Routed, Self::GatewayAndSecondCard, Self::RawTunnel];
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    A,
    B,
}

impl Side {
    pub const BOTH: [Self; 2] = [Self::A, Self::B];

    /// The node's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::A => "node-a",
            Self::B => "node-b",
        }
    }

    pub fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }

    /// Its number in addresses.
    pub fn number(self) -> usize {
        self as usize + 1
    }

    pub fn node_address(self, ip: Ip) -> String {
        let number = 10 + self.number();
        match ip {
            Ip::V4 => format!("192.0.2.{number}"),
            Ip::V6 => format!("2001:db8::{number}"),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ip {
    V4,
    V6,
}

impl Ip {
    pub const BOTH: [Self; 2] = [Self::V4, Self::V6];
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransportProtocol {
    Tcp,
    Udp,
}

impl TransportProtocol {
    pub const BOTH: [Self; 2] = [Self::Tcp, Self::Udp];

    /// The Services' port.
    pub fn port(self) -> u16 {
        match self {
            Self::Tcp => 80,
            Self::Udp => 53,
        }
    }
}

/// A Service's endpoint, as node A sees it. `near` has the external traffic policy Local.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    Near,
    Far,
}

impl Scope {
    pub const BOTH: [Self; 2] = [Self::Near, Self::Far];

    pub fn name(self) -> &'static str {
        match self {
            Self::Near => "near",
            Self::Far => "far",
        }
    }

    /// The node that the endpoint is on.
    pub fn side(self) -> Side {
        match self {
            Self::Near => Side::A,
            Self::Far => Side::B,
        }
    }
}

/// An address with a port.
pub fn join_port(address: &str, port: u16) -> String {
    if address.contains(':') { format!("[{address}]:{port}") } else { format!("{address}:{port}") }
}

/// The reply of the server of a plugin on a node.
pub fn expected_reply(plugin: Plugin, side: Side) -> String {
    format!("{plugin:?}-{}", side.name())
}

/// The network of a plugin's pods on a node. The node itself has the addresses `.0` and `::`.
pub fn pod_network(plugin: Plugin, side: Side, ip: Ip) -> String {
    let (plugin, node) = (plugin as usize, side.number());
    match ip {
        Ip::V4 => format!("10.24{plugin}.{node}.0/24"),
        Ip::V6 => format!("fd00:10:24{plugin}:{node}::/64"),
    }
}

/// An address of a plugin's network on a node.
pub fn in_pod_network(plugin: Plugin, side: Side, ip: Ip, number: usize) -> String {
    let (plugin, node) = (plugin as usize, side.number());
    match ip {
        Ip::V4 => format!("10.24{plugin}.{node}.{number}"),
        Ip::V6 => format!("fd00:10:24{plugin}:{node}::{number}"),
    }
}

pub fn pod_address(plugin: Plugin, side: Side, number: usize, ip: Ip) -> String {
    match plugin {
        Plugin::HostNetwork => side.node_address(ip),
        _ => in_pod_network(plugin, side, ip, 10 + number),
    }
}

pub fn cluster_ip(plugin: Plugin, scope: Scope, ip: Ip) -> String {
    let (plugin, scope) = (plugin as usize + 1, scope as usize + 1);
    match ip {
        Ip::V4 => format!("10.96.{plugin}.{scope}"),
        Ip::V6 => format!("fd00:10:96:{plugin}::{scope}"),
    }
}

/// The load balancer's address of a Service.
pub fn load_balancer_address(plugin: Plugin, scope: Scope, ip: Ip) -> String {
    let number = 10 * (plugin as usize + 1) + scope as usize;
    match ip {
        Ip::V4 => format!("203.0.113.{number}"),
        Ip::V6 => format!("2001:db8:113::{number}"),
    }
}

/// TCP and UDP have the same one.
pub fn node_port(plugin: Plugin, scope: Scope) -> u16 {
    30000 + 10 * plugin as u16 + scope as u16
}
