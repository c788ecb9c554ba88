//! The fields of an EndpointSlice that the rules use. The agent holds all slices of a cluster, and
//! endpoints are the most numerous objects.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::discovery::v1::{
    Endpoint as ApiEndpoint, EndpointHints, EndpointPort, EndpointSlice,
};

use super::address;
use super::fields::annotation;
use super::types::{AddressFamily, Protocol, ServiceName};
use super::weights::WEIGHT;

const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// The cluster's controller writes on a slice the time of the change that made it write the slice.
const TRIGGER_TIME: &str = "endpoints.kubernetes.io/last-change-trigger-time";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    /// The name of the slice.
    pub name: ServiceName,
    pub uid: Box<str>,
    /// The Service that it belongs to.
    pub service: Option<ServiceName>,
    /// When the change that it reports happened.
    pub trigger_time: Option<Timestamp>,
    /// The weight of its endpoints, as it is written.
    pub weight: Option<Box<str>>,
    pub address_type: AddressType,
    pub ports: Box<[Port]>,
    pub endpoints: Box<[Endpoint]>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AddressType {
    Of(AddressFamily),
    /// Host names: no packets can be sent to them.
    Fqdn,
    Unknown(Box<str>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Empty if it has no name.
    pub name: Box<str>,
    /// `Err`: the name of an unsupported protocol.
    pub protocol: Result<Protocol, Box<str>>,
    pub number: Option<i32>,
}

/// An endpoint of a slice, for all of its ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The first address; the API says that consumers must not use others.
    pub address: Result<IpAddr, Box<UnusableAddress>>,
    pub node_name: Option<Box<str>>,
    /// Shared by the endpoints of a slice.
    pub zone: Option<Arc<str>>,
    pub ready: bool,
    pub serving: bool,
    pub terminating: bool,
    pub hints: Option<Box<Hints>>,
}

/// Why an endpoint's address can't be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnusableAddress {
    /// Field of the endpoint.
    pub field: &'static str,
    pub message: String,
}

/// Nodes and zones that an endpoint should serve; `None`: no hint.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hints {
    pub for_nodes: Option<Box<[Box<str>]>>,
    pub for_zones: Option<Box<[Box<str>]>>,
}

impl From<EndpointSlice> for Slice {
    fn from(slice: EndpointSlice) -> Self {
        let metadata = slice.metadata;
        let name = ServiceName::of(&metadata);
        let label = metadata.labels.as_ref().and_then(|labels| labels.get(SERVICE_NAME));
        let service = label.map(|label| ServiceName::new(&name.namespace, label));
        let trigger_time = annotation(&metadata, TRIGGER_TIME);
        let trigger_time = trigger_time.and_then(|time| time.parse().ok());
        let weight = annotation(&metadata, WEIGHT).map(Into::into);
        let address_type = AddressType::read(slice.address_type);
        let endpoints = match address_type {
            AddressType::Of(family) => {
                let mut zones = BTreeSet::new();
                let all = slice.endpoints.into_iter().flatten();
                all.map(|endpoint| Endpoint::read(endpoint, family, &mut zones)).collect()
            }
            AddressType::Fqdn | AddressType::Unknown(_) => Box::default(),
        };
        Self {
            name,
            uid: metadata.uid.unwrap_or_default().into(),
            service,
            trigger_time,
            weight,
            address_type,
            ports: slice.ports.into_iter().flatten().map(Port::read).collect(),
            endpoints,
        }
    }
}

impl AddressType {
    fn read(name: String) -> Self {
        let family = AddressFamily::ALL.into_iter().find(|family| family.name() == name);
        match family {
            Some(family) => Self::Of(family),
            None if name == "FQDN" => Self::Fqdn,
            None => Self::Unknown(name.into()),
        }
    }
}

impl Port {
    fn read(port: EndpointPort) -> Self {
        let protocol = Protocol::parse(port.protocol.as_deref());
        Self {
            name: port.name.unwrap_or_default().into(),
            protocol: protocol.ok_or_else(|| port.protocol.unwrap_or_default().into()),
            number: port.port,
        }
    }
}

impl Endpoint {
    fn read(endpoint: ApiEndpoint, family: AddressFamily, zones: &mut BTreeSet<Arc<str>>) -> Self {
        let conditions = endpoint.conditions.as_ref();
        Self {
            address: read_address(endpoint.addresses.first(), family).map_err(Box::new),
            node_name: endpoint.node_name.map(Into::into),
            zone: endpoint.zone.map(|zone| shared(zone, zones)),
            ready: conditions.and_then(|c| c.ready).unwrap_or(true),
            serving: conditions.and_then(|c| c.serving).unwrap_or(true),
            terminating: conditions.and_then(|c| c.terminating).unwrap_or(false),
            hints: endpoint.hints.and_then(Hints::read),
        }
    }
}

fn shared(name: String, known: &mut BTreeSet<Arc<str>>) -> Arc<str> {
    if let Some(known) = known.get(name.as_str()) {
        return Arc::clone(known);
    }
    let name: Arc<str> = name.into();
    known.insert(Arc::clone(&name));
    name
}

fn read_address(text: Option<&String>, family: AddressFamily) -> Result<IpAddr, UnusableAddress> {
    let Some(text) = text else {
        let message = "is empty; the endpoint is skipped".to_owned();
        return Err(UnusableAddress { field: "addresses", message });
    };
    let address = address::parse_global(text).and_then(|address| {
        let fits = AddressFamily::of(&address) == family;
        if fits { Ok(address) } else { Err("is not of the slice's addressType") }
    });
    address.map_err(|why| UnusableAddress {
        field: "addresses[0]",
        message: format!("{text:?} {why}"),
    })
}

impl Hints {
    fn read(hints: EndpointHints) -> Option<Box<Self>> {
        let names = |names: Vec<String>| {
            (!names.is_empty()).then(|| names.into_iter().map(Into::into).collect())
        };
        let nodes = hints.for_nodes.into_iter().flatten().map(|node| node.name).collect();
        let zones = hints.for_zones.into_iter().flatten().map(|zone| zone.name).collect();
        let read = Self { for_nodes: names(nodes), for_zones: names(zones) };
        (read != Self::default()).then(|| Box::new(read))
    }
}
