//! Bytes as RFCs show them, and what hostile peers send.

use std::net::{Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use super::attributes::AttributeForm;
use super::header::MessageKind;
use super::message;
use super::notification::{Notification, Reason};
use super::received::{FaultTreatment, ReceivedUpdate, UpdateContext};
use super::update::{append_announcements, append_end_of_rib, append_withdrawals};
use super::{MAX_MESSAGE_OCTETS, append_keepalive};
use crate::{Family, NextHop, RouteAttributes};

const PEER: UpdateContext = UpdateContext { external: true, four_octet_as: true };
const FORM: AttributeForm = AttributeForm { local_as: 65001, external: true, four_octet_as: true };
const IPV4: NextHop = NextHop::Ipv4(Ipv4Addr::new(192, 0, 2, 1));
const IPV6: NextHop = NextHop::Ipv6 {
    global: Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1),
    link_local: Some(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1)),
};

fn bodies(mut stream: &[u8]) -> Vec<&[u8]> {
    let mut bodies = Vec::new();
    while let Some(message) = message::parse_first_message(stream).expect("valid messages") {
        assert!(message.length() <= MAX_MESSAGE_OCTETS);
        bodies.push(message.body);
        stream = &stream[message.length()..];
    }
    assert!(stream.is_empty());
    bodies
}

fn prefixes(family: Family, count: u16) -> Vec<IpNet> {
    let prefix = |number: u16| {
        let [high, low] = number.to_be_bytes();
        match family {
            Family::Ipv4 => format!("203.0.{high}.{low}/32"),
            Family::Ipv6 => format!("2001:db8::{number:x}/128"),
        }
    };
    (0..count).map(|number| prefix(number).parse().unwrap()).collect()
}

#[test]
fn a_keepalive_is_a_header() {
    let mut out = Vec::new();
    append_keepalive(&mut out);
    assert_eq!(out, [&[0xff; 16][..], &[0, 19, 4]].concat());
}

#[test]
fn messages_are_found_however_they_arrive() {
    let mut stream = Vec::new();
    append_keepalive(&mut stream);
    append_end_of_rib(&mut stream, Family::Ipv4);
    for end in 0..19 {
        assert_eq!(message::parse_first_message(&stream[..end]), Ok(None));
    }
    let first = message::parse_first_message(&stream).unwrap().unwrap();
    assert_eq!((first.kind, first.length()), (MessageKind::Keepalive, 19));
    assert_eq!(message::parse_first_message(&stream[19..41]), Ok(None));
    assert_eq!(
        message::parse_first_message(&stream[19..]).unwrap().unwrap().kind,
        MessageKind::Update
    );
}

#[test]
fn a_header_that_is_no_header_ends_the_session() {
    let header = |length: u16, kind: u8| {
        [&[0xff; 16][..], &length.to_be_bytes(), &[kind], &[0; MAX_MESSAGE_OCTETS]].concat()
    };
    let refused = |octets: &[u8]| message::parse_first_message(octets).expect_err("refused");
    for (length, kind) in [
        (18, 4),
        (0, 2),
        (4097, 2),
        (0xffff, 2),
        // Each kind has its own least length.
        (28, 1),
        (22, 2),
        (20, 3),
        (20, 4),
        (22, 5),
    ] {
        let notification = refused(&header(length, kind));
        assert_eq!(notification.reason(), Some(Reason::BadMessageLength), "{length} {kind}");
        assert_eq!(notification.data, length.to_be_bytes());
    }
    for kind in [0, 6, 255] {
        let notification = refused(&header(19, kind));
        assert_eq!(notification.reason(), Some(Reason::BadMessageType));
        assert_eq!(notification.data, [kind]);
    }
    let mut octets = header(19, 4);
    octets[15] = 0xfe;
    assert_eq!(refused(&octets).reason(), Some(Reason::NotSynchronized));
}

