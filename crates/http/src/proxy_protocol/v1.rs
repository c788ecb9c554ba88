//! Version 1: one line of text.

use std::net::{IpAddr, SocketAddr};

use super::header::{Invalid, ProxiedAddresses, ProxyHeader, same_family};

pub const BEGINNING: &[u8] = b"PROXY ";

/// The specification's bound, with the end of the line.
const MOST_OCTETS: usize = 107;

/// Of what begins like [`BEGINNING`].
pub(crate) fn parse_v1(octets: &[u8]) -> Result<Option<ProxyHeader>, Invalid> {
    let line = &octets[..octets.len().min(MOST_OCTETS)];
    let Some(end) = line.iter().position(|octet| !(b' '..=b'~').contains(octet)) else {
        return match octets.len() < MOST_OCTETS {
            true => Ok(None),
            false => Err(Invalid("line is longer than 107 octets")),
        };
    };
    match &line[end..] {
        [b'\r'] if octets.len() < MOST_OCTETS => return Ok(None),
        [b'\r', b'\n', ..] => {}
        _ => return Err(Invalid("line does not end with CR LF, or contains a control character")),
    }
    // The octets before its end are ASCII.
    let line = str::from_utf8(&line[..end]).map_err(|_| Invalid("line is no text"))?;
    Ok(Some(ProxyHeader { addresses: parse_line(line)?, length: end + 2 }))
}

fn parse_line(line: &str) -> Result<Option<ProxiedAddresses>, Invalid> {
    let fields: Vec<&str> = line.split(' ').collect();
    let (is_v4, [source, destination, source_port, destination_port]) = match fields[..] {
        [_, "UNKNOWN", ..] => return Ok(None),
        [_, "TCP4", a, b, c, d] => (true, [a, b, c, d]),
        [_, "TCP6", a, b, c, d] => (false, [a, b, c, d]),
        _ => {
            return Err(Invalid(
                "line is neither UNKNOWN nor TCP4 or TCP6 with two addresses and two ports",
            ));
        }
    };
    let address = |text: &str| match text.parse::<IpAddr>() {
        Ok(address) if address.is_ipv4() == is_v4 => Ok(address),
        _ => Err(Invalid("address is not one of the line's protocol")),
    };
    Ok(Some(ProxiedAddresses {
        source: SocketAddr::new(address(source)?, port(source_port)?),
        destination: SocketAddr::new(address(destination)?, port(destination_port)?),
    }))
}

fn port(text: &str) -> Result<u16, Invalid> {
    let port: u16 = text.parse().map_err(|_| Invalid("port is not a number below 65536"))?;
    // Neither a sign nor leading zeros.
    if port.to_string() == text {
        Ok(port)
    } else {
        Err(Invalid("port is not in its shortest form"))
    }
}

pub fn encode_v1(addresses: Option<&ProxiedAddresses>) -> Vec<u8> {
    let Some(addresses) = addresses else { return b"PROXY UNKNOWN\r\n".into() };
    let ProxiedAddresses { source, destination } = same_family(addresses);
    let protocol = if source.is_ipv4() { "TCP4" } else { "TCP6" };
    let (from, to) = (source.ip(), destination.ip());
    format!("PROXY {protocol} {from} {to} {} {}\r\n", source.port(), destination.port()).into()
}
