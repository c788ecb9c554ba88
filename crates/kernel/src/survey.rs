//! What is pinned and attached, as the kernel reports it. Needs no lock, so it works beside a
//! running agent or after one has crashed.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context, Result};
use aya::maps::MapData;
use aya::programs::loaded_programs;
use lb_common::layout::map;
use nix::net::if_::if_nametoindex;

use super::attach::{self, cgroup};
use super::hook::{Hook, HookPoint, SOCKET_PROGRAMS};
use super::link::PinnedLink;
use super::pins;
use super::preflight::is_compiled;
use super::types::TYPES;

/// One data plane.
#[derive(Clone, Debug, Default)]
pub struct Survey {
    /// All maps that this version uses.
    pub maps: Vec<SurveyedMap>,
    pub attachments: Vec<Attachment>,
    /// Cgroup programs: how many are attached, and how many should be.
    pub processes: (usize, usize),
    /// The process that holds the directory's lock: the agent.
    pub holder: Option<u32>,
}

#[derive(Clone, Debug)]
pub struct SurveyedMap {
    pub name: &'static str,
    /// `None`: the map does not exist.
    pub capacity: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Attachment {
    pub device: String,
    pub hook: Hook,
    /// Whether the interface that it was attached to still exists.
    pub is_attached: bool,
    /// The hook point of its program, if this version knows it.
    pub point: Option<HookPoint>,
}

/// Reads what is pinned in a directory. Looks for tc filters in this network namespace.
pub fn survey_pins(pin_path: &Path) -> Result<Survey> {
    let mut survey = Survey { processes: (0, SOCKET_PROGRAMS.len()), ..Survey::default() };
    for name in map::ALL {
        let path = pin_path.join(name);
        let capacity = match MapData::from_pin(&path) {
            Ok(map) => Some(map.info()?.max_entries()),
            Err(_) if !path.exists() => None,
            Err(error) => return Err(error).with_context(|| path.display().to_string()),
        };
        survey.maps.push(SurveyedMap { name, capacity });
    }
    for (_, link) in read_pinned_links(pin_path)?.iter().filter(|(name, _)| cgroup::is_pin(name)) {
        survey.processes.0 += usize::from(link.cgroup()? != 0);
    }
    survey.attachments = list_attachments(pin_path)?;
    survey.holder = pins::holder_of(&pin_path.metadata()?);
    Ok(survey)
}

/// Programs of Millrace and the interfaces that they are attached to, as pinned or noted.
pub fn list_attachments(pin_path: &Path) -> Result<Vec<Attachment>> {
    let programs: BTreeMap<u32, HookPoint> = loaded_programs()
        .filter_map(Result::ok)
        .filter_map(|program| Some((program.id(), HookPoint::of_program(program.name_as_str()?)?)))
        .collect();
    let mut attachments = Vec::new();
    for (name, link) in read_pinned_links(pin_path)? {
        let Some((device, hook)) = attach::pinned_as(&name) else { continue };
        let point = programs.get(&link.program()?).copied();
        attachments.push(Attachment { device, hook, is_attached: link.device()? != 0, point });
    }
    for (name, path) in entries(&pin_path.join(pins::FILTERS))? {
        let device = pins::unescaped(&name);
        for (note, _) in entries(&path)? {
            let Some(hook) = attach::noted_as(&note) else { continue };
            let program = match if_nametoindex(device.as_str()) {
                Ok(index) => attach::filter_program(pin_path, index, hook)?,
                Err(_) => None,
            };
            attachments.push(Attachment {
                device: device.clone(),
                hook,
                is_attached: program.is_some(),
                point: program.and_then(|program| programs.get(&program).copied()),
            });
        }
    }
    attachments.sort();
    Ok(attachments)
}

/// The pinned links, by the names of their pins. Skips links that are removed concurrently.
pub(super) fn read_pinned_links(pin_path: &Path) -> Result<Vec<(String, PinnedLink)>> {
    let mut links = Vec::new();
    for (name, path) in entries(&pin_path.join(pins::LINKS))? {
        let link = PinnedLink::open(&path)
            .with_context(|| format!("the link {} can't be opened", path.display()))?;
        links.extend(link.map(|link| (name, link)));
    }
    Ok(links)
}

fn entries(directory: &Path) -> Result<Vec<(String, std::path::PathBuf)>> {
    let read = match fs::read_dir(directory) {
        Ok(read) => read,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).with_context(|| directory.display().to_string()),
    };
    let entry = |entry: std::io::Result<fs::DirEntry>| {
        let entry = entry?;
        Ok((entry.file_name().to_string_lossy().into_owned(), entry.path()))
    };
    read.map(entry).collect()
}

/// Optional features of this kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Features {
    pub version: String,
    pub btf: bool,
    /// Without it tc programs are filters of clsact.
    pub tcx: bool,
    /// Without it programs are interpreted, and slow.
    pub jit: bool,
}

pub fn probe_features() -> Result<Features> {
    Ok(Features {
        version: fs::read_to_string("/proc/sys/kernel/osrelease")
            .context("cannot read the kernel's version")?
            .trim()
            .to_owned(),
        btf: Path::new(TYPES).exists(),
        tcx: attach::has_tcx()?,
        jit: is_compiled(),
    })
}