#[test]
fn notifications_read_as_text_on_one_line() {
    let parse = |octets: &[u8]| Notification::parse(octets).to_string();
    assert_eq!(parse(&[6, 10]), "BFD down");
    assert_eq!(parse(&[8, 0]), "send hold timer expired");
    assert_eq!(parse(&[6, 77, 1]), "error 6/77");
    assert_eq!(parse(&[]), "error 0/0");
    let said = |text: &str| {
        let reason = Notification::new(Reason::AdministrativeShutdown);
        let mut out = Vec::new();
        reason.saying(text).encode(&mut out);
        parse(bodies(&out)[0])
    };
    assert_eq!(said("maintenance until 10:00"), "administrative shutdown: maintenance until 10:00");
    assert_eq!(said(""), "administrative shutdown");
    assert_eq!(said("a\n\u{1b}[31m"), "administrative shutdown: a\\n\\u{1b}[31m");
    // Cut at a character's border.
    assert_eq!(said(&"ü".repeat(200)).matches('ü').count(), 127);
    // Lengths that lie, and what is not UTF-8.
    assert_eq!(parse(&[6, 2, 200, b'a']), "administrative shutdown");
    assert_eq!(parse(&[6, 2, 1, 0xff]), "administrative shutdown");
}

#[test]
fn thousands_of_prefixes_need_few_messages() {
    for (family, next_hop, least) in
        [(Family::Ipv4, IPV4, 3), (Family::Ipv4, IPV6, 3), (Family::Ipv6, IPV6, 9)]
    {
        let all = prefixes(family, 2000);
        let mut stream = Vec::new();
        append_announcements(
            &mut stream,
            family,
            &all,
            &next_hop,
            &RouteAttributes::default(),
            &FORM,
        );
        let announced = bodies(&stream).into_iter().map(|body| ReceivedUpdate::parse(body, PEER));
        let announced: Vec<ReceivedUpdate> = announced.collect();
        assert!(announced.iter().all(|received| received.fault.is_none()), "{announced:?}");
        assert_eq!(announced.len(), least);
        assert_eq!(announced.into_iter().flat_map(|each| each.announced).collect::<Vec<_>>(), all);

        let mut stream = Vec::new();
        append_withdrawals(&mut stream, family, &all, next_hop == IPV6);
        let withdrawn = bodies(&stream).into_iter().map(|body| ReceivedUpdate::parse(body, PEER));
        assert_eq!(withdrawn.flat_map(|each| each.withdrawn).collect::<Vec<_>>(), all);
    }
}

