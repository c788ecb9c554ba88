//! The BPF object: its maps, made or adopted, and its programs, loaded.

use anyhow::{Context, Result, anyhow, bail};
use aya::maps::{Array, ProgramArray};
use aya::programs::{Program, ProgramError, ProgramInfo, SchedClassifier, Xdp};
use aya::{Ebpf, EbpfLoader};
use lb_common::datapath::{Stage, TELL};
use lb_common::layout::{BufferSum, Identity, SCHEMA, Settings, map};

use super::adoption;
use super::attach::Place;
use super::buffer_sum;
use super::messages::{self, BpfLogLevel};
use super::pins::Pins;
use super::plain::Plain;
use super::sizes::Sizes;
use super::tables::Tables;
use super::verify;
use crate::memory;

/// The programs of the stages. XDP has only those that packets come to on their way in.
const XDP_STAGES: [(Stage, &str); 9] = [
    (Stage::Open, "xdp_open"),
    (Stage::Alias, "xdp_alias"),
    (Stage::Reset, "xdp_reset"),
    (Stage::Reject, "xdp_reject"),
    (Stage::ErrorIn, "xdp_error_in"),
    (Stage::FragmentIn, "xdp_fragment_in"),
    (Stage::Encapsulate, "xdp_encapsulate"),
    (Stage::Decapsulate, "xdp_decapsulate"),
    (Stage::Delivered, "xdp_delivered"),
];
const TC_STAGES: [(Stage, &str); Stage::ALL.len()] = [
    (Stage::Open, "tc_open"),
    (Stage::Alias, "tc_alias"),
    (Stage::Reset, "tc_reset"),
    (Stage::Reject, "tc_reject"),
    (Stage::ErrorIn, "tc_error_in"),
    (Stage::ErrorOut, "tc_error_out"),
    (Stage::FragmentIn, "tc_fragment_in"),
    (Stage::FragmentOut, "tc_fragment_out"),
    (Stage::Encapsulate, "tc_encapsulate"),
    (Stage::Decapsulate, "tc_decapsulate"),
    (Stage::Delivered, "tc_delivered"),
];

/// Built by `cargo xtask build-ebpf`; empty if that has not been run.
static OBJECT: &[u8] = aya::include_bytes_aligned!(env!("MILLRACE_BPF_OBJECT"));

/// The memory that all maps take, in bytes, about; `None` if there are no programs in this binary.
pub fn memory(sizes: Sizes) -> Result<Option<u64>> {
    let processors = std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
    if OBJECT.is_empty() {
        return Ok(None);
    }
    adoption::memory(OBJECT, sizes, processors).map(Some)
}

/// The loaded programs. Dropping them detaches nothing that is pinned.
pub struct DataPlane {
    ebpf: Ebpf,
    reads_buffers: bool,
    adopted: bool,
    flow_seed: u64,
}

impl DataPlane {
    /// Loads the programs over the pinned maps. Maps that can't be adopted are made anew; what
    /// that loses is said in the log.
    pub fn load(pins: &Pins, sizes: Sizes) -> Result<Self> {
        Self::load_at(pins, sizes, BpfLogLevel::Off)
    }

