//! Pins the programs of a data plane, so that an agent of the same build reuses them instead of
//! loading and verifying them again.
//!
//! Invariant: programs are reused only if loading would give the same ones over the same maps.
//! Their directory is named by a digest of everything that determines them, of the ids of all
//! pinned maps, and of the programs' own ids. It gets that name after all of them are pinned, so an
//! incomplete or changed directory never matches. Pins do not survive a reboot, so they always
//! belong to the kernel that verified the programs.
//!
//! Tests: below, and `tests/tests/life/reuse.rs`.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result, bail};
use aya::Ebpf;
use aya::maps::MapInfo;
use aya::programs::{CgroupSock, CgroupSockAddr, Program, ProgramInfo, SchedClassifier, Xdp};
use aya_obj::generated::bpf_prog_type;
use aya_obj::programs::XdpAttachType;
use lb_common::layout::map;
use sha2::{Digest, Sha256};

use super::hook::{SOCKET_HOOK, address_hook};
use super::pins::Pins;
use super::sizes::Sizes;

/// The name of an incomplete directory.
const INCOMPLETE: &str = "incomplete";

/// Sysctls that affect how the kernel compiles programs when it loads them.
const COMPILER: [&str; 2] =
    ["/proc/sys/net/core/bpf_jit_enable", "/proc/sys/net/core/bpf_jit_harden"];

/// The version of the loader: in an image with the commit, as in `lb_process::VERSION`.
pub(crate) const LOADER: &str = match option_env!("MILLRACE_VERSION") {
    Some(version) => version,
    None => env!("CARGO_PKG_VERSION"),
};

/// Loaded programs, by their names in the object.
pub type Programs = BTreeMap<String, Program>;

/// Everything that determines the programs except their maps.
pub struct Build(Sha256);

impl Build {
    /// The loader rewrites the object, so its version counts, too. `globals` are the values that the programs are loaded
    /// with, in a fixed order.
    pub fn new(loader: &str, object: &[u8], globals: &[&[u8]], sizes: Sizes) -> Self {
        let mut build = Self(Sha256::new());
        build.add(loader.as_bytes());
        build.add(object);
        globals.iter().for_each(|value| build.add(value));
        for name in map::ALL {
            build.add(&sizes.entries(name).unwrap_or_default().to_ne_bytes());
        }
        for path in COMPILER {
            // If the compiler can't be switched off, this file does not exist.
            build.add(&fs::read(path).unwrap_or_default());
        }
        build
    }

    /// Adds a part with its length, so that different sequences of parts never give the same bytes.
    fn add(&mut self, part: &[u8]) {
        self.0.update(part.len().to_ne_bytes());
        self.0.update(part);
    }

