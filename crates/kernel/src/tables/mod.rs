//! The maps that the agent writes and reads back.

mod cache;
mod link_addresses;
mod sockets;
mod write;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, anyhow};
use aya::maps::{Array, HashMap, Map, MapData, PerCpuArray, PerCpuValues};
use lb_common::family::{Address4, Address6, Family, V4, V6};
use lb_common::layout::{
    self, Backend, Bitmap, CacheEntry, Device, DeviceCacheEntry, Flow, FlowBucket, FlowState, Host,
    NeighbourEvent, NetworkEpoch, Peer, Pool, Reason, SlotPair, Ticks, Traffic, map,
};
use lb_plan::{
    BackendKey, BackendState, DatagramFlow, FoundBackend, FrontendKey, PoolReader, Snapshot,
};
use lb_rules::model::AddressFamily;

use super::flow_tables::{self, Occupancy};
use super::hash_table::HashTable;
use super::host::own_host;
use super::mapped::Mapped;
use super::plain::Plain;
use super::removal::ignore_missing;
use super::side_entries::SideEntryMaps;
use crate::clock::read_clock;

/// The maps of one address family.
struct FamilyMaps<F: Family> {
    frontends: HashTable<Plain<layout::FrontendKey<F>>, Plain<layout::Frontend>>,
    frontend_cache: Mapped,
    backends: Mapped,
    flows: Mapped,
    unconnected: sockets::Unconnected<F>,
}

pub struct Tables {
    v4: FamilyMaps<V4>,
    v6: FamilyMaps<V6>,
    pools: Mapped,
    slots: Mapped,
    destinations: Mapped,
    sources: Mapped,
    side_entries: SideEntryMaps,
    devices: HashMap<MapData, u32, Plain<Device>>,
    device_cache: Mapped,
    link_addresses: Mapped,
    host: Array<MapData, Plain<Host>>,
    network: Mapped,
    /// Bits of destinations that only flows may still need, and the families of those flows.
    lingering: BTreeSet<Bitmap>,
    lingering_families: BTreeSet<AddressFamily>,
    /// Whether a bit may be cleared after sweeping only the table of its own family.
    swept_apart: bool,
    reasons: PerCpuArray<MapData, u64>,
    neighbour_events: PerCpuArray<MapData, u64>,
    tunnel_peers: HashMap<MapData, Plain<Peer>, u32>,
    service_traffic: PerCpuArray<MapData, Plain<Traffic>>,
    backend_traffic: PerCpuArray<MapData, Plain<Traffic>>,
}

impl Tables {
    /// Opens the pinned maps of a data plane, also one that another process has loaded.
    pub fn open(pins: impl Fn(&str) -> std::path::PathBuf) -> Result<Self> {
        Self::collect(|name| {
            let path = pins(name);
            let data = MapData::from_pin(&path)
                .with_context(|| format!("{} can't be opened", path.display()))?;
            Ok(Map::from_map_data(data)?)
        })
    }

