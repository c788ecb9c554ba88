//! The data plane in the kernel, run by BPF_PROG_TEST_RUN.

use std::collections::BTreeMap;

use anyhow::Result;
use aya::programs::{TestRun, TestRunOptions};
use lb_common::layout::Reason;
use lb_userspace::kernel::{DataPlane, Pins, Sizes, Tables};
use lb_userspace::network::Device;
use lb_userspace::plan::Step;

use super::{Fate, Flows, Hook, Outcome, World};
use crate::topology::Topology;

/// By which BPF_PROG_TEST_RUN says that packets come in: the loopback device.
pub const TEST_RUN_DEVICE: u32 = 1;

const XDP_DROP: u32 = 1;
const XDP_PASS: u32 = 2;
const XDP_TX: u32 = 3;
const XDP_REDIRECT: u32 = 4;
/// -1 as the kernel returns it.
const TC_ACT_UNSPEC: u32 = u32::MAX;
const TC_ACT_SHOT: u32 = 2;
const TC_ACT_REDIRECT: u32 = 7;

/// A data plane of its own, pinned in a directory of its own, attached to nothing.
pub struct KernelWorld {
    pub data_plane: DataPlane,
    pub tables: Tables,
    _pins: Pins,
    /// Without hosts: it takes the pins away in the end, and sweeps those of killed runs.
    _topology: Topology,
}

impl KernelWorld {
    pub fn new(sizes: Sizes) -> Result<Self> {
        let topology = Topology::new("kernel")?;
        let pins = Pins::open(&topology.pins())?;
        let mut data_plane = DataPlane::load(&pins, sizes)?;
        let mut tables = data_plane.tables()?;
        let device = Device { transmit: true, ..Device::default() };
        tables.change_devices(&BTreeMap::from([(TEST_RUN_DEVICE, Some(device))]))?;
        Ok(Self { data_plane, tables, _pins: pins, _topology: topology })
    }
}

impl World for KernelWorld {
    fn apply(&mut self, step: &Step) {
        self.tables.apply(step).unwrap_or_else(|error| panic!("{step:?}: {error:#}"));
    }

    fn run(&mut self, hook: Hook, frame: &[u8]) -> Outcome {
        let mut out = vec![0; frame.len() + 256];
        let options = TestRunOptions {
            data_in: Some(frame),
            data_out: Some(&mut out),
            ..TestRunOptions::default()
        };
        let result = match hook {
            Hook::Forward => self.data_plane.external_in().map(|program| program.test_run(options)),
            Hook::Workload => {
                self.data_plane.workload_in().map(|program| program.test_run(options))
            }
            Hook::Reverse => self.data_plane.out().map(|program| program.test_run(options)),
        };
        let result = result
            .unwrap_or_else(|error| panic!("{hook:?}: {error:#}"))
            .unwrap_or_else(|error| panic!("{hook:?} of {} bytes: {error:#}", frame.len()));
        let fate = match (hook, result.return_value) {
            (Hook::Forward, XDP_PASS) => Fate::Passed,
            (Hook::Forward, XDP_DROP) => Fate::Dropped,
            (Hook::Forward, XDP_TX | XDP_REDIRECT) => Fate::Sent,
            (Hook::Workload | Hook::Reverse, TC_ACT_UNSPEC) => Fate::Passed,
            (Hook::Workload | Hook::Reverse, TC_ACT_SHOT) => Fate::Dropped,
            (Hook::Workload, TC_ACT_REDIRECT) => Fate::Sent,
            (hook, other) => panic!("{hook:?} returned {other}"),
        };
        out.truncate(result.data_size_out as usize);
        Outcome { fate, bytes: out }
    }

    fn flows(&self) -> Flows {
        Flows { v4: self.tables.flows4().collect(), v6: self.tables.flows6().collect() }
    }

    fn reasons(&self) -> Vec<(Reason, u64)> {
        self.tables.reasons().unwrap_or_else(|error| panic!("{error:#}"))
    }
}