/// RFC 7606, section 5.1, and the next hops of RFC 4760, 2545 and 8950.
#[test]
fn prefixes_in_an_attribute_come_first_with_their_next_hop() {
    let both = [0x20, 1, 13, 184, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]
        .into_iter()
        .chain([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    let both: Vec<u8> = both.collect();
    for (family, afi) in [(Family::Ipv4, 1), (Family::Ipv6, 2)] {
        for (length, link_local) in
            [(16, None), (32, Some(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1)))]
        {
            let NextHop::Ipv6 { global, .. } = IPV6 else { panic!() };
            let next_hop = NextHop::Ipv6 { global, link_local };
            let mut stream = Vec::new();
            let one = prefixes(family, 1);
            append_announcements(
                &mut stream,
                family,
                &one,
                &next_hop,
                &RouteAttributes::default(),
                &FORM,
            );
            let body = bodies(&stream)[0];
            // No withdrawn prefixes; behind the lengths MP_REACH_NLRI.
            assert_eq!((&body[..2], &body[4..6]), (&[0, 0][..], &[0x90, 14][..]));
            assert_eq!(body[8..12], [0, afi, 1, length]);
            assert_eq!(body[12..12 + usize::from(length)], both[..usize::from(length)]);
        }
    }
}

/// RFC 6793.
#[test]
fn a_peer_with_short_as_numbers_gets_the_long_one_beside_the_path() {
    let form = AttributeForm { local_as: 4_200_000_000, external: true, four_octet_as: false };
    let mut stream = Vec::new();
    let all = prefixes(Family::Ipv4, 1);
    append_announcements(
        &mut stream,
        Family::Ipv4,
        &all,
        &IPV4,
        &RouteAttributes::default(),
        &form,
    );
    let octets = bodies(&stream)[0];
    let has = |attribute: &[u8]| octets.windows(attribute.len()).any(|part| part == attribute);
    let [high, low] = 23_456_u16.to_be_bytes();
    assert!(has(&[0x40, 2, 4, 2, 1, high, low]), "{octets:?}");
    let [a, b, c, d] = 4_200_000_000_u32.to_be_bytes();
    assert!(has(&[0xc0, 17, 6, 2, 1, a, b, c, d]), "{octets:?}");
}

#[test]
fn the_longest_attributes_leave_room() {
    let mut attributes = RouteAttributes { bandwidth: Some(1e9), ..RouteAttributes::default() };
    for number in 0..crate::Communities::MOST {
        attributes.communities.add(&format!("65000:{number}")).unwrap();
        attributes.communities.add(&format!("65000:0:{number}")).unwrap();
    }
    let form = AttributeForm { local_as: 4_200_000_000, external: true, four_octet_as: false };
    let all = prefixes(Family::Ipv6, 500);
    let mut stream = Vec::new();
    append_announcements(&mut stream, Family::Ipv6, &all, &IPV6, &attributes, &form);
    let peer = UpdateContext { external: true, four_octet_as: false };
    let received = bodies(&stream).into_iter().map(|body| ReceivedUpdate::parse(body, peer));
    let received: Vec<ReceivedUpdate> = received.collect();
    assert!(received.iter().all(|each| each.fault.is_none()), "{received:?}");
    assert_eq!(received.iter().map(|each| each.announced.len()).sum::<usize>(), 500);
}

#[test]
fn the_end_of_the_routes_is_an_empty_update() {
    for family in Family::ALL {
        let mut stream = Vec::new();
        append_end_of_rib(&mut stream, family);
        let received = ReceivedUpdate::parse(bodies(&stream)[0], PEER);
        assert_eq!(
            received,
            ReceivedUpdate { end_of_rib: Some(family), ..ReceivedUpdate::default() }
        );
    }
}

/// An UPDATE with these attributes, and with 203.0.113.0/24.
fn update(attributes: &[&[u8]]) -> Vec<u8> {
    let attributes = attributes.concat();
    let length = (attributes.len() as u16).to_be_bytes();
    [&[0, 0], &length[..], &attributes, &[24, 203, 0, 113]].concat()
}

const ORIGIN: &[u8] = &[0x40, 1, 1, 0];
const AS_PATH: &[u8] = &[0x40, 2, 6, 2, 1, 0, 0, 0xfd, 0xe9];
const NEXT_HOP: &[u8] = &[0x40, 3, 4, 192, 0, 2, 1];

/// RFC 7606, section by section.
#[test]
fn malformed_updates_are_judged_as_mildly_as_possible() {
    use FaultTreatment::{DiscardAttribute, IgnoreFamily, TreatAsWithdraw};
    let with = |more: &[u8]| update(&[ORIGIN, AS_PATH, NEXT_HOP, more]);
    let cases: &[(&str, Vec<u8>, Option<FaultTreatment>)] = &[
        ("valid", with(&[]), None),
        ("unknown optional", with(&[0xc0, 200, 1, 9]), None),
        ("MED", with(&[0x80, 4, 4, 0, 0, 0, 1]), None),
        ("no ORIGIN", update(&[AS_PATH, NEXT_HOP]), Some(TreatAsWithdraw)),
        ("no AS_PATH", update(&[ORIGIN, NEXT_HOP]), Some(TreatAsWithdraw)),
        ("no NEXT_HOP", update(&[ORIGIN, AS_PATH]), Some(TreatAsWithdraw)),
        ("ORIGIN 3", update(&[&[0x40, 1, 1, 3], AS_PATH, NEXT_HOP]), Some(TreatAsWithdraw)),
        ("flags", update(&[&[0x80, 1, 1, 0], AS_PATH, NEXT_HOP]), Some(TreatAsWithdraw)),
        (
            "segment of no AS",
            update(&[ORIGIN, &[0x40, 2, 2, 2, 0], NEXT_HOP]),
            Some(TreatAsWithdraw),
        ),
        (
            "segment beyond its path",
            update(&[ORIGIN, &[0x40, 2, 6, 2, 9, 0, 0, 0, 1], NEXT_HOP]),
            Some(TreatAsWithdraw),
        ),
        // RFC 7607.
        (
            "AS 0",
            update(&[ORIGIN, &[0x40, 2, 10, 2, 2, 0, 0, 0, 1, 0, 0, 0, 0], NEXT_HOP]),
            Some(TreatAsWithdraw),
        ),
        ("aggregated by AS 0", with(&[0xc0, 7, 8, 0, 0, 0, 0, 9, 9, 9, 9]), Some(DiscardAttribute)),
        ("AS 0 in AS4_PATH", with(&[0xc0, 17, 6, 2, 1, 0, 0, 0, 0]), Some(DiscardAttribute)),
        ("ORIGIN twice", with(ORIGIN), Some(DiscardAttribute)),
        ("empty COMMUNITIES", with(&[0xc0, 8, 0]), Some(TreatAsWithdraw)),
        ("odd COMMUNITIES", with(&[0xc0, 8, 3, 0, 0, 0]), Some(TreatAsWithdraw)),
        ("odd large communities", with(&[0xc0, 32, 4, 0, 0, 0, 0]), Some(TreatAsWithdraw)),
        ("LOCAL_PREF from outside", with(&[0x40, 5, 4, 0, 0, 0, 1]), Some(DiscardAttribute)),
        ("AGGREGATOR", with(&[0xc0, 7, 6, 0, 0, 0, 0, 0, 0]), Some(DiscardAttribute)),
        ("attribute beyond the attributes", with(&[0xc0, 8, 40, 0]), Some(TreatAsWithdraw)),
        ("unknown well-known", with(&[0x40, 99, 0]), Some(TreatAsWithdraw)),
        ("MP_REACH twice", with(&[0x80, 14, 0, 0x80, 14, 0]), Some(IgnoreFamily)),
        ("MP_UNREACH of 2 octets", with(&[0x80, 15, 2, 0, 1]), Some(IgnoreFamily)),
        ("prefix of 33 bits", [&with(&[])[..], &[33, 1, 2, 3, 4, 5]].concat(), Some(IgnoreFamily)),
        ("prefix cut off", [&with(&[])[..], &[24, 1]].concat(), Some(IgnoreFamily)),
        ("withdrawn beyond the message", vec![0xff, 0xff, 0, 0], Some(IgnoreFamily)),
        ("attributes beyond the message", vec![0, 0, 0xff, 0xff], Some(IgnoreFamily)),
    ];
    for (name, body, treatment) in cases {
        let fault = ReceivedUpdate::parse(body, PEER).fault;
        assert_eq!(fault.map(|fault| fault.treatment), *treatment, "{name}: {fault:?}");
    }
}

mod open {
    use super::super::open::{Capabilities, GracefulRestart, OpenMessage};
    use super::*;

    fn open() -> OpenMessage {
        OpenMessage {
            autonomous_system: 4_200_000_000,
            hold_time: 9,
            identifier: Ipv4Addr::new(192, 0, 2, 1),
            capabilities: Capabilities {
                families: Family::ALL.into(),
                route_refresh: true,
                four_octet_as: true,
                extended_next_hop: true,
                graceful_restart: Some(GracefulRestart {
                    restarting: true,
                    time: 120,
                    preserved: [(Family::Ipv4, true), (Family::Ipv6, false)].into(),
                }),
            },
        }
    }

    fn body(open: &OpenMessage) -> Vec<u8> {
        let mut out = Vec::new();
        open.encode(&mut out);
        bodies(&out)[0].to_vec()
    }

    #[test]
    fn what_is_written_is_read() {
        let least = OpenMessage {
            autonomous_system: 1,
            hold_time: 0,
            capabilities: Capabilities { families: [Family::Ipv4].into(), ..<_>::default() },
            ..open()
        };
        for open in [open(), least] {
            assert_eq!(OpenMessage::parse(&body(&open)), Ok(open));
        }
    }

    #[test]
    fn a_peer_without_capabilities_can_do_ipv4() {
        let open = OpenMessage::parse(&[4, 0xfd, 0xe8, 0, 90, 10, 0, 0, 1, 0]).unwrap();
        assert_eq!((open.autonomous_system, open.hold_time), (65000, 90));
        let families = [Family::Ipv4].into();
        assert_eq!(open.capabilities, Capabilities { families, ..<_>::default() });
    }

    /// RFC 4760: only a peer that announces no family at all can do IPv4 without saying so.
    #[test]
    fn a_peer_of_other_families_is_refused() {
        // EVPN.
        let open = [4, 0xfd, 0xe8, 0, 90, 10, 0, 0, 1, 8, 2, 6, 1, 4, 0, 25, 0, 70];
        let refusal = OpenMessage::parse(&open).expect_err("refused");
        assert_eq!(refusal.reason(), Some(Reason::UnsupportedCapability));
        assert_eq!(refusal.data, [1, 4, 0, 1, 0, 1, 1, 4, 0, 2, 0, 1]);
    }

    /// RFC 5492: also in a parameter for each, and those that a peer alone has.
    #[test]
    fn unknown_capabilities_are_ignored() {
        let parameters = [
            &[2, 2, 99, 0][..],
            &[2, 5, 130, 3, 1, 2, 3],
            // Multiprotocol and AS number of wrong lengths.
            &[2, 3, 1, 1, 0],
            &[2, 4, 65, 2, 0, 1],
            &[2, 6, 1, 4, 0, 2, 0, 1],
        ]
        .concat();
        let head = [&[4, 0xfd, 0xe8, 0, 90, 10, 0, 0, 1, parameters.len() as u8][..], &parameters];
        let open = OpenMessage::parse(&head.concat()).unwrap();
        assert_eq!(open.autonomous_system, 65000);
        let families = [Family::Ipv6].into();
        assert_eq!(open.capabilities, Capabilities { families, ..<_>::default() });
    }

    /// RFC 6793.
    #[test]
    fn a_long_as_number_is_in_its_capability() {
        let body = body(&open());
        assert_eq!(body[1..3], 23_456_u16.to_be_bytes());
        let capability = [&[65, 4][..], &4_200_000_000_u32.to_be_bytes()].concat();
        assert!(body.windows(6).any(|part| part == capability), "{body:?}");
    }

    #[test]
    fn long_parameters_are_read() {
        let body = body(&open());
        let capabilities = &body[12..];
        let length = capabilities.len() as u8;
        let head = [&body[..9], &[255, 255, 0, length + 3, 2, 0, length]].concat();
        assert_eq!(OpenMessage::parse(&[&head, capabilities].concat()), Ok(open()));
    }

    #[test]
    fn what_is_not_acceptable_is_refused_with_its_code() {
        let valid = body(&open());
        let changed = |at: usize, octets: &[u8]| {
            let mut body = valid.clone();
            body[at..at + octets.len()].copy_from_slice(octets);
            OpenMessage::parse(&body).expect_err("refused")
        };
        let version = changed(0, &[3]);
        assert_eq!(version.reason(), Some(Reason::UnsupportedVersion));
        assert_eq!(version.data, [0, 4]);
        assert_eq!(changed(3, &[0, 1]).reason(), Some(Reason::UnacceptableHoldTime));
        assert_eq!(changed(3, &[0, 2]).reason(), Some(Reason::UnacceptableHoldTime));
        assert_eq!(changed(5, &[0, 0, 0, 0]).reason(), Some(Reason::BadIdentifier));
        assert_eq!(changed(9, &[255]).reason(), Some(Reason::MalformedOpen));
        assert_eq!(changed(10, &[1]).reason(), Some(Reason::UnsupportedParameter));
        let end = valid.len();
        assert_eq!(changed(end - 4, &[0, 0, 0, 0]).reason(), Some(Reason::BadPeerAs));
        for cut in 0..end {
            let error = OpenMessage::parse(&valid[..cut]).expect_err("refused");
            assert_eq!(error.reason(), Some(Reason::MalformedOpen), "{cut} octets");
        }
    }
}
