//! The data plane on the host, with the tables that a plan writes.

use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;
use std::rc::Rc;

use anyhow::Result;
use lb_common::conntrack::state::is_over;
use lb_common::conntrack::track::STREAM_AFTER;
use lb_common::datapath::{Role, Verdict};
use lb_common::family::Family;
use lb_common::hash::FlowHash;
use lb_common::header::protocol;
use lb_common::host::{
    self, EntryPoint, Exit, HostFamily, HostFrame, HostSockets, HostTables, OfFamily, Routes,
};
use lb_common::layout::{
    Announced, AnnouncedAddress, Backend, BfdHeard, BfdSession, Bitmap, Device, Flow, FlowBucket,
    FlowState, Frontend, FrontendKey, LastClaim, LinkAddresses, NeighbourEvent, Peer, Pool, Reason,
    Settings, Side, SocketEnd, SocketFlow, Ticks, TunnelKey,
};
use lb_plan::{Datagrams, SideEntry, Step, Sweep, WriteFamily, WriteTables};

use super::surroundings::OUTSIDE;
use super::{Fate, Flows, Hook, PacketOutcome, World};
use crate::packets::{Mac, NODE_MAC};

/// The data plane on the host.
pub struct HostWorld {
    pub tables: HostTables,
    routes: Routes,
    /// The egress device of the last packet, if it was sent.
    left_by: u32,
    /// Bits of the prefilter that only flows need.
    lingering: BTreeSet<Bitmap>,
    /// Whether tc's devices have no link-layer headers.
    raw: bool,
}

const ETHERNET: usize = 14;

impl HostWorld {
    pub fn new(buckets: u32, flow_seed: u64) -> Self {
        let mut tables = HostTables::new(buckets, flow_seed);
        let device = Device { flags: Device::TRANSMIT, ..Device::default() };
        tables.devices.insert(OUTSIDE, device);
        Self {
            tables,
            routes: Routes::default(),
            left_by: 0,
            lingering: BTreeSet::new(),
            raw: false,
        }
    }

    /// Whether the flow of a client's port is in none of the buckets that are searched first: those of the
    /// client, and the first two of client and frontend.
    pub fn is_in_further_buckets(&self, port: u16) -> bool {
        let HostTables { v4, v6, settings, .. } = &self.tables;
        is_in_further_buckets(v4, settings, port) || is_in_further_buckets(v6, settings, port)
    }

    /// Removes the link-layer header of every packet before tc sees it, and restores it afterwards.
    pub fn raw(mut self) -> Self {
        self.raw = true;
        self
    }
}

impl HostWorld {
    /// The egress device of the last packet. In the kernel it can't be read, and follows from the
    /// link-layer addresses.
    pub fn left_by(&self) -> u32 {
        self.left_by
    }

    /// Whether the age of a datagram flow is close to that of a stream.
    pub fn has_nearly_a_stream(&self) -> bool {
        const MARGIN: u32 = Ticks::in_seconds(STREAM_AFTER) / 4;
        let limit = Ticks::in_seconds(STREAM_AFTER);
        let now = self.tables.now.get();
        let ages4 = self.tables.v4.flows.iter().flat_map(|bucket| bucket.datagram_ages(now));
        let ages6 = self.tables.v6.flows.iter().flat_map(|bucket| bucket.datagram_ages(now));
        ages4.chain(ages6).any(|age| age.abs_diff(limit) < MARGIN)
    }

    /// Takes over the flows' times and the clock of another world with the same entries.
    pub fn set_seen(&mut self, flows: &Flows, now: Ticks) {
        let seen = flows.v4.iter().map(|flow| flow.1);
        set_seen(&self.tables.v4, seen);
        let seen6 = flows.v6.iter().map(|flow| flow.1);
        set_seen(&self.tables.v6, seen6);
        self.tables.now.set(now);
    }
}

fn set_seen<F: Family>(family: &HostFamily<F>, seen: impl Iterator<Item = Ticks>) {
    let tags = family.flows.iter().flat_map(|bucket| &bucket.tags);
    let used = tags.filter(|tag| !tag.is_free());
    for (tag, seen) in used.zip(seen) {
        tag.seen.store(seen.0);
    }
}

