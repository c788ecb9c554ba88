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
use super::values::{address_value, hexadecimal_value, port_value};
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
pub struct Peer {
    pub address: SocketAddr,
    pub is_tls: bool,
    /// The port that it is connected to.
    pub port: u16,
}

/// Where a request comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
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

impl Client {
    /// The client is the address furthest from this proxy that a trusted proxy has vouched for: going backwards, the
    /// first one that is not trusted itself.
    pub fn identify(forwarding: &Forwarding, peer: &Peer, headers: &HeaderMap) -> Self {
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

    /// Replaces all headers about the client by what [`Client::identify`] has found. `host` is `Host` or `:authority`.
    /// `request_id` is used unless the client has sent a valid one.
    pub fn describe(
        &self,
        forwarding: &Forwarding,
        host: Option<&HeaderValue>,
        request_id: u128,
        headers: &mut HeaderMap,
    ) {
        let names: Vec<HeaderName> =
            headers.keys().filter(|name| is_about_client(name)).cloned().collect();
        for name in names {
            headers.remove(name);
        }
        headers.reserve(MOST_DESCRIBED);
        let scheme = HeaderValue::from_static(self.scheme());
        headers.insert(FORWARDED_PROTO, scheme.clone());
        headers.insert(FORWARDED_SCHEME, scheme);
        headers.insert(FORWARDED_PORT, port_value(self.port));
        // A host that a trusted proxy has named was parsed, so it is a valid value.
        let named = self.host.as_deref().and_then(|host| HeaderValue::from_str(host).ok());
        let host = named.as_ref().or(host);
        if let Some(host) = host {
            headers.insert(FORWARDED_HOST, host.clone());
        }
        let hops = std::iter::once(&self.address).chain(&self.proxies);
        let text = |text: String| HeaderValue::try_from(text).ok();
        if forwarding.send_forwarded {
            let host = host.and_then(|host| host.to_str().ok());
            let forwarded = text(forwarded::format_forwarded(hops.clone(), self.scheme(), host));
            headers.extend(forwarded.map(|value| (FORWARDED, value)));
        }
        if let Some(address) = address_value(self.address) {
            let all = match self.proxies.is_empty() {
                true => Some(address.clone()),
                false => text(hops.map(IpAddr::to_string).collect::<Vec<_>>().join(", ")),
            };
            headers.insert(REAL_IP, address);
            headers.extend(all.map(|value| (FORWARDED_FOR, value)));
        }
        let mut ids = headers.get_all(REQUEST_ID).iter();
        let is_kept = ids.next().is_some_and(is_request_id) && ids.next().is_none();
        if !is_kept && let Some(id) = hexadecimal_value(request_id) {
            headers.insert(REQUEST_ID, id);
        }
    }
}

/// Headers that [`Client::describe`] adds.
const MOST_DESCRIBED: usize = 8;

/// Proxies that are followed. Each costs a comparison with all trusted networks.
const MOST_PROXIES: usize = 32;

/// The element that the nearest proxy has added.
fn last<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get_all(name).iter().next_back().and_then(|line| list_tokens(line).next_back())
}

/// It appears in logs, so it is short and has no special characters.
fn is_request_id(value: &HeaderValue) -> bool {
    let is_plain = |octet: &u8| octet.is_ascii_alphanumeric() || b"-_.:+/=".contains(octet);
    (1..=128).contains(&value.len()) && value.as_bytes().iter().all(is_plain)
}
#[cfg(test)]
mod tests;
