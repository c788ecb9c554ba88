//! One message of a peer: what is accepted is bounded, and means the same when it is written again.

use lb_bgp::wire::AttributeForm;
use lb_bgp::wire::received::{FaultTreatment, ReceivedUpdate, UpdateContext};
use lb_bgp::wire::update::{append_announcements, append_withdrawals};
use lb_bgp::wire::{
    MAX_MESSAGE_OCTETS, MessageKind, Notification, OpenMessage, message as framing, refresh,
};
use lb_bgp::{Family, NextHop, RouteAttributes};

use crate::Input;

/// Attributes of an UPDATE, whole and damaged.
const ATTRIBUTES: [&[u8]; 16] = [
    &[0x40, 1, 1, 0],
    &[0x40, 2, 6, 2, 1, 0, 0, 0xfd, 0xe9],
    &[0x40, 3, 4, 192, 0, 2, 1],
    &[0x40, 2, 4, 2, 1, 0xfd, 0xe9],
    &[0x40, 2, 0],
    &[0x80, 14, 10, 0, 1, 1, 4, 192, 0, 2, 1, 0, 0],
    &[0x90, 14, 0, 22, 0, 2, 1, 16, 0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0],
    &[0x80, 15, 3, 0, 2, 1],
    &[0x80, 15, 8, 0, 2, 1, 32, 0x20, 1, 0xd, 0xb8],
    &[0x80, 14],
    &[0xc0, 8, 4, 0xff, 0xff, 0, 0],
    &[0xc0, 32, 12, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3],
    &[0xc0, 7, 8, 0, 0, 0, 1, 192, 0, 2, 1],
    &[0x40, 5, 4, 0, 0, 0, 100],
    &[0xd0, 99, 0xff, 0xff],
    &[0xc0, 99, 1, 0],
];

const PREFIXES: [&[u8]; 6] = [&[], &[0], &[24, 203, 0, 113], &[32, 192, 0, 2, 1], &[33], &[24, 1]];

const CAPABILITIES: [&[u8]; 8] = [
    &[1, 4, 0, 2, 0, 1],
    &[2, 0],
    &[5, 6, 0, 1, 0, 1, 0, 2],
    &[64, 6, 0x80, 120, 0, 1, 1, 0x80],
    &[65, 4, 0, 0, 0xfd, 0xe9],
    &[65, 4, 0, 0, 0, 0],
    &[1, 9],
    &[99, 1, 0],
];

/// A stream that mostly begins with a message.
pub fn generate_stream(input: &mut Input) -> Vec<u8> {
    let kind = input.choose(&[2, 1, 2, 2, 3, 4, 5, 0]);
    let mut body = match kind {
        1 => generate_open(input),
        2 => update(input),
        _ => {
            let length = input.below(40);
            input.take(length)
        }
    };
    if input.chance(64) && !body.is_empty() {
        let at = usize::from(input.short()) % body.len();
        body[at] = input.byte();
    }
    if input.chance(16) {
        body.resize(body.len() + usize::from(input.short() % 5000), input.byte());
    }
    let mut length = (19 + body.len()) as u16;
    if input.chance(8) {
        length = input.short();
    }
    let mut stream = [&[0xff; 16][..], &length.to_be_bytes(), &[kind], &body].concat();
    if input.chance(8) {
        stream[input.below(19)] = input.byte();
    }
    stream.extend(input.rest());
    stream
}

fn pieces(input: &mut Input, from: &[&[u8]], most: usize) -> Vec<u8> {
    (0..input.below(most + 1)).flat_map(|_| input.choose(from).to_vec()).collect()
}

fn generate_open(input: &mut Input) -> Vec<u8> {
    let capabilities = pieces(input, &CAPABILITIES, 6);
    let length = capabilities.len() as u8;
    let head = match input.chance(64) {
        true => vec![255, 255, 0, length + 3, 2, 0, length],
        false => vec![length + 2, 2, length],
    };
    let hold_time = input.choose(&[9, 0, 1, 90]);
    [&[4, 0xfd, 0xe9, 0, hold_time, 192, 0, 2, 1][..], &head, &capabilities].concat()
}

fn update(input: &mut Input) -> Vec<u8> {
    let withdrawn = pieces(input, &PREFIXES, 2);
    // Mostly with what an announcement needs.
    let mut attributes = if input.chance(128) { ATTRIBUTES[..3].concat() } else { Vec::new() };
    attributes.extend(pieces(input, &ATTRIBUTES, 3));
    let announced = pieces(input, &PREFIXES, 2);
    let length = |field: &[u8]| (field.len() as u16).to_be_bytes();
    [&length(&withdrawn)[..], &withdrawn, &length(&attributes), &attributes, &announced].concat()
}