    fn collect(mut map: impl FnMut(&str) -> Result<Map>) -> Result<Self> {
        Ok(Self {
            v4: FamilyMaps {
                frontends: map(map::FRONTENDS4)?.try_into()?,
                frontend_cache: mapped::<CacheEntry<layout::FrontendKey<V4>, layout::Frontend>>(
                    map(map::FRONTEND_CACHE4)?,
                )?,
                backends: mapped::<Backend<Address4>>(map(map::BACKENDS4)?)?,
                flows: mapped::<FlowBucket<V4>>(map(map::FLOWS4)?)?,
                unconnected: map(map::UNCONNECTED4)?.try_into()?,
            },
            v6: FamilyMaps {
                frontends: map(map::FRONTENDS6)?.try_into()?,
                frontend_cache: mapped::<CacheEntry<layout::FrontendKey<V6>, layout::Frontend>>(
                    map(map::FRONTEND_CACHE6)?,
                )?,
                backends: mapped::<Backend<Address6>>(map(map::BACKENDS6)?)?,
                flows: mapped::<FlowBucket<V6>>(map(map::FLOWS6)?)?,
                unconnected: map(map::UNCONNECTED6)?.try_into()?,
            },
            pools: mapped::<Pool>(map(map::POOLS)?)?,
            slots: mapped::<SlotPair>(map(map::POOL_SLOTS)?)?,
            destinations: mapped::<u64>(map(map::DESTINATIONS)?)?,
            sources: mapped::<u64>(map(map::SOURCES)?)?,
            side_entries: SideEntryMaps::collect(&mut map)?,
            devices: map(map::DEVICES)?.try_into()?,
            device_cache: mapped::<DeviceCacheEntry>(map(map::DEVICE_CACHE)?)?,
            link_addresses: mapped::<u64>(map(map::LINK_ADDRESSES)?)?,
            host: map(map::HOST)?.try_into()?,
            network: mapped::<NetworkEpoch>(map(map::NETWORK)?)?,
            lingering: BTreeSet::new(),
            lingering_families: BTreeSet::new(),
            swept_apart: true,
            reasons: map(map::REASONS)?.try_into()?,
            neighbour_events: map(map::NEIGHBOUR_EVENTS)?.try_into()?,
            tunnel_peers: map(map::TUNNEL_PEERS)?.try_into()?,
            service_traffic: map(map::SERVICE_TRAFFIC)?.try_into()?,
            backend_traffic: map(map::BACKEND_TRAFFIC)?.try_into()?,
        })
    }

    /// The indexes of all interfaces in the map, and in its cache.
    pub fn devices(&self) -> BTreeSet<u32> {
        let mut devices: BTreeSet<u32> = self.devices.keys().filter_map(Result::ok).collect();
        let cache = &self.device_cache;
        let keys = (0..cache.len()).map(|index| cache.long(index, 1).load(Ordering::Relaxed));
        devices.extend(keys.map(|key| key as u32).filter(|device| *device != 0));
        devices
    }

    /// Writes changes of this machine's interfaces; `None`: removed.
    pub fn change_devices(
        &mut self,
        devices: &BTreeMap<u32, Option<lb_network::Device>>,
    ) -> Result<()> {
        for (&index, device) in devices {
            link_addresses::write_link_addresses(&self.link_addresses, index, device.as_ref());
            let entry: Option<Device> = device.as_ref().map(Into::into);
            let position = DeviceCacheEntry::index(index);
            cache::write_cached_entry(&self.device_cache, position, u64::from(index), entry);
            let (Some(device), Some(entry)) = (device, entry) else {
                ignore_missing(self.devices.remove(&index))
                    .with_context(|| format!("interface {index} cannot be removed from DEVICES"))?;
                continue;
            };
            self.devices.insert(index, Plain(entry), 0).with_context(|| {
                format!("interface {} cannot be written to DEVICES", device.name)
            })?;
        }
        Ok(())
    }

    /// Writes this network namespace, whose sockets are handled, and the node's addresses.
    pub fn set_node_addresses(&mut self, addresses: &BTreeSet<IpAddr>) -> Result<()> {
        self.host.set(0, Plain(own_host(addresses)?), 0).context("HOST cannot be written")
    }

    /// The network has changed: invalidates the next hops that flows store.
    pub fn next_epoch(&self) {
        let epoch = self.network.half_word(0).load(Ordering::Relaxed);
        self.network.half_word(0).store(epoch.wrapping_add(1), Ordering::Release);
    }

    /// Leases the epoch: until the lease ends, an agent follows the network. `shares_hops`: new flows may use next
    /// hops that flows of other clients have resolved.
    pub fn lease_epoch(&self, shares_hops: bool) {
        let Ok(now) = read_clock() else { return self.end_epoch_lease() };
        let lease = self.network.half(0, true);
        if !NetworkEpoch::is_leased(lease.load(Ordering::Relaxed), now) {
            // What was resolved under the last lease may have changed unseen.
            self.next_epoch();
        }
        lease.store(NetworkEpoch::lease(now, shares_hops), Ordering::Release);
    }

