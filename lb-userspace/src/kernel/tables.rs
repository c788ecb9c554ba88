//! The maps that the agent writes: executes the steps of plans, and reads back the contents.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io::ErrorKind;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, anyhow, ensure};
use aya::maps::{Array, HashMap, Map, MapData, MapError, PerCpuArray, PerCpuValues};
use aya::util::nr_cpus;
use lb_common::family::{Address4, Address6, V4, V6};
use lb_common::layout::{
    self, Backend, Bitmap, Device, Flow, FlowBucket, FlowState, Host, NetworkEpoch, Pool, Reason,
    SlotPair, Ticks, Traffic, map,
};

use super::details::Details;
use super::flow_tables::{self, Occupancy};
use super::host::own_host;
use super::mapped::{Mapped, Order};
use super::plain::Plain;
use crate::model::AddressFamily;
use crate::network;
use crate::plan::{
    BackendKey, FoundBackend, FrontendKey, PoolReader, Snapshot, Standing, Step, Sweep,
};

type Frontends<F> = HashMap<MapData, Plain<layout::FrontendKey<F>>, Plain<layout::Frontend>>;

pub struct Tables {
    frontends4: Frontends<V4>,
    frontends6: Frontends<V6>,
    backends4: Mapped,
    backends6: Mapped,
    pools: Mapped,
    slots: Mapped,
    destinations: Mapped,
    sources: Mapped,
    details: Details,
    devices: HashMap<MapData, u32, Plain<Device>>,
    host: Array<MapData, Plain<Host>>,
    network: Mapped,
    flows4: Mapped,
    flows6: Mapped,
    /// Bits of destinations that only flows may still need, and the families of those flows.
    lingering: BTreeSet<Bitmap>,
    lingering_families: BTreeSet<AddressFamily>,
    /// Whether a bit may be cleared after sweeping only the table of its own family.
    swept_apart: bool,
    reasons: PerCpuArray<MapData, u64>,
    service_traffic: PerCpuArray<MapData, Plain<Traffic>>,
    backend_traffic: PerCpuArray<MapData, Plain<Traffic>>,
}

