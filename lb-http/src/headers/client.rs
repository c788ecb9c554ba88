//! Who the client is, as far as the peer can be trusted, and the headers that tell the endpoint.
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
use super::{forwarded, tokens};
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
                    .flat_map(|line| tokens(line).rev());
                client.walk(addresses.map(forwarded::address), is_trusted);
                client.believe(
                    last(headers, &FORWARDED_PROTO),
                    last(headers, &FORWARDED_HOST),
                    last(headers, &FORWARDED_PORT).and_then(|port| port.parse().ok()),
                );
            }
            ForwardedSource::Forwarded => {
                let elements: Vec<_> = forwarded::elements(headers).collect();
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
        headers.insert(FORWARDED_PORT, port(self.port));
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
            let forwarded = text(forwarded::format(hops.clone(), self.scheme(), host));
            headers.extend(forwarded.map(|value| (FORWARDED, value)));
        }
        if let Some(address) = address(self.address) {
            let all = match self.proxies.is_empty() {
                true => Some(address.clone()),
                false => text(hops.map(IpAddr::to_string).collect::<Vec<_>>().join(", ")),
            };
            headers.insert(REAL_IP, address);
            headers.extend(all.map(|value| (FORWARDED_FOR, value)));
        }
        let mut ids = headers.get_all(REQUEST_ID).iter();
        let is_kept = ids.next().is_some_and(is_request_id) && ids.next().is_none();
        if !is_kept && let Some(id) = hexadecimal(request_id) {
            headers.insert(REQUEST_ID, id);
        }
    }
}

/// Headers that [`Client::describe`] adds.
const MOST_DESCRIBED: usize = 8;

/// Formatting costs each request more than it seems: what most requests have is made without it.
fn port(port: u16) -> HeaderValue {
    match port {
        80 => HeaderValue::from_static("80"),
        443 => HeaderValue::from_static("443"),
        port => HeaderValue::from(port),
    }
}

fn address(address: IpAddr) -> Option<HeaderValue> {
    let IpAddr::V4(address) = address else {
        return HeaderValue::try_from(address.to_string()).ok();
    };
    let mut text = [0; 15];
    let mut length = 0;
    let mut push = |octet: u8| {
        text[length] = octet;
        length += 1;
    };
    for (position, octet) in address.octets().into_iter().enumerate() {
        if position > 0 {
            push(b'.');
        }
        if octet >= 100 {
            push(b'0' + octet / 100);
        }
        if octet >= 10 {
            push(b'0' + octet / 10 % 10);
        }
        push(b'0' + octet % 10);
    }
    HeaderValue::from_bytes(&text[..length]).ok()
}

/// 32 digits.
fn hexadecimal(number: u128) -> Option<HeaderValue> {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = [0; 32];
    for (pair, octet) in text.chunks_exact_mut(2).zip(number.to_be_bytes()) {
        pair[0] = DIGITS[usize::from(octet >> 4)];
        pair[1] = DIGITS[usize::from(octet & 15)];
    }
    HeaderValue::from_bytes(&text).ok()
}

/// Proxies that are followed. Each costs a comparison with all trusted networks.
const MOST_PROXIES: usize = 32;

/// The element that the nearest proxy has added.
fn last<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get_all(name).iter().next_back().and_then(|line| tokens(line).next_back())
}

