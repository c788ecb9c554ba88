//! Heartbeats as bytes. Pure, and total: any bytes are either read as a message or refused.
//!
//! A message has a head, the participants that its sender heard, and a part of the sender's table.
//! The seal ([`super::seal`]) follows.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::identity::{CandidateRank, LinkAddress, ParticipantId};
use super::seal::TAG_OCTETS;

/// The longest message with its seal: with UDP and IPv6, it fits the smallest MTU of IPv6.
pub const MAX_HEARTBEAT_OCTETS: usize = 1_200;

/// How many participants one message acknowledges.
pub(crate) const MAX_ACKNOWLEDGEMENTS: usize = 24;

/// The longest names of nodes and interfaces, in octets.
pub const MAX_NODE_NAME_OCTETS: usize = 253;
pub const MAX_INTERFACE_NAME_OCTETS: usize = 15;

const HEARTBEAT_MAGIC: [u8; 4] = *b"MRan";
const HEARTBEAT_VERSION: u8 = 1;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Heartbeat {
    pub node: String,
    pub interface: String,
    /// Identifies the sender's process.
    pub incarnation: u64,
    /// Greater than in all earlier messages of this incarnation.
    pub sequence: u64,
    pub link_address: LinkAddress,
    /// The current version of the sender's table.
    pub version: u64,
    pub heard: Vec<Acknowledgement>,
    pub changes: TableChanges,
}

/// An acknowledgement: the sender heard this participant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Acknowledgement {
    pub id: ParticipantId,
    pub incarnation: u64,
    pub sequence: u64,
    /// The version of the participant's table that the sender has.
    pub version: u64,
}

/// The changes from version `since` of the sender's table to version `until`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TableChanges {
    pub since: u64,
    pub until: u64,
    pub rows: Vec<TableRow>,
}

/// A row of a participant's table. With neither a rank nor an epoch, the participant is no longer a
/// candidate for the address, and no longer holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TableRow {
    pub address: IpAddr,
    pub rank: CandidateRank,
    /// The participant holds the address, in this epoch.
    pub holds: Option<u32>,
}

const IPV6_BIT: u8 = 1;
const HOLDS_BIT: u8 = 2;

/// The length of a message with these names and its seal, but without participants and rows.
pub(crate) fn count_head_octets(node: &str, interface: &str) -> usize {
    HEARTBEAT_MAGIC.len()
        + 1
        + 8
        + 8
        + 6
        + 8
        + 1
        + node.len()
        + 1
        + interface.len()
        + 1
        + 8
        + 8
        + 2
        + TAG_OCTETS
}

pub(crate) const ACKNOWLEDGEMENT_OCTETS: usize = 32;

impl TableRow {
    pub fn length(&self) -> usize {
        let address = if self.address.is_ipv6() { 16 } else { 4 };
        1 + address + if self.holds.is_some() { 4 } else { 0 }
    }
}

/// Writes a message that the caller has kept within [`MAX_HEARTBEAT_OCTETS`].
pub(crate) fn encode_heartbeat(message: &Heartbeat) -> Vec<u8> {
    let mut out = Vec::with_capacity(MAX_HEARTBEAT_OCTETS);
    out.extend(HEARTBEAT_MAGIC);
    out.push(HEARTBEAT_VERSION);
    out.extend(message.incarnation.to_be_bytes());
    out.extend(message.sequence.to_be_bytes());
    out.extend(message.link_address);
    out.extend(message.version.to_be_bytes());
    for name in [&message.node, &message.interface] {
        out.push(name.len() as u8);
        out.extend(name.as_bytes());
    }
    out.push(message.heard.len() as u8);
    for heard in &message.heard {
        for word in [heard.id.0, heard.incarnation, heard.sequence, heard.version] {
            out.extend(word.to_be_bytes());
        }
    }
    out.extend(message.changes.since.to_be_bytes());
    out.extend(message.changes.until.to_be_bytes());
    out.extend((message.changes.rows.len() as u16).to_be_bytes());
    for row in &message.changes.rows {
        write_row(&mut out, row);
    }
    out
}

fn write_row(out: &mut Vec<u8>, row: &TableRow) {
    let rank = match row.rank {
        CandidateRank::None => 0,
        CandidateRank::LastResort => 1,
        CandidateRank::Candidate => 2,
    };
    let holds = if row.holds.is_some() { HOLDS_BIT } else { 0 };
    let family = if row.address.is_ipv6() { IPV6_BIT } else { 0 };
    out.push(rank << 2 | holds | family);
    match row.address {
        IpAddr::V4(address) => out.extend(address.octets()),
        IpAddr::V6(address) => out.extend(address.octets()),
    }
    if let Some(epoch) = row.holds {
        out.extend(epoch.to_be_bytes());
    }
}

