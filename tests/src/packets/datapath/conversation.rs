//! Sequences of packets, and what happens between them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use lb_common::datapath::NetworkTables;
use lb_common::host::{Exit, HostTables};
use lb_common::layout::{BfdSession, NeighbourEvent, Reason, Ticks, TunnelKey, TunnelPeer};
use lb_inspect::trace::{self, Trace};
use lb_kernel::read_clock;
use lb_network::Device;
use lb_plan::{Change, Planner, Step};

use super::processed::Processed;
use super::surroundings;
use super::worlds::BUCKETS;
use super::{Borrowed, Fate, Flows, Hook, HostWorld, KernelWorld, PacketOutcome, Service, World};
use crate::packets::{Endpoint, Mac, Packet, dissect, explain_difference};

const SEED: u64 = 0x5eed;

pub struct Conversation {
    /// Assertions are about its results.
    host: HostWorld,
    /// Its results must be the same.
    kernel: Option<Borrowed>,
    planner: Planner,
    packets: usize,
    /// Whether each packet is traced before it runs in the kernel.
    traced: bool,
}

impl Conversation {
    pub fn on_host() -> Self {
        Self::between(HostWorld::new(BUCKETS, SEED), None)
    }

    /// tc sees packets without a link-layer header.
    pub fn on_host_without_link_layer() -> Self {
        Self::between(HostWorld::new(BUCKETS, SEED).raw(), None)
    }

    /// Another node, whose flow table has its own seed.
    pub fn on_host_with_seed(seed: u64) -> Self {
        Self::between(HostWorld::new(BUCKETS, seed), None)
    }

    pub fn on_host_and_in_kernel() -> Result<Self> {
        let kernel = Borrowed::new()?;
        let host = HostWorld::new(BUCKETS, kernel.data_plane.flow_seed());
        // The first flows must not look old when the host takes over the kernel's clock.
        host.tables.now.set(read_clock()?);
        Ok(Self::between(host, Some(kernel)))
    }

    /// Traces each packet, too: the trace must agree with the kernel, and must not change anything.
    pub fn traced() -> Result<Self> {
        Ok(Self { traced: true, ..Self::on_host_and_in_kernel()? })
    }

    fn between(host: HostWorld, kernel: Option<Borrowed>) -> Self {
        Self {
            host,
            kernel,
            planner: Planner::new().keeping_history(3600),
            packets: 0,
            traced: false,
        }
    }

    /// The host's tables, for entries that no plan writes. With a kernel the two would differ.
    pub fn host_tables(&mut self) -> &mut HostTables {
        assert!(self.kernel.is_none(), "the kernel's tables are not these");
        &mut self.host.tables
    }

    /// The kernel's side, if there is one.
    pub fn kernel(&mut self) -> Option<&mut KernelWorld> {
        self.kernel.as_deref_mut()
    }

    /// Adds a service port, or changes it.
    pub fn set(&mut self, service: &Service) {
        let port = Some(service.port.clone().into());
        let service_ports = BTreeMap::from([(service.key.clone(), port)]);
        self.change(Change { service_ports, ..Change::default() });
    }

    pub fn remove(&mut self, service: &Service) {
        let service_ports = BTreeMap::from([(service.key.clone(), None)]);
        self.change(Change { service_ports, ..Change::default() });
    }

    pub fn node_addresses(&mut self, addresses: &[&str]) {
        let parse = |text: &&str| text.parse::<IpAddr>().unwrap_or_else(|_| panic!("{text}"));
        let addresses: BTreeSet<IpAddr> = addresses.iter().map(parse).collect();
        self.change(Change { node_addresses: Some(addresses), ..Change::default() });
    }

    /// All addresses of this node, whether NodePorts are open there or not.
    pub fn own_addresses(&mut self, addresses: &[&str]) {
        let own = addresses.iter().map(|text| parse(text)).collect();
        self.change(Change { own_addresses: Some(own), ..Change::default() });
    }

    /// The nodes of the cluster.
    pub fn peers(&mut self, addresses: &[&str]) {
        let peers = addresses.iter().map(|text| parse(text)).collect();
        self.change(Change { peers: Some(peers), ..Change::default() });
    }

