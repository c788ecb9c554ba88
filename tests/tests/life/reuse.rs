//! An agent that starts on the pins of another agent of the same build adopts its programs: it
//! loads none and replaces no attached one. Programs that do not match are loaded again.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use aya::maps::{Map, MapData, ProgramArray};
use aya::programs::ProgramInfo;
use aya::programs::links::{FdLink, PinnedLink};
use lb_common::layout::map;
use tests::manifests::{here, manifests};
use tests::programs::agent::{Agent, program};
use tests::worlds::one_node::{DEVICE, OneNode};

/// Logged by an agent that loads no program.
const REUSED: &str = "adopting maps and programs";

struct Case(OneNode);

impl Case {
    fn new() -> Result<Self> {
        let network = OneNode::with_pods(1)?;
        network.write_manifests(&manifests(&[here().tcp(80, 8080)]))?;
        Ok(Self(network))
    }

    /// Starts an agent and requests a page through it.
    fn start(&self, more: &[&str]) -> Result<Agent> {
        let agent = self.0.start_agent(more)?;
        assert_eq!(self.0.curl("http://203.0.113.10/")?.trim(), "pod-0");
        Ok(agent)
    }

    /// Starts an agent, which must reuse the programs of the one before.
    fn start_reusing(&self, more: &[&str]) -> Result<Agent> {
        let agent = self.start(more)?;
        ensure!(agent.log().contains(REUSED), "{}", agent.log());
        Ok(agent)
    }

    /// Starts an agent, which must adopt the maps and load its programs.
    fn start_loading(&self, more: &[&str]) -> Result<Agent> {
        let agent = self.start(more)?;
        let log = agent.log();
        ensure!(log.contains("adopting") && !log.contains(REUSED), "{log}");
        // The thread that has them verified has the capabilities for it.
        ensure!(!log.contains("programs refused"), "{log}");
        Ok(agent)
    }

    /// The only directory below `programs`.
    fn directory(&self) -> Result<PathBuf> {
        let mut found = paths(&self.0.pin_path().join("programs"))?;
        ensure!(found.len() == 1, "{found:?}");
        found.pop().context("no directory")
    }

    /// The ids of all pinned programs, by name.
    fn programs(&self) -> Result<BTreeMap<String, u32>> {
        let id = |path: PathBuf| Ok((name(&path), ProgramInfo::from_pin(&path)?.id()));
        paths(&self.directory()?)?.into_iter().map(id).collect()
    }

    /// The ids of all pinned links and of the programs that they attach.
    fn links(&self) -> Result<BTreeMap<String, (u32, u32)>> {
        let ids = |path: PathBuf| {
            let link = FdLink::from(PinnedLink::from_pin(&path)?).info()?;
            Ok((name(&path), (link.id(), link.program_id())))
        };
        paths(&self.0.pin_path().join("links"))?.into_iter().map(ids).collect()
    }

    /// The ids of the programs of all filters on the device.
    fn filters(&self) -> Result<Vec<String>> {
        let mut ids = Vec::new();
        for direction in ["ingress", "egress"] {
            let shown = self.0.node.run(["tc", "filter", "show", "dev", DEVICE, direction])?;
            let words: Vec<&str> = shown.split_whitespace().collect();
            let found = words.windows(2).filter(|pair| pair[0] == "id");
            ids.extend(found.map(|pair| pair[1].to_owned()));
        }
        Ok(ids)
    }

    /// An array of programs with their ids, as bpftool prints it.
    fn contents(&self, name: &str) -> Result<String> {
        let path = self.0.pin_path().join(name);
        let bpftool = ["bpftool", "map", "dump", "pinned"].map(OsStr::new);
        self.0.node.run(bpftool.into_iter().chain([path.as_os_str()]))
    }

    fn stages(&self, name: &str) -> Result<ProgramArray<MapData>> {
        let data = MapData::from_pin(self.0.pin_path().join(name))?;
        Ok(ProgramArray::try_from(Map::ProgramArray(data))?)
    }
}

