//! The software bill of materials of the image, in the format CycloneDX: what the static program
//! consists of, for scanners that look for known vulnerabilities.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::source::ImageSource;
use crate::ebpf;
use crate::process::{cargo, read_output, repository_root};

/// Lists all packages that are compiled into the program, and what it is linked with.
pub fn list_materials(source: &ImageSource) -> Result<Vec<u8>> {
    let lock = fs::read_to_string(repository_root().join("Cargo.lock")).context("Cargo.lock")?;
    let checksums = checksums(&lock)?;
    let crates = all_compiled()?;
    let components = crates.iter().map(|one| one.component(&checksums)).chain(linked());
    let bill = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": source.time.to_string(),
            "component": {
                "type": "application",
                "name": "millrace",
                "version": source.version(),
                "licenses": [{"expression": "Apache-2.0"}],
            },
        },
        "components": components.collect::<Vec<_>>(),
    });
    Ok(serde_json::to_vec_pretty(&bill)?)
}

/// The crates of the agent, and of the BPF object inside it.
fn all_compiled() -> Result<BTreeSet<Crate>> {
    let mut crates = compiled_crates("lb-userspace", &super::program::target_triple())?;
    crates.extend(compiled_crates("lb-ebpf", ebpf::TARGET)?);
    Ok(crates)
}

/// Name, version and licence of the registries' crates in the program.
pub fn linked_crates() -> Result<Vec<(String, String, String)>> {
    let crates = all_compiled()?.into_iter();
    Ok(crates.map(|Crate { name, version, license }| (name, version, license)).collect())
}

/// A crate of a registry.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Crate {
    name: String,
    version: String,
    license: String,
}

/// The crates that a package is compiled from. Those that only run during the build, such as
/// procedural macros, are among them: they write part of the program.
fn compiled_crates(package: &str, target: &str) -> Result<BTreeSet<Crate>> {
    let mut tree = cargo();
    tree.args(["tree", "--locked", "--edges", "normal,build", "--prefix", "none", "--no-dedupe"]);
    tree.args(["--package", package, "--target", target, "--format", "{p}|{l}"]);
    Ok(read_output(&mut tree)?.lines().filter_map(Crate::parse).collect())
}

impl Crate {
    /// Parses `syn v2.0.119|MIT OR Apache-2.0`. Returns `None` for crates of this repository, which
    /// have a path.
    fn parse(line: &str) -> Option<Self> {
        let (package, license) = line.split_once('|')?;
        let mut words = package.split(' ');
        let (name, version) = (words.next()?, words.next()?.strip_prefix('v')?);
        let is_local = words.next().is_some_and(|word| word.starts_with("(/"));
        // Older crates write a slash where SPDX writes OR.
        let license = license.replace('/', " OR ");
        (!is_local).then(|| Self { name: name.to_owned(), version: version.to_owned(), license })
    }

    fn component(&self, checksums: &Checksums) -> Value {
        let Self { name, version, license } = self;
        let mut component = library(name, version, &format!("pkg:cargo/{name}@{version}"));
        component["licenses"] = json!([{"expression": license}]);
        if let Some(checksum) = checksums.get(&[name.clone(), version.clone()]) {
            component["hashes"] = json!([{"alg": "SHA-256", "content": checksum}]);
        }
        component
    }
}

fn library(name: &str, version: &str, url: &str) -> Value {
    json!({"type": "library", "bom-ref": url, "name": name, "version": version, "purl": url})
}

/// By name and version.
type Checksums = BTreeMap<[String; 2], String>;

/// Reads the checksums in Cargo.lock.
fn checksums(lock: &str) -> Result<Checksums> {
    let lock: toml::Table = lock.parse().context("Cargo.lock")?;
    let packages = lock.get("package").and_then(toml::Value::as_array).context("no packages")?;
    let entry = |package: &toml::Value| {
        let field = |name| Some(package.get(name)?.as_str()?.to_owned());
        Some(([field("name")?, field("version")?], field("checksum")?))
    };
    Ok(packages.iter().filter_map(entry).collect())
}

/// What is linked besides crates: Rust's standard library and the C library. A version that cannot be
/// found is left out.
fn linked() -> impl Iterator<Item = Value> {
    let rust = read_output(Command::new("rustc").arg("--version")).ok().and_then(|line| {
        let version = line.split(' ').nth(1)?;
        Some(library("rust-std", version, &format!("pkg:generic/rust-std@{version}")))
    });
    let mut query = Command::new("dpkg-query");
    query.args(["--show", "--showformat=${source:Package} ${Version}", "libc6-dev"]);
    let libc = read_output(&mut query).ok().and_then(|line| {
        let (name, version) = line.split_once(' ')?;
        let url = format!("pkg:deb/debian/{name}@{}", version.replace('+', "%2B"));
        Some(library(name, version, &url))
    });
    [rust, libc].into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crates_are_read_from_the_tree() {
        let parse = |line| {
            Crate::parse(line).map(|Crate { name, version, license }| [name, version, license])
        };
        let found = parse("syn v2.0.119 (proc-macro)|MIT/Apache-2.0").unwrap();
        assert_eq!(found, ["syn", "2.0.119", "MIT OR Apache-2.0"]);
        assert_eq!(parse("lb-common v0.1.0 (/somewhere/lb-common)|Apache-2.0"), None);
        assert_eq!(parse(""), None);
    }

    #[test]
    fn the_bill_of_this_commit_has_a_checksum_and_a_license_for_each_crate() {
        let source = ImageSource::of_commit("0123456789abcdef0123456789abcdef01234567", 0);
        let bill = list_materials(&source).unwrap();
        assert_eq!(bill, list_materials(&source).unwrap(), "the same commit gives the same bytes");
        let bill: Value = serde_json::from_slice(&bill).unwrap();
        let components = bill["components"].as_array().unwrap();
        let name = |component: &Value| component["name"].as_str().unwrap().to_owned();
        let names: BTreeSet<String> = components.iter().map(name).collect();
        for expected in ["aya", "aya-ebpf", "kube", "ring", "tokio", "rust-std"] {
            assert!(names.contains(expected), "{expected} is missing: {names:?}");
        }
        for of_tests in ["proptest", "loom", "indicatif"] {
            assert!(!names.contains(of_tests), "{of_tests}");
        }
        let crates = components.iter().filter(|c| c["purl"].to_string().contains("pkg:cargo/"));
        for component in crates {
            assert!(
                component["hashes"].is_array() && component["licenses"].is_array(),
                "{component}"
            );
        }
    }
}
