//! The PROXY protocol: what arrives in pieces means what arrives at once.

use lb_http::proxy_protocol::{
    MOST_OCTETS, ProxiedAddresses, encode_v1, encode_v2, parse_proxy_header,
};

use super::text;
use crate::Input;

const BEGINNINGS: [&[u8]; 11] = [
    b"",
    b"PROXY ",
    b"PROXY TCP4 192.0.2.1 198.51.100.1 1 2\r\n",
    b"PROXY TCP6 2001:db8::1 2001:db8::2 1 ",
    b"PROXY UNKNOWN",
    b"\r\n\r\n\0\r\nQUIT\n",
    b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c",
    b"\r\n\r\n\0\r\nQUIT\n\x21\x21\0\x30",
    b"\r\n\r\n\0\r\nQUIT\n\x21\x31\0\xd8",
    b"\r\n\r\n\0\r\nQUIT\n\x20",
    b"\r\n\r\n\0\r\nQUIT\n\x21\0\0",
];

const PIECES: [&str; 12] = [
    " ",
    " ",
    "\r\n",
    "\r\n",
    "\r",
    "\n",
    "TCP4",
    "UNKNOWN",
    "192.0.2.1",
    "2001:db8::1",
    "65535",
    "0",
];

pub fn proxy_protocol(bytes: &[u8]) -> &'static str {
    let mut input = Input::new(bytes);
    let beginning = input.choose(&BEGINNINGS);
    let more = match input.chance(128) {
        true => text(&mut input, &PIECES, 8).into_bytes(),
        false => {
            let length = input.below(256);
            input.take(length)
        }
    };
    let octets = [beginning, &more].concat();
    let outcome = parse_proxy_header(&octets);
    let first = (0..octets.len())
        .map(|end| parse_proxy_header(&octets[..end]))
        .find(|outcome| *outcome != Ok(None));
    match first {
        Some(first) => assert_eq!(first, outcome, "more octets changed the outcome"),
        None => assert!(octets.len() < MOST_OCTETS || outcome != Ok(None), "it waits forever"),
    }
    let header = match outcome {
        Err(_) => return "refused",
        Ok(None) => return "incomplete",
        Ok(Some(header)) => header,
    };
    assert!(header.length <= octets.len().min(MOST_OCTETS));
    let Some(addresses) = header.addresses else { return "no addresses" };
    let canonical = |addresses: ProxiedAddresses| {
        let end = |end: std::net::SocketAddr| (end.ip().to_canonical(), end.port());
        (end(addresses.source), end(addresses.destination))
    };
    for encoded in [encode_v1(Some(&addresses)), encode_v2(Some(&addresses))] {
        let again = parse_proxy_header(&encoded).expect("a valid header").expect("a whole header");
        assert_eq!(again.length, encoded.len());
        assert_eq!(again.addresses.map(canonical), Some(canonical(addresses)));
    }
    "addresses"
}
