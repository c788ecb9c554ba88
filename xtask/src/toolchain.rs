//! Selects the compiler for the BPF objects.
//!
//! It must build `core` for the BPF target, so it needs the source of the standard library, and an
//! LLVM of the version that bpf-linker supports. Most users have a nightly with `rust-src` or can
//! add it. Debian packages a compiler together with the source. An existing compiler is used if
//! possible. Something is installed only if none fits.

use std::fmt::{self, Display};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};

use crate::packages;
use crate::process::{find_program, read_output, with_time_limit};

const DEBIAN_PACKAGES: [&str; 4] = ["rustc-web", "cargo-web", "rust-web-src", "rust-web-clippy"];
/// The LLVM version whose interface [`LINKER_VERSION`](crate::linker::LINKER_VERSION) of bpf-linker uses.
pub const LINKER_LLVM: u32 = 22;
/// The `rust-version` of the workspace.
const OLDEST_MINOR: u32 = 90;
/// The release to install if no toolchain has the right LLVM.
const RUSTUP_RELEASE: &str = "1.96.0";

/// A Rust compiler and its properties.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Toolchain {
    /// The name in messages: "rustup's nightly-x86_64-unknown-linux-gnu".
    pub name: String,
    pub sysroot: PathBuf,
    pub has_cargo: bool,
    /// Whether it has the source of `core`.
    pub has_source: bool,
    pub version: Option<Version>,
}

/// The relevant fields of `rustc -vV`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    pub release: String,
    pub minor: u32,
    pub llvm: u32,
}

impl Display for Toolchain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        self.version.as_ref().map_or(Ok(()), |version| write!(f, ", {}", version.release))
    }
}

impl Toolchain {
    fn probe(name: String, sysroot: &Path) -> Self {
        let text = read_output(Command::new(sysroot.join("bin/rustc")).arg("-vV")).ok();
        Self {
            name,
            sysroot: sysroot.to_owned(),
            has_cargo: sysroot.join("bin/cargo").is_file(),
            has_source: sysroot.join("lib/rustlib/src/rust/library/core").is_dir(),
            version: text.as_deref().and_then(Version::parse),
        }
    }

    pub fn rustc(&self) -> PathBuf {
        self.sysroot.join("bin/rustc")
    }

    /// A cargo that uses this compiler, not the one that started xtask.
    pub fn cargo(&self) -> Command {
        self.command("cargo")
    }

    /// A clippy of this toolchain, if it has one. Started by path: cargo would find the clippy of
    /// rustup, which has another version.
    pub fn clippy(&self) -> Option<Command> {
        let there = self.sysroot.join("bin/cargo-clippy").is_file();
        there.then(|| {
            let mut command = self.command("cargo-clippy");
            command.arg("clippy");
            command
        })
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.sysroot.join("bin").join(program));
        command.env("CARGO", self.sysroot.join("bin/cargo")).env("RUSTC", self.rustc());
        // Building `core` is unstable. This also allows it on stable compilers.
        command.env("RUSTC_BOOTSTRAP", "1").env_remove("RUSTUP_TOOLCHAIN");
        command
    }

    /// Why this compiler cannot be used, or `None`.
    fn fault(&self) -> Option<String> {
        let Some(version) = &self.version else {
            return Some("it has no working rustc".to_owned());
        };
        if !self.has_cargo {
            Some("it has no cargo".to_owned())
        } else if version.minor < OLDEST_MINOR {
            Some(format!("it is older than 1.{OLDEST_MINOR}"))
        } else if version.llvm != LINKER_LLVM {
            Some(format!("its LLVM is {}, and bpf-linker's {LINKER_LLVM}", version.llvm))
        } else if !self.has_source {
            Some("it has no rust-src".to_owned())
        } else {
            None
        }
    }
}

impl Version {
    fn parse(text: &str) -> Option<Self> {
        let field = |key| text.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
        let release = field("release:")?.to_owned();
        let minor = release.split('.').nth(1)?.parse().ok()?;
        let llvm = field("LLVM version:")?.split('.').next()?.parse().ok()?;
        Some(Self { release, minor, llvm })
    }
}

/// Selects a compiler, and installs one if there is none. `log` gets a line about every candidate.
pub fn ensure_toolchain(log: &dyn Fn(&str)) -> Result<Toolchain> {
    let there = find_toolchains();
    for toolchain in &there {
        match toolchain.fault() {
            Some(fault) => log(&format!("not {toolchain}: {fault}")),
            None => log(&format!("{toolchain}: complete")),
        }
    }
    if let Some(toolchain) = choose(there.clone()) {
        return Ok(toolchain);
    }

    let installers: [(&str, &dyn Fn() -> Result<()>); 2] = [
        ("installation by rustup", &|| install_by_rustup(&there)),
        ("installation by apt", &|| packages::install_packages(&DEBIAN_PACKAGES)),
    ];
    for (way, install) in installers {
        match install() {
            Ok(()) => match choose(find_toolchains()) {
                Some(toolchain) => return Ok(toolchain),
                None => log(&format!("{way} did not give a usable toolchain")),
            },
            Err(error) => log(&format!("{way} fails: {error:#}")),
        }
    }
    bail!(
        "no Rust compiler here can build for BPF: it takes one with LLVM {LINKER_LLVM} and the source \
         of its library, and none could be installed (--verbose says why).\n\
         Either:               rustup toolchain install {RUSTUP_RELEASE} --component rust-src,clippy\n\
         or, on Debian, root:  apt-get update && apt-get install {}",
        DEBIAN_PACKAGES.join(" ")
    )
}

