//! Builds bpf-linker into `target/tools`, and finds an LLVM for it.
//!
//! bpf-linker loads the first libLLVM in `LD_LIBRARY_PATH`. It must be the LLVM of the compiler
//! whose bitcode it reads. Whether they fit shows only when it links: `bpf-linker --version` works
//! without any LLVM.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::process::{is_missing, read_output};
use crate::toolchain::{self, LINKER_LLVM, Toolchain};
use crate::tools::{install_program, tools_directory};

pub const LINKER_VERSION: &str = "0.10.3";

/// A minimal program that makes the linker use its LLVM.
const SAMPLE: &str = "target triple = \"bpfel\"\ndefine i32 @f() section \"xdp\" { ret i32 0 }\n";

pub struct Linker {
    pub program: PathBuf,
    /// Directory for `LD_LIBRARY_PATH`.
    pub llvm: PathBuf,
}

/// Builds the linker if it is missing, and finds an LLVM that works with it.
pub fn ensure_linker(toolchain: &Toolchain, log: &dyn Fn(&str)) -> Result<Linker> {
    let program = tools_directory().join("bin/bpf-linker");
    let version = read_output(Command::new(&program).arg("--version")).unwrap_or_default();
    if version != format!("bpf-linker {LINKER_VERSION}") {
        // LLVM does the work, so optimizing the linker itself would only make its build longer.
        install_program("bpf-linker", LINKER_VERSION, &["--debug"])?;
    }
    for llvm in llvm_directories(toolchain)? {
        match try_link(&program, &llvm) {
            Ok(()) => {
                log(&format!(
                    "bpf-linker {LINKER_VERSION} links with the LLVM in {}",
                    llvm.display()
                ));
                return Ok(Linker { program, llvm });
            }
            Err(error) => log(&format!("not the LLVM in {}: {error:#}", llvm.display())),
        }
    }
    bail!(
        "bpf-linker found no usable LLVM {LINKER_LLVM} (--verbose lists the attempts).\n\
         On Debian, root:  apt-get install libllvm{LINKER_LLVM}"
    )
}

/// Directories that may contain a suitable LLVM, the compiler's first.
fn llvm_directories(toolchain: &Toolchain) -> Result<Vec<PathBuf>> {
    let same_llvm =
        |other: &Toolchain| other.version.as_ref().is_some_and(|v| v.llvm == LINKER_LLVM);
    let others = toolchain::find_toolchains().into_iter().filter(same_llvm);
    let mut directories = Vec::new();
    for sysroot in
        std::iter::once(toolchain.sysroot.clone()).chain(others.map(|other| other.sysroot))
    {
        let directory =
            if sysroot == Path::new("/usr") { system_llvm()? } else { Some(sysroot.join("lib")) };
        directories.extend(directory.filter(|directory| !directories.contains(directory)));
    }
    Ok(directories)
}

/// Makes a directory with only the distribution's LLVM. The system's library directory may contain
/// others, and the linker takes the first one listed.
fn system_llvm() -> Result<Option<PathBuf>> {
    let directories =
        fs::read_dir("/usr/lib").into_iter().flatten().flatten().map(|entry| entry.path());
    let name = |library: &PathBuf| {
        let name = library.file_name().unwrap_or_default().to_string_lossy();
        is_llvm(&name)
    };
    let library = directories
        .chain([
            PathBuf::from("/usr/lib64"),
            PathBuf::from(format!("/usr/lib/llvm-{LINKER_LLVM}/lib")),
        ])
        .filter_map(|directory| fs::read_dir(directory).ok())
        .flat_map(|files| files.flatten().map(|file| file.path()))
        .find(name);
    let Some(library) = library else { return Ok(None) };

    let directory = tools_directory().join("llvm");
    let link = directory.join("libLLVM.so");
    fs::create_dir_all(&directory)?;
    match fs::remove_file(&link) {
        Err(error) if !is_missing(&error) => return Err(error).context(link.display().to_string()),
        _ => symlink(&library, &link)?,
    }
    Ok(Some(directory))
}

fn is_llvm(file: &str) -> bool {
    let rest = file
        .strip_prefix("libLLVM.so.")
        .or_else(|| file.strip_prefix("libLLVM-").filter(|rest| rest.contains(".so")));
    rest.is_some_and(|rest| rest.split('.').next() == Some(&LINKER_LLVM.to_string()))
}

fn try_link(program: &Path, llvm: &Path) -> Result<()> {
    let sample = tools_directory().join("sample.ll");
    fs::write(&sample, SAMPLE)?;
    let mut command = Command::new(program);
    command
        .args(["--target", "bpfel", "--output"])
        .arg(tools_directory().join("sample.o"))
        .arg(&sample);
    read_output(command.env("LD_LIBRARY_PATH", llvm)).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_matching_llvm_is_used() {
        for (file, expected) in [
            ("libLLVM.so.22.1", true),
            ("libLLVM-22.so", true),
            ("libLLVM-22.so.1", true),
            ("libLLVM-15.so.1", false),
            ("libLLVM.so.23.1", false),
            ("libLLVM-22-rust-1.95.0-stable.so", false),
            ("libLLVMSupport.a", false),
        ] {
            assert_eq!(is_llvm(file), expected, "{file}");
        }
    }
}
