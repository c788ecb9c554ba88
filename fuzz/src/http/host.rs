//! Hosts: the normal form is one that DNS names and addresses have, and stays what it is.

use std::borrow::Cow;
use std::net::{Ipv6Addr, SocketAddr};

use lb_http::HostPattern;
use lb_http::host::{Authority, normalize_host, parent_domain};

use super::text;
use crate::Input;

pub const PIECES: [&str; 24] = [
    "a",
    "b",
    "A",
    "-",
    "_",
    ".",
    ".",
    "..",
    "example.org",
    "xn--e1afmkfd",
    ":",
    ":80",
    ":443",
    ":65536",
    ":+1",
    "[",
    "]",
    "[::1]",
    "::",
    "*",
    "@",
    ",",
    "127.0.0.1",
    "%",
];

pub fn fuzz_host(bytes: &[u8]) -> &'static str {
    let mut input = Input::new(bytes);
    let raw = match input.chance(64) {
        true => String::from_utf8_lossy(input.rest()).into_owned(),
        false => text(&mut input, &PIECES, 8),
    };
    let Ok(authority) = Authority::parse(&raw) else { return "refused" };
    let host = &*authority.host;
    assert!(
        !host.bytes().any(|octet| octet.is_ascii_uppercase() || !octet.is_ascii_graphic()),
        "{host:?}"
    );
    assert_eq!(normalize_host(host), Ok(Cow::Borrowed(host)), "not normal after all");
    let text = format!("{host}:{}", authority.port.unwrap_or(1));
    let again = Authority::parse(&text).expect("a normal host, and a port");
    assert_eq!((&*again.host, again.port), (host, authority.port.or(Some(1))));
    if let Some(literal) = host.strip_prefix('[') {
        let address =
            literal.strip_suffix(']').and_then(|address| address.parse::<Ipv6Addr>().ok());
        assert!(address.is_some() && text.parse::<SocketAddr>().is_ok(), "{host:?}");
        return "address";
    }
    assert!(
        host.len() <= 253 && host.split('.').all(|label| (1..=63).contains(&label.len())),
        "{host:?}"
    );
    // A rule for the same name matches it, and so does one for all its neighbours.
    match HostPattern::parse(host) {
        Ok(pattern) => assert!(pattern.matches(Some(host)), "{host:?}"),
        Err(_) => assert!(host.parse::<std::net::Ipv4Addr>().is_ok(), "{host:?}"),
    }
    if let Some(Ok(pattern)) =
        parent_domain(host).map(|parent| HostPattern::parse(&format!("*.{parent}")))
    {
        assert!(pattern.matches(Some(host)), "{host:?}");
    }
    "name"
}
