//! The data plane's environment on the host: a byte vector as [`Packet`], hash maps as [`Tables`].
//!
//! Tests run the data plane here, and compare it with the kernel's.

mod frame;
mod scratch;
mod sockets;

use std::cell::{Cell, RefCell, UnsafeCell};
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use ipnet::IpNet;

use crate::atomic::AtomicLong;
use crate::conntrack::{Environment, FlowTables, crowded_words};
use crate::datapath::{
    self, Answer, Answers, BfdTables, Counters, Direction, Draft, FamilyTables, Function,
    MOST_STAGES, NeighbourTables, NetworkTables, Packet, PacketFamily, PoolTables, Questions,
    Rejections, Stage, Verdict,
};
use crate::family::{Family, V4, V6};
use crate::layout::{
    Affinity, AffinityKey, Announced, AnnouncedAddress, Backend, BackendHop, BfdHeard, BfdSession,
    Bitmap, DESTINATION_WORDS, Device, EarlierOwners, FlowBucket, Fragment, FragmentKey, Frontend,
    FrontendKey, Hints, LastClaim, Member, NO_BACKEND, NeighbourEvent, NetworkEpoch, Peer, Pool,
    PoolSlot, Reason, ReplyBucket, ReplyKey, SOURCE_WORDS, Settings, Ticks, Traffic, TunnelKey,
    TunnelPeer, TunnelTarget, Untracked, capacity,
};

pub use frame::{Exit, HostFrame, Routes};
pub use scratch::{HoldsScratch, PacketScratch};
pub use sockets::HostSockets;

/// Where a packet comes into the data plane: the hook that sees it first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryPoint {
    Ingress,
    /// In tc, after XDP has passed it.
    AfterXdp,
    Egress,
}

/// Runs a packet through the data plane, as the kernel's programs do: entry point and stages.
/// `comes` is called before each stage.
pub fn run<P, T>(
    entry: EntryPoint,
    packet: &mut P,
    tables: &T,
    mut comes: impl FnMut(Stage, &P),
) -> Verdict
where
    P: Packet,
    T: FamilyTables<V4> + FamilyTables<V6>,
{
    let mut verdict = match entry {
        EntryPoint::Ingress if packet.is_raw() => datapath::ingress_raw(packet, tables),
        EntryPoint::Ingress => datapath::ingress(packet, tables),
        EntryPoint::AfterXdp => match packet.frame() {
            Some(frame) => datapath::passed(packet, frame),
            None => Verdict::Pass,
        },
        EntryPoint::Egress => datapath::egress(packet, tables),
    };
    let mut stages = 0;
    while let Verdict::Next(next) = verdict {
        let stage = next.stage();
        comes(stage, packet);
        stages += 1;
        if stages > MOST_STAGES {
            // As where a tail call fails.
            tables.count(Reason::CorruptTable);
            return Verdict::Drop;
        }
        verdict = datapath::stage(stage, packet, tables);
    }
    verdict
}

/// Tests have no backends with higher indexes.
const BACKEND_HOPS: usize = 64;

/// All tables of the data plane, on the heap.
pub struct HostTables {
    pub settings: Settings,
    pub now: Cell<Ticks>,
    pub pools: HashMap<u32, Pool>,
    pub slots: HashMap<u32, u32>,
    pub members: HashSet<Member>,
    pub peers: HashSet<Peer>,
    /// Values: [`TunnelPeer`](crate::layout::TunnelPeer).
    pub tunnel_peers: HashMap<Peer, u32>,
    pub tunnel_keys: [u64; TunnelKey::COUNT],
    pub targets: HashMap<TunnelTarget, u32>,
    pub earlier_owners: HashMap<PoolSlot, EarlierOwners>,
    pub devices: HashMap<u32, Device>,
    /// By index: [`LinkAddresses`](crate::layout::LinkAddresses).
    pub link_addresses: HashMap<u32, u64>,
    pub epoch: Cell<u32>,
    /// Whether an agent follows the network.
    pub is_network_followed: bool,
    /// See [`NetworkTables::shares_hops`].
    pub shares_hops: bool,
    backend_hops: Vec<BackendHop>,
    /// By service port.
    pub source_ranges: HashMap<u32, Vec<IpNet>>,
    pub rejections: Cell<Rejections>,
    pub questions: Cell<Questions>,
    pub answers: RefCell<Answers>,
    /// In nanoseconds.
    pub since_boot: Cell<u64>,
    pub announced: HashMap<AnnouncedAddress, Announced>,
    pub claims: RefCell<HashMap<AnnouncedAddress, LastClaim>>,
    pub neighbour_events: RefCell<HashMap<NeighbourEvent, u64>>,
    pub bfd_sessions: HashMap<u32, BfdSession>,
    pub bfd_heard: RefCell<HashMap<u32, BfdHeard>>,
    scratch: PacketScratch,
    pub reserved_ports: HashSet<u16>,
    pub v4: HostFamily<V4>,
    pub v6: HostFamily<V6>,
    destinations: Vec<u64>,
    sources: Vec<u64>,
    pub reasons: RefCell<HashMap<Reason, u64>>,
    pub service_traffic: RefCell<HashMap<u32, Traffic>>,
    pub backend_traffic: RefCell<HashMap<u32, Traffic>>,
}

