//! A read-only view of the tables of a pinned data plane: a packet's writes go to copies, which
//! take precedence over the maps. Needs no agent.
//!
//! Entries are read one by one, by system calls, which do not count as use in LRU maps.

use std::cell::{Cell, UnsafeCell};
use std::hash::Hash;
use std::net::IpAddr;
use std::path::Path;

use anyhow::{Context, Result, anyhow, ensure};
use aya::Pod;
use aya::maps::lpm_trie::Key;
use aya::maps::{LpmTrie, Map, MapData, MapError};
use lb_common::atomic::{AtomicLong, AtomicWord};
use lb_common::conntrack::{Environment, FlowTables};
use lb_common::datapath::{
    BfdTables, Counters, Direction, Draft, FamilyTables, Function, NeighbourTables, NetworkTables,
    PoolTables, execute, frontend_at,
};
use lb_common::family::{Address4, Address6, Family, V4, V6};
use lb_common::host::{HoldsScratch, PacketScratch};
use lb_common::layout::{
    Affinity, AffinityKey, Announced, AnnouncedAddress, BUCKET_ENTRIES, Backend, BackendHop,
    BfdSession, Bitmap, Claim, Device, EarlierOwners, Event, FlowBucket, Fragment, FragmentKey,
    Frontend, FrontendKey, Hints, Identity, Member, NeighbourEvent, NetworkEpoch, Peer, Pool,
    PoolSlot, REPLY_BUCKET_ENTRIES, Reason, ReplyBucket, ReplyKey, SCHEMA, SERVICE_PORT_BITS,
    Settings, SlotPair, SourceRange, Ticks, TunnelKey, TunnelPeer, TunnelTarget, Untracked, map,
};

use super::overlay::{Copies, Elements, Entries, Overlaid, found};
use crate::kernel::{Layout, Plain, clock, clock_of_deadlines};
use crate::notation::ip_of_octets;

pub struct View {
    settings: Settings,
    now: Cell<Ticks>,
    pools: Elements<Plain<Pool>>,
    slots: Elements<Plain<SlotPair>>,
    members: Entries<Member, u32>,
    peers: Entries<Peer, u32>,
    targets: Entries<TunnelTarget, u32>,
    devices: Entries<u32, Plain<Device>>,
    network: Elements<Plain<NetworkEpoch>>,
    destinations: Elements<u64>,
    sources: Elements<u64>,
    v4: FamilyView<V4>,
    v6: FamilyView<V6>,
    scratch: PacketScratch,
    reserved_ports: Elements<u64>,
    tunnel_keys: Elements<u64>,
    /// Maps of an earlier agent may lack these.
    link_addresses: Option<Elements<u64>>,
    tunnel_peers: Option<Entries<Peer, u32>>,
    earlier_owners: Option<Entries<PoolSlot, Plain<EarlierOwners>>>,
    announced: Option<Entries<AnnouncedAddress, Plain<Announced>>>,
    bfd_sessions: Option<Entries<u32, Plain<BfdSession>>>,
    claims: Option<Entries<AnnouncedAddress, Plain<Claim>>>,
}

struct FamilyView<F: InMaps> {
    frontends: Entries<FrontendKey<F>, Plain<Frontend>>,
    backends: Elements<Plain<Backend<F::Address>>>,
    flows: Copies<FlowBucket<F>, F::FlowWords>,
    replies: Copies<ReplyBucket, [u64; REPLY_BUCKET_ENTRIES]>,
    crowded: Copies<AtomicLong, [u64; 1]>,
    hints: Hints,
    untracked: Overlaid<ReplyKey<F>, Untracked<F>>,
    affinities: Overlaid<AffinityKey<F>, Affinity>,
    fragments: Overlaid<FragmentKey<F>, Fragment>,
    source_ranges: LpmTrie<MapData, Plain<SourceRange<F>>, u32>,
    draft: UnsafeCell<Draft<F>>,
}

/// The maps of a family.
pub trait InMaps: Family {
    /// Words of a flow bucket's size.
    type FlowWords: Pod + AsRef<[u64]>;
    const NAMES: Names;
}

pub struct Names {
    frontends: &'static str,
    backends: &'static str,
    flows: &'static str,
    replies: &'static str,
    crowded: &'static str,
    untracked: &'static str,
    /// Its index in the map of both families.
    hints: u32,
    affinities: &'static str,
    fragments: &'static str,
    source_ranges: &'static str,
}

