//! The BPF object: its maps are created or adopted, then the kernel verifies its programs, or those of an agent of the
//! same build are used.
//!
//! Verification takes most of the time of a start. So the maps can be written meanwhile.

use anyhow::{Context, Result, anyhow, bail, ensure};
use aya::maps::{Array, Map, MapData};
use aya::{Ebpf, EbpfLoader};
use lb_common::layout::{BufferSum, Identity, SCHEMA, Settings, Timeouts, map};

use super::adoption;
use super::buffer_sum::{self, Access};
use super::data_plane::DataPlane;
use super::pins::Pins;
use super::plain::Plain;
use super::programs::{self, Build};
use super::sizes::Sizes;
use super::source_lines::without_lines;
use super::verify;
use crate::memory::give_back_memory;
use crate::settings::BpfLogLevel;
use lb_network::snat_ports::SnatRange;

/// Built by `cargo xtask build-ebpf`; empty if that has not been run.
pub(super) static OBJECT: &[u8] = aya::include_bytes_aligned!(env!("MILLRACE_BPF_OBJECT"));

/// Estimates the memory of all maps, in bytes; `None` if this binary contains no programs.
pub fn compute_memory(sizes: Sizes) -> Result<Option<u64>> {
    let processors = std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
    if OBJECT.is_empty() {
        return Ok(None);
    }
    adoption::compute_object_memory(&without_lines(OBJECT.to_vec()), sizes, processors).map(Some)
}

/// Settings of the data plane.
#[derive(Clone, Copy, Debug, Default)]
pub struct Parameters {
    pub sizes: Sizes,
    pub snat_ports: SnatRange,
    pub timeouts: Timeouts,
    /// The programs' log level.
    pub log_level: BpfLogLevel,
}

impl DataPlane {
    /// Reuses the programs and maps of an agent of the same build. Otherwise loads the programs
    /// over the pinned maps. Maps that can't be adopted are replaced by new ones, and the log says
    /// what is lost.
    pub fn load(pins: &Pins, sizes: Sizes) -> Result<Self> {
        Self::load_with(pins, Parameters { sizes, ..Parameters::default() })
    }

    /// Loads like [`Self::load`], with settings other than sizes.
    pub fn load_with(pins: &Pins, parameters: Parameters) -> Result<Self> {
        let mut prepared = Prepared::open(pins, parameters)?;
        prepared.verify();
        prepared.finish(pins)
    }
}

/// A data plane with maps, whose programs may still have to be verified.
pub struct Prepared {
    programs: Unfinished,
    identity: Identity,
    access: Access,
    parameters: Parameters,
    adopted: bool,
}

enum Unfinished {
    /// With the programs of an earlier agent.
    Reused(DataPlane),
    /// Relocated; then verified.
    Loaded(Ebpf),
    /// The kernel has refused one.
    Refused(anyhow::Error),
}

impl Prepared {
    /// Creates or adopts the maps, and pins them.
    pub fn open(pins: &Pins, parameters: Parameters) -> Result<Self> {
        if OBJECT.is_empty() {
            bail!(
                "this binary was built without the BPF programs.\n\
                 Build them with `cargo xtask build-ebpf`, then build it again"
            );
        }
        let access = buffer_sum::detect_access();
        let reused = match parameters.log_level {
            BpfLogLevel::Off => Self::reuse(pins, parameters, access),
            _ => Err(anyhow!("their messages could not be read")),
        };
        match reused {
            Ok(prepared) => Ok(prepared),
            Err(why) => {
                tracing::debug!(reason = format!("{why:#}"), "pinned programs not reused");
                Self::open_anew(pins, parameters, access)
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
        let programs = programs::find_programs(pins, &globals.build(parameters.sizes))?;
        let count = programs.len();
        let data_plane = DataPlane::new(pins, programs, identity, access, None)?;
        tracing::info!(
            programs = count,
            adopted_maps = map::ALL.len(),
            maps = map::ALL.len(),
            "adopting maps and programs of the previous agent"
        );
        let programs = Unfinished::Reused(data_plane);
        Ok(Self { programs, identity, access, parameters, adopted: true })
    }

    fn open_anew(pins: &Pins, parameters: Parameters, access: Access) -> Result<Self> {
        let lean = without_lines(buffer_sum::resolve_stand_in(OBJECT, access).to_vec());
        let found = adoption::prepare(pins, &lean, parameters.sizes)?;
        let adopted = found.is_some();
        let identity = found.unwrap_or_else(new_identity);
        let globals = Globals::new(identity, parameters, access);
        let ebpf = globals.load(pins, parameters.sizes, identity, &lean)?;
        drop(lean);
        // Free the memory for reading the object before the verifier needs memory.
        give_back_memory();
        let programs = Unfinished::Loaded(ebpf);
        Ok(Self { programs, identity, access, parameters, adopted })
    }

    /// Whether the maps were adopted from an earlier agent.
    pub fn adopted(&self) -> bool {
        self.adopted
    }

    /// Whether the programs are those of an earlier agent.
    pub fn is_verified(&self) -> bool {
        matches!(self.programs, Unfinished::Reused(_))
    }

    /// Has the kernel verify the programs, unless it has done so for an earlier agent. Takes
    /// seconds; [`Self::finish`] returns the error.
    pub fn verify(&mut self) {
        if let Unfinished::Loaded(ebpf) = &mut self.programs
            && let Err(error) = verify::load(ebpf)
        {
            self.programs = Unfinished::Refused(explain(error));
        }
    }

    /// Pins the verified programs, and leads them to their stages.
    pub fn finish(self, pins: &Pins) -> Result<DataPlane> {
        let Self { programs, identity, access, parameters, .. } = self;
        let globals = Globals::new(identity, parameters, access);
        let mut ebpf = match programs {
            Unfinished::Reused(data_plane) => return Ok(data_plane),
            Unfinished::Refused(error) => return Err(error),
            Unfinished::Loaded(ebpf) => ebpf,
        };
        let programs = programs::pin_programs(pins, &globals.build(parameters.sizes), &mut ebpf)?;
        let messages = (parameters.log_level != BpfLogLevel::Off).then_some(ebpf);
        DataPlane::new(pins, programs, identity, access, messages)
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
        let Parameters { sizes, snat_ports, timeouts, log_level } = parameters;
        Self {
            settings: Plain(Settings {
                snat_port_first: snat_ports.first,
                snat_port_count: snat_ports.count,
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

    /// Loads the object, and fills the maps that programs only read.
    fn load(&self, pins: &Pins, sizes: Sizes, identity: Identity, object: &[u8]) -> Result<Ebpf> {
        let load = || {
            let mut ebpf = self.loader(pins, sizes).load(object)?;
            let pinned = ebpf.map_mut(map::IDENTITY).context("the object has no map IDENTITY")?;
            let mut pinned: Array<_, Plain<Identity>> = Array::try_from(pinned)?;
            pinned.set(0, Plain(identity), 0)?;
            let pinned = ebpf.map_mut(map::PARAMETERS);
            let pinned = pinned.context("the object has no map PARAMETERS")?;
            Array::try_from(pinned)?.set(0, self.settings, 0)?;
            Ok(ebpf)
        };
        load().map_err(explain)
    }

    fn build(&self, sizes: Sizes) -> Build {
        let globals = [self.settings.bytes(), self.buffer_sum.bytes(), &[self.level]];
        Build::new(programs::LOADER, OBJECT, &globals, sizes)
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
