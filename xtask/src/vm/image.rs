//! The file system of the virtual machine: the tests and the agent, and this machine's programs
//! that they use, with their libraries.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::cpio::CpioArchive;
use super::kernel::Kernel;
use crate::packages;
use crate::process::{find_program, read_output, repository_root, target_directory};
use crate::programs::{self, Program};

/// A module of a test program in `tests/tests`.
pub struct Test {
    pub program: &'static str,
    pub module: &'static str,
    /// Beginnings of the names of its tests to run; empty for all.
    pub only: &'static [&'static str],
    /// Parts of the names of tests to leave out.
    pub skipped: &'static [&'static str],
    /// Whether it runs only with `--rare`, or when it is named.
    pub rare: bool,
}

impl Test {
    /// Arguments of the program that select the tests.
    pub fn filters(&self) -> Vec<String> {
        let mut filters: Vec<String> =
            self.only.iter().map(|name| format!("{}::{name}", self.module)).collect();
        if filters.is_empty() {
            filters.push(format!("{}::", self.module));
        }
        filters
            .extend(self.skipped.iter().flat_map(|name| ["--skip".to_owned(), name.to_string()]));
        filters
    }
}

/// Modules for the tests' networks, and for the agent's attachments and socket queries.
const MODULES: [&str; 31] = [
    "bridge",
    "br_netfilter",
    "veth",
    "8021q",
    "bonding",
    "sch_ingress",
    "cls_bpf",
    "tcp_diag",
    "udp_diag",
    "sctp",
    "dummy",
    "ip_vs",
    "ip_vs_rr",
    "vxlan",
    "ipip",
    "ip6_tunnel",
    "ip_gre",
    "ip6_gre",
    "sit",
    "geneve",
    "nf_conntrack_netlink",
    "nf_tables",
    "nft_chain_nat",
    "nft_ct",
    "nft_fib_inet",
    "nft_masq",
    "nft_nat",
    "nft_objref",
    "nft_reject_inet",
    "tun",
    "wireguard",
];

/// Programs that the tests use in addition to those of [`packages`]. Every distribution has them,
/// except wg and ipvsadm, which are installed with QEMU.
const PROGRAMS: [&str; 19] = [
    "bash", "bridge", "cat", "dd", "head", "ipvsadm", "ls", "mount", "prlimit", "setpriv", "sh",
    "sleep", "sysctl", "tc", "timeout", "true", "uname", "unshare", "wg",
];

/// Directory of the tests and lists that the init program reads.
const DIRECTORY: &str = "/vm";

pub fn build_machine_image(
    image: &Path,
    kernel: &Kernel,
    tests: &[&Test],
    arguments: &[String],
) -> Result<()> {
    let names: BTreeSet<&str> = tests.iter().map(|test| test.program).collect();
    let built = programs::built()?;
    let mut archive = CpioArchive::create(image)?;
    let list =
        |lines: Vec<String>| lines.iter().map(|line| format!("{line}\n")).collect::<String>();

    for name in names {
        add_stripped(&mut archive, &path_of(name, &built)?, &format!("{DIRECTORY}/{name}"))?;
    }
    let line = |test: &&Test| {
        let program = format!("{DIRECTORY}/{}", test.program);
        [vec![program], test.filters(), arguments.to_vec()].concat().join(" ")
    };
    let lines = tests.iter().map(line).collect();
    archive.file(&format!("{DIRECTORY}/tests"), list(lines).as_bytes())?;

    let built = target_directory().join("debug");
    add_stripped(&mut archive, &built.join("vm_init"), &format!("{DIRECTORY}/init"))?;
    add_stripped(&mut archive, &built.join("millrace"), &format!("{DIRECTORY}/millrace"))?;
    // Tests contain the path of this program from their compilation.
    let socket = built.join("socket");
    add_stripped(&mut archive, &socket, &socket.to_string_lossy())?;

    let mut modules = Vec::new();
    for module in kernel.modules(&MODULES)? {
        let name = module.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let path = format!("{DIRECTORY}/modules.d/{name}");
        archive.copy(&module, &path)?;
        modules.push(path);
    }
    archive.file(&format!("{DIRECTORY}/modules"), list(modules).as_bytes())?;

    let others = packages::DEMO.into_iter().chain(packages::NODES).map(|(program, _)| program);
    for program in PROGRAMS.into_iter().chain(others) {
        let path = find_program(program).with_context(|| format!("there is no {program} here"))?;
        archive.copy(&path, &format!("/usr/bin/{program}"))?;
        add_libraries(&mut archive, &path)?;
    }
    archive.link("/bin", "usr/bin")?;
    archive.file("/etc/passwd", b"root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n")?;
    archive.file("/etc/group", b"root:x:0:\nnogroup:x:65534:\n")?;
    add_manifests(&mut archive)?;
    archive.finish()
}

/// The path of a built program of `tests/tests`.
fn path_of(name: &str, built: &[Program]) -> Result<PathBuf> {
    let name = format!("tests/{name}");
    let program = built.iter().find(|program| program.name == name);
    Ok(program.with_context(|| format!("there is no test program {name}"))?.path.clone())
}

/// Adds a program without debug information, which is most of it.
fn add_stripped(archive: &mut CpioArchive, program: &Path, to: &str) -> Result<()> {
    let stripped = repository_root().join("target/vm/stripped");
    let mut strip = Command::new("strip");
    strip.arg("--strip-debug").arg("-o").args([&stripped, program]);
    let smaller = read_output(&mut strip).is_ok();
    archive.copy(if smaller { &stripped } else { program }, to)?;
    add_libraries(archive, program)
}

/// Adds a program's libraries under the paths where the program looks for them.
fn add_libraries(archive: &mut CpioArchive, program: &Path) -> Result<()> {
    // ldd fails for scripts and static programs, which need no libraries.
    let listing = read_output(Command::new("ldd").arg(program)).unwrap_or_default();
    for path in libraries(&listing) {
        archive.copy(Path::new(path), path)?;
    }
    ensure!(!listing.contains("not found"), "{} lacks a library:\n{listing}", program.display());
    Ok(())
}

/// Paths in "libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x…)" and "/lib64/ld-linux-x86-64.so.2
/// (0x…)".
fn libraries(listing: &str) -> impl Iterator<Item = &str> {
    listing.lines().filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')))
}

/// Adds files that tests read, under their paths on this machine.
fn add_manifests(archive: &mut CpioArchive) -> Result<()> {
    let directory = repository_root().join("tests/manifests");
    for entry in std::fs::read_dir(&directory).with_context(|| directory.display().to_string())? {
        let path = entry?.path();
        archive.copy(&path, &path.to_string_lossy())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_read() {
        let listing = "\tlinux-vdso.so.1 (0x00007ffe)\n\tlibc.so.6 => /lib/libc.so.6 (0x00007f)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n";
        let found: Vec<&str> = libraries(listing).collect();
        assert_eq!(found, ["/lib/libc.so.6", "/lib64/ld-linux-x86-64.so.2"]);
    }
}
