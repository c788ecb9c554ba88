//! Parses addresses and ranges in objects.

use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;

/// Parses an address. The error continues a sentence that begins with the text.
pub fn parse_address(text: &str) -> Result<IpAddr, &'static str> {
    let address = text.parse().ok().or_else(|| with_leading_zeros(text));
    let address = address.ok_or("is not an IP address")?.to_canonical();
    if address.is_unspecified() {
        Err("is not an address that clients can connect to")
    } else {
        Ok(address)
    }
}

/// Parses an address as the API validates endpoints and externalIPs: addresses that differ in
/// meaning from host to host are refused. Objects from files have not been validated.
pub(crate) fn parse_global_address(text: &str) -> Result<IpAddr, &'static str> {
    let address = parse_address(text)?;
    let link_local = match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    match () {
        () if address.is_loopback() => Err("is a loopback address: only its own host can use it"),
        () if link_local => Err("is a link-local address: only its own link can use it"),
        () if address.is_multicast() => Err("is a multicast address"),
        () => Ok(address),
    }
}

/// Parses a range, which may have blanks around it and bits after its prefix.
pub(crate) fn parse_address_range(text: &str) -> Option<IpNet> {
    text.trim().parse::<IpNet>().ok().map(|range| range.trunc())
}

/// Old objects may contain `010.0.0.1`; Kubernetes has always read that as decimal.
fn with_leading_zeros(text: &str) -> Option<IpAddr> {
    let octet = |text: &str| {
        let significant = text.trim_start_matches('0');
        if significant.is_empty() && !text.is_empty() {
            "0".to_owned()
        } else {
            significant.to_owned()
        }
    };
    let octets: Vec<String> = text.split('.').map(octet).collect();
    octets.join(".").parse::<Ipv4Addr>().ok().map(IpAddr::V4)
}
