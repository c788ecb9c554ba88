//! CPUs that run the data plane on shared tables.

use std::cell::{Cell, UnsafeCell};
use std::collections::HashMap;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use fuzz::wire::{Ipv4End, Packet};
use lb_common::atomic::AtomicLong;
use lb_common::conntrack::{Environment, FlowTables, clear_stale};
use lb_common::datapath::{
    Answer, BfdTables, Counters, Draft, FamilyTables, Function, NeighbourTables, NetworkTables,
    PoolTables, Verdict, execute_function,
};
use lb_common::family::{Address4, Address6, V4, V6};
use lb_common::hash::{FlowHash, ReplyHash};
use lb_common::header::protocol::TCP;
use lb_common::host::{self, EntryPoint, Exit, HoldsScratch, HostFrame, PacketScratch, Routes};
use lb_common::layout::{
    Affinity, AffinityKey, Announced, AnnouncedAddress, Backend, BackendHop, BfdSession, Device,
    Direction, Flow, FlowBucket, FlowState, Fragment, FragmentKey, Frontend, FrontendKey,
    FrontendKind, Hints, Member, NeighbourEvent, Peer, Pool, PoolSlot, Reason, ReplyBucket,
    ReplyKey, Settings, Ticks, TunnelKey, TunnelTarget, Untracked,
};

const NODE: [u8; 4] = [10, 0, 0, 1];
const INTERFACE: u32 = 2;

/// The bucket of [`Node::nearly_full`] that has room.
const FREE_BUCKET: u32 = 7;

/// A Service with one backend, on this node or on another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    Local(u8),
    Remote(u8),
}

impl Service {
    const ALL: [Self; 4] = [Self::Local(0), Self::Local(1), Self::Remote(0), Self::Remote(1)];

    /// The index of its service port, its pool, and its backend.
    fn index(self) -> u32 {
        1 + Self::ALL.iter().position(|service| *service == self).expect("one of ALL") as u32
    }

    pub fn frontend(self) -> Ipv4End {
        Ipv4End::new([203, 0, 113, 10 + self.index() as u8], 80)
    }

    pub fn backend(self) -> Ipv4End {
        Ipv4End::new([10, 244, 0, self.index() as u8], 8080)
    }

    /// The last octet of the link-layer address to which its backend's packets are sent.
    pub fn next_hop(self) -> u8 {
        0xb0 + self.index() as u8
    }

    fn of_index(index: u32) -> Option<Self> {
        Self::ALL.get((index as usize).wrapping_sub(1)).copied()
    }
}

/// What all CPUs share: the flow table and the reply index.
pub struct Node {
    settings: Settings,
    flows: Vec<FlowBucket<V4>>,
    replies: Vec<ReplyBucket>,
    crowded: AtomicLong,
    crowded_lately: AtomicLong,
    hints: Hints,
    now: Ticks,
}

impl Node {
    /// Empty tables with `buckets` buckets, and a range of `snat_ports` SNAT ports.
    pub fn new(buckets: u32, snat_ports: u16) -> Arc<Self> {
        let settings = Settings { snat_port_count: snat_ports, ..Settings::new(7, buckets) };
        Arc::new(Self {
            settings,
            flows: (0..buckets).map(|_| FlowBucket::default()).collect(),
            replies: (0..=settings.reply_mask).map(|_| ReplyBucket::default()).collect(),
            crowded: AtomicLong::default(),
            crowded_lately: AtomicLong::default(),
            hints: Hints::default(),
            now: Ticks(1 << 28),
        })
    }

    /// The `number`th client whose flows prefer this entry.
    pub fn client(&self, (bucket, entry): (u32, usize), number: usize) -> Ipv4End {
        let ends = (40_000..u16::MAX).map(|port| Ipv4End::new([192, 0, 2, 1], port));
        let mut own = ends.filter(|end| {
            let secret = &self.settings.secret;
            let hash = FlowHash::of_client::<V4>(secret, end.address.into(), end.port, TCP);
            hash.buckets(self.settings.flow_mask4)[0] == bucket && hash.entry_number() == entry
        });
        own.nth(number).expect("there are many")
    }

