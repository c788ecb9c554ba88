//! Runs programs to their end. Errors contain the command and its output.

use std::env;
use std::ffi::OsStr;
use std::io::{Seek, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// Time limit of waits. Long, because on a busy machine an agent may take half a minute to start;
/// it costs time only in failures.
pub const SOON: Duration = Duration::from_secs(120);

/// Runs `ip` with arguments as typed in a shell.
pub fn run_ip(arguments: &str) -> Result<String> {
    run_to_end(Command::new("ip").args(arguments.split_whitespace()))
}

/// Runs several commands of `ip` in one process, which stops at the first that fails.
pub(crate) fn ip_batch(namespace: &str, commands: &[String]) -> Result<()> {
    if commands.is_empty() {
        return Ok(());
    }
    let mut input = tempfile::tempfile()?;
    commands.iter().try_for_each(|command| writeln!(input, "{command}"))?;
    input.rewind()?;
    let mut batch = Command::new("ip");
    batch.args(["-n", namespace, "-batch", "-"]).stdin(input);
    run_with_input(&mut batch).with_context(|| commands.join("\n")).map(drop)
}

/// Runs a program to its end; returns its output.
pub fn run_to_end(command: &mut Command) -> Result<String> {
    run_with_input(command.stdin(Stdio::null()))
}

fn run_with_input(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| {
        let program = command.get_program().display();
        format!("{} can't be started; is {program} installed?", shell_line(command))
    })?;
    if !output.status.success() {
        let printed = [output.stderr, output.stdout].concat();
        bail!(
            "{}: {}\n{}",
            shell_line(command),
            output.status,
            String::from_utf8_lossy(&printed).trim()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Copies a program so that everybody can start it at once. The copy is written by another process:
/// one that another thread starts meanwhile would inherit the open file for a moment, and the
/// kernel starts no program that is open for writing ("Text file busy").
pub fn copy_program(program: &Path, copy: &Path) -> Result<()> {
    run_to_end(Command::new("install").args(["--mode=755", "--"]).arg(program).arg(copy)).map(drop)
}

/// A command as typed in a shell.
pub fn shell_line(command: &Command) -> String {
    let quoted = |word: &OsStr| match word.to_string_lossy() {
        plain if !plain.is_empty() && !plain.contains(char::is_whitespace) => plain.into_owned(),
        other => format!("'{other}'"),
    };
    let words = [command.get_program()].into_iter().chain(command.get_args());
    words.map(quoted).collect::<Vec<_>>().join(" ")
}

/// Waits until a condition holds. The error contains `what`.
pub fn wait_until(what: &str, limit: Duration, mut is_so: impl FnMut() -> bool) -> Result<()> {
    let limit = limit * slowness();
    let start = Instant::now();
    while !is_so() {
        if start.elapsed() > limit {
            bail!("waited {limit:?} in vain until {what}");
        }
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Factor for time limits: emulated machines are slower.
fn slowness() -> u32 {
    env::var("MILLRACE_TESTS_SLOWNESS").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_quotes_the_command_and_its_output() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo out; echo err >&2; exit 3"]);
        let error = run_to_end(&mut command).unwrap_err().to_string();
        assert_eq!(error, "sh -c 'echo out; echo err >&2; exit 3': exit status: 3\nerr\nout");
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let error = run_to_end(&mut Command::new("no-such-program")).unwrap_err().to_string();
        assert!(error.contains("is no-such-program installed?"), "{error}");
    }
}
