//! The data plane in the kernel for thousands of random scenarios one after the other, with a reset
//! before each.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use aya::maps::{HashMap, Map, MapData};
use aya::programs::{TestRun, TestRunOptions, TestRunResult};
use aya::util::nr_cpus;
use fuzz::{
    Hook, PipelineFate, PipelineOutcome, TableChange, TransportAddress, announced_entry,
    announced_key, damaged_return, destination_bit, source_bit, universe,
};
use lb_common::datapath::DEFERRED;
use lb_common::family::{Family, V4, V6};
use lb_common::layout::{
    Affinity, AffinityKey, Announced, AnnouncedAddress, FlowBucket, Fragment, FragmentKey, Hints,
    LastClaim, NeighbourEvent, Peer, Pool, Reason, ReplyBucket, ReplyKey, Traffic, TunnelKey,
    TunnelPeer, Untracked, map,
};
use lb_kernel::{DataPlane, HookPoint, Mapped, Pins, Plain, Sizes, Tables, TunnelKeys};
use lb_network::Device;
use lb_plan::{BackendKey, BackendState, FrontendKey, SideEntry, Step, Sweep, Table};

use tests::worlds::topology::Topology;

/// The ingress device of BPF_PROG_TEST_RUN: loopback.
pub const TEST_RUN_DEVICE: u32 = 1;

/// Limits of the indexes in scenarios.
const BACKENDS: u32 = 64;
const POOLS: u32 = 64;
const SLOTS: u32 = 2_048;
pub const SERVICE_PORTS: u32 = 32;

pub struct RandomKernel {
    data_plane: DataPlane,
    tables: Tables,
    flows: (Mapped, Mapped),
    replies: (Mapped, Mapped),
    affinities: Affinities,
    fragments: Fragments,
    untracked: UntrackedFlows,
    /// The bits of crowded buckets, and hints.
    marks: [Mapped; 5],
    tunnel_keys: TunnelKeys,
    announced: HashMap<MapData, Plain<AnnouncedAddress>, Plain<Announced>>,
    tunnel_peers: HashMap<MapData, Plain<Peer>, u32>,
    claims: HashMap<MapData, Plain<AnnouncedAddress>, Plain<LastClaim>>,
    scratch: Scratch,
    /// Steps that undo changes of hash maps.
    undo: Vec<Step>,
    out: Vec<u8>,
    _pins: Pins,
    _topology: Topology,
}

struct Affinities {
    v4: HashMap<MapData, Plain<AffinityKey<V4>>, Plain<Affinity>>,
    v6: HashMap<MapData, Plain<AffinityKey<V6>>, Plain<Affinity>>,
}

/// Keys to remove.
struct UntrackedFlows {
    v4: HashMap<MapData, [u8; size_of::<ReplyKey<V4>>()], [u8; size_of::<Untracked<V4>>()]>,
    v6: HashMap<MapData, [u8; size_of::<ReplyKey<V6>>()], [u8; size_of::<Untracked<V6>>()]>,
}

/// These are not compared.
struct Fragments {
    v4: HashMap<MapData, [u8; size_of::<FragmentKey<V4>>()], [u8; size_of::<Fragment>()]>,
    v6: HashMap<MapData, [u8; size_of::<FragmentKey<V6>>()], [u8; size_of::<Fragment>()]>,
}