    /// A table of four buckets, the first two of which are filled with flows that no new flow replaces.
    pub fn half_full(snat_ports: u16) -> Arc<Self> {
        let node = Self::new(4, snat_ports);
        node.flows[..2].iter().for_each(|bucket| bucket.fill(node.now));
        node
    }

    /// A client whose own buckets are the first two, and whose flow to the Service may also be in the
    /// third, where it prefers the first entry, and the fourth, which its further buckets may be, too.
    pub fn client_of_full_buckets(&self, service: Service) -> Ipv4End {
        let (secret, mask) = (&self.settings.secret, self.settings.flow_mask4);
        let ends = (40_000..u16::MAX).map(|port| Ipv4End::new([192, 0, 2, 1], port));
        let mut fitting = ends.filter(|end| {
            let (client, frontend) = ((end.address.into(), end.port), service.frontend());
            let own = FlowHash::of_client::<V4>(secret, client.0, client.1, TCP).buckets(mask);
            let frontend = (frontend.address.into(), frontend.port);
            let hash = FlowHash::of_frontend::<V4>(secret, client, frontend, TCP);
            (own, hash.buckets(mask)) == ([0, 1], [2, 3]) && hash.entry_number() == 0
        });
        fitting.next().expect("there are many")
    }

    /// A table of eight buckets, all but [`FREE_BUCKET`] filled with flows that no new flow replaces.
    pub fn nearly_full(snat_ports: u16) -> Arc<Self> {
        let node = Self::new(8, snat_ports);
        let full =
            node.flows.iter().enumerate().filter(|(index, _)| *index != FREE_BUCKET as usize);
        full.for_each(|(_, bucket)| bucket.fill(node.now));
        node
    }

    /// A client of whose six buckets for a Service only the last pair contains [`FREE_BUCKET`], where its flow prefers the
    /// first entry.
    pub fn client_of_further_bucket(&self, service: Service) -> Ipv4End {
        let (secret, mask) = (&self.settings.secret, self.settings.flow_mask4);
        let ends = (40_000..u16::MAX).map(|port| Ipv4End::new([192, 0, 2, 1], port));
        let mut fitting = ends.filter(|end| {
            let (client, frontend) = ((end.address.into(), end.port), service.frontend());
            let own = FlowHash::of_client::<V4>(secret, client.0, client.1, TCP);
            let frontend = (frontend.address.into(), frontend.port);
            let spread = FlowHash::of_frontend::<V4>(secret, client, frontend, TCP);
            let further = spread.further().expect("of client and frontend");
            let is_free = |hash: FlowHash| hash.buckets(mask).contains(&FREE_BUCKET);
            [own, spread, further].map(is_free) == [false, false, true]
                && further.entry_number() == 0
        });
        fitting.next().expect("there are many")
    }

    /// The buckets of the reply index for replies from a backend to an SNAT port, and their fingerprint.
    fn reply_buckets(&self, backend: Ipv4End, port: u16) -> ([&ReplyBucket; 2], u64) {
        let (secret, backend) = (&self.settings.secret, (backend.address.into(), backend.port));
        let hash = ReplyHash::of::<V4>(secret, backend, (NODE.into(), port), TCP);
        let [first, second] = hash.buckets(self.settings.reply_mask).map(|bucket| bucket as usize);
        ([&self.replies[first], &self.replies[second]], hash.fingerprint().into())
    }

    /// Adds the entry of an earlier flow, which is gone, to the second bucket of the reply index.
    pub fn leave_behind(&self, backend: Ipv4End, port: u16) {
        let ([_, second], fingerprint) = self.reply_buckets(backend, port);
        // No flow has generation 0, and all entries of the table are still free.
        second.entries[0].store(fingerprint << 36);
    }

