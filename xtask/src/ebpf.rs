//! Building the BPF objects: `target/bpf/millrace.bpf.o` and `target/bpf/bench.bpf.o`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::fingerprint;
use crate::process::{cargo, is_missing, output, root};
use crate::toolchain::{self, Toolchain};

const LINKER_VERSION: &str = "0.10.3";
const TARGET: &str = "bpfel-unknown-none";
const OBJECTS: [&str; 2] = ["millrace", "bench"];

#[derive(Debug, Default, Args)]
pub struct Options {
    /// Say why each compiler was taken or not
    #[arg(long)]
    pub verbose: bool,
}

/// Builds the objects if anything they depend on has changed.
pub fn build(options: &Options) -> Result<()> {
    let say = |line: &str| {
        if options.verbose {
            eprintln!("{line}");
        }
    };
    let stamp = root().join("target/bpf/inputs.sha256");
    let inputs = inputs()?;
    let last = read_if_there(&stamp)?;
    if last.as_deref() == Some(&inputs) && OBJECTS.iter().all(|name| object(name).is_file()) {
        say("the BPF objects are up to date");
        return Ok(());
    }

    let toolchain = toolchain::choose(&say)?;
    let linker = linker(&say)?;
    eprintln!("building the BPF objects by {toolchain} and bpf-linker {LINKER_VERSION}");
    let mut command = bpf_cargo(&toolchain, &linker, "build");
    for name in OBJECTS {
        command.args(["--bin", name]);
    }
    say(&output(command.arg("--quiet"))?);

    fs::create_dir_all(root().join("target/bpf"))?;
    for name in OBJECTS {
        let built = fs::read(root().join("target/ebpf").join(TARGET).join("bpf").join(name))?;
        // Written only when it differs: the agent embeds it, and would be built again.
        if fs::read(object(name)).ok().as_ref() != Some(&built) {
            fs::write(object(name), built)?;
        }
    }
    fs::write(&stamp, inputs)?;
    Ok(())
}

/// Clippy over the BPF crate, by the compiler that builds it.
pub fn clippy() -> Result<()> {
    let silent = |_: &str| ();
    let toolchain = toolchain::choose(&silent)?;
    let linker = linker(&silent)?;
    let mut command = bpf_cargo(&toolchain, &linker, "clippy");
    command.args(["--bins", "--quiet", "--", "--deny", "warnings"]);
    output(&mut command).map(drop)
}

fn bpf_cargo(toolchain: &Toolchain, linker: &Linker, subcommand: &str) -> Command {
    let flags = [
        format!("-Clinker={}", linker.program.display()),
        // Atomics that return what was there before.
        "-Ctarget-cpu=v3".to_owned(),
        // The maps' and functions' types, for bpftool and the verifier.
        "-Clink-arg=--btf".to_owned(),
    ];
    let mut command = toolchain.cargo();
    command
        .current_dir(root())
        .arg(subcommand)
        .args(["--profile", "bpf", "--package", "lb-ebpf", "--target", TARGET])
        .args(["-Zbuild-std=core", "--target-dir", "target/ebpf"])
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"));
    if let Some(llvm) = &linker.llvm {
        command.env("LD_LIBRARY_PATH", llvm);
    }
    command
}

/// bpf-linker, and where it finds its LLVM if not in the system's libraries.
struct Linker {
    program: PathBuf,
    llvm: Option<PathBuf>,
}

/// Builds bpf-linker if it is not there, in a folder of ours.
fn linker(say: &dyn Fn(&str)) -> Result<Linker> {
    let program = root().join("target/tools/bin/bpf-linker");
    if !program.is_file() {
        eprintln!("building bpf-linker {LINKER_VERSION}: a minute, once");
        let mut command = cargo();
        command
            .args(["install", "bpf-linker", "--version", LINKER_VERSION, "--locked", "--quiet"])
            .args(["--root", "target/tools", "--target-dir", "target/tools/build"]);
        output(&mut command).context(
            "bpf-linker can't be built. By hand: cargo install bpf-linker --version 0.10.3 --locked",
        )?;
    }
    let candidates = std::iter::once(None).chain(toolchain::llvm_directories().into_iter().map(Some));
    for llvm in candidates {
        let mut command = Command::new(&program);
        command.arg("--version");
        if let Some(llvm) = &llvm {
            command.env("LD_LIBRARY_PATH", llvm);
        }
        match output(&mut command) {
            Ok(_) => return Ok(Linker { program, llvm }),
            Err(error) => say(&format!("bpf-linker with the LLVM of {llvm:?}: {error:#}")),
        }
    }
    bail!(
        "bpf-linker finds no LLVM it can use: it borrows the one of a rustup toolchain.\n\
         Try: rustup toolchain install stable"
    )
}

fn inputs() -> Result<String> {
    let sources = ["lb-ebpf", "lb-common", "Cargo.toml", "Cargo.lock", "xtask/src/ebpf.rs"];
    let paths: Vec<PathBuf> = sources.iter().map(|source| root().join(source)).collect();
    fingerprint::of(&paths, &[])
}

fn object(name: &str) -> PathBuf {
    root().join("target/bpf").join(format!("{name}.bpf.o"))
}

fn read_if_there(path: &Path) -> Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(content) => Ok(Some(content)),
        Err(error) if is_missing(&error) => Ok(None),
        Err(error) => Err(error).with_context(|| path.display().to_string()),
    }
}
