//! The data plane in the kernel, run by BPF_PROG_TEST_RUN.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::mem::{offset_of, take};
use std::net::IpAddr;

use anyhow::{Context, Result};
use aya::programs::{TestRun, TestRunOptions};
use lb_common::family::{Family, V4, V6};
use lb_common::hash::mix;
use lb_common::host::Exit;
use lb_common::layout;
use lb_common::layout::{
    Affinity, Announced, AnnouncedAddress, BfdHeard, BfdSession, FlowBucket, Fragment, Hints,
    LastClaim, NeighbourEvent, Peer, Pool, Reason, TunnelKey, capacity, map,
};
use lb_inspect::trace::routes::KernelRoutes;
use lb_inspect::trace::story::NameLookup;
use lb_inspect::trace::{Meeting, Trace, View, trace_packet};
use lb_kernel::{
    CrowdedBits, DataPlane, FlowPlaces, HookPoint, Layout, Parameters, Pins, Plain, Sizes, Tables,
    TunnelKeys, read_clock,
};
use lb_network::Device;
use lb_plan::{FrontendKey, Step};

use super::checksum_complete;
use super::surroundings::{OUTSIDE, Surroundings};
use super::{Fate, Flows, Hook, PacketOutcome, World};
use crate::maps::any_map::{AnyMap, Entry};
use crate::packets::{Mac, NODE_MAC};
use crate::worlds::topology::Topology;

const XDP_DROP: u32 = 1;
const XDP_PASS: u32 = 2;
const XDP_TX: u32 = 3;
const XDP_REDIRECT: u32 = 4;
/// -1 as an unsigned number.
const TC_ACT_UNSPEC: u32 = u32::MAX;
const TC_ACT_SHOT: u32 = 2;
const TC_ACT_REDIRECT: u32 = 7;
/// Not a verdict of XDP: the packet passed with a mark for tc.
const DEFERRED: u32 = u32::MAX;

/// A data plane with its own pins and devices, which is not attached.
pub struct KernelWorld {
    pub data_plane: DataPlane,
    pub tables: Tables,
    surroundings: Surroundings,
    maps: BTreeMap<&'static str, AnyMap>,
    /// Entries written to arrays that are too large to be cleared.
    touched: BTreeSet<(&'static str, u32)>,
    pins: Pins,
    /// Removes pins and namespaces at the end, and those of killed runs.
    _topology: Topology,
}

/// Maps that the kernel or the loader writes once.
const KEPT: [&str; 5] =
    [map::IDENTITY, map::PARAMETERS, map::XDP_STAGES, map::TC_STAGES, map::EVENTS];

/// Maps with too many entries to clear them all. Only counters of added service ports and backends
/// can have changed.
const LARGE: [&str; 11] = [
    map::FRONTEND_CACHE4,
    map::FRONTEND_CACHE6,
    map::BACKEND_HOPS,
    map::POOLS,
    map::POOL_SLOTS,
    map::BACKENDS4,
    map::BACKENDS6,
    map::DESTINATIONS,
    map::SOURCES,
    map::SERVICE_TRAFFIC,
    map::BACKEND_TRAFFIC,
];

impl KernelWorld {
    pub fn new(sizes: Sizes) -> Result<Self> {
        Self::with(Parameters { sizes, ..Parameters::default() })
    }

    pub fn with(parameters: Parameters) -> Result<Self> {
        let topology = Topology::new("kernel")?;
        let pins = Pins::open(&topology.pins())?;
        let mut data_plane = DataPlane::load_with(&pins, parameters)?;
        let tables = data_plane.tables()?;
        let surroundings = Surroundings::new(&topology)?;
        let maps = map::ALL
            .into_iter()
            .filter(|name| !KEPT.contains(name))
            .map(|name| Ok((name, AnyMap::open(&pins.map(name))?)))
            .collect::<Result<_>>()?;
        let mut world = Self {
            data_plane,
            tables,
            surroundings,
            maps,
            touched: BTreeSet::new(),
            pins,
            _topology: topology,
        };
        world.begin()?;
        Ok(world)
    }

    /// Writes the entries that every world has.
    fn begin(&mut self) -> Result<()> {
        let device = Device { transmit: true, ..Device::default() };
        self.tables.change_devices(&BTreeMap::from([(OUTSIDE, Some(device))]))
    }

