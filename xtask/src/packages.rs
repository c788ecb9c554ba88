//! Programs that demo, tests and benchmarks use, and their Debian packages.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Error, Result, bail};

use crate::process::{find_program, is_root, lock_file, read_output, repository_root};

/// A program and its Debian package.
pub type PackagedProgram = (&'static str, &'static str);

/// What the demo uses, and nearly all tests in network namespaces.
pub const DEMO: [PackagedProgram; 6] = [
    ("curl", "curl"),
    ("ethtool", "ethtool"),
    ("ip", "iproute2"),
    ("nginx", "nginx-light"),
    ("nsenter", "util-linux"),
    ("openssl", "openssl"),
];

/// What other tests use on nodes and clients.
pub const NODES: [PackagedProgram; 8] = [
    ("bpftool", "bpftool"),
    ("iperf3", "iperf3"),
    ("iptables-nft-restore", "iptables"),
    ("nft", "nftables"),
    ("ping", "iputils-ping"),
    ("ps", "procps"),
    ("tcpdump", "tcpdump"),
    ("tmux", "tmux"),
];

/// What the tests beside programs of others use: routers, clients, and what starts a container.
pub const PEERS: [PackagedProgram; 8] = [
    ("bgpctl", "openbgpd"),
    ("bird", "bird2"),
    ("capsh", "libcap2-bin"),
    ("exabgp", "exabgp"),
    ("gobgpd", "gobgpd"),
    ("h2load", "nghttp2-client"),
    ("systemctl", "systemd"),
    // Its daemons are not in the PATH.
    ("vtysh", "frr"),
];

/// Servers behind the proxy, for its tests of smuggled requests.
pub const ENDPOINTS: [PackagedProgram; 3] =
    [("apache2", "apache2-bin"), ("nginx", "nginx-light"), ("node", "nodejs")];

pub const QEMU: &str = "qemu-system-x86_64";

/// What the virtual machine uses in addition to the demo and to nodes.
pub const MACHINE: [PackagedProgram; 3] =
    [("ipvsadm", "ipvsadm"), (QEMU, "qemu-system-x86"), ("wg", "wireguard-tools")];

/// What a cluster uses in addition to the demo: tools in its images, and a C compiler for runc.
pub const CLUSTER: [PackagedProgram; 9] = [
    // A library of runc, by its header.
    ("/usr/include/seccomp.h", "libseccomp-dev"),
    ("bash", "bash"),
    ("busybox", "busybox-static"),
    ("cc", "gcc"),
    ("dig", "bind9-dnsutils"),
    ("nc", "netcat-openbsd"),
    ("nft", "nftables"),
    ("pkg-config", "pkg-config"),
    ("wget", "wget"),
];

/// What benchmarks use in addition to the demo.
pub const BENCHMARKS: [PackagedProgram; 3] =
    [("iperf3", "iperf3"), ("iptables-nft-restore", "iptables"), ("nft", "nftables")];

/// Programs that benchmarks compare Millrace with or measure it by, and one that draws the chart. A benchmark leaves
/// out what is missing.
pub const COMPARED: [PackagedProgram; 4] = [
    ("caddy", "caddy"),
    ("h2load", "nghttp2-client"),
    ("haproxy", "haproxy"),
    ("rsvg-convert", "librsvg2-bin"),
];

/// Installs the missing ones of these programs. If none is missing, does not even update the package lists.
pub fn ensure_packages(programs: &[&[PackagedProgram]]) -> Result<()> {
    let missing = missing(programs.concat());
    if missing.is_empty() {
        return Ok(());
    }
    let (programs, packages): (Vec<&str>, Vec<&str>) = missing.into_iter().unzip();
    install_packages(&packages)
        .with_context(|| format!("{} must be installed", programs.join(", ")))
}

fn missing(programs: Vec<PackagedProgram>) -> Vec<PackagedProgram> {
    programs.into_iter().filter(|(program, _)| find_program(program).is_none()).collect()
}

pub fn install_packages(packages: &[&str]) -> Result<()> {
    let names = packages.join(" ");
    if find_program("apt-get").is_none() {
        bail!(
            "there is no apt-get here to install {names}: please install them by your distribution's means"
        );
    }
    eprintln!("installing {names}");
    install_by_apt(packages).with_context(|| {
        format!(
            "can't install {names}. By hand, as root:  apt-get update && apt-get install {names}"
        )
    })
}

