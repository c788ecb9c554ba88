//! Takes and releases cluster addresses and node ports for a Service.

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde_json::Value;

use super::super::choice;
use super::super::json::{get_list, get_list_mut, get_number, get_text, get_texts, set_value};
use super::super::names::parse_ip;
use super::super::violation::Violation;
use super::super::{AllocatedResource, Allocations};
use super::prepare::list_node_ports;
use super::spec::{is_headless, may_have_node_ports, needs_health_check, needs_node_ports};

/// Takes an address for each family of the Service. The families have been resolved.
pub(crate) fn allocate_cluster_ips(
    service: &mut Value,
    old: Option<&Value>,
    allocations: &mut dyn Allocations,
) -> Result<(), Violation> {
    let held = old.map(list_cluster_ips).unwrap_or_default();
    if is_headless(service) || super::service_type(service) == "ExternalName" {
        give_back(&held, &BTreeSet::new(), allocations);
        return Ok(());
    }
    let seed = seed(service);
    let mut addresses: Vec<String> =
        get_texts(service, "spec.clusterIPs").into_iter().map(str::to_owned).collect();
    let families: Vec<String> =
        get_texts(service, "spec.ipFamilies").into_iter().map(str::to_owned).collect();
    for (index, family) in families.iter().enumerate() {
        match addresses.get(index).and_then(|address| parse_ip(address)) {
            Some(address) if held.contains(&address) => {}
            Some(address) => claim(address, &addresses, allocations)?,
            None => {
                let address =
                    choice::take_free_address(family, seed, allocations).ok_or_else(|| {
                        Violation::internal(
                            "spec.clusterIPs",
                            "failed to allocate a serviceIP: range is full",
                        )
                    })?;
                addresses.truncate(index);
                addresses.push(address.to_string());
            }
        }
    }
    if let Some(first) = addresses.first() {
        set_value(service, "spec.clusterIP", first.as_str());
    }
    set_value(service, "spec.clusterIPs", addresses);
    give_back(&held, &list_cluster_ips(service), allocations);
    Ok(())
}

fn claim(
    address: IpAddr,
    all: &[String],
    allocations: &mut dyn Allocations,
) -> Result<(), Violation> {
    let refused = |why: &str| {
        let detail = format!("failed to allocate IP {address}: {why}");
        Err(Violation::invalid("spec.clusterIPs", all.to_vec(), &detail))
    };
    let range = allocations
        .ranges()
        .cluster_ips
        .iter()
        .find(|range| range.addr().is_ipv4() == address.is_ipv4());
    let Some(range) = range else {
        return refused("no range of this address family is configured");
    };
    if !choice::is_allocatable(address, range) {
        let range = range.trunc();
        return refused(&format!(
            "provided IP is not in the valid range. The range of valid IPs is {range}"
        ));
    }
    if allocations.take(AllocatedResource::ClusterIp(address)) {
        Ok(())
    } else {
        refused("provided IP is already allocated")
    }
}

fn give_back(held: &BTreeSet<IpAddr>, kept: &BTreeSet<IpAddr>, allocations: &mut dyn Allocations) {
    for address in held.difference(kept) {
        allocations.give_back(AllocatedResource::ClusterIp(*address));
    }
}

fn list_cluster_ips(service: &Value) -> BTreeSet<IpAddr> {
    get_texts(service, "spec.clusterIPs").into_iter().filter_map(parse_ip).collect()
}

pub(crate) fn allocate_ports(
    service: &mut Value,
    old: Option<&Value>,
    allocations: &mut dyn Allocations,
) -> Result<(), Violation> {
    let held = old.map(all_node_ports).unwrap_or_default();
    if may_have_node_ports(service) {
        requested(service, &held, allocations)?;
        if needs_node_ports(service) {
            missing(service, old.is_none(), allocations)?;
        }
    }
    if needs_health_check(service) {
        health_check(service, &held, allocations)?;
    }
    for port in held.difference(&all_node_ports(service)) {
        allocations.give_back(AllocatedResource::NodePort(*port));
    }
    Ok(())
}

/// Takes the ports that the client requests. They come first, so that none of them is selected for
/// another port.
fn requested(
    service: &Value,
    held: &BTreeSet<u16>,
    allocations: &mut dyn Allocations,
) -> Result<(), Violation> {
    for (index, port) in get_list(service, "spec.ports").iter().enumerate() {
        let number = get_number(port, "nodePort");
        if number != 0 {
            let refused = |why: String| {
                Violation::invalid(format!("spec.ports[{index}].nodePort"), number, &why)
            };
            claim_port(number, held, allocations).map_err(refused)?;
        }
    }
    Ok(())
}

