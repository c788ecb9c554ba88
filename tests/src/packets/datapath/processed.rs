//! Assertions about what happened to a packet.

use std::net::{IpAddr, SocketAddr};

use lb_common::layout::Reason;

use super::surroundings::OUTSIDE;
use super::{Fate, Hook, PacketOutcome};
use crate::packets::{Packet, assert_same_packet, dissect};

/// No device: the packet goes back to where it came from.
const BACK: u32 = 0;

/// The result of a packet, for assertions.
#[must_use]
pub struct Processed {
    pub(super) place: String,
    pub(super) hook: Hook,
    pub(super) packet: Vec<u8>,
    pub outcome: PacketOutcome,
    /// The egress device, if it was sent.
    pub(super) left_by: u32,
    pub(super) counted: Vec<Reason>,
}

impl Processed {
    /// The packet was translated and passed.
    #[track_caller]
    pub fn becomes(&self, expected: &Packet) {
        self.assert_fate(Fate::Passed);
        assert_same_packet(&self.place, expected, &self.outcome.bytes);
        assert_eq!(self.counted, [], "{}", self.place);
    }

    /// The packet was translated and passed, and this was counted.
    #[track_caller]
    pub fn becomes_for(&self, expected: &Packet, reason: Reason) {
        self.assert_fate(Fate::Passed);
        assert_same_packet(&self.place, expected, &self.outcome.bytes);
        assert_eq!(self.counted, [reason], "{}", self.place);
    }

    /// Whether this was counted for it.
    pub fn was_counted_for(&self, reason: Reason) -> bool {
        self.counted == [reason]
    }

    /// The packet passed unchanged, and nothing was counted.
    #[track_caller]
    pub fn passes(&self) {
        self.passes_because(&[]);
    }

    #[track_caller]
    pub fn passes_for(&self, reason: Reason) {
        self.passes_because(&[reason]);
    }

    #[track_caller]
    fn passes_because(&self, reasons: &[Reason]) {
        self.assert_fate(Fate::Passed);
        assert_same_packet(&self.place, &self.packet, &self.outcome.bytes);
        assert_eq!(self.counted, reasons, "{}", self.place);
    }

    /// The packet passed, translated or not.
    #[track_caller]
    pub fn assert_passed(&self) {
        self.assert_fate(Fate::Passed);
    }

    /// The packet was replaced by another one, which is sent back.
    #[track_caller]
    pub fn is_answered_by(&self, expected: &Packet, reason: Reason) {
        self.assert_fate(self.sent_back());
        assert_same_packet(&self.place, expected, &self.outcome.bytes);
        assert_eq!(self.counted, [reason], "{}", self.place);
    }

    /// The packet left, whatever it was replaced by.
    #[track_caller]
    pub fn assert_sent(&self) {
        self.assert_fate(Fate::Sent);
    }

    /// The packet was replaced by another one, which is sent back, for no counted reason.
    #[track_caller]
    pub fn is_replaced_by(&self, expected: &Packet) {
        self.assert_fate(self.sent_back());
        assert_same_packet(&self.place, expected, &self.outcome.bytes);
        assert_eq!(self.counted, [], "{}", self.place);
    }

    /// The packet was translated and sent through a device.
    #[track_caller]
    pub fn leaves_by(&self, device: u32, expected: &Packet) {
        self.assert_left_by(device);
        assert_same_packet(&self.place, expected, &self.outcome.bytes);
        assert_eq!(self.counted, [], "{}", self.place);
    }

    /// The packet was translated and sent through a device, and this was counted.
    #[track_caller]
    pub fn leaves_by_for(&self, device: u32, expected: &Packet, reason: Reason) {
        self.assert_left_by(device);
        assert_same_packet(&self.place, expected, &self.outcome.bytes);
        assert_eq!(self.counted, [reason], "{}", self.place);
    }

    /// The packet was sent through a device and translated, also its source, which is returned: the client as the
    /// backend sees it.
    #[track_caller]
    pub fn leaves_with_snat_by(&self, device: u32, expected: &Packet) -> String {
        self.assert_left_by(device);
        let (source, _) = ends(&self.outcome.bytes);
        assert_same_packet(&self.place, &expected.from(source.as_str()), &self.outcome.bytes);
        assert_eq!(self.counted, [], "{}", self.place);
        source
    }

    /// The packet was translated, and enters the stack as one that has arrived.
    #[track_caller]
    pub fn turns_back_as(&self, expected: &Packet) {
        self.assert_left_by(BACK);
        assert_same_packet(&self.place, expected, &self.outcome.bytes);
        assert_eq!(self.counted, [], "{}", self.place);
    }

