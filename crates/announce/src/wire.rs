//! Heartbeats as bytes. Pure, and total: any bytes are either read as a message or refused.
//!
//! A message has a head, the participants that its sender heard, and a part of the sender's table.
//! The seal ([`super::seal`]) follows.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::identity::{Id, LinkAddress, Rank};
use super::seal::TAG;

/// The longest message with its seal: with UDP and IPv6, it fits the smallest MTU of IPv6.
pub const LONGEST: usize = 1_200;

/// How many participants one message acknowledges.
pub const MOST_HEARD: usize = 24;

/// The longest names of nodes and interfaces, in octets.
pub const LONGEST_NODE: usize = 253;
pub const LONGEST_INTERFACE: usize = 15;

const MAGIC: [u8; 4] = *b"MRan";
const VERSION: u8 = 1;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub node: String,
    pub interface: String,
    /// Identifies the sender's process.
    pub incarnation: u64,
    /// Greater than in all earlier messages of this incarnation.
    pub sequence: u64,
    pub link_address: LinkAddress,
    /// The current version of the sender's table.
    pub version: u64,
    pub heard: Vec<Heard>,
    pub changes: Changes,
}

/// An acknowledgement: the sender heard this participant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heard {
    pub id: Id,
    pub incarnation: u64,
    pub sequence: u64,
    /// The version of the participant's table that the sender has.
    pub version: u64,
}

/// The changes from version `since` of the sender's table to version `until`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    pub since: u64,
    pub until: u64,
    pub rows: Vec<Row>,
}

/// A row of a participant's table. With neither a rank nor an epoch, the participant is no longer a
/// candidate for the address, and no longer holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    pub address: IpAddr,
    pub rank: Rank,
    /// The participant holds the address, in this epoch.
    pub holds: Option<u32>,
}

const IS_V6: u8 = 1;
const HOLDS: u8 = 2;

/// The length of a message with these names and its seal, but without participants and rows.
pub fn length_of_head(node: &str, interface: &str) -> usize {
    MAGIC.len() + 1 + 8 + 8 + 6 + 8 + 1 + node.len() + 1 + interface.len() + 1 + 8 + 8 + 2 + TAG
}

pub const LENGTH_OF_HEARD: usize = 32;

impl Row {
    pub fn length(&self) -> usize {
        let address = if self.address.is_ipv6() { 16 } else { 4 };
        1 + address + if self.holds.is_some() { 4 } else { 0 }
    }
}

/// Writes a message that the caller has kept within [`LONGEST`].
pub fn write(message: &Message) -> Vec<u8> {
    let mut out = Vec::with_capacity(LONGEST);
    out.extend(MAGIC);
    out.push(VERSION);
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

fn write_row(out: &mut Vec<u8>, row: &Row) {
    let rank = match row.rank {
        Rank::None => 0,
        Rank::LastResort => 1,
        Rank::Candidate => 2,
    };
    let holds = if row.holds.is_some() { HOLDS } else { 0 };
    let family = if row.address.is_ipv6() { IS_V6 } else { 0 };
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
pub fn read(octets: &[u8]) -> Option<Message> {
    let mut reader = Reader(octets);
    if reader.array::<4>()? != MAGIC || reader.octet()? != VERSION {
        return None;
    }
    let (incarnation, sequence) = (reader.word()?, reader.word()?);
    let link_address = reader.array()?;
    let version = reader.word()?;
    let node = reader.name(LONGEST_NODE)?;
    let interface = reader.name(LONGEST_INTERFACE)?;
    let count = usize::from(reader.octet()?);
    if count > MOST_HEARD {
        return None;
    }
    let heard = (0..count).map(|_| reader.heard()).collect::<Option<_>>()?;
    let (since, until) = (reader.word()?, reader.word()?);
    let count = usize::from(u16::from_be_bytes(reader.array()?));
    if count > LONGEST / 5 || until < since || until > version {
        return None;
    }
    let rows = (0..count).map(|_| reader.row()).collect::<Option<_>>()?;
    let changes = Changes { since, until, rows };
    let whole = reader.0.is_empty();
    whole.then_some(Message {
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

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
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

    fn heard(&mut self) -> Option<Heard> {
        Some(Heard {
            id: Id(self.word()?),
            incarnation: self.word()?,
            sequence: self.word()?,
            version: self.word()?,
        })
    }

    fn row(&mut self) -> Option<Row> {
        let flags = self.octet()?;
        let rank = match flags >> 2 {
            0 => Rank::None,
            1 => Rank::LastResort,
            2 => Rank::Candidate,
            _ => return None,
        };
        let address = if flags & IS_V6 == 0 {
            Ipv4Addr::from(self.array::<4>()?).into()
        } else {
            Ipv6Addr::from(self.array::<16>()?).into()
        };
        let holds = if flags & HOLDS == 0 { None } else { Some(u32::from_be_bytes(self.array()?)) };
        Some(Row { address, rank, holds })
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn rows() -> impl Strategy<Value = Vec<Row>> {
        let address = prop_oneof![
            any::<u32>().prop_map(|bits| IpAddr::V4(bits.into())),
            any::<u128>().prop_map(|bits| IpAddr::V6(bits.into())),
        ];
        let rank = prop_oneof![Just(Rank::None), Just(Rank::LastResort), Just(Rank::Candidate)];
        let row = (address, rank, any::<Option<u32>>());
        vec(row.prop_map(|(address, rank, holds)| Row { address, rank, holds }), 0..30)
    }

    fn messages() -> impl Strategy<Value = Message> {
        let heard = any::<[u64; 4]>().prop_map(|[id, incarnation, sequence, version]| Heard {
            id: Id(id),
            incarnation,
            sequence,
            version,
        });
        let head =
            ("[a-z][a-z0-9.-]{0,30}", "[a-z0-9@]{1,15}", any::<[u64; 2]>(), any::<[u8; 6]>());
        let versions = any::<[u32; 3]>().prop_map(|mut versions| {
            versions.sort_unstable();
            versions.map(u64::from)
        });
        (head, vec(heard, 0..MOST_HEARD), versions, rows()).prop_map(
            |((node, interface, [incarnation, sequence], link_address), heard, versions, rows)| {
                let [since, until, version] = versions;
                let changes = Changes { since, until, rows };
                Message {
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
            let octets = write(&message);
            let rows: usize = message.changes.rows.iter().map(Row::length).sum();
            let head = length_of_head(&message.node, &message.interface);
            let length = head + message.heard.len() * LENGTH_OF_HEARD + rows;
            prop_assert_eq!(octets.len() + TAG, length);
            prop_assert_eq!(read(&octets), Some(message));
        }

        #[test]
        fn shortened_and_extended_messages_are_refused(message in messages(), cut in any::<u16>()) {
            let mut octets = write(&message);
            let cut = usize::from(cut) % octets.len();
            prop_assert_eq!(read(&octets[..cut]), None);
            octets.push(0);
            prop_assert_eq!(read(&octets), None);
        }

        #[test]
        fn any_octets_are_read_or_refused(
            mut octets in vec(any::<u8>(), 0..LONGEST),
            with_magic in any::<bool>(),
        ) {
            if with_magic && octets.len() > 4 {
                octets[..4].copy_from_slice(&MAGIC);
                octets[4] = VERSION;
            }
            if let Some(message) = read(&octets) {
                prop_assert_eq!(write(&message), octets);
            }
        }
    }
}
