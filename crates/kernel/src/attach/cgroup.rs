//! Attaches to a control group: when a process in it or below it connects a socket, the programs
//! choose the backend. The root contains all processes of the node.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail, ensure};
use aya::programs::links::FdLink;
use aya::programs::{CgroupAttachMode, CgroupSock, CgroupSockAddr, Program, ProgramError};
use nix::sys::statfs::{CGROUP2_SUPER_MAGIC, statfs};

use super::links::{Links, not_a_link};
use crate::data_plane::DataPlane;
use crate::hook::SOCKET_PROGRAMS;
use crate::link::PinnedLink;
use crate::pins::remove_link;

/// The root of the control group hierarchy: its mount point.
pub fn cgroup_root() -> Result<Option<PathBuf>> {
    let mounts = fs::read_to_string("/proc/self/mounts").context("/proc/self/mounts")?;
    Ok(find_root(&mounts))
}

/// The control group that a setting names. Where groups are hybrid, version 2 is mounted below the
/// folder that is usually its root.
pub fn resolve_cgroup(cgroup: &Path) -> Result<PathBuf> {
    if is_version_2(cgroup)? {
        return Ok(cgroup.to_owned());
    }
    let mounts = fs::read_to_string("/proc/self/mounts").context("/proc/self/mounts")?;
    let below = find_below(&mounts, cgroup);
    if let Some(below) = &below {
        tracing::info!(
            cgroup = %cgroup.display(), version_2 = %below.display(), "control groups are hybrid"
        );
    }
    below.with_context(|| {
        format!(
            "{} is not a control group of version 2, and none is mounted below it; \
             `grep cgroup2 /proc/self/mounts` lists where they are mounted, see --cgroup",
            cgroup.display()
        )
    })
}

fn find_below(mounts: &str, cgroup: &Path) -> Option<PathBuf> {
    roots(mounts).find(|root| root.starts_with(cgroup))
}

fn is_version_2(cgroup: &Path) -> Result<bool> {
    let kind = statfs(cgroup).with_context(|| {
        format!("the control group {} can't be opened; see --cgroup", cgroup.display())
    })?;
    Ok(kind.filesystem_type() == CGROUP2_SUPER_MAGIC)
}

fn find_root(mounts: &str) -> Option<PathBuf> {
    roots(mounts).next()
}

fn roots(mounts: &str) -> impl Iterator<Item = PathBuf> {
    mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let (path, kind) = (fields.next()?, fields.next()?);
        (kind == "cgroup2").then(|| PathBuf::from(undo_octal_escapes(path)))
    })
}