    /// Restores the initial state.
    pub fn reset(&mut self) -> Result<()> {
        self.surroundings.reset()?;
        for (name, map) in self.maps.iter().filter(|(name, _)| !LARGE.contains(name)) {
            map.clear().with_context(|| format!("{name} can't be cleared"))?;
        }
        for (name, index) in take(&mut self.touched) {
            let cleared = self.maps[name].clear_entry(index);
            cleared.with_context(|| format!("{name}[{index}] can't be cleared"))?;
        }
        self.begin()
    }

    /// Sets the routes to several addresses.
    pub fn set_exits(&mut self, exits: &[(IpAddr, Exit)]) -> Result<()> {
        self.surroundings.set_exits(exits)
    }

    /// Clears the marks of crowded buckets like the agent, and returns how many.
    pub fn clear_crowded_bits(&self) -> Result<u32> {
        let mut bits = CrowdedBits::open(&self.pins)?;
        Ok(bits.step()? + bits.step()?)
    }

    /// Decides like the agent whether flows begin in the rest of the flow table: IPv4's, and IPv6's.
    pub fn place_new_flows(&self) -> Result<[bool; 2]> {
        FlowPlaces::open(&self.pins)?.decide()
    }

    /// Traces a packet like `millrace trace`.
    pub fn trace(&self, hook: Hook, frame: &[u8], segment: u32) -> Result<Trace> {
        let point = match hook {
            Hook::Forward => HookPoint::ExternalIn,
            Hook::Stack => HookPoint::ExternalInTc,
            Hook::AfterXdp => HookPoint::ExternalDeferred,
            Hook::Workload => HookPoint::WorkloadIn,
            Hook::Reverse | Hook::Process => HookPoint::Out,
        };
        let is_received = hook != Hook::Forward && frame.starts_with(&NODE_MAC.0);
        let is_sent_here = hook == Hook::Process;
        let points = vec![point];
        let meeting = Meeting { device: OUTSIDE, points, segment, is_received, is_sent_here };
        let pins = self.pins.path();
        self.surroundings.host.enter(|| {
            let (view, routes) = (View::open(pins)?, KernelRoutes::open()?);
            view.tick();
            Ok(trace_packet(&view, &routes, &NumericNames, &meeting, frame))
        })
    }

    /// The contents of the maps that packets write.
    pub fn written(&self) -> Result<Vec<(&'static str, Vec<Entry>)>> {
        let maps = self.maps.iter().filter(|(name, _)| !LARGE.contains(name));
        maps.map(|(&name, map)| Ok((name, map.contents()?))).collect()
    }

    /// The contents of all maps, except those that differ between worlds.
    pub fn contents(&self) -> Result<BTreeMap<&'static str, Vec<Entry>>> {
        let mut contents = BTreeMap::new();
        for (&name, map) in &self.maps {
            // Not by one system call for each of sixteen million slots.
            let found = if name == map::POOL_SLOTS { self.slots() } else { map.contents()? };
            contents.insert(name, found);
        }
        Ok(contents)
    }

    fn slots(&self) -> Vec<Entry> {
        let all = Pool { offset: 0, size: capacity::POOL_SLOTS };
        let slots = (0_u32..).zip(self.tables.slots(all)).filter(|(_, slot)| *slot != 0);
        slots.map(|(index, slot)| (index.to_ne_bytes().into(), slot.to_ne_bytes().into())).collect()
    }

    fn touch(&mut self, step: &Step) {
        let touched = match step {
            Step::SetBackend { index, .. } => {
                vec![
                    (map::BACKENDS4, *index),
                    (map::BACKENDS6, *index),
                    (map::BACKEND_HOPS, *index),
                    (map::BACKEND_TRAFFIC, *index),
                ]
            }
            Step::RetireBackend { index, .. } => {
                vec![(map::BACKENDS4, *index), (map::BACKENDS6, *index)]
            }
            // An entry has two slots.
            Step::WriteTable { offset, table } => (*offset..)
                .zip(table.slots())
                .map(|(slot, _)| (map::POOL_SLOTS, slot / 2))
                .collect(),
            Step::SwapPool { index, .. } => vec![(map::POOLS, *index)],
            Step::SetFrontend { key, value } => {
                vec![(map::SERVICE_TRAFFIC, value.service_port), cache_entry(key)]
            }
            Step::SetDestinationBit(bit) => vec![(map::DESTINATIONS, bit.word)],
            Step::SetSourceBit(bit) => vec![(map::SOURCES, bit.word)],
            _ => Vec::new(),
        };
        self.touched.extend(touched);
    }

