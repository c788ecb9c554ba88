//! Which endpoints serve a service port, from all slices of its Service.

use std::collections::BTreeMap;
use std::net::IpAddr;

use lb_common::maglev::{DEFAULT_WEIGHT, Weight};

use super::node_context::NodeContext;
use super::slice::{self, AddressType, Hints, Slice};
use super::types::{AddressFamily, Backend, Problem, ServicePortKey};
use super::weights::{self, WEIGHT, Weights};

/// An endpoint of one service port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortEndpoint<'a> {
    pub backend: Backend,
    pub ready: bool,
    pub serving: bool,
    pub terminating: bool,
    /// The nodes and zones that it should serve.
    pub hints: Option<&'a Hints>,
    /// Its node is dead by all signs.
    pub on_dead_node: bool,
}

impl<'a> PortEndpoint<'a> {
    pub(crate) fn for_nodes(&self) -> Option<&'a [Box<str>]> {
        self.hints?.for_nodes.as_deref()
    }

    pub(crate) fn for_zones(&self) -> Option<&'a [Box<str>]> {
        self.hints?.for_zones.as_deref()
    }

    /// Whether the endpoint terminates, but still serves: used only if no endpoint is ready.
    pub(crate) fn is_last_resort(&self) -> bool {
        self.serving && self.terminating
    }

    /// Whether it may be in the pool of some node.
    pub(crate) fn may_serve(&self) -> bool {
        self.ready || self.is_last_resort()
    }
}

/// The endpoints of a service port, each address and port once.
pub(crate) fn endpoints_of_port<'a>(
    key: &ServicePortKey,
    slices: &[&'a Slice],
    weights: &Weights<'_>,
    node: &NodeContext,
    problems: &mut Vec<Problem>,
) -> Vec<PortEndpoint<'a>> {
    let mut found: BTreeMap<(IpAddr, u16), PortEndpoint<'a>> = BTreeMap::new();
    for slice in slices {
        match &slice.address_type {
            AddressType::Of(family) if *family == key.family => {}
            AddressType::Of(_) | AddressType::Fqdn => continue,
            AddressType::Unknown(name) => {
                let message = format!("{name:?} is not one of IPv4, IPv6, FQDN");
                problems.push(slice_problem(slice, "addressType".to_owned(), message));
                continue;
            }
        }
        let Some(port) = port_of(key, slice, problems) else { continue };
        let weight = weight_of(slice, problems);
        for (index, endpoint) in slice.endpoints.iter().enumerate() {
            let (node_name, zone) = (endpoint.node_name.as_deref(), endpoint.zone.as_deref());
            let weight = weights.of(weight, node_name, zone);
            let Some(endpoint) =
                read_endpoints(slice, index, endpoint, port, weight, node, problems)
            else {
                continue;
            };
            let end = (endpoint.backend.address, port);
            // Slices may overlap while an endpoint moves from one to another.
            match found.get(&end) {
                Some(known) if preference(known) >= preference(&endpoint) => {}
                _ => {
                    found.insert(end, endpoint);
                }
            }
        }
    }
    let mut endpoints: Vec<PortEndpoint<'a>> = found.into_values().collect();
    set_aside_on_dead_nodes(&mut endpoints);
    endpoints
}

/// Treats endpoints on dead nodes as neither ready nor serving, unless no other endpoint may serve.
fn set_aside_on_dead_nodes(endpoints: &mut [PortEndpoint<'_>]) {
    if endpoints.iter().any(|endpoint| endpoint.may_serve() && !endpoint.on_dead_node) {
        for endpoint in endpoints.iter_mut().filter(|endpoint| endpoint.on_dead_node) {
            (endpoint.ready, endpoint.serving) = (false, false);
        }
    }
}

/// Orders endpoints with the same address: the one that is not terminating wins. The other fields
/// make the result independent of the order of slices.
fn preference<'a>(
    endpoint: &PortEndpoint<'a>,
) -> (bool, bool, bool, bool, Weight, Option<&'a Hints>) {
    let &PortEndpoint { backend, ready, serving, terminating, hints, on_dead_node: _ } = endpoint;
    (!terminating, ready, serving, backend.local, backend.weight, hints)
}

/// The weight in the slice's annotation.
fn weight_of(slice: &Slice, problems: &mut Vec<Problem>) -> Option<u16> {
    let text = slice.weight.as_deref()?;
    let ignore = |why| {
        let message = format!("{text:?} {why}; ignored");
        problems.push(slice_problem(slice, format!("metadata.annotations[{WEIGHT}]"), message));
    };
    weights::parse_weight(text).map_err(ignore).ok()
}

/// The target port in this slice. Ports match by name and protocol.
fn port_of(key: &ServicePortKey, slice: &Slice, problems: &mut Vec<Problem>) -> Option<u16> {
    for (index, port) in slice.ports.iter().enumerate() {
        if *port.name != *key.port {
            continue;
        }
        if let Err(name) = &port.protocol {
            let message = format!("{name:?} is not one of TCP, UDP, SCTP");
            problems.push(slice_problem(slice, format!("ports[{index}].protocol"), message));
        }
        if port.protocol != Ok(key.protocol) {
            continue;
        }
        let number = port.number.and_then(|port| u16::try_from(port).ok());
        let number = number.filter(|&port| port != 0);
        if number.is_none() {
            let message = match port.number {
                None => "is missing, so nothing can be sent there".to_owned(),
                Some(port) => format!("{port} is not between 1 and 65535"),
            };
            problems.push(slice_problem(slice, format!("ports[{index}].port"), message));
        }
        return number;
    }
    None
}

fn read_endpoints<'a>(
    slice: &Slice,
    index: usize,
    endpoint: &'a slice::SliceEndpoint,
    port: u16,
    weight: Option<Weight>,
    node: &NodeContext,
    problems: &mut Vec<Problem>,
) -> Option<PortEndpoint<'a>> {
    let address = match &endpoint.address {
        Ok(address) => *address,
        Err(wrong) => {
            let field = format!("endpoints[{index}].{}", wrong.field);
            problems.push(slice_problem(slice, field, wrong.message.clone()));
            return None;
        }
    };
    let node_name = endpoint.node_name.as_deref();
    let local = node_name == Some(node.name.as_str());
    let known = node_name.filter(|_| !local).and_then(|name| node.nodes.get(name));
    Some(PortEndpoint {
        backend: Backend {
            address,
            port,
            local,
            node: known.and_then(|addresses| addresses.of_family(AddressFamily::of(&address))),
            weight: weight.unwrap_or(DEFAULT_WEIGHT),
        },
        // With weight 0 it keeps its connections, and gets no new ones.
        ready: endpoint.ready && weight.is_some(),
        serving: endpoint.serving && weight.is_some(),
        terminating: endpoint.terminating,
        hints: endpoint.hints.as_deref(),
        on_dead_node: node_name.is_some_and(|name| node.dead_nodes.contains(name)),
    })
}

fn slice_problem(slice: &Slice, field: String, message: String) -> Problem {
    Problem { object: format!("EndpointSlice {}", slice.name), field, message }
}
