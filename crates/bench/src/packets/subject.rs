//! A case with filled tables, and the proof that its packets were handled as intended.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::figures::Sample;
use ::tests::packets::datapath::surroundings::{INSIDE, OUTSIDE, device, neighbour};
use ::tests::packets::datapath::{Fate, Hook, KernelWorld, Service, World};
use ::tests::packets::{Packet, dissect};
use anyhow::{Result, bail, ensure};
use lb_common::bench::{BenchEnd, Template};
use lb_common::family::Family;
use lb_common::layout::{BUCKET_ENTRIES, Flow, FlowState, Reason, Ticks, Traffic};
use lb_kernel::{FlowTableLoad, HookPoint, begins_in_rest};
use lb_network::Device;
use lb_plan::{Change, Planner};

use super::baselines::Baselines;
use super::case::{Backends, Case, Ends, PacketKind};
use super::idle_worlds::IdleWorlds;
use super::record::CaseRecord;
use super::wrapper::Wrapper;

/// Until most ports of an endpoint's address are in use.
const USES_PORTS: u32 = 200_000;

/// Maximum number of passes until all flows are established.
const PASSES: usize = 10;

/// After how many flows those without a reply are refreshed.
const REFRESHED: usize = 65_536;

/// Longer than the time after which a datagram flow becomes a stream.
const UNTIL_STREAM: u32 = Ticks::in_seconds(3);

/// Longer than a tunnelled flow must last until it is established, and shorter than the time after
/// which it expires.
const UNTIL_ESTABLISHED: u32 = Ticks::in_seconds(70);

/// Longer than a flow lasts of which only a SYN was seen.
const UNTIL_EXPIRED: u32 = Ticks::in_seconds(70);

/// How many times as many entries as new flows a table with room has.
const ROOM: u32 = 8;

/// The index of the only service port.
const SERVICE_PORT: u32 = 1;

pub struct Subject {
    case: Case,
    flows: u32,
    room: u32,
    /// How many new flows find room.
    fresh: u32,
    world: KernelWorld,
    wrapper: Wrapper,
    packet: Packet,
    template: Template,
    sample: Sample,
}

impl Subject {
    /// `room`: the capacity of the table.
    pub fn new(case: Case, flows: u32, room: u32, idle: &mut IdleWorlds) -> Result<Self> {
        let fresh = room / ROOM;
        let room = room.max(case.least_room());
        let mut world = idle.take_or_load(room)?;
        // Interfaces have link-layer addresses, to which frames are compared.
        for index in [OUTSIDE, INSIDE] {
            world.set_device(index, &device(index));
        }
        let Service { key, port } = case.service();
        let service_ports = BTreeMap::from([(key, Some(port.into()))]);
        let own = own_addresses(case.v6);
        let change = Change {
            service_ports,
            snat_addresses: Some(own.clone()),
            node_addresses: Some(own),
            peers: Some(BTreeSet::from([case.other_node().parse()?])),
            ..Change::default()
        };
        Planner::new().plan(change).steps().for_each(|step| world.apply(step));
        let exits = case.exits(flows).into_iter();
        let exits = exits.map(|(to, device, mac)| (to, neighbour(device, mac)));
        world.set_exits(&exits.collect::<Vec<_>>())?;

        // As on most nodes.
        world.share_hops(true);
        if case.kind == PacketKind::AgedReply {
            world.age_reply_index();
        }
        // As the agent decides it.
        let used = if case.is_full() { room } else { flows };
        let load = FlowTableLoad { flows: used.into(), buckets: room / BUCKET_ENTRIES as u32 };
        world.begin_in_rest(begins_in_rest(false, load));
        if case.has_flows() {
            establish(&case, &mut world, flows)?;
        }
        if case.is_full() {
            world.fill_flow_tables()?;
        }
        check_output(&case, &mut world)?;

        let mut wrapper = wrapper_of(&case, &mut world)?;
        // What fills a table has no addresses.
        let known = if case.has_flows() { ends(&world) } else { Vec::new() };
        let (packet, template) = case.template(flows, known.first().map(|(_, ends)| *ends));
        if case.is_reply() {
            wrapper.list(&known.iter().map(|(_, ends)| end_of_reply(ends)).collect::<Vec<_>>())?;
        }
        let sample = Sample::default();
        let mut subject =
            Self { case, flows, room, fresh, world, wrapper, packet, template, sample };
        if case.backends == Backends::PortsInUse {
            subject.run(USES_PORTS)?;
        }
        Ok(subject)
    }

    /// Another wrapper of the same program, for another CPU.
    pub(crate) fn another_wrapper(&mut self) -> Result<Wrapper> {
        wrapper_of(&self.case, &mut self.world)
    }