/// It appears in logs, so it is short and has no special characters.
fn is_request_id(value: &HeaderValue) -> bool {
    let is_plain = |octet: &u8| octet.is_ascii_alphanumeric() || b"-_.:+/=".contains(octet);
    (1..=128).contains(&value.len()) && value.as_bytes().iter().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
        let lines = lines
            .iter()
            .map(|&(name, value)| (HeaderName::from_static(name), value.try_into().unwrap()));
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(name, value);
        }
        headers
    }

    fn peer(address: &str) -> Peer {
        Peer { address: SocketAddr::new(address.parse().unwrap(), 1), is_tls: false, port: 8080 }
    }

    fn forwarding(source: ForwardedSource) -> Forwarding {
        let trusted = ["10.0.0.0/8", "fd00::/8"].map(|network| network.parse().unwrap()).into();
        Forwarding { trusted, source, send_forwarded: true }
    }

    /// The headers that the endpoint gets, one a line, sorted.
    fn described(forwarding: &Forwarding, peer: &Peer, mut headers: HeaderMap) -> Vec<String> {
        let client = Client::identify(forwarding, peer, &headers);
        let host = HeaderValue::from_static("a.org:8080");
        client.describe(forwarding, Some(&host), 10, &mut headers);
        let line = |(name, value): (&HeaderName, &HeaderValue)| {
            format!("{name}: {}", value.to_str().unwrap())
        };
        let mut lines: Vec<String> = headers.iter().map(line).collect();
        lines.sort();
        lines
    }

    const SPOOFED: [(&str, &str); 18] = [
        ("x-forwarded-for", "10.0.0.9, 127.0.0.1"),
        ("x-forwarded-for", "10.0.0.8"),
        ("x-forwarded-proto", "https"),
        ("x-forwarded-host", "evil.org"),
        ("x-forwarded-port", "1"),
        ("x-forwarded-scheme", "https"),
        ("x-forwarded-prefix", "/evil"),
        ("x-forwarded-ssl", "on"),
        ("x-forwarded", "for=10.0.0.1"),
        ("forwarded", "for=10.0.0.1;proto=https"),
        ("x-real-ip", "10.0.0.1"),
        ("x-original-method", "GET"),
        ("x-original-uri", "/admin"),
        ("x-original-url", "/admin"),
        ("ssl-client-subject-dn", "CN=root"),
        ("ssl-client-verify", "SUCCESS"),
        ("x-rewrite-url", "/admin"),
        ("x-request-id", "a\tb"),
    ];

    #[test]
    fn an_untrusted_peer_is_not_believed() {
        for source in [ForwardedSource::XForwarded, ForwardedSource::Forwarded] {
            let lines = described(&forwarding(source), &peer("192.0.2.1"), headers(&SPOOFED));
            assert_eq!(
                lines,
                [
                    "forwarded: for=192.0.2.1;host=\"a.org:8080\";proto=http",
                    "x-forwarded-for: 192.0.2.1",
                    "x-forwarded-host: a.org:8080",
                    "x-forwarded-port: 8080",
                    "x-forwarded-proto: http",
                    "x-forwarded-scheme: http",
                    "x-real-ip: 192.0.2.1",
                    "x-request-id: 0000000000000000000000000000000a",
                ]
            );
        }
    }

    #[test]
    fn without_trusted_proxies_no_peer_is_believed() {
        let client =
            Client::identify(&Forwarding::default(), &peer("10.0.0.1"), &headers(&SPOOFED));
        assert_eq!(
            (client.address, client.is_tls, client.port),
            ("10.0.0.1".parse().unwrap(), false, 8080)
        );
    }

    #[test]
    fn behind_trusted_proxies_the_client_is_the_last_untrusted_address() {
        let cases: [(&[&str], &str, &str); 9] = [
            (&["192.0.2.1"], "192.0.2.1", "192.0.2.1, 10.0.0.1"),
            (&["192.0.2.7, 192.0.2.1, 10.0.0.2"], "192.0.2.1", "192.0.2.1, 10.0.0.2, 10.0.0.1"),
            (&["192.0.2.7", "192.0.2.1", "10.0.0.2"], "192.0.2.1", "192.0.2.1, 10.0.0.2, 10.0.0.1"),
            (&["10.0.0.3, 10.0.0.2"], "10.0.0.3", "10.0.0.3, 10.0.0.2, 10.0.0.1"),
            (&["192.0.2.7, unknown, 10.0.0.2"], "10.0.0.2", "10.0.0.2, 10.0.0.1"),
            (&["192.0.2.1:4711"], "192.0.2.1", "192.0.2.1, 10.0.0.1"),
            (&["[2001:db8::1]:4711"], "2001:db8::1", "2001:db8::1, 10.0.0.1"),
            (&["2001:db8::1, ::ffff:10.0.0.2"], "2001:db8::1", "2001:db8::1, 10.0.0.2, 10.0.0.1"),
            (&[], "10.0.0.1", "10.0.0.1"),
        ];
        for (lines, address, list) in cases {
            let headers =
                headers(&lines.iter().map(|line| ("x-forwarded-for", *line)).collect::<Vec<_>>());
            let forwarding = forwarding(ForwardedSource::XForwarded);
            let client = Client::identify(&forwarding, &peer("::ffff:10.0.0.1"), &headers);
            assert_eq!(client.address.to_string(), address, "{lines:?}");
            let lines = described(&forwarding, &peer("10.0.0.1"), headers);
            assert!(lines.contains(&format!("x-forwarded-for: {list}")), "{lines:?}");
        }
    }

    #[test]
    fn a_trusted_proxy_says_how_the_client_is_connected() {
        let sent = [
            ("x-forwarded-for", "192.0.2.1"),
            ("x-forwarded-proto", "https"),
            ("x-forwarded-host", "b.org"),
            ("x-forwarded-port", "8443"),
            ("forwarded", "for=192.0.2.9;host=evil.org"),
            ("x-request-id", "a-1"),
        ];
        let lines =
            described(&forwarding(ForwardedSource::XForwarded), &peer("10.0.0.1"), headers(&sent));
        assert_eq!(
            lines,
            [
                "forwarded: for=192.0.2.1;host=b.org;proto=https, for=10.0.0.1",
                "x-forwarded-for: 192.0.2.1, 10.0.0.1",
                "x-forwarded-host: b.org",
                "x-forwarded-port: 8443",
                "x-forwarded-proto: https",
                "x-forwarded-scheme: https",
                "x-real-ip: 192.0.2.1",
                "x-request-id: a-1",
            ]
        );
    }

    #[test]
    fn forwarded_is_read_at_the_element_that_names_the_client() {
        let sent = [
            ("forwarded", "for=192.0.2.9;proto=http;host=evil.org"),
            (
                "forwarded",
                "For=\"[2001:db8::1]:4711\";Proto=https;host=\"b.org:8443\", for=10.0.0.2;proto=http;host=c.org",
            ),
            ("x-forwarded-for", "192.0.2.66"),
        ];
        let forwarding = forwarding(ForwardedSource::Forwarded);
        let client = Client::identify(&forwarding, &peer("10.0.0.1"), &headers(&sent));
        assert_eq!(
            (client.address, client.is_tls, client.port),
            ("2001:db8::1".parse().unwrap(), true, 8443)
        );
        let lines = described(&forwarding, &peer("10.0.0.1"), headers(&sent));
        assert_eq!(
            lines[0],
            "forwarded: for=\"[2001:db8::1]\";host=\"b.org:8443\";proto=https, for=10.0.0.2, for=10.0.0.1"
        );
    }

    #[test]
    fn a_host_or_protocol_that_is_none_is_not_passed_on() {
        let sent = [
            ("x-forwarded-proto", "javascript"),
            ("x-forwarded-host", "a b"),
            ("x-forwarded-port", "x"),
        ];
        let client = Client::identify(
            &forwarding(ForwardedSource::XForwarded),
            &peer("10.0.0.1"),
            &headers(&sent),
        );
        assert_eq!((client.is_tls, client.port, client.host), (false, 8080, None));
    }

    #[test]
    fn a_request_has_one_id() {
        let ids: [(&[&str], &str); 5] = [
            (&["a-1"], "a-1"),
            (&[], "0000000000000000000000000000000a"),
            (&["a-1", "a-2"], "0000000000000000000000000000000a"),
            (&["a\"b"], "0000000000000000000000000000000a"),
            (&[&"a".repeat(129)], "0000000000000000000000000000000a"),
        ];
        for (sent, expected) in ids {
            let sent: Vec<_> = sent.iter().map(|id| ("x-request-id", *id)).collect();
            let lines = described(&Forwarding::default(), &peer("192.0.2.1"), headers(&sent));
            let ids: Vec<_> =
                lines.iter().filter_map(|line| line.strip_prefix("x-request-id: ")).collect();
            assert_eq!(ids, [expected]);
        }
    }

    #[test]
    fn a_long_chain_ends() {
        let chain = vec!["10.0.0.2"; 5000].join(",");
        let client = Client::identify(
            &forwarding(ForwardedSource::XForwarded),
            &peer("10.0.0.1"),
            &headers(&[("x-forwarded-for", &chain)]),
        );
        assert_eq!(client.proxies.len(), MOST_PROXIES);
    }

    #[test]
    fn values_are_as_they_are_formatted() {
        for octets in [[0, 0, 0, 0], [1, 20, 255, 99], [100, 9, 10, 199], [255, 255, 255, 255]] {
            let expected = IpAddr::from(octets);
            assert_eq!(address(expected).unwrap(), expected.to_string().as_str());
        }
        let six: IpAddr = "2001:db8::1".parse().unwrap();
        assert_eq!(address(six).unwrap(), "2001:db8::1");
        for number in [0, 1, u128::MAX, 0x0123_4567_89ab_cdef << 64 | 0xf] {
            assert_eq!(hexadecimal(number).unwrap(), format!("{number:032x}").as_str());
        }
        for number in [0, 80, 443, 8080, 65535] {
            assert_eq!(port(number), number.to_string().as_str());
        }
    }
}
