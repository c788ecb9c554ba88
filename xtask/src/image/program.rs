//! Builds the agent as one static program.

use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use object::elf;
use object::read::elf::{ElfFile64, ProgramHeader};

use crate::ebpf;
use crate::paths;
use crate::process::{cargo, run_command, target_directory};

/// Builds the agent, which reports this version, and the BPF object that it embeds.
pub fn build_static_program(version: &str) -> Result<PathBuf> {
    let folder = target_directory().join("image");
    let triple = target_triple();
    let mut flags = vec!["-Ctarget-feature=+crt-static".to_owned()];
    flags.extend(paths::remap_flags()?);
    let mut command = cargo();
    // With an explicit target, the flags do not apply to build scripts.
    command
        .args(["rustc", "--locked", "--package", "lb-userspace", "--bin", "millrace"])
        .args(["--profile", "image", "--target", &triple, "--target-dir"])
        .arg(&folder)
        // The addresses that the program corrects at its start, as a bitmap: 1.5 MiB less.
        .args(["--", "-Clink-arg=-Wl,-z,pack-relative-relocs"])
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"))
        .env("CARGO_INCREMENTAL", "0")
        .env("MILLRACE_VERSION", version);
    ebpf::build_objects_beside(|| run_command(&mut command))?;
    Ok(folder.join(triple).join("image/millrace"))
}

/// The target that the agent is built for.
pub fn target_triple() -> String {
    format!("{}-unknown-linux-gnu", std::env::consts::ARCH)
}

/// The image has no dynamic loader and no libraries, so the program must be static.
pub fn check_is_static(program: &[u8]) -> Result<()> {
    let file = ElfFile64::<object::Endianness>::parse(program).context("not an ELF program")?;
    let endian = file.endian();
    let headers = file.elf_program_headers();
    ensure!(
        !headers.iter().any(|header| header.p_type(endian) == elf::PT_INTERP),
        "it is not static: it asks for a loader, and the image has none"
    );
    let dynamic =
        headers.iter().find_map(|h| h.dynamic(endian, program).transpose()).transpose()?;
    for entry in dynamic.unwrap_or_default() {
        if entry.d_tag.get(endian) == elf::DT_NEEDED {
            bail!("it is not static: it asks for libraries, and the image has none");
        }
    }
    Ok(())
}
