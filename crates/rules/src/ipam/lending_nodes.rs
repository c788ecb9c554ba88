//! Which nodes lend ports of their own addresses, and which of them have endpoints of a Service.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::RangeInclusive;

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::pool::Problems;
use super::range::{Range, address_to_number};
use super::selector::{Labels, Selector};
use crate::kinds::{NodeAddressType, PoolNodes};
use crate::model::{AddressFamily, Node, ServiceName, Slice};

/// The part of a pool that stands for nodes.
#[derive(Clone, Debug, PartialEq)]
pub struct LendingNodes {
    pub(crate) address_type: NodeAddressType,
    pub(crate) ports: Vec<RangeInclusive<u16>>,
    /// `None`: all nodes.
    selector: Option<Selector>,
    /// The only addresses that count; `None`: all.
    limits: Option<Vec<Range>>,
}

impl LendingNodes {
    pub(super) fn read(
        object: &PoolNodes,
        limits: Option<Vec<Range>>,
        problems: &mut Problems,
    ) -> Self {
        let selectors = problems.selectors("spec.nodes.selector", object.selector.iter());
        let mut ports = Vec::new();
        for (index, written) in object.ports.iter().enumerate() {
            match read_ports(written) {
                Ok(range) => ports.push(range),
                Err(why) => problems.add(&format!("spec.nodes.ports[{index}]"), why),
            }
        }
        let selector = selectors.into_iter().next();
        Self { address_type: object.address_type, ports, selector, limits }
    }

    pub(crate) fn selects(&self, labels: &Labels) -> bool {
        self.selector.as_ref().is_none_or(|selector| selector.selects(labels))
    }

    pub(crate) fn lists(&self, port: u16) -> bool {
        self.ports.iter().any(|range| range.contains(&port))
    }

    /// The addresses of a node that count.
    fn addresses_of<'a>(
        &'a self,
        node: &'a Node,
        family: AddressFamily,
    ) -> impl Iterator<Item = IpAddr> + 'a {
        let all = match self.address_type {
            NodeAddressType::ExternalIP => &node.external_addresses,
            NodeAddressType::InternalIP => &node.addresses.0,
        };
        let of_family = all.iter().copied().filter(move |at| AddressFamily::of(at) == family);
        of_family.filter(|address| {
            let number = address_to_number(*address);
            let within = |limits: &Vec<Range>| limits.iter().any(|range| range.contains(number));
            Range::parse(&address.to_string()).is_ok() && self.limits.as_ref().is_none_or(within)
        })
    }

    /// The addresses of healthy nodes in the order of their names; of those that `serves` accepts.
    pub(crate) fn list_addresses<'a>(
        &self,
        nodes: impl Iterator<Item = &'a Node>,
        family: AddressFamily,
        serves: impl Fn(&Node) -> bool,
    ) -> Vec<IpAddr> {
        let mut seen = BTreeSet::new();
        let healthy = nodes.filter(|node| node.is_healthy && self.selects(&node.labels));
        let serving: Vec<&Node> = healthy.filter(|node| serves(node)).collect();
        let all = serving.iter().flat_map(|node| self.addresses_of(node, family));
        // Two Nodes may name one address.
        all.filter(|address| seen.insert(*address)).collect()
    }
}

/// Reads a port or a range of ports. The error is a sentence.
fn read_ports(written: &IntOrString) -> Result<RangeInclusive<u16>, String> {
    let text = match written {
        IntOrString::Int(port) => port.to_string(),
        IntOrString::String(text) => text.clone(),
    };
    let (first, last) = text.split_once('-').unwrap_or((&text, &text));
    let port = |text: &str| text.trim().parse::<u16>().ok().filter(|port| *port > 0);
    match (port(first), port(last)) {
        (Some(first), Some(last)) if first <= last => Ok(first..=last),
        _ => Err(format!("{text:?} is neither a port (443) nor a range of ports (8000-8999)")),
    }
}

/// The nodes with endpoints of each Service. Much smaller than the slices.
#[derive(Clone, Debug, Default)]
pub struct EndpointNodes {
    slices: BTreeMap<ServiceName, SliceNodes>,
    by_service: BTreeMap<ServiceName, BTreeSet<ServiceName>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct SliceNodes {
    service: ServiceName,
    ready: BTreeSet<Box<str>>,
    /// With endpoints that serve until they end.
    ending: BTreeSet<Box<str>>,
}

impl EndpointNodes {
    /// Returns the Services whose nodes have changed.
    pub fn apply(&mut self, slice: &Slice) -> BTreeSet<ServiceName> {
        let Some(service) = slice.service.clone() else { return self.remove(&slice.name) };
        let mut ready = BTreeSet::new();
        let mut ending = BTreeSet::new();
        for endpoint in &slice.endpoints {
            let Some(node) = &endpoint.node_name else { continue };
            if endpoint.ready && !endpoint.terminating {
                ready.insert(node.clone());
            } else if endpoint.serving && endpoint.terminating {
                ending.insert(node.clone());
            }
        }
        let nodes = SliceNodes { service: service.clone(), ready, ending };
        if self.slices.get(&slice.name) == Some(&nodes) {
            return BTreeSet::new();
        }
        let mut affected = self.remove(&slice.name);
        self.by_service.entry(service.clone()).or_default().insert(slice.name.clone());
        self.slices.insert(slice.name.clone(), nodes);
        affected.insert(service);
        affected
    }

    /// Returns the Services whose nodes have changed.
    pub fn remove(&mut self, slice: &ServiceName) -> BTreeSet<ServiceName> {
        let Some(nodes) = self.slices.remove(slice) else { return BTreeSet::new() };
        if let Some(of_service) = self.by_service.get_mut(&nodes.service) {
            of_service.remove(slice);
            if of_service.is_empty() {
                self.by_service.remove(&nodes.service);
            }
        }
        BTreeSet::from([nodes.service])
    }

    /// The nodes with ready endpoints; without any, those with endpoints that serve until they end.
    pub(super) fn of_service(&self, service: &ServiceName) -> BTreeSet<&str> {
        let slices = self.by_service.get(service).into_iter().flatten();
        let slices: Vec<&SliceNodes> = slices.filter_map(|name| self.slices.get(name)).collect();
        let ready: BTreeSet<&str> =
            slices.iter().flat_map(|nodes| &nodes.ready).map(|name| &**name).collect();
        if !ready.is_empty() {
            return ready;
        }
        slices.iter().flat_map(|nodes| &nodes.ending).map(|name| &**name).collect()
    }
}
