//! On which addresses NodePorts are open.

use std::collections::BTreeSet;
use std::net::IpAddr;

use anyhow::{Context, Result};
use nix::ifaddrs::getifaddrs;

/// Where NodePorts are open: as told, else on the addresses of the devices.
pub fn node_addresses(told: &[IpAddr], devices: &[String]) -> Result<BTreeSet<IpAddr>> {
    if !told.is_empty() {
        return Ok(told.iter().copied().collect());
    }
    let all = getifaddrs().context("this node's addresses can't be read")?;
    Ok(all
        .filter(|interface| devices.contains(&interface.interface_name))
        .filter_map(|interface| {
            let address = interface.address?;
            let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
            v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
        })
        // Link-local addresses are each device's own, and no way to a Service.
        .filter(|address| !matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local()))
        .collect())
}