fn grow_older<F: Family>(family: &mut HostFamily<F>, ticks: u32) {
    family.flows.iter().for_each(|bucket| bucket.grow_older(ticks));
    for affinity in family.affinities.get_mut().values_mut() {
        affinity.used.0 = affinity.used.0.wrapping_sub(ticks);
    }
    for fragment in family.fragments.get_mut().values_mut() {
        fragment.seen.0 = fragment.seen.0.wrapping_sub(ticks);
    }
}

fn destinations<F: Family>(flows: &[FlowBucket<F>]) -> HashSet<Bitmap> {
    let flows = flows.iter().flat_map(FlowBucket::entries);
    let living =
        flows.filter(|(state, _, flow)| !is_over(*state) && flow.protocol != protocol::UDP);
    living.map(|(_, _, flow)| Bitmap::destination::<F>(flow.frontend)).collect()
}

fn end_datagrams<F: Family>(flows: &[FlowBucket<F>], datagrams: &Datagrams) {
    for bucket in flows {
        bucket.end_datagrams(|flow| !datagrams.may_stay(&flow.into()));
    }
}

/// Datagrams that sockets send; replies are still recognized.
fn end_sent_datagrams<F: Family>(sockets: &HostSockets<F>, datagrams: &Datagrams) {
    let may_stay = |end: &SocketEnd<F>, flow: &SocketFlow<F>| {
        end.side == Side::Backend as u8 || datagrams.may_stay(&flow.into())
    };
    sockets.unconnected.borrow_mut().retain(|end, flow| may_stay(end, flow));
}

impl WriteTables for HostWorld {
    fn write_slots(&mut self, offset: u32, slots: &[u32]) -> Result<()> {
        self.tables.slots.extend((offset..).zip(slots.iter().copied()));
        Ok(())
    }

    fn swap_pool(&mut self, index: u32, pool: Pool) -> Result<()> {
        self.tables.pools.insert(index, pool);
        Ok(())
    }

    fn set_destination_bit(&mut self, bit: Bitmap) {
        self.lingering.remove(&bit);
        self.tables.set_destination(bit, true);
    }

    fn set_source_bit(&mut self, bit: Bitmap) {
        self.tables.set_source(bit, true);
    }

    fn clear_source_bit(&mut self, bit: Bitmap) {
        self.tables.set_source(bit, false);
    }

    fn set_side_entry(&mut self, side_entry: &SideEntry) -> Result<()> {
        let tables = &mut self.tables;
        match side_entry {
            SideEntry::Member(member) => drop(tables.members.insert(*member)),
            SideEntry::Target { target, backend } => drop(tables.targets.insert(*target, *backend)),
            SideEntry::Peer(address) => drop(tables.peers.insert(Peer::from(*address))),
            SideEntry::Earlier { slot, owners } => {
                tables.earlier_owners.insert(*slot, *owners);
            }
            SideEntry::SourceRange { service_port, range } => {
                tables.source_ranges.entry(*service_port).or_default().push(*range);
            }
            // The data plane does not read names and weights.
            SideEntry::Name { .. } | SideEntry::Weight { .. } => {}
        }
        Ok(())
    }

    fn remove_side_entry(&mut self, side_entry: &SideEntry) -> Result<()> {
        let tables = &mut self.tables;
        match side_entry {
            SideEntry::Member(member) => drop(tables.members.remove(member)),
            SideEntry::Target { target, .. } => drop(tables.targets.remove(target)),
            SideEntry::Peer(address) => drop(tables.peers.remove(&Peer::from(*address))),
            SideEntry::Earlier { slot, .. } => drop(tables.earlier_owners.remove(slot)),
            SideEntry::SourceRange { service_port, range } => {
                let ranges = tables.source_ranges.entry(*service_port).or_default();
                ranges.retain(|found| found != range);
            }
            SideEntry::Name { .. } | SideEntry::Weight { .. } => {}
        }
        Ok(())
    }

    fn sweep_flows(&mut self, sweep: &Sweep) {
        let tables = &mut self.tables;
        end_datagrams(&tables.v4.flows, &sweep.datagrams);
        end_datagrams(&tables.v6.flows, &sweep.datagrams);
        end_sent_datagrams(&tables.v4.sockets, &sweep.datagrams);
        end_sent_datagrams(&tables.v6.sockets, &sweep.datagrams);
        self.lingering.extend(&sweep.bits);
        let mut needed = destinations(&tables.v4.flows);
        needed.extend(destinations(&tables.v6.flows));
        for bit in self.lingering.extract_if(.., |bit| !needed.contains(bit)) {
            tables.set_destination(bit, false);
        }
    }

