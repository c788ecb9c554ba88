//! The maps as the data plane's `Tables`.

use aya_ebpf::btf_maps::PerCpuArray;
use aya_ebpf::btf_maps::lpm_trie::Key;
use aya_ebpf::helpers::bpf_ktime_get_boot_ns;
use lb_common::atomic::AtomicLong;
use lb_common::conntrack::{Environment, FlowTables};
use lb_common::datapath::{
    Answer, BfdTables, Counters, Direction, Draft, FamilyTables, Function, Handover,
    NeighbourTables, NetworkTables, PoolTables, search_receiver,
};
use lb_common::family::{Address4, Address6, V4, V6};
use lb_common::layout::{
    Affinity, AffinityKey, Announced, AnnouncedAddress, Backend, BackendHop, BfdSession, Bitmap,
    Device, DeviceCacheEntry, FlowBucket, Fragment, FragmentKey, Frontend, FrontendKey,
    HISTORY_DEPTH, Hints, LastClaim, Member, NeighbourEvent, NetworkEpoch, Peer, Pool, PoolSlot,
    Reason, ReplyBucket, ReplyKey, SERVICE_PORT_BITS, Settings, SourceRange, Ticks, Traffic,
    TunnelKey, TunnelPeer, TunnelTarget, Untracked,
};
use lb_common::verifier::opaque;

use crate::clock;
use crate::events;
use crate::functions;
use crate::maps::{
    AFFINITIES4, AFFINITIES6, ANNOUNCED, BACKEND_HOPS, BACKEND_TRAFFIC, BACKENDS4, BACKENDS6,
    BFD_HEARD, BFD_SESSIONS, CLAIMS, CROWDED_LATELY4, CROWDED_LATELY6, CROWDED4, CROWDED6,
    DESTINATIONS, DEVICE_CACHE, DEVICES, DRAFTS4, DRAFTS6, EARLIER_OWNERS, FLOWS4, FLOWS6,
    FRAGMENTS4, FRAGMENTS6, FRONTEND_CACHE4, FRONTEND_CACHE6, FRONTENDS4, FRONTENDS6, HINTS,
    LINK_ADDRESSES, MEMBERS, NEIGHBOUR_EVENTS, NETWORK, PEERS, POOL_SLOTS, POOLS, REASONS,
    REPLIES4, REPLIES6, RESERVED_PORTS, SCRATCH, SERVICE_TRAFFIC, SETTINGS, SOURCE_RANGES4,
    SOURCE_RANGES6, SOURCES, TARGETS, TUNNEL_KEYS, TUNNEL_PEERS, UNTRACKED4, UNTRACKED6,
};

pub struct KernelTables;

impl Environment for KernelTables {
    #[inline(always)]
    fn settings(&self) -> &Settings {
        // The agent sets it after compilation, so the compiler must not assume its value.
        let address = opaque(&raw const SETTINGS as u64);
        // SAFETY: a live static that is not written while a program runs.
        unsafe { &*(address as *const Settings) }
    }

    #[inline(always)]
    fn now(&self) -> Ticks {
        clock::now()
    }
}

impl PoolTables for KernelTables {
    #[inline(always)]
    fn pool(&self, index: u32) -> Option<Pool> {
        let pool = POOLS.get_ptr(index)?;
        // SAFETY: the map has the entry, and `Pool` is aligned to 8 bytes. One load, because the
        // agent replaces both fields by one store.
        Some(Pool::from_word(unsafe { pool.cast::<u64>().read_volatile() }))
    }

    #[inline(always)]
    fn slot(&self, index: u32) -> Option<u32> {
        let pair = POOL_SLOTS.get_ptr(index / 2)?.cast::<u32>();
        // SAFETY: the map has the pair, and the agent writes whole aligned words.
        Some(unsafe { pair.add(index as usize % 2).read_volatile() })
    }

    #[inline(always)]
    fn is_member(&self, member: Member) -> bool {
        // SAFETY: no reference to the entry is kept.
        unsafe { MEMBERS.get(member) }.is_some()
    }

