//! The maps, with BTF: `bpftool map dump` shows the fields of their keys and values by name.
//!
//! Sizes are defaults; the agent may set others when it loads the object.

use aya_ebpf::bindings::BPF_F_MMAPABLE;
use aya_ebpf::btf_maps::{Array, HashMap, LruHashMap, PerCpuArray};
use aya_ebpf::macros::btf_map;
use lb_common::family::{Address4, Address6, V4, V6};
use lb_common::layout::capacity::{
    BACKENDS as MAX_BACKENDS, CONNECTED as MAX_CONNECTED, FLOW_BUCKETS, FRONTENDS as MAX_FRONTENDS,
    POOL_SLOTS as MAX_SLOTS, POOLS as MAX_POOLS, SERVICE_PORTS as MAX_SERVICE_PORTS,
    UNCONNECTED as MAX_UNCONNECTED,
};
use lb_common::layout::{
    Backend, DESTINATION_WORDS, FlowBucket, Frontend, FrontendKey, Host, Identity, Pool, Reason,
    SOURCE_WORDS, Settings, SocketEnd, SocketFlow, Traffic,
};

/// The agent writes these through its own address space, without a system call. Their memory
/// starts on a page, so buckets of whole cache lines stay aligned to them.
const SHARED: usize = BPF_F_MMAPABLE as usize;

/// For agents only; no program reads it.
#[btf_map]
pub static IDENTITY: Array<Identity, 1> = Array::new();

#[btf_map]
pub static FRONTENDS4: HashMap<FrontendKey<V4>, Frontend, { MAX_FRONTENDS as usize }> =
    HashMap::new();

#[btf_map]
pub static FRONTENDS6: HashMap<FrontendKey<V6>, Frontend, { MAX_FRONTENDS as usize }> =
    HashMap::new();

#[btf_map]
pub static POOLS: Array<Pool, { MAX_POOLS as usize }, SHARED> = Array::new();

#[btf_map]
pub static POOL_SLOTS: Array<u32, { MAX_SLOTS as usize }, SHARED> = Array::new();

#[btf_map]
pub static BACKENDS4: Array<Backend<Address4>, { MAX_BACKENDS as usize }> = Array::new();

#[btf_map]
pub static BACKENDS6: Array<Backend<Address6>, { MAX_BACKENDS as usize }> = Array::new();

#[btf_map]
pub static FLOWS4: Array<FlowBucket<V4>, { FLOW_BUCKETS as usize }, SHARED> = Array::new();

#[btf_map]
pub static FLOWS6: Array<FlowBucket<V6>, { FLOW_BUCKETS as usize }, SHARED> = Array::new();

#[btf_map]
pub static DESTINATIONS: Array<u64, { DESTINATION_WORDS as usize }, SHARED> = Array::new();

#[btf_map]
pub static SOURCES: Array<u64, { SOURCE_WORDS as usize }, SHARED> = Array::new();

#[btf_map]
pub static HOST: Array<Host, 1> = Array::new();

/// By cookie.
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

#[btf_map]
pub static REASONS: PerCpuArray<u64, { Reason::COUNT as usize }> = PerCpuArray::new();

#[btf_map]
pub static SERVICE_TRAFFIC: PerCpuArray<Traffic, { MAX_SERVICE_PORTS as usize }> =
    PerCpuArray::new();

#[btf_map]
pub static BACKEND_TRAFFIC: PerCpuArray<Traffic, { MAX_BACKENDS as usize }> = PerCpuArray::new();

/// Set by the agent before loading; constant to the verifier.
#[unsafe(no_mangle)]
pub static SETTINGS: Settings =
    Settings { flow_seed: 0, flow_mask4: FLOW_BUCKETS - 1, flow_mask6: FLOW_BUCKETS - 1 };