/// Undoes the kernel's octal escapes of blanks and backslashes.
fn undo_octal_escapes(path: &str) -> String {
    let escapes = [(r"\040", " "), (r"\011", "\t"), (r"\012", "\n"), (r"\134", r"\")];
    escapes.iter().fold(path.to_owned(), |path, (code, plain)| path.replace(code, plain))
}

/// Whether a pinned link is that of a control group.
pub(crate) fn is_pin(link: &str) -> bool {
    SOCKET_PROGRAMS.iter().any(|program| link == cgroup_pin(program))
}

fn cgroup_pin(program: &str) -> String {
    format!("cgroup-{program}")
}

impl Links<'_> {
    /// Attaches to the processes of a control group.
    pub fn attach_processes(&mut self, data_plane: &mut DataPlane, cgroup: &Path) -> Result<()> {
        let directory = open(cgroup)?;
        if cgroup.join("cgroup.type").exists() {
            tracing::info!(
                cgroup = %cgroup.display(),
                "not the root cgroup; processes outside of it cannot reach services"
            );
        }
        for name in SOCKET_PROGRAMS {
            self.attach_program(data_plane.program(name)?, &directory, name).with_context(
                || format!("{name} can't be attached to the control group {}", cgroup.display()),
            )?;
        }
        Ok(())
    }

    /// Detaches the programs that an earlier agent attached to processes.
    pub fn detach_processes(&self) -> Result<()> {
        SOCKET_PROGRAMS
            .iter()
            .try_for_each(|program| remove_link(&self.pins.link(&cgroup_pin(program))))
    }

    fn attach_program(&mut self, program: &mut Program, cgroup: &File, name: &str) -> Result<()> {
        let pin = cgroup_pin(name);
        let path = self.pins.link(&pin);
        if let Some(old) = PinnedLink::open(&path).context("the pinned link is unusable")? {
            let inode = cgroup.metadata()?.ino();
            if old.cgroup()? == inode
                && (old.program()? == program.info()?.id()
                    || old.update(program.fd()?.as_fd()).is_ok())
            {
                return Ok(());
            }
            // It belongs to another control group, which may have been removed.
            remove_link(&path)?;
        }
        let link = match program {
            Program::CgroupSockAddr(program) => attach_address_hook(program, cgroup),
            Program::CgroupSock(program) => attach_socket_hook(program, cgroup),
            _ => bail!("the BPF object's program is not a control group program"),
        };
        self.pin(link.map_err(explain_cgroup_error)?.map_err(not_a_link)?, pin)
    }
}

type Attached = Result<Result<FdLink, aya::programs::links::LinkError>, ProgramError>;

fn attach_address_hook(program: &mut CgroupSockAddr, cgroup: &File) -> Attached {
    // For links the kernel ignores the mode: several owners can attach.
    let link = program.attach(cgroup, CgroupAttachMode::Single)?;
    Ok(program.take_link(link)?.try_into())
}

fn attach_socket_hook(program: &mut CgroupSock, cgroup: &File) -> Attached {
    let link = program.attach(cgroup, CgroupAttachMode::Single)?;
    Ok(program.take_link(link)?.try_into())
}

fn open(cgroup: &Path) -> Result<File> {
    let directory = File::open(cgroup).with_context(|| {
        format!("the control group {} can't be opened; see --cgroup", cgroup.display())
    })?;
    ensure!(
        is_version_2(cgroup)?,
        "{} is not a control group of version 2; `grep cgroup2 /proc/self/mounts` lists where they \
         are mounted",
        cgroup.display()
    );
    Ok(directory)
}

fn explain_cgroup_error(error: ProgramError) -> anyhow::Error {
    let denied = matches!(&error, ProgramError::SyscallError(error)
        if error.io_error.kind() == io::ErrorKind::PermissionDenied);
    let error = anyhow!(error);
    if denied {
        error.context(
            "another program is attached to the control group exclusively; `bpftool cgroup tree` lists it",
        )
    } else {
        error
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_is_where_version_2_is_mounted() {
        let mounts = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\n\
                      cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n\
                      cgroup2 /sys/fs/cgroup/uni\\040fied cgroup2 rw 0 0\n\
                      cgroup2 /other cgroup2 rw 0 0\n";
        assert_eq!(find_root(mounts), Some("/sys/fs/cgroup/uni fied".into()));
        assert_eq!(find_root("proc /proc proc rw 0 0\n"), None);
        // As in a pod with the node's folder.
        let below = |folder: &str| find_below(mounts, Path::new(folder));
        assert_eq!(below("/sys/fs/cgroup"), Some("/sys/fs/cgroup/uni fied".into()));
        assert_eq!(below("/sys/fs/cgr"), None);
        assert_eq!(below("/other"), Some("/other".into()));
        assert_eq!(below("/host/sys/fs/cgroup"), None);
    }

    /// Before maps and programs are loaded, not after 16 s.
    #[test]
    fn a_folder_without_version_2_is_refused_with_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let error = format!("{:#}", resolve_cgroup(folder.path()).unwrap_err());
        assert!(error.contains("none is mounted below it"), "{error}");
        let error = format!("{:#}", resolve_cgroup(Path::new("/nowhere")).unwrap_err());
        assert!(error.contains("can't be opened; see --cgroup"), "{error}");
    }

    #[test]
    fn a_devices_link_is_not_taken_for_one_of_these() {
        assert!(is_pin("cgroup-connect4"));
        assert!(!is_pin("cgroup-egress"), "of a device named cgroup");
    }
}