    // Traffic is not counted on the host.
    fn reset_service_traffic(&mut self, _: u32) -> Result<()> {
        Ok(())
    }

    fn reset_backend_traffic(&mut self, _: u32) -> Result<()> {
        Ok(())
    }
}

impl<F: Family> WriteFamily<F> for HostWorld
where
    HostTables: OfFamily<F>,
{
    fn set_backend(&mut self, index: u32, entry: Backend<F::Address>) -> Result<()> {
        self.tables.family_mut().backends.insert(index, entry);
        Ok(())
    }

    fn retire_backend(&mut self, index: u32, _: Backend<F::Address>) -> Result<()> {
        self.tables.family_mut().backends.remove(&index);
        Ok(())
    }

    fn set_frontend(&mut self, key: FrontendKey<F>, value: Frontend) -> Result<()> {
        self.tables.family_mut().frontends.insert(key, value);
        Ok(())
    }

    fn remove_frontend(&mut self, key: FrontendKey<F>) -> Result<()> {
        self.tables.family_mut().frontends.remove(&key);
        Ok(())
    }
}

impl World for HostWorld {
    fn apply(&mut self, step: &Step) {
        step.execute(self).expect("tables on the host have room");
    }

    fn set_device(&mut self, index: u32, device: &lb_network::Device) {
        self.tables.devices.insert(index, device.into());
        let bucket = (LinkAddresses::bucket(index)..).take(LinkAddresses::SLOTS as usize);
        let macs: Vec<_> = [device.mac].into_iter().chain(device.macs_above.clone()).collect();
        for (number, slot) in bucket.enumerate() {
            let mac = macs.get(number).filter(|_| macs.len() <= LinkAddresses::SLOTS as usize);
            let word = mac.map_or(0, |mac| LinkAddresses::word(index, *mac));
            self.tables.link_addresses.insert(slot, word);
        }
    }

    fn set_exit(&mut self, to: IpAddr, exit: Option<&Exit>) {
        let routes = Rc::make_mut(&mut self.routes.0);
        match exit {
            Some(exit) => routes.insert(to, *exit),
            None => routes.remove(&to),
        };
    }

    fn set_tunnel_keys(&mut self, keys: [u64; TunnelKey::COUNT]) {
        self.tables.tunnel_keys = keys;
    }

    fn set_tunnel_peer(&mut self, node: IpAddr, value: u32) {
        self.tables.tunnel_peers.insert(node.into(), value);
    }

    fn announce(&mut self, address: IpAddr, expired: bool) {
        let deadline = if expired { 1 } else { u64::MAX };
        let entry = Announced { deadline, epoch: 1, flags: 0 };
        self.tables.announced.insert(AnnouncedAddress::new(OUTSIDE, address), entry);
    }

    fn watch(&mut self, address: IpAddr) {
        let claims = self.tables.claims.get_mut();
        claims.insert(AnnouncedAddress::new(OUTSIDE, address), LastClaim::default());
    }

    fn claimant(&self, address: IpAddr) -> Option<Mac> {
        let claim =
            self.tables.claims.borrow().get(&AnnouncedAddress::new(OUTSIDE, address)).copied();
        claim.filter(|claim| claim.time != 0).map(|claim| Mac(claim.claimant.link_address))
    }

    fn set_bfd_session(&mut self, discriminator: u32, session: &BfdSession) {
        self.tables.bfd_sessions.insert(discriminator, *session);
    }

    fn bfd_heard(&self, discriminator: u32) -> BfdHeard {
        self.tables.bfd_heard.borrow().get(&discriminator).copied().unwrap_or_default()
    }

    fn share_hops(&mut self, shared: bool) {
        if !self.tables.is_network_followed {
            self.tables.is_network_followed = true;
            self.next_epoch();
        }
        self.tables.shares_hops = shared;
    }

    fn end_epoch_lease(&mut self) {
        self.tables.is_network_followed = false;
    }

    fn begin_in_rest(&mut self, rest: bool) {
        self.tables.begin_in_rest([rest; 2]);
    }

    fn next_epoch(&mut self) {
        self.tables.epoch.set(self.tables.epoch.get() + 1);
    }

    fn grow_older(&mut self, ticks: u32) {
        grow_older(&mut self.tables.v4, ticks);
        grow_older(&mut self.tables.v6, ticks);
    }