    /// Whether the sum of the network card over a packet is still correct after a tc program;
    /// `None`: this kernel does not report it.
    pub fn sum_of_card_stays_right(&mut self, hook: Hook, frame: &[u8]) -> Result<Option<bool>> {
        let point = match hook {
            Hook::Reverse | Hook::Process => HookPoint::Out,
            Hook::Workload => HookPoint::WorkloadIn,
            _ => HookPoint::ExternalInTc,
        };
        let program = self.data_plane.classifier(point)?;
        let context = context(hook, frame, 0);
        self.surroundings.host.enter(|| checksum_complete::stays_right(program, frame, &context))
    }

    /// Calls a function in the namespace of the devices.
    pub fn enter<T: Send>(&self, function: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        self.surroundings.host.enter(function)
    }

    /// Fills all free entries of the flow tables with flows that no new flow may replace.
    pub fn fill_flow_tables(&self) -> Result<()> {
        let now = read_clock()?;
        self.change_all(map::FLOWS4, |bytes| change_bucket::<V4>(bytes, |bucket| bucket.fill(now)));
        self.change_all(map::FLOWS6, |bytes| change_bucket::<V6>(bytes, |bucket| bucket.fill(now)));
        Ok(())
    }

    /// Fills the reply indexes with entries of flows that are gone, as on a node that has had many.
    pub fn age_reply_index(&self) {
        // Such an entry has a fingerprint, a location, and generation 0, which no flow of a new table has.
        const GENERATION: u64 = 0xff << 28;
        const FINGERPRINT: u64 = 1 << 63;
        let number = Cell::new(0);
        let age = |bytes: &mut [u8]| {
            for entry in bytes.chunks_exact_mut(size_of::<u64>()) {
                number.set(number.get() + 1);
                let entry_of_none = mix(number.get()) & !GENERATION | FINGERPRINT;
                entry.copy_from_slice(&entry_of_none.to_ne_bytes());
            }
        };
        self.change_all(map::REPLIES4, age);
        self.change_all(map::REPLIES6, age);
    }

    /// Runs a program for a packet that has arrived on the first device.
    fn run_program(&mut self, hook: Hook, frame: &[u8], segment: u32) -> Result<(u32, Vec<u8>)> {
        let context = context(hook, frame, segment);
        let mut left = context.clone();
        let mut out = vec![0; frame.len() + 256];
        let data_plane = &mut self.data_plane;
        // The kernel looks up the context's device in the caller's namespace.
        let result = self.surroundings.host.enter(|| {
            let options = TestRunOptions {
                data_in: Some(frame),
                data_out: Some(&mut out),
                ctx_in: Some(&context),
                ctx_out: Some(&mut left),
                ..TestRunOptions::default()
            };
            Ok(match hook {
                Hook::Forward => data_plane.xdp()?.test_run(options)?,
                Hook::Stack => data_plane.classifier(HookPoint::ExternalInTc)?.test_run(options)?,
                Hook::AfterXdp => {
                    data_plane.classifier(HookPoint::ExternalDeferred)?.test_run(options)?
                }
                Hook::Workload => {
                    data_plane.classifier(HookPoint::WorkloadIn)?.test_run(options)?
                }
                Hook::Reverse | Hook::Process => {
                    data_plane.classifier(HookPoint::Out)?.test_run(options)?
                }
            })
        })?;
        out.truncate(result.data_size_out as usize);
        if hook == Hook::Forward {
            // The output begins with metadata; the context contains the start of the packet.
            let word = |at: usize| [0, 1, 2, 3].map(|byte| left[at + byte]);
            let start = u32::from_ne_bytes(word(XDP_DATA)) as usize;
            out.drain(..start);
            if start > 0 && result.return_value == XDP_PASS {
                return Ok((DEFERRED, out));
            }
        }
        Ok((result.return_value, out))
    }
}

/// Where a frontend is cached.
fn cache_entry(key: &FrontendKey) -> (&'static str, u32) {
    let FrontendKey { address, port, protocol } = *key;
    match address {
        IpAddr::V4(address) => {
            let key = layout::FrontendKey::<V4>::new(address.into(), port, protocol);
            (map::FRONTEND_CACHE4, key.cache_index())
        }
        IpAddr::V6(address) => {
            let key = layout::FrontendKey::<V6>::new(address.into(), port, protocol);
            (map::FRONTEND_CACHE6, key.cache_index())
        }
    }
}

/// Names for traces: numbers.
struct NumericNames;

impl NameLookup for NumericNames {
    fn service_port(&self, index: u32) -> String {
        format!("service port {index}")
    }

    fn device(&self, index: u32) -> String {
        index.to_string()
    }

    fn weight(&self, _: layout::Member) -> Option<u32> {
        None
    }
}

