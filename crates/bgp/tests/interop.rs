//! Two independent implementations read what Millrace sends: random routes, and every message's fields.
//!
//! netgauze writes what it has read again: the same bytes come out only if it has understood all of them. Of bgpkit's
//! result, the fields are compared.

// All of this is tests.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use bgpkit_parser::bgp::parse_bgp_message;
use bgpkit_parser::models as bgpkit;
use bytes::Bytes;
use ipnet::IpNet;
use lb_bgp::wire::received::{ReceivedUpdate, UpdateContext};
use lb_bgp::wire::update::{append_announcements, append_end_of_rib, append_withdrawals};
use lb_bgp::wire::{
    AttributeForm, Capabilities, GracefulRestart, MessageKind, Notification, OpenMessage, Reason,
    message, refresh,
};
use lb_bgp::{Communities, Community, Family, LargeCommunity, NextHop, RouteAttributes};
use netgauze_bgp_pkt::BgpMessage;
use netgauze_bgp_pkt::wire::deserializer::BgpParsingContext;
use netgauze_parse_utils::WritablePdu;
use netgauze_parse_utils::reader::SliceReader;
use netgauze_parse_utils::traits::ParseFromWithOneInput;
use proptest::prelude::*;

/// Each message of a stream, with its header.
fn messages(mut stream: &[u8]) -> Vec<&[u8]> {
    let mut messages = Vec::new();
    while let Some(first) = message::parse_first_message(stream).unwrap() {
        let (message, rest) = stream.split_at(first.length());
        messages.push(message);
        stream = rest;
    }
    assert!(stream.is_empty(), "the stream ends within a message");
    messages
}

fn read_by_netgauze(octets: &[u8], four_octet_as: bool) -> BgpMessage {
    let mut context = BgpParsingContext::default();
    context.set_asn4(four_octet_as);
    BgpMessage::parse(&mut SliceReader::new(octets), &mut context).expect("netgauze reads it")
}

fn check_by_netgauze(octets: &[u8], four_octet_as: bool) {
    let message = read_by_netgauze(octets, four_octet_as);
    let mut again = Vec::new();
    message.write(&mut again).expect("netgauze writes it");
    assert_eq!(again, octets, "{message:?}");
}

fn read_by_bgpkit(octets: &[u8], four_octet_as: bool) -> bgpkit::BgpMessage {
    let length = match four_octet_as {
        true => bgpkit::AsnLength::Bits32,
        false => bgpkit::AsnLength::Bits16,
    };
    parse_bgp_message(&mut Bytes::copy_from_slice(octets), false, &length).expect("bgpkit reads it")
}

fn update_by_bgpkit(octets: &[u8], four_octet_as: bool) -> bgpkit::BgpUpdateMessage {
    match read_by_bgpkit(octets, four_octet_as) {
        bgpkit::BgpMessage::Update(update) => update,
        other => panic!("{other:?}"),
    }
}

fn communities() -> impl Strategy<Value = Communities> {
    // Values of the well-known ones, too, and more than one octet of length.
    let standard = prop_oneof![any::<u32>(), 0xffff_0000_u32..=0xffff_ff10];
    let large = (any::<u32>(), any::<[u32; 2]>());
    let lists = (prop::collection::vec(standard, 0..100), prop::collection::vec(large, 0..30));
    lists.prop_map(|(standard, large)| {
        let mut communities = Communities::default();
        for each in standard {
            communities.insert(Community(each)).unwrap();
        }
        for (administrator, data) in large {
            communities.insert_large(LargeCommunity { administrator, data }).unwrap();
        }
        communities
    })
}

fn attributes() -> impl Strategy<Value = RouteAttributes> {
    let bandwidth = prop::option::of(0.0_f32..1e12);
    (prop::option::of(any::<u32>()), communities(), bandwidth).prop_map(
        |(local_preference, communities, bandwidth)| RouteAttributes {
            local_preference,
            communities,
            bandwidth,
        },
    )
}

