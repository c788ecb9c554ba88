//! Random scenarios on the host and in the kernel at once: equal verdicts and packets, flow tables
//! that are equal to the last bit, equal counters.
//!
//! Both use the kernel's clock. If its tick changes while a packet runs, the time that the program
//! has read is unknown, and the scenario is repeated.

use std::collections::{BTreeMap, HashMap};

use anyhow::Result;
use fuzz::{FuzzEvent, FuzzedHost, Hook, PipelineOutcome, Scenario, Translated};
use lb_common::family::Family;
use lb_common::layout::{FlowBucket, NeighbourEvent, Reason, ReplyBucket, Traffic};
use lb_kernel::read_clock;

use super::random_kernel::RandomKernel;
use super::random_kernel::TEST_RUN_DEVICE;
use tests::packets::{dissect, explain_difference};

/// Capacity of the host's few buckets.
const FLOWS: u32 = 32;

/// BPF_PROG_TEST_RUN requires an Ethernet header, and for tc also the IP header.
const FEWEST_AT_XDP: usize = 14;
const FEWEST_AT_TC: usize = 14 + 40;

pub struct Agreement {
    kernel: RandomKernel,
    pub packets: u64,
    pub scenarios: u64,
    pub translated: u64,
    /// Repeated runs.
    pub repeated: u64,
}

/// The end of a run.
enum RunEnd {
    Same(Run),
    ClockMoved,
    Differs(String),
}

#[derive(Default)]
struct Run {
    packets: u64,
    translated: u64,
}

impl Agreement {
    pub fn new() -> Result<Self> {
        let kernel = RandomKernel::new(FLOWS)?;
        Ok(Self { kernel, packets: 0, scenarios: 0, translated: 0, repeated: 0 })
    }

    /// Runs a scenario. If host and kernel differ, returns the difference and the fewest events
    /// that lead to one.
    pub fn check(&mut self, scenario: &Scenario) -> Result<Option<String>> {
        let run = match self.run(scenario)? {
            Ok(run) => run,
            Err(difference) => return self.explain(scenario, difference).map(Some),
        };
        self.packets += run.packets;
        self.translated += run.translated;
        self.scenarios += 1;
        Ok(None)
    }

    fn explain(&mut self, scenario: &Scenario, difference: String) -> Result<String> {
        let mut last = difference;
        let mut failed = None;
        let mut things = scenario.clone();
        let agreement = std::cell::RefCell::new(self);
        let mut differs = |scenario: &Scenario| match agreement.borrow_mut().run(scenario) {
            Ok(Ok(_)) => false,
            Ok(Err(difference)) => {
                last = difference;
                true
            }
            Err(error) => {
                failed = Some(error);
                false
            }
        };
        let differs = std::cell::RefCell::new(&mut differs);
        things.events = fuzz::shrink_failing(&things.events, |events| {
            let events = events.to_vec();
            (differs.borrow_mut())(&Scenario { events, ..things.clone() })
        });
        things.changes = fuzz::shrink_failing(&things.changes, |changes| {
            let changes = changes.to_vec();
            (differs.borrow_mut())(&Scenario { changes, ..things.clone() })
        });
        (differs.borrow_mut())(&things);
        if let Some(error) = failed {
            return Err(error);
        }
        let Scenario { changes, events, .. } = things;
        Ok(format!(
            "{last}\nafter {changes:#?}\n{}",
            events.iter().map(described).collect::<String>()
        ))
    }

    /// Runs it until the tick does not change during a packet.
    fn run(&mut self, scenario: &Scenario) -> Result<Result<Run, String>> {
        loop {
            match self.try_run(scenario)? {
                RunEnd::Same(run) => return Ok(Ok(run)),
                RunEnd::Differs(how) => return Ok(Err(how)),
                RunEnd::ClockMoved => self.repeated += 1,
            }
        }
    }

    fn try_run(&mut self, scenario: &Scenario) -> Result<RunEnd> {
        self.kernel.reset()?;
        let mut host = FuzzedHost::new(self.kernel.flow_seed(), TEST_RUN_DEVICE);
        let before = Counts::of(&self.kernel)?;
        for change in &scenario.changes {
            self.kernel.change(change)?;
            change.apply(&mut host.tables);
        }
        let mut run = Run::default();
        let mut last: Option<Translated> = None;
        for event in &scenario.events {
            let (hook, packet) = match event {
                FuzzEvent::Change(change) => {
                    self.kernel.change(change)?;
                    change.apply(&mut host.tables);
                    continue;
                }
                FuzzEvent::Packet(hook, packet) => (*hook, packet.clone()),
                FuzzEvent::Reply(reply) => match &last {
                    Some(last) => last.reply(*reply),
                    None => continue,
                },
            };
            if !is_accepted(hook, &packet) {
                continue;
            }
            let began = read_clock()?;
            let kernels = self.kernel.run(hook, &packet)?;
            if read_clock()? != began {
                return Ok(RunEnd::ClockMoved);
            }
            host.tables.now.set(began);
            let hosts = host.run(hook, &packet);
            if hosts != kernels {
                return Ok(RunEnd::Differs(differing_outcomes(hook, &packet, &hosts, &kernels)));
            }
            run.packets += 1;
            if let Some(translated) = Translated::of(hook, &packet, &hosts) {
                run.translated += 1;
                last = Some(translated);
            }
        }
        let difference = self.differing_tables(&host, &before)?;
        Ok(difference.map_or(RunEnd::Same(run), RunEnd::Differs))
    }