/// Offsets in `struct xdp_md`: the packet's start and end, and the device.
const XDP_DATA: usize = 0;
const XDP_DATA_END: usize = 4;
const XDP_DEVICE: usize = 12;
const XDP_SIZE: usize = 24;

/// The context of a packet that has arrived on the first device.
pub fn context(hook: Hook, frame: &[u8], segment: u32) -> Vec<u8> {
    match hook {
        Hook::Forward => xdp_context(frame.len() as u32),
        Hook::Process => tc_context(segment, 0),
        Hook::Stack | Hook::AfterXdp | Hook::Workload | Hook::Reverse => {
            tc_context(segment, OUTSIDE)
        }
    }
}

fn xdp_context(length: u32) -> Vec<u8> {
    let mut context = vec![0; XDP_SIZE];
    context[XDP_DATA_END..][..4].copy_from_slice(&length.to_ne_bytes());
    context[XDP_DEVICE..][..4].copy_from_slice(&OUTSIDE.to_ne_bytes());
    context
}

/// Offsets in `struct __sk_buff`: the device on which it arrived, the device of the hook, and the segment size.
const TC_ARRIVED_ON: usize = 36;
const TC_DEVICE: usize = 40;
const TC_SEGMENT: usize = 176;
const TC_SIZE: usize = 192;

fn tc_context(segment: u32, arrived_on: u32) -> Vec<u8> {
    let mut context = vec![0; TC_SIZE];
    context[TC_ARRIVED_ON..][..4].copy_from_slice(&arrived_on.to_ne_bytes());
    context[TC_DEVICE..][..4].copy_from_slice(&OUTSIDE.to_ne_bytes());
    context[TC_SEGMENT..][..4].copy_from_slice(&segment.to_ne_bytes());
    context
}

impl World for KernelWorld {
    fn apply(&mut self, step: &Step) {
        self.touch(step);
        step.execute(&mut self.tables).unwrap_or_else(|error| panic!("{step:?}: {error:#}"));
    }

    fn set_device(&mut self, index: u32, device: &Device) {
        let change = BTreeMap::from([(index, Some(device.clone()))]);
        let changed = self.tables.change_devices(&change);
        changed.unwrap_or_else(|error| panic!("device {index}: {error:#}"));
    }

    fn set_exit(&mut self, to: IpAddr, exit: Option<&Exit>) {
        match exit {
            Some(exit) => self.surroundings.set_exits(&[(to, *exit)]),
            None => self.surroundings.remove_exit(to),
        }
        .unwrap_or_else(|error| panic!("no route to {to}: {error:#}"));
    }

    fn set_tunnel_keys(&mut self, keys: [u64; TunnelKey::COUNT]) {
        TunnelKeys::open(&self.pins).expect("the map is pinned").write(keys);
    }

    fn set_tunnel_peer(&mut self, node: IpAddr, value: u32) {
        self.write(map::TUNNEL_PEERS, Peer::from(node), value);
    }

    fn announce(&mut self, address: IpAddr, expired: bool) {
        let deadline = if expired { 1 } else { u64::MAX };
        let entry = Announced { deadline, epoch: 1, flags: 0 };
        self.write(map::ANNOUNCED, AnnouncedAddress::new(OUTSIDE, address), entry);
    }

    fn watch(&mut self, address: IpAddr) {
        self.write(map::CLAIMS, AnnouncedAddress::new(OUTSIDE, address), LastClaim::default());
    }

    fn claimant(&self, address: IpAddr) -> Option<Mac> {
        let key = Plain(AnnouncedAddress::new(OUTSIDE, address));
        let found = self.maps[map::CLAIMS].get(key.bytes());
        let value = found.unwrap_or_else(|error| panic!("{error:#}"))?;
        let at = offset_of!(LastClaim, claimant);
        let link = [0, 1, 2, 3, 4, 5].map(|octet| value[at + octet]);
        value[..at].iter().any(|octet| *octet != 0).then_some(Mac(link))
    }

    fn set_bfd_session(&mut self, discriminator: u32, session: &BfdSession) {
        self.write(map::BFD_HEARD, discriminator, BfdHeard::default());
        self.write(map::BFD_SESSIONS, discriminator, *session);
    }

    fn bfd_heard(&self, discriminator: u32) -> BfdHeard {
        let found = self.maps[map::BFD_HEARD].get(&discriminator.to_ne_bytes());
        let value = found.unwrap_or_else(|error| panic!("{error:#}"));
        value.map_or_else(BfdHeard::default, |value| {
            let word = |at: usize| value[at..].first_chunk().copied().map(u64::from_ne_bytes);
            let field = |at| word(at).expect("a word of the entry");
            BfdHeard {
                time: field(offset_of!(BfdHeard, time)),
                answers: field(offset_of!(BfdHeard, answers)),
            }
        })
    }

