//! What must be true of the machine before anything is tried, each with its cure.
//!
//! What a kernel may lack and we can do without is not asked here: where it is used, it is tried.

use std::path::Path;

use anyhow::{Context, Result, bail};
use aya::util::KernelVersion;

/// The oldest that is tested (`cargo xtask vm-test`).
const OLDEST_KERNEL: (u8, u8) = (6, 1);

pub fn preflight() -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        bail!(
            "the agent must run as root: it loads BPF programs and attaches them to devices.\n\
             Run it with sudo, or as a privileged container"
        );
    }
    new_enough(KernelVersion::current().context("the kernel does not tell its version")?)?;
    if !Path::new("/sys/kernel/btf/vmlinux").exists() {
        bail!(
            "this kernel has no BTF (/sys/kernel/btf/vmlinux is missing).\n\
             Use a kernel built with CONFIG_DEBUG_INFO_BTF=y; all current distributions' are"
        );
    }
    Ok(())
}

fn new_enough(running: KernelVersion) -> Result<()> {
    let (major, minor) = OLDEST_KERNEL;
    if running < KernelVersion::new(major, minor, 0) {
        bail!(
            "this kernel is too old: Millrace needs Linux {major}.{minor} or newer; \
             `uname -r` says what runs here.\n\
             Upgrade the kernel: of Debian, 12 has {major}.{minor}; of Ubuntu, 22.04 has a newer \
             one by linux-image-generic-hwe-22.04"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_kernel_is_refused_with_the_version_that_is_needed() {
        assert!(new_enough(KernelVersion::new(6, 1, 0)).is_ok());
        assert!(new_enough(KernelVersion::new(7, 0, 0)).is_ok());
        let error = new_enough(KernelVersion::new(5, 15, 176)).unwrap_err().to_string();
        assert!(error.contains("needs Linux 6.1"), "{error}");
    }
}
