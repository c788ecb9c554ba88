//! The maps of side_entries: lookups other than frontends, pools and backends.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use anyhow::{Context, Result};
use aya::maps::lpm_trie::Key;
use aya::maps::{LpmTrie, Map, MapData};
use ipnet::IpNet;
use lb_common::family::{V4, V6};
use lb_common::layout::{
    EarlierOwners, Member, Peer, PoolSlot, SERVICE_PORT_BITS, ServicePortName, SourceRange,
    TunnelTarget, map,
};
use lb_common::maglev::Weight;
use lb_plan::SideEntry;

use super::hash_table::HashTable;
use super::plain::Plain;
use super::removal::ignore_missing;

pub struct SideEntryMaps {
    members: HashTable<Plain<Member>, u32>,
    weights: HashTable<Plain<Member>, u32>,
    targets: HashTable<Plain<TunnelTarget>, u32>,
    peers: HashTable<Plain<Peer>, u32>,
    earlier: HashTable<Plain<PoolSlot>, Plain<EarlierOwners>>,
    source_ranges4: LpmTrie<MapData, Plain<SourceRange<V4>>, u32>,
    source_ranges6: LpmTrie<MapData, Plain<SourceRange<V6>>, u32>,
    names: HashTable<u32, Plain<ServicePortName>>,
}

impl SideEntryMaps {
    pub fn collect(map: &mut impl FnMut(&str) -> Result<Map>) -> Result<Self> {
        Ok(Self {
            members: map(map::MEMBERS)?.try_into()?,
            weights: map(map::WEIGHTS)?.try_into()?,
            targets: map(map::TARGETS)?.try_into()?,
            peers: map(map::PEERS)?.try_into()?,
            earlier: map(map::EARLIER_OWNERS)?.try_into()?,
            source_ranges4: map(map::SOURCE_RANGES4)?.try_into()?,
            source_ranges6: map(map::SOURCE_RANGES6)?.try_into()?,
            names: map(map::SERVICE_NAMES)?.try_into()?,
        })
    }

    pub fn set(&mut self, side_entry: &SideEntry) -> Result<()> {
        match side_entry {
            SideEntry::Member(member) => self.members.insert(Plain(*member), 1, 0),
            SideEntry::Weight { member, weight } => {
                self.weights.insert(Plain(*member), u32::from(weight.get()), 0)
            }
            SideEntry::Target { target, backend } => {
                self.targets.insert(Plain(*target), backend, 0)
            }
            SideEntry::Peer(address) => self.peers.insert(Plain(Peer::from(*address)), 1, 0),
            SideEntry::Earlier { slot, owners } => {
                self.earlier.insert(Plain(*slot), Plain(*owners), 0)
            }
            SideEntry::Name { service_port, name } => {
                self.names.insert(service_port, Plain(**name), 0)
            }
            SideEntry::SourceRange { service_port, range } => match range {
                IpNet::V4(range) => {
                    let octets = range.network().octets();
                    let key = key(*service_port, range.prefix_len(), octets, source_range4);
                    self.source_ranges4.insert(&key, 1, 0)
                }
                IpNet::V6(range) => {
                    let octets = range.network().octets();
                    let key = key(*service_port, range.prefix_len(), octets, source_range6);
                    self.source_ranges6.insert(&key, 1, 0)
                }
            },
        }
        .with_context(|| format!("{side_entry:?} can't be written"))
    }

    pub fn remove(&mut self, side_entry: &SideEntry) -> Result<()> {
        let removed = match side_entry {
            SideEntry::Member(member) => self.members.remove(&Plain(*member)),
            SideEntry::Weight { member, .. } => self.weights.remove(&Plain(*member)),
            SideEntry::Target { target, .. } => self.targets.remove(&Plain(*target)),
            SideEntry::Peer(address) => self.peers.remove(&Plain(Peer::from(*address))),
            SideEntry::Earlier { slot, .. } => self.earlier.remove(&Plain(*slot)),
            SideEntry::Name { service_port, .. } => self.names.remove(service_port),
            SideEntry::SourceRange { service_port, range } => match range {
                IpNet::V4(range) => {
                    let octets = range.network().octets();
                    let key = key(*service_port, range.prefix_len(), octets, source_range4);
                    self.source_ranges4.remove(&key)
                }
                IpNet::V6(range) => {
                    let octets = range.network().octets();
                    let key = key(*service_port, range.prefix_len(), octets, source_range6);
                    self.source_ranges6.remove(&key)
                }
            },
        };
        ignore_missing(removed).with_context(|| format!("{side_entry:?} can't be removed"))
    }

    /// All side_entries in the maps, as an earlier agent left them.
    pub fn all(&self) -> Result<Vec<SideEntry>> {
        let mut found = Vec::new();
        for (Plain(member), _) in self.members.entries()? {
            found.push(SideEntry::Member(member));
        }
        for (Plain(member), weight) in self.weights.entries()? {
            // What is no weight was not written by Millrace.
            let weight = u16::try_from(weight).ok().and_then(Weight::new);
            found.extend(weight.map(|weight| SideEntry::Weight { member, weight }));
        }
        for (Plain(target), backend) in self.targets.entries()? {
            found.push(SideEntry::Target { target, backend });
        }
        for (Plain(peer), _) in self.peers.entries()? {
            let address = Ipv6Addr::from(peer.address.octets);
            found.push(SideEntry::Peer(IpAddr::from(address).to_canonical()));
        }
        for (Plain(slot), Plain(owners)) in self.earlier.entries()? {
            found.push(SideEntry::Earlier { slot, owners });
        }
        for (service_port, Plain(name)) in self.names.entries()? {
            found.push(SideEntry::Name { service_port, name: Arc::new(name) });
        }
        for key in self.source_ranges4.keys() {
            let key = key?;
            let Plain(range) = key.data();
            found.extend(side_entry(key.prefix_len(), range.service_port, range.octets.into()));
        }
        for key in self.source_ranges6.keys() {
            let key = key?;
            let Plain(range) = key.data();
            found.extend(side_entry(key.prefix_len(), range.service_port, range.octets.into()));
        }
        Ok(found)
    }
}

fn key<O, R>(
    service_port: u32,
    prefix: u8,
    octets: O,
    range: impl Fn([u8; 4], O) -> R,
) -> Key<Plain<R>>
where
    Plain<R>: aya::Pod,
{
    let bits = SERVICE_PORT_BITS + u32::from(prefix);
    Key::new(bits, Plain(range(service_port.to_be_bytes(), octets)))
}

fn source_range4(service_port: [u8; 4], octets: [u8; 4]) -> SourceRange<V4> {
    SourceRange { service_port, octets }
}

fn source_range6(service_port: [u8; 4], octets: [u8; 16]) -> SourceRange<V6> {
    SourceRange { service_port, octets }
}

/// `None`: not written by Millrace, whose prefixes contain the whole service port.
fn side_entry(prefix: u32, service_port: [u8; 4], address: IpAddr) -> Option<SideEntry> {
    let prefix = u8::try_from(prefix.checked_sub(SERVICE_PORT_BITS)?).ok()?;
    let range = IpNet::new(address, prefix).ok()?;
    Some(SideEntry::SourceRange { service_port: u32::from_be_bytes(service_port), range })
}
