//! The fields of an EndpointSlice that the rules use. The agent holds all slices of a cluster, and
//! endpoints are the most numerous objects.

use std::net::IpAddr;
use std::sync::Arc;

use jiff::Timestamp;

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
    pub ports: Box<[SlicePort]>,
    pub endpoints: Box<[SliceEndpoint]>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AddressType {
    Of(AddressFamily),
    /// Host names: no packets can be sent to them.
    Fqdn,
    Unknown(Box<str>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlicePort {
    /// Empty if it has no name.
    pub name: Box<str>,
    /// `Err`: the name of an unsupported protocol.
    pub protocol: Result<Protocol, Box<str>>,
    pub number: Option<i32>,
}

/// An endpoint of a slice, for all of its ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceEndpoint {
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