    #[inline(always)]
    fn target(&self, target: TunnelTarget) -> Option<u32> {
        // SAFETY: an entry is a whole aligned word.
        unsafe { TARGETS.get(target).copied() }
    }

    #[inline(always)]
    fn earlier_owner(&self, slot: PoolSlot, position: u32) -> Option<u32> {
        let owners = EARLIER_OWNERS.get_ptr(slot)?;
        let position = position as usize & (HISTORY_DEPTH - 1);
        // SAFETY: as with devices. Each backend is a whole aligned word.
        Some(unsafe { owners.cast::<u32>().add(position).read_volatile() })
    }
}

impl NetworkTables for KernelTables {
    #[inline(always)]
    fn device(&self, index: u32) -> Option<Device> {
        // Nearly every interface is in the cache: no call.
        let cached = DEVICE_CACHE.get(DeviceCacheEntry::index(index));
        if let Some(device) = cached.and_then(|entry| entry.read(&index.into())) {
            return Some(device);
        }
        // SAFETY: the map may reuse an element for another key while it is copied, if the agent removes and
        // adds interfaces in this instant. Any mixture of integers is a valid `Device`.
        unsafe { DEVICES.get(index).copied() }
    }

    #[inline(always)]
    fn link_address(&self, index: u32) -> u64 {
        // SAFETY: the map has the entry; the agent writes whole aligned words.
        LINK_ADDRESSES.get_ptr(index).map_or(0, |word| unsafe { word.read_volatile() })
    }

    #[inline(always)]
    fn takes(&self, device: u32, wanted: u64) -> bool {
        is_receiver(device, wanted) != 0
    }

    #[inline(always)]
    fn network_epoch(&self) -> u32 {
        let Some(network) = NETWORK.get_ptr(0) else { return 0 };
        // SAFETY: the map has the entry; the agent writes whole aligned words.
        let epoch = unsafe { (&raw const (*network).epoch).read_volatile() };
        NetworkEpoch::valid_epoch(epoch, network_lease(), self.now())
    }

    #[inline(always)]
    fn shares_hops(&self) -> bool {
        NetworkEpoch::shares_hops(network_lease(), self.now())
    }

    #[inline(always)]
    fn backend_hop(&self, backend: u32) -> Option<&BackendHop> {
        BACKEND_HOPS.get(backend)
    }

    #[inline(always)]
    fn is_peer(&self, peer: Peer) -> bool {
        // SAFETY: no reference to the entry is kept.
        unsafe { PEERS.get(peer) }.is_some()
    }

    #[inline(always)]
    fn decapsulates(&self, node: Peer) -> bool {
        // SAFETY: no reference to the entry is kept.
        unsafe { TUNNEL_PEERS.get(node) }.is_some()
    }

    #[inline(always)]
    fn returns(&self, node: Peer) -> bool {
        // SAFETY: an entry is a whole aligned word.
        unsafe { TUNNEL_PEERS.get(node).copied() }.is_some_and(|value| value >= TunnelPeer::RETURNS)
    }

    #[inline(always)]
    fn tunnel_key(&self, which: TunnelKey) -> u64 {
        let key = TUNNEL_KEYS.get_ptr(which as u32);
        // SAFETY: the map has the entry, and the agent writes whole aligned words.
        key.map_or(0, |key| unsafe { key.read_volatile() })
    }

    #[inline(always)]
    fn is_port_reserved(&self, port: u16) -> bool {
        let word = RESERVED_PORTS.get(u32::from(port) / 64);
        word.is_some_and(|word| word >> (port % 64) & 1 != 0)
    }
}

#[inline(always)]
fn network_lease() -> u32 {
    let network = NETWORK.get_ptr(0);
    // SAFETY: the map has the entry; the agent writes whole aligned words.
    network.map_or(0, |network| unsafe { (&raw const (*network).lease).read_volatile() })
}

impl NeighbourTables for KernelTables {
    #[inline(always)]
    fn since_boot(&self) -> u64 {
        // SAFETY: the helper takes nothing and only reads a clock.
        unsafe { bpf_ktime_get_boot_ns() }
    }

