//! What is pinned and attached, as the kernel tells it: without the lock, beside an agent that
//! runs or after one that has died.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context, Result};
use aya::maps::MapData;
use lb_common::layout::map;
use nix::net::if_::if_nametoindex;

use super::attach::{self, Hook, cgroup};
use super::link::PinnedLink;
use super::pins;

/// One data plane.
#[derive(Clone, Debug, Default)]
pub struct Survey {
    /// All maps there should be.
    pub maps: Vec<SurveyedMap>,
    pub attachments: Vec<Attachment>,
    /// Of programs for processes of the node: how many are attached, and how many there should be.
    pub processes: (usize, usize),
    /// The process that holds the directory's lock: the agent.
    pub holder: Option<u32>,
}

#[derive(Clone, Debug)]
pub struct SurveyedMap {
    pub name: &'static str,
    /// `None`: it is not there.
    pub capacity: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Attachment {
    pub device: String,
    pub hook: Hook,
    /// Whether a device is still there that it is attached to.
    pub is_attached: bool,
}

/// Looks at what is pinned in a directory. Filters of tc are looked for in this network namespace.
pub fn survey(pin_path: &Path) -> Result<Survey> {
    let mut survey = Survey { processes: (0, cgroup::PROGRAMS.len()), ..Survey::default() };
    for name in map::ALL {
        let path = pin_path.join(name);
        let capacity = match MapData::from_pin(&path) {
            Ok(map) => Some(map.info()?.max_entries()),
            Err(_) if !path.exists() => None,
            Err(error) => return Err(error).with_context(|| path.display().to_string()),
        };
        survey.maps.push(SurveyedMap { name, capacity });
    }
    for (name, path) in entries(&pin_path.join(pins::LINKS))? {
        let Some(link) = PinnedLink::open(&path)? else { continue };
        if cgroup::is_pin(&name) {
            survey.processes.0 += usize::from(link.cgroup()? != 0);
        } else if let Some((device, hook)) = attach::pinned_as(&name) {
            let is_attached = link.device()? != 0;
            survey.attachments.push(Attachment { device, hook, is_attached });
        }
    }
    for (name, path) in entries(&pin_path.join(pins::FILTERS))? {
        let device = pins::unescaped(&name);
        for (note, _) in entries(&path)? {
            let Some(hook) = attach::noted_as(&note) else { continue };
            let index = if_nametoindex(device.as_str()).ok();
            let is_attached = match index {
                Some(index) => attach::has_filter(pin_path, index, hook)?,
                None => false,
            };
            survey.attachments.push(Attachment { device: device.clone(), hook, is_attached });
        }
    }
    survey.attachments.sort();
    survey.holder = pins::holder_of(&pin_path.metadata()?);
    Ok(survey)
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

/// What this kernel can do that makes a difference.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Features {
    pub version: String,
    pub btf: bool,
    /// Else tc programs are filters of clsact.
    pub tcx: bool,
    /// Else programs are interpreted, and slow.
    pub jit: bool,
}

pub fn features() -> Result<Features> {
    let jit = fs::read_to_string("/proc/sys/net/core/bpf_jit_enable");
    Ok(Features {
        version: fs::read_to_string("/proc/sys/kernel/osrelease")
            .context("the kernel does not tell its version")?
            .trim()
            .to_owned(),
        btf: Path::new("/sys/kernel/btf/vmlinux").exists(),
        tcx: attach::has_tcx()?,
        // Where it can't be switched off there is no such file, or none in this namespace.
        jit: jit.map_or(true, |text| text.trim() != "0"),
    })
}