fn form() -> impl Strategy<Value = AttributeForm> {
    let local_as = prop_oneof![1..=u32::from(u16::MAX), 65_536..u32::MAX];
    (local_as, any::<bool>(), any::<bool>()).prop_map(|(local_as, external, four_octet_as)| {
        AttributeForm { local_as, external, four_octet_as }
    })
}

fn prefixes(family: Family) -> impl Strategy<Value = Vec<IpNet>> {
    // netgauze refuses prefixes that are not unicast.
    let prefix = (any::<u128>(), 3..=family.bits()).prop_map(move |(address, bits)| {
        let address = match family {
            Family::Ipv4 => IpAddr::V4(Ipv4Addr::from((address % 0x7f00_0000) as u32)),
            Family::Ipv6 => IpAddr::V6(Ipv6Addr::from(1 << 125 | address >> 3)),
        };
        IpNet::new(address, bits).unwrap().trunc()
    });
    prop::collection::btree_set(prefix, 1..700).prop_map(|set| set.into_iter().collect())
}

fn ipv6_next_hop() -> impl Strategy<Value = NextHop> {
    any::<(u128, bool, u64)>().prop_map(|(global, both, interface)| NextHop::Ipv6 {
        global: (0x2001_0db8_u128 << 96 | global >> 32).into(),
        link_local: both.then(|| (0xfe80_u128 << 112 | u128::from(interface)).into()),
    })
}

fn routes() -> impl Strategy<Value = (Family, NextHop, Vec<IpNet>)> {
    let ipv4 = any::<u32>().prop_map(|address| NextHop::Ipv4(address.into()));
    prop_oneof![
        (Just(Family::Ipv4), ipv4, prefixes(Family::Ipv4)),
        (Just(Family::Ipv4), ipv6_next_hop(), prefixes(Family::Ipv4)),
        (Just(Family::Ipv6), ipv6_next_hop(), prefixes(Family::Ipv6)),
    ]
}

