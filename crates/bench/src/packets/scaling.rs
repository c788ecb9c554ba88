//! Two CPUs at once: how many times as many packets they handle as one.

use std::thread;
use std::time::Instant;

use crate::figures::Sample;
use crate::generator::{Side, packet_template};
use ::tests::packets::Packet;
use ::tests::packets::datapath::Hook;
use anyhow::{Context, Result};
use lb_common::bench::{PORTS, Template};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use crate::progress::Progress;

use super::case::{Backends, Case, PacketKind};
use super::idle_worlds::IdleWorlds;
use super::interrupt::check_interrupted;
use super::pattern::Pattern;
use super::record::CaseRecord;
use super::subject::Subject;
use super::wrapper::Wrapper;

/// Two addresses of clients with all their ports: one for each CPU.
const FLOWS: u32 = 2 * PORTS;

/// Distance between the first addresses of the CPUs' unknown clients.
const APART: u32 = 1 << 20;

/// What the CPUs share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sharing {
    /// Packets of different flows.
    Different,
    /// Packets of the same flows, at the same time.
    Same,
}

/// The cases in turn, and what the machine allows: the wrapper with the empty program. Nothing, if there
/// is only one CPU.
pub fn measure_scaling(
    quick: bool,
    only: &Pattern,
    progress: &Progress,
    idle: &mut IdleWorlds,
    failed: &mut Vec<anyhow::Error>,
) -> Result<Vec<CaseRecord>> {
    let cpus = cpus()?;
    let [one, other, ..] = cpus[..] else { return Ok(Vec::new()) };
    let (rounds, packets) = if quick { (3, 100_000) } else { (9, 2_000_000) };
    let mut records = Vec::new();
    if only.fits("scaling.wrapper") {
        records.push(of_wrapper([one, other], rounds, packets)?);
    }
    let mut cases = scaling_cases();
    if quick {
        // Each fills a large table before it is measured.
        cases.truncate(1);
    }
    for (case, sharing) in cases {
        let name = scaling_name(&case, sharing);
        if !only.fits(&name) {
            continue;
        }
        check_interrupted()?;
        progress.step(&name);
        match Pair::new(case, sharing, [one, other], idle) {
            Ok(mut pair) => {
                let sample = (0..rounds).map(|_| pair.measure(packets)).collect::<Result<_>>()?;
                records.push(CaseRecord::end_to_end(&sample, &name, "times"));
                pair.subject.end(idle);
            }
            Err(error) => failed.push(error.context(name)),
        }
    }
    Ok(records)
}

fn scaling_cases() -> Vec<(Case, Sharing)> {
    let local = Case::established(false, false);
    let remote = Case { backends: Backends::Remote, ..local };
    vec![
        (local, Sharing::Different),
        (local, Sharing::Same),
        (remote, Sharing::Different),
        (remote, Sharing::Same),
        (Case { kind: PacketKind::New, ..local }, Sharing::Different),
        (Case { kind: PacketKind::New, ..remote }, Sharing::Different),
    ]
}

fn scaling_name(case: &Case, sharing: Sharing) -> String {
    let sharing = if sharing == Sharing::Same { "same" } else { "different" };
    format!("scaling.{}.{sharing}", case.name())
}

/// The CPUs that this program may use.
fn cpus() -> Result<Vec<usize>> {
    let allowed = sched_getaffinity(Pid::from_raw(0))?;
    Ok((0..CpuSet::count()).filter(|cpu| allowed.is_set(*cpu).unwrap_or(false)).collect())
}

fn of_wrapper(cpus: [usize; 2], rounds: usize, packets: u32) -> Result<CaseRecord> {
    let packet = Case::established(false, false).request();
    let template = packet_template(&packet, Side::Source, 1);
    let mut wrappers =
        [Wrapper::around_nothing(Hook::Forward)?, Wrapper::around_nothing(Hook::Forward)?];
    let templates = [template; 2];
    let measured = (0..rounds).map(|_| factor(&mut wrappers, &templates, &packet, cpus, packets));
    let sample: Sample = measured.collect::<Result<_>>()?;
    Ok(CaseRecord::end_to_end(&sample, "scaling.wrapper", "times"))
}

/// A case with a wrapper for each CPU.
struct Pair {
    subject: Subject,
    wrappers: [Wrapper; 2],
    templates: [Template; 2],
    cpus: [usize; 2],
}

impl Pair {
    fn new(case: Case, sharing: Sharing, cpus: [usize; 2], idle: &mut IdleWorlds) -> Result<Self> {
        let mut subject = Subject::new(case, FLOWS, 8 * FLOWS, idle)?;
        let wrappers = [subject.another_wrapper()?, subject.another_wrapper()?];
        let first = match case.kind {
            PacketKind::New => *subject.template(),
            _ => Template { client_mask: PORTS - 1, ..*subject.template() },
        };
        let apart = match (sharing, case.kind) {
            (Sharing::Same, _) => 0,
            (Sharing::Different, PacketKind::New) => APART,
            (Sharing::Different, _) => 1,
        };
        let second = Template { first_address: first.first_address + apart, ..first };
        Ok(Self { subject, wrappers, templates: [first, second], cpus })
    }

    fn measure(&mut self, packets: u32) -> Result<f64> {
        let Self { subject, wrappers, templates, cpus } = self;
        let packet = subject.packet().clone();
        subject.enter(|| factor(wrappers, templates, &packet, *cpus, packets))
    }
}

/// How many times as many packets both CPUs handle as the first one alone.
fn factor(
    wrappers: &mut [Wrapper; 2],
    templates: &[Template; 2],
    packet: &Packet,
    cpus: [usize; 2],
    packets: u32,
) -> Result<f64> {
    run_on_cpus(wrappers, templates, packet, cpus, packets / 4)?;
    let [alone] = run_on_cpus(wrappers, &[templates[0]], packet, cpus, packets)?[..] else {
        anyhow::bail!("one CPU was to run");
    };
    let both = run_on_cpus(wrappers, templates, packet, cpus, packets)?;
    Ok(both.iter().map(|time| alone / time).sum())
}

/// Runs packets on as many CPUs at once as there are templates. Returns the nanoseconds per packet of each.
fn run_on_cpus(
    wrappers: &mut [Wrapper; 2],
    templates: &[Template],
    packet: &Packet,
    cpus: [usize; 2],
    packets: u32,
) -> Result<Vec<f64>> {
    let on = |cpu: usize, wrapper: &mut Wrapper, template: &Template| {
        let mut set = CpuSet::new();
        set.set(cpu)?;
        sched_setaffinity(Pid::from_raw(0), &set).with_context(|| format!("CPU {cpu}"))?;
        let begin = Instant::now();
        wrapper.run(template, packet, packets)?;
        Ok(begin.elapsed().as_nanos() as f64 / f64::from(packets))
    };
    thread::scope(|scope| {
        let both = wrappers.iter_mut().zip(templates).zip(cpus);
        let threads: Vec<_> = both
            .map(|((wrapper, template), cpu)| scope.spawn(move || on(cpu, wrapper, template)))
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("it does not panic")).collect()
    })
}
