//! Runs commands. Errors contain the command and its output.

use std::env;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

/// The root of the repository.
pub fn repository_root() -> &'static Path {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest)
}

/// Cargo's target directory for builds of this machine. The BPF objects and the tools are always in
/// `target`, where the agent's build script expects them.
pub fn target_directory() -> PathBuf {
    repository_root().join(env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
}

/// The cargo that started this program.
pub fn cargo() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(repository_root());
    command
}

/// A cargo for what tests, lints and demo share. The workspace's crates are compiled by clippy's driver, if it is
/// installed: it is the compiler with more lints, so that linting needs no build of its own.
pub fn shared_cargo() -> Command {
    let mut command = cargo();
    if let Some(driver) = clippy_driver() {
        // As `cargo clippy` sets them. Warnings become errors only in the stage of the linters.
        command.env("RUSTC_WORKSPACE_WRAPPER", driver).env("CLIPPY_ARGS", "");
    }
    command
}

/// Clippy's driver, of the toolchain of the cargo that started this program.
pub fn clippy_driver() -> Option<PathBuf> {
    let cargo = env::var_os("CARGO").map(PathBuf::from);
    let beside = cargo.map(|cargo| cargo.with_file_name("clippy-driver"));
    beside.filter(|driver| driver.is_file()).or_else(|| find_program("clippy-driver"))
}

/// Selects the crates that share one build: all except those that are built by themselves.
pub const SHARED_BUILD: [&str; 7] =
    ["--workspace", "--exclude", "lb-ebpf", "--exclude", "models", "--exclude", "xtask"];

/// Waits until no other process holds the file, and holds it until it is dropped.
pub fn lock_file(path: &Path) -> Result<File> {
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
    }
    let file = File::create(path).with_context(|| path.display().to_string())?;
    file.lock().with_context(|| format!("cannot lock {}", path.display()))?;
    Ok(file)
}

/// Fails if a directory that is to be replaced holds something else: it is new, empty, or has the file `mark`, which only
/// an earlier run writes.
pub fn ensure_replaceable(directory: &Path, mark: &str) -> Result<()> {
    let is_empty = match std::fs::read_dir(directory) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) if is_missing(&error) => true,
        Err(error) => return Err(error).context(directory.display().to_string()),
    };
    ensure!(
        is_empty || directory.join(mark).exists(),
        "{} is neither empty nor of an earlier run, with the file {mark}: name another directory",
        directory.display()
    );
    Ok(())
}

/// Replaces a directory that an earlier run has written by an empty one.
pub fn replace_directory(directory: &Path) -> Result<()> {
    match std::fs::remove_dir_all(directory) {
        Err(error) if !is_missing(&error) => {
            return Err(error).context(directory.display().to_string());
        }
        _ => (),
    }
    std::fs::create_dir_all(directory).with_context(|| directory.display().to_string())
}

/// A command with a time limit.
pub fn with_time_limit(seconds: u32, program: &str) -> Command {
    let mut command = Command::new("timeout");
    command.arg(seconds.to_string()).arg(program);
    command
}

/// Runs a command on this terminal. Fails if the command fails.
pub fn run_command(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| cannot_start(command))?;
    if !status.success() {
        bail!("{} ended with {status}", describe(command));
    }
    Ok(())
}

/// Runs a command and returns its standard output. Fails with its standard error if it fails.
pub fn read_output(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output().with_context(|| cannot_start(command))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!("{} ended with {}:\n{}", describe(command), output.status, stderr.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Replaces this process with a program that runs as root, and passes the agent's path, if it needs it, in the
/// environment. As no process is in between, Ctrl-C reaches the program, and the shell waits for
/// its clean-up.
pub fn become_root_command(
    program: &Path,
    arguments: &[String],
    agent: Option<&Path>,
) -> Result<()> {
    let mut command = if is_root() {
        Command::new(program)
    } else {
        eprintln!("Network namespaces and BPF need root; running sudo.");
        let mut sudo = Command::new("sudo");
        if !io::stdin().is_terminal() {
            // The question would not be visible.
            sudo.arg("--non-interactive");
        }
        sudo.arg("--preserve-env=MILLRACE_BIN").arg(program);
        sudo
    };
    command.args(arguments).envs(agent.map(|agent| ("MILLRACE_BIN", agent)));
    let error = command.exec();
    Err(error).with_context(|| cannot_start(&command))
}

pub fn is_root() -> bool {
    // /proc/self belongs to the effective user.
    std::fs::metadata("/proc/self").is_ok_and(|this| this.uid() == 0)
}

/// Finds a program on the PATH or in the directories for root's programs.
pub fn find_program(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|directory| directory.join(program))
        .find(|candidate| candidate.is_file())
}

fn describe(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
}

fn cannot_start(command: &Command) -> String {
    let program = command.get_program().to_string_lossy();
    let missing = find_program(&program).is_none() && !Path::new(program.as_ref()).exists();
    let why = if missing { ": it is not installed" } else { "" };
    format!("{program} can't be started{why}")
}

/// Whether a path does not exist, as opposed to being unreadable.
pub fn is_missing(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
}
