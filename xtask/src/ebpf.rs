//! Builds the BPF objects: `target/bpf/millrace.bpf.o`, which the agent embeds, and
//! `target/bpf/bench.bpf.o`. The same objects with debug information are in `target/ebpf`.
//!
//! If nothing that they depend on has changed, this starts no program.

use std::fs::{self, File};
use std::panic;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::SystemTime;

use anyhow::{Context, Result};
use clap::Args;
use object::build::elf::{Builder, SectionData};
use object::elf;

use crate::fingerprint::{self, Stamp};
use crate::linker::{self, LINKER_VERSION, Linker};
use crate::packages;
use crate::paths;
use crate::process::{cargo, is_missing, lock_file, read_output, repository_root, run_command};
use crate::toolchain::{self, Toolchain};

pub const TARGET: &str = "bpfel-unknown-none";
const OBJECTS: [&str; 2] = ["millrace", "bench"];

/// Needed for atomics that return the previous value.
const CPU: &str = "-Ctarget-cpu=v3";
const FLAGS: [&str; 3] = [
    CPU,
    // Types of maps and functions, for bpftool and the verifier.
    "-Clink-arg=--btf",
    // Expanding memcpy() in order would make memset() a function: slow, byte by byte, and with its
    // own frame on a stack that is full.
    "-Clink-arg=--disable-expand-memcpy-in-order",
    // Not --cpu-features=+allows-misaligned-mem-access: the code would be 2 % smaller, but the
    // verifier refuses it ("misaligned stack access").
];

#[derive(Debug, Default, Args)]
pub struct EbpfOptions {
    /// Print which compilers were found, and why each was used or rejected
    #[arg(long)]
    pub verbose: bool,
}

/// Held while the objects are built. Build scripts that read the objects wait for it.
struct ObjectsLock {
    _file: File,
    since: SystemTime,
}

impl ObjectsLock {
    fn acquire() -> Result<Self> {
        let file = lock_file(&repository_root().join("target/bpf/lock"))?;
        Ok(Self { _file: file, since: SystemTime::now() })
    }
}

/// Builds the objects if anything they depend on has changed.
pub fn build_objects(options: &EbpfOptions) -> Result<()> {
    build_locked_objects(ObjectsLock::acquire()?, options)
}

/// Builds the objects, and by `build` the programs that embed them. Where there are no objects yet, both are built at
/// the same time: cargo has minutes of other work until build scripts need the objects.
pub fn build_objects_beside(build: impl FnOnce() -> Result<()>) -> Result<()> {
    let lock = ObjectsLock::acquire()?;
    // Cargo would not run build scripts again for objects that are about to change.
    if object(OBJECTS[0]).exists() {
        build_locked_objects(lock, &EbpfOptions::default())?;
        return build();
    }
    thread::scope(|scope| {
        let objects = scope.spawn(|| {
            build_locked_objects(lock, &EbpfOptions::default())
                // At once: `build` goes on for minutes.
                .inspect_err(|error| eprintln!("error: cannot build the BPF objects: {error:#}"))
        });
        let built = build();
        objects.join().unwrap_or_else(|panicked| panic::resume_unwind(panicked)).and(built)
    })
}

fn build_locked_objects(lock: ObjectsLock, options: &EbpfOptions) -> Result<()> {
    let log = |line: &str| {
        if options.verbose {
            eprintln!("{line}");
        }
    };
    let inputs = inputs()?;
    let stamp = repository_root().join("target/bpf/stamp");
    let last =
        read_if_there(&stamp)?.and_then(|text| Stamp::parse(&String::from_utf8_lossy(&text)));
    let current = last.filter(|last| last.holds(&inputs));
    if let Some(last) = &current
        && !options.verbose
    {
        eprintln!("the BPF objects are up to date, built by {}", last.builder);
        return Ok(());
    }

    let toolchain = toolchain::ensure_toolchain(&log)?;
    let linker = linker::ensure_linker(&toolchain, &log)?;
    let builder = format!("{toolchain} and bpf-linker {LINKER_VERSION}");
    if let Some(last) = current.filter(|last| last.builder == builder) {
        log(&format!("the BPF objects are up to date, built by {}", last.builder));
        return Ok(());
    }
    eprintln!("building the BPF objects by {builder}");
    compile_objects(&toolchain, &linker, lock.since)?;
    let files: Vec<PathBuf> =
        [toolchain.rustc(), linker.program].into_iter().chain(OBJECTS.map(object)).collect();
    fs::write(&stamp, Stamp::new(inputs, builder, &files)?.to_string())
        .with_context(|| stamp.display().to_string())
}