    /// Moves the entry of a flow to the second bucket of the reply index, where it would be if the first had been full.
    pub fn displace(&self, backend: Ipv4End, port: u16) {
        let ([first, second], fingerprint) = self.reply_buckets(backend, port);
        let own = |slot: &&AtomicLong| slot.load() >> 36 == fingerprint;
        let slot = first.entries.iter().find(own).expect("it is in its first bucket");
        second.entries[0].store(slot.load());
        slot.store(0);
    }

    /// The agent decides that new flows begin in the rest of the table.
    pub fn begin_in_rest(&self) {
        self.hints.begins_in_rest.store(1);
    }

    /// Marks all buckets as crowded, as flows leave them that have ended.
    pub fn mark_crowded(&self) {
        self.crowded.store(u64::MAX);
    }

    /// The agent clears the marks that no flow needs; when it read the flows, none did.
    pub fn clear_crowded(&self) {
        clear_stale(&self.crowded, &self.crowded_lately, 0);
    }

    /// All flows in the table.
    pub fn flows(&self) -> Vec<(FlowState, Flow<V4>)> {
        let entries = self.flows.iter().flat_map(|bucket| bucket.entries());
        entries.map(|(state, _, flow)| (state, flow)).collect()
    }
}

/// What happened to a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Passed to the stack, or sent to the neighbour whose link-layer address has this last octet.
    Delivered(Packet, Option<u8>),
    Lost,
}

impl Fate {
    pub fn into_packet(self) -> Option<Packet> {
        match self {
            Self::Delivered(packet, _) => Some(packet),
            Self::Lost => None,
        }
    }
}

/// One CPU: its private state of the data plane.
pub struct Cpu {
    node: Arc<Node>,
    now: Cell<Ticks>,
    epoch: Cell<u32>,
    draft: UnsafeCell<Draft<V4>>,
    scratch: PacketScratch,
}

impl Cpu {
    pub fn new(node: Arc<Node>) -> Self {
        let now = node.now;
        Self {
            node,
            now: Cell::new(now),
            epoch: Cell::new(1),
            // SAFETY: plain numbers, for which zeros are valid.
            draft: UnsafeCell::new(unsafe { std::mem::zeroed() }),
            scratch: PacketScratch::default(),
        }
    }

    pub fn node(&self) -> Arc<Node> {
        Arc::clone(&self.node)
    }

    /// This CPU, some seconds later.
    pub fn later(self, seconds: u32) -> Self {
        self.now.set(Ticks(self.now.get().0 + Ticks::in_seconds(seconds)));
        self
    }

    /// This CPU after changes of the network.
    pub fn in_epoch(self, epoch: u32) -> Self {
        self.epoch.set(epoch);
        self
    }

    /// A client's packet arrives.
    pub fn request(&self, packet: Packet) -> Fate {
        self.run(EntryPoint::Ingress, packet)
    }

    /// A backend's packet arrives.
    pub fn reply(&self, service: Service, packet: Packet) -> Fate {
        let entry = match service {
            Service::Local(_) => EntryPoint::Egress,
            Service::Remote(_) => EntryPoint::Ingress,
        };
        self.run(entry, packet)
    }

    fn run(&self, entry: EntryPoint, packet: Packet) -> Fate {
        let mut bytes = Vec::new();
        packet.write(&mut bytes);
        let routes = Routes(Rc::new(routes(packet)));
        let mut frame = HostFrame { device: INTERFACE, routes, ..HostFrame::new(bytes) };
        let verdict = host::run(entry, &mut frame, self, |_, _| {});
        let sent_to = match verdict {
            Verdict::Pass | Verdict::Decline => None,
            Verdict::Transmit | Verdict::Redirect => Some(frame.bytes[5]),
            _ => return Fate::Lost,
        };
        Packet::read(&frame.bytes).map_or(Fate::Lost, |packet| Fate::Delivered(packet, sent_to))
    }
}

