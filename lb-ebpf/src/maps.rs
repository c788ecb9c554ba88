//! The maps, with BTF: `bpftool map dump` shows the fields of their keys and values by name.
//!
//! The sizes are defaults; the agent may set others when it loads the object.

use aya_ebpf::bindings::{BPF_F_MMAPABLE, BPF_F_NO_PREALLOC};
use aya_ebpf::btf_maps::{Array, HashMap, LpmTrie, LruHashMap, PerCpuArray, ProgramArray, RingBuf};
use aya_ebpf::macros::btf_map;
use lb_common::atomic::AtomicLong;
use lb_common::conntrack::crowded_words;
use lb_common::datapath::{
    ARRIVE, Answers, Draft, Handover, Questions, REPORT, Rejections, Reports,
};
use lb_common::family::{Address4, Address6, V4, V6};
use lb_common::layout::capacity::{
    AFFINITIES as MAX_AFFINITIES, ANNOUNCED as MAX_ANNOUNCED, BACKENDS as MAX_BACKENDS,
    BFD_SESSIONS as MAX_BFD_SESSIONS, CONNECTED as MAX_CONNECTED, DEVICES as MAX_DEVICES,
    EARLIER_OWNERS as MAX_EARLIER_OWNERS, EVENTS as EVENT_BYTES, FLOW_BUCKETS,
    FRAGMENTS as MAX_FRAGMENTS, FRONTEND_CACHE as MAX_FRONTEND_CACHE, FRONTENDS as MAX_FRONTENDS,
    MEMBERS as MAX_MEMBERS, PEERS as MAX_PEERS, POOL_SLOTS as MAX_SLOTS, POOLS as MAX_POOLS,
    RESERVED_PORT_WORDS, SERVICE_PORTS as MAX_SERVICE_PORTS, SOURCE_RANGES as MAX_SOURCE_RANGES,
    TARGETS as MAX_TARGETS, UNCONNECTED as MAX_UNCONNECTED, UNTRACKED as MAX_UNTRACKED,
};
use lb_common::layout::{
    Affinity, AffinityKey, Announced, AnnouncedAddress, Backend, BackendHop, BfdHeard, BfdSession,
    BufferSum, CacheEntry, DESTINATION_WORDS, Device, DeviceCacheEntry, EarlierOwners, FlowBucket,
    Fragment, FragmentKey, Frontend, FrontendKey, Hints, Host, Identity, LastClaim, LinkAddresses,
    Listener, Member, NeighbourEvent, NetworkEpoch, PacketEvent, Peer, Pool, PoolSlot, Reason,
    ReplyBucket, ReplyKey, SOURCE_WORDS, ServicePortName, Settings, SlotPair, SocketEnd,
    SocketFlow, SourceRange, Traffic, TunnelKey, TunnelTarget, Untracked,
};

/// The agent maps these into its address space and writes them without system calls. Their memory
/// starts on a page boundary, so buckets are aligned to cache lines.
const SHARED: usize = BPF_F_MMAPABLE as usize;

const ON_DEMAND: usize = BPF_F_NO_PREALLOC as usize;

/// For the next agent; no program reads it.
#[btf_map]
pub static IDENTITY: Array<Identity, 1> = Array::new();

/// Settings of the loaded programs, for commands that read the maps; no program reads it.
#[btf_map]
pub static PARAMETERS: Array<Settings, 1> = Array::new();

#[btf_map]
pub static FRONTENDS4: HashMap<FrontendKey<V4>, Frontend, { MAX_FRONTENDS as usize }> =
    HashMap::new();

#[btf_map]
pub static FRONTENDS6: HashMap<FrontendKey<V6>, Frontend, { MAX_FRONTENDS as usize }> =
    HashMap::new();

#[btf_map]
pub static FRONTEND_CACHE4: Array<
    CacheEntry<FrontendKey<V4>, Frontend>,
    { MAX_FRONTEND_CACHE as usize },
    SHARED,
> = Array::new();

#[btf_map]
pub static FRONTEND_CACHE6: Array<
    CacheEntry<FrontendKey<V6>, Frontend>,
    { MAX_FRONTEND_CACHE as usize },
    SHARED,
> = Array::new();

#[btf_map]
pub static POOLS: Array<Pool, { MAX_POOLS as usize }, SHARED> = Array::new();

#[btf_map]
pub static POOL_SLOTS: Array<SlotPair, { MAX_SLOTS as usize / 2 }, SHARED> = Array::new();

#[btf_map]
pub static BACKENDS4: Array<Backend<Address4>, { MAX_BACKENDS as usize }, SHARED> = Array::new();

#[btf_map]
pub static BACKENDS6: Array<Backend<Address6>, { MAX_BACKENDS as usize }, SHARED> = Array::new();

/// Both address families use one index space.
#[btf_map]
pub static BACKEND_HOPS: Array<BackendHop, { MAX_BACKENDS as usize }, SHARED> = Array::new();

#[btf_map]
pub static FLOWS4: Array<FlowBucket<V4>, { FLOW_BUCKETS as usize }, SHARED> = Array::new();

