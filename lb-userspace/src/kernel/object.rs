//! The BPF object: its maps, created or adopted, and its programs, loaded or reused.

use std::path::PathBuf;

use anyhow::{Context, Result, anyhow, bail, ensure};
use aya::maps::{Array, Map, MapData};
use aya::programs::{Program, ProgramError, ProgramInfo, SchedClassifier, Xdp};
use aya::{Ebpf, EbpfLoader};
use lb_common::datapath::{REPORT, Stage};
use lb_common::layout::{BufferSum, Identity, SCHEMA, Settings, Timeouts, map};

use super::adoption;
use super::buffer_sum::{self, Access};
use super::hook::HookPoint;
use super::messages;
use super::pins::Pins;
use super::plain::Plain;
use super::programs::{self, Build, Programs};
use super::sizes::Sizes;
use super::source_lines::without_lines;
use super::stages::Stages;
use super::tables::Tables;
use super::transmit::{self, Transmitter};
use super::verify;
use crate::memory;
use crate::settings::{BpfLogLevel, LocalDelivery};
use crate::snat_ports::SnatRange;

/// Built by `cargo xtask build-ebpf`; empty if that has not been run.
pub(super) static OBJECT: &[u8] = aya::include_bytes_aligned!(env!("MILLRACE_BPF_OBJECT"));

/// Estimates the memory of all maps, in bytes; `None` if this binary contains no programs.
pub fn memory(sizes: Sizes) -> Result<Option<u64>> {
    let processors = std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
    if OBJECT.is_empty() {
        return Ok(None);
    }
    adoption::memory(&without_lines(OBJECT.to_vec()), sizes, processors).map(Some)
}

/// Settings of the data plane.
#[derive(Clone, Copy, Debug, Default)]
pub struct Parameters {
    pub sizes: Sizes,
    pub snat_ports: SnatRange,
    pub timeouts: Timeouts,
    pub local_delivery: LocalDelivery,
    /// The programs' log level.
    pub log_level: BpfLogLevel,
}

/// The loaded programs and their maps, as they are pinned. Dropping this detaches nothing.
pub struct DataPlane {
    programs: Programs,
    pin_path: PathBuf,
    /// Only for programs with messages: their ring buffer is not pinned.
    messages: Option<Ebpf>,
    reads_buffers: bool,
    adopted: bool,
    flow_seed: u64,
}

impl DataPlane {
    /// Reuses the programs and maps of an agent of the same build. Otherwise loads the programs
    /// over the pinned maps. Maps that can't be adopted are replaced by new ones, and the log says
    /// what is lost.
    pub fn load(pins: &Pins, sizes: Sizes) -> Result<Self> {
        Self::load_with(pins, Parameters { sizes, ..Parameters::default() })
    }

    /// The same, with settings other than sizes.
    pub fn load_with(pins: &Pins, parameters: Parameters) -> Result<Self> {
        if OBJECT.is_empty() {
            bail!(
                "this binary was built without the BPF programs.\n\
                 Build them with `cargo xtask build-ebpf`, then build it again"
            );
        }
        let access = buffer_sum::access();
        let reused = match parameters.log_level {
            BpfLogLevel::Off => Self::reuse(pins, parameters, access),
            _ => Err(anyhow!("their messages could not be read")),
        };
        match reused {
            Ok(data_plane) => Ok(data_plane),
            Err(why) => {
                tracing::debug!(reason = format!("{why:#}"), "pinned programs not reused");
                Self::load_anew(pins, parameters, access)
            }
        }
    }

    /// The error says what does not match.
    fn reuse(pins: &Pins, parameters: Parameters, access: Access) -> Result<Self> {
        let pinned = MapData::from_pin(pins.map(map::IDENTITY))?;
        let pinned = Array::<_, Plain<Identity>>::try_from(Map::Array(pinned))?;
        let Plain(identity) = pinned.get(&0, 0)?;
        ensure!(identity.schema == SCHEMA, "the maps have schema {}", identity.schema);
        let globals = Globals::new(identity, parameters, access);
        let programs = programs::find(pins, &globals.build(parameters.sizes))?;
        let data_plane = Self::new(pins, programs, identity, access, true);
        data_plane.lead_to_stages()?;
        tracing::info!(
            programs = data_plane.programs.len(),
            adopted_maps = map::ALL.len(),
            maps = map::ALL.len(),
            "adopting maps and programs of the previous agent"
        );
        Ok(data_plane)
    }