/// Each backend has a neighbour of its own; clients have another.
fn routes(packet: Packet) -> HashMap<IpAddr, Exit> {
    let exit = |last| Exit { device: INTERFACE, neighbour: Some([2, 0, 0, 0, 0, last]), mtu: 1500 };
    let to = |service: Service| (service.backend().address.into(), exit(service.next_hop()));
    let mut routes: HashMap<IpAddr, Exit> = Service::ALL.into_iter().map(to).collect();
    routes.insert(packet.source.address.into(), exit(0xc1));
    routes.insert(IpAddr::from([192, 0, 2, 1]), exit(0xc1));
    routes
}

impl Environment for Cpu {
    fn settings(&self) -> &Settings {
        &self.node.settings
    }

    fn now(&self) -> Ticks {
        self.now.get()
    }
}

/// Each pool has one slot, for the backend with the same index.
impl PoolTables for Cpu {
    fn pool(&self, index: u32) -> Option<Pool> {
        Some(Pool { offset: index, size: 1 })
    }

    fn slot(&self, index: u32) -> Option<u32> {
        Some(index)
    }

    fn is_member(&self, _: Member) -> bool {
        false
    }

    fn target(&self, _: TunnelTarget) -> Option<u32> {
        None
    }

    fn earlier_owner(&self, _: PoolSlot, _: u32) -> Option<u32> {
        None
    }
}

impl NetworkTables for Cpu {
    fn device(&self, _: u32) -> Option<Device> {
        let address4 = NODE.into();
        let flags = Device::TRANSMIT | Device::REDIRECT;
        Some(Device { address4, mtu: 1500, flags, ..Device::default() })
    }

    fn network_epoch(&self) -> u32 {
        self.epoch.get()
    }

    fn shares_hops(&self) -> bool {
        false
    }

    fn backend_hop(&self, _: u32) -> Option<&BackendHop> {
        None
    }

    fn is_peer(&self, _: Peer) -> bool {
        false
    }

    fn decapsulates(&self, _: Peer) -> bool {
        false
    }

    fn returns(&self, _: Peer) -> bool {
        false
    }

    fn tunnel_key(&self, _: TunnelKey) -> u64 {
        0
    }

    fn link_address(&self, _: u32) -> u64 {
        0
    }

    fn is_port_reserved(&self, _: u16) -> bool {
        false
    }
}

impl NeighbourTables for Cpu {
    fn since_boot(&self) -> u64 {
        0
    }

    fn announced(&self, _: &AnnouncedAddress) -> Option<Announced> {
        None
    }

    fn set_claim(&self, _: &AnnouncedAddress, _: [u8; 6]) -> bool {
        false
    }
}

impl BfdTables for Cpu {
    fn bfd_session(&self, _: u32) -> Option<BfdSession> {
        None
    }

    fn note_heard(&self, _: u32) {}
}

impl HoldsScratch for Cpu {
    fn scratch(&self) -> &PacketScratch {
        &self.scratch
    }
}

impl Counters for Cpu {
    fn count(&self, _: Reason) {}

    fn count_packet(&self, _: u32, _: u32, _: Direction, _: u32) {}

    fn count_neighbour(&self, _: NeighbourEvent) {}

    fn count_new_flow(&self, _: u32, _: u32) {}

    fn may_reject(&self) -> bool {
        true
    }

    fn may_ask(&self) -> bool {
        true
    }

    fn may_answer(&self, _: Answer, _: u32) -> bool {
        true
    }
}

impl FlowTables<V4> for Cpu {
    fn flow_mask(&self) -> u32 {
        self.node.settings.flow_mask4
    }

    fn flow_bucket(&self, index: u32) -> Option<&FlowBucket<V4>> {
        self.node.flows.get(index as usize)
    }

    fn reply_bucket(&self, index: u32) -> Option<&ReplyBucket> {
        self.node.replies.get(index as usize)
    }

    fn crowded(&self, _: u32) -> Option<&AtomicLong> {
        Some(&self.node.crowded)
    }

    fn crowded_lately(&self, _: u32) -> Option<&AtomicLong> {
        Some(&self.node.crowded_lately)
    }

    fn hints(&self) -> Option<&Hints> {
        Some(&self.node.hints)
    }
}

