//! What a Service requests: addresses, a pool, families, sharing. Reads fields and annotations.

use std::collections::BTreeSet;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Service, ServiceSpec};

use super::selector::Labels;
use crate::kinds::service::{ADDRESSES, POOL, SHARING_KEY, is_marked};
use crate::model::{AddressFamily, PortGrant, Protocol, ProtocolPort, is_lending};

/// Addresses of one Service. An annotation has room for all addresses of a pool.
const MOST_ADDRESSES: usize = 16;

/// `spec.ipFamilyPolicy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum FamilyPolicy {
    #[default]
    Single,
    Prefer,
    Require,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AddressRequest {
    pub labels: Labels,
    /// The Service's own families, in its order.
    pub families: Vec<AddressFamily>,
    pub policy: FamilyPolicy,
    /// Empty: any address.
    pub addresses: Vec<IpAddr>,
    pub pool: Option<String>,
    pub sharing_key: Option<String>,
    pub ports: BTreeSet<ProtocolPort>,
    /// With policy Local: the selector of its pods. Nodes without one of them don't serve the address, so Services that
    /// share it must have the same.
    pub local_backends: Option<Labels>,
    /// What can't be read.
    pub fault: Option<String>,
}

/// The addresses of a Service's status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeldAddresses {
    pub addresses: Vec<IpAddr>,
    /// Ports on addresses of nodes, which are not among the addresses.
    pub grant: Option<PortGrant>,
    /// Whether there are others than addresses that nodes serve themselves: host names, or addresses of a proxy.
    pub has_others: bool,
}

impl AddressRequest {
    /// `None` if it is not of type LoadBalancer.
    pub fn of(service: &Service) -> Option<Self> {
        let spec = service.spec.as_ref()?;
        if spec.type_.as_deref() != Some("LoadBalancer") {
            return None;
        }
        let mut fault = None;
        let addresses = requested(service, spec, &mut fault);
        Some(Self {
            labels: service.metadata.labels.clone().unwrap_or_default(),
            families: families(spec),
            policy: policy(spec),
            addresses,
            pool: read_annotation(service, &POOL, &mut fault),
            sharing_key: read_annotation(service, &SHARING_KEY, &mut fault),
            ports: requested_ports(spec),
            local_backends: (spec.external_traffic_policy.as_deref() == Some("Local"))
                .then(|| spec.selector.clone().unwrap_or_default()),
            fault,
        })
    }

    /// The families that it needs or would take.
    pub(crate) fn wanted_families(&self) -> Vec<AddressFamily> {
        let mut families = self.families.clone();
        if self.policy == FamilyPolicy::Require {
            families
                .extend(AddressFamily::ALL.iter().filter(|family| !self.families.contains(family)));
        }
        if self.policy == FamilyPolicy::Single {
            families.truncate(1);
        }
        families
    }
}

impl HeldAddresses {
    pub fn of(service: &Service) -> Self {
        let mut held = Self { grant: PortGrant::of(service), ..Self::default() };
        let is_marked = is_marked(service);
        let balancer = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
        for point in balancer.iter().flat_map(|balancer| balancer.ingress.iter().flatten()) {
            if is_marked && is_lending(point) {
                continue;
            }
            let address = point.ip.as_deref().and_then(|text| text.parse::<IpAddr>().ok());
            held.addresses.extend(address.map(|address| address.to_canonical()));
            let is_virtual = point.ip_mode.as_deref().is_none_or(|mode| mode == "VIP");
            held.has_others |= address.is_none() || !is_virtual;
        }
        held.addresses.sort_unstable();
        held.addresses.dedup();
        held
    }
}

/// The value of the first annotation that there is. Two that differ are a fault.
fn read_annotation(
    service: &Service,
    names: &[&str],
    fault: &mut Option<String>,
) -> Option<String> {
    let annotations = service.metadata.annotations.as_ref()?;
    let mut found = names.iter().filter_map(|name| {
        let value = annotations.get(*name)?.trim();
        (!value.is_empty()).then_some((*name, value))
    });
    let (name, value) = found.next()?;
    if let Some((other, _)) = found.find(|(_, other)| *other != value) {
        let message = format!("the annotations {name} and {other} differ: remove one of them");
        fault.get_or_insert(message);
    }
    Some(value.to_owned())
}

/// Addresses of `spec.loadBalancerIP` and of annotations. If several name addresses, they must name the same.
fn requested(service: &Service, spec: &ServiceSpec, fault: &mut Option<String>) -> Vec<IpAddr> {
    let annotations = service.metadata.annotations.iter().flatten();
    let mut texts: Vec<(&str, &str)> = annotations
        .filter(|(name, _)| ADDRESSES.contains(&name.as_str()))
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    texts.extend(spec.load_balancer_ip.as_deref().map(|text| ("spec.loadBalancerIP", text)));
    let mut first: Option<(&str, Vec<IpAddr>)> = None;
    for (field, text) in texts {
        let mut addresses = Vec::new();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            match part.parse::<IpAddr>() {
                Ok(address) => addresses.push(address.to_canonical()),
                Err(_) => {
                    fault.get_or_insert(format!("{field}: {part:?} is not an IP address"));
                }
            }
        }
        addresses.sort_unstable();
        addresses.dedup();
        if addresses.is_empty() {
            continue;
        }
        match &first {
            None => first = Some((field, addresses)),
            Some((other, others)) if *others != addresses => {
                let message =
                    format!("{other} and {field} request different addresses: remove one");
                fault.get_or_insert(message);
            }
            Some(_) => {}
        }
    }
    let (field, mut addresses) = first.unwrap_or_default();
    if addresses.len() > MOST_ADDRESSES {
        fault.get_or_insert(format!("{field}: more than {MOST_ADDRESSES} addresses"));
        addresses.truncate(MOST_ADDRESSES);
    }
    addresses
}

/// An API server gives every Service its families. In manifests they follow from its cluster addresses.
fn families(spec: &ServiceSpec) -> Vec<AddressFamily> {
    let named = spec.ip_families.iter().flatten();
    let mut families: Vec<AddressFamily> = named
        .filter_map(|name| AddressFamily::ALL.into_iter().find(|family| family.name() == name))
        .collect();
    if families.is_empty() {
        let addresses = spec.cluster_ips.iter().flatten().chain(&spec.cluster_ip);
        let addresses = addresses.filter_map(|text| text.parse::<IpAddr>().ok());
        families = addresses.map(|address| AddressFamily::of(&address)).collect();
    }
    if families.is_empty() {
        families.push(AddressFamily::V4);
    }
    let mut seen = BTreeSet::new();
    families.retain(|family| seen.insert(*family));
    families
}

fn policy(spec: &ServiceSpec) -> FamilyPolicy {
    match spec.ip_family_policy.as_deref() {
        Some("RequireDualStack") => FamilyPolicy::Require,
        Some("PreferDualStack") => FamilyPolicy::Prefer,
        Some(_) => FamilyPolicy::Single,
        // Of manifests: as many as it has cluster addresses.
        None => FamilyPolicy::Prefer,
    }
}

fn requested_ports(spec: &ServiceSpec) -> BTreeSet<ProtocolPort> {
    let ports = spec.ports.iter().flatten();
    ports
        .filter_map(|port| {
            let protocol = Protocol::parse(port.protocol.as_deref())?;
            Some((protocol, u16::try_from(port.port).ok()?))
        })
        .collect()
}