    fn change(&mut self, change: Change) {
        let plan = self.planner.plan(change);
        assert!(plan.problems.is_empty(), "{:?}", plan.problems);
        for step in plan.steps() {
            self.carry_out(step);
        }
    }

    /// Changes the tables without the planner.
    pub fn carry_out(&mut self, step: &Step) {
        self.in_both(|world| world.apply(step));
    }

    /// Adds a device like [`surroundings::device`], with a change.
    pub fn device(&mut self, index: u32, change: impl FnOnce(&mut Device)) {
        let mut device = surroundings::device(index);
        change(&mut device);
        self.in_both(|world| world.set_device(index, &device));
    }

    /// Sets the tunnel keys: the one that is sent, and another that is accepted.
    pub fn tunnel_keys(&mut self, keys: [u64; TunnelKey::COUNT]) {
        self.in_both(|world| world.set_tunnel_keys(keys));
    }

    /// A probe has shown that a node takes packets out of tunnels.
    pub fn tunnel_peer(&mut self, node: &str) {
        self.in_both(|world| world.set_tunnel_peer(parse(node), TunnelPeer::DECAPSULATES));
    }

    /// A probe has shown that a node also returns packets of connections that it does not know.
    pub fn returning_peer(&mut self, node: &str) {
        self.in_both(|world| world.set_tunnel_peer(parse(node), TunnelPeer::RETURNS));
    }

    /// Announces an address on the external device, until later or until long ago.
    pub fn announce(&mut self, address: &str, expired: bool) {
        self.in_both(|world| world.announce(parse(address), expired));
    }

    /// Watches an address on the external device for claims.
    pub fn watch(&mut self, address: &str) {
        self.in_both(|world| world.watch(parse(address)));
    }

    /// The machine that was last seen to use a watched address.
    pub fn claimant(&mut self, address: &str) -> Option<Mac> {
        let found = self.host.claimant(parse(address));
        if let Some(kernel) = &self.kernel {
            assert_eq!(found, kernel.claimant(parse(address)), "the claimant of {address}");
        }
        found
    }

    /// Adds a session of BFD.
    pub fn bfd_session(&mut self, discriminator: u32, session: &BfdSession) {
        self.in_both(|world| world.set_bfd_session(discriminator, session));
    }

    /// How often its peer was heard; and whether the last time was noted.
    pub fn bfd_answers(&self, discriminator: u32) -> u64 {
        let heard = self.host.bfd_heard(discriminator);
        if let Some(kernel) = &self.kernel {
            let in_kernel = kernel.bfd_heard(discriminator);
            assert_eq!(heard.answers, in_kernel.answers, "answers of session {discriminator}");
            assert_eq!(heard.time == 0, in_kernel.time == 0, "time of session {discriminator}");
        }
        assert_eq!(heard.answers == 0, heard.time == 0);
        heard.answers
    }

    /// How often this event was counted.
    pub fn count_of(&self, event: NeighbourEvent) -> u64 {
        let events = self.host.neighbour_events();
        events.iter().find(|(known, _)| *known == event).map_or(0, |(_, count)| *count)
    }

    /// Sets the route to an address.
    pub fn exit(&mut self, to: &str, exit: Exit) {
        self.set_exit(to, Some(&exit));
    }

    /// Whether next hops depend on the destination only.
    pub fn share_hops(&mut self, shared: bool) {
        self.in_both(|world| world.share_hops(shared));
    }

    /// Whether flows begin in the rest of the flow table, instead of its core.
    pub fn begin_in_rest(&mut self, rest: bool) {
        self.in_both(|world| world.begin_in_rest(rest));
    }

    /// Whether the flow of a client's port is in none of the buckets that are searched first: those of the
    /// client, and the first two of client and frontend.
    pub fn is_in_further_buckets(&self, port: u16) -> bool {
        self.host.is_in_further_buckets(port)
    }

    /// Decides like the agent whether flows begin in the rest of the flow table: IPv4's, and IPv6's.
    pub fn place_new_flows(&mut self) -> Result<[bool; 2]> {
        let kernel = self.kernel.as_ref().context("no kernel world")?;
        let rest = kernel.place_new_flows()?;
        self.host.tables.begin_in_rest(rest);
        Ok(rest)
    }

