//! Commands, with errors that say what was run and what it said.

use std::env;
use std::ffi::OsStr;
use std::io::{self, IsTerminal};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// The repository's root.
pub fn root() -> &'static Path {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest)
}

/// Where cargo puts what it builds for this machine. The BPF objects and the tools are always
/// in `target`: the agent's build script looks for them there.
pub fn target() -> PathBuf {
    root().join(env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
}

/// The cargo that this was started by.
pub fn cargo() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// A command that is ended after some seconds.
pub fn within(seconds: u32, program: &str) -> Command {
    let mut command = Command::new("timeout");
    command.arg(seconds.to_string()).arg(program);
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
    let output = command.stdin(Stdio::null()).output().with_context(|| cannot_start(command))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{} ended with {}:\n{}", describe(command), output.status, said.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Becomes a program, as root, and tells it where the agent is. Signals then go straight to it:
/// Ctrl-C starts its clean-up, and nobody ends before that has ended.
pub fn become_root_command(program: &Path, arguments: &[String], agent: &Path) -> Result<()> {
    let mut command = if is_root() {
        Command::new(program)
    } else {
        eprintln!("This needs root, for network namespaces and BPF: asking sudo.");
        let mut sudo = Command::new("sudo");
        if !io::stdin().is_terminal() {
            // Nobody would see its question.
            sudo.arg("--non-interactive");
        }
        sudo.arg("--preserve-env=MILLRACE_BIN").arg(program);
        sudo
    };
    command.args(arguments).env("MILLRACE_BIN", agent);
    let error = command.exec();
    Err(error).with_context(|| cannot_start(&command))
}

pub fn is_root() -> bool {
    // The owner of a process's directory is its effective user.
    std::fs::metadata("/proc/self").is_ok_and(|this| this.uid() == 0)
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