    fn differing_tables(&self, host: &FuzzedHost, before: &Counts) -> Result<Option<String>> {
        let kernel = &self.kernel;
        let flows = differing_flows("IPv4", &host.tables.v4.flows, kernel.flows4())
            .or_else(|| differing_flows("IPv6", &host.tables.v6.flows, kernel.flows6()));
        if flows.is_some() {
            return Ok(flows);
        }
        let hosts = host.tables.v4.replies.iter().chain(&host.tables.v6.replies);
        let (hosts, kernels) = (entries(hosts), entries(kernel.replies()));
        if hosts != kernels {
            return Ok(Some(format!("reply index: host {hosts:x?}\nkernel {kernels:x?}")));
        }
        let claims = host.tables.claims.borrow();
        let hosts: BTreeMap<_, _> =
            claims.iter().map(|(at, claim)| (*at, claim.claimant.link_address)).collect();
        let kernels = kernel.claimants()?;
        if hosts != kernels {
            return Ok(Some(format!("claims: host {hosts:02x?}\nkernel {kernels:02x?}")));
        }
        let counts = Counts::of(kernel)?.since(before);
        let differing = counts.differing(&Counts::of_host(host));
        Ok(differing.map(|differing| format!("counts, host and kernel: {differing}")))
    }
}

fn is_accepted(hook: Hook, packet: &[u8]) -> bool {
    packet.len() >= if hook == Hook::Forward { FEWEST_AT_XDP } else { FEWEST_AT_TC }
}

fn differing_outcomes(
    hook: Hook,
    packet: &[u8],
    host: &PipelineOutcome,
    kernel: &PipelineOutcome,
) -> String {
    format!(
        "{hook:?}: host {:?}, kernel {:?}\n{}\nin was:\n{}\n{packet:02x?}",
        host.fate,
        kernel.fate,
        explain_difference(&host.bytes, &kernel.bytes),
        dissect(packet)
    )
}

/// Compares tags, and the records of entries with a flow.
fn differing_flows<'a, F: Family>(
    family: &str,
    host: &[FlowBucket<F>],
    kernel: impl Iterator<Item = &'a FlowBucket<F>>,
) -> Option<String> {
    let tags = |bucket: &FlowBucket<F>| -> Vec<(u32, u32)> {
        bucket.tags.iter().map(|tag| (tag.word.load(), tag.seen.load())).collect()
    };
    host.iter().zip(kernel).enumerate().find_map(|(number, (host, kernel))| {
        let (hosts, kernels) = (tags(host), tags(kernel));
        if hosts != kernels {
            return Some(format!("{family} tags of {number}: {hosts:x?}\nkernel {kernels:x?}"));
        }
        let differing = host.entries().zip(kernel.entries()).find(|(host, kernel)| host != kernel);
        differing.map(|(host, kernel)| format!("{family} flows: {host:?}\nkernel {kernel:?}"))
    })
}

fn entries<'a>(buckets: impl Iterator<Item = &'a ReplyBucket>) -> Vec<u64> {
    buckets.flat_map(|bucket| &bucket.entries).map(|entry| entry.load()).collect()
}

/// All counters by name.
#[derive(Default)]
struct Counts(HashMap<String, u64>);

impl Counts {
    fn of(kernel: &RandomKernel) -> Result<Self> {
        let mut counts = Self::default();
        counts.reasons(kernel.reasons()?);
        counts.neighbour_events(kernel.neighbour_events()?);
        counts.traffic("service port", (0..).zip(kernel.service_traffic()?));
        counts.traffic("backend", (0..).zip(kernel.backend_traffic()?));
        Ok(counts)
    }

    fn of_host(host: &FuzzedHost) -> Self {
        let mut counts = Self::default();
        counts.reasons(host.reasons());
        counts.neighbour_events(host.neighbour_events());
        let services = host.tables.service_traffic.borrow();
        let services = services.iter().map(|(index, traffic)| (*index, *traffic));
        // Damaged entries contain other indexes, for which the kernel has no counters.
        let known = services.filter(|(index, _)| *index < super::random_kernel::SERVICE_PORTS);
        counts.traffic("service port", known);
        let backends = host.tables.backend_traffic.borrow();
        counts.traffic("backend", backends.iter().map(|(index, traffic)| (*index, *traffic)));
        counts
    }

    fn reasons(&mut self, reasons: Vec<(Reason, u64)>) {
        self.0.extend(reasons.into_iter().map(|(reason, count)| (format!("{reason:?}"), count)));
    }

    fn neighbour_events(&mut self, events: Vec<(NeighbourEvent, u64)>) {
        self.0.extend(events.into_iter().map(|(event, count)| (format!("{event:?}"), count)));
    }

    fn traffic(&mut self, of: &str, all: impl Iterator<Item = (u32, Traffic)>) {
        for (index, traffic) in all {
            let numbers = [
                traffic.forward_packets,
                traffic.forward_bytes,
                traffic.reverse_packets,
                traffic.reverse_bytes,
                traffic.new_flows,
            ];
            for (which, number) in numbers.into_iter().enumerate() {
                self.0.insert(format!("{of} {index}, number {which}"), number);
            }
        }
    }

    fn since(mut self, before: &Self) -> Self {
        for (name, count) in &mut self.0 {
            *count -= before.0.get(name).copied().unwrap_or_default();
        }
        self
    }

    /// The first differing counter; missing ones are 0.
    fn differing(&self, host: &Self) -> Option<String> {
        let names = self.0.keys().chain(host.0.keys());
        let of = |counts: &Self, name| counts.0.get(name).copied().unwrap_or_default();
        names
            .map(|name| (name, of(host, name), of(self, name)))
            .find(|(_, host, kernel)| host != kernel)
            .map(|(name, host, kernel)| format!("{name}: {host} and {kernel}"))
    }
}

fn described(event: &FuzzEvent) -> String {
    match event {
        FuzzEvent::Packet(hook, packet) => format!("{hook:?}\n{}\n", dissect(packet)),
        other => format!("{other:?}\n"),
    }
}