    pub fn template(&self) -> &Template {
        &self.template
    }

    pub fn packet(&self) -> &Packet {
        &self.packet
    }

    /// Calls a function in the namespace of the devices.
    pub fn enter<T: Send>(&self, function: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        self.world.enter(function)
    }

    pub fn describe(&self) -> String {
        self.case.describe(self.flows)
    }

    /// Sends a packet of every flow: datagram flows would expire while others are set up.
    pub fn keep_alive(&mut self) -> Result<()> {
        match self.case.kind {
            PacketKind::Established
            | PacketKind::Reply
            | PacketKind::AgedReply
            | PacketKind::Delivered(_) => self.run(self.flows).map(drop),
            _ => Ok(()),
        }
    }

    /// Measures once, with this number of packets or one of each flow.
    pub fn measure(&mut self, packets: u32, baselines: &Baselines) -> Result<()> {
        let time = if self.case.kind == PacketKind::Fresh {
            self.world.grow_older(UNTIL_EXPIRED);
            self.run(self.fresh)?
        } else {
            let packets = packets.max(self.flows);
            // Warm up: the caches contain data of the previous case.
            self.run(packets / 4)?;
            self.run(packets)?
        };
        let restoring = if self.template.at_front == 0 { 0.0 } else { baselines.restoring() };
        let own = baselines.wrapper(self.case.hook) + restoring;
        self.sample.push(time.as_nanos() as f64 - own);
        Ok(())
    }

    /// Runs this number of packets, and checks that all of them were handled as intended.
    fn run(&mut self, packets: u32) -> Result<Duration> {
        if let Some(first) = self.case.first_fragment() {
            self.world.run(self.case.hook, &first);
        }
        let before = counts(&self.world)?;
        let (wrapper, template, packet) = (&mut self.wrapper, &self.template, &self.packet);
        let time = self.world.enter(|| wrapper.run(template, packet, packets))?;
        let after = counts(&self.world)?;
        let rise = Traffic {
            forward_packets: after.0.forward_packets - before.0.forward_packets,
            reverse_packets: after.0.reverse_packets - before.0.reverse_packets,
            new_flows: after.0.new_flows - before.0.new_flows,
            ..Traffic::default()
        };
        let expected = self.case.expected_rise(packets.into());
        ensure!(
            rise == expected && self.counts_reasons(packets, &before.1, &after.1),
            "the packets took another path. The counters rose by\n{rise:?}\nwhere this was \
             expected:\n{expected:?}\nReasons before and after:\n{:?}\n{:?}",
            before.1,
            after.1
        );
        Ok(time)
    }

    /// Whether only the case's reason was counted, once for each packet.
    fn counts_reasons(
        &self,
        packets: u32,
        before: &[(Reason, u64)],
        after: &[(Reason, u64)],
    ) -> bool {
        before.iter().zip(after).all(|((reason, before), (_, after))| {
            let rise = if Some(*reason) == self.case.reason() { packets.into() } else { 0 };
            // Few packets are rejected.
            let is_limit = self.case.is_limited() && *reason == Reason::RateLimited;
            is_limit || after - before == rise
        })
    }

    /// Leaves its data plane to others.
    pub fn end(self, idle: &mut IdleWorlds) {
        idle.keep(self.room, self.world);
    }

    pub fn record(&self) -> CaseRecord {
        CaseRecord::packet(&self.sample, &self.case.name(), self.flows, Some(self.room))
    }
}

/// A wrapper of the program that the case measures.
fn wrapper_of(case: &Case, world: &mut KernelWorld) -> Result<Wrapper> {
    let under_test = match case.hook {
        Hook::Forward => world.data_plane.xdp()?.fd()?.try_clone()?,
        Hook::AfterXdp => {
            world.data_plane.classifier(HookPoint::ExternalDeferred)?.fd()?.try_clone()?
        }
        Hook::Stack => world.data_plane.classifier(HookPoint::ExternalInTc)?.fd()?.try_clone()?,
        Hook::Workload | Hook::Reverse | Hook::Process => {
            world.data_plane.classifier(HookPoint::Out)?.fd()?.try_clone()?
        }
    };
    Wrapper::around(case.hook, &under_test, case.fates())
}

fn counts(world: &KernelWorld) -> Result<(Traffic, Vec<(Reason, u64)>)> {
    Ok((world.tables.service_traffic(SERVICE_PORT)?, world.reasons()))
}

