//! `cargo xtask vm-test`: runs tests on another kernel, in a virtual machine.
//!
//! The machine is emulated in software (QEMU's TCG), so it needs neither KVM nor root. Its initial
//! file system contains everything: the tests, the agent, and this machine's programs that the
//! tests use.

mod cpio;
mod image;
mod kernel;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use clap::builder::PossibleValuesParser;

use crate::packages::QEMU;
use crate::process::repository_root;
use crate::{packages, programs};

use image::Test;

/// Modules of `tests/tests` that test the kernel. The machine is an order of magnitude slower than this one, so the
/// first ones are run by default, and the rare ones before a release.
const TESTS: [Test; 8] = [
    // The default sizes: each load takes minutes here.
    Test { skipped: &["small_tables"], ..module_of("kernel", "verifier") },
    Test {
        // Skipped: one test reads all maps to their ends, and tests the test environment. The other
        // draws a random day; the day with a fixed seed runs, and is as long.
        skipped: &["a_reset_world", "a_new_random_scenario"],
        ..module_of("kernel", "packet_tables")
    },
    // Tests of clsact, the replacement for tcx, with real clients and servers.
    Test {
        only: &[
            "clients_and_pods_reach_services",
            "a_new_agent_replaces",
            "a_conflicting_qdisc",
            "cleanup_removes",
            "without_xdp",
        ],
        ..rare("node", "clsact")
    },
    // The agent's own frames, and answers to real clients.
    Test { only: &["a_client_cannot_take", "machines_that_have"], ..rare("node", "announce") },
    // Use device types that this machine's kernel may lack.
    rare("node", "devices"),
    rare("nodes", "cni"),
    // Needs sockets of SCTP.
    Test { only: &["stacks_reach"], ..rare("node", "sctp") },
    // Needs IPVS.
    Test { only: &["virtual_servers"], ..rare("node", "kube_proxy") },
];

const fn module_of(program: &'static str, module: &'static str) -> Test {
    Test { program, module, only: &[], skipped: &[], rare: false }
}

const fn rare(program: &'static str, module: &'static str) -> Test {
    Test { rare: true, ..module_of(program, module) }
}

/// Time limit in seconds.
const LIMIT: &str = "3600";

#[derive(Debug, Default, Args)]
pub struct VmTestOptions {
    /// Run only this module of tests; may be repeated
    #[arg(long, value_name = "MODULE", value_parser = PossibleValuesParser::new(TESTS.map(|t| t.module)))]
    only: Vec<String>,

    /// Run the tests that change rarely: clsact, announcements, network plugins, devices, IPVS
    #[arg(long, conflicts_with = "only")]
    rare: bool,

    /// Use the programs that `cargo xtask programs --build` has built, without another cargo
    #[arg(long, hide = true)]
    built: bool,

    /// Debian package of the kernel to boot [default: the package in target/vm]
    ///
    /// Without a package in target/vm, the newest linux-image-6.1.*-cloud-amd64 is downloaded to it.
    #[arg(long, value_name = "FILE")]
    kernel: Option<PathBuf>,

    /// Arguments of the test binaries: a filter for test names, --nocapture, ...
    #[arg(last = true)]
    arguments: Vec<String>,
}

pub fn test_in_machine(options: &VmTestOptions) -> Result<()> {
    ensure!(
        std::env::consts::ARCH == "x86_64",
        "vm-test boots x86-64 kernels, so it needs an x86-64 machine"
    );
    packages::ensure_packages(&[&packages::DEMO, &packages::NODES, &packages::MACHINE])?;
    if !options.built {
        programs::build_programs()?;
    }
    let directory = repository_root().join("target/vm");
    fs::create_dir_all(&directory).with_context(|| directory.display().to_string())?;
    let kernel = kernel::ensure_kernel(&directory, options.kernel.as_deref())?;
    let wanted = |test: &&Test| match options.only.as_slice() {
        [] => test.rare == options.rare,
        only => only.iter().any(|only| only == test.module),
    };
    let tests: Vec<&Test> = TESTS.iter().filter(wanted).collect();
    let image = directory.join("initramfs.cpio");
    image::build_machine_image(&image, &kernel, &tests, &options.arguments)?;
    boot(&kernel.image, &image, &directory.join("console.log"), tests.len())
}

/// Boots the machine, and prints the output of the tests. Fails unless all have passed.
fn boot(kernel: &Path, image: &Path, log: &Path, tests: usize) -> Result<()> {
    // setpriv ends the machine when this process ends for any reason.
    let mut command = Command::new("setpriv");
    command
        .args(["--pdeathsig", "TERM", "timeout", "--kill-after=5", LIMIT, QEMU])
        .args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"])
        // Without the CPU flags for fast string instructions, which the kernel would use to copy
        // and clear. In TCG they are slow, and the verifier mostly copies states.
        .args(["-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "max,-erms,-fsrm"])
        .args(["-smp", "2", "-m", "3G"])
        .arg("-kernel")
        .arg(kernel)
        .arg("-initrd")
        .arg(image)
        .args(["-append", "console=ttyS0 rdinit=/vm/init panic=-1 random.trust_cpu=on"])
        // Serial ports: the kernel's messages, and the output of the tests.
        .arg("-serial")
        .arg(format!("file:{}", log.display()))
        .args(["-serial", "stdio"]);
    let mut machine = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("{QEMU} can't be started"))?;
    let stdout = machine.stdout.take().context("the machine's output is piped")?;
    let (mut passed, mut done) = (0, false);
    for line in BufReader::new(stdout).split(b'\n') {
        let line = line?;
        // Lines of a terminal end with CR LF.
        let line = String::from_utf8_lossy(line.strip_suffix(b"\r").unwrap_or(&line)).into_owned();
        passed += usize::from(line.starts_with("vm: passed "));
        done |= line == "vm: done";
        println!("{line}");
    }
    let status = machine.wait()?;
    if !done {
        let messages = fs::read(log).unwrap_or_default();
        let messages = String::from_utf8_lossy(&messages).into_owned();
        let lines: Vec<&str> = messages.lines().collect();
        let tail = lines[lines.len().saturating_sub(60)..].join("\n");
        bail!(
            "the virtual machine stopped before its tests ended ({status}); last kernel messages:\n{tail}"
        );
    }
    ensure!(passed == tests, "{} of {tests} modules of tests failed", tests - passed);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_name_tests_that_exist() -> Result<()> {
        for test in &TESTS {
            let path = repository_root().join("tests/tests").join(test.program).join(test.module);
            let path = path.with_extension("rs");
            let code = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            let functions: Vec<&str> =
                code.lines().filter_map(|line| line.strip_prefix("fn ")).collect();
            for name in test.only {
                let exists = functions.iter().any(|function| function.starts_with(name));
                assert!(exists, "no test of {} begins with {name}", path.display());
            }
            for name in test.skipped {
                let exists = functions.iter().any(|function| function.contains(name));
                assert!(exists, "no test of {} contains {name}", path.display());
            }
        }
        Ok(())
    }

    #[test]
    fn filters_select_tests_of_their_module() {
        let of_kernel = Test { skipped: &["slow"], ..module_of("kernel", "verifier") };
        assert_eq!(of_kernel.filters(), ["verifier::", "--skip", "slow"]);
        let of_node = Test { only: &["one", "two"], ..rare("node", "clsact") };
        assert_eq!(of_node.filters(), ["clsact::one", "clsact::two"]);
    }
}
