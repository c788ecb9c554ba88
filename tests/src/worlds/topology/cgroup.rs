//! A topology's control group, which contains all programs started on its hosts.

use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use anyhow::{Context, Result};
use lb_kernel::cgroup_root;
use nix::mount::{MsFlags, mount};

use super::{Hierarchy, Id, SOON, wait_until};

const CGROUPS: &str = "/sys/fs/cgroup";

/// The root of control groups version 2, which is mounted if necessary.
pub(super) fn mount_cgroups() -> Result<PathBuf> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock();
    if let Some(root) = cgroup_root()? {
        return Ok(root);
    }
    mount(Some("none"), CGROUPS, Some("cgroup2"), MsFlags::empty(), None::<&str>)
        .with_context(|| format!("control groups can't be mounted at {CGROUPS}"))?;
    Ok(CGROUPS.into())
}

pub(super) fn cgroup_path(id: Id) -> Result<PathBuf> {
    Ok(mount_cgroups()?.join(id.to_string()))
}

pub(super) fn create_cgroup(id: Id) -> Result<PathBuf> {
    let path = cgroup_path(id)?;
    fs::create_dir(&path)
        .with_context(|| format!("the control group {} can't be made", path.display()))?;
    Ok(path)
}

/// The groups of a topology in all hierarchies: its own, and those of nodes, whose names begin with its id.
pub(super) fn list_cgroups(id: Id) -> Vec<PathBuf> {
    let (own, of_node) = (id.to_string(), format!("{id}-"));
    let all =
        list_hierarchies().into_iter().flat_map(|root| fs::read_dir(root).into_iter().flatten());
    let names = all.flatten().filter(|entry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        name == own || name.starts_with(&of_node)
    });
    names.map(|entry| entry.path()).collect()
}

/// The roots of all hierarchies of control groups.
pub(super) fn list_hierarchies() -> Vec<PathBuf> {
    let hierarchies = Hierarchy::all_mounted().unwrap_or_default();
    hierarchies.into_iter().map(|hierarchy| hierarchy.mounted_at).collect()
}

/// Removes a group and those below it. A killed process stays in its group for a moment.
pub(super) fn remove_cgroup(cgroup: &Path) -> io::Result<()> {
    for entry in fs::read_dir(cgroup)? {
        let path = entry?.path();
        if path.is_dir() {
            remove_cgroup(&path)?;
        }
    }
    let mut removed = Ok(());
    let is_done = || {
        removed = fs::remove_dir(cgroup);
        !matches!(&removed, Err(error) if error.kind() == io::ErrorKind::ResourceBusy)
    };
    // The result says what happened.
    let _ = wait_until("the control group is empty", SOON, is_done);
    removed
}

/// Puts a program into the control group before it starts.
pub(super) fn join_cgroup(command: &mut Command, cgroup: &Path) {
    let processes = cgroup.join("cgroup.procs");
    // SAFETY: between fork and exec it only opens and writes a file. For the kernel, 0 is the
    // writing process.
    unsafe {
        command.pre_exec(move || fs::write(&processes, b"0"));
    }
}