/// All compilers of this machine in order of preference: rustup's nightlies, rustup's others, the
/// system's.
pub fn find_toolchains() -> Vec<Toolchain> {
    let list = read_output(Command::new("rustup").args(["toolchain", "list"])).unwrap_or_default();
    let mut found = Vec::new();
    for name in nightly_first(&list) {
        let which = ["which", "--toolchain", &name, "rustc"];
        let rustc = read_output(Command::new("rustup").args(which)).unwrap_or_default();
        if let Some(sysroot) = Path::new(&rustc).ancestors().nth(2) {
            found.push(Toolchain::probe(format!("rustup's {name}"), sysroot));
        }
    }
    if Path::new("/usr/bin/rustc").exists() {
        found.push(Toolchain::probe("the system's rustc".to_owned(), Path::new("/usr")));
    }
    found
}

fn choose(found: Vec<Toolchain>) -> Option<Toolchain> {
    found.into_iter().find(|toolchain| toolchain.fault().is_none())
}

/// The toolchains in rustup's list, nightlies first.
fn nightly_first(list: &str) -> Vec<String> {
    let installed = list.lines().filter(|line| !line.starts_with("no installed"));
    let mut names: Vec<String> =
        installed.filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect();
    names.sort_by_key(|name| !name.starts_with("nightly"));
    names
}

/// Adds the source to a toolchain that lacks only that, or installs a toolchain with it.
fn install_by_rustup(found: &[Toolchain]) -> Result<()> {
    if find_program("rustup").is_none() {
        bail!("there is no rustup");
    }
    let arguments = rustup_arguments(found);
    eprintln!("trying: rustup {}", arguments.join(" "));
    // Limited, because rustup retries for a long time without a network.
    read_output(with_time_limit(300, "rustup").args(arguments)).map(drop)
}

fn rustup_arguments(found: &[Toolchain]) -> Vec<&str> {
    let lacks_only_source = |toolchain: &&Toolchain| {
        Toolchain { has_source: true, ..(*toolchain).clone() }.fault().is_none()
    };
    let name =
        found.iter().filter(lacks_only_source).find_map(|t| t.name.strip_prefix("rustup's "));
    match name {
        Some(name) => vec!["component", "add", "rust-src", "--toolchain", name],
        None => {
            let install = ["toolchain", "install", RUSTUP_RELEASE, "--profile", "minimal"];
            [&install[..], &["--component", "rust-src", "--component", "clippy"]].concat()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A suitable compiler with this name.
    fn good(name: &str) -> Toolchain {
        Toolchain {
            name: name.to_owned(),
            sysroot: PathBuf::new(),
            has_cargo: true,
            has_source: true,
            version: Some(Version { release: "1.96.0".to_owned(), minor: 96, llvm: LINKER_LLVM }),
        }
    }

    fn with_version(name: &str, minor: u32, llvm: u32) -> Toolchain {
        let version = Some(Version { release: format!("1.{minor}.0"), minor, llvm });
        Toolchain { version, ..good(name) }
    }

    fn without_source(name: &str) -> Toolchain {
        Toolchain { has_source: false, ..good(name) }
    }

    #[test]
    fn the_first_suitable_compiler_is_selected() {
        let cases: [(&str, Vec<Toolchain>, Option<&str>); 6] = [
            ("bare machine", vec![], None),
            ("both fit", vec![good("nightly"), good("system")], Some("nightly")),
            ("no source", vec![without_source("nightly"), good("system")], Some("system")),
            ("too old", vec![with_version("nightly", 89, LINKER_LLVM)], None),
            ("newer LLVM", vec![with_version("nightly", 99, 23), good("stable")], Some("stable")),
            ("no rustc", vec![Toolchain { version: None, ..good("nightly") }], None),
        ];
        for (case, found, expected) in cases {
            assert_eq!(
                choose(found).map(|toolchain| toolchain.name).as_deref(),
                expected,
                "{case}"
            );
        }
    }

    #[test]
    fn rustup_adds_the_source_where_only_that_is_missing() {
        let found = [
            Toolchain { has_source: false, ..with_version("rustup's nightly", 99, 23) },
            without_source("rustup's stable"),
            without_source("the system's rustc"),
        ];
        let add = ["component", "add", "rust-src", "--toolchain", "stable"];
        assert_eq!(rustup_arguments(&found), add);
        assert_eq!(rustup_arguments(&found[2..])[..3], ["toolchain", "install", RUSTUP_RELEASE]);
    }

    #[test]
    fn nightlies_are_tried_first() {
        let list = "stable-x86_64-unknown-linux-gnu (active, default)\nnightly-2026-05-01-x86_64\n";
        assert_eq!(
            nightly_first(list),
            ["nightly-2026-05-01-x86_64", "stable-x86_64-unknown-linux-gnu"]
        );
        assert!(nightly_first("no installed toolchains\n").is_empty());
    }

    #[test]
    fn versions_are_read() {
        let text =
            "rustc 1.97.0-nightly (x)\nhost: x\nrelease: 1.97.0-nightly\nLLVM version: 22.1.8";
        let expected = Version { release: "1.97.0-nightly".to_owned(), minor: 97, llvm: 22 };
        assert_eq!(Version::parse(text), Some(expected));
        assert_eq!(Version::parse("error: toolchain 'nightly' is not installed"), None);
    }
}
