use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use proptest::prelude::*;

use super::*;

fn addresses(source: &str, destination: &str) -> Option<ProxiedAddresses> {
    Some(ProxiedAddresses {
        source: source.parse().unwrap(),
        destination: destination.parse().unwrap(),
    })
}

/// Parses whole and octet by octet. Both agree: incomplete until the end of the header, or of what makes it invalid.
fn parsed(octets: &[u8]) -> Result<Option<ProxyHeader>, Invalid> {
    let outcome = parse_proxy_header(octets);
    let mut earlier = (0..octets.len())
        .map(|end| parse_proxy_header(&octets[..end]))
        .filter(|outcome| *outcome != Ok(None));
    match outcome {
        Ok(None) => assert_eq!(earlier.next(), None),
        _ => assert!(earlier.all(|earlier| earlier == outcome), "{octets:?}"),
    }
    outcome
}

#[test]
fn lines_of_version_1() {
    let longest6 = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff";
    let unknown = format!("PROXY UNKNOWN {longest6} {longest6} 65535 65535\r\n");
    assert_eq!(unknown.len(), 107);
    let valid = [
        (
            "PROXY TCP4 255.255.255.255 255.255.255.255 65535 65535\r\n",
            addresses("255.255.255.255:65535", "255.255.255.255:65535"),
        ),
        (
            "PROXY TCP4 192.168.0.1 192.168.0.11 56324 443\r\nGET / HTTP/1.1\r\n",
            addresses("192.168.0.1:56324", "192.168.0.11:443"),
        ),
        ("PROXY TCP6 2001:db8::1 ::1 1 0\r\n", addresses("[2001:db8::1]:1", "[::1]:0")),
        ("PROXY UNKNOWN\r\n", None),
        (&unknown, None),
    ];
    for (text, addresses) in valid {
        let length = text.find("\r\n").unwrap() + 2;
        assert_eq!(
            parsed(text.as_bytes()),
            Ok(Some(ProxyHeader { addresses, length })),
            "{text:?}"
        );
        for end in 0..length {
            assert_eq!(parsed(&text.as_bytes()[..end]), Ok(None), "{:?}", &text[..end]);
        }
    }
    let invalid = [
        "GET / HTTP/1.1\r\n",
        "PROXX",
        "PROXY\r\n",
        "PROXY  TCP4 1.1.1.1 2.2.2.2 1 2\r\n",
        "PROXY TCP4 1.1.1.1 2.2.2.2 1 2 \r\n",
        "PROXY TCP4 1.1.1.1 2.2.2.2 1\r\n",
        "PROXY TCP4 1.1.1.1 2.2.2.2 1 2 3\r\n",
        "PROXY TCP4 1.1.1.1 ::1 1 2\r\n",
        "PROXY TCP6 1.1.1.1 2.2.2.2 1 2\r\n",
        "PROXY TCP4 1.1.1.1 2.2.2.256 1 2\r\n",
        "PROXY TCP4 01.1.1.1 2.2.2.2 1 2\r\n",
        "PROXY TCP4 1.1.1.1 2.2.2.2 65536 2\r\n",
        "PROXY TCP4 1.1.1.1 2.2.2.2 +1 2\r\n",
        "PROXY TCP4 1.1.1.1 2.2.2.2 01 2\r\n",
        "PROXY UDP4 1.1.1.1 2.2.2.2 1 2\r\n",
        "PROXY TCP4 1.1.1.1 2.2.2.2 1 2\n",
        "PROXY TCP4 1.1.1.1 2.2.2.2 1 2\rX",
        "PROXY TCP4\t1.1.1.1",
        &format!("PROXY UNKNOWN {}", "a".repeat(93)),
        &format!("PROXY UNKNOWN {}\r\n", "a".repeat(92)),
    ];
    for text in invalid {
        assert!(parsed(text.as_bytes()).is_err(), "{text:?}");
    }
}

fn v2(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
    let length = (rest.len() as u16).to_be_bytes();
    [v2::SIGNATURE, &[command, family], &length, rest].concat()
}