fn compile_objects(toolchain: &Toolchain, linker: &Linker, started: SystemTime) -> Result<()> {
    let linker_flag = format!("-Clinker={}", linker.program.display());
    let mut command = toolchain.cargo();
    command.arg("build").args(OBJECTS.iter().flat_map(|name| ["--bin", name]));
    // Makes the object independent of the build directory: it contains paths of source files.
    let remapping = paths::remap_flags()?;
    let remapping: Vec<&str> = remapping.iter().map(String::as_str).collect();
    for_bpf(&mut command, &[&[linker_flag.as_str()], &FLAGS[..], &remapping].concat());
    read_output(command.env("LD_LIBRARY_PATH", &linker.llvm))?;

    for name in OBJECTS {
        let path = repository_root().join("target/ebpf").join(TARGET).join("bpf").join(name);
        let built = fs::read(&path).with_context(|| path.display().to_string())?;
        let built = strip(&built)
            .with_context(|| format!("the debug information of {}", path.display()))?;
        // Written only if it differs. Otherwise the agent, which embeds it, would be built again.
        let last = read_if_there(&object(name))?;
        if last.as_ref() != Some(&built) {
            fs::write(object(name), built)?;
        }
        if last.is_none() {
            // Older than cargo's note of when it started the build scripts that have waited for this object.
            File::options().append(true).open(object(name))?.set_modified(started)?;
        }
    }
    Ok(())
}

/// Removes debug information, four fifths of the object. The types for bpftool and the verifier are
/// in other sections. The relocations of `.BTF.ext` are for a linker, which no longer comes: the
/// offsets in that section are right already. They would be a quarter of what remains.
fn strip(object: &[u8]) -> Result<Vec<u8>> {
    let mut builder = Builder::read(object)?;
    for section in &mut builder.sections {
        let name = section.name.as_slice();
        section.delete = name.starts_with(b".debug_")
            || name.starts_with(b".rel.debug_")
            || name == b".rel.BTF.ext";
    }
    // LLVM stores section names in the table of symbol names. Only a separate table can be
    // rewritten.
    let names = builder.sections.add();
    names.name = b".shstrtab"[..].into();
    names.sh_type = elf::SHT_STRTAB;
    names.data = SectionData::SectionString;
    builder.delete_orphans();
    builder.delete_unused_versions();
    let mut stripped = Vec::new();
    builder.write(&mut stripped)?;
    Ok(stripped)
}

/// Runs clippy on the BPF crate with the compiler that builds it. If that has no clippy, runs the
/// host's for the host's target: the same code, except what depends on the target.
pub fn lint_ebpf() -> Result<()> {
    let toolchain = toolchain::ensure_toolchain(&|_| ())?;
    let mut clippy = toolchain.clippy();
    if clippy.is_none() && toolchain.sysroot == Path::new("/usr") {
        // If this fails, the host's clippy is used.
        if packages::install_packages(&["rust-web-clippy"]).is_ok() {
            clippy = toolchain.clippy();
        }
    }
    let mut command = match clippy {
        Some(mut clippy) => {
            for_bpf(clippy.arg("--quiet"), &[CPU]);
            clippy
        }
        None => {
            eprintln!("{toolchain} has no clippy: linting lb-ebpf as if for this machine");
            let mut host = cargo();
            // The profile with panic=abort: unwinding needs `std`.
            host.args(["clippy", "--quiet", "--package", "lb-ebpf", "--profile", "bpf"]);
            host
        }
    };
    run_command(command.args(["--", "--deny", "warnings"]))
}

/// Sets up a cargo command for the BPF crate and its target.
fn for_bpf(command: &mut Command, flags: &[&str]) {
    command
        .current_dir(repository_root())
        .args(["--profile", "bpf", "--package", "lb-ebpf", "--target", TARGET])
        .args(["-Zbuild-std=core", "--target-dir", "target/ebpf"])
        // Incremental builds inline functions differently, and then they exceed the stack.
        .env("CARGO_INCREMENTAL", "0")
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"));
}

fn inputs() -> Result<String> {
    // This file decides how they are compiled and stripped.
    let sources = ["lb-ebpf", "lb-common", "Cargo.toml", "Cargo.lock", "xtask/src/ebpf.rs"];
    let paths: Vec<PathBuf> = sources.iter().map(|source| repository_root().join(source)).collect();
    fingerprint::fingerprint_of(&paths, &FLAGS)
}

fn object(name: &str) -> PathBuf {
    repository_root().join("target/bpf").join(format!("{name}.bpf.o"))
}

fn read_if_there(path: &Path) -> Result<Option<Vec<u8>>> {
    match fs::read(path) {
        Ok(content) => Ok(Some(content)),
        Err(error) if is_missing(&error) => Ok(None),
        Err(error) => Err(error).with_context(|| path.display().to_string()),
    }
}
