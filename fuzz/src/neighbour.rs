//! ARP and neighbour discovery: packets of all kinds, and what must come of each, read from the
//! RFCs independently of the data plane.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use lb_common::header::protocol::ICMPV6;

use crate::checksum::{self, address_octets};
use crate::universe::{self, LINK_ADDRESS as OWN, client_address, node_address, service_address};
use crate::{FuzzEvent, Hook, Input, TableChange};

const ALL_NODES: [u8; 6] = [0x33, 0x33, 0, 0, 0, 1];

/// Announcements, and packets about them.
pub fn generate_announcements(input: &mut Input) -> Vec<FuzzEvent> {
    let v6 = input.chance(128);
    let mut events = Vec::new();
    for _ in 0..1 + input.below(3) {
        let address = choose_announced(input, v6);
        events.push(FuzzEvent::Change(if input.chance(64) {
            TableChange::Watch(address)
        } else {
            TableChange::Announce { address, expired: input.chance(48) }
        }));
    }
    for _ in 0..1 + input.below(6) {
        let hook = input.choose(&[Hook::Stack, Hook::Stack, Hook::Stack, Hook::Forward]);
        events.push(FuzzEvent::Packet(hook, packet(input, v6)));
    }
    events
}

fn choose_announced(input: &mut Input, v6: bool) -> IpAddr {
    match input.below(8) {
        7 => node_address(v6, 0),
        6 => node_address(v6, 1),
        number => service_address(v6, number),
    }
}

fn link(input: &mut Input) -> [u8; 6] {
    const OTHER: [u8; 6] = [2, 0, 0, 0, 0, 0xc1];
    let rare = [OWN, [0; 6], [0xff; 6], [3, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 0xc2]];
    if input.chance(48) { input.choose(&rare) } else { OTHER }
}

fn packet(input: &mut Input, v6: bool) -> Vec<u8> {
    let sender = link(input);
    let target = choose_announced(input, v6);
    let to = match input.below(8) {
        6 => OWN,
        7 => link(input),
        _ if v6 => group_link(solicited_node(target)),
        _ => [0xff; 6],
    };
    let mut bytes = [to, sender].concat();
    for _ in 0..input.choose(&[0, 0, 0, 0, 0, 1, 2, 3]) {
        bytes.extend([0x81, 0, 0, 100]);
    }
    bytes.extend(if v6 { [0x86, 0xdd] } else { [0x08, 0x06] });
    bytes.extend(if v6 { generate_message(input, target) } else { arp(input, target) });
    match input.below(16) {
        12 | 13 => bytes.resize(bytes.len() + 1 + input.below(60), 0),
        14 => bytes.truncate(14 + input.below(bytes.len() - 13)),
        15 => {
            let at = 14 + input.below(bytes.len() - 14);
            bytes[at] = input.byte();
        }
        _ => {}
    }
    bytes
}

fn other(input: &mut Input, v6: bool, target: IpAddr) -> IpAddr {
    match input.below(8) {
        6 => target,
        7 if v6 => Ipv6Addr::UNSPECIFIED.into(),
        7 => Ipv4Addr::UNSPECIFIED.into(),
        number => client_address(v6, number),
    }
}

fn arp(input: &mut Input, target: IpAddr) -> Vec<u8> {
    let operation = input.choose(&[1, 1, 1, 1, 1, 2, 2, 3]);
    let (sender, from) = (link(input), other(input, false, target));
    let mut bytes = vec![0, 1, 8, 0, 6, 4, 0, operation];
    bytes.extend(sender);
    bytes.extend(address_octets(from));
    bytes.extend([0; 6]);
    bytes.extend(address_octets(target));
    bytes
}

fn solicited_node(target: IpAddr) -> Ipv6Addr {
    let [.., a, b, c] = address_octets(target)[..] else { unreachable!("an address has octets") };
    Ipv6Addr::from([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, a, b, c])
}

fn group_link(group: Ipv6Addr) -> [u8; 6] {
    let [.., a, b, c, d] = group.octets();
    [0x33, 0x33, a, b, c, d]
}

fn generate_message(input: &mut Input, target: IpAddr) -> Vec<u8> {
    let kind = input.choose(&[135, 135, 135, 135, 135, 136, 136, 133]);
    let from = other(input, true, target);
    let to: IpAddr = match input.below(8) {
        5 => target,
        6 => Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1).into(),
        7 => universe::foreign_address(true),
        _ => solicited_node(target).into(),
    };
    let flags = input.choose(&[0, 0, 0x20, 0x60]);
    let mut segment = vec![kind, u8::from(input.chance(8)), 0, 0, flags, 0, 0, 0];
    segment.extend(address_octets(target));
    let options = input.choose(&[0, 1, 1, 1, 2, 2, 3, 16]);
    for _ in 0..options {
        let units = input.choose(&[1, 1, 1, 1, 1, 1, 2, 0]);
        segment.extend([input.choose(&[1, 2, 14, 253]), units]);
        segment.extend(link(input));
        segment.resize(segment.len() + 8 * usize::from(units.saturating_sub(1)), 7);
    }
    let right = checksum::transport_checksum(from, to, ICMPV6, &segment);
    segment[2..4].copy_from_slice(&right);
    if input.chance(12) {
        segment[2] ^= 0x5a;
    }
    let hop_limit = if input.chance(12) { 64 } else { 255 };
    let mut bytes = vec![0x60, 0, 0, 0];
    bytes.extend((segment.len() as u16).to_be_bytes());
    bytes.extend([ICMPV6, hop_limit]);
    bytes.extend(address_octets(from));
    bytes.extend(address_octets(to));
    bytes.extend(segment);
    bytes
}