pub fn fuzz_bgp_message(bytes: &[u8]) -> &'static str {
    let mut input = Input::new(bytes);
    let stream = generate_stream(&mut input);
    let outcome = framing::parse_first_message(&stream);
    let first = (0..stream.len().min(MAX_MESSAGE_OCTETS))
        .map(|end| framing::parse_first_message(&stream[..end]))
        .find(|outcome| *outcome != Ok(None));
    match first {
        Some(first) => assert_eq!(first, outcome, "more octets changed the outcome"),
        None => {
            assert!(stream.len() <= MAX_MESSAGE_OCTETS || outcome != Ok(None), "it waits forever")
        }
    }
    let message = match outcome {
        Err(notification) => {
            check_notification(&notification);
            return "bad header";
        }
        Ok(None) => return "incomplete",
        Ok(Some(message)) => message,
    };
    assert!(message.length() <= stream.len().min(MAX_MESSAGE_OCTETS));
    match message.kind {
        MessageKind::Open => open_of(message.body),
        MessageKind::Update => update_of(message.body),
        MessageKind::Notification => {
            check_notification(&Notification::parse(message.body));
            "notification"
        }
        MessageKind::Keepalive => "keepalive",
        MessageKind::RouteRefresh => {
            let _ = refresh::parse_route_refresh(message.body);
            "route refresh"
        }
    }
}

fn check_notification(notification: &Notification) {
    let text = notification.to_string();
    assert!(text.len() < 2000 && !text.contains(char::is_control), "{text:?}");
    let mut out = Vec::new();
    notification.encode(&mut out);
    let written =
        framing::parse_first_message(&out).expect("a valid message").expect("a whole message");
    let again = Notification::parse(written.body);
    assert_eq!((again.code, again.subcode), (notification.code, notification.subcode));
}

fn open_of(body: &[u8]) -> &'static str {
    let open = match OpenMessage::parse(body) {
        Err(notification) => {
            assert_eq!(notification.code, 2);
            check_notification(&notification);
            return "bad open";
        }
        Ok(open) => open,
    };
    assert!(open.autonomous_system != 0 && !open.capabilities.families.is_empty());
    let mut out = Vec::new();
    open.encode(&mut out);
    let written =
        framing::parse_first_message(&out).expect("a valid message").expect("a whole message");
    // A number of four octets is only in the capability.
    if open.capabilities.four_octet_as || open.autonomous_system <= u32::from(u16::MAX) {
        assert_eq!(OpenMessage::parse(written.body), Ok(open));
    }
    "open"
}

fn update_of(body: &[u8]) -> &'static str {
    let peer = UpdateContext { external: true, four_octet_as: true };
    let received = ReceivedUpdate::parse(body, peer);
    assert!(received.announced.len() + received.withdrawn.len() <= body.len());
    if let Some(fault) = received.fault {
        assert_eq!(received.end_of_rib, None);
        return match fault.treatment {
            FaultTreatment::DiscardAttribute => "discard attribute",
            FaultTreatment::TreatAsWithdraw => "treat as withdraw",
            FaultTreatment::IgnoreFamily => "ignore family",
        };
    }
    if received.end_of_rib.is_some() {
        assert!(received.announced.is_empty() && received.withdrawn.is_empty());
        return "end of rib";
    }
    for family in Family::ALL {
        let next_hop = NextHop::Ipv6 { global: 1.into(), link_local: None };
        let form = AttributeForm { local_as: 65_001, external: true, four_octet_as: true };
        let of_family = |prefixes: &[ipnet::IpNet]| -> Vec<_> {
            prefixes.iter().copied().filter(|prefix| Family::of_prefix(prefix) == family).collect()
        };
        let mut out = Vec::new();
        let announced = of_family(&received.announced);
        append_announcements(
            &mut out,
            family,
            &announced,
            &next_hop,
            &RouteAttributes::default(),
            &form,
        );
        let withdrawn = of_family(&received.withdrawn);
        append_withdrawals(&mut out, family, &withdrawn, false);
        let mut again = ReceivedUpdate::default();
        let mut rest = &out[..];
        while let Some(written) = framing::parse_first_message(rest).expect("valid messages") {
            let part = ReceivedUpdate::parse(written.body, peer);
            assert_eq!(part.fault, None);
            again.announced.extend(part.announced);
            again.withdrawn.extend(part.withdrawn);
            rest = &rest[written.length()..];
        }
        assert_eq!((again.announced, again.withdrawn), (announced, withdrawn));
    }
    "update"
}
