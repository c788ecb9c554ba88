//! A read-only view of the tables of a pinned data plane: a packet's writes go to copies, which
//! take precedence over the maps. Needs no agent.
//!
//! Entries are read one by one, by system calls, which do not count as use in LRU maps.

mod family;

use std::cell::Cell;
use std::hash::Hash;
use std::net::IpAddr;
use std::path::Path;

use anyhow::{Context, Result, anyhow};
use aya::Pod;
use aya::maps::{Map, MapData, MapError};
use lb_common::conntrack::Environment;
use lb_common::datapath::{
    Answer, BfdTables, Counters, Direction, NeighbourTables, NetworkTables, PoolTables, frontend_at,
};
use lb_common::family::{V4, V6};
use lb_common::host::{HoldsScratch, PacketScratch};
use lb_common::layout::{
    Announced, AnnouncedAddress, BackendHop, BfdSession, Device, EarlierOwners, LastClaim, Member,
    NeighbourEvent, NetworkEpoch, PacketEvent, Peer, Pool, PoolSlot, Reason, Settings, SlotPair,
    Ticks, TunnelKey, TunnelPeer, TunnelTarget, map,
};
use lb_kernel::{Layout, Plain, check_schema, clock_of_deadlines, read_clock};
use lb_rules::notation::ip_of_octets;

use super::overlay::{Elements, Entries, Overlaid};
use family::FamilyView;

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
    link_addresses: Elements<u64>,
    tunnel_peers: Entries<Peer, u32>,
    earlier_owners: Entries<PoolSlot, Plain<EarlierOwners>>,
    announced: Entries<AnnouncedAddress, Plain<Announced>>,
    bfd_sessions: Entries<u32, Plain<BfdSession>>,
    claims: Entries<AnnouncedAddress, Plain<LastClaim>>,
}
impl View {
    /// Opens the maps that are pinned in a directory.
    pub fn open(pin_path: &Path) -> Result<Self> {
        check_schema(pin_path)?;
        let maps = Maps(pin_path);
        let v4 = FamilyView::<V4>::open(&maps)?;
        let v6 = FamilyView::<V6>::open(&maps)?;
        // Settings such as SNAT ports and timeouts can't be derived from the sizes of the maps.
        let parameters: Elements<Plain<Settings>> = maps.elements(map::PARAMETERS)?;
        let Plain(settings) = parameters.get(0).context("the maps have no parameters")?;
        Ok(Self {
            settings,
            now: Cell::new(read_clock()?),
            pools: maps.elements(map::POOLS)?,
            slots: maps.elements(map::POOL_SLOTS)?,
            members: maps.entries(map::MEMBERS)?,
            peers: maps.entries(map::PEERS)?,
            targets: maps.entries(map::TARGETS)?,
            devices: maps.entries(map::DEVICES)?,
            link_addresses: maps.elements(map::LINK_ADDRESSES)?,
            network: maps.elements(map::NETWORK)?,
            destinations: maps.elements(map::DESTINATIONS)?,
            sources: maps.elements(map::SOURCES)?,
            v4,
            v6,
            scratch: PacketScratch::default(),
            reserved_ports: maps.elements(map::RESERVED_PORTS)?,
            tunnel_keys: maps.elements(map::TUNNEL_KEYS)?,
            tunnel_peers: maps.entries(map::TUNNEL_PEERS)?,
            earlier_owners: maps.entries(map::EARLIER_OWNERS)?,
            announced: maps.entries(map::ANNOUNCED)?,
            claims: maps.entries(map::CLAIMS)?,
            bfd_sessions: maps.entries(map::BFD_SESSIONS)?,
        })
    }

    /// The service port of a reported packet, if its destination is a frontend.
    pub fn service_port_of(&self, event: &PacketEvent) -> Option<u32> {
        let PacketEvent { destination_port: port, protocol, .. } = *event;
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
    anyhow!(error).context(format!("the map {name} is of another type or size than expected"))
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
        let Plain(owners) = self.earlier_owners.get(&slot)?;
        owners.backends.get(position as usize).copied()
    }
}

impl NetworkTables for View {
    fn device(&self, index: u32) -> Option<Device> {
        self.devices.get(&index).map(|Plain(device)| device)
    }

    fn link_address(&self, index: u32) -> u64 {
        self.link_addresses.get(index).unwrap_or(0)
    }

    fn network_epoch(&self) -> u32 {
        let now = self.now.get();
        self.network.get(0).map_or(0, |Plain(NetworkEpoch { epoch, lease })| {
            NetworkEpoch::valid_epoch(epoch, lease, now)
        })
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
        self.tunnel_peers.get(&node).is_some()
    }

    fn returns(&self, node: Peer) -> bool {
        self.tunnel_peers.get(&node).is_some_and(|value| value >= TunnelPeer::RETURNS)
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
        self.announced.get(at).map(|Plain(announced)| announced)
    }

    // The claim of a traced packet is not noted.
    fn set_claim(&self, at: &AnnouncedAddress, _: [u8; 6]) -> bool {
        self.claims.get(at).is_some()
    }
}

impl BfdTables for View {
    fn bfd_session(&self, discriminator: u32) -> Option<BfdSession> {
        self.bfd_sessions.get(&discriminator).map(|Plain(session)| session)
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

    fn may_ask(&self) -> bool {
        true
    }

    fn may_answer(&self, _: Answer, _: u32) -> bool {
        true
    }

    // Traced packets are not counted.
    fn count(&self, _: Reason) {}
    fn count_packet(&self, _: u32, _: u32, _: Direction, _: u32) {}
    fn count_new_flow(&self, _: u32, _: u32) {}
    fn count_neighbour(&self, _: NeighbourEvent) {}
}
