//! `cargo xtask fuzz`: runs cargo-fuzz, and installs it.
//!
//! Sanitizers and coverage need a nightly compiler. Without one, a stable compiler gets
//! RUSTC_BOOTSTRAP.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use clap::Args;
use clap::builder::PossibleValuesParser;

use crate::packages;
use crate::process::{find_program, read_output, repository_root, run_command};
use crate::tools::{install_program, tools_directory};

const TARGETS: [&str; 9] = [
    "parser",
    "pipeline",
    "http-host",
    "http-path",
    "http-request",
    "proxy-protocol",
    "bgp-message",
    "bgp-session",
    "bfd-session",
];
const VERSION: &str = "0.13.2";

#[derive(Debug, Args)]
pub struct FuzzOptions {
    /// Fuzz target; without it, all targets one after the other
    #[arg(value_parser = PossibleValuesParser::new(TARGETS))]
    target: Option<String>,
    /// Duration for each target, in seconds
    #[arg(long, value_name = "N", default_value_t = 60)]
    seconds: u32,
}

pub fn fuzz(options: &FuzzOptions) -> Result<()> {
    let compiler = Compiler::find()?;
    if ["c++", "g++", "clang++"].iter().all(|program| find_program(program).is_none()) {
        packages::install_packages(&["g++"]).context("libFuzzer is written in C++")?;
    }
    let program = ensure()?;
    let targets = TARGETS
        .iter()
        .filter(|&&target| options.target.as_deref().is_none_or(|wanted| wanted == target));
    for target in targets {
        eprintln!("fuzzing {target} for {} seconds, {compiler}", options.seconds);
        run_command(&mut compiler.command(&program, target, options.seconds)?)?;
    }
    Ok(())
}

/// Finds cargo-fuzz on the PATH or in `target/tools`, or builds it there.
fn ensure() -> Result<PathBuf> {
    let program = tools_directory().join("bin/cargo-fuzz");
    if let Some(found) =
        find_program("cargo-fuzz").or_else(|| program.is_file().then(|| program.clone()))
    {
        return Ok(found);
    }
    install_program("cargo-fuzz", VERSION, &[])?;
    Ok(program)
}

struct Compiler {
    /// The rustup toolchain. `None`: the default compiler.
    toolchain: Option<&'static str>,
    sanitizer: &'static str,
}

impl Compiler {
    fn find() -> Result<Self> {
        let sysroot = |toolchain: Option<&str>| {
            let mut rustc = Command::new("rustc");
            if let Some(toolchain) = toolchain {
                rustc.env("RUSTUP_TOOLCHAIN", toolchain);
            }
            read_output(rustc.args(["--print", "sysroot"])).map(PathBuf::from)
        };
        let (toolchain, sysroot) = match sysroot(Some("nightly")) {
            Ok(found) if found.to_string_lossy().contains("nightly") => (Some("nightly"), found),
            _ => (None, sysroot(None).context("rustc not found")?),
        };
        let sanitizer = if has_address_sanitizer(&sysroot) { "address" } else { "none" };
        Ok(Self { toolchain, sanitizer })
    }

    fn command(&self, program: &Path, target: &str, seconds: u32) -> Result<Command> {
        let directory = repository_root().join("target/fuzz");
        // New inputs go to the first corpus. The committed one is only read.
        let (found, finds) = (directory.join("corpus").join(target), directory.join("artifacts"));
        for directory in [&found, &finds] {
            std::fs::create_dir_all(directory)
                .with_context(|| format!("cannot create {}", directory.display()))?;
        }
        let mut command = Command::new(program);
        command.current_dir(repository_root()).args(["fuzz", "run", "--features", "libfuzzer"]);
        command
            .args(["--sanitizer", self.sanitizer])
            .arg("--target-dir")
            .arg(directory.join("build"));
        command
            .arg(target)
            .arg(found)
            .arg(repository_root().join("fuzz/corpus").join(target))
            .arg("--");
        command.args([format!("-max_total_time={seconds}"), "-max_len=4096".into()]);
        command.arg(format!("-artifact_prefix={}/{target}-", finds.display()));
        match self.toolchain {
            // Overrides the toolchain that an outer cargo has set.
            Some(toolchain) => command.env("RUSTUP_TOOLCHAIN", toolchain).env_remove("CARGO"),
            None => command.env("RUSTC_BOOTSTRAP", "1"),
        };
        command.env_remove("RUSTC").env_remove("RUSTFLAGS");
        // cargo puts its own directories first on the PATH, where they hide rustup's.
        if self.toolchain.is_some() {
            command.env("PATH", without_toolchains(env::var_os("PATH").unwrap_or_default())?);
        }
        Ok(command)
    }
}

fn without_toolchains(path: std::ffi::OsString) -> Result<std::ffi::OsString> {
    let others = env::split_paths(&path)
        .filter(|directory| !directory.to_string_lossy().contains("/toolchains/"));
    env::join_paths(others).context("the PATH can't be written")
}

impl std::fmt::Display for Compiler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = self.toolchain.unwrap_or("a stable compiler with RUSTC_BOOTSTRAP");
        write!(f, "with {name}, sanitizer {}", self.sanitizer)
    }
}

/// Whether the compiler has the library of the address sanitizer.
fn has_address_sanitizer(sysroot: &Path) -> bool {
    let libraries = format!("lib/rustlib/{}-unknown-linux-gnu/lib", env::consts::ARCH);
    let entries = std::fs::read_dir(sysroot.join(libraries)).into_iter().flatten().flatten();
    entries.into_iter().any(|entry| entry.file_name().to_string_lossy().ends_with("_rt.asan.a"))
}
