//! Prefixes in UPDATE messages: the length in bits, then only the octets that it covers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use super::reader::OctetReader;
use crate::family::Family;

/// The octets that [`append_prefix`] adds.
pub(crate) fn count_prefix_octets(prefix: &IpNet) -> usize {
    1 + usize::from(prefix.prefix_len()).div_ceil(8)
}

pub(crate) fn append_prefix(out: &mut Vec<u8>, prefix: &IpNet) {
    out.push(prefix.prefix_len());
    let covered = count_prefix_octets(prefix) - 1;
    match prefix.network() {
        IpAddr::V4(address) => out.extend(&address.octets()[..covered]),
        IpAddr::V6(address) => out.extend(&address.octets()[..covered]),
    }
}

/// All prefixes of a field; `None` if one has an invalid length or is cut off.
pub(crate) fn parse_prefixes(field: &[u8], family: Family) -> Option<Vec<IpNet>> {
    let mut reader = OctetReader::new(field);
    let mut prefixes = Vec::new();
    while !reader.is_empty() {
        prefixes.push(parse_prefix(&mut reader, family)?);
    }
    Some(prefixes)
}

fn parse_prefix(reader: &mut OctetReader, family: Family) -> Option<IpNet> {
    let bits = reader.u8().filter(|bits| *bits <= family.bits())?;
    let covered = reader.take(usize::from(bits).div_ceil(8))?;
    let mut octets = [0; 16];
    octets[..covered.len()].copy_from_slice(covered);
    let address = match family {
        Family::Ipv4 => Ipv4Addr::new(octets[0], octets[1], octets[2], octets[3]).into(),
        Family::Ipv6 => Ipv6Addr::from(octets).into(),
    };
    // RFC 4271: the bits behind the prefix are irrelevant.
    IpNet::new(address, bits).ok().map(|prefix| prefix.trunc())
}