impl Tables {
    /// Opens the pinned maps of a data plane, whoever loaded it.
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
            frontends4: map(map::FRONTENDS4)?.try_into()?,
            frontends6: map(map::FRONTENDS6)?.try_into()?,
            backends4: mapped::<Backend<Address4>>(map(map::BACKENDS4)?)?,
            backends6: mapped::<Backend<Address6>>(map(map::BACKENDS6)?)?,
            pools: mapped::<Pool>(map(map::POOLS)?)?,
            slots: mapped::<SlotPair>(map(map::POOL_SLOTS)?)?,
            destinations: mapped::<u64>(map(map::DESTINATIONS)?)?,
            sources: mapped::<u64>(map(map::SOURCES)?)?,
            details: Details::collect(&mut map)?,
            devices: map(map::DEVICES)?.try_into()?,
            host: map(map::HOST)?.try_into()?,
            network: mapped::<NetworkEpoch>(map(map::NETWORK)?)?,
            flows4: mapped::<FlowBucket<V4>>(map(map::FLOWS4)?)?,
            flows6: mapped::<FlowBucket<V6>>(map(map::FLOWS6)?)?,
            lingering: BTreeSet::new(),
            lingering_families: BTreeSet::new(),
            swept_apart: true,
            reasons: map(map::REASONS)?.try_into()?,
            service_traffic: map(map::SERVICE_TRAFFIC)?.try_into()?,
            backend_traffic: map(map::BACKEND_TRAFFIC)?.try_into()?,
        })
    }

    /// The indexes of all interfaces in the map.
    pub fn devices(&self) -> impl Iterator<Item = u32> + '_ {
        self.devices.keys().filter_map(Result::ok)
    }

    /// Writes changes of this machine's interfaces; `None`: removed.
    pub fn change_devices(
        &mut self,
        devices: &BTreeMap<u32, Option<network::Device>>,
    ) -> Result<()> {
        for (&index, device) in devices {
            let Some(device) = device else {
                gone(self.devices.remove(&index))
                    .with_context(|| format!("interface {index} cannot be removed from DEVICES"))?;
                continue;
            };
            self.devices.insert(index, Plain(device.into()), 0).with_context(|| {
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

    /// Executes one step.
    pub fn apply(&mut self, step: &Step) -> Result<()> {
        match step {
            Step::SetBackend { index, backend, standing, generation } => {
                self.check_backend(*index)?;
                // An entry becomes valid with its last word, which contains the protocol.
                let order = Order::LastWordLast;
                match backend.address {
                    IpAddr::V4(address) => {
                        let entry: Backend<Address4> =
                            backend.entry(address.into(), *standing, *generation);
                        self.backends4.store(*index, &entry, order);
                    }
                    IpAddr::V6(address) => {
                        let entry: Backend<Address6> =
                            backend.entry(address.into(), *standing, *generation);
                        self.backends6.store(*index, &entry, order);
                    }
                }
                Ok(())
            }
            Step::RetireBackend { index, family, generation } => {
                self.check_backend(*index)?;
                let (generation, order) = (*generation, Order::LastWordFirst);
                match family {
                    IpAddr::V4(_) => {
                        let unused = Backend::<Address4> { generation, ..Backend::default() };
                        self.backends4.store(*index, &unused, order);
                    }
                    IpAddr::V6(_) => {
                        let unused = Backend::<Address6> { generation, ..Backend::default() };
                        self.backends6.store(*index, &unused, order);
                    }
                }
                Ok(())
            }
            Step::WriteTable { offset, table } => self.write_slots(*offset, &table.slots()),
            Step::SwapPool { index, pool } => {
                ensure!(*index < self.pools.len(), "pool {index} is out of range");
                // Release: a program that sees the pool also sees the slots written before.
                self.pools.word(*index).store(pool.to_word(), Ordering::Release);
                Ok(())
            }
            Step::SetFrontend { key, value } => self.set_frontend(key, value),
            Step::RemoveFrontend { key } => self.remove_frontend(key),
            Step::SetDestinationBit(bitmap) => {
                // A flow of the other family may still need it.
                self.swept_apart &= !self.lingering.remove(bitmap);
                self.destinations.set_bit(bitmap.word, bitmap.bit);
                Ok(())
            }
            Step::SetSourceBit(Bitmap { word, bit }) => {
                self.sources.set_bit(*word, *bit);
                Ok(())
            }
            Step::ClearSourceBit(Bitmap { word, bit }) => {
                self.sources.clear_bit(*word, *bit);
                Ok(())
            }
            Step::SetDetail(detail) => self.details.set(detail),
            Step::RemoveDetail(detail) => self.details.remove(detail),
            Step::SweepFlows(sweep) => {
                self.sweep_flows(sweep);
                Ok(())
            }
            Step::ResetServiceTraffic { index } => reset(&mut self.service_traffic, *index),
            Step::ResetBackendTraffic { index } => reset(&mut self.backend_traffic, *index),
        }
    }

    fn check_backend(&self, index: u32) -> Result<()> {
        let limit = self.backends4.len().min(self.backends6.len());
        ensure!(index < limit, "backend {index} is out of range");
        Ok(())
    }

    fn write_slots(&mut self, offset: u32, slots: &[u32]) -> Result<()> {
        let end = offset as usize + slots.len();
        ensure!(end <= self.slot_count() as usize, "slots {offset}..{end} are out of range");
        for (index, &backend) in (offset..).zip(slots) {
            self.slot(index).store(backend, Ordering::Relaxed);
        }
        Ok(())
    }

    fn set_frontend(&mut self, key: &FrontendKey, value: &layout::Frontend) -> Result<()> {
        let value = Plain(*value);
        match key.address {
            IpAddr::V4(address) => self.frontends4.insert(frontend_key(address, key), value, 0),
            IpAddr::V6(address) => self.frontends6.insert(frontend_key6(address, key), value, 0),
        }
        .with_context(|| format!("frontend {}:{} can't be written", key.address, key.port))
    }

    fn remove_frontend(&mut self, key: &FrontendKey) -> Result<()> {
        let removed = match key.address {
            IpAddr::V4(address) => self.frontends4.remove(&frontend_key(address, key)),
            IpAddr::V6(address) => self.frontends6.remove(&frontend_key6(address, key)),
        };
        gone(removed)
            .with_context(|| format!("frontend {}:{} can't be removed", key.address, key.port))
    }

    /// Ends the datagram flows that may not stay. Clears the bits of destinations that neither a
    /// frontend nor a flow has, so that packets to them pass at the prefilter. Reads each family's
    /// table at most once.
    fn sweep_flows(&mut self, sweep: &Sweep) {
        if !sweep.bits.is_empty() {
            self.lingering.extend(&sweep.bits);
            self.lingering_families.extend(&sweep.families);
        }
        let mut families = sweep.families.clone();
        if !self.lingering.is_empty() {
            families.extend(&self.lingering_families);
            families.extend(AddressFamily::ALL.iter().filter(|_| !self.swept_apart));
        }
        let mut needed = HashSet::new();
        if families.contains(&AddressFamily::V4) {
            flow_tables::sweep::<V4>(&self.flows4, &sweep.datagrams, &self.lingering, &mut needed);
        }
        if families.contains(&AddressFamily::V6) {
            flow_tables::sweep::<V6>(&self.flows6, &sweep.datagrams, &self.lingering, &mut needed);
        }
        for bit in self.lingering.extract_if(.., |bit| !needed.contains(bit)) {
            self.destinations.clear_bit(bit.word, bit.bit);
        }
        if self.lingering.is_empty() {
            self.lingering_families.clear();
        }
    }

    /// Reads the contents that an earlier agent left.
    pub fn snapshot(&self) -> Result<Snapshot> {
        let mut snapshot = Snapshot::default();
        for entry in self.frontends4.iter() {
            let (Plain(key), Plain(value)) = entry?;
            let key = FrontendKey::new(key.address.into(), key.port, key.protocol);
            snapshot.frontends.push((key, value));
        }
        for entry in self.frontends6.iter() {
            let (Plain(key), Plain(value)) = entry?;
            let key = FrontendKey::new(key.address.into(), key.port, key.protocol);
            snapshot.frontends.push((key, value));
        }
        let mut reader = PoolReader::new(self.backends4.len());
        for index in 1..self.pools.len() {
            let pool = Pool::from_word(self.pools.word(index).load(Ordering::Relaxed));
            if pool.size > 0 {
                snapshot.pools.push(reader.read(index, pool, self.slots_of(pool)));
            }
        }
        snapshot.backends = self.backends().collect();
        snapshot.details = self.details.all()?;
        snapshot.destination_bits = bits(&self.destinations);
        snapshot.source_bits = bits(&self.sources);
        snapshot.datagrams = self.datagrams();
        Ok(snapshot)
    }

    /// The service ports and backends between which there are datagram flows. Leaves out flows that
    /// the data plane moves by itself, because their backend's entry is gone or draining.
    fn datagrams(&self) -> BTreeSet<(u32, u32)> {
        let mut found = flow_tables::datagrams::<V4>(&self.flows4, &self.backends4);
        found.extend(flow_tables::datagrams::<V6>(&self.flows6, &self.backends6));
        found
    }

    /// Every index that has, or had, a backend.
    pub fn backends(&self) -> impl Iterator<Item = FoundBackend> + '_ {
        (1..self.backends4.len()).filter_map(|index| {
            found_backend(index, &self.backends4.load(index), &self.backends6.load(index))
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
        flow_tables::flows(&self.flows4)
    }

    pub fn flows6(&self) -> impl Iterator<Item = (FlowState, Ticks, Flow<V6>)> + '_ {
        flow_tables::flows(&self.flows6)
    }

    /// The states of all flows of one family; reads one cache line for eight entries.
    pub fn flow_states4(&self) -> impl Iterator<Item = FlowState> + '_ {
        flow_tables::states::<V4>(&self.flows4)
    }

    pub fn flow_states6(&self) -> impl Iterator<Item = FlowState> + '_ {
        flow_tables::states::<V6>(&self.flows6)
    }

    /// How full the flow tables are.
    pub fn occupancy4(&self) -> Occupancy {
        flow_tables::occupancy::<V4>(&self.flows4)
    }

    pub fn occupancy6(&self) -> Occupancy {
        flow_tables::occupancy::<V6>(&self.flows6)
    }

    /// The counter of each reason, summed over all CPUs.
    pub fn reasons(&self) -> Result<Vec<(Reason, u64)>> {
        Reason::ALL
            .into_iter()
            .map(|reason| Ok((reason, self.reasons.get(&(reason as u32), 0)?.iter().sum())))
            .collect()
    }

    pub fn service_traffic(&self, index: u32) -> Result<Traffic> {
        Ok(total(&self.service_traffic.get(&index, 0)?))
    }

    pub fn backend_traffic(&self, index: u32) -> Result<Traffic> {
        Ok(total(&self.backend_traffic.get(&index, 0)?))
    }
}

/// Removing an entry succeeds if it does not exist.
pub(super) fn gone(removed: Result<(), MapError>) -> Result<()> {
    match removed {
        Ok(()) | Err(MapError::KeyNotFound) => Ok(()),
        Err(MapError::SyscallError(error)) if error.io_error.kind() == ErrorKind::NotFound => {
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}

impl From<&network::Device> for Device {
    fn from(device: &network::Device) -> Self {
        let network::Device { name: _, v4, v6, mtu, mac, redirect, transmit } = device;
        let flag = |on: &bool, flag| if *on { flag } else { 0 };
        Self {
            address4: v4.map(Into::into).unwrap_or_default(),
            address6: v6.map(Into::into).unwrap_or_default(),
            mtu: *mtu,
            link_address: *mac,
            flags: flag(redirect, Self::REDIRECT) | flag(transmit, Self::TRANSMIT),
            reserved: 0,
        }
    }
}

fn mapped<T>(map: Map) -> Result<Mapped> {
    match map {
        Map::Array(data) => Mapped::new(&data, size_of::<T>()),
        _ => Err(anyhow!("a map is not the array it should be")),
    }
}

fn frontend_key(address: std::net::Ipv4Addr, key: &FrontendKey) -> Plain<layout::FrontendKey<V4>> {
    Plain(layout::FrontendKey::new(address.into(), key.port, key.protocol))
}

fn frontend_key6(address: std::net::Ipv6Addr, key: &FrontendKey) -> Plain<layout::FrontendKey<V6>> {
    Plain(layout::FrontendKey::new(address.into(), key.port, key.protocol))
}

/// An index is used by a backend of at most one family.
fn found_backend(
    index: u32,
    four: &Backend<Address4>,
    six: &Backend<Address6>,
) -> Option<FoundBackend> {
    let generation = four.generation.max(six.generation);
    let backend = if four.protocol != 0 {
        Some((BackendKey::new(four.address.into(), four.port, four.protocol), Standing::of(four)))
    } else if six.protocol != 0 {
        Some((BackendKey::new(six.address.into(), six.port, six.protocol), Standing::of(six)))
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

fn reset(map: &mut PerCpuArray<MapData, Plain<Traffic>>, index: u32) -> Result<()> {
    let processors = nr_cpus().map_err(|(_, error)| error)?;
    let zeros = PerCpuValues::try_from(vec![Plain(Traffic::default()); processors])?;
    Ok(map.set(index, zeros, 0)?)
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
