//! Removes topologies: at their end, and those of killed runs at the next start.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::{env, fs, io, process};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::Id;
use super::bpffs::{pins_of, test_pins};
use super::cgroup;
use super::command::{SOON, run_ip, wait_until};

const NAMESPACES: &str = "/run/netns";

/// Removes what ended runs have left. The first topology of a process calls it.
pub fn remove_leftovers() {
    let orphans: BTreeSet<Id> = [PathBuf::from(NAMESPACES), test_pins(), env::temp_dir()]
        .into_iter()
        .chain(cgroup::list_hierarchies())
        .flat_map(|directory| names(&directory))
        .filter_map(|name| Id::parse(&name))
        .filter(|id| id.is_orphaned())
        .collect();
    orphans.into_iter().for_each(remove_topology);
}

/// Removes everything of a topology. Failures are printed, and the rest is removed.
pub(super) fn remove_topology(id: Id) {
    let namespaces = namespaces(id);
    // First processes, which could still pin something; last the namespaces of pinned links.
    end_processes_in(&namespaces);
    report_failure(&pins_of(id), fs::remove_dir_all(pins_of(id)));
    for namespace in &namespaces {
        let path = Path::new(NAMESPACES).join(namespace);
        if let Err(error) = run_ip(&format!("netns delete {namespace}"))
            && path.exists()
        {
            report_failure(&path, Err(io::Error::other(error)));
        }
    }
    for group in cgroup::list_cgroups(id) {
        report_failure(&group, cgroup::remove_cgroup(&group));
    }
    report_failure(&directory_of(id), fs::remove_dir_all(directory_of(id)));
}

pub(super) fn directory_of(id: Id) -> PathBuf {
    env::temp_dir().join(id.to_string())
}

/// Kills all processes of a topology.
pub(super) fn end_processes(id: Id) {
    end_processes_in(&namespaces(id));
}

fn namespaces(id: Id) -> Vec<String> {
    let prefix = format!("{id}-");
    names(Path::new(NAMESPACES)).filter(|name| name.starts_with(&prefix)).collect()
}

/// Kills processes in these namespaces until there are none.
fn end_processes_in(namespaces: &[String]) {
    let inodes: BTreeSet<_> = namespaces
        .iter()
        .filter_map(|namespace| inode(&Path::new(NAMESPACES).join(namespace)))
        .collect();
    let has_none = || {
        let inside = names(Path::new("/proc"))
            .filter_map(|name| name.parse().ok())
            .filter(|pid| *pid != process::id() as i32)
            .filter(|pid| {
                inode(&PathBuf::from(format!("/proc/{pid}/ns/net")))
                    .is_some_and(|inode| inodes.contains(&inode))
            });
        inside.filter(|pid| kill(Pid::from_raw(*pid), Signal::SIGKILL).is_ok()).count() == 0
    };
    // A killed process needs a processor to end.
    if let Err(error) = wait_until("no process is in a namespace of the topology", SOON, has_none) {
        eprintln!("{error:#}");
    }
}

/// Identifies the namespace of a path.
fn inode(path: &Path) -> Option<(u64, u64)> {
    let metadata = fs::metadata(path).ok()?;
    Some((metadata.dev(), metadata.ino()))
}

fn names(directory: &Path) -> impl Iterator<Item = String> + use<> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok())
}

fn report_failure(path: &Path, removed: io::Result<()>) {
    if let Err(error) = removed
        && error.kind() != ErrorKind::NotFound
    {
        eprintln!("{} can't be removed: {error}; remove it by hand", path.display());
    }
}
