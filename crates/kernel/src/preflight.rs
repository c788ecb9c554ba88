//! Requirements on the machine, each with how to meet it. What the agent refuses at start, and what
//! `millrace check` reports, is decided here.
//!
//! A kernel feature that Millrace can do without is only a warning: the code that uses it tries it.

use std::env::consts::ARCH;
use std::fs;
use std::path::Path;

use anyhow::{Result, bail};
use aya::util::KernelVersion;
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};
use serde::Serialize;

use super::attach::{cgroup_root, has_tcx};
use super::pins::BPF_FILESYSTEM;
use super::types::TYPES;

/// The oldest tested kernel (`cargo xtask vm-test`).
const OLDEST_KERNEL: (u8, u8) = (6, 1);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckResult {
    Ok,
    Warning,
    Error,
}

/// The only architecture on which the data plane is correct. The flow table shares memory between
/// CPUs without acquire or release ordering: its BPF code relies on a processor that reorders
/// neither loads with loads nor stores with stores.
const ARCHITECTURE: &str = "x86_64";

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub check: String,
    pub result: CheckResult,
    pub message: String,
    /// How to fix it; empty if there is nothing to fix.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub fix: String,
}

impl Finding {
    pub fn ok(check: &str, message: impl Into<String>) -> Self {
        let (check, message) = (check.to_owned(), message.into());
        Self { check, result: CheckResult::Ok, message, fix: String::new() }
    }

    pub fn warning(check: &str, message: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { result: CheckResult::Warning, fix: fix.into(), ..Self::ok(check, message) }
    }

    pub fn error(check: &str, message: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { result: CheckResult::Error, fix: fix.into(), ..Self::ok(check, message) }
    }
}

/// Fails with all reasons on a machine on which no agent can work.
pub fn check_preflight() -> Result<()> {
    let errors: Vec<String> = required()
        .into_iter()
        .filter(|finding| finding.result == CheckResult::Error)
        .map(|Finding { message, fix, .. }| format!("{message}.\n{fix}"))
        .collect();
    if errors.is_empty() { Ok(()) } else { bail!("{}", errors.join("\n")) }
}

/// The checks at the agent's start.
fn required() -> [Finding; 5] {
    [check_root(), architecture(), kernel(), btf(), capabilities()]
}

pub fn require_root() -> Result<()> {
    match check_root() {
        Finding { result: CheckResult::Error, message, fix, .. } => bail!("{message}.\n{fix}"),
        _ => Ok(()),
    }
}

/// All checks of the machine that do not depend on what is served, and on which interfaces.
pub fn list_machine_findings() -> Vec<Finding> {
    vec![
        check_root(),
        capabilities(),
        architecture(),
        kernel(),
        btf(),
        jit(),
        lockdown(),
        bpf_filesystem(),
        control_groups(),
        tcx(),
    ]
}

fn check_root() -> Finding {
    if nix::unistd::geteuid().is_root() {
        return Finding::ok("root", "runs as root");
    }
    Finding::error(
        "root",
        "the agent must run as root: it loads BPF programs and attaches them to devices",
        "Run it with sudo, or as a privileged container",
    )
}

fn architecture() -> Finding {
    match nix::sys::utsname::uname() {
        Ok(running) => ordered(ARCH, &running.machine().to_string_lossy()),
        Err(error) => Finding::error(
            "architecture",
            format!("uname(2) failed, so the architecture is unknown: {error}"),
            "Run Millrace on an x86_64 (amd64) machine",
        ),
    }
}