/// Updates the package lists unless what is wanted is in them.
pub fn update_package_lists_unless(is_known: impl Fn() -> Result<bool>) -> Result<()> {
    let _turn = take_turn_of_apt()?;
    if is_known()? {
        return Ok(());
    }
    retry_archives(|| read_output(apt_get()?.arg("update")).map(drop))
}

/// Downloads a package into a directory, without installing it.
pub fn download_package(name: &str, directory: &Path) -> Result<PathBuf> {
    if find_program("apt-get").is_none() {
        bail!("there is no apt-get here to download {name}");
    }
    eprintln!("downloading {name} to {}", directory.display());
    fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
    let download =
        || read_output(Command::new("apt-get").args(["download", name]).current_dir(directory));
    let _turn = take_turn_of_apt()?;
    if download().is_err() {
        retry_archives(|| {
            // The package lists may be outdated.
            read_output(apt_get()?.arg("update"))?;
            download().map(drop)
        })
        .with_context(|| format!("{name} can't be downloaded"))?;
    }
    let files = fs::read_dir(directory)?.flatten().map(|entry| entry.path());
    files
        .filter(|file| file.extension().is_some_and(|extension| extension == "deb"))
        .max()
        .with_context(|| {
            format!(
                "apt-get reported that it downloaded {name}, but it is not in {}",
                directory.display()
            )
        })
}

fn install_by_apt(packages: &[&str]) -> Result<()> {
    let _turn = take_turn_of_apt()?;
    let _denied = NoServices::deny();
    retry_archives(|| {
        // Outdated lists may be good enough.
        let updated = read_output(apt_get()?.arg("update"));
        let mut command = apt_get()?;
        command.args(["install", "--yes", "--no-install-recommends"]).args(packages);
        match (read_output(&mut command), updated) {
            (Ok(_), _) => Ok(()),
            (Err(error), Err(earlier)) => Err(error.context(format!("{earlier:#}"))),
            (Err(error), Ok(_)) => Err(error),
        }
    })
}

/// Pauses before what failed is done again: archives are busy or unreachable for moments.
const PAUSES: [Duration; 3] =
    [Duration::from_secs(2), Duration::from_secs(10), Duration::from_secs(30)];

/// Works with archives until that succeeds, four times at most.
fn retry_archives(work: impl Fn() -> Result<()>) -> Result<()> {
    for pause in PAUSES {
        match work() {
            Ok(()) => return Ok(()),
            Err(error) if is_unknown_package(&error) => return Err(error),
            Err(error) => eprintln!("{error:#}\nonce more in {} s", pause.as_secs()),
        }
        sleep(pause);
    }
    work()
}

/// Whether apt knows the archives, and they have no such package: no later try finds it.
fn is_unknown_package(error: &Error) -> bool {
    let text = format!("{error:#}");
    ["Unable to locate package", "has no installation candidate"]
        .iter()
        .any(|reason| text.contains(reason))
}

/// Stages of tests run at the same time, and apt waits for no other one that updates the package lists.
fn take_turn_of_apt() -> Result<File> {
    lock_file(&repository_root().join("target/xtask/apt.lock"))
}

/// Where packages ask whether they may start their services.
const POLICY: &str = "/usr/sbin/policy-rc.d";

/// While it exists, packages start no services: a router would work on the machine's own interfaces.
struct NoServices;

impl NoServices {
    /// `None`: not as root, or the machine has a policy already.
    fn deny() -> Option<Self> {
        let mut file = OpenOptions::new();
        let mut file = file.write(true).create_new(true).mode(0o755).open(POLICY).ok()?;
        let denying = Self;
        file.write_all(b"#!/bin/sh\nexit 101\n").ok()?;
        Some(denying)
    }
}

impl Drop for NoServices {
    fn drop(&mut self) {
        // If it is still there, the user will notice that services do not start.
        let _ = fs::remove_file(POLICY);
    }
}

fn apt_get() -> Result<Command> {
    let mut command = if is_root() {
        Command::new("apt-get")
    } else if find_program("sudo").is_some() {
        let mut sudo = Command::new("sudo");
        // Neither apt-get nor sudo may ask: the question would not be visible.
        sudo.args(["--non-interactive", "DEBIAN_FRONTEND=noninteractive", "apt-get"]);
        sudo
    } else {
        bail!("apt-get needs root, and there is no sudo")
    };
    // In seconds. A machine that has just booted often runs its own updates.
    command.args(["-o", "DPkg::Lock::Timeout=300"]);
    command.env("DEBIAN_FRONTEND", "noninteractive");
    Ok(command)
}
