//! Which compiler makes the BPF object.
//!
//! It must be able to build `core` for the BPF target, so it needs the library's source. An
//! ordinary user has a nightly with `rust-src`, or can add it by rustup. Where rustup can't
//! download, Debian packages a compiler with the source of its own version.

use std::fmt::{self, Display};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};

use crate::packages;
use crate::process::{find, output};

const DEBIAN_CARGO: &str = "/usr/bin/cargo";
const DEBIAN_RUSTC: &str = "/usr/bin/rustc";
const DEBIAN_PACKAGES: [&str; 4] = ["rustc-web", "cargo-web", "rust-web-src", "rust-web-clippy"];
const OLDEST_DEBIAN_RUSTC: u32 = 90;

/// A compiler with the source of its library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Toolchain {
    /// By rustup's name of it.
    Rustup(String),
    Debian,
}

impl Display for Toolchain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rustup(name) => write!(f, "rustup's {name}"),
            Self::Debian => f.write_str("Debian's rustc"),
        }
    }
}

impl Toolchain {
    /// A cargo that uses this compiler, not the one that xtask was started by.
    pub fn cargo(&self) -> Command {
        let mut command = match self {
            Self::Rustup(name) => {
                let mut command = Command::new("rustup");
                command.args(["run", name, "cargo"]);
                command
            }
            Self::Debian => {
                let mut command = Command::new(DEBIAN_CARGO);
                command.env("RUSTC", DEBIAN_RUSTC).env("RUSTDOC", "/usr/bin/rustdoc");
                command
            }
        };
        // Building `core` is unstable; Debian's compiler is a stable one.
        command.env("RUSTC_BOOTSTRAP", "1").env_remove("RUSTUP_TOOLCHAIN").env_remove("CARGO");
        command
    }
}

/// Chooses a compiler, installing what is missing. `say` hears why each candidate was not taken.
pub fn choose(say: &dyn Fn(&str)) -> Result<Toolchain> {
    if let Some(name) = rustup_with_source() {
        return Ok(Toolchain::Rustup(name));
    }
    say("no toolchain of rustup's has rust-src");
    if debian_has_source() {
        return Ok(Toolchain::Debian);
    }
    say("Debian's rustc-web and rust-web-src are not installed");

    match add_source_to_nightly() {
        Ok(()) => {
            if let Some(name) = rustup_with_source() {
                return Ok(Toolchain::Rustup(name));
            }
        }
        Err(error) => say(&format!("rust-src can't be added to nightly: {error:#}")),
    }
    let installed = packages::install(&DEBIAN_PACKAGES);
    if let Err(error) = &installed {
        say(&format!("Debian's compiler can't be installed: {error:#}"));
    }
    if installed.is_ok() && debian_has_source() {
        return Ok(Toolchain::Debian);
    }
    bail!(
        "no Rust compiler here can build for BPF: it needs the source of its library.\n\
         Either:  rustup toolchain install nightly --component rust-src\n\
         or, on Debian and Ubuntu:  apt-get install {}",
        DEBIAN_PACKAGES.join(" ")
    )
}

fn rustup_with_source() -> Option<String> {
    let list = output(Command::new("rustup").args(["toolchain", "list"])).ok()?;
    let source = |name: &str| {
        let sysroot = output(Command::new("rustup").args(["run", name, "rustc", "--print", "sysroot"]));
        sysroot.is_ok_and(|sysroot| Path::new(&sysroot).join("lib/rustlib/src/rust/library/core").is_dir())
    };
    nightly_first(&list).into_iter().find(|name| source(name))
}

/// The names in rustup's list, the nightlies before the others.
fn nightly_first(list: &str) -> Vec<String> {
    let mut names: Vec<String> =
        list.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect();
    names.sort_by_key(|name| !name.starts_with("nightly"));
    names
}

fn add_source_to_nightly() -> Result<()> {
    if find("rustup").is_none() {
        bail!("there is no rustup");
    }
    // Bounded: without a network it would try for minutes.
    let add = ["60", "rustup", "component", "add", "rust-src", "--toolchain", "nightly"];
    output(Command::new("timeout").args(add)).map(drop)
}

fn debian_has_source() -> bool {
    let source = Path::new("/usr/lib/rustlib/src/rust/library/core").is_dir();
    let version = output(Command::new(DEBIAN_RUSTC).arg("--version")).ok();
    let minor = version.as_deref().and_then(minor_version);
    source && Path::new(DEBIAN_CARGO).is_file() && minor.is_some_and(|m| m >= OLDEST_DEBIAN_RUSTC)
}

/// 96 of "rustc 1.96.0 (ac68faa20 2026-05-25)".
fn minor_version(version: &str) -> Option<u32> {
    version.split_whitespace().nth(1)?.split('.').nth(1)?.parse().ok()
}

/// Directories with an LLVM that bpf-linker may borrow: those of rustup's toolchains.
pub fn llvm_directories() -> Vec<PathBuf> {
    let list = output(Command::new("rustup").args(["toolchain", "list"])).unwrap_or_default();
    let sysroot = |name: String| {
        output(Command::new("rustup").args(["run", &name, "rustc", "--print", "sysroot"])).ok()
    };
    let names = list.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned);
    names.filter_map(sysroot).map(|sysroot| Path::new(&sysroot).join("lib")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nightly_is_tried_first() {
        let list = "stable-x86_64-unknown-linux-gnu (active, default)\nnightly-x86_64-unknown-linux-gnu\n";
        assert_eq!(
            nightly_first(list),
            ["nightly-x86_64-unknown-linux-gnu", "stable-x86_64-unknown-linux-gnu"]
        );
        assert_eq!(nightly_first("no installed toolchains").len(), 1);
    }

    #[test]
    fn a_version_is_read() {
        assert_eq!(minor_version("rustc 1.96.0 (ac68faa20 2026-05-25)"), Some(96));
        assert_eq!(minor_version("nonsense"), None);
    }
}
