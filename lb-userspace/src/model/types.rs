//! The vocabulary of the model.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display};
use std::net::{IpAddr, SocketAddr};
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use k8s_openapi::api::core::v1::Node as ApiNode;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use lb_common::header::protocol;
use lb_common::layout::{Forwarding, FrontendKind};

use super::Node;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AddressFamily {
    V4,
    V6,
}

impl AddressFamily {
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];

    pub fn of(address: &IpAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }

    /// As in an EndpointSlice's `addressType`.
    pub fn name(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        }
    }

    pub fn unspecified(self) -> IpAddr {
        match self {
            Self::V4 => IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED),
            Self::V6 => IpAddr::V6(std::net::Ipv6Addr::UNSPECIFIED),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Protocol {
    Tcp,
    Udp,
    Sctp,
}

impl Protocol {
    pub const ALL: [Self; 3] = [Self::Tcp, Self::Udp, Self::Sctp];

    pub fn number(self) -> u8 {
        match self {
            Self::Tcp => protocol::TCP,
            Self::Udp => protocol::UDP,
            Self::Sctp => protocol::SCTP,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
        }
    }

    pub fn of_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|protocol| protocol.number() == number)
    }

    /// By the API's name; TCP where none is given.
    pub fn parse(name: Option<&str>) -> Option<Self> {
        let name = name.filter(|name| !name.is_empty()).unwrap_or("TCP");
        Self::ALL.into_iter().find(|protocol| protocol.name() == name)
    }
}

/// The name of a Service, or of another object in a namespace. It is kept in many places: its clones
/// share one text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServiceName(Arc<NameParts>);

#[derive(Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NameParts {
    pub namespace: String,
    pub name: String,
}

impl Deref for ServiceName {
    type Target = NameParts;

    fn deref(&self) -> &NameParts {
        &self.0
    }
}

impl ServiceName {
    pub fn new(namespace: &str, name: &str) -> Self {
        Self(Arc::new(NameParts { namespace: namespace.to_owned(), name: name.to_owned() }))
    }

    pub fn of(metadata: &ObjectMeta) -> Self {
        let namespace = metadata.namespace.as_deref().filter(|namespace| !namespace.is_empty());
        let name = metadata.name.as_deref().unwrap_or_default();
        Self::new(namespace.unwrap_or("default"), name)
    }
}

impl Display for ServiceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// One port of one Service in one address family.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServicePortKey {
    pub service: ServiceName,
    /// The port's name; empty if it has none.
    pub port: String,
    pub protocol: Protocol,
    pub family: AddressFamily,
}

impl Display for ServicePortKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { service, port, protocol, family } = self;
        write!(f, "{service}:{port}/{}/{}", protocol.name(), family.name())
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    #[default]
    Cluster,
    Local,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServicePort {
    pub frontends: BTreeSet<Frontend>,
    /// Whom clients may be sent to anywhere; empty if there is none, or no frontend wants it.
    pub cluster: BTreeSet<Backend>,
    /// Whom clients may be sent to on this node.
    pub local: BTreeSet<Backend>,
    /// Endpoints that are in no pool: they get no new clients, and keep those that they have.
    pub draining: BTreeSet<Backend>,
    /// Whether anybody serves it, wherever that is: if so, clients that may go to nobody are
    /// kept waiting instead of being refused.
    pub populated: bool,
    pub external_policy: Policy,
    pub internal_policy: Policy,
    /// How long a client stays with its backend after its last new connection.
    pub affinity: Option<Duration>,
    /// How clients outside get to backends on other nodes.
    pub forwarding: Forwarding,
    /// From where the load balancer's addresses may be used; empty: from anywhere.
    pub source_ranges: Vec<IpNet>,
}

impl ServicePort {
    /// Whether clients outside get to backends on other nodes through tunnels.
    pub fn is_tunnelled(&self) -> bool {
        self.forwarding != Forwarding::Masquerade
    }

    /// Whether clients outside the cluster can dial it.
    pub fn is_external(&self) -> bool {
        self.frontends.iter().any(|frontend| frontend.kind != FrontendKind::ClusterIp)
    }
}

/// What a client dials; a NodePort has the unspecified address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Frontend {
    pub address: IpAddr,
    pub port: u16,
    pub kind: FrontendKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Backend {
    pub address: IpAddr,
    pub port: u16,
    /// On this node.
    pub local: bool,
    /// The address of the other node that it is on, in its own family, if that is known.
    pub node: Option<IpAddr>,
}

impl Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        SocketAddr::new(self.address, self.port).fmt(f)
    }
}

/// Where a load balancer outside the cluster asks whether this node serves a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    pub port: u16,
    /// The answer is yes if there is any; their number is the node's weight.
    pub local_endpoints: usize,
}

/// What of this node the rules ask for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeContext {
    pub name: String,
    pub zone: Option<String>,
    /// How clients' packets get to other nodes, unless a Service says otherwise.
    pub forwarding: Forwarding,
    /// Of every node that is known, by name.
    pub nodes: BTreeMap<String, NodeAddresses>,
}

/// Under which addresses of its own the cluster knows a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeAddresses(pub BTreeSet<IpAddr>);

impl NodeAddresses {
    pub fn of(node: &ApiNode) -> Self {
        let addresses = node.status.iter().flat_map(|status| status.addresses.iter().flatten());
        let internal = addresses.filter(|address| address.type_ == "InternalIP");
        Self(internal.filter_map(|address| address.address.parse().ok()).collect())
    }

    /// Where tunnels for packets of a family lead.
    pub fn of_family(&self, family: AddressFamily) -> Option<IpAddr> {
        self.0.iter().copied().find(|address| AddressFamily::of(address) == family)
    }
}

impl NodeContext {
    /// `node` is what the API says about it, if it says anything.
    pub fn of(name: &str, node: Option<&Node>) -> Self {
        let zone = node.and_then(|node| node.zone.clone());
        Self { name: name.to_owned(), zone, ..Self::default() }
    }
}

/// Something in an object or file that can't be used, and why.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// The kind and name of the object, or the file and line.
    pub object: String,
    /// Empty if it is about all of it.
    pub field: String,
    pub message: String,
}

impl Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { object, field, message } = self;
        if field.is_empty() {
            write!(f, "{object}: {message}")
        } else {
            write!(f, "{object}: {field}: {message}")
        }
    }
}