    /// Removes the route to an address.
    pub fn no_exit(&mut self, to: &str) {
        self.set_exit(to, None);
    }

    fn set_exit(&mut self, to: &str, exit: Option<&Exit>) {
        self.set_exit_unreported(to, exit);
        self.in_both(|world| world.next_epoch());
    }

    /// Sets the route to an address, while no agent follows the network.
    pub fn exit_unreported(&mut self, to: &str, exit: Exit) {
        self.set_exit_unreported(to, Some(&exit));
    }

    fn set_exit_unreported(&mut self, to: &str, exit: Option<&Exit>) {
        let to = Endpoint::from(to).address;
        self.in_both(|world| world.set_exit(to, exit));
    }

    /// No agent follows the network any more.
    pub fn end_epoch_lease(&mut self) {
        self.in_both(|world| world.end_epoch_lease());
    }

    /// Waits until next hops that were looked up without a lease are not valid any more.
    pub fn outlast_unleased_hops(&mut self) {
        let now = self.host.tables.now.get();
        let epoch = self.host.tables.network_epoch();
        let mut later = now;
        while self.host.tables.network_epoch() == epoch {
            later = Ticks(later.0 + 1);
            self.host.tables.now.set(later);
        }
        if self.kernel.is_some() {
            std::thread::sleep(Duration::from_millis(1100));
        }
    }

    /// Lets time pass.
    pub fn wait(&mut self, seconds: u32) {
        self.in_both(|world| world.grow_older(Ticks::in_seconds(seconds)));
    }

    /// Lets time pass until no datagram flow is about to become a stream. The kernel's clock is
    /// read later than the host's, so that they could disagree on such a flow.
    pub fn wait_for_streams(&mut self) {
        self.host.tables.now.set(read_clock().unwrap_or_else(|error| panic!("{error:#}")));
        while self.host.has_nearly_a_stream() {
            self.wait(1);
        }
    }

    fn in_both(&mut self, change: impl Fn(&mut dyn World)) {
        change(&mut self.host);
        if let Some(kernel) = &mut self.kernel {
            change(&mut **kernel);
        }
    }

    /// A packet arrives on an external device.
    pub fn forward(&mut self, packet: &Packet) -> Processed {
        self.run(Hook::Forward, packet)
    }

    /// A packet arrives on an external device without XDP.
    pub fn stack(&mut self, packet: &Packet) -> Processed {
        self.run(Hook::Stack, packet)
    }

    /// Sends a packet that will be segmented through the stack.
    pub fn stack_segments(&mut self, packet: &Packet, segment: u32) -> Processed {
        self.run_segments(Hook::Stack, packet, segment)
    }

    /// A packet arrives from a pod of this node.
    pub fn from_pod(&mut self, packet: &Packet) -> Processed {
        self.run(Hook::Workload, packet)
    }

    /// A packet leaves through an external device.
    pub fn reverse(&mut self, packet: &Packet) -> Processed {
        self.run(Hook::Reverse, packet)
    }

    /// A packet of a process of this node leaves through an external device.
    pub fn from_process(&mut self, packet: &Packet) -> Processed {
        self.run(Hook::Process, packet)
    }

    /// A client's packet is forwarded to this backend.
    #[track_caller]
    pub fn request_to(&mut self, backend: &str, packet: &Packet) {
        self.forward(packet).becomes(&packet.to(backend));
    }

    /// The backend's reply leaves as this packet, with the frontend as its source.
    #[track_caller]
    pub fn reply_from(&mut self, backend: &str, packet: &Packet) {
        self.reverse(&packet.from(backend)).becomes(packet);
    }

    pub fn run(&mut self, hook: Hook, packet: &Packet) -> Processed {
        self.run_segments(hook, packet, 0)
    }