    /// The packet was replaced by an answer, which enters the stack as one that has arrived.
    #[track_caller]
    pub fn is_returned(&self, expected: &Packet, reason: Reason) {
        self.assert_left_by(BACK);
        assert_same_packet(&self.place, expected, &self.outcome.bytes);
        assert_eq!(self.counted, [reason], "{}", self.place);
    }

    /// As [`Self::turns_back_as`]; its source, as the server of this node sees it, has another port, and is returned.
    #[track_caller]
    pub fn turns_back_with_snat_as(&self, expected: &Packet) -> String {
        self.assert_left_by(BACK);
        let (source, _) = ends(&self.outcome.bytes);
        assert_same_packet(&self.place, &expected.from(source.as_str()), &self.outcome.bytes);
        assert_eq!(self.counted, [], "{}", self.place);
        source
    }

    /// The packet continues unchanged to tc.
    #[track_caller]
    pub fn is_deferred_for(&self, reasons: &[Reason]) {
        self.assert_fate(Fate::Deferred);
        assert_same_packet(&self.place, &self.packet, &self.outcome.bytes);
        assert_eq!(self.counted, reasons, "{}", self.place);
    }

    /// Whether this reason was counted, and no other.
    pub fn is_counted_for(&self, reason: Reason) -> bool {
        self.counted == [reason]
    }

    #[track_caller]
    fn assert_left_by(&self, device: u32) {
        self.assert_fate(if device == OUTSIDE { self.sent_back() } else { Fate::Sent });
        assert_eq!(self.left_by, device, "{}", self.place);
    }

    /// The fate of a packet that leaves through its ingress device.
    fn sent_back(&self) -> Fate {
        if self.hook == Hook::Forward { Fate::Transmitted } else { Fate::Sent }
    }

    #[track_caller]
    fn assert_fate(&self, expected: Fate) {
        let fate = self.outcome.fate;
        assert!(fate == expected, "{}: {fate:?}, counted {:?}", self.place, self.counted);
    }

    #[track_caller]
    pub fn is_dropped_for(&self, reason: Reason) {
        self.assert_fate(Fate::Dropped);
        assert_eq!(self.counted, [reason], "{}", self.place);
    }

    /// The packet was translated and passed, also its source, which is returned: the client as the
    /// backend sees it.
    #[track_caller]
    pub fn with_snat(&self, expected: &Packet) -> String {
        self.assert_fate(Fate::Passed);
        let (source, _) = ends(&self.outcome.bytes);
        assert_same_packet(&self.place, &expected.from(source.as_str()), &self.outcome.bytes);
        source
    }

    /// Returns the backend that it was sent to; `sent` makes the packet for each.
    #[track_caller]
    pub fn chosen<'a>(&self, backends: &[&'a str], sent: impl Fn(&str) -> Packet) -> &'a str {
        let chosen = backends.iter().find(|backend| *sent(backend) == self.outcome.bytes[..]);
        chosen.unwrap_or_else(|| {
            panic!("{}: went to no backend:\n{}", self.place, dissect(&self.outcome.bytes))
        })
    }
}

/// The source and destination of a packet of TCP, UDP or SCTP.
pub fn ends(packet: &[u8]) -> (String, String) {
    use etherparse::{NetSlice, SlicedPacket, TransportSlice};

    let sliced = SlicedPacket::from_ethernet(packet).unwrap_or_else(|error| panic!("{error}"));
    let ports = match &sliced.transport {
        Some(TransportSlice::Tcp(tcp)) => (tcp.source_port(), tcp.destination_port()),
        Some(TransportSlice::Udp(udp)) => (udp.source_port(), udp.destination_port()),
        None => ports_of_payload(&sliced),
        other => panic!("no ports: {other:?}"),
    };
    let addresses: (IpAddr, IpAddr) = match &sliced.net {
        Some(NetSlice::Ipv4(ip)) => {
            (ip.header().source_addr().into(), ip.header().destination_addr().into())
        }
        Some(NetSlice::Ipv6(ip)) => {
            (ip.header().source_addr().into(), ip.header().destination_addr().into())
        }
        other => panic!("no addresses: {other:?}"),
    };
    let end = |address, port| SocketAddr::new(address, port).to_string();
    (end(addresses.0, ports.0), end(addresses.1, ports.1))
}

/// `etherparse` supports neither SCTP nor headers in first fragments.
fn ports_of_payload(packet: &etherparse::SlicedPacket) -> (u16, u16) {
    use etherparse::{IpNumber, IpPayloadSlice};

    match packet.ip_payload() {
        Some(&IpPayloadSlice {
            ip_number: IpNumber::TCP | IpNumber::UDP | IpNumber::SCTP,
            payload: &[a, b, c, d, ..],
            ..
        }) => (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])),
        other => panic!("no ports: {other:?}"),
    }
}
