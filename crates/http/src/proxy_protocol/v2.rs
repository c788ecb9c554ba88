//! Version 2: binary.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use super::header::{Invalid, MOST_OCTETS, ProxiedAddresses, ProxyHeader, same_family};

pub(crate) const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

/// Signature, version and command, family and protocol, length of the rest.
const FIXED_OCTETS: usize = 16;

const LOCAL: u8 = 0;
const PROXY: u8 = 1;
const UNSPECIFIED: u8 = 0;
const INET: u8 = 1;
const INET6: u8 = 2;
const UNIX: u8 = 3;
const STREAM: u8 = 1;
const DATAGRAM: u8 = 2;

/// Of what begins like [`SIGNATURE`].
pub(crate) fn parse_v2(octets: &[u8]) -> Result<Option<ProxyHeader>, Invalid> {
    // Each octet is checked as soon as it is there, so that nothing waits for the rest of an invalid header.
    let after = octets.get(SIGNATURE.len()..).unwrap_or_default();
    if after.first().is_some_and(|version| version >> 4 != 2) {
        return Err(Invalid("version is not 2"));
    }
    if after.first().is_some_and(|command| ![LOCAL, PROXY].contains(&(command & 15))) {
        return Err(Invalid("command is neither LOCAL nor PROXY"));
    }
    let [command, family, high, low, ..] = *after else { return Ok(None) };
    let length = FIXED_OCTETS + usize::from(u16::from_be_bytes([high, low]));
    if length > MOST_OCTETS {
        return Err(Invalid("header is longer than 4096 octets"));
    }
    let is_local = command & 15 == LOCAL;
    if !is_local && length < FIXED_OCTETS + address_octets(family)? {
        return Err(Invalid("header is too short for its addresses"));
    }
    let Some(rest) = octets.get(FIXED_OCTETS..length) else { return Ok(None) };
    // Family and addresses of LOCAL are ignored, as the specification requires.
    let addresses = if is_local { None } else { addresses(family, rest) };
    Ok(Some(ProxyHeader { addresses, length }))
}

fn address_octets(family: u8) -> Result<usize, Invalid> {
    match (family >> 4, family & 15) {
        (UNSPECIFIED, UNSPECIFIED..=DATAGRAM) | (INET..=UNIX, UNSPECIFIED) => Ok(0),
        (INET, STREAM | DATAGRAM) => Ok(2 * (4 + 2)),
        (INET6, STREAM | DATAGRAM) => Ok(2 * (16 + 2)),
        (UNIX, STREAM | DATAGRAM) => Ok(2 * 108),
        _ => Err(Invalid("address family or protocol does not exist")),
    }
}

fn addresses(family: u8, octets: &[u8]) -> Option<ProxiedAddresses> {
    if family & 15 == UNSPECIFIED {
        return None;
    }
    let port = |at: usize| Some(u16::from_be_bytes(octets.get(at..at + 2)?.try_into().ok()?));
    match family >> 4 {
        INET => {
            let address =
                |at: usize| <[u8; 4]>::try_from(octets.get(at..at + 4)?).ok().map(Ipv4Addr::from);
            Some(ProxiedAddresses {
                source: SocketAddr::new(address(0)?.into(), port(8)?),
                destination: SocketAddr::new(address(4)?.into(), port(10)?),
            })
        }
        INET6 => {
            let address =
                |at: usize| <[u8; 16]>::try_from(octets.get(at..at + 16)?).ok().map(Ipv6Addr::from);
            Some(ProxiedAddresses {
                source: SocketAddr::new(address(0)?.into(), port(32)?),
                destination: SocketAddr::new(address(16)?.into(), port(34)?),
            })
        }
        _ => None,
    }
}

pub fn encode_v2(addresses: Option<&ProxiedAddresses>) -> Vec<u8> {
    let mut octets = SIGNATURE.to_vec();
    let Some(addresses) = addresses else {
        octets.extend([0x20 | LOCAL, UNSPECIFIED, 0, 0]);
        return octets;
    };
    let mut body = Vec::with_capacity(36);
    let ProxiedAddresses { source, destination } = same_family(addresses);
    for end in [source, destination] {
        match end {
            SocketAddr::V4(end) => body.extend(end.ip().octets()),
            SocketAddr::V6(end) => body.extend(end.ip().octets()),
        }
    }
    body.extend([source, destination].iter().flat_map(|end| end.port().to_be_bytes()));
    let family = if source.is_ipv4() { INET } else { INET6 };
    octets.extend([0x20 | PROXY, family << 4 | STREAM, 0, body.len() as u8]);
    octets.extend(body);
    octets
}
