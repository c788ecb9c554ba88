//! What is measured: a program, its tables, its packets, and the proof that they met.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use lb_common::bench::Template;
use lb_common::layout::{Flow, FlowState, Traffic};
use lb_userspace::kernel::Sizes;
use lb_userspace::plan::{Change, Planner};
use tests::datapath::{Hook, KernelWorld, Service, World, service};
use tests::packet::{Packet, tcp, udp};

use super::report::{Record, Sample};
use super::wrapper::{Side, Wrapper, template};

/// Packets per measurement, at least.
const REPEAT: u32 = 200_000;
const BACKENDS: u32 = 100;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Established,
    New,
    None,
}

#[derive(Clone, Copy, Debug)]
pub struct Case {
    hook: Hook,
    v6: bool,
    udp: bool,
    kind: Kind,
}

/// The cases that make sense with so many live flows.
pub fn cases(flows: u32) -> Vec<Case> {
    let mut cases = Vec::new();
    for v6 in [false, true] {
        for udp in [false, true] {
            let case = Case { hook: Hook::Forward, v6, udp, kind: Kind::Established };
            cases.push(case);
            cases.push(Case { kind: Kind::New, ..case });
            cases.push(Case { hook: Hook::Reverse, ..case });
        }
        if flows == 1 {
            for hook in [Hook::Forward, Hook::Reverse] {
                cases.push(Case { hook, v6, udp: false, kind: Kind::None });
            }
        }
    }
    cases
}

impl Case {
    pub fn name(&self) -> String {
        let hook = if self.hook == Hook::Forward { "xdp" } else { "tc" };
        let family = if self.v6 { "v6" } else { "v4" };
        let protocol = if self.udp { "udp" } else { "tcp" };
        match self.kind {
            Kind::None => format!("{hook}.{family}.none"),
            Kind::New => format!("{hook}.{family}.{protocol}.new"),
            Kind::Established => format!("{hook}.{family}.{protocol}.established"),
        }
    }

    fn end(&self, v4: &str, v6: &str, port: u16) -> String {
        if self.v6 { format!("[{v6}]:{port}") } else { format!("{v4}:{port}") }
    }

    fn frontend(&self) -> String {
        self.end("10.96.0.10", "fd00:10:96::a", 80)
    }

    /// Answers all come from one backend: which it is decides nothing on their way.
    fn backends(&self) -> Vec<String> {
        let count = if self.hook == Hook::Forward { BACKENDS } else { 1 };
        (1..=count)
            .map(|n| self.end(&format!("10.244.1.{n}"), &format!("fd00:10:244::{n}"), 8080))
            .collect()
    }

    fn service(&self) -> Service {
        let protocol = if self.udp { "UDP" } else { "TCP" };
        let backends = self.backends();
        let backends: Vec<&str> = backends.iter().map(String::as_str).collect();
        service(&format!("{}/{protocol}", self.frontend())).backends(&backends)
    }

    /// From a client; `fresh` clients have sent nothing before.
    fn request(&self, fresh: bool) -> Packet {
        let client = if fresh {
            self.end("16.0.0.0", "2001:db8:16::", 10_000)
        } else {
            self.end("100.64.0.0", "2001:db8:64::", 10_000)
        };
        let to = match self.kind {
            Kind::None => self.end("192.0.2.99", "2001:db8::99", 80),
            _ => self.frontend(),
        };
        let packet = if self.udp {
            udp(client.as_str(), to.as_str())
        } else {
            tcp(client.as_str(), to.as_str()).ack()
        };
        packet.payload(&[b'x'; 100])
    }

    fn answer(&self) -> Packet {
        let answer = self.request(false).reversed();
        match self.kind {
            Kind::None => answer,
            _ => answer.from(self.backends()[0].as_str()),
        }
    }
}

/// A case with its tables filled.
pub struct Subject {
    case: Case,
    flows: u32,
    world: KernelWorld,
    wrapper: Wrapper,
    packet: Packet,
    template: Template,
    sample: Sample,
}

