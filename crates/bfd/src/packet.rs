//! Control packets (RFC 5880, section 4.1).

use std::fmt;
use std::time::Duration;

/// Octets of a packet without authentication.
pub const PACKET_OCTETS: usize = 24;

const BFD_VERSION: u8 = 1;
const POLL: u8 = 0x20;
const FINAL: u8 = 0x10;
const CONTROL_PLANE_INDEPENDENT: u8 = 0x08;
const AUTHENTICATED: u8 = 0x04;
const DEMAND: u8 = 0x02;
const MULTIPOINT: u8 = 0x01;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BfdState {
    /// The session was ended deliberately, not by a fault.
    AdminDown = 0,
    #[default]
    Down = 1,
    /// The peer's packets arrive, but it is not known whether the peer receives this side's.
    Init = 2,
    Up = 3,
}

impl BfdState {
    pub const ALL: [Self; 4] = [Self::AdminDown, Self::Down, Self::Init, Self::Up];

    /// As in commands and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::AdminDown => "admin-down",
            Self::Down => "down",
            Self::Init => "init",
            Self::Up => "up",
        }
    }
}

impl fmt::Display for BfdState {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.pad(self.name())
    }
}

/// Why a session is no longer up. Numbers that no RFC defines are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Diagnostic(pub u8);

impl Diagnostic {
    pub const NONE: Self = Self(0);
    pub(crate) const DETECTION_TIME_EXPIRED: Self = Self(1);
    pub(crate) const NEIGHBOUR_SIGNALLED_DOWN: Self = Self(3);
    pub(crate) const ADMINISTRATIVELY_DOWN: Self = Self(7);
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        let text = match self.0 {
            0 => "none",
            1 => "detection time expired",
            2 => "echo function failed",
            3 => "neighbour signalled down",
            4 => "forwarding plane reset",
            5 => "path down",
            6 => "concatenated path down",
            7 => "administratively down",
            8 => "reverse concatenated path down",
            other => return write!(formatter, "diagnostic {other}"),
        };
        formatter.pad(text)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControlPacket {
    pub diagnostic: Diagnostic,
    pub state: BfdState,
    pub poll: bool,
    /// The answer to a poll.
    pub is_final: bool,
    /// The sender's packets do not depend on its routing process.
    pub control_plane_independent: bool,
    /// The sender wants no periodic packets.
    pub demand: bool,
    /// The path counts as broken when this many of the sender's packets are missing in a row.
    pub multiplier: u8,
    /// The sender's discriminator, its number of the session; never 0.
    pub my_discriminator: u32,
    /// The receiver's discriminator; 0 if the sender does not know it.
    pub your_discriminator: u32,
    /// The shortest interval, in microseconds like all intervals, at which the sender will send.
    pub desired_min_tx: u32,
    /// The shortest interval at which the sender can receive; 0: it wants no periodic packets.
    pub required_min_rx: u32,
    pub required_min_echo_rx: u32,
}

/// Why a packet is not valid (RFC 5880, section 6.8.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PacketFault {
    Length,
    Version,
    Multiplier,
    Multipoint,
    /// No session uses authentication.
    Authentication,
    MyDiscriminator,
    /// 0 in a state in which the sender must know it.
    YourDiscriminator,
}

impl fmt::Display for PacketFault {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str(match self {
            Self::Length => "wrong length",
            Self::Version => "unknown version",
            Self::Multiplier => "detection multiplier 0",
            Self::Multipoint => "multipoint bit set",
            Self::Authentication => "authenticated, and this session uses no authentication",
            Self::MyDiscriminator => "discriminator of the sender 0",
            Self::YourDiscriminator => "discriminator of the receiver 0 in state init or up",
        })
    }
}

impl ControlPacket {
    /// Octets behind the packet are ignored.
    pub fn decode(octets: &[u8]) -> Result<Self, PacketFault> {
        let header: &[u8; PACKET_OCTETS] = octets.first_chunk().ok_or(PacketFault::Length)?;
        if header[0] >> 5 != BFD_VERSION {
            return Err(PacketFault::Version);
        }
        let flags = header[1];
        if flags & AUTHENTICATED != 0 {
            return Err(PacketFault::Authentication);
        }
        if usize::from(header[3]) < PACKET_OCTETS || usize::from(header[3]) > octets.len() {
            return Err(PacketFault::Length);
        }
        if header[2] == 0 {
            return Err(PacketFault::Multiplier);
        }
        if flags & MULTIPOINT != 0 {
            return Err(PacketFault::Multipoint);
        }
        let packet = Self {
            diagnostic: Diagnostic(header[0] & 0x1f),
            state: BfdState::ALL[usize::from(flags >> 6)],
            poll: flags & POLL != 0,
            is_final: flags & FINAL != 0,
            control_plane_independent: flags & CONTROL_PLANE_INDEPENDENT != 0,
            demand: flags & DEMAND != 0,
            multiplier: header[2],
            my_discriminator: word(header, 4),
            your_discriminator: word(header, 8),
            desired_min_tx: word(header, 12),
            required_min_rx: word(header, 16),
            required_min_echo_rx: word(header, 20),
        };
        if packet.my_discriminator == 0 {
            return Err(PacketFault::MyDiscriminator);
        }
        if packet.your_discriminator == 0 && packet.state >= BfdState::Init {
            return Err(PacketFault::YourDiscriminator);
        }
        Ok(packet)
    }