/// One family's tables.
pub struct HostFamily<F: Family> {
    pub frontends: HashMap<FrontendKey<F>, Frontend>,
    pub backends: HashMap<u32, Backend<F::Address>>,
    pub flows: Vec<FlowBucket<F>>,
    pub sockets: HostSockets<F>,
    pub replies: Vec<ReplyBucket>,
    crowded: Vec<AtomicLong>,
    crowded_lately: Vec<AtomicLong>,
    hints: Hints,
    pub untracked: RefCell<HashMap<ReplyKey<F>, Untracked<F>>>,
    draft: UnsafeCell<Draft<F>>,
    pub affinities: RefCell<HashMap<AffinityKey<F>, Affinity>>,
    pub fragments: RefCell<HashMap<FragmentKey<F>, Fragment>>,
}

/// Chooses a family's part by type.
pub trait OfFamily<F: Family> {
    fn family(&self) -> &HostFamily<F>;
    fn family_mut(&mut self) -> &mut HostFamily<F>;
}

impl OfFamily<V4> for HostTables {
    fn family(&self) -> &HostFamily<V4> {
        &self.v4
    }

    fn family_mut(&mut self) -> &mut HostFamily<V4> {
        &mut self.v4
    }
}

impl OfFamily<V6> for HostTables {
    fn family(&self) -> &HostFamily<V6> {
        &self.v6
    }

    fn family_mut(&mut self) -> &mut HostFamily<V6> {
        &mut self.v6
    }
}

impl HostTables {
    fn lease(&self) -> u32 {
        if self.is_network_followed { NetworkEpoch::lease(self.now(), self.shares_hops) } else { 0 }
    }

    /// Empty tables with `buckets` flow buckets per family, a power of two.
    pub fn new(buckets: u32, flow_seed: u64) -> Self {
        assert!(buckets.is_power_of_two());
        Self {
            settings: Settings::new(flow_seed, buckets),
            now: Cell::default(),
            pools: HashMap::new(),
            slots: HashMap::new(),
            members: HashSet::new(),
            devices: HashMap::new(),
            link_addresses: HashMap::new(),
            epoch: Cell::new(1),
            is_network_followed: true,
            shares_hops: false,
            backend_hops: (0..BACKEND_HOPS).map(|_| BackendHop::default()).collect(),
            source_ranges: HashMap::new(),
            rejections: Cell::default(),
            questions: Cell::default(),
            answers: RefCell::default(),
            since_boot: Cell::new(1),
            announced: HashMap::new(),
            claims: RefCell::default(),
            neighbour_events: RefCell::default(),
            bfd_sessions: HashMap::new(),
            bfd_heard: RefCell::default(),
            scratch: PacketScratch::default(),
            reserved_ports: HashSet::new(),
            peers: HashSet::new(),
            tunnel_peers: HashMap::new(),
            tunnel_keys: [0; TunnelKey::COUNT],
            targets: HashMap::new(),
            earlier_owners: HashMap::new(),
            v4: HostFamily::new(buckets),
            v6: HostFamily::new(buckets),
            destinations: vec![0; DESTINATION_WORDS as usize],
            sources: vec![0; SOURCE_WORDS as usize],
            reasons: RefCell::default(),
            service_traffic: RefCell::default(),
            backend_traffic: RefCell::default(),
        }
    }

    /// Whether flows begin in the rest of the flow table: IPv4's, and IPv6's.
    pub fn begin_in_rest(&self, rest: [bool; 2]) {
        for (hints, rest) in [&self.v4.hints, &self.v6.hints].into_iter().zip(rest) {
            hints.begins_in_rest.store(rest.into());
        }
    }

    pub fn set_destination(&mut self, bit: Bitmap, on: bool) {
        set(&mut self.destinations[bit.word as usize], bit.bit, on);
    }

    pub fn set_source(&mut self, bit: Bitmap, on: bool) {
        set(&mut self.sources[bit.word as usize], bit.bit, on);
    }
}