#[btf_map]
pub static FLOWS6: Array<FlowBucket<V6>, { FLOW_BUCKETS as usize }, SHARED> = Array::new();

const REPLY_BUCKETS: usize = (FLOW_BUCKETS * Settings::REPLY_BUCKETS) as usize;

#[btf_map]
pub static REPLIES4: Array<ReplyBucket, REPLY_BUCKETS, SHARED> = Array::new();

#[btf_map]
pub static REPLIES6: Array<ReplyBucket, REPLY_BUCKETS, SHARED> = Array::new();

const CROWDED_WORDS: usize = crowded_words(FLOW_BUCKETS) as usize;

/// Bits for clients, as many as entries of flows.
#[btf_map]
pub static CROWDED4: Array<AtomicLong, CROWDED_WORDS, SHARED> = Array::new();

#[btf_map]
pub static CROWDED6: Array<AtomicLong, CROWDED_WORDS, SHARED> = Array::new();

/// The bits that were set, or found set, since the agent last began to clear those of no flow.
#[btf_map]
pub static CROWDED_LATELY4: Array<AtomicLong, CROWDED_WORDS, SHARED> = Array::new();

#[btf_map]
pub static CROWDED_LATELY6: Array<AtomicLong, CROWDED_WORDS, SHARED> = Array::new();

#[btf_map]
pub static UNTRACKED4: LruHashMap<ReplyKey<V4>, Untracked<V4>, { MAX_UNTRACKED as usize }> =
    LruHashMap::new();

#[btf_map]
pub static UNTRACKED6: LruHashMap<ReplyKey<V6>, Untracked<V6>, { MAX_UNTRACKED as usize }> =
    LruHashMap::new();

/// One entry of each family: IPv4's, then IPv6's.
#[btf_map]
pub static HINTS: Array<Hints, 2, SHARED> = Array::new();

/// A bit for each port that must not be used for SNAT.
#[btf_map]
pub static RESERVED_PORTS: Array<u64, { RESERVED_PORT_WORDS as usize }, SHARED> = Array::new();

/// By [`TunnelKey`].
#[btf_map]
pub static TUNNEL_KEYS: Array<u64, { TunnelKey::COUNT }, SHARED> = Array::new();

#[btf_map]
pub static AFFINITIES4: LruHashMap<AffinityKey<V4>, Affinity, { MAX_AFFINITIES as usize }> =
    LruHashMap::new();

#[btf_map]
pub static AFFINITIES6: LruHashMap<AffinityKey<V6>, Affinity, { MAX_AFFINITIES as usize }> =
    LruHashMap::new();

/// Most clusters have few of them, so entries are allocated when they are added.
#[btf_map]
pub static MEMBERS: HashMap<Member, u32, { MAX_MEMBERS as usize }, ON_DEMAND> = HashMap::new();

/// Weights other than the default; for commands and the next agent, no program reads it.
#[btf_map]
pub static WEIGHTS: HashMap<Member, u32, { MAX_MEMBERS as usize }, ON_DEMAND> = HashMap::new();

#[btf_map]
pub static SOURCE_RANGES4: LpmTrie<SourceRange<V4>, u32, { MAX_SOURCE_RANGES as usize }> =
    LpmTrie::new();

#[btf_map]
pub static SOURCE_RANGES6: LpmTrie<SourceRange<V6>, u32, { MAX_SOURCE_RANGES as usize }> =
    LpmTrie::new();

#[btf_map]
pub static FRAGMENTS4: LruHashMap<FragmentKey<V4>, Fragment, { MAX_FRAGMENTS as usize }> =
    LruHashMap::new();

#[btf_map]
pub static FRAGMENTS6: LruHashMap<FragmentKey<V6>, Fragment, { MAX_FRAGMENTS as usize }> =
    LruHashMap::new();

#[btf_map]
pub static DEVICES: HashMap<u32, Device, { MAX_DEVICES as usize }, ON_DEMAND> = HashMap::new();

#[btf_map]
pub static DEVICE_CACHE: Array<DeviceCacheEntry, { DeviceCacheEntry::COUNT as usize }, SHARED> =
    Array::new();

#[btf_map]
pub static LINK_ADDRESSES: Array<u64, { LinkAddresses::WORDS as usize }, SHARED> = Array::new();

#[btf_map]
pub static NETWORK: Array<NetworkEpoch, 1, SHARED> = Array::new();

#[btf_map]
pub static PEERS: HashMap<Peer, u32, { MAX_PEERS as usize }, ON_DEMAND> = HashMap::new();

/// The peers that a probe has shown to decapsulate.
#[btf_map]
pub static TUNNEL_PEERS: HashMap<Peer, u32, { MAX_PEERS as usize }, ON_DEMAND> = HashMap::new();

#[btf_map]
pub static TARGETS: HashMap<TunnelTarget, u32, { MAX_TARGETS as usize }, ON_DEMAND> =
    HashMap::new();