/// What a frame about neighbours means.
pub enum Meaning {
    /// A machine asks for an address; this is the answer from [`OWN`].
    Request { target: IpAddr, answer: Vec<u8> },
    /// A machine says that it has an address.
    Claim { address: IpAddr, link: [u8; 6] },
}

fn is_single(link: &[u8]) -> bool {
    link[0] & 1 == 0 && link.iter().any(|octet| *octet != 0)
}

/// All meanings of a frame that has arrived from another machine.
pub fn list_meanings(bytes: &[u8]) -> Vec<Meaning> {
    let (Some(sender), Some(to)) = (bytes.get(6..12), bytes.get(..6)) else { return Vec::new() };
    if !is_single(sender) || sender == OWN {
        return Vec::new();
    }
    let mut network = 14;
    while network < 22 && matches!(bytes.get(network - 2..network), Some([0x81, 0] | [0x88, 0xa8]))
    {
        network += 4;
    }
    let mut found = match bytes.get(network - 2..network) {
        Some([0x08, 0x06]) => of_arp(bytes, network),
        Some([0x86, 0xdd]) => of_message(bytes, network),
        _ => Vec::new(),
    };
    let is_for_us = to[0] & 1 != 0 || to == OWN;
    found.retain(|meaning| is_for_us || matches!(meaning, Meaning::Claim { .. }));
    found
}

fn framed(bytes: &[u8], network: usize, to: &[u8], packet: &[u8]) -> Vec<u8> {
    [to, &OWN, &bytes[12..network], packet].concat()
}

fn of_arp(bytes: &[u8], network: usize) -> Vec<Meaning> {
    let mut found = Vec::new();
    let Some(arp) = bytes.get(network..network + 28) else { return found };
    let (sender, from, target) = (&arp[8..14], &arp[14..18], &arp[24..28]);
    if arp[..7] != [0, 1, 8, 0, 6, 4, 0] || !matches!(arp[7], 1 | 2) || !is_single(sender) {
        return found;
    }
    let address =
        |octets: &[u8]| IpAddr::V4(Ipv4Addr::new(octets[0], octets[1], octets[2], octets[3]));
    if sender != OWN && from != [0; 4] {
        let link = sender.try_into().expect("six octets");
        found.push(Meaning::Claim { address: address(from), link });
    }
    if arp[7] == 1 && from != target {
        let reply = [&arp[..7], &[2], &OWN, target, sender, from].concat();
        let answer = framed(bytes, network, &bytes[6..12], &reply);
        found.push(Meaning::Request { target: address(target), answer });
    }
    found
}

fn of_message(bytes: &[u8], network: usize) -> Vec<Meaning> {
    message_of(bytes, network).into_iter().collect()
}

fn message_of(bytes: &[u8], network: usize) -> Option<Meaning> {
    let header = bytes.get(network..network + 40)?;
    let length = usize::from(u16::from_be_bytes([header[4], header[5]]));
    if header[0] >> 4 != 6 || header[6] != ICMPV6 || header[7] != 255 {
        return None;
    }
    let segment = bytes.get(network + 40..network + 40 + length)?;
    // Longer messages are not read.
    if !(24..=128).contains(&length) {
        return None;
    }
    let address =
        |octets: &[u8]| -> Option<Ipv6Addr> { Some(<[u8; 16]>::try_from(octets).ok()?.into()) };
    let (from, to) = (address(&header[8..24])?, address(&header[24..40])?);
    let target = address(&segment[8..24])?;
    if !checksum::is_right(from.into(), to.into(), ICMPV6, segment) || target.is_multicast() {
        return None;
    }
    let mut options = Vec::new();
    let mut rest = &segment[24..];
    while !rest.is_empty() {
        let units = usize::from(*rest.get(1)?);
        let option = rest.get(..units * 8).filter(|option| !option.is_empty())?;
        options.push(option);
        rest = &rest[units * 8..];
    }
    match segment[..2] {
        [135, 0] => {
            let detection = from.is_unspecified();
            let names_source = options.iter().any(|option| option[0] == 1);
            let group = solicited_node(target.into());
            if detection && (to != group || names_source) || !to.is_multicast() && to != target {
                return None;
            }
            let (receiver, link, flags) = if detection {
                (Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1), &ALL_NODES[..], 0x20)
            } else {
                (from, &bytes[6..12], 0x60)
            };
            let mut reply = vec![136, 0, 0, 0, flags, 0, 0, 0];
            reply.extend(target.octets());
            reply.extend([2, 1]);
            reply.extend(OWN);
            let right =
                checksum::transport_checksum(target.into(), receiver.into(), ICMPV6, &reply);
            reply[2..4].copy_from_slice(&right);
            let mut packet = vec![0x60, 0, 0, 0, 0, 32, ICMPV6, 255];
            packet.extend(target.octets());
            packet.extend(receiver.octets());
            packet.extend(reply);
            let answer = framed(bytes, network, link, &packet);
            Some(Meaning::Request { target: target.into(), answer })
        }
        [136, 0] => {
            if to.is_multicast() && segment[4] & 0x40 != 0 {
                return None;
            }
            let named = options.iter().rev().find(|option| option[0] == 2 && option.len() == 8);
            let named = named.map(|option| &option[2..8]).filter(|link| is_single(link));
            let link: [u8; 6] = named.unwrap_or(&bytes[6..12]).try_into().ok()?;
            (link != OWN).then_some(Meaning::Claim { address: target.into(), link })
        }
        _ => None,
    }
}