impl FamilyTables<V4> for Cpu {
    fn may_be_destination(&self, _: Address4) -> bool {
        true
    }

    fn may_be_source(&self, _: Address4, _: u16, _: u8) -> bool {
        true
    }

    fn frontend(&self, key: &FrontendKey<V4>) -> Option<Frontend> {
        let destination = Ipv4End { address: key.address.octets.into(), port: key.port };
        let service = Service::ALL.into_iter().find(|service| service.frontend() == destination)?;
        Some(Frontend {
            service_port: service.index(),
            cluster_pool: service.index(),
            local_pool: service.index(),
            populated: 1,
            ..Frontend::of_address(FrontendKind::LoadBalancer)
        })
    }

    fn backend(&self, index: u32) -> Option<Backend<Address4>> {
        let service = Service::of_index(index)?;
        let Ipv4End { address, port } = service.backend();
        let flags = match service {
            Service::Local(_) => Backend::<()>::LOCAL,
            Service::Remote(_) => 0,
        };
        let (address, node) = (address.into(), Address4::default());
        Some(Backend { address, node, generation: 1, port, protocol: TCP, flags })
    }

    fn draft(&self) -> Option<&mut Draft<V4>> {
        // SAFETY: as for `encapsulation`.
        Some(unsafe { &mut *self.draft.get() })
    }

    fn call(&self, function: Function) -> u32 {
        execute_function::<V4, _>(function, self)
    }

    fn affinity(&self, _: &AffinityKey<V4>) -> Option<Affinity> {
        None
    }

    fn set_affinity(&self, _: &AffinityKey<V4>, _: Affinity) {}

    fn is_source_allowed(&self, _: u32, _: Address4) -> bool {
        true
    }

    fn fragment(&self, _: &FragmentKey<V4>) -> Option<Fragment> {
        None
    }

    fn set_fragment(&self, _: &FragmentKey<V4>, _: Fragment) {}

    fn untracked(&self, _: &ReplyKey<V4>) -> Option<Untracked<V4>> {
        None
    }

    fn set_untracked(&self, _: &ReplyKey<V4>, _: &Untracked<V4>) {}
}

/// All packets are IPv4.
impl FlowTables<V6> for Cpu {
    fn flow_mask(&self) -> u32 {
        0
    }

    fn flow_bucket(&self, _: u32) -> Option<&FlowBucket<V6>> {
        None
    }

    fn reply_bucket(&self, _: u32) -> Option<&ReplyBucket> {
        None
    }

    fn crowded(&self, _: u32) -> Option<&AtomicLong> {
        None
    }

    fn crowded_lately(&self, _: u32) -> Option<&AtomicLong> {
        None
    }

    fn hints(&self) -> Option<&Hints> {
        None
    }
}

impl FamilyTables<V6> for Cpu {
    fn may_be_destination(&self, _: Address6) -> bool {
        false
    }

    fn may_be_source(&self, _: Address6, _: u16, _: u8) -> bool {
        false
    }

    fn frontend(&self, _: &FrontendKey<V6>) -> Option<Frontend> {
        None
    }

    fn backend(&self, _: u32) -> Option<Backend<Address6>> {
        None
    }

    fn draft(&self) -> Option<&mut Draft<V6>> {
        None
    }

    fn call(&self, function: Function) -> u32 {
        execute_function::<V6, _>(function, self)
    }

    fn affinity(&self, _: &AffinityKey<V6>) -> Option<Affinity> {
        None
    }

    fn set_affinity(&self, _: &AffinityKey<V6>, _: Affinity) {}

    fn is_source_allowed(&self, _: u32, _: Address6) -> bool {
        false
    }

    fn fragment(&self, _: &FragmentKey<V6>) -> Option<Fragment> {
        None
    }

    fn set_fragment(&self, _: &FragmentKey<V6>, _: Fragment) {}

    fn untracked(&self, _: &ReplyKey<V6>) -> Option<Untracked<V6>> {
        None
    }

    fn set_untracked(&self, _: &ReplyKey<V6>, _: &Untracked<V6>) {}
}
