//! Selects free cluster addresses and node ports.
//!
//! As in a cluster, every range has a lower band for clients that request a specific address or
//! port. Others get one from the upper band, and from the lower one only if the upper is full.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use super::{AllocatedResource, Allocations};

/// Takes a free address of a family. `seed` selects where the search starts.
pub(crate) fn take_free_address(
    family: &str,
    seed: u64,
    allocations: &mut dyn Allocations,
) -> Option<IpAddr> {
    let range = *allocations
        .ranges()
        .cluster_ips
        .iter()
        .find(|range| range.addr().is_ipv4() == (family == "IPv4"))?;
    let is_v4 = range.addr().is_ipv4();
    Bands::of_addresses(&range)
        .search(seed, |number| {
            allocations.take(AllocatedResource::ClusterIp(to_address(is_v4, number)))
        })
        .map(|number| to_address(is_v4, number))
}

/// Takes a free node port.
pub(crate) fn take_free_node_port(seed: u64, allocations: &mut dyn Allocations) -> Option<u16> {
    let range = allocations.ranges().node_ports.clone();
    let free = |number| {
        let resource = AllocatedResource::NodePort(to_port(number));
        // A port that this object holds already is not free for another of its ports.
        allocations.holder(resource).is_none() && allocations.take(resource)
    };
    Bands::of_ports(*range.start(), *range.end()).search(seed, free).map(to_port)
}

/// Whether an address of the range can be allocated: not the network address, nor an IPv4 broadcast
/// address.
pub(crate) fn is_allocatable(address: IpAddr, range: &IpNet) -> bool {
    let bands = Bands::of_addresses(range);
    range.contains(&address) && (bands.first..=bands.last).contains(&number(address))
}

/// FNV-1a over all parts.
pub(crate) fn hash_parts(parts: &[&str]) -> u64 {
    let bytes = parts.iter().flat_map(|part| part.bytes().chain([0]));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// Numbers from `first` to `last`. Those below `dynamic` are the lower band.
struct Bands {
    first: u128,
    dynamic: u128,
    last: u128,
}

impl Bands {
    fn of_addresses(range: &IpNet) -> Self {
        let (start, end) = (number(range.network()), number(range.broadcast()));
        let reserved = u128::from(range.addr().is_ipv4());
        let first = (start + 1).min(end);
        let size = (end - start).saturating_add(1);
        Self {
            first,
            dynamic: first + lower(size, 16, 256, 16),
            last: end.saturating_sub(reserved).max(first),
        }
    }

    fn of_ports(first: u16, last: u16) -> Self {
        let (first, last) = (u128::from(first), u128::from(last));
        Self { first, dynamic: first + lower(last.saturating_sub(first) + 1, 16, 128, 32), last }
    }

    fn search(&self, seed: u64, mut take: impl FnMut(u128) -> bool) -> Option<u128> {
        let end = self.last + 1;
        let dynamic = self.dynamic.min(end);
        around(dynamic, end, seed)
            .find(|number| take(*number))
            .or_else(|| around(self.first, dynamic, seed).find(|number| take(*number)))
    }
}

/// Size of the lower band: a fraction of the range, limited to bounds.
fn lower(size: u128, least: u128, most: u128, fraction: u128) -> u128 {
    if size < least { 0 } else { (size / fraction).clamp(least, most) }
}

/// All numbers once, starting anywhere.
fn around(from: u128, until: u128, seed: u64) -> impl Iterator<Item = u128> {
    let size = until.saturating_sub(from);
    let start = u128::from(seed).checked_rem(size).unwrap_or(0);
    (0..size).map(move |step| from + (start + step) % size)
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    }
}

fn to_address(is_v4: bool, number: u128) -> IpAddr {
    match u32::try_from(number) {
        Ok(bits) if is_v4 => IpAddr::V4(Ipv4Addr::from_bits(bits)),
        _ => IpAddr::V6(Ipv6Addr::from_bits(number)),
    }
}

/// The number always comes from a range of ports.
fn to_port(number: u128) -> u16 {
    u16::try_from(number).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::ledger::TestAllocations;
    use super::*;

    #[test]
    fn the_lower_band_is_used_last() {
        let mut ledger = TestAllocations::new(&["10.96.0.0/26"]);
        let mut chosen = Vec::new();
        for seed in 0..62 {
            ledger.write_as(&format!("default/{seed}"));
            chosen.push(
                take_free_address("IPv4", hash_parts(&[&seed.to_string()]), &mut ledger)
                    .expect("62 hosts"),
            );
        }
        let limit: IpAddr = "10.96.0.16".parse().expect("an address");
        assert!(chosen[..46].iter().all(|address| *address > limit), "{chosen:?}");
        assert!(chosen[46..].iter().all(|address| *address <= limit), "{chosen:?}");
        assert_eq!(chosen.iter().collect::<BTreeSet<_>>().len(), 62);
        ledger.write_as("default/late");
        assert_eq!(take_free_address("IPv4", 0, &mut ledger), None);
    }

    #[test]
    fn bands_are_a_fraction_within_bounds() {
        for (range, expected) in [
            ("10.0.0.0/29", 0),
            ("10.0.0.0/28", 16),
            ("10.0.0.0/24", 16),
            ("10.0.0.0/22", 64),
            ("10.0.0.0/12", 256),
            ("fd00::/108", 256),
        ] {
            let bands = Bands::of_addresses(&range.parse().expect("a range"));
            assert_eq!(bands.dynamic - bands.first, expected, "{range}");
        }
        let bands = Bands::of_ports(30000, 32767);
        assert_eq!(bands.dynamic - bands.first, 86);
    }

    #[test]
    fn the_ends_of_a_network_are_not_usable() {
        let range: IpNet = "10.96.0.0/24".parse().expect("a range");
        for (address, expected) in [
            ("10.96.0.0", false),
            ("10.96.0.1", true),
            ("10.96.0.254", true),
            ("10.96.0.255", false),
            ("10.97.0.1", false),
            ("fd00::1", false),
        ] {
            assert_eq!(
                is_allocatable(address.parse().expect("an address"), &range),
                expected,
                "{address}"
            );
        }
    }
}
