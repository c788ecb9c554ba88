//! The first process of the virtual machine that `cargo xtask vm-test` boots: prepares the system,
//! runs the tests, and powers off.
//!
//! Its output goes to the second serial port; the kernel's messages go to the first.

use std::ffi::CString;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use nix::mount::{MsFlags, mount};
use nix::sys::reboot::{RebootMode, reboot};
use nix::sys::wait::{WaitStatus, wait};
use nix::unistd::Pid;

/// The directory with the files for this machine.
const DIRECTORY: &str = "/vm";
const CONSOLE: &str = "/dev/ttyS1";

/// Source, directory and type.
const FILESYSTEMS: [(&str, &str, &str); 8] = [
    ("proc", "/proc", "proc"),
    ("sysfs", "/sys", "sysfs"),
    ("devtmpfs", "/dev", "devtmpfs"),
    ("tmpfs", "/tmp", "tmpfs"),
    ("tmpfs", "/run", "tmpfs"),
    ("bpf", "/sys/fs/bpf", "bpf"),
    ("cgroup2", "/sys/fs/cgroup", "cgroup2"),
    ("tracefs", "/sys/kernel/tracing", "tracefs"),
];

fn main() {
    if let Err(error) = FILESYSTEMS.into_iter().try_for_each(make_filesystem) {
        // The second serial port does not exist yet.
        eprintln!("vm: {error:#}");
    } else if let Err(error) = run() {
        print(&format!("vm: {error:#}"));
    }
    // Returns only if it fails. Then the kernel panics, which also ends the machine.
    let _ = reboot(RebootMode::RB_POWER_OFF);
}

fn make_filesystem((source, directory, kind): (&str, &str, &str)) -> Result<()> {
    fs::create_dir_all(directory).with_context(|| directory.to_owned())?;
    mount(Some(source), directory, Some(kind), MsFlags::empty(), None::<&str>)
        .with_context(|| format!("{kind} can't be mounted at {directory}"))
}

fn run() -> Result<()> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    print(&format!("vm: Linux {}", release.trim()));
    for module in lines("modules")? {
        load(&module).with_context(|| module.clone())?;
    }
    ensure!(child(&["ip", "link", "set", "lo", "up"])?, "the loopback device can't be set up");
    for test in lines("tests")? {
        let words: Vec<&str> = test.split_whitespace().collect();
        print(&format!("vm: runs {test}"));
        let word = if child(&words)? { "passed" } else { "failed" };
        print(&format!("vm: {word} {test}"));
    }
    print("vm: done");
    Ok(())
}

fn lines(file: &str) -> Result<Vec<String>> {
    let path = Path::new(DIRECTORY).join(file);
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    Ok(text.lines().map(str::to_owned).collect())
}

fn load(module: &str) -> Result<()> {
    let file = File::open(module)?;
    let no_parameters = CString::default();
    nix::kmod::finit_module(&file, &no_parameters, nix::kmod::ModuleInitFlags::empty())
        .context("the kernel does not take the module")
}

/// Runs a program to its end; returns whether it succeeded. Reaps orphans, as the first process
/// must.
fn child(words: &[&str]) -> Result<bool> {
    let (program, arguments) = words.split_first().context("a line without a program")?;
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(console()?).stderr(console()?);
    let child = command
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("MILLRACE_BIN", "/vm/millrace")
        .env("MILLRACE_TESTS_SLOWNESS", "10")
        .env("RUST_BACKTRACE", "0")
        .process_group(0)
        .spawn()
        .with_context(|| format!("{program} can't be started"))?;
    let child = Pid::from_raw(child.id() as i32);
    loop {
        match wait()? {
            WaitStatus::Exited(pid, code) if pid == child => return Ok(code == 0),
            WaitStatus::Signaled(pid, signal, _) if pid == child => {
                print(&format!("vm: {program} was ended by {signal}"));
                return Ok(false);
            }
            _ => {}
        }
    }
}

fn print(line: &str) {
    use std::io::Write;
    // Without a console there is no place for the error.
    if let Ok(mut console) = console() {
        let _ = writeln!(console, "{line}");
    }
}

fn console() -> Result<File> {
    File::options().append(true).open(CONSOLE).context(CONSOLE)
}
