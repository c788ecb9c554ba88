//! Which endpoints serve a service port, from all of its Service's slices.

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::discovery::v1::{Endpoint as ApiEndpoint, EndpointSlice};

use super::address;
use super::types::{
    AddressFamily, Backend, NodeContext, Problem, Protocol, ServiceName, ServicePortKey,
};

/// Host names are no addresses: nothing can be sent to `FQDN`.
const ADDRESS_TYPES: [&str; 3] = ["IPv4", "IPv6", "FQDN"];

/// An endpoint of one service port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    pub backend: Backend,
    pub ready: bool,
    pub serving: bool,
    pub terminating: bool,
    /// Whom it wants to serve; `None`: no hint.
    pub for_nodes: Option<Vec<String>>,
    pub for_zones: Option<Vec<String>>,
}

impl Endpoint {
    /// Ends, but still serves: for clients who would find nobody else.
    pub fn is_last_resort(&self) -> bool {
        self.serving && self.terminating
    }

    /// Whether it is in the pool of some node.
    pub fn may_serve(&self) -> bool {
        self.ready || self.is_last_resort()
    }
}

/// The endpoints of a service port, each address and port once.
pub fn of_port(
    key: &ServicePortKey,
    slices: &[&EndpointSlice],
    node: &NodeContext,
    problems: &mut Vec<Problem>,
) -> Vec<Endpoint> {
    let mut found: BTreeMap<(IpAddr, u16), Endpoint> = BTreeMap::new();
    for slice in slices {
        if slice.address_type != key.family.name() {
            if !ADDRESS_TYPES.contains(&slice.address_type.as_str()) {
                let message =
                    format!("{:?} is none of {}", slice.address_type, ADDRESS_TYPES.join(", "));
                problems.push(problem(slice, "addressType".to_owned(), message));
            }
            continue;
        }
        let Some(port) = port_of(key, slice, problems) else { continue };
        for (index, endpoint) in slice.endpoints.iter().flatten().enumerate() {
            let Some(endpoint) = read(key, slice, index, endpoint, port, node, problems) else {
                continue;
            };
            let place = (endpoint.backend.address, port);
            // Slices may overlap while an endpoint moves from one to another.
            match found.get(&place) {
                Some(known) if preference(known) >= preference(&endpoint) => {}
                _ => {
                    found.insert(place, endpoint);
                }
            }
        }
    }
    found.into_values().collect()
}

/// Of one address seen twice, the one that lives on; then a fixed order, so that the order of
/// slices does not matter.
fn preference(endpoint: &Endpoint) -> (bool, bool, bool, bool, [&Option<Vec<String>>; 2]) {
    let Endpoint { backend, ready, serving, terminating, for_nodes, for_zones } = endpoint;
    (!terminating, *ready, *serving, backend.local, [for_nodes, for_zones])
}

/// The target port in this slice: ports join by name and protocol.
fn port_of(
    key: &ServicePortKey,
    slice: &EndpointSlice,
    problems: &mut Vec<Problem>,
) -> Option<u16> {
    for (index, port) in slice.ports.iter().flatten().enumerate() {
        if port.name.as_deref().unwrap_or_default() != key.port {
            continue;
        }
        let protocol = Protocol::parse(port.protocol.as_deref());
        if protocol.is_none() {
            let name = port.protocol.clone().unwrap_or_default();
            let message = format!("{name:?} is none of TCP, UDP, SCTP");
            problems.push(problem(slice, format!("ports[{index}].protocol"), message));
        }
        if protocol != Some(key.protocol) {
            continue;
        }
        let number = port.port.and_then(|port| u16::try_from(port).ok()).filter(|&port| port != 0);
        if number.is_none() {
            let message = match port.port {
                None => "is missing, so nothing can be sent there".to_owned(),
                Some(port) => format!("{port} is not between 1 and 65535"),
            };
            problems.push(problem(slice, format!("ports[{index}].port"), message));
        }
        return number;
    }
    None
}

fn read(
    key: &ServicePortKey,
    slice: &EndpointSlice,
    index: usize,
    endpoint: &ApiEndpoint,
    port: u16,
    node: &NodeContext,
    problems: &mut Vec<Problem>,
) -> Option<Endpoint> {
    // Only the first counts; the API says that consumers must not use more.
    let Some(text) = endpoint.addresses.first() else {
        let field = format!("endpoints[{index}].addresses");
        problems.push(problem(slice, field, "is empty; the endpoint is skipped".to_owned()));
        return None;
    };
    let address = address::parse_global(text).and_then(|address| {
        let fits = AddressFamily::of(&address) == key.family;
        if fits { Ok(address) } else { Err("is not of the slice's addressType") }
    });
    let address = address.map_err(|why| {
        let field = format!("endpoints[{index}].addresses[0]");
        problems.push(problem(slice, field, format!("{text:?} {why}")));
    });
    let address = address.ok()?;
    let conditions = endpoint.conditions.as_ref();
    let hints = endpoint.hints.as_ref();
    let names =
        |names: Vec<&String>| (!names.is_empty()).then(|| names.into_iter().cloned().collect());
    let place = endpoint.node_name.as_deref();
    let local = place == Some(node.name.as_str());
    let known = place.filter(|_| !local).and_then(|name| node.nodes.get(name));
    Some(Endpoint {
        backend: Backend {
            address,
            port,
            local,
            node: known.and_then(|addresses| addresses.of_family(key.family)),
        },
        ready: conditions.and_then(|c| c.ready).unwrap_or(true),
        serving: conditions.and_then(|c| c.serving).unwrap_or(true),
        terminating: conditions.and_then(|c| c.terminating).unwrap_or(false),
        for_nodes: names(
            hints.iter().flat_map(|h| h.for_nodes.iter().flatten()).map(|n| &n.name).collect(),
        ),
        for_zones: names(
            hints.iter().flat_map(|h| h.for_zones.iter().flatten()).map(|z| &z.name).collect(),
        ),
    })
}

fn problem(slice: &EndpointSlice, field: String, message: String) -> Problem {
    let object = format!("EndpointSlice {}", ServiceName::of(&slice.metadata));
    Problem { object, field, message }
}
