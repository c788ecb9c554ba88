//! `cargo xtask vm-test`: the tests on another kernel, in a virtual machine.
//!
//! The machine is all software (QEMU's TCG), so that it runs where there is no KVM, and needs no
//! root. Everything it has is in its initial file system: the tests, the agent, and the programs
//! of this machine that the tests use.

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

use crate::process::{find, root};
use crate::{ebpf, packages};

use image::Test;

/// What runs: files of `tests/tests`, without what says nothing about the kernel; the machine is
/// an order of magnitude slower than this one.
const TESTS: [Test; 4] = [
    Test { name: "verifier", arguments: &[] },
    Test {
        name: "datapath_kernel",
        // The one reads all maps to their ends, and is about the tests themselves; the other is as
        // long as the day known to us, which runs.
        arguments: &["--skip", "a_world_that_is_used_again", "--skip", "a_day_like_no_other"],
    },
    // What stands in for tcx, with real clients and servers.
    Test {
        name: "clsact",
        arguments: &[
            "services_are_reached",
            "a_new_agent_replaces",
            "a_qdisc_in_the_place",
            "cleanup_removes",
            "without_xdp",
        ],
    },
    // Made of devices that this machine's kernel may lack.
    Test { name: "devices", arguments: &[] },
];

/// Seconds after which something must be wrong.
const LIMIT: &str = "3600";

#[derive(Debug, Default, Args)]
pub struct Options {
    /// Run only this test binary of tests/tests; may be repeated
    #[arg(long, value_name = "TEST", value_parser = PossibleValuesParser::new(TESTS.map(|t| t.name)))]
    only: Vec<String>,

    /// Debian package of the kernel to boot [default: the package in target/vm]
    ///
    /// Without a package in target/vm, the newest linux-image-6.1.*-cloud-amd64 is downloaded to it.
    #[arg(long, value_name = "FILE")]
    kernel: Option<PathBuf>,

    /// Arguments of the test binaries: a filter for test names, --nocapture, ...
    #[arg(last = true)]
    arguments: Vec<String>,
}

pub fn test(options: &Options) -> Result<()> {
    ensure!(
        std::env::consts::ARCH == "x86_64",
        "vm-test boots x86-64 kernels, so it needs an x86-64 machine"
    );
    packages::ensure()?;
    if find(QEMU).is_none() {
        packages::install(&["qemu-system-x86"]).context("the virtual machine needs QEMU")?;
    }
    ebpf::build(&ebpf::Options::default())?;
    let directory = root().join("target/vm");
    fs::create_dir_all(&directory).with_context(|| directory.display().to_string())?;
    let kernel = kernel::ensure(&directory, options.kernel.as_deref())?;
    let wanted =
        |test: &&Test| options.only.is_empty() || options.only.iter().any(|only| only == test.name);
    let tests: Vec<&Test> = TESTS.iter().filter(wanted).collect();
    let image = directory.join("initramfs.cpio");
    image::build(&image, &kernel, &tests, &options.arguments)?;
    boot(&kernel.image, &image, &directory.join("console.log"), tests.len())
}

const QEMU: &str = "qemu-system-x86_64";

/// Boots, and prints what the tests say. Fails unless all have passed.
fn boot(kernel: &Path, image: &Path, log: &Path, tests: usize) -> Result<()> {
    // It ends with us, however we end.
    let mut command = Command::new("setpriv");
    command
        .args(["--pdeathsig", "TERM", "timeout", "--kill-after=5", LIMIT, QEMU])
        .args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"])
        // The kernel copies and clears with the string instructions where they are said to be
        // fast. Here they are not, and the verifier copies states most of the time.
        .args(["-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "max,-erms,-fsrm"])
        .args(["-smp", "2", "-m", "3G"])
        .arg("-kernel")
        .arg(kernel)
        .arg("-initrd")
        .arg(image)
        .args(["-append", "console=ttyS0 rdinit=/vm/init panic=-1 random.trust_cpu=on"])
        // The kernel's messages, and what the tests say.
        .arg("-serial")
        .arg(format!("file:{}", log.display()))
        .args(["-serial", "stdio"]);
    let mut machine = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("{QEMU} can't be started"))?;
    let said = machine.stdout.take().context("the machine's output is piped")?;
    let (mut passed, mut done) = (0, false);
    for line in BufReader::new(said).split(b'\n') {
        let line = line?;
        // A terminal's line ends with both.
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
            "the machine did not come to the end of its tests ({status}); its kernel said:\n{tail}"
        );
    }
    ensure!(passed == tests, "{} of {tests} test programs failed", tests - passed);
    Ok(())
}