/// Reads a message without its seal.
pub(crate) fn parse_heartbeat(octets: &[u8]) -> Option<Heartbeat> {
    let mut reader = OctetReader(octets);
    if reader.array::<4>()? != HEARTBEAT_MAGIC || reader.octet()? != HEARTBEAT_VERSION {
        return None;
    }
    let (incarnation, sequence) = (reader.word()?, reader.word()?);
    let link_address = reader.array()?;
    let version = reader.word()?;
    let node = reader.name(MAX_NODE_NAME_OCTETS)?;
    let interface = reader.name(MAX_INTERFACE_NAME_OCTETS)?;
    let count = usize::from(reader.octet()?);
    if count > MAX_ACKNOWLEDGEMENTS {
        return None;
    }
    let heard = (0..count).map(|_| reader.heard()).collect::<Option<_>>()?;
    let (since, until) = (reader.word()?, reader.word()?);
    let count = usize::from(u16::from_be_bytes(reader.array()?));
    if count > MAX_HEARTBEAT_OCTETS / 5 || until < since || until > version {
        return None;
    }
    let rows = (0..count).map(|_| reader.row()).collect::<Option<_>>()?;
    let changes = TableChanges { since, until, rows };
    let whole = reader.0.is_empty();
    whole.then_some(Heartbeat {
        node,
        interface,
        incarnation,
        sequence,
        link_address,
        version,
        heard,
        changes,
    })
}

struct OctetReader<'a>(&'a [u8]);

impl OctetReader<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (array, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*array)
    }

    fn octet(&mut self) -> Option<u8> {
        self.array().map(|[octet]| octet)
    }

    fn word(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// The name of a node or an interface. Control characters are refused, because it is printed.
    fn name(&mut self, longest: usize) -> Option<String> {
        let length = usize::from(self.octet()?);
        let (name, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        let fits = (1..=longest).contains(&length) && name.iter().all(u8::is_ascii_graphic);
        fits.then(|| String::from_utf8_lossy(name).into_owned())
    }

    fn heard(&mut self) -> Option<Acknowledgement> {
        Some(Acknowledgement {
            id: ParticipantId(self.word()?),
            incarnation: self.word()?,
            sequence: self.word()?,
            version: self.word()?,
        })
    }

    fn row(&mut self) -> Option<TableRow> {
        let flags = self.octet()?;
        let rank = match flags >> 2 {
            0 => CandidateRank::None,
            1 => CandidateRank::LastResort,
            2 => CandidateRank::Candidate,
            _ => return None,
        };
        let address = if flags & IPV6_BIT == 0 {
            Ipv4Addr::from(self.array::<4>()?).into()
        } else {
            Ipv6Addr::from(self.array::<16>()?).into()
        };
        let holds =
            if flags & HOLDS_BIT == 0 { None } else { Some(u32::from_be_bytes(self.array()?)) };
        Some(TableRow { address, rank, holds })
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn rows() -> impl Strategy<Value = Vec<TableRow>> {
        let address = prop_oneof![
            any::<u32>().prop_map(|bits| IpAddr::V4(bits.into())),
            any::<u128>().prop_map(|bits| IpAddr::V6(bits.into())),
        ];
        let rank = prop_oneof![
            Just(CandidateRank::None),
            Just(CandidateRank::LastResort),
            Just(CandidateRank::Candidate)
        ];
        let row = (address, rank, any::<Option<u32>>());
        vec(row.prop_map(|(address, rank, holds)| TableRow { address, rank, holds }), 0..30)
    }

    fn messages() -> impl Strategy<Value = Heartbeat> {
        let heard = any::<[u64; 4]>().prop_map(|[id, incarnation, sequence, version]| {
            Acknowledgement { id: ParticipantId(id), incarnation, sequence, version }
        });
        let head =
            ("[a-z][a-z0-9.-]{0,30}", "[a-z0-9@]{1,15}", any::<[u64; 2]>(), any::<[u8; 6]>());
        let versions = any::<[u32; 3]>().prop_map(|mut versions| {
            versions.sort_unstable();
            versions.map(u64::from)
        });
        (head, vec(heard, 0..MAX_ACKNOWLEDGEMENTS), versions, rows()).prop_map(
            |((node, interface, [incarnation, sequence], link_address), heard, versions, rows)| {
                let [since, until, version] = versions;
                let changes = TableChanges { since, until, rows };
                Heartbeat {
                    node,
                    interface,
                    incarnation,
                    sequence,
                    link_address,
                    version,
                    heard,
                    changes,
                }
            },
        )
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(message in messages()) {
            let octets = encode_heartbeat(&message);
            let rows: usize = message.changes.rows.iter().map(TableRow::length).sum();
            let head = count_head_octets(&message.node, &message.interface);
            let length = head + message.heard.len() * ACKNOWLEDGEMENT_OCTETS + rows;
            prop_assert_eq!(octets.len() + TAG_OCTETS, length);
            prop_assert_eq!(parse_heartbeat(&octets), Some(message));
        }

        #[test]
        fn shortened_and_extended_messages_are_refused(message in messages(), cut in any::<u16>()) {
            let mut octets = encode_heartbeat(&message);
            let cut = usize::from(cut) % octets.len();
            prop_assert_eq!(parse_heartbeat(&octets[..cut]), None);
            octets.push(0);
            prop_assert_eq!(parse_heartbeat(&octets), None);
        }

        #[test]
        fn any_octets_are_read_or_refused(
            mut octets in vec(any::<u8>(), 0..MAX_HEARTBEAT_OCTETS),
            with_magic in any::<bool>(),
        ) {
            if with_magic && octets.len() > 4 {
                octets[..4].copy_from_slice(&HEARTBEAT_MAGIC);
                octets[4] = HEARTBEAT_VERSION;
            }
            if let Some(message) = parse_heartbeat(&octets) {
                prop_assert_eq!(encode_heartbeat(&message), octets);
            }
        }
    }
}
