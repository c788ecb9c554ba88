//! Who the client is, as far as the peer can be trusted, and the headers that report it to the endpoint.
//!
//! Invariant: of a peer that is not trusted, nothing is believed, and no header that says who the client is or which
//! path it has requested reaches the endpoint.

use std::net::{IpAddr, SocketAddr};

use http::header::{FORWARDED, HeaderMap, HeaderName, HeaderValue};
use ipnet::IpNet;

use super::names::{
    FORWARDED_FOR, FORWARDED_HOST, FORWARDED_PORT, FORWARDED_PROTO, FORWARDED_SCHEME, REAL_IP,
    REQUEST_ID, is_about_client,
};
use super::values::{address_text, hexadecimal_text, port_text};
use super::{forwarded, list_tokens};
use crate::host::Authority;

/// Whose headers are believed, and which.
#[derive(Clone, Debug, Default)]
pub struct Forwarding {
    /// Proxies in front of this one. Empty: none, so all headers about the client are replaced.
    pub trusted: Vec<IpNet>,
    /// The one that they write. The other one is the client's.
    pub source: ForwardedSource,
    /// Whether endpoints get `Forwarded` beside `X-Forwarded-...`.
    pub send_forwarded: bool,
}

impl Forwarding {
    pub fn trusts(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.trusted.iter().any(|network| network.contains(&address))
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ForwardedSource {
    /// `X-Forwarded-For`, `-Proto`, `-Host` and `-Port`.
    #[default]
    XForwarded,
    /// `Forwarded` (RFC 7239).
    Forwarded,
}

/// The other end of a connection, or what the PROXY protocol says about it.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionPeer {
    pub address: SocketAddr,
    pub is_tls: bool,
    /// The port that it is connected to.
    pub port: u16,
}

/// Where a request comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestClient {
    pub address: IpAddr,
    /// Whether the client uses TLS, to this proxy or to a trusted one.
    pub is_tls: bool,
    /// The port that the client is connected to.
    pub port: u16,
    /// The host that the client asked a trusted proxy for, if that changed it.
    host: Option<String>,
    /// Trusted proxies between the client and this one, in the order of the request.
    proxies: Vec<IpAddr>,
}

impl RequestClient {
    /// The client is the address furthest from this proxy that a trusted proxy has vouched for: going backwards, the
    /// first one that is not trusted itself.
    pub fn identify(forwarding: &Forwarding, peer: &ConnectionPeer, headers: &HeaderMap) -> Self {
        let address = peer.address.ip().to_canonical();
        let mut client =
            Self { address, is_tls: peer.is_tls, port: peer.port, host: None, proxies: Vec::new() };
        let is_trusted = |address: &IpAddr| forwarding.trusts(*address);
        if !is_trusted(&address) {
            return client;
        }
        match forwarding.source {
            ForwardedSource::XForwarded => {
                let addresses = headers
                    .get_all(&FORWARDED_FOR)
                    .iter()
                    .rev()
                    .flat_map(|line| list_tokens(line).rev());
                client.walk(addresses.map(forwarded::forwarded_address), is_trusted);
                client.believe(
                    last(headers, &FORWARDED_PROTO),
                    last(headers, &FORWARDED_HOST),
                    last(headers, &FORWARDED_PORT).and_then(|port| port.parse().ok()),
                );
            }
            ForwardedSource::Forwarded => {
                let elements: Vec<_> = forwarded::forwarded_elements(headers).collect();
                client.walk(elements.iter().map(|element| element.client()), is_trusted);
                // The element that names the client was written by the proxy that it is connected to.
                let element = client.proxies.len().checked_sub(1).and_then(|at| elements.get(at));
                if let Some(element) = element {
                    client.believe(element.get("proto"), element.get("host"), None);
                }
            }
        }
        client
    }

    /// Follows the addresses that proxies have added, from this one to the client. What cannot be read ends it, as does
    /// a chain that is longer than any real one.
    fn walk(
        &mut self,
        addresses: impl Iterator<Item = Option<IpAddr>>,
        is_trusted: impl Fn(&IpAddr) -> bool,
    ) {
        for address in addresses.take(MOST_PROXIES).map_while(|address| address) {
            self.proxies.insert(0, self.address);
            self.address = address;
            if !is_trusted(&address) {
                break;
            }
        }
    }