    /// The directory name for these programs over these maps, each with name and id.
    fn directory<'a>(
        &self,
        maps: impl Iterator<Item = (&'a str, u32)>,
        programs: impl Iterator<Item = (&'a str, u32)>,
    ) -> String {
        let mut all = Self(self.0.clone());
        for (name, id) in maps.chain([("", 0)]).chain(programs) {
            all.add(name.as_bytes());
            all.add(&id.to_ne_bytes());
        }
        all.0.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// The programs of this build over the pinned maps, if an earlier agent left them. The error says
/// what does not match.
pub fn find_programs(pins: &Pins, build: &Build) -> Result<Programs> {
    let mut maps = BTreeMap::new();
    for name in map::ALL {
        let info = MapInfo::from_pin(pins.map(name)).with_context(|| format!("map {name}"))?;
        maps.insert(name, info.id());
    }
    for directory in pins.program_directories()?.into_iter().filter(|name| name != INCOMPLETE) {
        let mut ids = BTreeMap::new();
        for (name, path) in pins.programs(&directory)? {
            let info = ProgramInfo::from_pin(path).with_context(|| format!("program {name}"))?;
            ids.insert(name, info.id());
        }
        let programs = ids.iter().map(|(name, id)| (name.as_str(), *id));
        if build.directory(maps.iter().map(|(name, id)| (*name, *id)), programs) == directory {
            return open(pins, &directory);
        }
    }
    bail!("no pinned programs match this build and these maps")
}

/// Pins the loaded programs, and unpins those of other builds: they would keep old maps in memory.
pub fn pin_programs(pins: &Pins, build: &Build, ebpf: &mut Ebpf) -> Result<Programs> {
    pins.remove_programs()?;
    fs::create_dir_all(pins.program_directory(INCOMPLETE))?;
    let mut ids = BTreeMap::new();
    for (name, program) in ebpf.programs_mut() {
        let path = pins.program_directory(INCOMPLETE).join(name);
        program.pin(&path).with_context(|| format!("program {name} can't be pinned"))?;
        ids.insert(name.to_owned(), program.info()?.id());
    }
    let mut maps = BTreeMap::new();
    for name in map::ALL {
        maps.insert(name, MapInfo::from_pin(pins.map(name))?.id());
    }
    let programs = ids.iter().map(|(name, id)| (name.as_str(), *id));
    let directory = build.directory(maps.into_iter(), programs);
    let (from, to) = (pins.program_directory(INCOMPLETE), pins.program_directory(&directory));
    fs::rename(&from, &to).with_context(|| format!("{} can't be renamed", from.display()))?;
    open(pins, &directory)
}

fn open(pins: &Pins, directory: &str) -> Result<Programs> {
    let mut programs = Programs::new();
    for (name, path) in pins.programs(directory)? {
        let program = match ProgramInfo::from_pin(&path)?.program_type() {
            bpf_prog_type::BPF_PROG_TYPE_XDP => {
                Program::Xdp(Xdp::from_pin(path, XdpAttachType::Interface)?)
            }
            bpf_prog_type::BPF_PROG_TYPE_SCHED_CLS => {
                Program::SchedClassifier(SchedClassifier::from_pin(path)?)
            }
            bpf_prog_type::BPF_PROG_TYPE_CGROUP_SOCK_ADDR => {
                let kind = address_hook(&name).with_context(|| name.clone())?;
                Program::CgroupSockAddr(CgroupSockAddr::from_pin(path, kind)?)
            }
            bpf_prog_type::BPF_PROG_TYPE_CGROUP_SOCK => {
                Program::CgroupSock(CgroupSock::from_pin(path, SOCKET_HOOK)?)
            }
            other => bail!("program {name}: Millrace attaches no programs of its type: {other:?}"),
        };
        programs.insert(name, program);
    }
    Ok(programs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_input_changes_the_name_of_the_directory() {
        let sizes = Sizes::default();
        let build = |object: &[u8], globals: &[&[u8]], sizes| {
            Build::new("0.1.0-g0123456789ab", object, globals, sizes)
        };
        let name =
            |build: Build, maps: &[(&'static str, u32)], programs: &[(&'static str, u32)]| {
                build.directory(maps.iter().copied(), programs.iter().copied())
            };
        let (maps, programs) = ([("FLOWS4", 1), ("FLOWS6", 2)], [("out", 7), ("tc_open", 8)]);
        let first = name(build(b"object", &[b"a", b"bc"], sizes), &maps, &programs);
        let same = name(build(b"object", &[b"a", b"bc"], sizes), &maps, &programs);
        assert_eq!(first, same);
        let later = Build::new("0.1.0-gba9876543210", b"object", &[b"a", b"bc"], sizes);
        for other in [
            name(later, &maps, &programs),
            name(build(b"objecT", &[b"a", b"bc"], sizes), &maps, &programs),
            name(build(b"object", &[b"ab", b"c"], sizes), &maps, &programs),
            name(build(b"object", &[b"a", b"bc"], Sizes::for_flows(8)), &maps, &programs),
            name(build(b"object", &[b"a", b"bc"], sizes), &[maps[0], ("FLOWS6", 3)], &programs),
            name(build(b"object", &[b"a", b"bc"], sizes), &maps[..1], &programs),
            name(build(b"object", &[b"a", b"bc"], sizes), &maps, &programs[..1]),
            name(build(b"object", &[b"a", b"bc"], sizes), &maps, &[programs[0], ("tc_open", 9)]),
            name(build(b"object", &[b"a", b"bc"], sizes), &maps, &[("out", 8), ("tc_open", 7)]),
        ] {
            assert_ne!(first, other);
        }
        // A BPF filesystem allows no dots, and names of up to 255 bytes.
        assert!(first.len() == 64 && first.bytes().all(|byte| byte.is_ascii_hexdigit()));
    }
}