    /// The same, with programs that say what they have to say, up to a level.
    pub fn load_at(pins: &Pins, sizes: Sizes, level: BpfLogLevel) -> Result<Self> {
        if OBJECT.is_empty() {
            bail!(
                "this binary was built without the BPF programs.\n\
                 Build them with `cargo xtask build-ebpf`, then build it again"
            );
        }
        let found = adoption::prepare(pins, OBJECT, sizes)?;
        let adopted = found.is_some();
        let identity = found.unwrap_or_else(new_identity);
        let settings = Plain(Settings::new(identity.flow_seed, sizes.flow_buckets()));

        let (object, place) = buffer_sum::resolved(OBJECT);
        let reads_buffers = place != BufferSum::UNKNOWN;
        let place = Plain(place);

        let mut loader = EbpfLoader::new();
        loader.override_global("SETTINGS", &settings, true);
        loader.override_global("BUFFER_SUM", &place, true);
        let level_number = level.number();
        loader.override_global("AYA_LOG_LEVEL", &level_number, true);
        for name in map::ALL {
            if let Some(entries) = sizes.entries(name) {
                loader.map_max_entries(name, entries);
            }
            loader.map_pin_path(name, pins.map(name));
        }
        let mut ebpf = loader.load(&object).map_err(|error| explain(anyhow!(error)))?;

        let pinned = ebpf.map_mut(map::IDENTITY).context("the object has no map IDENTITY")?;
        let mut pinned: Array<_, Plain<Identity>> = Array::try_from(pinned)?;
        pinned.set(0, Plain(identity), 0)?;

        let mut data_plane = Self { ebpf, reads_buffers, adopted, flow_seed: identity.flow_seed };
        // What it took to read the object need not be there along with what the verifier takes.
        memory::give_back();
        verify::load(&mut data_plane.ebpf).map_err(explain)?;
        data_plane.lead_to_stages()?;
        Ok(data_plane)
    }

    /// Fills the tables by which programs go on to stages. An earlier agent's programs may be running
    /// over them already.
    fn lead_to_stages(&mut self) -> Result<()> {
        let xdp = XDP_STAGES.iter().map(|&(stage, name)| (map::XDP_STAGES, stage as u32, name));
        let tc = TC_STAGES.iter().map(|&(stage, name)| (map::TC_STAGES, stage as u32, name));
        let tell = [(map::XDP_STAGES, TELL, "xdp_tell"), (map::TC_STAGES, TELL, "tc_tell")];
        for (stages, index, name) in xdp.chain(tc).chain(tell) {
            let program = self.program(name)?.fd()?.try_clone()?;
            let stages = self.ebpf.map_mut(stages).context("the object has no stages")?;
            ProgramArray::try_from(stages)?.set(index, &program, 0)?;
        }
        Ok(())
    }

    /// Has the programs' messages come into the log, as long as the runtime runs.
    pub fn follow_messages(&mut self) -> Result<()> {
        messages::follow(&mut self.ebpf)
    }

    /// Whether programs of tc see from the kernel's description of a packet what its checksum is worth.
    pub fn reads_buffers(&self) -> bool {
        self.reads_buffers
    }

    /// Whether the maps are an earlier agent's.
    pub fn adopted(&self) -> bool {
        self.adopted
    }

    /// What places flows in the table.
    pub fn flow_seed(&self) -> u64 {
        self.flow_seed
    }

    pub fn tables(&mut self) -> Result<Tables> {
        Tables::take(&mut self.ebpf)
    }

    /// Every program that is loaded, by name.
    pub fn programs(&self) -> impl Iterator<Item = (&str, Result<ProgramInfo, ProgramError>)> {
        self.ebpf.programs().map(|(name, program)| (name, program.info()))
    }

    /// The program of [`Place::ExternalIn`].
    pub fn xdp(&mut self) -> Result<&mut Xdp> {
        program(&mut self.ebpf, Place::ExternalIn.program())
    }

    /// The program of one of the other places.
    pub fn classifier(&mut self, place: Place) -> Result<&mut SchedClassifier> {
        program(&mut self.ebpf, place.program())
    }

    pub fn program(&mut self, name: &str) -> Result<&mut Program> {
        self.ebpf.program_mut(name).with_context(|| format!("the object has no {name}"))
    }
}

fn program<'a, P>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut P>
where
    &'a mut P: TryFrom<&'a mut aya::programs::Program, Error = ProgramError>,
{
    let program = ebpf.program_mut(name).with_context(|| format!("the object has no {name}"))?;
    Ok(program.try_into()?)
}

fn new_identity() -> Identity {
    let mut seed = [0; 8];
    // Fails only where there is no entropy source at all; flows would then be predictable, but
    // found.
    if let Err(error) = getrandom::fill(&mut seed) {
        tracing::warn!("no random numbers ({error}): flow buckets are predictable");
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