    fn believe(&mut self, protocol: Option<&str>, host: Option<&str>, port: Option<u16>) {
        match protocol {
            Some(protocol) if protocol.eq_ignore_ascii_case("https") => {
                (self.is_tls, self.port) = (true, 443)
            }
            Some(protocol) if protocol.eq_ignore_ascii_case("http") => {
                (self.is_tls, self.port) = (false, 80)
            }
            _ => {}
        }
        let authority = host.and_then(|host| Some((host, Authority::parse(host).ok()?)));
        if let Some((text, authority)) = authority {
            self.port = authority.port.unwrap_or(self.port);
            self.host = Some(text.to_string());
        }
        self.port = port.unwrap_or(self.port);
    }

    pub fn scheme(&self) -> &'static str {
        if self.is_tls { "https" } else { "http" }
    }

    /// Removes all headers about the client, and returns those that replace them. `host` is `Host` or `:authority`.
    /// `request_id` is used unless the client has sent a valid one.
    pub fn strip_and_report<'a>(
        &'a self,
        forwarding: &Forwarding,
        host: Option<&'a HeaderValue>,
        request_id: u128,
        headers: &mut HeaderMap,
    ) -> ClientReport<'a> {
        let is_replaced = |name: &&HeaderName| is_about_client(name) || **name == REQUEST_ID;
        let mut names: Vec<HeaderName> = headers.keys().filter(is_replaced).cloned().collect();
        let is_kept = names.contains(&REQUEST_ID) && has_valid_id(headers);
        names.retain(|name| !(is_kept && *name == REQUEST_ID));
        for name in names {
            headers.remove(name);
        }
        ClientReport {
            client: self,
            host,
            request_id: (!is_kept).then_some(request_id),
            sends_forwarded: forwarding.send_forwarded,
        }
    }
}

/// The headers that report the client to the endpoint. Most are only written into a head, so none is made before.
#[derive(Clone, Copy, Debug)]
pub struct ClientReport<'a> {
    client: &'a RequestClient,
    host: Option<&'a HeaderValue>,
    /// `None`: the client's own is among its headers.
    request_id: Option<u128>,
    sends_forwarded: bool,
}

impl ClientReport<'_> {
    /// Calls `add` with each header.
    pub fn list_headers(&self, mut add: impl FnMut(HeaderName, &[u8])) {
        let &Self { client, host, request_id, sends_forwarded } = self;
        let scheme = client.scheme();
        add(FORWARDED_PROTO, scheme.as_bytes());
        add(FORWARDED_SCHEME, scheme.as_bytes());
        add(FORWARDED_PORT, &port_text(client.port));
        // A host that a trusted proxy has named was parsed, so it is a valid value.
        let named = client.host.as_deref().map(str::as_bytes);
        let host = named.or(host.map(HeaderValue::as_bytes));
        if let Some(host) = host {
            add(FORWARDED_HOST, host);
        }
        let hops = std::iter::once(&client.address).chain(&client.proxies);
        if sends_forwarded {
            let host = host.and_then(|host| str::from_utf8(host).ok());
            add(FORWARDED, forwarded::format_forwarded(hops.clone(), scheme, host).as_bytes());
        }
        let address = address_text(client.address);
        add(REAL_IP, &address);
        if client.proxies.is_empty() {
            add(FORWARDED_FOR, &address);
        } else {
            let all: Vec<_> = hops.map(IpAddr::to_string).collect();
            add(FORWARDED_FOR, all.join(", ").as_bytes());
        }
        if let Some(id) = request_id {
            add(REQUEST_ID, &hexadecimal_text(id));
        }
    }

    /// Replaces headers of the same names.
    pub fn insert_into(&self, headers: &mut HeaderMap) {
        headers.reserve(MOST_REPORTED);
        self.list_headers(|name, value| {
            if let Ok(value) = HeaderValue::from_bytes(value) {
                headers.insert(name, value);
            }
        });
    }
}

/// Headers of a report.
const MOST_REPORTED: usize = 8;

/// Proxies that are followed. Each costs a comparison with all trusted networks.
const MOST_PROXIES: usize = 32;

/// The element that the nearest proxy has added.
fn last<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get_all(name).iter().next_back().and_then(|line| list_tokens(line).next_back())
}

/// Whether there is exactly one request ID, and it is valid.
fn has_valid_id(headers: &HeaderMap) -> bool {
    let mut ids = headers.get_all(REQUEST_ID).iter();
    ids.next().is_some_and(is_request_id) && ids.next().is_none()
}

/// Whether a request ID is valid. Logs contain it, so it is short and has no special characters.
fn is_request_id(value: &HeaderValue) -> bool {
    let is_plain = |octet: &u8| octet.is_ascii_alphanumeric() || b"-_.:+/=".contains(octet);
    (1..=128).contains(&value.len()) && value.as_bytes().iter().all(is_plain)
}
#[cfg(test)]
mod tests;
