//! A case with filled tables, and the proof that its packets were handled as intended.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use lb_common::bench::Template;
use lb_common::family::Family;
use lb_common::layout::{Flow, FlowState, Reason, Ticks, Traffic};
use lb_userspace::kernel::{HookPoint, Sizes};
use lb_userspace::plan::{Change, Planner};
use tests::datapath::random_kernel::TEST_RUN_DEVICE;
use tests::datapath::surroundings::{OUTSIDE, device as device_of};
use tests::datapath::{Hook, KernelWorld, Service, World};
use tests::figures::Sample;
use tests::packet::{Packet, dissect};

use super::baselines::Baselines;
use super::case::{Case, Kind};
use super::record::Record;
use super::wrapper::{Side, Wrapper, template};

/// Minimum number of packets per measurement.
const REPEAT: u32 = 200_000;

/// Maximum number of passes until all flows are established.
const PASSES: usize = 10;

/// Longer than the time after which a datagram flow becomes a stream.
const UNTIL_STREAM: u32 = Ticks::in_seconds(3);

/// The index of the only service port.
const SERVICE_PORT: u32 = 1;

pub struct Subject {
    case: Case,
    flows: u32,
    room: u32,
    world: KernelWorld,
    wrapper: Wrapper,
    packet: Packet,
    template: Template,
    sample: Sample,
}

impl Subject {
    /// `room`: the capacity of the table.
    pub fn new(case: Case, flows: u32, room: u32) -> Result<Self> {
        let mut world = KernelWorld::new(Sizes::for_flows(room))?;
        // Interfaces have link-layer addresses, to which frames are compared.
        for device in [TEST_RUN_DEVICE, OUTSIDE] {
            world.set_device(device, &device_of(OUTSIDE));
        }
        let Service { key, port } = case.service();
        let service_ports = BTreeMap::from([(key, Some(port.into()))]);
        let plan = Planner::new().plan(Change { service_ports, ..Change::default() });
        plan.steps().for_each(|step| world.apply(step));

        if case.kind != Kind::None {
            establish(&case, &mut world, flows)?;
        }
        check_output(&case, &mut world)?;

        let under_test = match case.hook {
            Hook::Forward => world.data_plane.xdp()?.fd()?.try_clone()?,
            Hook::AfterXdp => {
                world.data_plane.classifier(HookPoint::ExternalDeferred)?.fd()?.try_clone()?
            }
            Hook::Stack | Hook::Workload | Hook::Reverse => {
                world.data_plane.classifier(HookPoint::Out)?.fd()?.try_clone()?
            }
        };
        let wrapper = Wrapper::around(case.hook, &under_test)?;
        let (packet, side, clients) = case.first_packet(flows);
        let template = template(&packet, side, clients);
        let sample = Sample::default();
        Ok(Self { case, flows, room, world, wrapper, packet, template, sample })
    }

    pub fn describe(&self) -> String {
        self.case.describe(self.flows)
    }

    /// Sends a packet of every flow: datagram flows would expire while others are set up.
    pub fn keep_alive(&mut self) -> Result<()> {
        match self.case.kind {
            Kind::Established => self.run(self.flows).map(drop),
            Kind::New | Kind::None => Ok(()),
        }
    }

    /// Measures once.
    pub fn measure(&mut self, baselines: &Baselines) -> Result<()> {
        let repeat = REPEAT.max(self.flows);
        // Warm up: the caches contain data of the previous case.
        self.run(repeat / 4)?;
        let time = self.run(repeat)?;
        self.sample.push(time.as_nanos() as f64 - baselines.wrapper(self.case.hook));
        Ok(())
    }

    /// Runs this number of packets, and checks that all of them were handled as intended.
    fn run(&mut self, packets: u32) -> Result<Duration> {
        let before = counts(&self.world)?;
        let time = self.wrapper.run(&self.template, &self.packet, packets)?;
        let after = counts(&self.world)?;
        let rise = Traffic {
            forward_packets: after.0.forward_packets - before.0.forward_packets,
            reverse_packets: after.0.reverse_packets - before.0.reverse_packets,
            new_flows: after.0.new_flows - before.0.new_flows,
            ..Traffic::default()
        };
        let expected = self.case.expected_rise(packets.into());
        ensure!(
            rise == expected && before.1 == after.1,
            "the packets took another path. The counters rose by\n{rise:?}\nwhere this was \
             expected:\n{expected:?}\nReasons before and after:\n{:?}\n{:?}",
            before.1,
            after.1
        );
        Ok(time)
    }

    pub fn record(&self) -> Record {
        Record::packet(&self.sample, &self.case.name(), self.flows, Some(self.room))
    }
}

fn counts(world: &KernelWorld) -> Result<(Traffic, Vec<(Reason, u64)>)> {
    Ok((world.tables.service_traffic(SERVICE_PORT)?, world.reasons()))
}

/// Establishes the flows through the programs: a request, its reply, another request. Datagrams are
/// exchanged again after some time.
fn establish(case: &Case, world: &mut KernelWorld, flows: u32) -> Result<()> {
    let request = case.request();
    let (first, answer) = if case.udp {
        (request.clone(), case.answer())
    } else {
        (request.syn(), case.answer().syn_ack())
    };
    let under_test = world.data_plane.xdp()?.fd()?.try_clone()?;
    let mut wrapper = Wrapper::around(Hook::Forward, &under_test)?;
    wrapper.run(&template(&first, Side::Source, flows), &first, flows)?;

    // All clients at once are a flood, in which a few evict each other. Another request opens their
    // flows again, and the next pass replies to them.
    for _ in 0..PASSES {
        for (backend, client) in unestablished(world) {
            world.run(Hook::Reverse, &answer.from(backend).to(client));
            world.run(Hook::Forward, &request.from(client));
        }
        if established(world) == flows as usize {
            return Ok(());
        }
        if case.udp {
            world.grow_older(UNTIL_STREAM);
        }
        wrapper.run(&template(&request, Side::Source, flows), &request, flows)?;
    }
    bail!("only {} of {flows} flows are established", established(world));
}

fn established(world: &KernelWorld) -> usize {
    world.flows().states().into_iter().filter(|&state| is_established(state)).count()
}

fn is_established(state: FlowState) -> bool {
    matches!(state, FlowState::Established | FlowState::DatagramStream)
}

/// The addresses and ports of backend and client of every flow that is not established.
fn unestablished(world: &KernelWorld) -> Vec<(SocketAddr, SocketAddr)> {
    let flows = world.flows();
    let v4 = flows.v4.iter().map(|(state, _, flow)| (*state, ends(flow)));
    let v6 = flows.v6.iter().map(|(state, _, flow)| (*state, ends(flow)));
    v4.chain(v6).filter(|(state, _)| !is_established(*state)).map(|(_, ends)| ends).collect()
}

fn ends<F: Family<Address: Into<IpAddr>>>(flow: &Flow<F>) -> (SocketAddr, SocketAddr) {
    (
        SocketAddr::new(flow.backend.into(), flow.backend_port),
        SocketAddr::new(flow.client.into(), flow.client_port),
    )
}

/// Compares one packet's bytes with those of an independent encoder.
fn check_output(case: &Case, world: &mut KernelWorld) -> Result<()> {
    let (packet, expected) = case.expected();
    let outcome = world.run(case.hook, &packet);
    ensure!(
        outcome.passed() && expected.iter().any(|expected| **expected == outcome.bytes[..]),
        "the packet came out as\n{}\nwhere this was expected, or another backend:\n{}",
        dissect(&outcome.bytes),
        dissect(&expected[0])
    );
    Ok(())
}
