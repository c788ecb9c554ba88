//! The BPF file system, and the topologies' directories in it.

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use anyhow::{Context, Result};
use nix::mount::{MsFlags, mount};
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};

use super::Id;

const BPFFS: &str = "/sys/fs/bpf";

/// The path of the BPF file system, which is mounted if necessary.
pub fn mount_bpffs() -> Result<&'static Path> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock();
    let mounted = statfs(BPFFS)
        .with_context(|| format!("{BPFFS} is not there; the kernel needs CONFIG_BPF_SYSCALL"))?
        .filesystem_type();
    if mounted != BPF_FS_MAGIC {
        mount(Some("bpf"), BPFFS, Some("bpf"), MsFlags::empty(), None::<&str>)
            .with_context(|| format!("the BPF filesystem can't be mounted at {BPFFS}"))?;
    }
    Ok(Path::new(BPFFS))
}

pub(super) fn pins_of(id: Id) -> PathBuf {
    test_pins().join(id.to_string())
}

pub(super) fn test_pins() -> PathBuf {
    Path::new(BPFFS).join("millrace-test")
}