impl RandomKernel {
    /// Creates a data plane for this number of flows.
    pub fn new(flows: u32) -> Result<Self> {
        let topology = Topology::new("agreement")?;
        let pins = Pins::open(&topology.pins())?;
        let mut data_plane = DataPlane::load(&pins, Sizes::for_flows(flows))?;
        let mut tables = data_plane.tables()?;
        let device = Device {
            transmit: true,
            mac: universe::LINK_ADDRESS,
            macs_above: [universe::LINK_ADDRESS_ABOVE].into(),
            ..Device::default()
        };
        tables.change_devices(&[(TEST_RUN_DEVICE, Some(device))].into())?;
        let mapped = |name: &str, size| Mapped::new(&open(&pins.map(name))?, size);
        let hash = |name: &str| Ok::<_, anyhow::Error>(Map::LruHashMap(open(&pins.map(name))?));
        Ok(Self {
            flows: (
                mapped(map::FLOWS4, size_of::<FlowBucket<V4>>())?,
                mapped(map::FLOWS6, size_of::<FlowBucket<V6>>())?,
            ),
            replies: (
                mapped(map::REPLIES4, size_of::<ReplyBucket>())?,
                mapped(map::REPLIES6, size_of::<ReplyBucket>())?,
            ),
            affinities: Affinities {
                v4: hash(map::AFFINITIES4)?.try_into()?,
                v6: hash(map::AFFINITIES6)?.try_into()?,
            },
            fragments: Fragments {
                v4: hash(map::FRAGMENTS4)?.try_into()?,
                v6: hash(map::FRAGMENTS6)?.try_into()?,
            },
            untracked: UntrackedFlows {
                v4: hash(map::UNTRACKED4)?.try_into()?,
                v6: hash(map::UNTRACKED6)?.try_into()?,
            },
            marks: [
                mapped(map::CROWDED4, size_of::<u64>())?,
                mapped(map::CROWDED6, size_of::<u64>())?,
                mapped(map::CROWDED_LATELY4, size_of::<u64>())?,
                mapped(map::CROWDED_LATELY6, size_of::<u64>())?,
                mapped(map::HINTS, size_of::<Hints>())?,
            ],
            tunnel_keys: TunnelKeys::open(&pins)?,
            tunnel_peers: Map::HashMap(open(&pins.map(map::TUNNEL_PEERS))?).try_into()?,
            announced: Map::HashMap(open(&pins.map(map::ANNOUNCED))?).try_into()?,
            claims: Map::HashMap(open(&pins.map(map::CLAIMS))?).try_into()?,
            scratch: Scratch::open(&pins.map(map::SCRATCH))?,
            undo: Vec::new(),
            out: Vec::new(),
            data_plane,
            tables,
            _pins: pins,
            _topology: topology,
        })
    }

    pub fn flow_seed(&self) -> u64 {
        self.data_plane.flow_seed()
    }

    /// Clears all tables except counters.
    pub fn reset(&mut self) -> Result<()> {
        // Flows keep bits of the prefilter set.
        for mapped in [&self.flows.0, &self.flows.1, &self.replies.0, &self.replies.1] {
            mapped.clear();
        }
        self.marks.iter().for_each(Mapped::clear);
        self.tunnel_keys.write([0; TunnelKey::COUNT]);
        for step in std::mem::take(&mut self.undo) {
            step.execute(&mut self.tables)?;
        }
        let emptied =
            Step::WriteTable { offset: 0, table: Table::of_slots(vec![0; SLOTS as usize]) };
        emptied.execute(&mut self.tables)?;
        for index in 0..POOLS {
            Step::SwapPool { index, pool: Pool::default() }.execute(&mut self.tables)?;
        }
        clear(&mut self.affinities.v4)?;
        clear(&mut self.affinities.v6)?;
        clear(&mut self.fragments.v4)?;
        clear(&mut self.fragments.v6)?;
        clear(&mut self.untracked.v4)?;
        clear(&mut self.untracked.v6)?;
        clear(&mut self.announced)?;
        clear(&mut self.tunnel_peers)?;
        clear(&mut self.claims)?;
        self.scratch.clear()
    }

    pub fn change(&mut self, change: &TableChange) -> Result<()> {
        match change {
            TableChange::Idle(ticks) => {
                age::<V4>(&self.flows.0, *ticks);
                age::<V6>(&self.flows.1, *ticks);
            }
            TableChange::TunnelKeys(keys) => self.tunnel_keys.write(*keys),
            &TableChange::TunnelPeer(address) => {
                self.tunnel_peers.insert(Plain(Peer::from(address)), TunnelPeer::RETURNS, 0)?;
            }
            &TableChange::Announce { address, expired } => {
                let entry = Plain(announced_entry(expired));
                self.announced.insert(Plain(announced_key(address)), entry, 0)?;
            }
            &TableChange::Watch(address) => {
                self.claims.insert(
                    Plain(announced_key(address)),
                    Plain(LastClaim::default()),
                    0,
                )?;
            }
            TableChange::DamagedReturns => {
                for mapped in [&self.replies.0, &self.replies.1] {
                    for bucket in buckets::<ReplyBucket>(mapped) {
                        for entry in &bucket.entries {
                            entry.store(damaged_return(entry.load()));
                        }
                    }
                }
            }
            other => {
                for (step, undo) in steps(other) {
                    step.execute(&mut self.tables).with_context(|| format!("{step:?}"))?;
                    self.undo.extend(undo.filter(|undo| !self.undo.contains(undo)));
                }
            }
        }
        Ok(())
    }