    #[inline(always)]
    fn announced(&self, at: &AnnouncedAddress) -> Option<Announced> {
        // SAFETY: as with devices.
        unsafe { ANNOUNCED.get(at).copied() }
    }

    #[inline(always)]
    fn set_claim(&self, at: &AnnouncedAddress, link_address: [u8; 6]) -> bool {
        let Some(claim) = CLAIMS.get_ptr_mut(at) else { return false };
        let LastClaim { time, claimant, seal } =
            LastClaim::new(at, link_address, self.since_boot());
        // SAFETY: as with devices. Each is one store of an aligned word. If the agent removes the
        // entry at this moment, the stores are lost, or go to an entry that reuses its memory: its
        // reader sees that by the seal.
        unsafe {
            (&raw mut (*claim).claimant).cast::<u64>().write_volatile(claimant.to_word());
            (&raw mut (*claim).time).write_volatile(time);
            (&raw mut (*claim).seal).write_volatile(seal);
        }
        true
    }
}

impl BfdTables for KernelTables {
    #[inline(always)]
    fn bfd_session(&self, discriminator: u32) -> Option<BfdSession> {
        // SAFETY: as with devices.
        unsafe { BFD_SESSIONS.get(discriminator).copied() }
    }

    #[inline(always)]
    fn note_heard(&self, discriminator: u32) {
        let Some(heard) = BFD_HEARD.get_ptr_mut(discriminator) else { return };
        // SAFETY: as with claims. The packets of one peer arrive one after another.
        unsafe {
            let answers = &raw mut (*heard).answers;
            answers.write_volatile(answers.read_volatile() + 1);
            (&raw mut (*heard).time).write_volatile(self.since_boot());
        }
    }
}

impl lb_common::datapath::Scratch for KernelTables {
    #[inline(always)]
    fn handover(&self) -> Option<&mut Handover> {
        own_entry(&SCRATCH, 0).map(|scratch| &mut scratch.handover)
    }
}

impl Counters for KernelTables {
    #[inline(always)]
    fn may_reject(&self) -> bool {
        let now = self.now();
        own_entry(&SCRATCH, 0).is_some_and(|scratch| scratch.rejections.take(now))
    }

    #[inline(always)]
    fn may_ask(&self) -> bool {
        let now = self.now();
        own_entry(&SCRATCH, 0).is_some_and(|scratch| scratch.questions.take(now))
    }

    #[inline(always)]
    fn may_answer(&self, answer: Answer, source: u32) -> bool {
        let now = self.now();
        own_entry(&SCRATCH, 0).is_some_and(|scratch| scratch.answers.take(answer, source, now))
    }

    #[inline(always)]
    fn count(&self, reason: Reason) {
        count(reason);
    }

    #[inline(always)]
    fn count_packet(&self, service_port: u32, backend: u32, direction: Direction, bytes: u32) {
        change_traffic(service_port, backend, |traffic| traffic.add_packet(direction, bytes));
    }

    #[inline(always)]
    fn count_new_flow(&self, service_port: u32, backend: u32) {
        change_traffic(service_port, backend, |traffic| traffic.new_flows += 1);
    }

    #[inline(always)]
    fn count_neighbour(&self, event: NeighbourEvent) {
        if let Some(counter) = own_entry(&NEIGHBOUR_EVENTS, event as u32) {
            *counter += 1;
        }
    }
}

/// Counts why a packet ends, and notes it for a listener.
#[inline(always)]
pub fn count(reason: Reason) {
    count_reason(reason as u32);
}

/// Not inlined: it is called on rare paths, and must not enlarge them. A global function, which the
/// verifier checks once for all callers, and which must return a number.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn count_reason(reason: u32) -> u32 {
    events::note(reason);
    if let Some(counter) = own_entry(&REASONS, reason) {
        *counter += 1;
    }
    0
}