    fn run_segments(&mut self, hook: Hook, packet: &Packet, segment: u32) -> Processed {
        self.packets += 1;
        let place = format!("packet {} ({hook:?})", self.packets);
        let before = self.host.reasons();
        // First the kernel, immediately after its clock was read: the host may take its time, and is given the same.
        let by_kernel = self.kernel.as_mut().map(|kernel| {
            let traced = self.traced.then(|| trace_packet(kernel, hook, packet, segment));
            self.host.tables.now.set(read_clock().unwrap_or_else(|error| panic!("{error:#}")));
            (traced, kernel.run_segments(hook, packet, segment))
        });
        let outcome = self.host.run_segments(hook, packet, segment);
        if let (Some(kernel), Some((traced, other))) = (&mut self.kernel, by_kernel) {
            check_agreement(&place, packet, &outcome, &other);
            if let Some(traced) = traced {
                check_trace(&place, packet, &traced, &other);
                let counted = difference(&before, &self.host.reasons());
                let mut reasons = traced.reasons.clone();
                reasons.sort_unstable();
                let mut expected: Vec<_> = counted.into_iter().map(Reason::name).collect();
                expected.sort_unstable();
                assert_eq!(reasons, expected, "{place}: {:#?}", traced.steps);
            }
            let flows = kernel.flows();
            let agree = flows == self.host.flows();
            assert!(agree, "{place}: flows differ:\n{:?}\n{flows:?}", self.host.flows());
            assert_eq!(self.host.reasons(), kernel.reasons(), "{place}: counts differ");
            let events = (self.host.neighbour_events(), kernel.neighbour_events());
            assert_eq!(events.0, events.1, "{place}: counts differ");
            // Evictions depend on these times, so both must have the same.
            let now = read_clock().unwrap_or_else(|error| panic!("{error:#}"));
            self.host.set_seen(&flows, now);
        }
        let counted = difference(&before, &self.host.reasons());
        let left_by = self.host.left_by();
        Processed { place, hook, packet: packet.to_vec(), outcome, left_by, counted }
    }

    pub fn flows(&self) -> Flows {
        self.host.flows()
    }
}

fn parse(address: &str) -> IpAddr {
    address.parse().unwrap_or_else(|_| panic!("{address}"))
}

/// The reasons counted between two readings.
fn difference(before: &[(Reason, u64)], after: &[(Reason, u64)]) -> Vec<Reason> {
    let pairs = after.iter().zip(before);
    pairs.flat_map(|((reason, now), (_, before))| vec![*reason; (now - before) as usize]).collect()
}

/// Traces a packet, and checks that the maps have not changed.
fn trace_packet(kernel: &KernelWorld, hook: Hook, packet: &Packet, segment: u32) -> Trace {
    let traced = || {
        let before = kernel.written()?;
        let trace = kernel.trace(hook, packet, segment)?;
        for ((name, before), (_, after)) in before.into_iter().zip(kernel.written()?) {
            assert_eq!(before, after, "the trace has changed {name}:\n{trace:#?}");
        }
        anyhow::Ok(trace)
    };
    traced().unwrap_or_else(|error| panic!("{error:#}"))
}

fn check_trace(place: &str, packet: &[u8], traced: &Trace, kernel: &PacketOutcome) {
    let fates: &[Fate] = match traced.verdict {
        trace::TraceFate::Untouched | trace::TraceFate::Translated => &[Fate::Passed],
        trace::TraceFate::Dropped => &[Fate::Dropped],
        trace::TraceFate::Deferred => &[Fate::Deferred],
        trace::TraceFate::Answered | trace::TraceFate::Sent | trace::TraceFate::Resolved => {
            &[Fate::Transmitted, Fate::Sent]
        }
    };
    // Dropped packets may be changed in part.
    let same = traced.verdict == trace::TraceFate::Dropped || traced.bytes == kernel.bytes;
    assert!(
        fates.contains(&kernel.fate) && same,
        "{place}: the trace has another result, {:?}:\n{}\n{:#?}\nin was:\n{}",
        kernel.fate,
        explain_difference(&traced.bytes, &kernel.bytes),
        traced.steps,
        dissect(packet)
    );
}

fn check_agreement(place: &str, packet: &[u8], host: &PacketOutcome, kernel: &PacketOutcome) {
    assert!(
        host == kernel,
        "{place}: host and kernel differ: {:?} and {:?}\n{}\nin was:\n{}",
        host.fate,
        kernel.fate,
        explain_difference(&host.bytes, &kernel.bytes),
        dissect(packet)
    );
}
