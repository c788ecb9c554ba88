//! Which nodes lend ports of their own addresses, and which of them have endpoints of a Service.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::RangeInclusive;

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::problems::Problems;
use super::range::{Range, address_to_number};
use super::selector::{Labels, Selector};
use crate::kinds::{NodeAddressType, PoolNodes};
use crate::model::{AddressFamily, AddressType, Node, ProtocolPort, ServiceName, Slice};

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

    /// The address of a node that counts: one of each family, so that no node can fill the lists with its own.
    pub(super) fn address_of(&self, node: &Node, family: AddressFamily) -> Option<IpAddr> {
        let all = match self.address_type {
            NodeAddressType::ExternalIP => &node.external_addresses,
            NodeAddressType::InternalIP => &node.addresses.0,
        };
        let mut of_family = all.iter().copied().filter(|at| AddressFamily::of(at) == family);
        of_family.find(|address| {
            let number = address_to_number(*address);
            let within = |limits: &Vec<Range>| limits.iter().any(|range| range.contains(number));
            Range::parse(&address.to_string()).is_ok() && self.limits.as_ref().is_none_or(within)
        })
    }

    /// The addresses of selected nodes in the order of their names; of those that `serves` accepts.
    pub(crate) fn list_addresses<'a>(
        &self,
        nodes: impl Iterator<Item = &'a Node>,
        family: AddressFamily,
        serves: impl Fn(&Node) -> bool,
    ) -> ListedNodes {
        let with_address = |node: &'a Node| Some((node, self.address_of(node, family)?));
        let selected = nodes.filter(|node| self.selects(&node.labels));
        let selected: Vec<(&Node, IpAddr)> = selected.filter_map(with_address).collect();
        // An address that several Nodes name is that of the oldest: no other can keep it listed, or remove it.
        let mut owners: BTreeMap<IpAddr, &Node> = BTreeMap::new();
        for (node, address) in &selected {
            let owner = owners.entry(*address).or_insert(node);
            if (node.created, &node.name) < (owner.created, &owner.name) {
                *owner = node;
            }
        }
        let owning = selected.iter().filter(|(node, address)| owners[address].name == node.name);
        let owning: Vec<&(&Node, IpAddr)> = owning.filter(|(node, _)| node.may_lend).collect();
        // If none is ready, it is rather the control plane that has lost the nodes: the data plane goes on.
        let is_any_ready = owning.iter().any(|(node, _)| node.is_healthy);
        let listed = owning.iter().filter(|(node, _)| node.is_healthy || !is_any_ready);
        let serving = listed.filter(|(node, _)| serves(node));
        let addresses: Vec<IpAddr> = serving.map(|(_, address)| *address).collect();
        ListedNodes { is_none_ready: !is_any_ready && !addresses.is_empty(), addresses }
    }
}

/// Addresses of one family.
pub(crate) struct ListedNodes {
    pub(crate) addresses: Vec<IpAddr>,
    /// Whether no node is ready, so that those are listed that are not.
    pub(crate) is_none_ready: bool,
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

/// The Service of the API servers.
pub fn api_server_service() -> ServiceName {
    ServiceName::new("default", "kubernetes")
}

/// Addresses and ports of API servers, if a slice is one of theirs.
pub(super) fn list_api_servers(slice: &Slice) -> impl Iterator<Item = (IpAddr, u16)> + '_ {
    let is_theirs = slice.service.as_ref() == Some(&api_server_service());
    let endpoints = slice.endpoints.iter().filter(move |_| is_theirs);
    endpoints.filter_map(|endpoint| endpoint.address.as_ref().ok()).flat_map(|address| {
        let ports = slice.ports.iter().filter_map(|port| u16::try_from(port.number?).ok());
        ports.map(|port| (*address, port))
    })
}

/// The nodes with endpoints of each Service. Much smaller than the slices.
#[derive(Clone, Debug, Default)]
pub struct EndpointNodes {
    slices: BTreeMap<ServiceName, SliceNodes>,
    /// Addresses and ports of API servers, by slice.
    api_servers: BTreeMap<ServiceName, BTreeSet<(IpAddr, u16)>>,
    by_service: BTreeMap<ServiceName, BTreeSet<ServiceName>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct SliceNodes {
    service: ServiceName,
    address_type: AddressType,
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
        let address_type = slice.address_type.clone();
        let nodes = SliceNodes { service: service.clone(), address_type, ready, ending };
        let api_servers: BTreeSet<(IpAddr, u16)> = list_api_servers(slice).collect();
        let known = self.api_servers.get(&slice.name);
        let is_same_server = known.map_or(api_servers.is_empty(), |known| *known == api_servers);
        if is_same_server && self.slices.get(&slice.name) == Some(&nodes) {
            return BTreeSet::new();
        }
        let mut affected = self.remove(&slice.name);
        self.by_service.entry(service.clone()).or_default().insert(slice.name.clone());
        self.slices.insert(slice.name.clone(), nodes);
        if !api_servers.is_empty() {
            self.api_servers.insert(slice.name.clone(), api_servers);
        }
        affected.insert(service);
        affected
    }

    /// Returns the Services whose nodes have changed.
    pub fn remove(&mut self, slice: &ServiceName) -> BTreeSet<ServiceName> {
        let Some(nodes) = self.slices.remove(slice) else { return BTreeSet::new() };
        self.api_servers.remove(slice);
        if let Some(of_service) = self.by_service.get_mut(&nodes.service) {
            of_service.remove(slice);
            if of_service.is_empty() {
                self.by_service.remove(&nodes.service);
            }
        }
        BTreeSet::from([nodes.service])
    }

    /// Whether an API server listens at one of these ports of a node.
    pub(super) fn has_api_server(&self, node: &Node, ports: &BTreeSet<ProtocolPort>) -> bool {
        let mut servers = self.api_servers.values().flatten();
        servers.any(|(address, port)| {
            ports.iter().any(|(_, wanted)| wanted == port) && node.has_address(*address)
        })
    }

    /// The nodes with ready endpoints of a family; without any, those with endpoints that serve until they end.
    pub(super) fn of_service(
        &self,
        service: &ServiceName,
        family: AddressFamily,
    ) -> BTreeSet<&str> {
        let slices = self.by_service.get(service).into_iter().flatten();
        let slices = slices.filter_map(|name| self.slices.get(name));
        let slices: Vec<&SliceNodes> =
            slices.filter(|slice| slice.address_type == AddressType::Of(family)).collect();
        let ready: BTreeSet<&str> =
            slices.iter().flat_map(|nodes| &nodes.ready).map(|name| &**name).collect();
        if !ready.is_empty() {
            return ready;
        }
        slices.iter().flat_map(|nodes| &nodes.ending).map(|name| &**name).collect()
    }
}
