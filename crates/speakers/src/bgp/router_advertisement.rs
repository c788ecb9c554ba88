//! Router advertisements of this node on links without addresses (unnumbered BGP): routers such as FRR learn their
//! neighbour's address from them, and accept no connection before.
//!
//! Their router lifetime is 0, so no host on the link takes this node for its router (RFC 4861, section 4.2).

use std::collections::BTreeSet;
use std::net::Ipv6Addr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use lb_common::checksum::Sum;
use lb_kernel::Transmitter;
use nix::ifaddrs::getifaddrs;

use super::io::is_link_local;
use super::router::find_interface_index;

/// More often than routers need it; RFC 4861 wants at least 3 s.
const ADVERTISEMENT_INTERVAL: Duration = Duration::from_secs(5);
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const ROUTER_ADVERTISEMENT: u8 = 134;
const SOURCE_LINK_ADDRESS: u8 = 1;
const ICMPV6: u8 = 58;

/// The interfaces of unnumbered peers.
pub(crate) struct RouterAdvertiser {
    transmitter: Option<Arc<Transmitter>>,
    interfaces: BTreeSet<String>,
    due: Option<Duration>,
    complaint: Option<String>,
}

impl RouterAdvertiser {
    pub fn new(transmitter: Option<Arc<Transmitter>>) -> Self {
        Self { transmitter, interfaces: BTreeSet::new(), due: None, complaint: None }
    }

    pub(crate) fn set_interfaces(&mut self, interfaces: BTreeSet<String>, now: Duration) {
        self.due = (!interfaces.is_empty()).then_some(now);
        self.interfaces = interfaces;
    }

    pub(crate) fn next_advertisement(&self) -> Option<Duration> {
        self.due
    }

    pub(crate) fn send_due_advertisements(&mut self, now: Duration) {
        if self.due.is_none_or(|due| due > now) {
            return;
        }
        self.due = Some(now + ADVERTISEMENT_INTERVAL);
        let sent = self.interfaces.iter().try_for_each(|name| {
            self.advertise(name).with_context(|| format!("router advertisement on {name}"))
        });
        // Each once.
        let complaint = sent.err().map(|error| format!("{error:#}"));
        if let Some(error) = complaint.as_ref().filter(|_| complaint != self.complaint) {
            tracing::warn!(error, "unnumbered bgp may not work");
        }
        self.complaint = complaint;
    }

    fn advertise(&self, interface: &str) -> Result<()> {
        let Some(transmitter) = &self.transmitter else { return Ok(()) };
        let (link, source) = read_own_addresses(interface)?;
        transmitter
            .transmit(find_interface_index(interface)?, &encode_router_advertisement(link, source))
    }
}

/// The link-layer and the link-local address of an interface.
fn read_own_addresses(interface: &str) -> Result<([u8; 6], Ipv6Addr)> {
    let (mut link, mut source) = (None, None);
    for found in getifaddrs()?.filter(|found| found.interface_name == interface) {
        let Some(address) = found.address else { continue };
        link = link.or_else(|| address.as_link_addr()?.addr());
        let six = address.as_sockaddr_in6().map(|six| six.ip());
        source = source.or(six.filter(|six| is_link_local((*six).into())));
    }
    let link = link.context("it has no link-layer address of 6 octets")?;
    Ok((link, source.context("it has no link-local address")?))
}

fn encode_router_advertisement(link: [u8; 6], source: Ipv6Addr) -> Vec<u8> {
    // No hop limit, no flags, no times; then the option.
    let mut message = vec![ROUTER_ADVERTISEMENT, 0, 0, 0];
    message.extend([0; 12]);
    message.extend([SOURCE_LINK_ADDRESS, 1]);
    message.extend(link);
    let length = message.len() as u16;
    let checksum = icmpv6_checksum(source, &message);
    message[2..4].copy_from_slice(&checksum);
    // Ethernet, IPv6: class of internetwork control, hop limit 255.
    let mut frame = vec![0x33, 0x33, 0, 0, 0, 1];
    frame.extend(link);
    frame.extend([0x86, 0xdd, 0x6c, 0, 0, 0]);
    frame.extend(length.to_be_bytes());
    frame.extend([ICMPV6, u8::MAX]);
    frame.extend(source.octets());
    frame.extend(ALL_NODES.octets());
    frame.extend(message);
    frame
}

fn icmpv6_checksum(source: Ipv6Addr, message: &[u8]) -> [u8; 2] {
    let addresses = [source.octets(), ALL_NODES.octets()].concat();
    // Lengths are multiples of 4.
    let words = addresses.as_chunks().0.iter().chain(message.as_chunks().0);
    let sum = words.fold(Sum::default(), |sum, octets| sum.octets(*octets));
    sum.word(message.len() as u16).word(ICMPV6.into()).checksum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_advertisement_is_valid() {
        let source = "fe80::1".parse().unwrap();
        let frame = encode_router_advertisement([2, 0, 0, 0, 0, 7], source);
        assert_eq!(frame.len(), 14 + 40 + 24);
        assert_eq!(frame[54..56], [134, 0]);
        assert_eq!(frame[60..62], [0, 0], "router lifetime");
        assert_eq!(frame[70..], [1, 1, 2, 0, 0, 0, 0, 7]);
        assert_eq!(icmpv6_checksum(source, &frame[54..]), [0, 0], "the sum of all is 0");
    }

    #[test]
    fn the_loopback_interface_has_no_addresses_for_it() {
        assert!(read_own_addresses("lo").is_err());
    }
}