impl Subject {
    pub fn new(case: Case, flows: u32) -> Result<Self> {
        // So roomy that no flow has to look for a place.
        let mut world = KernelWorld::new(Sizes::for_flows((flows * 4).max(65_536)))?;
        let Service { key, port } = case.service();
        let service_ports = BTreeMap::from([(key, Some(port))]);
        let plan = Planner::new().plan(Change { service_ports, node_addresses: None });
        plan.steps().for_each(|step| world.apply(step));

        if case.kind != Kind::None {
            establish(&case, &mut world, flows)?;
        }
        check_output(&case, &mut world)?;

        let under_test = match case.hook {
            Hook::Forward => world.data_plane.external_in()?.fd()?.try_clone()?,
            Hook::Reverse => world.data_plane.external_out()?.fd()?.try_clone()?,
        };
        let wrapper = Wrapper::around(case.hook, &under_test)?;
        let (packet, side, clients) = match (case.hook, case.kind) {
            (Hook::Forward, Kind::New) => {
                let request = case.request(true);
                (if case.udp { request } else { request.syn() }, Side::Source, 1 << 28)
            }
            (Hook::Forward, _) => (case.request(false), Side::Source, flows),
            (Hook::Reverse, _) => (case.answer(), Side::Destination, flows),
        };
        let template = template(&packet, side, clients);
        Ok(Self { case, flows, world, wrapper, packet, template, sample: Sample::default() })
    }

    pub fn name(&self) -> String {
        self.case.name()
    }

    /// Measures once, and proves that every packet took the way that is meant.
    pub fn measure(&mut self, baselines: &Baselines) -> Result<()> {
        let repeat = REPEAT.max(self.flows);
        // The caches hold what the case before has left.
        self.wrapper.run(&self.template, &self.packet, repeat / 4)?;
        let before = self.world.tables.service_traffic(1)?;
        let time = self.wrapper.run(&self.template, &self.packet, repeat)?;
        let after = self.world.tables.service_traffic(1)?;
        self.prove(&before, &after, u64::from(repeat))?;
        self.sample.push(time.as_nanos() as f64 - baselines.wrapper(self.case.hook));
        Ok(())
    }

    fn prove(&self, before: &Traffic, after: &Traffic, repeat: u64) -> Result<()> {
        let rose = [
            after.forward_packets - before.forward_packets,
            after.reverse_packets - before.reverse_packets,
            after.new_flows - before.new_flows,
        ];
        let expected = match (self.case.hook, self.case.kind) {
            (_, Kind::None) => [0, 0, 0],
            (Hook::Forward, Kind::New) => [repeat, 0, repeat],
            (Hook::Forward, Kind::Established) => [repeat, 0, 0],
            (Hook::Reverse, _) => [0, repeat, 0],
        };
        ensure!(
            rose == expected,
            "the packets took another way: of {repeat}, forward, reverse and new flows rose by \
             {rose:?} instead of {expected:?}"
        );
        Ok(())
    }

    pub fn record(&self) -> Record {
        self.sample.record(&self.name(), self.flows)
    }
}

/// Makes the flows through the programs themselves: a request, its answer, another request.
fn establish(case: &Case, world: &mut KernelWorld, flows: u32) -> Result<()> {
    let request = case.request(false);
    let first = if case.udp { request.clone() } else { request.syn() };
    let under_test = world.data_plane.external_in()?.fd()?.try_clone()?;
    let mut wrapper = Wrapper::around(Hook::Forward, &under_test)?;
    wrapper.run(&template(&first, Side::Source, flows), &first, flows)?;

    let answer = if case.udp { case.answer() } else { case.answer().syn_ack() };
    let (v4, v6): (Vec<_>, Vec<_>) =
        (world.tables.flows4().collect(), world.tables.flows6().collect());
    for (_, _, flow) in v4 {
        let (backend, client) = (flow.backend.octets, flow.client.octets);
        answer_from(world, &answer, &flow, (12, &backend), (16, &client));
    }
    for (_, _, flow) in v6 {
        let (backend, client) = (flow.backend.octets, flow.client.octets);
        answer_from(world, &answer, &flow, (8, &backend), (24, &client));
    }
    wrapper.run(&template(&request, Side::Source, flows), &request, flows)?;

    let states = world.flows().states();
    let established = states.iter().filter(|&&state| state == FlowState::Established).count();
    ensure!(established == flows as usize, "{established} of {flows} flows are established");
    Ok(())
}