    pub fn encode(&self) -> [u8; PACKET_OCTETS] {
        let flag = |set: bool, bit: u8| if set { bit } else { 0 };
        let mut octets = [0; PACKET_OCTETS];
        octets[0] = BFD_VERSION << 5 | self.diagnostic.0 & 0x1f;
        octets[1] = (self.state as u8) << 6
            | flag(self.poll, POLL)
            | flag(self.is_final, FINAL)
            | flag(self.control_plane_independent, CONTROL_PLANE_INDEPENDENT)
            | flag(self.demand, DEMAND);
        octets[2] = self.multiplier;
        octets[3] = PACKET_OCTETS as u8;
        let words = [
            self.my_discriminator,
            self.your_discriminator,
            self.desired_min_tx,
            self.required_min_rx,
            self.required_min_echo_rx,
        ];
        for (field, word) in octets[4..].chunks_exact_mut(4).zip(words) {
            field.copy_from_slice(&word.to_be_bytes());
        }
        octets
    }
}

fn word(header: &[u8; PACKET_OCTETS], at: usize) -> u32 {
    u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
}

/// An interval as it stands in packets.
pub(crate) fn interval_to_micros(interval: Duration) -> u32 {
    u32::try_from(interval.as_micros()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Of a session that does not hear its peer yet.
    const DOWN: [u8; PACKET_OCTETS] = [
        0x20, 0x48, 3, 24, 0x12, 0x34, 0x56, 0x78, 0, 0, 0, 0, 0, 0x0f, 0x42, 0x40, 0, 0x04, 0x93,
        0xe0, 0, 0, 0xc3, 0x50,
    ];

    #[test]
    fn a_packet_is_read() {
        let packet = ControlPacket::decode(&DOWN);
        let expected = ControlPacket {
            diagnostic: Diagnostic::NONE,
            state: BfdState::Down,
            poll: false,
            is_final: false,
            control_plane_independent: true,
            demand: false,
            multiplier: 3,
            my_discriminator: 0x1234_5678,
            your_discriminator: 0,
            desired_min_tx: 1_000_000,
            required_min_rx: 300_000,
            required_min_echo_rx: 50_000,
        };
        assert_eq!(packet, Ok(expected));
        assert_eq!(expected.encode(), DOWN);
    }

    #[test]
    fn faults_are_named() {
        let with = |at: usize, octet: u8| {
            let mut octets = DOWN;
            octets[at] = octet;
            ControlPacket::decode(&octets)
        };
        assert_eq!(ControlPacket::decode(&DOWN[..23]), Err(PacketFault::Length));
        assert_eq!(with(0, 0x40), Err(PacketFault::Version));
        assert_eq!(with(1, 0x44), Err(PacketFault::Authentication));
        assert_eq!(with(1, 0x41), Err(PacketFault::Multipoint));
        assert_eq!(with(2, 0), Err(PacketFault::Multiplier));
        assert_eq!(with(3, 23), Err(PacketFault::Length));
        assert_eq!(with(3, 25), Err(PacketFault::Length));
        assert_eq!(with(1, 0xc0), Err(PacketFault::YourDiscriminator));
        let mut unnamed = DOWN;
        unnamed[4..8].fill(0);
        assert_eq!(ControlPacket::decode(&unnamed), Err(PacketFault::MyDiscriminator));
    }

    proptest! {
        #[test]
        fn what_is_valid_is_written_as_it_was_read(octets in proptest::array::uniform24(any::<u8>())) {
            let mut octets = octets;
            octets[0] = BFD_VERSION << 5 | octets[0] & 0x1f;
            octets[1] &= !(AUTHENTICATED | MULTIPOINT);
            octets[3] = PACKET_OCTETS as u8;
            if let Ok(packet) = ControlPacket::decode(&octets) {
                prop_assert_eq!(packet.encode(), octets);
            }
        }

        #[test]
        fn no_octets_are_fatal(octets in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = ControlPacket::decode(&octets);
        }
    }
}