impl InMaps for V4 {
    type FlowWords = [u64; size_of::<FlowBucket<V4>>() / 8];
    const NAMES: Names = Names {
        frontends: map::FRONTENDS4,
        backends: map::BACKENDS4,
        flows: map::FLOWS4,
        replies: map::REPLIES4,
        crowded: map::CROWDED4,
        untracked: map::UNTRACKED4,
        hints: 0,
        affinities: map::AFFINITIES4,
        fragments: map::FRAGMENTS4,
        source_ranges: map::SOURCE_RANGES4,
    };
}

impl InMaps for V6 {
    type FlowWords = [u64; size_of::<FlowBucket<V6>>() / 8];
    const NAMES: Names = Names {
        frontends: map::FRONTENDS6,
        backends: map::BACKENDS6,
        flows: map::FLOWS6,
        replies: map::REPLIES6,
        crowded: map::CROWDED6,
        untracked: map::UNTRACKED6,
        hints: 1,
        affinities: map::AFFINITIES6,
        fragments: map::FRAGMENTS6,
        source_ranges: map::SOURCE_RANGES6,
    };
}

impl View {
    /// Opens the maps that are pinned in a directory.
    pub fn open(pin_path: &Path) -> Result<Self> {
        ensure!(
            pin_path.join(map::IDENTITY).exists(),
            "no data plane is pinned at {}.\nStart one with `millrace agent`, or say where it is \
             with --pin-path",
            pin_path.display()
        );
        let maps = Maps(pin_path);
        let identity: Elements<Plain<Identity>> = maps.elements(map::IDENTITY)?;
        let Plain(identity) = identity.get(0).context("the maps have no identity")?;
        ensure!(
            identity.schema == SCHEMA,
            "the maps at {} are of version {}, this program is of version {SCHEMA}.\n\
             Use the `millrace` of the agent that made them",
            pin_path.display(),
            identity.schema
        );
        let v4 = FamilyView::<V4>::open(&maps)?;
        let v6 = FamilyView::<V6>::open(&maps)?;
        // Settings such as SNAT ports and timeouts can't be derived from the sizes of the maps.
        let parameters: Elements<Plain<Settings>> = maps.elements(map::PARAMETERS)?;
        let Plain(settings) = parameters.get(0).context("the maps have no parameters")?;
        Ok(Self {
            settings,
            now: Cell::new(clock()?),
            pools: maps.elements(map::POOLS)?,
            slots: maps.elements(map::POOL_SLOTS)?,
            members: maps.entries(map::MEMBERS)?,
            peers: maps.entries(map::PEERS)?,
            targets: maps.entries(map::TARGETS)?,
            devices: maps.entries(map::DEVICES)?,
            link_addresses: maps.elements(map::LINK_ADDRESSES).ok(),
            network: maps.elements(map::NETWORK)?,
            destinations: maps.elements(map::DESTINATIONS)?,
            sources: maps.elements(map::SOURCES)?,
            v4,
            v6,
            scratch: PacketScratch::default(),
            reserved_ports: maps.elements(map::RESERVED_PORTS)?,
            tunnel_keys: maps.elements(map::TUNNEL_KEYS)?,
            tunnel_peers: maps.entries(map::TUNNEL_PEERS).ok(),
            earlier_owners: maps.entries(map::EARLIER_OWNERS).ok(),
            announced: maps.entries(map::ANNOUNCED).ok(),
            claims: maps.entries(map::CLAIMS).ok(),
            bfd_sessions: maps.entries(map::BFD_SESSIONS).ok(),
        })
    }

    /// The service port of a reported packet, if its destination is a frontend.
    pub fn service_port_of(&self, event: &Event) -> Option<u32> {
        let Event { destination_port: port, protocol, .. } = *event;
        let frontend = match ip_of_octets(event.destination) {
            IpAddr::V4(address) => frontend_at::<V4, _>(self, address.into(), port, protocol),
            IpAddr::V6(address) => frontend_at::<V6, _>(self, address.into(), port, protocol),
        };
        frontend.map(|frontend| frontend.service_port)
    }

    /// Advances the clock, so that the packet's accesses differ from earlier ones.
    pub fn tick(&self) {
        self.now.set(Ticks(self.now.get().0.wrapping_add(1)));
    }
}

/// The pin directory.
struct Maps<'a>(&'a Path);

impl Maps<'_> {
    fn open(&self, name: &str) -> Result<Map> {
        let path = self.0.join(name);
        let data = MapData::from_pin(&path)
            .with_context(|| format!("{} can't be opened", path.display()))?;
        Ok(Map::from_map_data(data)?)
    }

    fn elements<V: Pod>(&self, name: &str) -> Result<Elements<V>> {
        self.open(name)?.try_into().map(Elements).map_err(|error| unfit(name, error))
    }

    fn entries<K: Layout, V: Pod>(&self, name: &str) -> Result<Entries<K, V>> {
        self.open(name)?.try_into().map(Entries).map_err(|error| unfit(name, error))
    }

    fn overlaid<K: Layout + Eq + Hash, V: Layout>(&self, name: &str) -> Result<Overlaid<K, V>> {
        self.entries(name).map(Overlaid::new)
    }
}

