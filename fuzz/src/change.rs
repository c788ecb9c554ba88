//! Changes of the tables: those that an agent makes, and damage.

use std::net::IpAddr;

use ipnet::IpNet;
use lb_common::family::{Address4, Address6, Family, V4, V6};
use lb_common::hash;
use lb_common::host::{HostFamily, HostTables, OfFamily};
use lb_common::layout::{
    Announced, AnnouncedAddress, Backend, Bitmap, EarlierOwners, Frontend, FrontendKey, LastClaim,
    Member, Pool, PoolSlot, TunnelKey, TunnelPeer, TunnelTarget,
};

use crate::universe::DEVICE;

/// An address, a port and a protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TransportAddress {
    pub address: IpAddr,
    pub port: u16,
    pub protocol: u8,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TableChange {
    Frontend {
        key: TransportAddress,
        value: Option<Frontend>,
    },
    /// Protocol 0 means that the entry is unused.
    Backend {
        index: u32,
        end: TransportAddress,
        flags: u8,
        generation: u32,
        /// The remote node that the backend runs on, if known.
        node: Option<IpAddr>,
    },
    Slots {
        offset: u32,
        slots: Vec<u32>,
    },
    Pool {
        index: u32,
        pool: Pool,
    },
    Destination(IpAddr),
    Source(TransportAddress),
    Member(Member),
    SourceRange {
        service_port: u32,
        range: IpNet,
    },
    /// An address of another node.
    Peer(IpAddr),
    /// Another node has shown that it takes packets out of tunnels.
    TunnelPeer(IpAddr),
    /// The tunnel keys, current and accepted.
    TunnelKeys([u64; TunnelKey::COUNT]),
    /// The backend that a tunnelled packet with this service port and tag is for.
    Target {
        target: TunnelTarget,
        backend: u32,
    },
    /// The backends that a slot led to before.
    Earlier {
        slot: PoolSlot,
        owners: EarlierOwners,
    },
    /// Answers requests for an address, unless its deadline has passed.
    Announce {
        address: IpAddr,
        expired: bool,
    },
    /// Watches an address for claims.
    Watch(IpAddr),
    /// Adds so many ticks to the idle time of every flow.
    Idle(u32),
    /// Damages every entry of the reply index: it names a bucket beyond the last one.
    DamagedReturns,
}

/// A reply index entry that names a bucket beyond the last one.
pub fn damaged_return(entry: u64) -> u64 {
    if entry == 0 { 0 } else { entry | 0xff_ffff }
}

impl TableChange {
    pub fn apply(&self, tables: &mut HostTables) {
        match self {
            Self::Frontend { key, value } => match key.address {
                IpAddr::V4(address) => set_frontend::<V4>(tables, address.into(), key, value),
                IpAddr::V6(address) => set_frontend::<V6>(tables, address.into(), key, value),
            },
            &Self::Backend {
                index,
                end: TransportAddress { address, port, protocol },
                flags,
                generation,
                node,
            } => match address {
                IpAddr::V4(address) => {
                    let address = address.into();
                    let node = match node {
                        Some(IpAddr::V4(node)) => node.into(),
                        _ => Default::default(),
                    };
                    let entry = Backend { address, node, generation, port, protocol, flags };
                    tables.v4.backends.insert(index, entry);
                }
                IpAddr::V6(address) => {
                    let address = address.into();
                    let node = match node {
                        Some(IpAddr::V6(node)) => node.into(),
                        _ => Default::default(),
                    };
                    let entry = Backend { address, node, generation, port, protocol, flags };
                    tables.v6.backends.insert(index, entry);
                }
            },
            Self::Slots { offset, slots } => {
                tables.slots.extend((*offset..).zip(slots.iter().copied()));
            }
            Self::Pool { index, pool } => drop(tables.pools.insert(*index, *pool)),
            Self::Destination(address) => tables.set_destination(destination_bit(*address), true),
            Self::Source(end) => tables.set_source(source_bit(end), true),
            Self::Member(member) => drop(tables.members.insert(*member)),
            Self::SourceRange { service_port, range } => {
                tables.source_ranges.entry(*service_port).or_default().push(*range);
            }
            &Self::Peer(address) => drop(tables.peers.insert(address.into())),
            &Self::TunnelPeer(address) => {
                tables.tunnel_peers.insert(address.into(), TunnelPeer::RETURNS);
            }
            &Self::TunnelKeys(keys) => tables.tunnel_keys = keys,
            &Self::Target { target, backend } => drop(tables.targets.insert(target, backend)),
            &Self::Earlier { slot, owners } => {
                tables.earlier_owners.insert(slot, owners);
            }
            &Self::Announce { address, expired } => {
                tables.announced.insert(announced_key(address), announced_entry(expired));
            }
            &Self::Watch(address) => {
                tables.claims.get_mut().insert(announced_key(address), LastClaim::default());
            }
            Self::Idle(ticks) => {
                age(&tables.v4, *ticks);
                age(&tables.v6, *ticks);
            }
            Self::DamagedReturns => {
                let buckets = tables.v4.replies.iter().chain(&tables.v6.replies);
                for entry in buckets.flat_map(|bucket| &bucket.entries) {
                    entry.store(damaged_return(entry.load()));
                }
            }
        }
    }
}

/// The key of an address on the device that packets arrive on.
pub fn announced_key(address: IpAddr) -> AnnouncedAddress {
    AnnouncedAddress::new(DEVICE, address)
}

/// An entry for an address. Neither clock shows the first nanosecond, nor the last one.
pub fn announced_entry(expired: bool) -> Announced {
    Announced { deadline: if expired { 1 } else { u64::MAX }, epoch: 1, flags: 0 }
}

/// The tag that identifies a backend in a tunnelled packet.
pub fn backend_tag(address: IpAddr, port: u16) -> u16 {
    match address {
        IpAddr::V4(address) => hash::backend_tag(Address4::from(address), port),
        IpAddr::V6(address) => hash::backend_tag(Address6::from(address), port),
    }
}

pub fn destination_bit(address: IpAddr) -> Bitmap {
    match address {
        IpAddr::V4(address) => Bitmap::destination::<V4>(address.into()),
        IpAddr::V6(address) => Bitmap::destination::<V6>(address.into()),
    }
}

pub fn source_bit(end: &TransportAddress) -> Bitmap {
    match end.address {
        IpAddr::V4(address) => Bitmap::source::<V4>(address.into(), end.port, end.protocol),
        IpAddr::V6(address) => Bitmap::source::<V6>(address.into(), end.port, end.protocol),
    }
}

fn set_frontend<F: Family>(
    tables: &mut HostTables,
    address: F::Address,
    key: &TransportAddress,
    value: &Option<Frontend>,
) where
    HostTables: OfFamily<F>,
{
    let frontends = &mut OfFamily::<F>::family_mut(tables).frontends;
    let key = FrontendKey::<F>::new(address, key.port, key.protocol);
    match value {
        Some(value) => drop(frontends.insert(key, *value)),
        None => drop(frontends.remove(&key)),
    }
}

/// Ages the flows instead of moving the clock, because the kernel's clock can't be moved.
fn age<F: Family>(family: &HostFamily<F>, ticks: u32) {
    family.flows.iter().for_each(|bucket| bucket.grow_older(ticks));
}