fn paths(directory: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(directory).with_context(|| directory.display().to_string())?;
    entries.map(|entry| Ok(entry?.path())).collect()
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

#[test]
fn the_same_build_loads_nothing_and_replaces_nothing() -> Result<()> {
    for more in [&[][..], &["--tc-mode", "clsact"]] {
        let case = Case::new()?;
        case.start(more)?.kill();
        let (programs, links, filters) = (case.programs()?, case.links()?, case.filters()?);
        assert!(programs.len() > 20 && !links.is_empty(), "{programs:?} {links:?}");
        assert_eq!(filters.len(), if more.is_empty() { 0 } else { 2 });
        for _ in 0..2 {
            let agent = case.start_reusing(more)?;
            assert_eq!(case.programs()?, programs);
            assert_eq!((case.links()?, case.filters()?), (links.clone(), filters.clone()));
            agent.terminate()?;
        }
    }
    Ok(())
}

#[test]
fn reused_programs_are_attached_in_other_modes_and_to_other_devices() -> Result<()> {
    let case = Case::new()?;
    case.start(&[])?.kill();
    let programs = case.programs()?;
    let _other = case.0.other_node()?;
    let _agent = case.start_reusing(&["--tc-mode", "clsact", "--device", "in0"])?;
    assert_eq!((case.programs()?, case.filters()?.len()), (programs, 2));
    assert!(case.links()?.contains_key("in0-xdp-native"), "{:?}", case.links()?);
    Ok(())
}

#[test]
fn missing_stages_are_restored() -> Result<()> {
    let case = Case::new()?;
    case.start(&[])?.kill();
    for name in [map::XDP_STAGES, map::TC_STAGES] {
        let before = case.contents(name)?;
        case.stages(name)?.clear_index(&0)?;
        assert_ne!(case.contents(name)?, before);
        let agent = case.start_reusing(&[])?;
        assert_eq!(case.contents(name)?, before);
        agent.kill();
    }
    Ok(())
}

#[test]
fn if_a_program_is_missing_or_changed_all_are_loaded_again() -> Result<()> {
    let case = Case::new()?;
    case.start(&[])?.kill();
    let damages: [fn(&Path) -> Result<()>; 4] = [
        // One is missing.
        |directory| Ok(fs::remove_file(directory.join("tc_open"))?),
        // Two are swapped.
        |directory| {
            let [one, other, between] =
                ["tc_open", "tc_reset", "between"].map(|n| directory.join(n));
            fs::rename(&one, &between)?;
            fs::rename(&other, &one)?;
            Ok(fs::rename(&between, &other)?)
        },
        // An agent crashed before it had pinned all.
        |directory| Ok(fs::rename(directory, directory.with_file_name("incomplete"))?),
        // One is replaced by something else.
        |directory| {
            fs::remove_file(directory.join("out"))?;
            Ok(fs::create_dir(directory.join("out"))?)
        },
    ];
    for damage in damages {
        let before = case.programs()?;
        damage(&case.directory()?)?;
        case.start_loading(&[])?.kill();
        let after = case.programs()?;
        assert!(before.keys().eq(after.keys()), "{before:?} {after:?}");
        assert!(before.iter().all(|(name, id)| after[name] != *id), "{before:?} {after:?}");
        case.start_reusing(&[])?.kill();
    }
    Ok(())
}

/// When a map is recreated or its size changes, programs bound to the old map must be replaced.
#[test]
fn programs_bound_to_other_maps_are_loaded_again() -> Result<()> {
    let case = Case::new()?;
    case.start(&[])?.kill();
    let before = case.programs()?;
    fs::remove_file(case.0.pin_path().join(map::DEVICES))?;
    case.start_loading(&[])?.kill();
    let between = case.programs()?;
    assert_ne!(between["out"], before["out"]);
    let _agent = case.start_loading(&["--max-flows", "8192"])?;
    assert_ne!(case.programs()?["out"], between["out"]);
    Ok(())
}

/// The padding of the BPF object's ELF header is changed: another object with the same effect.
#[test]
fn another_build_loads_its_own_programs() -> Result<()> {
    let case = Case::new()?;
    case.start(&[])?.kill();
    let before = case.programs()?;

    let mut binary = fs::read(program()?)?;
    const HEADER: &[u8] = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x01\0\xf7\0";
    let objects: Vec<usize> = memory_finds(&binary, HEADER);
    ensure!(!objects.is_empty(), "the agent carries no BPF object");
    for start in objects {
        binary[start + 15] = 1;
    }
    let directory = case.0.topology.directory();
    let (written, changed) = (directory.join("written"), directory.join("changed"));
    fs::write(&written, binary)?;
    tests::worlds::topology::copy_program(&written, &changed)?;
    let mut command = case.0.node.command(&changed);
    command
        .args(["agent", "--device", DEVICE, "--xdp-mode", "native", "--node-name", "node"])
        .arg("--manifests")
        .arg(case.0.topology.manifests())
        .arg("--pin-path")
        .arg(case.0.pin_path())
        .arg("--cgroup")
        .arg(case.0.node.cgroup());
    let mut agent = case.0.node.spawn(&mut command)?;
    agent.wait_for_output("ready service_ports=", tests::worlds::topology::SOON)?;
    let log = agent.output();
    assert!(log.contains("adopting") && !log.contains(REUSED), "{log}");
    assert_eq!(case.0.curl("http://203.0.113.10/")?.trim(), "pod-0");
    assert_ne!(case.programs()?["out"], before["out"]);
    agent.kill();
    Ok(())
}

fn memory_finds(all: &[u8], wanted: &[u8]) -> Vec<usize> {
    let starts = all.windows(wanted.len()).enumerate();
    starts.filter(|(_, window)| *window == wanted).map(|(start, _)| start).collect()
}
