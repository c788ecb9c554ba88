//! Pin directories of agents that have ended, emptied for the agents of later tests.
//!
//! An agent that adopts loaded programs needs a fifth of the time of one that has the verifier check
//! them. The directories are shared by all test programs of one `cargo test`, and removed after it.
//! Emptied maps are like new ones, except for what the agent writes at its start anyway.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{self, Command, Stdio};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, ensure};
use aya::maps::{Map, MapData, MapInfo, MapType, PerCpuArray, PerCpuValues};
use aya::util::nr_cpus;
use lb_common::layout::{Traffic, map};
use lb_kernel::{Mapped, Plain};
use nix::unistd::getppid;

use super::bpffs::test_pins;
use crate::maps::any_map::AnyMap;

/// The default is more on any machine that runs tests; tests that want another size want a smaller
/// one.
const LEAST_BUCKETS: u32 = 4096;

/// More service ports and backends than tests with warm directories have.
const MOST_INDEXES: u32 = 1024;

/// The directories with what an agent has attached.
const ATTACHED: [&str; 2] = ["links", "filters"];

/// The directory of this run's warm directories.
fn pool() -> PathBuf {
    test_pins().join(format!("warm-{}", getppid()))
}

/// Moves a warm directory to this path. `false`: there is none.
pub fn take_warm_pins(to: &Path) -> bool {
    let entries = fs::read_dir(pool()).into_iter().flatten().flatten();
    // Only one process succeeds in moving a directory.
    entries.map(|entry| entry.path()).any(|path| fs::rename(path, to).is_ok())
}

/// Empties the maps of an agent that has ended, and keeps its directory for `take_warm_pins`.
pub fn keep_warm_pins(pins: &Path) -> Result<()> {
    let buckets = MapInfo::from_pin(pins.join(map::FLOWS4))?.max_entries();
    ensure!(buckets > LEAST_BUCKETS, "{buckets} buckets of flows are not the default");
    for directory in ATTACHED {
        let directory = pins.join(directory);
        fs::remove_dir_all(&directory).with_context(|| directory.display().to_string())?;
    }
    for entry in fs::read_dir(pins)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            let path = entry.path();
            let name = entry.file_name().into_string().unwrap_or_default();
            empty(&path, &name).with_context(|| path.display().to_string())?;
        }
    }
    static REMOVE_LATER: Once = Once::new();
    REMOVE_LATER.call_once(remove_later);
    fs::create_dir_all(pool())?;
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    Ok(fs::rename(pins, pool().join(format!("{}-{number}", process::id())))?)
}

/// Starts a process that removes the pool when the parent of this process, cargo, has ended.
fn remove_later() {
    let script = "while kill -0 \"$1\" 2>/dev/null; do sleep 1; done; rm -rf \"$2\"";
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh", &getppid().to_string()]).arg(pool());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    if let Err(error) = command.spawn() {
        eprintln!("{} will not be removed: {error}", pool().display());
    }
}

fn empty(path: &Path, name: &str) -> Result<()> {
    let info = MapInfo::from_pin(path)?;
    let open = || MapData::from_pin(path);
    match info.map_type()? {
        // The agent writes these at its start, or they belong to the build.
        _ if [map::IDENTITY, map::PARAMETERS, map::HOST].contains(&name) => {}
        MapType::Array => Mapped::new(&open()?, info.value_size() as usize)?.clear(),
        MapType::PerCpuArray
            if [map::REASONS, map::UNREPORTED, map::NEIGHBOUR_EVENTS].contains(&name) =>
        {
            let processors = nr_cpus().map_err(|(_, error)| error)?;
            let mut counters: PerCpuArray<_, u64> = Map::PerCpuArray(open()?).try_into()?;
            for index in 0..info.max_entries() {
                counters.set(index, PerCpuValues::try_from(vec![0; processors])?, 0)?;
            }
        }
        MapType::Hash | MapType::LruHash | MapType::LpmTrie => AnyMap::open(path)?.clear()?,
        MapType::PerCpuArray if [map::SERVICE_TRAFFIC, map::BACKEND_TRAFFIC].contains(&name) => {
            let processors = nr_cpus().map_err(|(_, error)| error)?;
            let mut traffic: PerCpuArray<_, Plain<Traffic>> =
                Map::PerCpuArray(open()?).try_into()?;
            for index in 0..MOST_INDEXES.min(info.max_entries()) {
                let zeros = vec![Plain(Traffic::default()); processors];
                traffic.set(index, PerCpuValues::try_from(zeros)?, 0)?;
            }
        }
        // Scratch space, stages, and buffers that the agent reads.
        _ => {}
    }
    Ok(())
}