/// Establishes the flows through the programs: a request, its reply, another request. Datagrams are
/// exchanged again after some time.
fn establish(case: &Case, world: &mut KernelWorld, flows: u32) -> Result<()> {
    let request = case.request();
    let (first, reply) = if case.udp {
        (request.clone(), case.reply())
    } else {
        (request.syn(), case.reply().syn_ack())
    };
    let under_test = world.data_plane.xdp()?.fd()?.try_clone()?;
    let mut wrapper = Wrapper::around(Hook::Forward, &under_test, case.fates())?;
    let mut send = |world: &KernelWorld, packet: &Packet| {
        let template = case.template_of(packet, flows);
        world.enter(|| wrapper.run(&template, &case.arriving(packet), flows))
    };
    send(world, &first)?;

    // All clients at once are a flood, in which a few evict each other. Another request opens their
    // flows again, and the next pass replies to them.
    for _ in 0..PASSES {
        let unestablished = ends(world).into_iter().filter(|(state, _)| !is_established(*state));
        for (number, (_, ends)) in unestablished.enumerate() {
            // Flows without a reply expire after a minute, which is too short for all of them.
            if number % REFRESHED == REFRESHED - 1 {
                send(world, &first)?;
            }
            let reply = reply.from(ends.backend);
            match case.backends {
                Backends::Local => world.run(Hook::Reverse, &reply.to(ends.client)),
                Backends::Remote | Backends::PortsInUse => {
                    world.run(Hook::Forward, &reply.to(ends.snat))
                }
                Backends::Tunnelled(_) | Backends::Nowhere => continue,
            };
            world.run(Hook::Forward, &case.arriving(&request.from(ends.client)));
        }
        if established(world) == flows as usize {
            return Ok(());
        }
        if case.is_tunnelled() {
            send(world, &request)?;
            world.grow_older(UNTIL_ESTABLISHED);
        } else if case.udp {
            world.grow_older(UNTIL_STREAM);
        }
        send(world, &request)?;
    }
    bail!("only {} of {flows} flows are established", established(world));
}

fn established(world: &KernelWorld) -> usize {
    world.flows().states().into_iter().filter(|&state| is_established(state)).count()
}

fn is_established(state: FlowState) -> bool {
    matches!(
        state,
        FlowState::Established | FlowState::OneWayEstablished | FlowState::DatagramStream
    )
}

/// The states and ends of all flows.
fn ends(world: &KernelWorld) -> Vec<(FlowState, Ends)> {
    let flows = world.flows();
    let v4 = flows.v4.iter().map(|(state, _, flow)| (*state, ends_of(flow)));
    v4.chain(flows.v6.iter().map(|(state, _, flow)| (*state, ends_of(flow)))).collect()
}

fn ends_of<F: Family<Address: Into<IpAddr>>>(flow: &Flow<F>) -> Ends {
    let end = |address: F::Address, port| SocketAddr::new(address.into(), port);
    Ends {
        client: end(flow.client, flow.client_port),
        backend: end(flow.backend, flow.backend_port),
        snat: end(flow.snat, flow.snat_port),
    }
}

/// What differs between the replies of backends.
fn end_of_reply(ends: &Ends) -> BenchEnd {
    let address = match ends.backend.ip() {
        IpAddr::V4(address) => address.to_bits(),
        IpAddr::V6(address) => address.to_bits() as u32,
    };
    BenchEnd { address, port: ends.snat.port().into() }
}

/// The addresses of this node's devices.
fn own_addresses(v6: bool) -> BTreeSet<IpAddr> {
    let devices = [OUTSIDE, INSIDE].map(device);
    let address = |device: &Device| match v6 {
        false => device.v4.map(IpAddr::from),
        true => device.v6.map(IpAddr::from),
    };
    devices.iter().filter_map(address).collect()
}

/// Compares one packet's bytes with those of an independent encoder.
fn check_output(case: &Case, world: &mut KernelWorld) -> Result<()> {
    let known = if case.has_flows() { ends(world) } else { Vec::new() };
    let (packet, expected) = case.expected(known.first().map(|(_, ends)| *ends));
    if let Some(first) = case.first_fragment() {
        world.run(case.hook, &first);
    }
    let mut outcome = world.run(case.hook, &packet);
    // Until no more rejections are allowed.
    while case.is_limited() && outcome.fate == Fate::Transmitted {
        outcome = world.run(case.hook, &packet);
    }
    ensure!(
        case.fates().contains(&outcome.fate)
            && expected.iter().any(|expected| **expected == outcome.bytes[..]),
        "the packet came out as\n{}\nwhere this was expected, or another backend:\n{}",
        dissect(&outcome.bytes),
        dissect(&expected[0])
    );
    Ok(())
}