#[test]
fn headers_of_version_2() {
    let inet = [192, 0, 2, 1, 198, 51, 100, 2, 0x1f, 0x90, 0x01, 0xbb];
    let v6 = |last| Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last).octets();
    let inet6 = [&v6(1)[..], &v6(2), &[0x1f, 0x90, 0x01, 0xbb]].concat();
    let with_tlv = |addresses: &[u8]| [addresses, &[0x04, 0, 3, 1, 2, 3]].concat();
    let v4 = addresses("192.0.2.1:8080", "198.51.100.2:443");
    let v6 = addresses("[2001:db8::1]:8080", "[2001:db8::2]:443");
    let valid = [
        ("tcp4", v2(0x21, 0x11, &inet), v4),
        ("udp4", v2(0x21, 0x12, &inet), v4),
        ("tcp4 and a TLV", v2(0x21, 0x11, &with_tlv(&inet)), v4),
        ("tcp6", v2(0x21, 0x21, &inet6), v6),
        ("tcp6 and a TLV", v2(0x21, 0x21, &with_tlv(&inet6)), v6),
        ("local", v2(0x20, 0, &[]), None),
        ("local with addresses", v2(0x20, 0x11, &inet), None),
        ("local of a family that does not exist", v2(0x20, 0xff, &inet), None),
        ("unspecified", v2(0x21, 0, &[1, 2, 3]), None),
        ("unix", v2(0x21, 0x31, &[b'/'; 216]), None),
        ("longest", v2(0x20, 0, &[0; MOST_OCTETS - 16]), None),
    ];
    for (name, octets, addresses) in valid {
        let length = octets.len();
        assert_eq!(parsed(&octets), Ok(Some(ProxyHeader { addresses, length })), "{name}");
        assert_eq!(parsed(&octets[..length - 1]), Ok(None), "{name}");
        let more = [&octets[..], b"GET /"].concat();
        assert_eq!(parsed(&more), Ok(Some(ProxyHeader { addresses, length })), "{name}");
    }
    let invalid = [
        ("version 1", v2(0x11, 0x11, &inet)),
        ("unknown command", v2(0x22, 0x11, &inet)),
        ("too short for tcp4", v2(0x21, 0x11, &inet[1..])),
        ("too short for tcp6", v2(0x21, 0x21, &inet)),
        ("too short for unix", v2(0x21, 0x31, &[0; 215])),
        ("unknown family", v2(0x21, 0x41, &[0; 300])),
        ("unknown protocol", v2(0x21, 0x13, &inet)),
        ("too long", v2(0x20, 0, &[0; MOST_OCTETS - 15])),
        ("wrong signature", [&v2::SIGNATURE[..11], b"\r\x21\x11\0\0"].concat()),
    ];
    for (name, octets) in invalid {
        assert!(parsed(&octets).is_err(), "{name}");
    }
}

fn any_end() -> impl Strategy<Value = SocketAddr> {
    let address = prop_oneof![
        any::<u32>().prop_map(|bits| IpAddr::from(Ipv4Addr::from(bits))),
        any::<u128>().prop_map(|bits| IpAddr::from(Ipv6Addr::from(bits))),
    ];
    (address, any::<u16>()).prop_map(SocketAddr::from)
}

proptest! {
    #[test]
    fn what_is_encoded_is_parsed(source in any_end(), destination in any_end(), rest in any::<Vec<u8>>()) {
        let sent = ProxiedAddresses { source, destination };
        for mut octets in [encode_v1(Some(&sent)), encode_v2(Some(&sent))] {
            let length = octets.len();
            octets.extend(&rest);
            let header = parsed(&octets).unwrap().unwrap();
            prop_assert_eq!(header.length, length);
            let received = header.addresses.unwrap();
            for (sent, received) in [(source, received.source), (destination, received.destination)] {
                prop_assert_eq!(sent.ip().to_canonical(), received.ip().to_canonical());
                prop_assert_eq!(sent.port(), received.port());
            }
        }
        for octets in [encode_v1(None), encode_v2(None)] {
            prop_assert_eq!(parsed(&octets), Ok(Some(ProxyHeader { addresses: None, length: octets.len() })));
        }
    }

    #[test]
    fn the_outcome_for_any_octets_is_final(
        beginning in prop::sample::select(vec![
            &b""[..], b"PROXY ", b"PROXY TCP4 1.1.1.1 2.2.2.2 ", v2::SIGNATURE, b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c",
        ]),
        rest in prop_oneof![any::<Vec<u8>>(), "[ 0-9.\r\n:]{0,120}".prop_map(String::into_bytes)],
    ) {
        let octets = [beginning, &rest].concat();
        if let Ok(Some(header)) = parsed(&octets) {
            prop_assert!(header.length <= octets.len().min(MOST_OCTETS));
        }
    }
}