    fn load_anew(pins: &Pins, parameters: Parameters, access: Access) -> Result<Self> {
        let sizes = parameters.sizes;
        let object = buffer_sum::resolved(OBJECT, access);
        let lean = without_lines(object.to_vec());
        let found = adoption::prepare(pins, &lean, sizes)?;
        let adopted = found.is_some();
        let identity = found.unwrap_or_else(new_identity);
        let globals = Globals::new(identity, parameters, access);

        let load = |object: &[u8]| {
            let mut ebpf = globals.loader(pins, sizes).load(object)?;
            let pinned = ebpf.map_mut(map::IDENTITY).context("the object has no map IDENTITY")?;
            let mut pinned: Array<_, Plain<Identity>> = Array::try_from(pinned)?;
            pinned.set(0, Plain(identity), 0)?;
            let pinned = ebpf.map_mut(map::PARAMETERS);
            let pinned = pinned.context("the object has no map PARAMETERS")?;
            Array::try_from(pinned)?.set(0, globals.settings, 0)?;
            anyhow::Ok(ebpf)
        };
        let mut ebpf = load(&lean).map_err(explain)?;
        drop(lean);

        // Free the memory for reading the object before the verifier needs memory.
        memory::give_back();
        if verify::load(&mut ebpf).is_err() {
            // Again, for a log with source lines.
            ebpf = load(&object).map_err(explain)?;
            verify::load(&mut ebpf).map_err(explain)?;
        }
        let programs = programs::pin(pins, &globals.build(sizes), &mut ebpf)?;
        let mut data_plane = Self::new(pins, programs, identity, access, adopted);
        data_plane.messages = (parameters.log_level != BpfLogLevel::Off).then_some(ebpf);
        data_plane.lead_to_stages()?;
        Ok(data_plane)
    }

    fn new(
        pins: &Pins,
        programs: Programs,
        identity: Identity,
        access: Access,
        adopted: bool,
    ) -> Self {
        Self {
            programs,
            pin_path: pins.path().to_owned(),
            messages: None,
            reads_buffers: access.place != BufferSum::UNKNOWN,
            adopted,
            flow_seed: identity.flow_seed,
        }
    }

    /// Fills the arrays of programs by which programs tail-call stages. An earlier agent's programs
    /// may already be running over them.
    fn lead_to_stages(&self) -> Result<()> {
        let xdp: Vec<_> = Stage::ALL
            .into_iter()
            .filter_map(|stage| Some((stage as u32, stage.xdp_program()?)))
            .collect();
        let tc = Stage::ALL.map(|stage| (stage as u32, stage.tc_program()));
        for (array, stages, report) in [
            (map::XDP_STAGES, &xdp[..], (REPORT, "xdp_report")),
            (map::TC_STAGES, &tc[..], (REPORT, "tc_report")),
        ] {
            let array = Stages::open(&self.pin_path.join(array))?;
            for &(index, name) in stages.iter().chain([&report]) {
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
        messages::follow(ebpf)
    }

    /// Whether tc programs read the checksum state that the kernel keeps for a packet.
    pub fn reads_buffers(&self) -> bool {
        self.reads_buffers
    }

    /// Whether the maps were adopted from an earlier agent.
    pub fn adopted(&self) -> bool {
        self.adopted
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

/// The values that the programs are loaded with: constants to the verifier.
struct Globals {
    settings: Plain<Settings>,
    buffer_sum: Plain<BufferSum>,
    level: u8,
}

impl Globals {
    fn new(identity: Identity, parameters: Parameters, access: Access) -> Self {
        let Parameters { sizes, snat_ports, timeouts, local_delivery, log_level } = parameters;
        Self {
            settings: Plain(Settings {
                snat_port_first: snat_ports.first,
                snat_port_count: snat_ports.count,
                direct: u32::from(local_delivery == LocalDelivery::Direct),
                ..Settings::new(identity.flow_seed, sizes.flow_buckets()).with_timeouts(timeouts)
            }),
            buffer_sum: Plain(access.place),
            level: log_level.number(),
        }
    }

    /// Loads programs with these values over the pinned maps; what is not pinned is created and pinned.
    fn loader(&self, pins: &Pins, sizes: Sizes) -> EbpfLoader<'_> {
        let mut loader = EbpfLoader::new();
        loader.override_global("SETTINGS", &self.settings, true);
        loader.override_global("BUFFER_SUM", &self.buffer_sum, true);
        loader.override_global("AYA_LOG_LEVEL", &self.level, true);
        for name in map::ALL {
            if let Some(entries) = sizes.entries(name) {
                loader.map_max_entries(name, entries);
            }
            loader.map_pin_path(name, pins.map(name));
        }
        loader
    }

    fn build(&self, sizes: Sizes) -> Build {
        let globals = [self.settings.bytes(), self.buffer_sum.bytes(), &[self.level]];
        Build::new(OBJECT, &globals, sizes)
    }
}

fn new_identity() -> Identity {
    let mut seed = [0; 8];
    // Fails only where there is no entropy source at all; flows would then be predictable, but
    // found.
    if let Err(error) = getrandom::fill(&mut seed) {
        let error = format!("{error:#}");
        tracing::warn!(error, "no random numbers available; flow buckets are predictable");
    }
    Identity { schema: SCHEMA, reserved: 0, flow_seed: u64::from_ne_bytes(seed) }
}

fn explain(error: anyhow::Error) -> anyhow::Error {
    let denied = error.chain().any(|cause| {
        cause
            .downcast_ref::<std::io::Error>()
            .is_some_and(|error| error.raw_os_error() == Some(nix::libc::EPERM))
    });
    if denied {
        return error.context(
            "the kernel does not permit loading BPF programs.\n\
             In a container, set securityContext.privileged: true (or add the capabilities BPF, \
             NET_ADMIN and PERFMON); check that kernel lockdown is off",
        );
    }
    error.context("the BPF programs can't be loaded")
}