/// A global function, which the verifier checks once for all callers.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn is_receiver(device: u32, wanted: u64) -> u32 {
    u32::from(search_receiver(&KernelTables, device, wanted))
}

/// This CPU's own copy of an entry.
#[inline(always)]
#[allow(clippy::mut_from_ref, reason = "the map is no owner of what it leads to")]
pub fn own_entry<T, const N: usize>(map: &PerCpuArray<T, N>, index: u32) -> Option<&mut T> {
    // SAFETY: no other CPU uses the copy, and programs of tc and XDP are not preempted; those at sockets
    // may be, and write only counters.
    map.get_ptr_mut(index).map(|entry| unsafe { &mut *entry })
}

#[inline(always)]
fn change_traffic(service_port: u32, backend: u32, change: impl Fn(&mut Traffic)) {
    if let Some(traffic) = own_entry(&SERVICE_TRAFFIC, service_port) {
        change(traffic);
    }
    if let Some(traffic) = own_entry(&BACKEND_TRAFFIC, backend) {
        change(traffic);
    }
}

/// The tables of both families. A macro, because statics cannot be selected by type.
macro_rules! family_tables {
    (
        family = $family:ty,
        address = $address:ty,
        frontends = $frontends:ident,
        frontend_cache = $frontend_cache:ident,
        backends = $backends:ident,
        flows = $flows:ident,
        flow_mask = $mask:ident,
        replies = $replies:ident,
        crowded = $crowded:ident,
        crowded_lately = $crowded_lately:ident,
        untracked = $untracked:ident,
        hints = $hints:literal,
        drafts = $drafts:ident,
        call = $functions:ident,
        affinities = $affinities:ident,
        source_ranges = $ranges:ident,
        fragments = $fragments:ident,
    ) => {
        impl FlowTables<$family> for KernelTables {
            #[inline(always)]
            fn flow_mask(&self) -> u32 {
                self.settings().$mask
            }

            #[inline(always)]
            fn flow_bucket(&self, index: u32) -> Option<&FlowBucket<$family>> {
                $flows.get(index)
            }

            #[inline(always)]
            fn reply_bucket(&self, index: u32) -> Option<&ReplyBucket> {
                $replies.get(index)
            }

            #[inline(always)]
            fn crowded(&self, word: u32) -> Option<&AtomicLong> {
                $crowded.get(word)
            }

            #[inline(always)]
            fn crowded_lately(&self, word: u32) -> Option<&AtomicLong> {
                $crowded_lately.get(word)
            }

            #[inline(always)]
            fn hints(&self) -> Option<&Hints> {
                HINTS.get($hints)
            }
        }

        impl FamilyTables<$family> for KernelTables {
            #[inline(always)]
            fn may_be_destination(&self, address: $address) -> bool {
                let bit = Bitmap::destination::<$family>(address);
                DESTINATIONS.get(bit.word).is_some_and(|word| word & bit.bit != 0)
            }

            #[inline(always)]
            fn may_be_source(&self, address: $address, port: u16, protocol: u8) -> bool {
                let bit = Bitmap::source::<$family>(address, port, protocol);
                SOURCES.get(bit.word).is_some_and(|word| word & bit.bit != 0)
            }

            #[inline(always)]
            fn frontend(&self, key: &FrontendKey<$family>) -> Option<Frontend> {
                // Most frontends are in the cache: no call.
                let cached = $frontend_cache.get(key.cache_index());
                if let Some(frontend) = cached.and_then(|entry| entry.read(key)) {
                    return Some(frontend);
                }
                // SAFETY: the entry may be replaced while it is copied, because a preallocated map
                // reuses elements at once. Whatever is read is a valid `Frontend`; a mixture of two
                // is detected by the entries to which it refers.
                unsafe { $frontends.get(key).copied() }
            }

            #[inline(always)]
            fn backend(&self, index: u32) -> Option<Backend<$address>> {
                $backends.get(index).copied()
            }

            #[inline(always)]
            fn draft(&self) -> Option<&mut Draft<$family>> {
                own_entry(&$drafts, 0)
            }

            #[inline(always)]
            fn call(&self, function: Function) -> u32 {
                functions::$functions(function)
            }

            #[inline(always)]
            fn affinity(&self, key: &AffinityKey<$family>) -> Option<Affinity> {
                // SAFETY: as with frontends; an entry that is being overwritten names another backend of the
                // same pool, or one that is not a member of it.
                unsafe { $affinities.get(key).copied() }
            }

            #[inline(always)]
            fn set_affinity(&self, key: &AffinityKey<$family>, affinity: Affinity) {
                // Most clients with an entry stay with their backend. To replace the entry would lock its
                // bucket.
                if let Some(entry) = $affinities.get_ptr_mut(key) {
                    // SAFETY: each field is a whole aligned word. The map may reuse the element for another
                    // client meanwhile, which is then remembered for longer, and this one is not.
                    unsafe {
                        let backend = (&raw const (*entry).backend).read_volatile();
                        let generation = (&raw const (*entry).generation).read_volatile();
                        if backend == affinity.backend && generation == affinity.generation {
                            (&raw mut (*entry).used).write_volatile(affinity.used);
                            return;
                        }
                    }
                }
                // It fails only if all entries are being replaced at once; then nothing is stored.
                let _ = $affinities.insert(key, &affinity, 0);
            }

            #[inline(always)]
            fn is_source_allowed(&self, service_port: u32, client: $address) -> bool {
                let range = SourceRange::<$family> {
                    service_port: service_port.to_be_bytes(),
                    octets: client.octets,
                };
                let bits = SERVICE_PORT_BITS + 8 * size_of::<$address>() as u32;
                $ranges.get(&Key::new(bits, range)).is_some()
            }

            #[inline(always)]
            fn fragment(&self, key: &FragmentKey<$family>) -> Option<Fragment> {
                // SAFETY: as with frontends; all fragments of a packet give the same value.
                unsafe { $fragments.get(key).copied() }
            }

            #[inline(always)]
            fn set_fragment(&self, key: &FragmentKey<$family>, fragment: Fragment) {
                // It fails only if all entries are being replaced at once. The other fragments are
                // then counted as fragments without a first one.
                let _ = $fragments.insert(key, &fragment, 0);
            }

            #[inline(always)]
            fn untracked(&self, key: &ReplyKey<$family>) -> Option<Untracked<$family>> {
                // SAFETY: as with frontends; an entry that is being overwritten names another client's
                // frontend, whose connection the next packet of this one's client restores.
                unsafe { $untracked.get(key).copied() }
            }

            #[inline(always)]
            fn set_untracked(&self, key: &ReplyKey<$family>, untracked: &Untracked<$family>) {
                // It fails only if all entries are being replaced at once; the next packet tries
                // again.
                let _ = $untracked.insert(key, untracked, 0);
            }
        }
    };
}

family_tables!(
    family = V4,
    address = Address4,
    frontends = FRONTENDS4,
    frontend_cache = FRONTEND_CACHE4,
    backends = BACKENDS4,
    flows = FLOWS4,
    flow_mask = flow_mask4,
    replies = REPLIES4,
    crowded = CROWDED4,
    crowded_lately = CROWDED_LATELY4,
    untracked = UNTRACKED4,
    hints = 0,
    drafts = DRAFTS4,
    call = call4,
    affinities = AFFINITIES4,
    source_ranges = SOURCE_RANGES4,
    fragments = FRAGMENTS4,
);
family_tables!(
    family = V6,
    address = Address6,
    frontends = FRONTENDS6,
    frontend_cache = FRONTEND_CACHE6,
    backends = BACKENDS6,
    flows = FLOWS6,
    flow_mask = flow_mask6,
    replies = REPLIES6,
    crowded = CROWDED6,
    crowded_lately = CROWDED_LATELY6,
    untracked = UNTRACKED6,
    hints = 1,
    drafts = DRAFTS6,
    call = call6,
    affinities = AFFINITIES6,
    source_ranges = SOURCE_RANGES6,
    fragments = FRAGMENTS6,
);