    /// Nobody follows the network any more: programs look next hops up again and again.
    pub fn end_epoch_lease(&self) {
        self.network.half(0, true).store(0, Ordering::Release);
    }

    /// Writes the frontends that an earlier agent left to their cache, which is empty if it was not
    /// adopted. Only the agent may do this.
    pub fn fill_cache(&self) -> Result<()> {
        self.v4.fill_cache()?;
        self.v6.fill_cache()
    }

    /// Reads the contents that an earlier agent left.
    pub fn snapshot(&self) -> Result<Snapshot> {
        let mut snapshot = Snapshot::default();
        self.v4.read_frontends(&mut snapshot.frontends)?;
        self.v6.read_frontends(&mut snapshot.frontends)?;
        let mut reader = PoolReader::new(self.v4.backends.len());
        for index in 1..self.pools.len() {
            let pool = Pool::from_word(self.pools.word(index).load(Ordering::Relaxed));
            if pool.size > 0 {
                snapshot.pools.push(reader.read(index, pool, self.slots_of(pool)));
            }
        }
        snapshot.backends = self.backends().collect();
        snapshot.side_entries = self.side_entries.all()?;
        snapshot.destination_bits = bits(&self.destinations);
        snapshot.source_bits = bits(&self.sources);
        snapshot.datagrams = self.datagrams()?;
        Ok(snapshot)
    }

    /// The flows of datagrams. Leaves out those that the data plane moves by itself, because their
    /// backend's entry is gone or draining.
    fn datagrams(&self) -> Result<BTreeSet<DatagramFlow>> {
        let mut found = flow_tables::list_datagram_flows::<V4>(&self.v4.flows, &self.v4.backends);
        found.extend(flow_tables::list_datagram_flows::<V6>(&self.v6.flows, &self.v6.backends));
        found.extend(sockets::list_socket_datagrams(&self.v4.unconnected, &self.v4.backends)?);
        found.extend(sockets::list_socket_datagrams(&self.v6.unconnected, &self.v6.backends)?);
        Ok(found)
    }

    /// Every index that has, or had, a backend.
    pub fn backends(&self) -> impl Iterator<Item = FoundBackend> + '_ {
        (1..self.v4.backends.len()).filter_map(|index| {
            found_backend(index, &self.v4.backends.load(index), &self.v6.backends.load(index))
        })
    }

    /// The backend indexes in a pool's table.
    pub fn slots(&self, pool: Pool) -> Vec<u32> {
        self.slots_of(pool).collect()
    }

    fn slots_of(&self, pool: Pool) -> impl Iterator<Item = u32> + '_ {
        let end = pool.offset.saturating_add(pool.size).min(self.slot_count());
        (pool.offset..end).map(|slot| self.slot(slot).load(Ordering::Relaxed))
    }

    fn slot_count(&self) -> u32 {
        2 * self.slots.len()
    }

    fn slot(&self, slot: u32) -> &AtomicU32 {
        self.slots.half(slot / 2, slot % 2 == 1)
    }

    /// The flows of one family: state, when last seen, record.
    pub fn flows4(&self) -> impl Iterator<Item = (FlowState, Ticks, Flow<V4>)> + '_ {
        flow_tables::flows(&self.v4.flows)
    }

    pub fn flows6(&self) -> impl Iterator<Item = (FlowState, Ticks, Flow<V6>)> + '_ {
        flow_tables::flows(&self.v6.flows)
    }

    /// The states of all flows of one family; reads one cache line for eight entries.
    pub fn flow_states4(&self) -> impl Iterator<Item = FlowState> + '_ {
        flow_tables::states::<V4>(&self.v4.flows)
    }

    pub fn flow_states6(&self) -> impl Iterator<Item = FlowState> + '_ {
        flow_tables::states::<V6>(&self.v6.flows)
    }

    /// How full the flow tables are.
    pub fn occupancy4(&self) -> Occupancy {
        flow_tables::occupancy::<V4>(&self.v4.flows)
    }

    pub fn occupancy6(&self) -> Occupancy {
        flow_tables::occupancy::<V6>(&self.v6.flows)
    }

    /// The counter of each reason, summed over all CPUs.
    pub fn reasons(&self) -> Result<Vec<(Reason, u64)>> {
        Reason::ALL
            .into_iter()
            .map(|reason| Ok((reason, self.reasons.get(&(reason as u32), 0)?.iter().sum())))
            .collect()
    }

    /// The counter of each event, summed over all CPUs.
    pub fn neighbour_events(&self) -> Result<Vec<(NeighbourEvent, u64)>> {
        NeighbourEvent::ALL
            .into_iter()
            .map(|event| Ok((event, self.neighbour_events.get(&(event as u32), 0)?.iter().sum())))
            .collect()
    }

    /// Addresses of nodes that take packets out of tunnels, as probes show.
    pub fn tunnel_peers(&self) -> Result<BTreeSet<IpAddr>> {
        self.tunnel_peers.keys().map(|key| Ok(key?.0.ip())).collect()
    }

    pub fn service_traffic(&self, index: u32) -> Result<Traffic> {
        Ok(total(&self.service_traffic.get(&index, 0)?))
    }

    pub fn backend_traffic(&self, index: u32) -> Result<Traffic> {
        Ok(total(&self.backend_traffic.get(&index, 0)?))
    }
}