    pub fn run(&mut self, hook: Hook, packet: &[u8]) -> Result<PipelineOutcome> {
        const XDP: [u32; 4] = [2, 1, 3, 4];
        const TC: [u32; 4] = [u32::MAX, 2, 7, 7];

        self.out.resize(packet.len() + 256, 0);
        let options = TestRunOptions {
            data_in: Some(packet),
            data_out: Some(&mut self.out),
            ..TestRunOptions::default()
        };
        let result: TestRunResult = match hook {
            Hook::Forward => self.data_plane.xdp()?.test_run(options),
            Hook::Stack => self.data_plane.classifier(HookPoint::ExternalInTc)?.test_run(options),
            Hook::Workload => self.data_plane.classifier(HookPoint::WorkloadIn)?.test_run(options),
            Hook::Reverse => self.data_plane.classifier(HookPoint::Out)?.test_run(options),
        }
        .with_context(|| format!("{hook:?} of {} bytes", packet.len()))?;
        let codes = if hook == Hook::Forward { XDP } else { TC };
        let mut bytes = self.out[..result.data_size_out as usize].to_vec();
        let fate = match codes.iter().position(|&code| code == result.return_value) {
            Some(0) if hook == Hook::Forward && bytes.starts_with(&DEFERRED.to_ne_bytes()) => {
                bytes.drain(..size_of_val(&DEFERRED));
                PipelineFate::Deferred
            }
            Some(0) => PipelineFate::Passed,
            Some(1) => PipelineFate::Dropped,
            Some(_) => PipelineFate::Sent,
            None => anyhow::bail!("{hook:?} returned {}", result.return_value),
        };
        Ok(PipelineOutcome { fate, bytes })
    }

    pub fn flows4(&self) -> impl Iterator<Item = &FlowBucket<V4>> {
        buckets(&self.flows.0)
    }

    pub fn flows6(&self) -> impl Iterator<Item = &FlowBucket<V6>> {
        buckets(&self.flows.1)
    }

    pub fn replies(&self) -> impl Iterator<Item = &ReplyBucket> {
        buckets(&self.replies.0).chain(buckets(&self.replies.1))
    }

    pub fn neighbour_events(&self) -> Result<Vec<(NeighbourEvent, u64)>> {
        self.tables.neighbour_events()
    }

    /// The machine that was last seen to use each watched address.
    pub fn claimants(&self) -> Result<BTreeMap<AnnouncedAddress, [u8; 6]>> {
        let claim = |entry| {
            let (Plain(at), Plain(claim)): (_, Plain<LastClaim>) = entry?;
            let is_whole = claim == LastClaim::default() || claim.is_to(&at);
            ensure!(is_whole, "{claim:?} to {at:?}");
            Ok((at, claim.claimant.link_address))
        };
        self.claims.iter().map(claim).collect()
    }

    pub fn reasons(&self) -> Result<Vec<(Reason, u64)>> {
        self.tables.reasons()
    }

    pub fn service_traffic(&self) -> Result<Vec<Traffic>> {
        (0..SERVICE_PORTS).map(|index| self.tables.service_traffic(index)).collect()
    }

    pub fn backend_traffic(&self) -> Result<Vec<Traffic>> {
        (0..BACKENDS).map(|index| self.tables.backend_traffic(index)).collect()
    }
}

fn open(path: &Path) -> Result<MapData> {
    MapData::from_pin(path).with_context(|| path.display().to_string())
}

fn buckets<T: 'static>(mapped: &Mapped) -> impl Iterator<Item = &T> {
    (0..mapped.len()).map(|index| {
        // SAFETY: the map's values have this type, whose size was checked when it was mapped.
        // Buckets consist of cells; the kernel writes them only during a test run.
        unsafe { &*mapped.address(index).cast::<T>() }
    })
}

fn age<F: Family>(mapped: &Mapped, ticks: u32) {
    buckets::<FlowBucket<F>>(mapped).for_each(|bucket| bucket.grow_older(ticks));
}

fn clear<K: aya::Pod, V: aya::Pod>(map: &mut HashMap<MapData, K, V>) -> Result<()> {
    let keys: Vec<K> = map.keys().collect::<Result<_, _>>()?;
    keys.iter().try_for_each(|key| map.remove(key)).map_err(Into::into)
}

