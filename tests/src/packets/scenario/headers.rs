//! Parts of a packet around its addresses and ports.

use proptest::collection::vec;
use proptest::prelude::*;

use crate::packets::Packet;
use crate::packets::datapath::cases::Ends;

/// Tags, options and extension headers, which translation leaves unchanged.
#[derive(Clone, Debug)]
pub struct Around {
    tags: u16,
    between: usize,
    ttl: u8,
    tos: u8,
    payload: Vec<u8>,
    padding: usize,
    flags: String,
    mss: bool,
    checksum: bool,
}

pub fn any_headers() -> impl Strategy<Value = Around> {
    let tags = prop_oneof![5 => Just(0u16), 2 => Just(1), 2 => Just(2), 1 => Just(3)];
    let between = prop_oneof![4 => Just(0usize), 1 => 1usize..6];
    let padding = prop_oneof![4 => Just(0usize), 1 => 60usize..200];
    let flags = prop_oneof![
        4 => Just("S"), 3 => Just("SA"), 6 => Just("A"), 2 => Just("FA"), 1 => Just("R"),
        1 => Just(""), 1 => Just("SF"), 1 => Just("SFRPAUEW"),
    ];
    let bytes = (any::<u8>(), any::<u8>(), vec(any::<u8>(), 0..40));
    (tags, between, bytes, padding, flags, any::<bool>(), prop::bool::weighted(0.8)).prop_map(
        |(tags, between, (ttl, tos, payload), padding, flags, mss, checksum)| Around {
            tags,
            between,
            ttl,
            tos,
            payload,
            padding,
            flags: flags.to_owned(),
            mss,
            checksum,
        },
    )
}

impl Around {
    pub fn tcp(&self, at: &Ends, packet: &Packet) -> Packet {
        let packet = packet.flags(&self.flags);
        self.ip(at, &if self.mss { packet.mss(1460) } else { packet })
    }

    pub fn udp(&self, at: &Ends, packet: &Packet) -> Packet {
        self.ip(at, &if self.checksum { packet.clone() } else { packet.no_checksum() })
    }

    pub fn ip(&self, at: &Ends, packet: &Packet) -> Packet {
        let mut packet = packet.payload(&self.payload).ttl(self.ttl).tos(self.tos);
        if at.is_v6() {
            // At most one more than the data plane skips.
            for number in 0..self.between {
                let first = number == 0;
                packet = if first { packet.hop_by_hop() } else { packet.destination_options() };
            }
        } else if self.between > 0 {
            packet = packet.ip_options(&vec![1; self.between * 8]);
        }
        for tag in 0..self.tags {
            packet = packet.vlan(100 + tag);
        }
        if self.padding > 0 { packet.padded(self.padding) } else { packet }
    }
}
