//! Addresses that no object of a tenant may make the proxy connect to: those of its own machine, of the link, of no
//! single machine, and known servers of clouds that trust all machines. Most of them Kubernetes forbids in
//! EndpointSlices, but a name that is resolved can lead to any address.

use std::fmt::{self, Display};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forbidden {
    Unspecified,
    Loopback,
    LinkLocal,
    Multicast,
    /// Hands out credentials or settings of the machine.
    Metadata,
}

/// Outside of the link-local ranges, where those of AWS, Azure, Google Cloud and others have their IPv4 addresses.
const METADATA_V4: [Ipv4Addr; 2] = [
    // Alibaba Cloud.
    Ipv4Addr::new(100, 100, 100, 200),
    // Azure's WireServer.
    Ipv4Addr::new(168, 63, 129, 16),
];
const METADATA_V6: [Ipv6Addr; 2] = [
    // AWS.
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254),
    // Google Cloud.
    Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254),
];

impl Display for Forbidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unspecified => "is no address of a machine",
            Self::Loopback => "is a loopback address",
            Self::LinkLocal => "is a link-local address",
            Self::Multicast => "is a multicast address",
            Self::Metadata => "is the metadata server of a cloud",
        })
    }
}

impl std::error::Error for Forbidden {}

/// Whether the proxy may connect to an address that a tenant chose.
pub fn check_destination(address: IpAddr) -> Result<(), Forbidden> {
    match address {
        IpAddr::V4(address) => check_v4(address),
        IpAddr::V6(address) => match embedded(address) {
            Some(embedded) => check_v4(embedded),
            None => check_v6(address),
        },
    }
}

fn check_v4(address: Ipv4Addr) -> Result<(), Forbidden> {
    match address.octets() {
        _ if METADATA_V4.contains(&address) => Err(Forbidden::Metadata),
        [0, ..] | [255, 255, 255, 255] => Err(Forbidden::Unspecified),
        [127, ..] => Err(Forbidden::Loopback),
        [169, 254, ..] => Err(Forbidden::LinkLocal),
        [224..=239, ..] => Err(Forbidden::Multicast),
        _ => Ok(()),
    }
}

fn check_v6(address: Ipv6Addr) -> Result<(), Forbidden> {
    if address.is_unspecified() {
        Err(Forbidden::Unspecified)
    } else if address.is_loopback() {
        Err(Forbidden::Loopback)
    } else if address.is_unicast_link_local() {
        Err(Forbidden::LinkLocal)
    } else if METADATA_V6.contains(&address) {
        Err(Forbidden::Metadata)
    } else if address.is_multicast() {
        Err(Forbidden::Multicast)
    } else {
        Ok(())
    }
}

/// The IPv4 address to which packets to this address go: mapped (RFC 4291), or by NAT64 (RFC 6052).
fn embedded(address: Ipv6Addr) -> Option<Ipv4Addr> {
    match address.segments() {
        [0, 0, 0, 0, 0, 0xffff, _, _] | [0x64, 0xff9b, 0, 0, 0, 0, _, _] => {
            Some(Ipv4Addr::from_bits(address.to_bits() as u32))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_cannot_name_the_machine_itself_or_its_link() {
        use Forbidden::*;
        let cases = [
            ("0.0.0.0", Err(Unspecified)),
            ("0.1.2.3", Err(Unspecified)),
            ("255.255.255.255", Err(Unspecified)),
            ("127.0.0.1", Err(Loopback)),
            ("127.255.0.9", Err(Loopback)),
            ("169.254.169.254", Err(LinkLocal)),
            ("224.0.0.1", Err(Multicast)),
            ("100.100.100.200", Err(Metadata)),
            ("168.63.129.16", Err(Metadata)),
            ("10.0.0.1", Ok(())),
            ("192.168.0.1", Ok(())),
            ("198.51.100.1", Ok(())),
            ("::", Err(Unspecified)),
            ("::1", Err(Loopback)),
            ("fe80::1", Err(LinkLocal)),
            ("febf::1", Err(LinkLocal)),
            ("fd00:ec2::254", Err(Metadata)),
            ("fd20:ce::254", Err(Metadata)),
            ("ff02::1", Err(Multicast)),
            ("fd00::1", Ok(())),
            ("2001:db8::1", Ok(())),
            ("::ffff:127.0.0.1", Err(Loopback)),
            ("::ffff:169.254.169.254", Err(LinkLocal)),
            ("64:ff9b::169.254.169.254", Err(LinkLocal)),
            ("64:ff9b::10.0.0.1", Ok(())),
        ];
        for (address, expected) in cases {
            assert_eq!(check_destination(address.parse().unwrap()), expected, "{address}");
        }
    }
}