    fn share_hops(&mut self, shared: bool) {
        self.tables.lease_epoch(shared);
    }

    fn end_epoch_lease(&mut self) {
        self.tables.end_epoch_lease();
    }

    fn begin_in_rest(&mut self, rest: bool) {
        self.change_all(map::HINTS, |bytes| {
            bytes[offset_of!(Hints, begins_in_rest)..]
                .copy_from_slice(&u32::from(rest).to_ne_bytes());
        });
    }

    fn next_epoch(&mut self) {
        self.tables.next_epoch();
    }

    fn grow_older(&mut self, ticks: u32) {
        self.change_all(map::FLOWS4, |bytes| {
            change_bucket::<V4>(bytes, |bucket| bucket.grow_older(ticks));
        });
        self.change_all(map::FLOWS6, |bytes| {
            change_bucket::<V6>(bytes, |bucket| bucket.grow_older(ticks));
        });
        for name in [map::AFFINITIES4, map::AFFINITIES6] {
            self.change_all(name, |affinity| subtract(affinity, offset_of!(Affinity, used), ticks));
        }
        for name in [map::FRAGMENTS4, map::FRAGMENTS6] {
            self.change_all(name, |fragment| subtract(fragment, offset_of!(Fragment, seen), ticks));
        }
    }

    fn run_segments(&mut self, hook: Hook, frame: &[u8], segment: u32) -> PacketOutcome {
        let (verdict, bytes) = self
            .run_program(hook, frame, segment)
            .unwrap_or_else(|error| panic!("{hook:?} of {} bytes: {error:#}", frame.len()));
        let fate = match (hook, verdict) {
            (Hook::Forward, DEFERRED) => Fate::Deferred,
            (Hook::Forward, XDP_PASS) => Fate::Passed,
            (Hook::Forward, XDP_DROP) => Fate::Dropped,
            (Hook::Forward, XDP_TX) => Fate::Transmitted,
            (Hook::Forward, XDP_REDIRECT) => Fate::Sent,
            (hook @ (Hook::Forward | Hook::Reverse), other @ TC_ACT_REDIRECT) => {
                panic!("{hook:?} returned {other}")
            }
            (_, TC_ACT_UNSPEC) => Fate::Passed,
            (_, TC_ACT_SHOT) => Fate::Dropped,
            (_, TC_ACT_REDIRECT) => Fate::Sent,
            (hook, other) => panic!("{hook:?} returned {other}"),
        };
        PacketOutcome { fate, bytes }
    }

    fn flows(&self) -> Flows {
        Flows { v4: self.tables.flows4().collect(), v6: self.tables.flows6().collect() }
    }

    fn neighbour_events(&self) -> Vec<(NeighbourEvent, u64)> {
        self.tables.neighbour_events().unwrap_or_else(|error| panic!("{error:#}"))
    }

    fn reasons(&self) -> Vec<(Reason, u64)> {
        self.tables.reasons().unwrap_or_else(|error| panic!("{error:#}"))
    }
}

impl KernelWorld {
    fn write<K: Layout, V: Layout>(&self, name: &str, key: K, value: V) {
        let written = self.maps[name].set(Plain(key).bytes(), Plain(value).bytes());
        written.unwrap_or_else(|error| panic!("{name}: {error:#}"));
    }

    fn change_all(&self, name: &str, change: impl Fn(&mut [u8])) {
        self.maps[name].change_all(change).unwrap_or_else(|error| panic!("{name}: {error:#}"));
    }
}

fn change_bucket<F: Family>(bytes: &mut [u8], change: impl Fn(&FlowBucket<F>)) {
    assert_eq!(bytes.len(), size_of::<FlowBucket<F>>());
    let start = bytes.as_mut_ptr().cast::<FlowBucket<F>>();
    // SAFETY: the slice has the size of a bucket, which consists of plain numbers; accesses are
    // unaligned.
    unsafe {
        let bucket = start.read_unaligned();
        change(&bucket);
        start.write_unaligned(bucket);
    }
}

/// Subtracts ticks from a time in an entry.
fn subtract(bytes: &mut [u8], at: usize, ticks: u32) {
    let word = [0, 1, 2, 3].map(|byte| bytes[at + byte]);
    let earlier = u32::from_ne_bytes(word).wrapping_sub(ticks);
    bytes[at..at + 4].copy_from_slice(&earlier.to_ne_bytes());
}