/// Compares the architecture that the agent was built for and the kernel's: the first executes the
/// agent's accesses to the flow table, the second those of the programs.
fn ordered(built_for: &str, running_on: &str) -> Finding {
    if [built_for, running_on] == [ARCHITECTURE; 2] {
        return Finding::ok("architecture", format!("is {ARCHITECTURE}"));
    }
    let wrong = if running_on == ARCHITECTURE { built_for } else { running_on };
    Finding::error(
        "architecture",
        format!(
            "{wrong} is not supported: the flow table relies on the memory ordering of \
             {ARCHITECTURE}"
        ),
        "Run the x86_64 (amd64) build on an x86_64 machine; in a cluster of several architectures, \
         set nodeSelector kubernetes.io/arch: amd64, and serve the other nodes with kube-proxy",
    )
}

fn kernel() -> Finding {
    match KernelVersion::current() {
        Ok(running) => new_enough(running),
        Err(error) => Finding::error(
            "kernel",
            format!("cannot read the kernel's version: {error}"),
            "Make sure that /proc is mounted",
        ),
    }
}

fn new_enough(running: KernelVersion) -> Finding {
    let (major, minor) = OLDEST_KERNEL;
    if running >= KernelVersion::new(major, minor, 0) {
        return Finding::ok("kernel", format!("is Linux {major}.{minor} or newer"));
    }
    Finding::error(
        "kernel",
        format!(
            "this kernel is too old: Millrace needs Linux {major}.{minor} or newer; `uname -r` \
             says what runs here"
        ),
        format!(
            "Upgrade the kernel: of Debian, 12 has {major}.{minor}; of Ubuntu, 22.04 has a newer \
             one by linux-image-generic-hwe-22.04"
        ),
    )
}

fn btf() -> Finding {
    if Path::new(TYPES).exists() {
        return Finding::ok("btf", "the kernel provides BTF");
    }
    Finding::error(
        "btf",
        format!("this kernel has no BTF ({TYPES} is missing)"),
        "Use a kernel built with CONFIG_DEBUG_INFO_BTF=y; all current distributions' are",
    )
}

fn capabilities() -> Finding {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    // If /proc does not list them, loading the programs shows whether they suffice.
    sufficient(effective.unwrap_or(u64::MAX))
}

/// `effective`: the mask of effective capabilities.
fn sufficient(effective: u64) -> Finding {
    /// <https://github.com/torvalds/linux/blob/v6.1/include/uapi/linux/capability.h>
    const NET_ADMIN: u32 = 12;
    const SYS_ADMIN: u32 = 21;
    const PERFMON: u32 = 38;
    const BPF: u32 = 39;
    let has = |capability: u32| effective & (1 << capability) != 0;
    let missing: Vec<&str> = [
        ("BPF", has(BPF) || has(SYS_ADMIN)),
        ("NET_ADMIN", has(NET_ADMIN)),
        ("PERFMON", has(PERFMON) || has(SYS_ADMIN)),
    ]
    .into_iter()
    .filter_map(|(name, has)| (!has).then_some(name))
    .collect();
    if missing.is_empty() {
        return Finding::ok("capabilities", "BPF, NET_ADMIN and PERFMON are available");
    }
    Finding::error(
        "capabilities",
        format!("these capabilities are missing: {}", missing.join(", ")),
        "In a container, add them by securityContext.capabilities.add, or set privileged: true",
    )
}

fn jit() -> Finding {
    if is_compiled() {
        return Finding::ok("jit", "BPF programs are compiled");
    }
    Finding::warning(
        "jit",
        "BPF programs are interpreted, which is many times slower",
        "Enable the JIT compiler: sysctl -w net.core.bpf_jit_enable=1",
    )
}

/// Whether the kernel compiles BPF programs.
pub(crate) fn is_compiled() -> bool {
    // The file does not exist if that can't be switched off, or not in this network namespace.
    let switch = fs::read_to_string("/proc/sys/net/core/bpf_jit_enable");
    !switch.is_ok_and(|switch| switch.trim() == "0")
}

fn lockdown() -> Finding {
    let mode = fs::read_to_string("/sys/kernel/security/lockdown").unwrap_or_default();
    if mode.contains("[confidentiality]") {
        return Finding::error(
            "lockdown",
            "the kernel is locked down for confidentiality, which keeps BPF programs from reading",
            "Start it with lockdown=integrity, or without",
        );
    }
    Finding::ok("lockdown", "BPF programs are allowed")
}

