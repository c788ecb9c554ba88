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

fn peer(address: &str) -> ConnectionPeer {
    ConnectionPeer {
        address: SocketAddr::new(address.parse().unwrap(), 1),
        is_tls: false,
        port: 8080,
    }
}

fn forwarding(source: ForwardedSource) -> Forwarding {
    let trusted = ["10.0.0.0/8", "fd00::/8"].map(|network| network.parse().unwrap()).into();
    Forwarding { trusted, source, send_forwarded: true }
}

/// The headers that the endpoint gets, one a line, sorted.
fn described(
    forwarding: &Forwarding,
    peer: &ConnectionPeer,
    mut headers: HeaderMap,
) -> Vec<String> {
    let client = RequestClient::identify(forwarding, peer, &headers);
    let host = HeaderValue::from_static("a.org:8080");
    let report = client.strip_and_report(forwarding, Some(&host), 10, &mut headers);
    for _ in 0..2 {
        report.insert_into(&mut headers);
    }
    let line =
        |(name, value): (&HeaderName, &HeaderValue)| format!("{name}: {}", value.to_str().unwrap());
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
        RequestClient::identify(&Forwarding::default(), &peer("10.0.0.1"), &headers(&SPOOFED));
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
        let client = RequestClient::identify(&forwarding, &peer("::ffff:10.0.0.1"), &headers);
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
    let client = RequestClient::identify(&forwarding, &peer("10.0.0.1"), &headers(&sent));
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

/// Clients write what stands before the trusted proxy's own element, in any octets.
#[test]
fn nothing_hides_what_a_trusted_proxy_has_appended() {
    use ForwardedSource::{Forwarded, XForwarded};
    let cases: [(ForwardedSource, &'static str, &[u8]); 9] = [
        (XForwarded, "x-forwarded-for", b"\xff, 192.0.2.1"),
        (XForwarded, "x-forwarded-for", b"192.0.2.7, \xff, 192.0.2.1, 10.0.0.2"),
        (Forwarded, "forwarded", b"for=\", for=192.0.2.1"),
        (Forwarded, "forwarded", b"for=\", For=\"192.0.2.1\"; proto=http"),
        (Forwarded, "forwarded", b"for=\"192.0.2.7, for=192.0.2.1;host=\"a.org:80\",for=10.0.0.2"),
        (Forwarded, "forwarded", b"for=192.0.2.7;, \xff, for=192.0.2.1"),
        (Forwarded, "forwarded", b"for=\"\\, for=192.0.2.1"),
        (Forwarded, "forwarded", b"=,;, for=192.0.2.1"),
        // The proxy repeats the host that the client has named.
        (Forwarded, "forwarded", b"for=192.0.2.1;host=\"\xff\\\",for=\\\"10.0.0.3\""),
    ];
    for (source, name, value) in cases {
        let mut headers = HeaderMap::new();
        headers.append(name, HeaderValue::from_bytes(value).unwrap());
        let client = RequestClient::identify(&forwarding(source), &peer("10.0.0.1"), &headers);
        let value = value.escape_ascii();
        assert_eq!(client.address.to_string(), "192.0.2.1", "{name}: {value}");
    }
}

#[test]
fn what_cannot_be_read_ends_the_chain() {
    use ForwardedSource::{Forwarded, XForwarded};
    let cases: [(ForwardedSource, &'static str, &[u8]); 4] = [
        (XForwarded, "x-forwarded-for", b"192.0.2.7, \xff, 10.0.0.2"),
        (Forwarded, "forwarded", b"for=192.0.2.7, \xff, for=10.0.0.2"),
        (Forwarded, "forwarded", b"for=192.0.2.7, for=\"\xff\", for=10.0.0.2"),
        (Forwarded, "forwarded", b"for=192.0.2.7, for=a\", for=10.0.0.2"),
    ];
    for (source, name, value) in cases {
        let mut headers = HeaderMap::new();
        headers.append(name, HeaderValue::from_bytes(value).unwrap());
        let client = RequestClient::identify(&forwarding(source), &peer("10.0.0.1"), &headers);
        let value = value.escape_ascii();
        assert_eq!(client.address.to_string(), "10.0.0.2", "{name}: {value}");
    }
}

#[test]
fn a_host_or_protocol_that_is_none_is_not_passed_on() {
    let sent = [
        ("x-forwarded-proto", "javascript"),
        ("x-forwarded-host", "a b"),
        ("x-forwarded-port", "x"),
    ];
    let client = RequestClient::identify(
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
    let client = RequestClient::identify(
        &forwarding(ForwardedSource::XForwarded),
        &peer("10.0.0.1"),
        &headers(&[("x-forwarded-for", &chain)]),
    );
    assert_eq!(client.proxies.len(), MOST_PROXIES);
}