/// Sends the answer of a flow's own backend.
fn answer_from<F: lb_common::family::Family>(
    world: &mut KernelWorld,
    answer: &Packet,
    flow: &Flow<F>,
    source: (usize, &[u8]),
    destination: (usize, &[u8]),
) {
    let mut bytes = answer.to_vec();
    for (offset, octets) in [source, destination] {
        let at = answer.network_offset() + offset;
        bytes[at..at + octets.len()].copy_from_slice(octets);
    }
    let at = answer.transport_offset();
    bytes[at..at + 2].copy_from_slice(&flow.backend_port.to_be_bytes());
    bytes[at + 2..at + 4].copy_from_slice(&flow.client_port.to_be_bytes());
    world.run(Hook::Reverse, &bytes);
}

/// One packet's bytes as they come out, against what an independent encoder expects.
fn check_output(case: &Case, world: &mut KernelWorld) -> Result<()> {
    let packet = match case.hook {
        Hook::Forward => case.request(false),
        Hook::Reverse => case.answer(),
    };
    let outcome = world.run(case.hook, &packet);
    let expected: Vec<Packet> = match (case.hook, case.kind) {
        (_, Kind::None) => vec![packet.clone()],
        (Hook::Forward, _) => {
            case.backends().iter().map(|backend| packet.to(backend.as_str())).collect()
        }
        (Hook::Reverse, _) => vec![packet.from(case.frontend().as_str())],
    };
    ensure!(
        outcome.passed && expected.iter().any(|expected| **expected == outcome.bytes[..]),
        "the packet came out as\n{}",
        tests::packet::dissect(&outcome.bytes)
    );
    Ok(())
}

/// What the harness itself costs, measured in the same rounds.
pub struct Baselines {
    forward: Baseline,
    reverse: Baseline,
}

struct Baseline {
    wrapper: Wrapper,
    packet: Packet,
    template: Template,
    wrapped: Sample,
    bare: Sample,
}

impl Baselines {
    pub fn new(flows: u32) -> Result<Self> {
        let baseline = |hook| -> Result<Baseline> {
            let packet = Case { hook, v6: false, udp: false, kind: Kind::None }.request(false);
            let template = template(&packet, Side::Source, flows);
            let wrapper = Wrapper::around_nothing(hook)?;
            let (wrapped, bare) = (Sample::default(), Sample::default());
            Ok(Baseline { wrapper, packet, template, wrapped, bare })
        };
        Ok(Self { forward: baseline(Hook::Forward)?, reverse: baseline(Hook::Reverse)? })
    }

    pub fn measure(&mut self) -> Result<()> {
        for baseline in [&mut self.forward, &mut self.reverse] {
            let Baseline { wrapper, packet, template, wrapped, bare } = baseline;
            wrapper.run(template, packet, REPEAT / 4)?;
            wrapped.push(wrapper.run(template, packet, REPEAT)?.as_nanos() as f64);
            bare.push(wrapper.run_empty(packet, REPEAT)?.as_nanos() as f64);
        }
        Ok(())
    }

    /// The wrapper's cost in this round, in nanoseconds.
    fn wrapper(&self, hook: Hook) -> f64 {
        match hook {
            Hook::Forward => self.forward.wrapped.last(),
            Hook::Reverse => self.reverse.wrapped.last(),
        }
    }

    pub fn records(&self) -> Vec<Record> {
        [("xdp", &self.forward), ("tc", &self.reverse)]
            .into_iter()
            .flat_map(|(hook, baseline)| {
                [
                    baseline.bare.record(&format!("{hook}.empty"), 0),
                    baseline.wrapped.record(&format!("{hook}.wrapper"), 0),
                ]
            })
            .collect()
    }
}