impl<F: Family> FamilyMaps<F> {
    fn fill_cache(&self) -> Result<()> {
        for (Plain(key), Plain(value)) in self.frontends.entries()? {
            cache::write_cached_entry(&self.frontend_cache, key.cache_index(), key, Some(value));
        }
        Ok(())
    }

    fn read_frontends(&self, read: &mut Vec<(FrontendKey, layout::Frontend)>) -> Result<()> {
        let entries = self.frontends.entries()?.into_iter();
        read.extend(entries.map(|(Plain(key), Plain(value))| (key.into(), value)));
        Ok(())
    }
}

fn mapped<T>(map: Map) -> Result<Mapped> {
    match map {
        Map::Array(data) => Mapped::new(&data, size_of::<T>()),
        _ => Err(anyhow!("a map that must be an array is of another type")),
    }
}

/// An index is used by a backend of at most one family.
fn found_backend(
    index: u32,
    four: &Backend<Address4>,
    six: &Backend<Address6>,
) -> Option<FoundBackend> {
    let generation = four.generation.max(six.generation);
    let backend = if four.protocol != 0 {
        Some((
            BackendKey::new(four.address.into(), four.port, four.protocol),
            BackendState::of(four),
        ))
    } else if six.protocol != 0 {
        Some((BackendKey::new(six.address.into(), six.port, six.protocol), BackendState::of(six)))
    } else {
        None
    };
    (generation > 0).then_some(FoundBackend { index, generation, backend })
}

fn bits(bitmap: &Mapped) -> Vec<Bitmap> {
    let word = |word| (word, bitmap.word(word).load(Ordering::Relaxed));
    (0..bitmap.len())
        .map(word)
        .filter(|(_, bits)| *bits != 0)
        .flat_map(|(word, bits)| {
            (0..64)
                .map(|n| 1 << n)
                .filter(move |bit| bits & bit != 0)
                .map(move |bit| Bitmap { word, bit })
        })
        .collect()
}

fn total(values: &PerCpuValues<Plain<Traffic>>) -> Traffic {
    values.iter().fold(Traffic::default(), |sum, Plain(traffic)| Traffic {
        forward_packets: sum.forward_packets + traffic.forward_packets,
        forward_bytes: sum.forward_bytes + traffic.forward_bytes,
        reverse_packets: sum.reverse_packets + traffic.reverse_packets,
        reverse_bytes: sum.reverse_bytes + traffic.reverse_bytes,
        new_flows: sum.new_flows + traffic.new_flows,
    })
}
