//! Records all lookups and writes of the data plane, which go through here. Nothing is decided
//! here.

mod family;

use std::cell::RefCell;
use std::net::IpAddr;
use std::time::Duration;

use lb_common::conntrack::Environment;
use lb_common::datapath::{
    Answer, BfdTables, Counters, Direction, FamilyTables, Handover, NeighbourTables, NetworkTables,
    PoolTables, Scratch,
};
use lb_common::family::{Family, V4, V6};
use lb_common::layout::{
    Announced, AnnouncedAddress, BUCKET_ENTRIES, BackendHop, BfdSession, Device, Flow, FlowState,
    Member, NO_BACKEND, NeighbourEvent, Peer, Pool, PoolSlot, Reason, Settings, Ticks, TunnelKey,
    TunnelTarget,
};

use super::observation::{AnyFlow, Notes, Observation};

/// An entry of a bucket at the last comparison.
type EntryContent<F> = Option<(FlowState, Ticks, Flow<F>)>;

/// A bucket that the data plane has accessed.
struct WatchedBucket<F: Family> {
    index: u32,
    entries: [EntryContent<F>; BUCKET_ENTRIES],
}

/// Tables that record lookups. Changes of flows are detected by comparing their buckets, which the
/// data plane writes directly.
pub struct Observed<'a, T> {
    tables: &'a T,
    notes: &'a Notes,
    buckets4: RefCell<Vec<WatchedBucket<V4>>>,
    buckets6: RefCell<Vec<WatchedBucket<V6>>>,
}

impl<'a, T> Observed<'a, T>
where
    T: FamilyTables<V4> + FamilyTables<V6>,
{
    pub fn new(tables: &'a T, notes: &'a Notes) -> Self {
        Self { tables, notes, buckets4: RefCell::default(), buckets6: RefCell::default() }
    }

    pub fn note(&self, observation: Observation) {
        self.note_changes();
        self.notes.add(observation);
    }

    /// Records the changes of flows since the last call.
    pub(crate) fn note_changes(&self) {
        changes(self.tables, self.notes, &mut self.buckets4.borrow_mut());
        changes(self.tables, self.notes, &mut self.buckets6.borrow_mut());
    }
}

fn changes<F: Family, T: FamilyTables<F>>(
    tables: &T,
    notes: &Notes,
    watched: &mut [WatchedBucket<F>],
) {
    for WatchedBucket { index, entries } in watched {
        let Some(bucket) = tables.flow_bucket(*index) else { continue };
        for (number, before) in entries.iter_mut().enumerate() {
            let after = bucket.entry(number);
            let noted = match (*before, after) {
                (None, Some((state, _, flow))) => {
                    vec![Observation::Opened(AnyFlow::of(&flow, (state, state), 0.0))]
                }
                (Some((state, _, flow)), None) => {
                    vec![Observation::Released(AnyFlow::of(&flow, (state, state), 0.0))]
                }
                (Some((state, _, old)), Some((new, _, flow))) if old != flow => vec![
                    Observation::Replaced(AnyFlow::of(&old, (state, state), 0.0)),
                    Observation::Opened(AnyFlow::of(&flow, (new, new), 0.0)),
                ],
                (Some((was, seen, flow)), Some((state, now, _))) if was != state || seen != now => {
                    let idle = now.seconds_since(seen).max(0.0);
                    vec![Observation::Touched(AnyFlow::of(&flow, (was, state), idle))]
                }
                _ => Vec::new(),
            };
            noted.into_iter().for_each(|observation| notes.add(observation));
            *before = after;
        }
    }
}

impl<T> Environment for Observed<'_, T>
where
    T: FamilyTables<V4> + FamilyTables<V6>,
{
    fn settings(&self) -> &Settings {
        self.tables.settings()
    }

    fn now(&self) -> Ticks {
        self.tables.now()
    }
}

impl<T> PoolTables for Observed<'_, T>
where
    T: FamilyTables<V4> + FamilyTables<V6>,
{
    fn pool(&self, index: u32) -> Option<Pool> {
        let pool = self.tables.pool(index);
        self.note(Observation::Pool(index, pool));
        pool
    }

    fn slot(&self, index: u32) -> Option<u32> {
        let backend = self.tables.slot(index);
        self.note(Observation::Slot(index, backend));
        backend
    }

    fn is_member(&self, member: Member) -> bool {
        let is = self.tables.is_member(member);
        self.note(Observation::Member(member, is));
        is
    }

    fn target(&self, target: TunnelTarget) -> Option<u32> {
        let backend = self.tables.target(target);
        self.note(Observation::Target(target, backend));
        backend
    }

    fn earlier_owner(&self, slot: PoolSlot, position: u32) -> Option<u32> {
        let backend = self.tables.earlier_owner(slot, position);
        let backend = backend.filter(|index| *index != NO_BACKEND);
        self.note(Observation::EarlierOwner(slot, position, backend));
        backend
    }
}