/// By slot of a pool, for packets in the middle of unknown connections.
#[btf_map]
pub static EARLIER_OWNERS: HashMap<
    PoolSlot,
    EarlierOwners,
    { MAX_EARLIER_OWNERS as usize },
    ON_DEMAND,
> = HashMap::new();

#[btf_map]
pub static ANNOUNCED: HashMap<AnnouncedAddress, Announced, { MAX_ANNOUNCED as usize }, ON_DEMAND> =
    HashMap::new();

#[btf_map]
pub static CLAIMS: HashMap<AnnouncedAddress, LastClaim, { MAX_ANNOUNCED as usize }, ON_DEMAND> =
    HashMap::new();

#[btf_map]
pub static BFD_SESSIONS: HashMap<u32, BfdSession, { MAX_BFD_SESSIONS as usize }, ON_DEMAND> =
    HashMap::new();

#[btf_map]
pub static BFD_HEARD: HashMap<u32, BfdHeard, { MAX_BFD_SESSIONS as usize }, ON_DEMAND> =
    HashMap::new();

#[btf_map]
pub static NEIGHBOUR_EVENTS: PerCpuArray<u64, { NeighbourEvent::COUNT as usize }> =
    PerCpuArray::new();

/// State that a packet keeps from stage to stage, and this CPU's rate limits.
#[repr(C)]
pub struct Scratch {
    pub handover: Handover,
    pub rejections: Rejections,
    /// The reason for which the packet is reported when it ends, plus one; 0: it is not reported.
    pub noted_reason: u32,
    /// The action that is returned then.
    pub action: u32,
    pub events: Reports,
    pub questions: Questions,
    pub answers: Answers,
}

#[btf_map]
pub static SCRATCH: PerCpuArray<Scratch, 1> = PerCpuArray::new();

#[btf_map]
pub static DRAFTS4: PerCpuArray<Draft<V4>, 1> = PerCpuArray::new();

#[btf_map]
pub static DRAFTS6: PerCpuArray<Draft<V6>, 1> = PerCpuArray::new();

/// The programs of the stages. A starting agent replaces them before the entry points.
#[btf_map]
pub static XDP_STAGES: ProgramArray<{ REPORT as usize + 1 }> = ProgramArray::new();

#[btf_map]
pub static TC_STAGES: ProgramArray<{ ARRIVE as usize + 1 }> = ProgramArray::new();

#[btf_map]
pub static DESTINATIONS: Array<u64, { DESTINATION_WORDS as usize }, SHARED> = Array::new();

#[btf_map]
pub static SOURCES: Array<u64, { SOURCE_WORDS as usize }, SHARED> = Array::new();

#[btf_map]
pub static HOST: Array<Host, 1> = Array::new();

/// By socket cookie.
#[btf_map]
pub static CONNECTED4: LruHashMap<u64, SocketFlow<V4>, { MAX_CONNECTED as usize }> =
    LruHashMap::new();

#[btf_map]
pub static CONNECTED6: LruHashMap<u64, SocketFlow<V6>, { MAX_CONNECTED as usize }> =
    LruHashMap::new();

#[btf_map]
pub static UNCONNECTED4: LruHashMap<SocketEnd<V4>, SocketFlow<V4>, { MAX_UNCONNECTED as usize }> =
    LruHashMap::new();

#[btf_map]
pub static UNCONNECTED6: LruHashMap<SocketEnd<V6>, SocketFlow<V6>, { MAX_UNCONNECTED as usize }> =
    LruHashMap::new();

/// By the index of the service port; for commands, no program reads it.
#[btf_map]
pub static SERVICE_NAMES: HashMap<u32, ServicePortName, { MAX_SERVICE_PORTS as usize }, ON_DEMAND> =
    HashMap::new();

#[btf_map]
pub static REASONS: PerCpuArray<u64, { Reason::COUNT as usize }> = PerCpuArray::new();

#[btf_map]
pub static SERVICE_TRAFFIC: PerCpuArray<Traffic, { MAX_SERVICE_PORTS as usize }> =
    PerCpuArray::new();

#[btf_map]
pub static BACKEND_TRAFFIC: PerCpuArray<Traffic, { MAX_BACKENDS as usize }> = PerCpuArray::new();

/// Written by `millrace drops`, with plain stores.
#[btf_map]
pub static LISTENER: Array<Listener, 1, SHARED> = Array::new();

#[btf_map]
pub static EVENTS: RingBuf<PacketEvent, { EVENT_BYTES as usize }> = RingBuf::new();

/// Number of packets that were not reported: too many at once, or the ring buffer was full.
#[btf_map]
pub static UNREPORTED: PerCpuArray<u64, 1> = PerCpuArray::new();

/// Set by the agent before loading; constant to the verifier.
#[unsafe(no_mangle)]
pub static SETTINGS: Settings = Settings::new(0, FLOW_BUCKETS);

/// Set by the agent before loading, like [`SETTINGS`].
#[unsafe(no_mangle)]
pub static BUFFER_SUM: BufferSum = BufferSum::UNKNOWN;