fn check_attributes(
    update: &bgpkit::BgpUpdateMessage,
    attributes: &RouteAttributes,
    form: &AttributeForm,
) {
    let read = &update.attributes;
    assert!(!read.has_validation_warnings(), "{:?}", read.validation_warnings());
    assert_eq!(read.origin(), bgpkit::Origin::IGP);
    let path =
        read.effective_as_path().expect("an AS path").to_u32_vec_opt(false).unwrap_or_default();
    assert_eq!(path, if form.external { vec![form.local_as] } else { vec![] });
    let preference = (!form.external).then(|| attributes.local_preference.unwrap_or(100));
    assert_eq!(read.local_preference(), preference);
    let (mut standard, mut large, mut bandwidth) = (BTreeSet::new(), BTreeSet::new(), None);
    for community in read.iter_communities() {
        match community {
            bgpkit::MetaCommunity::Plain(plain) => {
                let number = match plain {
                    bgpkit::Community::NoExport => 0xffff_ff01,
                    bgpkit::Community::NoAdvertise => 0xffff_ff02,
                    bgpkit::Community::NoExportSubConfed => 0xffff_ff03,
                    bgpkit::Community::Custom(asn, low) => asn.to_u32() << 16 | u32::from(low),
                };
                standard.insert(Community(number));
            }
            bgpkit::MetaCommunity::Large(each) => {
                let (administrator, data) = (each.global_admin, each.local_data);
                large.insert(LargeCommunity { administrator, data });
            }
            bgpkit::MetaCommunity::Extended(bgpkit::ExtendedCommunity::LinkBandwidth(link)) => {
                assert_eq!(link.transitive, form.external);
                assert_eq!(link.global_admin, u16::try_from(form.local_as).unwrap_or(23_456));
                bandwidth = Some(link.bandwidth);
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(&standard, attributes.communities.standard());
    assert_eq!(&large, attributes.communities.large());
    assert_eq!(bandwidth, attributes.bandwidth);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    #[test]
    fn others_read_announcements(
        (family, next_hop, prefixes) in routes(),
        attributes in attributes(),
        form in form(),
    ) {
        let mut stream = Vec::new();
        append_announcements(&mut stream, family, &prefixes, &next_hop, &attributes, &form);
        let mut announced = Vec::new();
        for octets in messages(&stream) {
            check_by_netgauze(octets, form.four_octet_as);
            let update = update_by_bgpkit(octets, form.four_octet_as);
            check_attributes(&update, &attributes, &form);
            let reach = update.attributes.get_reachable_nlri();
            let found = match (&next_hop, reach) {
                (NextHop::Ipv4(address), None) => {
                    assert_eq!(update.attributes.next_hop(), Some(IpAddr::V4(*address)));
                    &update.announced_prefixes
                }
                (NextHop::Ipv6 { global, link_local }, Some(reach)) => {
                    let expected = match link_local {
                        Some(link) => bgpkit::NextHopAddress::Ipv6LinkLocal(*global, *link),
                        None => bgpkit::NextHopAddress::Ipv6(*global),
                    };
                    assert_eq!(reach.next_hop, Some(expected));
                    &reach.prefixes
                }
                other => panic!("{other:?}"),
            };
            announced.extend(found.iter().map(|each| each.prefix));
        }
        prop_assert_eq!(announced, prefixes);
    }

    #[test]
    fn others_read_withdrawals((family, next_hop, prefixes) in routes()) {
        let extended = matches!(next_hop, NextHop::Ipv6 { .. });
        let mut stream = Vec::new();
        append_withdrawals(&mut stream, family, &prefixes, extended);
        let mut withdrawn = Vec::new();
        for octets in messages(&stream) {
            check_by_netgauze(octets, true);
            let update = update_by_bgpkit(octets, true);
            let found = match update.attributes.get_unreachable_nlri() {
                Some(unreach) if extended => &unreach.prefixes,
                None if !extended => &update.withdrawn_prefixes,
                other => panic!("{other:?}"),
            };
            withdrawn.extend(found.iter().map(|each| each.prefix));
        }
        prop_assert_eq!(withdrawn, prefixes);
    }

    #[test]
    fn others_read_opens(
        autonomous_system in 1..u32::MAX,
        hold_time in 3_u16..,
        // netgauze refuses what is no address of a host.
        identifier in 0x0100_0000_u32..0x7f00_0000,
        (ipv6, route_refresh, extended_next_hop) in any::<(bool, bool, bool)>(),
        restart in prop::option::of((any::<bool>(), 0_u16..4096, any::<[bool; 2]>())),
    ) {
        let families = Family::ALL.into_iter().filter(|family| ipv6 || *family == Family::Ipv4);
        let families: BTreeSet<Family> = families.collect();
        let graceful_restart = restart.map(|(restarting, time, preserved)| GracefulRestart {
            restarting,
            time,
            preserved: families.iter().copied().zip(preserved).collect(),
        });
        let open = OpenMessage {
            autonomous_system,
            hold_time,
            identifier: identifier.into(),
            capabilities: Capabilities {
                families,
                route_refresh,
                four_octet_as: true,
                extended_next_hop,
                graceful_restart,
            },
        };
        let mut octets = Vec::new();
        open.encode(&mut octets);
        check_by_netgauze(&octets, true);
        let BgpMessage::Open(read) = read_by_netgauze(&octets, true) else { panic!() };
        prop_assert_eq!(read.my_asn4(), autonomous_system);
        prop_assert_eq!(read.hold_time(), hold_time);
        let bgpkit::BgpMessage::Open(read) = read_by_bgpkit(&octets, true) else { panic!() };
        prop_assert_eq!(u32::from(read.bgp_identifier), identifier);
        let values = read.opt_params.iter().flat_map(|parameter| match &parameter.param_value {
            bgpkit::ParamValue::Capacities(capabilities) => capabilities.clone(),
            other => panic!("{other:?}"),
        });
        let values: Vec<_> = values.map(|capability| capability.value).collect();
        let is_raw = |value: &&_| matches!(value, bgpkit::CapabilityValue::Raw(_));
        prop_assert_eq!(values.iter().find(is_raw), None, "bgpkit knows all capabilities");
        for value in values {
            match value {
                bgpkit::CapabilityValue::FourOctetAs(read) => {
                    prop_assert_eq!(read.asn, autonomous_system);
                }
                bgpkit::CapabilityValue::GracefulRestart(read) => {
                    let sent = open.capabilities.graceful_restart.as_ref().unwrap();
                    prop_assert_eq!(read.restart_state, sent.restarting);
                    prop_assert_eq!(read.restart_time, sent.time);
                    let preserved: Vec<bool> =
                        read.address_families.iter().map(|each| each.forwarding_state).collect();
                    let sent: Vec<bool> = sent.preserved.values().copied().collect();
                    prop_assert_eq!(preserved, sent);
                }
                _ => (),
            }
        }
    }

    /// Where both accept a message with one changed octet, they find the same prefixes in it.
    #[test]
    fn they_find_the_same_prefixes_in_damaged_updates(
        (family, next_hop, prefixes) in routes(),
        at in any::<prop::sample::Index>(),
        octet in any::<u8>(),
    ) {
        let form = AttributeForm { local_as: 65_001, external: true, four_octet_as: true };
        let mut stream = Vec::new();
        let few = &prefixes[..prefixes.len().min(20)];
        append_announcements(&mut stream, family, few, &next_hop, &RouteAttributes::default(), &form);
        let mut octets = messages(&stream)[0].to_vec();
        let body = 19..octets.len();
        octets[body.start + at.index(body.len())] = octet;
        let received =
            ReceivedUpdate::parse(&octets[19..], UpdateContext { external: true, four_octet_as: true });
        let length = bgpkit::AsnLength::Bits32;
        let read = parse_bgp_message(&mut Bytes::copy_from_slice(&octets), false, &length);
        // bgpkit takes the length 0, of a default route, for the start of a path identifier (RFC 7911), which nobody has
        // agreed on.
        let is_guessed = received.announced.iter().any(|prefix| prefix.prefix_len() == 0);
        if let (None, Ok(bgpkit::BgpMessage::Update(update))) = (received.fault, read)
            && !is_guessed
            && !update.attributes.has_validation_warnings()
        {
            let reach = update.attributes.get_reachable_nlri();
            // Routes for multicast are ignored: nobody has agreed on them, either.
            let reach = reach.filter(|reach| reach.safi == bgpkit::Safi::Unicast);
            let reach = reach.map(|reach| reach.prefixes.clone()).unwrap_or_default();
            let found = reach.iter().chain(&update.announced_prefixes);
            let found: Vec<IpNet> = found.map(|each| each.prefix.trunc()).collect();
            prop_assert_eq!(received.announced, found);
        }
    }
}

#[test]
fn others_read_the_short_messages() {
    let mut stream = Vec::new();
    lb_bgp::wire::append_keepalive(&mut stream);
    for family in Family::ALL {
        refresh::append_route_refresh(&mut stream, family);
        append_end_of_rib(&mut stream, family);
    }
    Notification::new(Reason::AdministrativeShutdown).saying("drained").encode(&mut stream);
    Notification::new(Reason::BfdDown).encode(&mut stream);
    for octets in messages(&stream) {
        check_by_netgauze(octets, true);
        read_by_bgpkit(octets, true);
    }
    let ends = messages(&stream).into_iter().filter_map(|octets| {
        let BgpMessage::Update(update) = read_by_netgauze(octets, true) else { return None };
        update.end_of_rib()
    });
    assert_eq!(ends.count(), 2);
    let kinds =
        messages(&stream).into_iter().map(|octets| message::parse_first_message(octets).unwrap());
    let kinds: Vec<MessageKind> = kinds.map(|message| message.unwrap().kind).collect();
    assert_eq!(kinds.iter().filter(|kind| **kind == MessageKind::Notification).count(), 2);
}