fn unfit(name: &str, error: MapError) -> anyhow::Error {
    anyhow!(error).context(format!("the map {name} is not what it should be"))
}

impl<F: InMaps> FamilyView<F> {
    fn open(maps: &Maps<'_>) -> Result<Self> {
        let Names {
            frontends,
            backends,
            flows,
            replies,
            crowded,
            untracked,
            hints,
            affinities,
            fragments,
            source_ranges,
        } = F::NAMES;
        let all_hints: Elements<[u32; 2]> = maps.elements(map::HINTS)?;
        let [last_untracked, _] = all_hints.get(hints).unwrap_or_default();
        Ok(Self {
            frontends: maps.entries(frontends)?,
            backends: maps.elements(backends)?,
            flows: Copies::new(maps.elements(flows)?, BUCKET_ENTRIES),
            replies: Copies::new(maps.elements(replies)?, REPLY_BUCKET_ENTRIES),
            crowded: Copies::new(maps.elements(crowded)?, 1),
            hints: Hints { untracked: AtomicWord::new(last_untracked), reserved: 0 },
            untracked: maps.overlaid(untracked)?,
            affinities: maps.overlaid(affinities)?,
            fragments: maps.overlaid(fragments)?,
            source_ranges: maps
                .open(source_ranges)?
                .try_into()
                .map_err(|error| unfit(source_ranges, error))?,
            // SAFETY: it consists of plain numbers, for which zeros are valid.
            draft: UnsafeCell::new(unsafe { std::mem::zeroed() }),
        })
    }
}

impl Environment for View {
    fn settings(&self) -> &Settings {
        &self.settings
    }

    fn now(&self) -> Ticks {
        self.now.get()
    }
}

impl PoolTables for View {
    fn pool(&self, index: u32) -> Option<Pool> {
        self.pools.get(index).map(|Plain(pool)| pool)
    }

    fn slot(&self, index: u32) -> Option<u32> {
        let Plain(pair) = self.slots.get(index / 2)?;
        Some(pair.backends[index as usize % 2])
    }

    fn is_member(&self, member: Member) -> bool {
        self.members.get(&member).is_some()
    }

    fn target(&self, target: TunnelTarget) -> Option<u32> {
        self.targets.get(&target)
    }

    fn earlier_owner(&self, slot: PoolSlot, position: u32) -> Option<u32> {
        let Plain(owners) = self.earlier_owners.as_ref()?.get(&slot)?;
        owners.backends.get(position as usize).copied()
    }
}

impl NetworkTables for View {
    fn device(&self, index: u32) -> Option<Device> {
        self.devices.get(&index).map(|Plain(device)| device)
    }

    fn link_address(&self, index: u32) -> u64 {
        self.link_addresses.as_ref().and_then(|words| words.get(index)).unwrap_or(0)
    }

    fn network_epoch(&self) -> u32 {
        self.network.get(0).map_or(0, |Plain(network)| network.epoch)
    }

    /// Routes are looked up, for the story.
    fn shares_hops(&self) -> bool {
        false
    }

    fn backend_hop(&self, _: u32) -> Option<&BackendHop> {
        None
    }

    fn is_peer(&self, peer: Peer) -> bool {
        self.peers.get(&peer).is_some()
    }

    fn decapsulates(&self, node: Peer) -> bool {
        self.tunnel_peers.as_ref().is_some_and(|peers| peers.get(&node).is_some())
    }

    fn returns(&self, node: Peer) -> bool {
        let found = self.tunnel_peers.as_ref().and_then(|peers| peers.get(&node));
        found.is_some_and(|value| value >= TunnelPeer::RETURNS)
    }

    fn tunnel_key(&self, which: TunnelKey) -> u64 {
        self.tunnel_keys.get(which as u32).unwrap_or(0)
    }

    fn is_port_reserved(&self, port: u16) -> bool {
        let word = self.reserved_ports.get(u32::from(port) / 64);
        word.is_some_and(|word| word >> (port % 64) & 1 != 0)
    }
}

impl NeighbourTables for View {
    fn since_boot(&self) -> u64 {
        // Without the clock no announcement is valid.
        clock_of_deadlines().unwrap_or(u64::MAX)
    }

