//! Spoofed floods. Each kind determines the packets from each source address and port. The sources
//! are random and never see a reply. Backends reply like Linux.

use std::net::Ipv4Addr;

use lb_common::hash::mix;
use lb_common::header::protocol::UDP;

use crate::world::{FloodFate, Path, SERVICES, Service, World};
use fuzz::wire::{ACK, FIN, Ipv4End, Packet, RST, SYN};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FloodKind {
    Syn,
    /// An ACK of a connection that does not exist.
    Ack,
    /// A SYN, then an ACK with a guessed acknowledgement number.
    SynAndAck,
    /// A SYN, then a segment without flags.
    SynAndFlagless,
    Flagless,
    SynAndFin,
    SynAndRst,
    TwoDatagrams,
    /// Four packets, a second apart: ACKs in TCP, datagrams in UDP.
    Repeated,
    /// The same few sources again and again, somewhat more than the flow table has entries.
    Sustained,
}

impl FloodKind {
    fn packets_per_end(self) -> u64 {
        match self {
            Self::Syn | Self::Ack | Self::Flagless => 1,
            Self::Repeated => 4,
            Self::Sustained => u64::MAX >> 32,
            _ => 2,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Flood {
    pub kind: FloodKind,
    pub service: Service,
    /// The number of sources that take turns, in a flood that repeats them.
    pub turns: u64,
}

/// What happened to a flood's packets.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    pub lost: u64,
    pub replies: u64,
    pub stages: u64,
    pub most_stages: u32,
}

impl Flood {
    pub fn new(kind: FloodKind, path: Path, protocol: u8, rate: u64, capacity: usize) -> Self {
        let service = Service { path, protocol };
        assert!(SERVICES.contains(&service));
        let turns = match kind {
            FloodKind::Repeated => rate,
            FloodKind::Sustained => capacity as u64 * 5 / 4,
            _ => 1,
        };
        Self { kind, service, turns }
    }

    /// Sends the packet of this number, and the backend's reply to it.
    pub fn send(&self, number: u64, world: &mut World, tally: &mut Tally) {
        let packet = self.make_packet(number);
        let fate = world.request(&packet);
        tally.stages += u64::from(world.stages);
        tally.most_stages = tally.most_stages.max(world.stages);
        match fate {
            FloodFate::Delivered(received) => {
                if let Some(reply) = reply_to(&received) {
                    tally.replies += 1;
                    // Whether the reply passes does not matter.
                    world.reply(self.service, &reply, packet.source);
                }
            }
            FloodFate::Tunnelled(..) => {}
            FloodFate::Lost(_) => tally.lost += 1,
        }
    }

    fn make_packet(&self, number: u64) -> Packet {
        let per_end = self.kind.packets_per_end();
        let round = number / (self.turns * per_end);
        let end = round * self.turns + number % self.turns;
        let step = number / self.turns % per_end;
        let random = mix(end ^ 0x00f1_00d0_0000_0000);
        let source = Ipv4End { address: spoofed(random), port: 1_024 | (random >> 32) as u16 };
        let destination = self.service.frontend();
        if self.service.protocol == UDP {
            return Packet::udp(source, destination, 16);
        }
        let start = (random >> 16) as u32;
        let segment = |flags, sequence| Packet::tcp(source, destination, flags, sequence);
        let next = start.wrapping_add(1);
        let guess = mix(random) as u32;
        match (self.kind, step) {
            (FloodKind::Ack | FloodKind::Repeated | FloodKind::Sustained, _) => {
                segment(ACK, next).acknowledging(guess)
            }
            (FloodKind::Flagless, _) => segment(0, next).with_payload(16),
            (_, 0) => segment(SYN, start),
            (FloodKind::SynAndFlagless, _) => segment(0, next).with_payload(16),
            (FloodKind::SynAndFin, _) if end.is_multiple_of(2) => segment(FIN, next),
            (FloodKind::SynAndFin, _) => segment(FIN, next).acknowledging(guess),
            (FloodKind::SynAndRst, _) => segment(RST, next),
            _ => segment(ACK, next).acknowledging(guess),
        }
    }
}

/// One of a quarter of all addresses. No legitimate client uses them.
fn spoofed(random: u64) -> Ipv4Addr {
    Ipv4Addr::from(1 << 30 | random as u32 >> 2)
}

pub fn is_spoofed(address: Ipv4Addr) -> bool {
    u32::from(address) >> 30 == 1
}

/// The reply of a backend on Linux to a packet of the flood. Nothing in it ever completes a
/// handshake.
fn reply_to(received: &Packet) -> Option<Packet> {
    let Packet { source, destination, flags, sequence, acknowledgement, .. } = *received;
    if received.protocol == UDP {
        return Some(Packet::udp(destination, source, received.length));
    }
    let reply = |flags, sequence| Packet::tcp(destination, source, flags, sequence);
    match flags {
        SYN => {
            let isn = mix(u64::from(sequence) << 16 | u64::from(source.port)) as u32;
            Some(reply(SYN, isn).acknowledging(received.end_of_sequence()))
        }
        // No such connection, or the wrong acknowledgement number for its SYN-ACK (RFC 9293,
        // 3.10.7.1 and 3.10.7.4).
        _ if flags & ACK != 0 && flags & RST == 0 => Some(reply(RST, acknowledgement)),
        // Neither a SYN nor an ACK: dropped without a reply.
        _ => None,
    }
}
