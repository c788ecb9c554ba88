//! Control groups of a node: one in each hierarchy of the machine, which is the root of the node's own hierarchy.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use nix::mount::{MsFlags, mount};
use nix::sys::stat::Mode;
use nix::unistd::mkdir;
use tests::worlds::topology::Hierarchy;

/// The group, of the unified hierarchy, of the node's own processes. The kernel delegates controllers only from groups
/// without processes.
const OWN: &str = "node";

/// Puts this process into the group `name` of each hierarchy.
pub fn enter_groups(name: &str) -> Result<()> {
    let hierarchies = list_hierarchies()?;
    let only_unified = hierarchies.iter().all(|each| each.controllers.is_none());
    for Hierarchy { mounted_at, controllers } in &hierarchies {
        let group = mounted_at.join(name);
        make_directory(&group)?;
        if controllers.as_deref().is_some_and(|names| names.split(',').any(|name| name == "cpuset"))
        {
            // Empty in a new group, which therefore takes no process.
            for file in ["cpuset.cpus", "cpuset.mems"] {
                let value = fs::read(mounted_at.join(file)).context(file)?;
                fs::write(group.join(file), value).context(file)?;
            }
        }
        if only_unified {
            delegate_controllers(mounted_at)?;
        }
        fs::write(group.join("cgroup.procs"), "0")
            .with_context(|| format!("the control group {} can't be entered", group.display()))?;
    }
    Ok(())
}

/// Mounts the node's hierarchies below `root`, laid out as the machine's. The caller has a namespace of control groups,
/// so that the node's groups are their roots.
pub(crate) fn mount_hierarchies(root: &Path) -> Result<()> {
    let hierarchies = list_hierarchies()?;
    let target = root.join("sys/fs/cgroup");
    let none = None::<&str>;
    if let [Hierarchy { controllers: None, .. }] = &hierarchies[..] {
        mount(Some("cgroup2"), &target, Some("cgroup2"), MsFlags::empty(), none)?;
        let own = target.join(OWN);
        make_directory(&own)?;
        // All processes of the node so far.
        for process in fs::read_to_string(target.join("cgroup.procs"))?.lines() {
            fs::write(own.join("cgroup.procs"), process)?;
        }
        return delegate_controllers(&target);
    }
    mount(Some("tmpfs"), &target, Some("tmpfs"), MsFlags::empty(), Some("mode=755"))?;
    for Hierarchy { mounted_at, controllers } in &hierarchies {
        let folder = target.join(mounted_at.file_name().context("a hierarchy has a name")?);
        make_directory(&folder)?;
        let (kind, options) = match controllers {
            Some(controllers) => ("cgroup", Some(controllers.as_str())),
            None => ("cgroup2", None),
        };
        mount(Some(kind), &folder, Some(kind), MsFlags::empty(), options)
            .with_context(|| format!("{} can't be mounted", folder.display()))?;
    }
    Ok(())
}

/// Lets child groups use all controllers of a group of the unified hierarchy.
fn delegate_controllers(group: &Path) -> Result<()> {
    let controllers = fs::read_to_string(group.join("cgroup.controllers"))?;
    for controller in controllers.split_whitespace() {
        fs::write(group.join("cgroup.subtree_control"), format!("+{controller}"))
            .with_context(|| format!("{}: +{controller}", group.display()))?;
    }
    Ok(())
}

fn make_directory(path: &Path) -> Result<()> {
    match mkdir(path, Mode::from_bits_truncate(0o755)) {
        Err(error) if std::io::Error::from(error).kind() != ErrorKind::AlreadyExists => {
            Err(error).with_context(|| path.display().to_string())
        }
        _ => Ok(()),
    }
}

fn list_hierarchies() -> Result<Vec<Hierarchy>> {
    let hierarchies = Hierarchy::all_mounted()?;
    ensure!(!hierarchies.is_empty(), "no control groups are mounted on this machine");
    Ok(hierarchies)
}
