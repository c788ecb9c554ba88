//! The fields of an EndpointSlice that the rules use. The agent holds all slices of a cluster, and
//! endpoints are the most numerous objects.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use serde::Deserialize;

use super::address;
use super::api_slice::{ApiEndpoint, ApiHints, ApiPort, ApiSlice, Fields, Named, Text, or_empty};
use super::types::{AddressFamily, Protocol, ServiceName};

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

impl From<ApiSlice<'_>> for Slice {
    fn from(slice: ApiSlice<'_>) -> Self {
        let Fields(metadata) = slice.metadata.unwrap_or_default();
        let namespace = metadata.namespace.as_ref().map(Text::as_str);
        let namespace = namespace.filter(|namespace| !namespace.is_empty()).unwrap_or("default");
        let Fields(labels) = metadata.labels.unwrap_or_default();
        let Fields(annotations) = metadata.annotations.unwrap_or_default();
        let address_type = AddressType::read(or_empty(&slice.address_type));
        let endpoints = match address_type {
            AddressType::Of(family) => {
                let mut zones = BTreeSet::new();
                let all = slice.endpoints.iter().flatten();
                all.map(|endpoint| Endpoint::read(endpoint, family, &mut zones)).collect()
            }
            AddressType::Fqdn | AddressType::Unknown(_) => Box::default(),
        };
        Self {
            name: ServiceName::new(namespace, or_empty(&metadata.name)),
            uid: or_empty(&metadata.uid).into(),
            service: labels.service_name.map(|name| ServiceName::new(namespace, name.as_str())),
            trigger_time: annotations.trigger_time.and_then(|time| time.as_str().parse().ok()),
            weight: annotations.weight.as_ref().map(boxed),
            address_type,
            ports: slice.ports.iter().flatten().map(|port| Port::read(port)).collect(),
            endpoints,
        }
    }
}

/// Of the few slices that are not read from a text.
impl From<&EndpointSlice> for Slice {
    fn from(slice: &EndpointSlice) -> Self {
        // The text of a slice is one: nothing fails.
        let json = serde_json::to_value(slice).unwrap_or_default();
        let Fields(slice) = Fields::<ApiSlice<'_>>::deserialize(&json).unwrap_or_default();
        slice.into()
    }
}

impl AddressType {
    fn read(name: &str) -> Self {
        let family = AddressFamily::ALL.into_iter().find(|family| family.name() == name);
        match family {
            Some(family) => Self::Of(family),
            None if name == "FQDN" => Self::Fqdn,
            None => Self::Unknown(name.into()),
        }
    }
}

impl Port {
    fn read(port: &ApiPort<'_>) -> Self {
        let protocol = Protocol::parse(port.protocol.as_ref().map(Text::as_str));
        Self {
            name: or_empty(&port.name).into(),
            protocol: protocol.ok_or_else(|| or_empty(&port.protocol).into()),
            number: port.port,
        }
    }
}

impl Endpoint {
    fn read(
        endpoint: &ApiEndpoint<'_>,
        family: AddressFamily,
        zones: &mut BTreeSet<Arc<str>>,
    ) -> Self {
        let conditions = endpoint.conditions.as_ref();
        let address = endpoint.addresses.as_ref().and_then(|addresses| addresses.first());
        Self {
            address: read_address(address.map(Text::as_str), family).map_err(Box::new),
            node_name: endpoint.node_name.as_ref().map(boxed),
            zone: endpoint.zone.as_ref().map(|zone| share_name(zone.as_str(), zones)),
            ready: conditions.and_then(|c| c.ready).unwrap_or(true),
            serving: conditions.and_then(|c| c.serving).unwrap_or(true),
            terminating: conditions.and_then(|c| c.terminating).unwrap_or(false),
            hints: endpoint.hints.as_ref().and_then(|hints| Hints::read(hints)),
        }
    }
}

fn boxed(text: &Text<'_>) -> Box<str> {
    text.as_str().into()
}

fn share_name(name: &str, known: &mut BTreeSet<Arc<str>>) -> Arc<str> {
    if let Some(known) = known.get(name) {
        return Arc::clone(known);
    }
    let name: Arc<str> = name.into();
    known.insert(Arc::clone(&name));
    name
}

fn read_address(text: Option<&str>, family: AddressFamily) -> Result<IpAddr, UnusableAddress> {
    let Some(text) = text else {
        let message = "is empty; the endpoint is skipped".to_owned();
        return Err(UnusableAddress { field: "addresses", message });
    };
    let address = address::parse_global_address(text).and_then(|address| {
        let fits = AddressFamily::of(&address) == family;
        if fits { Ok(address) } else { Err("is not of the slice's addressType") }
    });
    address.map_err(|why| UnusableAddress {
        field: "addresses[0]",
        message: format!("{text:?} {why}"),
    })
}

impl Hints {
    fn read(hints: &ApiHints<'_>) -> Option<Box<Self>> {
        let names = |all: &Option<Vec<Fields<Named<'_>>>>| {
            let all = all.as_ref().filter(|all| !all.is_empty())?;
            Some(all.iter().map(|named| or_empty(&named.name).into()).collect())
        };
        let read = Self { for_nodes: names(&hints.for_nodes), for_zones: names(&hints.for_zones) };
        (read != Self::default()).then(|| Box::new(read))
    }
}