    fn run_segments(&mut self, hook: Hook, frame: &[u8], segment: u32) -> PacketOutcome {
        // Advance the clock, so that flows have different times.
        let now = self.tables.now.get();
        self.tables.now.set(Ticks(now.0 + 1));
        let raw = self.raw && hook != Hook::Forward && is_plain_ip(frame);
        let link_header = if raw { &frame[..ETHERNET] } else { &[] };
        let mut frame = HostFrame::new(frame[link_header.len()..].to_vec());
        frame.raw = raw;
        frame.device = OUTSIDE;
        frame.routes = self.routes.clone();
        frame.resolves = hook != Hook::Forward;
        // As the kernel compares it with the interface's address.
        frame.received = frame.resolves && frame.bytes.starts_with(&NODE_MAC.0);
        frame.segment = segment;
        frame.sent_here = hook == Hook::Process;
        if hook == Hook::Workload {
            frame.role = Role::Workload;
        }
        let entry = match hook {
            Hook::Reverse | Hook::Process => EntryPoint::Egress,
            Hook::AfterXdp => EntryPoint::AfterXdp,
            Hook::Forward | Hook::Stack | Hook::Workload => EntryPoint::Ingress,
        };
        let verdict = host::run(entry, &mut frame, &self.tables, |_, _| ());
        let fate = match verdict {
            Verdict::Defer | Verdict::Yield if !frame.resolves => Fate::Deferred,
            Verdict::Pass | Verdict::Decline | Verdict::Defer | Verdict::Yield => Fate::Passed,
            Verdict::Transmit if !frame.resolves => Fate::Transmitted,
            Verdict::Transmit | Verdict::Redirect | Verdict::Resolve => Fate::Sent,
            Verdict::Drop | Verdict::Next(_) => Fate::Dropped,
        };
        self.left_by = frame.left_by;
        // Redirected packets have a header for the egress device.
        let has_header = matches!(verdict, Verdict::Redirect | Verdict::Resolve);
        let missing = if has_header { &[] } else { link_header };
        PacketOutcome { fate, bytes: [missing, &frame.bytes].concat() }
    }

    fn flows(&self) -> Flows {
        Flows { v4: flows(&self.tables.v4), v6: flows(&self.tables.v6) }
    }

    fn neighbour_events(&self) -> Vec<(NeighbourEvent, u64)> {
        let events = self.tables.neighbour_events.borrow();
        let count = |event| (event, events.get(&event).copied().unwrap_or_default());
        NeighbourEvent::ALL.into_iter().map(count).collect()
    }

    fn reasons(&self) -> Vec<(Reason, u64)> {
        let reasons = self.tables.reasons.borrow();
        let count = |reason| (reason, reasons.get(&reason).copied().unwrap_or_default());
        Reason::ALL.into_iter().map(count).collect()
    }
}

/// Whether a frame is an IP packet behind an Ethernet header without VLAN tags.
fn is_plain_ip(frame: &[u8]) -> bool {
    let version = frame.get(ETHERNET).map(|byte| byte >> 4);
    match frame.get(ETHERNET - 2..ETHERNET) {
        Some([0x08, 0x00]) => version == Some(4),
        Some([0x86, 0xdd]) => version == Some(6),
        _ => false,
    }
}

fn is_in_further_buckets<F: Family>(
    family: &HostFamily<F>,
    settings: &Settings,
    port: u16,
) -> bool {
    let mask = family.flows.len() as u32 - 1;
    (0..).zip(&family.flows).any(|(index, bucket)| {
        bucket.entries().filter(|(_, _, flow)| flow.client_port == port).any(|(_, _, flow)| {
            let client = (flow.client, flow.client_port);
            let frontend = (flow.frontend, flow.frontend_port);
            let (secret, protocol) = (&settings.secret, flow.protocol);
            let own = FlowHash::of_client::<F>(secret, client.0, client.1, protocol);
            let spread = FlowHash::of_frontend::<F>(secret, client, frontend, protocol);
            ![own, spread].iter().any(|hash| hash.buckets(mask).contains(&index))
        })
    })
}

fn flows<F: Family>(family: &HostFamily<F>) -> Vec<(FlowState, Ticks, Flow<F>)> {
    family.flows.iter().flat_map(|bucket| bucket.entries()).collect()
}
