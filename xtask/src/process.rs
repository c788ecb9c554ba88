//! Commands, with errors that say what was run and what it said.

use std::env;
use std::ffi::OsStr;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// The repository's root.
pub fn root() -> &'static Path {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest)
}

/// The cargo that this was started by.
pub fn cargo() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// Runs a command with this terminal; fails if it does.
pub fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| cannot_start(command))?;
    if !status.success() {
        bail!("{} ended with {status}", describe(command));
    }
    Ok(())
}

/// Runs a command and returns what it printed; fails with what it said if it does.
pub fn output(command: &mut Command) -> Result<String> {
    let output =
        command.stdin(Stdio::null()).output().with_context(|| cannot_start(command))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{} ended with {}:\n{}", describe(command), output.status, said.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Becomes the command, as root: signals then go straight to it.
pub fn become_root_command(program: &Path, arguments: &[String], agent: &Path) -> Result<()> {
    let mut command = as_root(program);
    command.args(arguments).env("MILLRACE_BIN", agent).current_dir(root());
    if !is_root() {
        eprintln!("This needs root, for network namespaces and BPF: asking sudo.");
    }
    let error = command.exec();
    Err(error).with_context(|| cannot_start(&command))
}

fn as_root(program: &Path) -> Command {
    if is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("sudo");
    command.arg("--preserve-env=MILLRACE_BIN").arg(program);
    command
}

pub fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|this| std::os::unix::fs::MetadataExt::uid(&this) == 0)
}

/// Finds a program on the PATH, or where distributions put those for root.
pub fn find(program: &str) -> Option<PathBuf> {
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
    let missing = find(&program).is_none() && !Path::new(program.as_ref()).exists();
    let why = if missing { ": it is not installed" } else { "" };
    format!("{program} can't be started{why}")
}

/// Whether a path is missing, as opposed to unreadable.
pub fn is_missing(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
}