fn set(word: &mut u64, bit: u64, on: bool) {
    if on {
        *word |= bit;
    } else {
        *word &= !bit;
    }
}

impl<F: Family> HostFamily<F> {
    fn new(buckets: u32) -> Self {
        Self {
            frontends: HashMap::new(),
            backends: HashMap::new(),
            flows: (0..buckets).map(|_| FlowBucket::default()).collect(),
            sockets: HostSockets::default(),
            replies: (0..buckets * Settings::REPLY_BUCKETS)
                .map(|_| ReplyBucket::default())
                .collect(),
            crowded: (0..crowded_words(buckets)).map(|_| AtomicLong::default()).collect(),
            crowded_lately: (0..crowded_words(buckets)).map(|_| AtomicLong::default()).collect(),
            hints: Hints::default(),
            untracked: RefCell::default(),
            // SAFETY: plain numbers, for which zeros are valid.
            draft: UnsafeCell::new(unsafe { std::mem::zeroed() }),
            affinities: RefCell::default(),
            fragments: RefCell::default(),
        }
    }
}

impl Environment for HostTables {
    fn settings(&self) -> &Settings {
        &self.settings
    }

    fn now(&self) -> Ticks {
        self.now.get()
    }
}

impl PoolTables for HostTables {
    fn pool(&self, index: u32) -> Option<Pool> {
        // An array map has every index up to its end; the unused ones are empty.
        (index < capacity::POOLS).then(|| self.pools.get(&index).copied().unwrap_or_default())
    }

    fn slot(&self, index: u32) -> Option<u32> {
        let slot = || self.slots.get(&index).copied().unwrap_or(NO_BACKEND);
        (index < capacity::POOL_SLOTS).then(slot)
    }

    fn is_member(&self, member: Member) -> bool {
        self.members.contains(&member)
    }

    fn target(&self, target: TunnelTarget) -> Option<u32> {
        self.targets.get(&target).copied()
    }

    fn earlier_owner(&self, slot: PoolSlot, position: u32) -> Option<u32> {
        self.earlier_owners.get(&slot)?.backends.get(position as usize).copied()
    }
}

impl NetworkTables for HostTables {
    fn device(&self, index: u32) -> Option<Device> {
        self.devices.get(&index).copied()
    }

    fn link_address(&self, index: u32) -> u64 {
        self.link_addresses.get(&index).copied().unwrap_or_default()
    }

    fn network_epoch(&self) -> u32 {
        NetworkEpoch::valid_epoch(self.epoch.get(), self.lease(), self.now())
    }

    fn shares_hops(&self) -> bool {
        NetworkEpoch::shares_hops(self.lease(), self.now())
    }

    fn backend_hop(&self, backend: u32) -> Option<&BackendHop> {
        self.backend_hops.get(backend as usize)
    }

    fn is_peer(&self, peer: Peer) -> bool {
        self.peers.contains(&peer)
    }

    fn decapsulates(&self, node: Peer) -> bool {
        self.tunnel_peers.contains_key(&node)
    }

    fn returns(&self, node: Peer) -> bool {
        self.tunnel_peers.get(&node).is_some_and(|value| *value >= TunnelPeer::RETURNS)
    }

    fn tunnel_key(&self, which: TunnelKey) -> u64 {
        self.tunnel_keys[which as usize]
    }

    fn is_port_reserved(&self, port: u16) -> bool {
        self.reserved_ports.contains(&port)
    }
}

impl NeighbourTables for HostTables {
    fn since_boot(&self) -> u64 {
        self.since_boot.get()
    }

    fn announced(&self, at: &AnnouncedAddress) -> Option<Announced> {
        self.announced.get(at).copied()
    }

    fn set_claim(&self, at: &AnnouncedAddress, link_address: [u8; 6]) -> bool {
        let mut claims = self.claims.borrow_mut();
        let Some(claim) = claims.get_mut(at) else { return false };
        *claim = LastClaim::new(at, link_address, self.since_boot());
        true
    }
}

impl BfdTables for HostTables {
    fn bfd_session(&self, discriminator: u32) -> Option<BfdSession> {
        self.bfd_sessions.get(&discriminator).copied()
    }

    fn note_heard(&self, discriminator: u32) {
        let mut heard = self.bfd_heard.borrow_mut();
        let entry = heard.entry(discriminator).or_default();
        *entry = BfdHeard { time: self.since_boot(), answers: entry.answers + 1 };
    }
}

impl HoldsScratch for HostTables {
    fn scratch(&self) -> &PacketScratch {
        &self.scratch
    }
}

