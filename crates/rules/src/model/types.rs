//! The types of the model.

use std::collections::BTreeSet;
use std::fmt::{self, Display};
use std::net::{IpAddr, SocketAddr};
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use lb_common::header::protocol;
use lb_common::layout::{Forwarding, FrontendKind};
use lb_common::maglev::Weight;

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

    /// By the API's name; TCP if there is none.
    pub fn parse(name: Option<&str>) -> Option<Self> {
        let name = name.filter(|name| !name.is_empty()).unwrap_or("TCP");
        Self::ALL.into_iter().find(|protocol| protocol.name() == name)
    }
}

/// The name of a Service, or of another object in a namespace. It has many copies, which share one
/// text.
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
pub enum TrafficPolicy {
    #[default]
    Cluster,
    Local,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServicePort {
    pub frontends: BTreeSet<Frontend>,
    /// The backends of the scope `cluster`; empty if there are none, or no frontend uses it.
    pub cluster: BTreeSet<Backend>,
    /// The backends of the scope `local`: those on this node.
    pub local: BTreeSet<Backend>,
    /// Whether all ready endpoints have topology hints: then other nodes may have another cluster
    /// pool.
    pub is_hinted: bool,
    /// Endpoints in neither pool: they get no new connections, and keep existing ones.
    pub draining: BTreeSet<Backend>,
    /// Whether any endpoint on any node serves it. If so, clients that may use none of them are
    /// left to retry instead of being refused.
    pub populated: bool,
    pub external_policy: TrafficPolicy,
    pub internal_policy: TrafficPolicy,
    /// How long a client is assigned to its backend after its last new connection.
    pub affinity: Option<Duration>,
    /// How packets of clients outside reach backends on other nodes.
    pub forwarding: Forwarding,
    /// Addresses of its frontends that are this node's own: only this node can reply from them, so packets to them use
    /// no tunnels.
    pub lent: BTreeSet<IpAddr>,
    /// Load balancer addresses of its frontends that Millrace assigned, and that no node lends: unless a node has
    /// them, they behave like those of a host to packets that no port takes.
    pub assigned: BTreeSet<IpAddr>,
    /// The clients that may use the load balancer's addresses; empty: all.
    pub source_ranges: Vec<IpNet>,
}

impl ServicePort {
    /// Whether packets of clients outside reach backends on other nodes through tunnels.
    pub fn is_tunnelled(&self) -> bool {
        self.forwarding != Forwarding::Masquerade
    }

    /// Whether clients outside the cluster can connect to it.
    pub fn is_external(&self) -> bool {
        self.frontends.iter().any(|frontend| frontend.kind != FrontendKind::ClusterIp)
    }
}

/// What a client connects to; a NodePort has the unspecified address.
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
    /// The address of its node in the backend's family, if it is on another node and that is known.
    pub node: Option<IpAddr>,
    /// Its share of a pool's new connections.
    pub weight: Weight,
}

impl Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        SocketAddr::new(self.address, self.port).fmt(f)
    }
}

/// The port on which a load balancer outside the cluster checks whether this node serves a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    pub port: u16,
    /// The check succeeds if there are any; their number is the node's weight.
    pub local_endpoints: usize,
}

/// Something in an object or file that can't be used, and why.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// The kind and name of the object, or the file and line.
    pub object: String,
    /// Empty if the problem concerns the whole object.
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
