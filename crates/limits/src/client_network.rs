//! Which addresses count as one client.

use std::net::IpAddr;

/// The addresses that limits count as one client: an IPv4 address, or the /64 of an IPv6 address, all of which one
/// host may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientNetwork(u128);

impl From<IpAddr> for ClientNetwork {
    fn from(address: IpAddr) -> Self {
        match address.to_canonical() {
            // Differs from every prefix, whose lower half is 0.
            IpAddr::V4(address) => Self(address.to_ipv6_mapped().to_bits()),
            IpAddr::V6(address) => Self(address.to_bits() >> 64 << 64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_an_ipv4_address_or_an_ipv6_network() {
        for (one, other, same) in [
            ("192.0.2.1", "192.0.2.1", true),
            ("192.0.2.1", "192.0.2.2", false),
            ("::ffff:192.0.2.1", "192.0.2.1", true),
            ("::ffff:192.0.2.1", "::ffff:192.0.2.2", false),
            ("2001:db8:1:2::1", "2001:db8:1:2:ffff::9", true),
            ("2001:db8:1:2::1", "2001:db8:1:3::1", false),
            ("0.0.0.1", "::1", false),
        ] {
            let network = |text: &str| ClientNetwork::from(text.parse::<IpAddr>().unwrap());
            assert_eq!(network(one) == network(other), same, "{one} and {other}");
        }
    }
}
