//! What must be true of the machine before anything is tried, each with its cure.

use std::path::Path;

use anyhow::{Context, Result, bail};
use aya::util::KernelVersion;

/// The first with tcx links.
const OLDEST_KERNEL: (u8, u8) = (6, 6);

pub fn preflight() -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        bail!(
            "the agent must run as root: it loads BPF programs and attaches them to devices.\n\
             Run it with sudo, or as a privileged container"
        );
    }
    let current = KernelVersion::current().context("the kernel does not tell its version")?;
    let (major, minor) = OLDEST_KERNEL;
    if current < KernelVersion::new(major, minor, 0) {
        bail!(
            "this kernel is too old: Millrace needs Linux {major}.{minor} or newer, \
             `uname -r` says what runs here"
        );
    }
    if !Path::new("/sys/kernel/btf/vmlinux").exists() {
        bail!(
            "this kernel has no BTF (/sys/kernel/btf/vmlinux is missing).\n\
             Use a kernel built with CONFIG_DEBUG_INFO_BTF=y; all current distributions' are"
        );
    }
    Ok(())
}