/// The steps of a change, each with the step that undoes it.
fn steps(change: &TableChange) -> Vec<(Step, Option<Step>)> {
    let step = match change {
        TableChange::Frontend { key, value } => {
            let key = FrontendKey::new(key.address, key.port, key.protocol);
            let gone = Step::RemoveFrontend { key };
            match value {
                Some(value) => (Step::SetFrontend { key, value: *value }, Some(gone)),
                None => (gone, None),
            }
        }
        &TableChange::Backend { index, end, flags, generation, node } => {
            let set = |protocol, generation| Step::SetBackend {
                index,
                backend: BackendKey::new(end.address, end.port, protocol),
                state: BackendState { local: flags & 1 != 0, draining: flags & 2 != 0, node },
                generation,
            };
            (set(end.protocol, generation), Some(set(0, 0)))
        }
        TableChange::Slots { offset, slots } => {
            (Step::WriteTable { offset: *offset, table: Table::of_slots(slots.clone()) }, None)
        }
        TableChange::Pool { index, pool } => (Step::SwapPool { index: *index, pool: *pool }, None),
        TableChange::Destination(address) => {
            let bit = destination_bit(*address);
            (Step::SetDestinationBit(bit), Some(Step::SweepFlows(Box::new(Sweep::of_bits([bit])))))
        }
        TableChange::Source(end) => {
            let bit = source_bit(&TransportAddress { ..*end });
            (Step::SetSourceBit(bit), Some(Step::ClearSourceBit(bit)))
        }
        TableChange::Member(member) => {
            let side_entry = SideEntry::Member(*member);
            (Step::SetSideEntry(side_entry.clone()), Some(Step::RemoveSideEntry(side_entry)))
        }
        &TableChange::SourceRange { service_port, range } => {
            let side_entry = SideEntry::SourceRange { service_port, range };
            (Step::SetSideEntry(side_entry.clone()), Some(Step::RemoveSideEntry(side_entry)))
        }
        &TableChange::Peer(address) => {
            let side_entry = SideEntry::Peer(address);
            (Step::SetSideEntry(side_entry.clone()), Some(Step::RemoveSideEntry(side_entry)))
        }
        &TableChange::Target { target, backend } => {
            let side_entry = SideEntry::Target { target, backend };
            (Step::SetSideEntry(side_entry.clone()), Some(Step::RemoveSideEntry(side_entry)))
        }
        &TableChange::Earlier { slot, owners } => {
            let side_entry = SideEntry::Earlier { slot, owners };
            (Step::SetSideEntry(side_entry.clone()), Some(Step::RemoveSideEntry(side_entry)))
        }
        TableChange::TunnelKeys(_)
        | TableChange::TunnelPeer(_)
        | TableChange::Announce { .. }
        | TableChange::Watch(_)
        | TableChange::Idle(_)
        | TableChange::DamagedReturns => return Vec::new(),
    };
    vec![step]
}

/// A per-CPU scratch map, which is overwritten without its types.
struct Scratch {
    data: MapData,
    /// Size for all CPUs.
    size: usize,
}

impl Scratch {
    fn open(path: &Path) -> Result<Self> {
        let data = open(path)?;
        let processors = nr_cpus().map_err(|(_, error)| error)?;
        let size = (data.info()?.value_size() as usize).next_multiple_of(8) * processors;
        Ok(Self { data, size })
    }

    fn clear(&self) -> Result<()> {
        use std::os::fd::{AsFd, AsRawFd};

        /// The part of `union bpf_attr` for updates.
        #[repr(C)]
        struct Update {
            map: u32,
            reserved: u32,
            key: u64,
            value: u64,
            flags: u64,
        }
        const BPF_MAP_UPDATE_ELEM: i64 = 2;

        let (key, zeros) = (0u32, vec![0u8; self.size]);
        let map = self.data.fd().as_fd().as_raw_fd() as u32;
        let (key, value) = ((&raw const key) as u64, zeros.as_ptr() as u64);
        let update = Update { map, reserved: 0, key, value, flags: 0 };
        // SAFETY: the kernel reads a key of four bytes, and a value with the map's size for all
        // CPUs.
        let result = unsafe {
            libc::syscall(
                libc::SYS_bpf,
                BPF_MAP_UPDATE_ELEM,
                &raw const update,
                size_of::<Update>(),
            )
        };
        ensure!(result == 0, "scratch: {}", std::io::Error::last_os_error());
        Ok(())
    }
}