impl Counters for HostTables {
    fn may_reject(&self) -> bool {
        let mut rejections = self.rejections.get();
        let may = rejections.take(self.now());
        self.rejections.set(rejections);
        may
    }

    fn may_ask(&self) -> bool {
        let mut questions = self.questions.get();
        let may = questions.take(self.now());
        self.questions.set(questions);
        may
    }

    fn may_answer(&self, answer: Answer, source: u32) -> bool {
        self.answers.borrow_mut().take(answer, source, self.now())
    }

    fn count(&self, reason: Reason) {
        *self.reasons.borrow_mut().entry(reason).or_default() += 1;
    }

    fn count_packet(&self, service_port: u32, backend: u32, direction: Direction, bytes: u32) {
        let counters = [(&self.service_traffic, service_port), (&self.backend_traffic, backend)];
        for (map, index) in counters {
            map.borrow_mut().entry(index).or_default().add_packet(direction, bytes);
        }
    }

    fn count_new_flow(&self, service_port: u32, backend: u32) {
        let counters = [(&self.service_traffic, service_port), (&self.backend_traffic, backend)];
        for (map, index) in counters {
            map.borrow_mut().entry(index).or_default().new_flows += 1;
        }
    }

    fn count_neighbour(&self, event: NeighbourEvent) {
        *self.neighbour_events.borrow_mut().entry(event).or_default() += 1;
    }
}

impl<F: Family> FlowTables<F> for HostTables
where
    Self: OfFamily<F>,
{
    fn flow_mask(&self) -> u32 {
        self.family().flows.len() as u32 - 1
    }

    fn flow_bucket(&self, index: u32) -> Option<&FlowBucket<F>> {
        self.family().flows.get(index as usize)
    }

    fn reply_bucket(&self, index: u32) -> Option<&ReplyBucket> {
        self.family().replies.get(index as usize)
    }

    fn crowded(&self, word: u32) -> Option<&AtomicLong> {
        self.family().crowded.get(word as usize)
    }

    fn crowded_lately(&self, word: u32) -> Option<&AtomicLong> {
        self.family().crowded_lately.get(word as usize)
    }

    fn hints(&self) -> Option<&Hints> {
        Some(&self.family().hints)
    }
}

impl<F: PacketFamily> FamilyTables<F> for HostTables
where
    Self: OfFamily<F>,
{
    fn may_be_destination(&self, address: F::Address) -> bool {
        let bit = Bitmap::destination::<F>(address);
        self.destinations[bit.word as usize] & bit.bit != 0
    }

    fn may_be_source(&self, address: F::Address, port: u16, protocol: u8) -> bool {
        let bit = Bitmap::source::<F>(address, port, protocol);
        self.sources[bit.word as usize] & bit.bit != 0
    }

    fn frontend(&self, key: &FrontendKey<F>) -> Option<Frontend> {
        self.family().frontends.get(key).copied()
    }

    fn backend(&self, index: u32) -> Option<Backend<F::Address>> {
        // As with pools: unused entries exist, and are marked as unused.
        let backend = || self.family().backends.get(&index).copied().unwrap_or_default();
        (index < capacity::BACKENDS).then(backend)
    }

    fn draft(&self) -> Option<&mut Draft<F>> {
        // SAFETY: a packet is at one stage at a time, and none keeps a draft beyond itself.
        Some(unsafe { &mut *self.family().draft.get() })
    }

    fn call(&self, function: Function) -> u32 {
        datapath::execute_function::<F, _>(function, self)
    }

    fn affinity(&self, key: &AffinityKey<F>) -> Option<Affinity> {
        self.family().affinities.borrow().get(key).copied()
    }

    fn set_affinity(&self, key: &AffinityKey<F>, affinity: Affinity) {
        self.family().affinities.borrow_mut().insert(*key, affinity);
    }

    fn is_source_allowed(&self, service_port: u32, client: F::Address) -> bool {
        let client: IpAddr = client.into();
        let ranges = self.source_ranges.get(&service_port);
        ranges.into_iter().flatten().any(|range| range.contains(&client))
    }

    fn fragment(&self, key: &FragmentKey<F>) -> Option<Fragment> {
        self.family().fragments.borrow().get(key).copied()
    }

    fn set_fragment(&self, key: &FragmentKey<F>, fragment: Fragment) {
        self.family().fragments.borrow_mut().insert(*key, fragment);
    }

    fn untracked(&self, key: &ReplyKey<F>) -> Option<Untracked<F>> {
        self.family().untracked.borrow().get(key).copied()
    }

    fn set_untracked(&self, key: &ReplyKey<F>, untracked: &Untracked<F>) {
        self.family().untracked.borrow_mut().insert(*key, *untracked);
    }
}
