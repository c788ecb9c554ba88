//! The BPF programs that pass a fresh packet to the measured program in each run.

use std::time::Duration;

use crate::generator::{OBJECT, Plain};
use ::tests::packets::datapath::kernel::context;
use ::tests::packets::datapath::{Fate, Hook};
use anyhow::{Context, Result, bail, ensure};
use aya::maps::{Array, ProgramArray};
use aya::programs::{ProgramFd, SchedClassifier, TestRun, TestRunOptions, TestRunResult, Xdp};
use aya::{Ebpf, EbpfLoader};
use lb_common::bench::{BenchEnd, MAX_ENDS, Template, permuted};

pub(crate) struct Wrapper {
    ebpf: Ebpf,
    hook: Hook,
    /// The possible fates of packets.
    fates: &'static [Fate],
    /// Whether packets arrive on the external device of this thread's namespace. Otherwise on `lo`.
    outside: bool,
}

impl Wrapper {
    /// A wrapper of the empty program.
    pub(crate) fn around_nothing(hook: Hook) -> Result<Self> {
        let mut wrapper = Self::load(hook)?;
        let empty = match hook {
            Hook::Forward => load_xdp(&mut wrapper.ebpf, "empty_xdp")?,
            _ => {
                let program: &mut SchedClassifier = program(&mut wrapper.ebpf, "empty_tc")?;
                program.load()?;
                program.fd()?.try_clone()?
            }
        };
        wrapper.put_under_test(&empty)?;
        Ok(wrapper)
    }

    /// A wrapper of a program that only adds bytes in front of the packet.
    pub(crate) fn around_growth() -> Result<Self> {
        let mut wrapper = Self::load(Hook::Forward)?;
        let grow = load_xdp(&mut wrapper.ebpf, "grow_xdp")?;
        wrapper.put_under_test(&grow)?;
        Ok(wrapper)
    }

    /// Its packets arrive on the external device of the namespace that runs them.
    pub fn around(hook: Hook, under_test: &ProgramFd, fates: &'static [Fate]) -> Result<Self> {
        let mut wrapper = Self::load(hook)?;
        wrapper.put_under_test(under_test)?;
        wrapper.outside = true;
        wrapper.fates = fates;
        Ok(wrapper)
    }

    /// Writes the list of ends, in an order that no cache can predict. Their number is a power of two.
    pub fn list(&mut self, ends: &[BenchEnd]) -> Result<()> {
        ensure!(
            ends.len().is_power_of_two() && ends.len() <= MAX_ENDS,
            "{} flows: more than {MAX_ENDS} ends can't be listed",
            ends.len()
        );
        let map = self.ebpf.map_mut("ENDS").context("no map ENDS")?;
        let mut map = Array::<_, Plain<BenchEnd>>::try_from(map)?;
        for index in 0..ends.len() as u32 {
            let end = ends[permuted(index) as usize % ends.len()];
            map.set(index, Plain(end), 0)?;
        }
        Ok(())
    }

    fn load(hook: Hook) -> Result<Self> {
        if OBJECT.is_empty() {
            bail!("this was built without the benchmark's BPF object: use `cargo xtask bench`");
        }
        let mut ebpf = EbpfLoader::new().load(OBJECT)?;
        match hook {
            Hook::Forward => program::<Xdp>(&mut ebpf, "wrap_xdp")?.load()?,
            _ => program::<SchedClassifier>(&mut ebpf, "wrap_tc")?.load()?,
        }
        Ok(Self { ebpf, hook, fates: &[Fate::Passed], outside: false })
    }

    fn put_under_test(&mut self, under_test: &ProgramFd) -> Result<()> {
        let name = match self.hook {
            Hook::Forward => "XDP_UNDER_TEST",
            _ => "TC_UNDER_TEST",
        };
        let map = self.ebpf.map_mut(name).with_context(|| format!("no map {name}"))?;
        Ok(ProgramArray::try_from(map)?.set(0, under_test, 0)?)
    }

    /// Runs packets made from a template; returns the average time per packet.
    pub fn run(&mut self, template: &Template, packet: &[u8], repeat: u32) -> Result<Duration> {
        let map = self.ebpf.map_mut("TEMPLATE").context("no map TEMPLATE")?;
        Array::<_, Plain<Template>>::try_from(map)?.set(0, Plain(*template), 0)?;
        let name = match self.hook {
            Hook::Forward => "wrap_xdp",
            _ => "wrap_tc",
        };
        let context = self.outside.then(|| context(self.hook, packet, 0));
        let result = test_run(&mut self.ebpf, self.hook, name, packet, context.as_deref(), repeat)?;
        let mut wanted = self.fates.iter().flat_map(|fate| codes(self.hook, *fate));
        if !wanted.any(|code| *code == result.return_value) {
            bail!("the program under test returned {}", result.return_value as i32);
        }
        Ok(result.duration)
    }

    /// The empty program without a wrapper.
    pub(crate) fn run_empty(&mut self, packet: &[u8], repeat: u32) -> Result<Duration> {
        let name = match self.hook {
            Hook::Forward => "empty_xdp",
            _ => "empty_tc",
        };
        Ok(test_run(&mut self.ebpf, self.hook, name, packet, None, repeat)?.duration)
    }
}

/// What a program returns for packets with this fate.
fn codes(hook: Hook, fate: Fate) -> &'static [u32] {
    match (hook, fate) {
        (Hook::Forward, Fate::Dropped) => &[1],
        (Hook::Forward, Fate::Passed | Fate::Deferred) => &[2],
        (Hook::Forward, Fate::Transmitted) => &[3],
        (Hook::Forward, Fate::Sent) => &[4],
        (_, Fate::Dropped) => &[2],
        // TC_ACT_UNSPEC of Millrace's programs, or TC_ACT_OK of the empty one.
        (_, Fate::Passed | Fate::Deferred) => &[u32::MAX, 0],
        (_, Fate::Transmitted | Fate::Sent) => &[7],
    }
}

fn load_xdp(ebpf: &mut Ebpf, name: &str) -> Result<ProgramFd> {
    let program: &mut Xdp = program(ebpf, name)?;
    program.load()?;
    Ok(program.fd()?.try_clone()?)
}

fn test_run(
    ebpf: &mut Ebpf,
    hook: Hook,
    name: &str,
    packet: &[u8],
    context: Option<&[u8]>,
    repeat: u32,
) -> Result<TestRunResult> {
    let mut out = vec![0; packet.len() + 256];
    let options = TestRunOptions {
        data_in: Some(packet),
        data_out: Some(&mut out),
        ctx_in: context,
        repeat,
        ..TestRunOptions::default()
    };
    Ok(match hook {
        Hook::Forward => program::<Xdp>(ebpf, name)?.test_run(options)?,
        _ => program::<SchedClassifier>(ebpf, name)?.test_run(options)?,
    })
}

fn program<'a, P>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut P>
where
    &'a mut P: TryFrom<&'a mut aya::programs::Program, Error = aya::programs::ProgramError>,
{
    let program = ebpf.program_mut(name).with_context(|| format!("no program {name}"))?;
    Ok(program.try_into()?)
}