fn bpf_filesystem() -> Finding {
    if statfs(BPF_FILESYSTEM).is_ok_and(|found| found.filesystem_type() == BPF_FS_MAGIC) {
        return Finding::ok("bpffs", format!("is mounted at {BPF_FILESYSTEM}"));
    }
    Finding::warning(
        "bpffs",
        format!("no BPF filesystem is mounted at {BPF_FILESYSTEM}; the agent mounts it if it may"),
        format!(
            "Run `mount -t bpf bpf {BPF_FILESYSTEM}` on the host; in a container, mount it from \
             the host with mountPropagation: Bidirectional"
        ),
    )
}

fn control_groups() -> Finding {
    match cgroup_root() {
        Ok(Some(root)) => Finding::ok("cgroup", format!("version 2 at {}", root.display())),
        _ => Finding::warning(
            "cgroup",
            "no control groups of version 2 are mounted: processes of this node cannot \
             reach Services",
            "Mount them (mount -t cgroup2 none DIRECTORY), or name one with --cgroup",
        ),
    }
}

fn tcx() -> Finding {
    match has_tcx() {
        Ok(true) => Finding::ok("tcx", "programs are attached to tc by links"),
        Ok(false) => Finding::ok("tcx", "not available before Linux 6.6: clsact is used"),
        Err(error) => Finding::warning("tcx", format!("{error:#}"), "Try --tc-mode clsact"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_kernel_is_refused_with_the_version_that_is_needed() {
        let result = |major, minor, patch| new_enough(KernelVersion::new(major, minor, patch));
        assert_eq!(result(6, 1, 0).result, CheckResult::Ok);
        assert_eq!(result(7, 0, 0).result, CheckResult::Ok);
        let refused = result(5, 15, 176);
        assert_eq!(refused.result, CheckResult::Error);
        assert!(refused.message.contains("needs Linux 6.1"), "{refused:?}");
    }

    #[test]
    fn only_an_architecture_that_keeps_loads_and_stores_in_order_is_accepted() {
        assert_eq!(ordered("x86_64", "x86_64").result, CheckResult::Ok);
        for (built_for, running_on, named) in [
            ("aarch64", "aarch64", "aarch64"),
            ("riscv64", "riscv64", "riscv64"),
            ("x86_64", "aarch64", "aarch64"),
            ("x86", "x86_64", "x86"),
        ] {
            let refused = ordered(built_for, running_on);
            assert_eq!(refused.result, CheckResult::Error, "{built_for} on {running_on}");
            assert!(
                refused.message.starts_with(&format!("{named} is not supported")),
                "{refused:?}"
            );
            assert!(refused.fix.contains("kubernetes.io/arch: amd64"), "{refused:?}");
        }
    }

    /// `required` decides whether the agent starts, `list_machine_findings` is what the command prints.
    #[test]
    fn the_agent_and_the_command_both_check_the_architecture() {
        let of = |findings: &[Finding]| {
            findings.iter().filter(|finding| finding.check == "architecture").count()
        };
        assert_eq!((of(&required()), of(&list_machine_findings())), (1, 1));
    }

    #[test]
    fn missing_capabilities_are_named() {
        assert_eq!(sufficient(u64::MAX).result, CheckResult::Ok);
        // SYS_ADMIN includes the capabilities that were split off from it.
        assert_eq!(sufficient(1 << 21 | 1 << 12).result, CheckResult::Ok);
        assert_eq!(sufficient(1 << 38 | 1 << 39 | 1 << 12).result, CheckResult::Ok);
        let refused = sufficient(1 << 12);
        assert_eq!(refused.result, CheckResult::Error);
        assert!(refused.message.ends_with("missing: BPF, PERFMON"), "{refused:?}");
    }
}