    fn announced(&self, at: &AnnouncedAddress) -> Option<Announced> {
        self.announced.as_ref()?.get(at).map(|Plain(announced)| announced)
    }

    // The claim of a traced packet is not noted.
    fn set_claim(&self, at: &AnnouncedAddress, _: [u8; 6]) -> bool {
        self.claims.as_ref().is_some_and(|claims| claims.get(at).is_some())
    }
}

impl BfdTables for View {
    fn bfd_session(&self, discriminator: u32) -> Option<BfdSession> {
        self.bfd_sessions.as_ref()?.get(&discriminator).map(|Plain(session)| session)
    }

    // A traced packet is not the peer's.
    fn note_heard(&self, _: u32) {}
}

impl HoldsScratch for View {
    fn scratch(&self) -> &PacketScratch {
        &self.scratch
    }
}

impl Counters for View {
    /// Each CPU has its own allowance, and the packet's CPU is unknown.
    fn may_reject(&self) -> bool {
        true
    }

    // Traced packets are not counted.
    fn count(&self, _: Reason) {}
    fn count_packet(&self, _: u32, _: u32, _: Direction, _: u32) {}
    fn count_new_flow(&self, _: u32, _: u32) {}
    fn count_neighbour(&self, _: NeighbourEvent) {}
}

/// Implements the accessors of both families.
macro_rules! family_tables {
    ($family:ty, $address:ty, $view:ident, $mask:ident) => {
        impl FlowTables<$family> for View {
            fn flow_mask(&self) -> u32 {
                self.settings.$mask
            }

            fn flow_bucket(&self, index: u32) -> Option<&FlowBucket<$family>> {
                self.$view.flows.get(index)
            }

            fn reply_bucket(&self, index: u32) -> Option<&ReplyBucket> {
                self.$view.replies.get(index)
            }

            fn crowded(&self, word: u32) -> Option<&AtomicLong> {
                self.$view.crowded.get(word)
            }
        }

        impl FamilyTables<$family> for View {
            fn may_be_destination(&self, address: $address) -> bool {
                let bit = Bitmap::destination::<$family>(address);
                self.destinations.get(bit.word).is_some_and(|word| word & bit.bit != 0)
            }

            fn may_be_source(&self, address: $address, port: u16, protocol: u8) -> bool {
                let bit = Bitmap::source::<$family>(address, port, protocol);
                self.sources.get(bit.word).is_some_and(|word| word & bit.bit != 0)
            }

            fn frontend(&self, key: &FrontendKey<$family>) -> Option<Frontend> {
                self.$view.frontends.get(key).map(|Plain(frontend)| frontend)
            }

            fn backend(&self, index: u32) -> Option<Backend<$address>> {
                self.$view.backends.get(index).map(|Plain(backend)| backend)
            }

            fn draft(&self) -> Option<&mut Draft<$family>> {
                // SAFETY: stages run one after the other, and none keeps the draft.
                Some(unsafe { &mut *self.$view.draft.get() })
            }

            fn call(&self, function: Function) -> u32 {
                execute::<$family, _>(function, self)
            }

            fn affinity(&self, key: &AffinityKey<$family>) -> Option<Affinity> {
                self.$view.affinities.get(key)
            }

            fn set_affinity(&self, key: &AffinityKey<$family>, affinity: Affinity) {
                self.$view.affinities.set(key, affinity);
            }

            fn is_source_allowed(&self, service_port: u32, client: $address) -> bool {
                let range = SourceRange::<$family> {
                    service_port: service_port.to_be_bytes(),
                    octets: client.octets,
                };
                let bits = SERVICE_PORT_BITS + 8 * size_of::<$address>() as u32;
                found(self.$view.source_ranges.get(&Key::new(bits, Plain(range)), 0)).is_some()
            }

            fn fragment(&self, key: &FragmentKey<$family>) -> Option<Fragment> {
                self.$view.fragments.get(key)
            }

            fn set_fragment(&self, key: &FragmentKey<$family>, fragment: Fragment) {
                self.$view.fragments.set(key, fragment);
            }

            fn hints(&self) -> Option<&Hints> {
                Some(&self.$view.hints)
            }

            fn untracked(&self, key: &ReplyKey<$family>) -> Option<Untracked<$family>> {
                self.$view.untracked.get(key)
            }

            fn set_untracked(&self, key: &ReplyKey<$family>, untracked: &Untracked<$family>) {
                self.$view.untracked.set(key, *untracked);
            }
        }
    };
}

family_tables!(V4, Address4, v4, flow_mask4);
family_tables!(V6, Address6, v6, flow_mask6);
