//! From a description to bytes. Headers and checksums are `etherparse`'s; only SCTP, which it does
//! not know, is made by hand.

mod ip;
mod transport;

use etherparse::{EtherType, Ethernet2Header, SingleVlanHeader, VlanId};

use super::description::{Content, Description, Ethernet};

/// What is expected of every length: it comes from a test.
const FITS: &str = "a packet has at most 65535 bytes";

impl Description {
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = match &self.content {
            Content::Ip(ip) if ip.source.is_ipv4() => {
                self.ethernet.encode(EtherType::IPV4, &ip.encode())
            }
            Content::Ip(ip) => self.ethernet.encode(EtherType::IPV6, &ip.encode()),
            Content::Arp(arp) => self.ethernet.encode(EtherType::ARP, &arp.to_bytes()),
            Content::Raw(bytes) => bytes.clone(),
        };
        for edit in &self.edits {
            (edit.0)(&mut bytes);
        }
        bytes
    }
}

impl Ethernet {
    fn encode(&self, innermost: EtherType, payload: &[u8]) -> Vec<u8> {
        // Each header names the type of what follows it.
        let mut types = self.tags.iter().map(|tag| EtherType(tag.ether_type)).chain([innermost]);
        let mut next = || types.next().expect("one type more than tags");

        let header = Ethernet2Header {
            source: self.source.0,
            destination: self.destination.0,
            ether_type: next(),
        };
        let mut bytes = header.to_bytes().to_vec();
        for tag in &self.tags {
            let vlan_id = VlanId::try_new(tag.id).expect("a VLAN id has 12 bits");
            bytes.extend(
                SingleVlanHeader { vlan_id, ether_type: next(), ..Default::default() }.to_bytes(),
            );
        }
        bytes.extend(payload);
        bytes
    }
}

#[cfg(test)]
mod tests;
