//! A data plane that can be attached: its programs, verified and pinned, over its pinned maps.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use aya::Ebpf;
use aya::programs::{Program, ProgramError, ProgramInfo, SchedClassifier, Xdp};
use lb_common::datapath::{ARRIVE, REPORT, Stage};
use lb_common::layout::{BufferSum, Identity, map};

use super::buffer_sum::Access;
use super::hook::HookPoint;
use super::messages;
use super::pins::Pins;
use super::programs::Programs;
use super::stages::Stages;
use super::tables::Tables;
use super::transmit::{self, Transmitter};

/// The loaded programs and their maps, as they are pinned. Dropping this detaches nothing.
pub struct DataPlane {
    programs: Programs,
    pin_path: PathBuf,
    /// Only for programs with messages: their ring buffer is not pinned.
    messages: Option<Ebpf>,
    reads_buffers: bool,
    flow_seed: u64,
}

impl DataPlane {
    /// `messages`: the loaded object, if its programs have messages.
    pub(super) fn new(
        pins: &Pins,
        programs: Programs,
        identity: Identity,
        access: Access,
        messages: Option<Ebpf>,
    ) -> Result<Self> {
        let data_plane = Self {
            programs,
            pin_path: pins.path().to_owned(),
            messages,
            reads_buffers: access.place != BufferSum::UNKNOWN,
            flow_seed: identity.flow_seed,
        };
        data_plane.lead_to_stages()?;
        Ok(data_plane)
    }

    /// Fills the arrays of programs by which programs tail-call stages. An earlier agent's programs
    /// may already be running over them.
    fn lead_to_stages(&self) -> Result<()> {
        let xdp: Vec<_> = Stage::ALL
            .into_iter()
            .filter_map(|stage| Some((stage as u32, stage.xdp_program()?)))
            .collect();
        let tc = Stage::ALL.map(|stage| (stage as u32, stage.tc_program()));
        let arrive = (ARRIVE, HookPoint::ExternalInTc.program());
        for (array, stages, others) in [
            (map::XDP_STAGES, &xdp[..], &[(REPORT, "xdp_report")][..]),
            (map::TC_STAGES, &tc[..], &[(REPORT, "tc_report"), arrive]),
        ] {
            let array = Stages::open(&self.pin_path.join(array))?;
            for &(index, name) in stages.iter().chain(others) {
                let program = self.programs.get(name);
                let program = program.with_context(|| format!("the object has no {name}"))?;
                array.lead_to(index, program).with_context(|| format!("stage {name}"))?;
            }
        }
        Ok(())
    }

    /// Writes the programs' messages to the log, as long as the runtime runs.
    pub fn follow_messages(&mut self) -> Result<()> {
        let ebpf = self.messages.as_mut().context("the programs were loaded without messages")?;
        messages::log_program_messages(ebpf)
    }

    /// Whether tc programs read the checksum state that the kernel keeps for a packet.
    pub fn reads_buffers(&self) -> bool {
        self.reads_buffers
    }

    /// Seed of the hash that selects a flow's buckets.
    pub fn flow_seed(&self) -> u64 {
        self.flow_seed
    }

    pub fn tables(&mut self) -> Result<Tables> {
        Tables::open(|name| self.pin_path.join(name))
    }

    /// Every program that is loaded, by name.
    pub fn programs(&self) -> impl Iterator<Item = (&str, Result<ProgramInfo, ProgramError>)> {
        self.programs.iter().map(|(name, program)| (name.as_str(), program.info()))
    }

    /// The program of [`HookPoint::ExternalIn`].
    pub fn xdp(&mut self) -> Result<&mut Xdp> {
        Ok(self.program(HookPoint::ExternalIn.program())?.try_into()?)
    }

    /// The program of one of the other hook points.
    pub fn classifier(&mut self, point: HookPoint) -> Result<&mut SchedClassifier> {
        Ok(self.program(point.program())?.try_into()?)
    }

    /// Takes the program that sends the agent's own frames. Each data plane has one.
    pub fn transmitter(&mut self) -> Result<Transmitter> {
        let program = self.programs.remove(transmit::PROGRAM);
        let program =
            program.with_context(|| format!("the object has no {}", transmit::PROGRAM))?;
        match program {
            Program::SchedClassifier(program) => Ok(Transmitter::new(program)),
            _ => bail!("{} is not a program of tc", transmit::PROGRAM),
        }
    }

    pub fn program(&mut self, name: &str) -> Result<&mut Program> {
        self.programs.get_mut(name).with_context(|| format!("the object has no {name}"))
    }
}