fn claim_port(
    number: i64,
    held: &BTreeSet<u16>,
    allocations: &mut dyn Allocations,
) -> Result<(), String> {
    let range = allocations.ranges().node_ports.clone();
    match u16::try_from(number) {
        Ok(port) if held.contains(&port) => Ok(()),
        Ok(port) if range.contains(&port) => {
            if allocations.take(AllocatedResource::NodePort(port)) {
                Ok(())
            } else {
                Err("provided port is already allocated".to_owned())
            }
        }
        _ => Err(format!(
            "provided port is not in the valid range. The range of valid ports is {}-{}",
            range.start(),
            range.end()
        )),
    }
}

/// Takes the missing node ports. In a new Service, ports with the same number and different
/// protocols share one.
fn missing(
    service: &mut Value,
    is_new: bool,
    allocations: &mut dyn Allocations,
) -> Result<(), Violation> {
    let seed = seed(service);
    for index in 0..get_list(service, "spec.ports").len() {
        let ports = get_list(service, "spec.ports");
        let port = &ports[index];
        if get_number(port, "nodePort") != 0 {
            continue;
        }
        let shared = ports.iter().find(|other| {
            get_number(other, "port") == get_number(port, "port")
                && get_text(other, "protocol") != get_text(port, "protocol")
                && get_number(other, "nodePort") != 0
        });
        let chosen = match shared.map(|other| get_number(other, "nodePort")).filter(|_| is_new) {
            Some(number) => number,
            None => {
                choice::take_free_node_port(seed, allocations).map(i64::from).ok_or_else(|| {
                    let detail = "failed to allocate a nodePort: range is full";
                    Violation::internal(format!("spec.ports[{index}].nodePort"), detail)
                })?
            }
        };
        if let Some(ports) = get_list_mut(service, "spec.ports") {
            set_value(&mut ports[index], "nodePort", chosen);
        }
    }
    Ok(())
}

fn health_check(
    service: &mut Value,
    held: &BTreeSet<u16>,
    allocations: &mut dyn Allocations,
) -> Result<(), Violation> {
    let path = "spec.healthCheckNodePort";
    let requested = get_number(service, path);
    if requested != 0 {
        return claim_port(requested, held, allocations).map_err(|why| {
            let detail =
                format!("failed to allocate requested HealthCheck NodePort {requested}: {why}");
            Violation::internal(path, &detail)
        });
    }
    let port = choice::take_free_node_port(seed(service), allocations).ok_or_else(|| {
        Violation::internal(path, "failed to allocate a HealthCheck NodePort: range is full")
    })?;
    set_value(service, path, port);
    Ok(())
}

/// The node ports that the Service holds. An ExternalName may name some, but holds none.
fn all_node_ports(service: &Value) -> BTreeSet<u16> {
    if !may_have_node_ports(service) {
        return BTreeSet::new();
    }
    let mut ports = list_node_ports(service);
    if needs_health_check(service) {
        ports.insert(get_number(service, "spec.healthCheckNodePort"));
    }
    ports
        .into_iter()
        .filter_map(|port| u16::try_from(port).ok())
        .filter(|port| *port != 0)
        .collect()
}

pub(crate) fn reclaim_allocations(
    service: &Value,
    allocations: &mut dyn Allocations,
) -> Vec<Violation> {
    let mut violations = Vec::new();
    for address in list_cluster_ips(service) {
        let is_usable = |range| choice::is_allocatable(address, range);
        let detail = if !allocations.take(AllocatedResource::ClusterIp(address)) {
            "provided IP is already allocated"
        } else if !allocations.ranges().cluster_ips.iter().any(is_usable) {
            "provided IP is not in the valid range"
        } else {
            continue;
        };
        violations.push(Violation::invalid("spec.clusterIPs", address.to_string(), detail));
    }
    for port in all_node_ports(service) {
        let detail = if !allocations.take(AllocatedResource::NodePort(port)) {
            "provided port is already allocated"
        } else if !allocations.ranges().node_ports.contains(&port) {
            "provided port is not in the valid range"
        } else {
            continue;
        };
        violations.push(Violation::invalid("spec.ports", port, detail));
    }
    violations
}

pub(crate) fn release_allocations(service: &Value, allocations: &mut dyn Allocations) {
    give_back(&list_cluster_ips(service), &BTreeSet::new(), allocations);
    for port in all_node_ports(service) {
        allocations.give_back(AllocatedResource::NodePort(port));
    }
}

/// Derived from the object's random uid, so the start of the search is unpredictable, and a
/// released number is not soon reused.
fn seed(service: &Value) -> u64 {
    let uid = get_text(service, "metadata.uid");
    let name = get_text(service, "metadata.name");
    choice::hash_parts(&[uid, get_text(service, "metadata.namespace"), name])
}
