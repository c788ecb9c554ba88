//! The agent as one static program.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use object::build::elf::{Builder, SectionData};
use object::elf;
use object::read::elf::{ElfFile64, ProgramHeader};

use crate::ebpf;
use crate::paths;
use crate::process::{cargo, root, run, target};

/// Builds it, and what it carries.
pub fn build() -> Result<PathBuf> {
    ebpf::build(&ebpf::Options::default())?;
    let folder = target().join("image");
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let object = folder.join("millrace.bpf.o");
    let debugged = root().join("target/bpf/millrace.bpf.o");
    let debugged = fs::read(&debugged).with_context(|| debugged.display().to_string())?;
    let stripped = strip(&debugged).context("the BPF object's debug information")?;
    // Written only when it differs: the agent embeds it, and would be built again.
    if fs::read(&object).ok().as_ref() != Some(&stripped) {
        fs::write(&object, stripped).with_context(|| object.display().to_string())?;
    }

    let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let mut flags = vec!["-Ctarget-feature=+crt-static".to_owned()];
    flags.extend(paths::remapping()?);
    let mut command = cargo();
    // With a target of its own, so that the flags are not those of build scripts.
    command
        .args(["build", "--locked", "--package", "lb-userspace", "--bin", "millrace"])
        .args(["--profile", "image", "--target", &triple, "--target-dir"])
        .arg(&folder)
        .env("MILLRACE_BPF_OBJECT", &object)
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"))
        .env("CARGO_INCREMENTAL", "0");
    run(&mut command)?;
    Ok(folder.join(triple).join("image/millrace"))
}

/// Without what only debuggers read: four fifths of it. The types that bpftool and the verifier
/// want are in other sections.
fn strip(object: &[u8]) -> Result<Vec<u8>> {
    let mut builder = Builder::read(object)?;
    for section in &mut builder.sections {
        let name = section.name.as_slice();
        section.delete = name.starts_with(b".debug_") || name.starts_with(b".rel.debug_");
    }
    // LLVM keeps the names of sections among those of symbols; apart they can be written anew.
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

/// There is no loader in the image, and no library.
pub fn check(program: &[u8]) -> Result<()> {
    let file = ElfFile64::<object::Endianness>::parse(program).context("it is no program")?;
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