impl<T> NetworkTables for Observed<'_, T>
where
    T: FamilyTables<V4> + FamilyTables<V6>,
{
    fn device(&self, index: u32) -> Option<Device> {
        let device = self.tables.device(index);
        self.note(Observation::Device(index, device));
        device
    }

    fn link_address(&self, index: u32) -> u64 {
        self.tables.link_address(index)
    }

    fn network_epoch(&self) -> u32 {
        self.tables.network_epoch()
    }

    fn shares_hops(&self) -> bool {
        self.tables.shares_hops()
    }

    fn backend_hop(&self, backend: u32) -> Option<&BackendHop> {
        self.tables.backend_hop(backend)
    }

    fn is_peer(&self, peer: Peer) -> bool {
        let is = self.tables.is_peer(peer);
        let address: IpAddr = peer.address.into();
        self.note(Observation::Peer(address.to_canonical(), is));
        is
    }

    fn decapsulates(&self, node: Peer) -> bool {
        let does = self.tables.decapsulates(node);
        let address: IpAddr = node.address.into();
        self.note(Observation::Decapsulates(address.to_canonical(), does));
        does
    }

    fn returns(&self, node: Peer) -> bool {
        let does = self.tables.returns(node);
        let address: IpAddr = node.address.into();
        self.note(Observation::Returns(address.to_canonical(), does));
        does
    }

    fn tunnel_key(&self, which: TunnelKey) -> u64 {
        self.tables.tunnel_key(which)
    }

    fn is_port_reserved(&self, port: u16) -> bool {
        self.tables.is_port_reserved(port)
    }
}

impl<T> BfdTables for Observed<'_, T>
where
    T: FamilyTables<V4> + FamilyTables<V6>,
{
    fn bfd_session(&self, discriminator: u32) -> Option<BfdSession> {
        self.tables.bfd_session(discriminator)
    }

    fn note_heard(&self, discriminator: u32) {
        self.tables.note_heard(discriminator);
    }
}

impl<T> NeighbourTables for Observed<'_, T>
where
    T: FamilyTables<V4> + FamilyTables<V6>,
{
    fn since_boot(&self) -> u64 {
        self.tables.since_boot()
    }

    fn announced(&self, at: &AnnouncedAddress) -> Option<Announced> {
        let announced = self.tables.announced(at);
        let remaining = announced.map(|entry| {
            Duration::from_nanos(entry.deadline.saturating_sub(self.tables.since_boot()))
        });
        self.note(Observation::Announced(*at, remaining));
        announced
    }

    fn set_claim(&self, at: &AnnouncedAddress, link_address: [u8; 6]) -> bool {
        let is_watched = self.tables.set_claim(at, link_address);
        if is_watched {
            self.note(Observation::Claimed(at.ip(), link_address));
        }
        is_watched
    }
}

impl<T> Scratch for Observed<'_, T>
where
    T: FamilyTables<V4> + FamilyTables<V6>,
{
    fn handover(&self) -> Option<&mut Handover> {
        self.tables.handover()
    }
}

impl<T> Counters for Observed<'_, T>
where
    T: FamilyTables<V4> + FamilyTables<V6>,
{
    fn may_reject(&self) -> bool {
        self.tables.may_reject()
    }

    fn may_ask(&self) -> bool {
        self.tables.may_ask()
    }

    fn may_answer(&self, answer: Answer, source: u32) -> bool {
        self.tables.may_answer(answer, source)
    }

    fn count(&self, reason: Reason) {
        self.note(Observation::Counted(reason));
        self.tables.count(reason);
    }

    fn count_packet(&self, service_port: u32, backend: u32, direction: Direction, bytes: u32) {
        self.note(Observation::Packet(service_port, backend, direction));
        self.tables.count_packet(service_port, backend, direction, bytes);
    }

    fn count_new_flow(&self, service_port: u32, backend: u32) {
        self.note(Observation::NewFlow(service_port, backend));
        self.tables.count_new_flow(service_port, backend);
    }

    fn count_neighbour(&self, event: NeighbourEvent) {
        self.note(Observation::Answered(event));
        self.tables.count_neighbour(event);
    }
}
