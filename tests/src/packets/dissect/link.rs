//! Ethernet, VLAN tags, ARP.

use std::net::Ipv4Addr;

use etherparse::{ArpPacketSlice, EtherType, Ethernet2HeaderSlice, SingleVlanHeaderSlice};

use super::ip;
use super::report::Report;
use crate::packets::Mac;

pub fn dissect_ethernet(report: &mut Report, bytes: &[u8]) {
    let header = match Ethernet2HeaderSlice::from_slice(bytes) {
        Ok(header) => header,
        Err(error) => return report.malformed("Ethernet", error, bytes),
    };
    let (source, destination) = (Mac(header.source()), Mac(header.destination()));
    report.line(
        "Ethernet",
        format_args!("{source} > {destination}, {}", ether_type(header.ether_type())),
    );
    tags_and_content(report, header.ether_type(), &bytes[header.slice().len()..]);
}

/// A loop rather than recursion: a frame may be nothing but thousands of tags.
fn tags_and_content(report: &mut Report, mut kind: EtherType, mut bytes: &[u8]) {
    while is_tag(kind) {
        let header = match SingleVlanHeaderSlice::from_slice(bytes) {
            Ok(header) => header,
            Err(error) => return report.malformed("VLAN", error, bytes),
        };
        kind = header.ether_type();
        bytes = &bytes[header.slice().len()..];
        let (id, priority) =
            (header.vlan_identifier().value(), header.priority_code_point().value());
        report.line("VLAN", format_args!("id {id}, priority {priority}, {}", ether_type(kind)));
    }
    match kind {
        EtherType::IPV4 => ip::dissect_ipv4(report, bytes),
        EtherType::IPV6 => ip::dissect_ipv6(report, bytes),
        EtherType::ARP => dissect_arp(report, bytes),
        _ => report.data("Data", bytes),
    }
}

fn is_tag(kind: EtherType) -> bool {
    matches!(
        kind,
        EtherType::VLAN_TAGGED_FRAME
            | EtherType::PROVIDER_BRIDGING
            | EtherType::VLAN_DOUBLE_TAGGED_FRAME
    )
}

fn dissect_arp(report: &mut Report, bytes: &[u8]) {
    let packet = match ArpPacketSlice::from_slice(bytes) {
        Ok(packet) => packet,
        Err(error) => return report.malformed("ARP", error, bytes),
    };
    let after = &bytes[packet.slice().len()..];
    match packet.to_packet().try_eth_ipv4() {
        Ok(arp) => {
            let (sender, target) =
                (Ipv4Addr::from(arp.sender_ipv4), Ipv4Addr::from(arp.target_ipv4));
            let (sender_mac, target_mac) = (Mac(arp.sender_mac), Mac(arp.target_mac));
            match arp.operation.0 {
                1 => report
                    .line("ARP", format_args!("who has {target}? tell {sender} at {sender_mac}")),
                2 => report.line(
                    "ARP",
                    format_args!("{sender} is at {sender_mac}, to {target} at {target_mac}"),
                ),
                other => report.line(
                    "ARP",
                    format_args!("operation {other}, {sender} at {sender_mac} > {target}"),
                ),
            }
        }
        Err(_) => report.data("ARP", packet.slice()),
    }
    report.data("Padding", after);
}

fn ether_type(kind: EtherType) -> String {
    let name = match kind {
        EtherType::IPV4 => " (IPv4)",
        EtherType::IPV6 => " (IPv6)",
        EtherType::ARP => " (ARP)",
        EtherType::VLAN_TAGGED_FRAME => " (802.1Q)",
        EtherType::PROVIDER_BRIDGING => " (802.1ad)",
        _ => "",
    };
    format!("type 0x{:04x}{name}", kind.0)
}
